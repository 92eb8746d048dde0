"""The whole product as real processes, a WebSocket client and a browser.

``product`` runs the real model on the CPU; ``synthetic`` the same processes with a backend of a fixed rate.
Screenshots go to ``test-artifacts/``.
"""

import json
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from websockets.sync.client import connect

from playground.supervisor.embedded_redis import free_port
from tests.fakes import ANSWER

ROOT = Path(__file__).resolve().parents[2]
ARTIFACTS = ROOT / "test-artifacts"
START_SECONDS = 180
SYNTHETIC = "tests.fakes:SyntheticBackend"


def wait_for(condition: Callable[[], object], seconds: float = 20.0, what: str = "it") -> object:
    """The first true value of ``condition``."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, f"{what} did not happen within {seconds} s"
        time.sleep(0.02)
    return value


class Product:
    """`python -m playground.supervisor` in a folder of its own."""

    def __init__(self, **env: str):
        self.folder = Path(tempfile.mkdtemp(prefix="playground-e2e-"))
        clean = {k: v for k, v in os.environ.items() if k not in ("REDIS_URL", "DATABASE_URL", "MODELS", "DJANGO_SETTINGS_MODULE")}
        self.env = clean | {"DATA_DIR": str(self.folder), "PORT": str(free_port()), "ENGINE_POOL": "cpu", "PYTHONPATH": str(ROOT)} | env
        self.output = self.folder / "output.txt"
        self.process: subprocess.Popen | None = None
        self.url = ""

    def start(self) -> "Product":
        with self.output.open("wb") as file:
            command = [sys.executable, "-m", "playground.supervisor"]
            self.process = subprocess.Popen(command, cwd=ROOT, env=self.env, stdout=file, stderr=file)
        self.url = wait_for(self._ready_url, START_SECONDS, "the printed URL")
        return self

    def _ready_url(self) -> str | None:
        assert self.process.poll() is None, f"it ended: {self.output.read_text()}\n{self.logs()}"
        found = re.search(r"ready:\s+(http://\S+)", self.output.read_text())
        return found and found[1]

    def stop(self, number: int = signal.SIGINT) -> int:
        """The exit status after a signal."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.process.wait(30)

    def remove(self) -> None:
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def logs(self) -> str:
        return "\n".join(f"--- {p.name}\n{p.read_text(errors='replace')[-3000:]}" for p in self.folder.glob("logs/*.log"))

    def processes(self) -> list[psutil.Process]:
        """The supervisor and everything that descends from it."""
        parent = psutil.Process(self.process.pid)
        return [parent, *parent.children(recursive=True)]

    def child(self, words: str) -> psutil.Process:
        """The supervisor's child whose command line contains ``words``."""
        children = psutil.Process(self.process.pid).children()
        return next(p for p in children if words in " ".join(p.cmdline()))

    def get(self, path: str, cookies: str = "") -> dict:
        request = urllib.request.Request(self.url.rstrip("/") + path, headers={"Cookie": cookies})
        return json.loads(urllib.request.urlopen(request, timeout=20).read())

    def visit(self) -> str:
        """The cookies of a new visitor."""
        with urllib.request.urlopen(self.url, timeout=20) as response:
            return "; ".join(cookie.split(";")[0] for cookie in response.headers.get_all("Set-Cookie"))

    def socket(self, cookies: str) -> "Socket":
        return Socket(self, cookies)


class Socket:
    """A synchronous WebSocket client of protocol v1 that acknowledges what it reads."""

    def __init__(self, product: Product, cookies: str):
        address = product.url.replace("http", "ws", 1) + "ws/playground/"
        self.log: list[dict] = []  # every frame read
        self._connection = connect(address, additional_headers={"Cookie": cookies}, origin=product.url.rstrip("/"), max_size=None)

    def __enter__(self) -> "Socket":
        self._socket = self._connection.__enter__()
        return self

    def __exit__(self, *error) -> None:
        self._connection.__exit__(*error)

    def send(self, frame: dict) -> None:
        self._socket.send(json.dumps(frame))

    def receive(self, *types: str, seconds: float = 60.0) -> dict:
        while True:
            frame = json.loads(self._socket.recv(timeout=seconds))
            self.log.append(frame)
            if "event_id" in frame:
                self.send({"type": "ack", "generation_id": frame["generation_id"], "event_id": frame["event_id"]})
            if not types or frame["type"] in types:
                return frame

    def generate(self, text: str, **params) -> dict:
        """Send a request; its ``accepted`` frame."""
        messages = [{"role": "user", "content": text}]
        self.send({"type": "generate", "request_id": "r1", "messages": messages, "params": {"max_tokens": 60} | params})
        return self.receive("accepted", "error")

    def to_end(self, seconds: float = 60.0) -> list[dict]:
        frames = []
        while not frames or frames[-1]["type"] not in ("done", "error"):
            frames.append(self.receive(seconds=seconds))
        return frames


def manage(product: Product, *args: str, **env: str) -> str:
    command = [sys.executable, str(ROOT / "manage.py"), *args]
    done = subprocess.run(command, env=product.env | env, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def rows(product: Product, sql: str, *values) -> list[tuple]:
    with sqlite3.connect(product.folder / "playground.sqlite3", timeout=20) as database:
        return database.execute(sql, values).fetchall()


def unlimited(max_tokens: int = 20_000) -> str:
    """A script that raises the token limit of every request the page sends: an answer lasts as long as a test needs."""
    return (
        "const send = WebSocket.prototype.send; WebSocket.prototype.send = function (frame) "
        f'{{ send.call(this, frame.replace(/"max_tokens":\\d+/, \'"max_tokens":{max_tokens}\')); }};'
    )


def text_of(frames: list[dict]) -> str:
    return "".join(f["text"] for f in frames if f["type"] == "delta")


@pytest.fixture(scope="session")
def product() -> Iterator[Product]:
    """The default mode with the real model, for the whole session."""
    product = Product().start()
    yield product
    product.remove()


@pytest.fixture(scope="session")
def synthetic() -> Iterator[Product]:
    """The same processes with a backend that repeats ``tests.fakes.ANSWER`` at 200 tokens/s."""
    product = Product(ENGINE_BACKEND=SYNTHETIC, SYNTHETIC_TOKENS_PER_S="200").start()
    yield product
    product.remove()


def is_prefix(text: str) -> bool:
    """``text`` is what the synthetic backend says, from its beginning, with nothing lost or repeated."""
    return text == (ANSWER * (len(text) // len(ANSWER) + 1))[: len(text)]


@pytest.fixture(scope="session")
def base_url(product: Product) -> str:
    return product.url


def chromium() -> str:
    names = (os.environ.get("CHROMIUM"), "chromium", "chromium-browser", "google-chrome")
    found = next((path for name in names if name and (path := shutil.which(name))), None)
    assert found, "the browser tests need Chromium: apt-get install chromium, or set CHROMIUM"
    return found


@pytest.fixture(scope="session")
def browser_type_launch_args(browser_type_launch_args: dict) -> dict:
    quiet = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
    quiet += ["--disable-component-update", "--disable-sync"]
    return browser_type_launch_args | {"executable_path": chromium(), "args": quiet}


@pytest.fixture
def shot(request: pytest.FixtureRequest) -> Callable:
    """``shot(page, "name")`` keeps a screenshot of a page as an artifact of the run."""

    def take(page, name: str) -> Path:
        ARTIFACTS.mkdir(exist_ok=True)
        path = ARTIFACTS / f"{request.node.name}-{name}.png"
        page.screenshot(path=path)
        return path

    return take
