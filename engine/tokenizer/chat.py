"""Chat templates of checkpoints: foreign Jinja code, run in a sandbox with the helpers that Transformers offers to it."""

import json
from datetime import datetime

import jinja2
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from engine.errors import InvalidRequest, ModelError


class _Generation(Extension):
    """``{% generation %}...{% endgeneration %}`` marks what the model says; for rendering it is only its body."""

    tags = {"generation"}

    def parse(self, parser):
        lineno = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(lineno)

    def _body(self, caller):
        return caller()


class ChatTemplate:
    """Renders conversations exactly as Transformers' ``apply_chat_template`` does.

    ``named``: what a template may ask for by name, such as {"eos_token": "</s>"}; of a model without bos or eos they are "".
    """

    def __init__(self, source: str, named: dict[str, str]):
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols])
        environment.filters["tojson"] = _tojson
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
        try:
            self._template = environment.from_string(source)
        except Exception as error:  # a template may be nested too deeply for the compiler
            raise ModelError(f"The model's chat template is broken: {error}") from error
        self._named = {"bos_token": "", "eos_token": ""} | named

    def render(self, messages: list[dict[str, str]], add_generation_prompt: bool) -> str:
        """Raises InvalidRequest with the template's words when it refuses the messages."""
        try:
            return self._template.render(
                messages=messages, add_generation_prompt=add_generation_prompt, tools=None, documents=None, **self._named
            )
        except Exception as error:  # foreign code
            raise InvalidRequest(f"The model's chat template does not take these messages: {error}") from error


def _tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message):
    raise jinja2.TemplateError(message)
