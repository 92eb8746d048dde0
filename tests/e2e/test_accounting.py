"""Every generation of a rough day is counted once: answers, stops, errors, a killed worker, the API; rows and rollups agree."""

import json
import subprocess
import sys
import urllib.request

import pytest

from tests.e2e.conftest import ROOT, SYNTHETIC, Product, wait_for
from tests.fakes import FAILING_SEED

pytestmark = pytest.mark.e2e


@pytest.fixture
def product():
    product = Product(ENGINE_BACKEND=SYNTHETIC, SYNTHETIC_TOKENS_PER_S="200").start()
    yield product
    product.remove()


def manage(product: Product, *command: str) -> str:
    env = product.env | {"REDIS_URL": "redis://127.0.0.1:1/0", "DJANGO_SUPERUSER_PASSWORD": "correct-horse-battery"}
    done = subprocess.run([sys.executable, "manage.py", *command], cwd=ROOT, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def ask_api(product: Product, key: str) -> None:
    body = json.dumps({"model": "smollm2-135m-instruct", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 20})
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    request = urllib.request.Request(f"{product.url}v1/chat/completions", body.encode(), headers)
    assert json.loads(urllib.request.urlopen(request, timeout=60).read())["usage"]["completion_tokens"] == 20


def test_rows_and_rollups_agree_after_stops_errors_and_a_killed_worker(product: Product) -> None:
    manage(product, "createsuperuser", "--noinput", "--username", "root", "--email", "root@example.org")
    key = manage(product, "create_api_key", "--user", "root").split()[-1]
    with product.socket(product.visit()) as client:
        for _ in range(3):
            client.generate("Answer", max_tokens=30)
            assert client.to_end()[-1]["finish_reason"] == "length"
        ask_api(product, key)

        stopped = client.generate("Be stopped", max_tokens=5000)
        client.receive("delta")
        client.send({"type": "stop", "generation_id": stopped["generation_id"]})
        assert client.receive("done")["finish_reason"] == "cancelled"
        client.generate("Fail", max_tokens=5000, seed=FAILING_SEED)
        assert client.receive("error")["code"] == "invalid_numbers"

        manage(product, "rollup_usage")  # the rest comes on top
        client.generate("Be killed", max_tokens=5000)
        client.receive("delta")
        waiting = client.generate("Wait and be stopped", max_tokens=5000)
        client.send({"type": "stop", "generation_id": waiting["generation_id"]})
        assert client.receive("done")["finish_reason"] == "cancelled"
        product.child("engine_worker").kill()
        assert client.receive("done", seconds=40)["finish_reason"] == "interrupted"
        wait_for(lambda: product.get("/api/models")[0]["ready"], 60, "the new worker")
        client.generate("After it", max_tokens=30)
        assert client.to_end()[-1]["finish_reason"] == "length"

    table = manage(product, "rollup_usage", "--check")
    print(table)
    figures = {line[:30].strip(): line[30:].split() for line in table.splitlines()[2:]}
    assert figures["requests"] == ["9"] * 3
    assert [figures[state][0] for state in ("done", "stopped", "interrupted", "failed")] == ["5", "2", "1", "1"]
    assert figures["requests, by visitor"] == ["8"] * 3 and figures["requests, by key"] == ["1"] * 3
    assert manage(product, "rollup_usage", "--rebuild", "--check").splitlines()[1:] == table.splitlines()[1:]
