"""What is written down equals what runs: protocol, settings, commands."""

import re

import pytest

from playground.config import BASE_DIR, Config
from playground.protocol import protocol_markdown


def test_the_exported_protocol_is_current():
    assert (BASE_DIR / "docs" / "protocol.md").read_text() == protocol_markdown(), "run `make protocol`"


def test_every_setting_is_in_the_example_with_its_default():
    example = dict(re.findall(r"^([A-Z_]+)=(.*)$", (BASE_DIR / ".env.example").read_text(), re.MULTILINE))
    assert set(example) == {name.upper() for name in Config.model_fields}
    for name, field in Config.model_fields.items():
        default = {None: "", True: "true", False: "false"}.get(field.default, field.default)
        if name == "data_dir":
            default = field.default.relative_to(BASE_DIR)
        assert example[name.upper()] == str(default), name


def test_the_web_side_imports_no_torch():
    import subprocess
    import sys

    code = "import playground.asgi, sys; from playground import engine_client as e; e.context_tokens; "
    code += "e.count_prompt_tokens('smollm2-135m-instruct', {'prompt': 'hello'}); e._described_context('smollm2-135m-instruct'); "
    code += "sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=BASE_DIR).returncode == 0


def test_make_help_lists_every_target_people_type():
    import subprocess

    listed = subprocess.run(["make", "help"], cwd=BASE_DIR, capture_output=True, text=True).stdout
    for target in ("run", "test", "test-gpu", "bench", "lint", "format"):
        assert re.search(rf"^{target}\s", listed, re.MULTILINE), target


@pytest.mark.parametrize("language", ["en", "fr"])
def test_every_error_code_of_the_protocol_has_words_in_each_language(language: str):
    from engine import errors
    from playground import exceptions

    kinds = [kind for module in (errors, exceptions) for kind in vars(module).values() if isinstance(kind, type)]
    words = (BASE_DIR / "frontend" / "src" / "i18n" / f"errors.{language}.ts").read_text()
    said = set(re.findall(r'"error\.([a-z_]+)', words))
    assert {kind.code for kind in kinds if hasattr(kind, "code")} | {"internal", "not_stored"} <= said


@pytest.mark.parametrize("language", ["en", "fr"])
def test_every_reason_of_the_stats_page_has_words_in_each_language(language: str):
    from engine import errors
    from playground import exceptions
    from playground.api import errors as api_errors

    kinds = [kind for module in (errors, exceptions, api_errors) for kind in vars(module).values() if isinstance(kind, type)]
    words = (BASE_DIR / "frontend" / "src" / "i18n" / f"stats.{language}.ts").read_text()
    said = set(re.findall(r'"stats\.code_([a-z_]+)"', words))
    assert {kind.code for kind in kinds if hasattr(kind, "code")} | {"internal", "not_stored"} == said
