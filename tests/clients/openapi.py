"""schemathesis against a running server's OpenAPI document: no 500, no schema violation. How to run it: README.md beside it."""

import os
from urllib.parse import urljoin

import schemathesis
from hypothesis import HealthCheck, Phase, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

BASE = os.environ["OPENAI_BASE_URL"].rstrip("/") + "/"
EXAMPLES = int(os.environ.get("EXAMPLES", "60"))
MODEL = os.environ.get("MODEL", "smollm2-135m-instruct")
CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
schema = schemathesis.openapi.from_url(urljoin(BASE, "openapi.json"))


@schema.parametrize()
@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck), phases=[Phase.explicit, Phase.generate])
def test_api(case) -> None:
    """Most requests name the model that is served and stay short, so that they get past the first check."""
    if isinstance(case.body, dict) and len(str(case.body)) % 4:
        case.body |= {"model": MODEL, "max_tokens": 2, "n": None}
        if "max_completion_tokens" in case.body:
            case.body["max_completion_tokens"] = 2
    case.call_and_validate(headers={"Authorization": f"Bearer {os.environ['OPENAI_API_KEY']}"}, checks=CHECKS, timeout=120)
