"""Parts around the code under test: a Celery worker in a thread with a fake engine, owners, sockets."""

import json
import time
from collections.abc import Callable, Iterator
from uuid import uuid4

import pytest
from celery.contrib.testing.worker import start_worker

from playground.identity import COOKIE, Owner, visitor_cookie
from tests.fakes import FakeEngine


@pytest.fixture
def owner() -> Owner:
    return Owner(visitor_id=uuid4())


@pytest.fixture
def fake_engine() -> FakeEngine:
    return FakeEngine()


@pytest.fixture
def engines(empty_redis, fake_engine: FakeEngine, monkeypatch) -> Iterator:
    """A ready EnginePool with one fake engine (another one once that has died), known to the tasks of this process."""
    from playground.chat import runner
    from playground.engine_client import EnginePool

    pool = EnginePool([()], factory=lambda *_: fake_engine if fake_engine.alive else FakeEngine())
    monkeypatch.setattr(runner, "pool", pool)
    pool.start()
    pool.wait_ready()
    yield pool
    pool.close()


@pytest.fixture
def worker(transactional_db, engines) -> Iterator:
    """A real Celery worker of one thread that consumes the real queue."""
    from playground.celery import TaskPool, app

    with start_worker(app, pool=TaskPool, concurrency=1, queues=["generate"], perform_ping_check=False, loglevel="WARNING"):
        yield engines


def wait_for(condition: Callable[[], object], seconds: float = 10.0) -> object:
    """The first true value of ``condition``."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)
    return value


class Client:
    """A WebSocket client in process that speaks protocol v1 and checks every frame against the schema."""

    def __init__(self, owner: Owner, session: str = ""):
        """``session``: the key of a signed-in user's session; without one the visitor's cookie tells who it is."""
        from channels.testing import WebsocketCommunicator

        from playground.asgi import application

        headers = [
            (b"origin", b"http://testserver"),
            (b"host", b"testserver"),
            (b"cookie", (f"sessionid={session}" if session else f"{COOKIE}={visitor_cookie(owner.visitor_id)}").encode()),
        ]
        self._socket = WebsocketCommunicator(application, "/ws/playground/", headers=headers)

    async def __aenter__(self) -> "Client":
        connected, _ = await self._socket.connect(timeout=5)
        assert connected
        return self

    async def __aexit__(self, *_) -> None:
        await self._socket.disconnect()

    async def send(self, frame: dict | str) -> None:
        await self._socket.send_to(text_data=frame if isinstance(frame, str) else json.dumps(frame))

    async def send_bytes(self, data: bytes) -> None:
        await self._socket.send_to(bytes_data=data)

    async def receive(self, *types: str, seconds: float = 10.0) -> dict:
        """The next frame, or the next one of ``types``."""
        from playground.schemas import server_frames

        while True:
            text = await self._socket.receive_from(timeout=seconds)
            server_frames.validate_json(text)
            frame = json.loads(text)
            if not types or frame["type"] in types:
                return frame

    async def nothing(self, seconds: float = 0.3) -> bool:
        return await self._socket.receive_nothing(timeout=seconds)

    async def generate(self, text: str = "Say something", **fields) -> dict:
        """Send a request; its ``accepted`` frame."""
        frame = {"type": "generate", "request_id": "r1", "messages": [{"role": "user", "content": text}], "params": {"max_tokens": 20}}
        await self.send(frame | fields)
        return await self.receive("accepted", "error")

    async def to_end(self, ack: bool = True) -> list[dict]:
        """Every frame up to ``done`` or ``error``, acknowledged."""
        frames = []
        while not frames or frames[-1]["type"] not in ("done", "error"):
            frame = await self.receive()
            frames.append(frame)
            if ack and "event_id" in frame:
                await self.send({"type": "ack", "generation_id": frame["generation_id"], "event_id": frame["event_id"]})
        return frames


def text_of(frames: list[dict]) -> str:
    return "".join(f["text"] for f in frames if f["type"] == "delta")


def words(count: int) -> str:
    """What FakeEngine answers in ``count`` tokens."""
    return "".join(f"word{i} " for i in range(count))
