"""Chat templates: byte-equal with Transformers' apply_chat_template, and harmless."""

import pytest

from engine.errors import InvalidRequest, ModelError
from engine.tokenizer import load_tokenizer
from engine.tokenizer.chat import ChatTemplate

CHATS = [
    [{"role": "user", "content": "Hello"}],
    [{"role": "system", "content": "Be brief."}, {"role": "user", "content": " Hi \n"}],
    [{"role": "user", "content": "a"}, {"role": "assistant", "content": " b\n\n"}, {"role": "user", "content": "c"}],
    [{"role": "user", "content": "数字 🙂 <b>&amp;</b> {{ 7 * 7 }}"}],
]
# Written for this test in the manner of published templates: whitespace control, loops, macros, helpers.
TEMPLATES = {
    "chatml": "{% for m in messages %}\n{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}\n{% endfor %}\n"
    "{% if add_generation_prompt %}\n    {{- '<|im_start|>assistant\n' }}\n{% endif %}\n",
    "inst": "{%- if messages[0].role == 'system' -%}\n{%- set system = messages[0].content -%}\n{%- set rest = messages[1:] -%}\n"
    "{%- else -%}{%- set rest = messages -%}{%- endif -%}{{ bos_token }}\n  {% for m in rest %}\n    {% if m.role == 'user' %}\n"
    "[INST] {% if loop.first and system is defined %}<<SYS>>{{ system }}<</SYS>>{% endif %}{{ m.content.strip() }} [/INST]"
    "{% else %} {{ m.content | trim }} {{ eos_token }}{% endif %}\n  {% endfor %}",
    "helpers": "{% macro show(m) %}{{ m | tojson }}{% endmacro %}{%- for m in messages %}{% if loop.index > 2 %}{% break %}{% endif %}"
    "{% generation %}{{ show(m) }}{% endgeneration %}{{ messages | tojson(indent=2) }}{% endfor %}{{ strftime_now('%Y') }}",
    "namespace": "{% set ns = namespace(count=0) %}{% for m in messages %}{% set ns.count = ns.count + m.content | length %}"
    "{% endfor %}{{ ns.count }}{{ messages | map(attribute='role') | join(',') }}",
}


@pytest.mark.parametrize("generation_prompt", [True, False])
@pytest.mark.parametrize("name", TEMPLATES)
def test_templates_equal_transformers(name, generation_prompt):
    render = pytest.importorskip("transformers.utils.chat_template_utils").render_jinja_template
    template = ChatTemplate(TEMPLATES[name], {"bos_token": "<s>", "eos_token": "</s>"})
    for chat in CHATS:
        theirs, _ = render(
            [chat], chat_template=TEMPLATES[name], add_generation_prompt=generation_prompt, bos_token="<s>", eos_token="</s>"
        )
        assert template.render(chat, generation_prompt) == theirs[0]


@pytest.mark.parametrize("chat", CHATS, ids=lambda chat: chat[0]["content"][:8])
def test_smollm2_equals_transformers(chat):
    render = pytest.importorskip("transformers.utils.chat_template_utils").render_jinja_template
    ours = load_tokenizer("smollm2-135m-instruct")
    source = ours._spec.chat_template
    theirs, _ = render([chat], chat_template=source, add_generation_prompt=True, bos_token="<|im_start|>", eos_token="<|im_end|>")
    assert ours.chat_text(chat) == theirs[0]
    assert ours.render_chat(chat) == ours.encode(theirs[0], special=True)


@pytest.mark.parametrize(
    "attack",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.__init__.__globals__ }}",
        "{{ messages.append(1) }}",
        "{% set x = messages.clear() %}",
        "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
    ],
)
def test_the_sandbox_holds(attack):
    chat = [{"role": "user", "content": "hi"}]
    with pytest.raises(InvalidRequest):
        ChatTemplate(attack, {}).render(chat, True)
    assert chat == [{"role": "user", "content": "hi"}]


def test_refusals_are_in_words():
    with pytest.raises(InvalidRequest, match="roles must alternate"):
        ChatTemplate("{{ raise_exception('roles must alternate') }}", {}).render(CHATS[0], True)
    with pytest.raises(ModelError, match="chat template is broken"):
        ChatTemplate("{% for %}", {})
    with pytest.raises(ModelError, match="chat template is broken: maximum recursion depth"):
        ChatTemplate("{{" + "(" * 5000 + "1" + ")" * 5000 + "}}", {})
    with pytest.raises(InvalidRequest, match="'tool'"):
        load_tokenizer("smollm2-135m-instruct").render_chat([{"role": "tool", "content": "x"}])
