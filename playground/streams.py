"""What goes through Redis besides Celery: event streams, the waiting line, cancel flags, the workers' heartbeats.

A generation's events are entries of the stream ``gen:{id}``. Its one writer numbers them ``1-0``, ``2-0``, ...: a second writer
(a worker that was taken for dead) is refused by Redis itself, and the database can name the event that follows any other.
"""

import json
import threading
import time
from collections.abc import Iterable
from functools import cache
from uuid import UUID

import redis
from django.conf import settings
from redis.backoff import ExponentialBackoff
from redis.retry import Retry

from playground.config import config

POOL = "default"
QUEUE = f"queue:{POOL}"
CANCEL_CHANNEL = "cancel"
BATCH_SECONDS = 0.010
STREAM_MAX_ENTRIES = 200_000
RUNNING_TTL_SECONDS = 24 * 3600  # of a stream that has no end yet
WORKERS = "workers"
WORKERS_SEEN = "workers:seen"
WORKER_TTL_SECONDS = 10
READER_TTL_SECONDS = 10
WORKER_SEEN_SECONDS = 120  # a worker that has vanished is still shown to admins
TERMINAL = ("done", "error")


@cache
def client() -> redis.Redis:
    """The process's Redis connection pool (thread-safe).

    A lost connection is tried three times more; a server that says nothing for ``REDIS_SILENCE_SECONDS`` is not, as a person waits.
    """
    return redis.Redis.from_url(
        settings.REDIS_URL, decode_responses=True, socket_timeout=settings.REDIS_SILENCE_SECONDS, retry=_retry(redis.ConnectionError)
    )


def be_patient() -> None:
    """Try a silent server again as well, in a process that works while nobody waits for its calls."""
    client().set_retry(_retry(redis.ConnectionError, redis.TimeoutError))


def _retry(*errors: type[redis.RedisError]) -> Retry:
    return Retry(ExponentialBackoff(cap=0.5, base=0.05), 3, supported_errors=errors)


def stream_key(generation_id: UUID) -> str:
    return f"gen:{generation_id}"


def cancel_key(generation_id: UUID) -> str:
    return f"gen:{generation_id}:cancel"


def event_id(number: int) -> str:
    return f"{number}-0"


def event_number(identifier: str) -> int:
    """1 for "1-0"; 0 for anything that is no event id."""
    number = identifier.split("-")[0]
    return int(number) if number.isdecimal() and len(number) < 19 else 0


# The waiting line ------------------------------------------------------------------------------------------------------


def queue_add(generation_id: UUID) -> None:
    client().zadd(QUEUE, {str(generation_id): time.time()})


def queue_remove(*generation_ids: UUID | str) -> None:
    client().zrem(QUEUE, *map(str, generation_ids))


def queue_ids() -> set[str]:
    return set(client().zrange(QUEUE, 0, -1))


def queue_length() -> int:
    return client().zcard(QUEUE)


def broker_task_ids() -> set[str]:
    """Ids of the tasks that wait at the broker or travel to a worker."""
    messages = client().lrange("generate", 0, -1)
    travelling = (json.loads(entry)[0] for entry in client().hvals("unacked"))
    return {m["headers"]["id"] for m in [*map(json.loads, messages), *travelling]}


def seen_lost(generation_id: UUID, seconds: float) -> bool:
    """True when a generation has been found without a task or worker for ``seconds``: a task on its way is not lost."""
    key = f"gen:{generation_id}:lost"
    since = client().set(key, time.time(), nx=True, get=True, ex=120)
    return since is not None and time.time() - float(since) >= seconds


# Cancel ----------------------------------------------------------------------------------------------------------------


def cancel_request(generation_id: UUID) -> None:
    """Tell whichever worker runs it. The key is for a worker that is not listening yet, the message for one that is."""
    with client().pipeline(transaction=False) as pipe:
        pipe.set(cancel_key(generation_id), 1, ex=3600)
        pipe.publish(CANCEL_CHANNEL, str(generation_id))
        pipe.execute()


def cancel_requested(generation_ids: Iterable[UUID]) -> list[UUID]:
    ids = list(generation_ids)
    flags = client().mget([cancel_key(i) for i in ids]) if ids else []
    return [i for i, flag in zip(ids, flags, strict=True) if flag]


# Readers of the API's answers ------------------------------------------------------------------------------------------


def reader_beat(generation_ids: Iterable[UUID]) -> None:
    """A web process passes these on to their client."""
    with client().pipeline(transaction=False) as pipe:
        for generation_id in generation_ids:
            pipe.set(f"gen:{generation_id}:reader", 1, ex=READER_TTL_SECONDS)
        pipe.execute()


def with_reader(generation_ids: Iterable[str]) -> set[str]:
    ids = list(generation_ids)
    flags = client().mget([f"gen:{i}:reader" for i in ids]) if ids else []
    return {i for i, flag in zip(ids, flags, strict=True) if flag}


# Workers ---------------------------------------------------------------------------------------------------------------


def worker_beat(worker_id: str, report: dict) -> None:
    """``report``: see ``engine_client.EnginePool.report``."""
    with client().pipeline() as pipe:
        pipe.sadd(WORKERS, worker_id)
        pipe.set(f"worker:{worker_id}", json.dumps(report), ex=WORKER_TTL_SECONDS)
        pipe.sadd(WORKERS_SEEN, worker_id)
        pipe.set(f"worker:{worker_id}:seen", json.dumps(report), ex=WORKER_SEEN_SECONDS)
        pipe.execute()


def worker_gone(worker_id: str) -> None:
    with client().pipeline() as pipe:
        pipe.srem(WORKERS, worker_id)
        pipe.srem(WORKERS_SEEN, worker_id)
        pipe.delete(f"worker:{worker_id}", f"worker:{worker_id}:seen")
        pipe.execute()


def workers() -> dict[str, dict]:
    """Reports of the workers whose heartbeat is younger than ``WORKER_TTL_SECONDS``, by worker id."""
    ids = sorted(client().smembers(WORKERS))
    reports = client().mget([f"worker:{i}" for i in ids]) if ids else []
    dead = [i for i, report in zip(ids, reports, strict=True) if report is None]
    if dead:
        client().srem(WORKERS, *dead)
    return {i: json.loads(report) for i, report in zip(ids, reports, strict=True) if report is not None}


def workers_seen() -> dict[str, tuple[dict, float]]:
    """Report and age in seconds of every worker that reported in the last ``WORKER_SEEN_SECONDS`` and did not leave by itself."""
    found = {}
    for worker_id in sorted(client().smembers(WORKERS_SEEN)):
        key = f"worker:{worker_id}:seen"
        with client().pipeline() as pipe:
            report, left_ms = pipe.get(key).pttl(key).execute()
        if report is None:
            client().srem(WORKERS_SEEN, worker_id)
        else:
            found[worker_id] = (json.loads(report), max(0.0, WORKER_SEEN_SECONDS - left_ms / 1000))
    return found


def worker_command(worker_id: str, slot: int, command: str) -> None:
    """Tell a worker to ``drain``, ``resume`` or ``restart`` the engines of a slot; it looks once a second."""
    key = f"worker:{worker_id}:commands"
    with client().pipeline() as pipe:
        pipe.hset(key, str(slot), command)
        pipe.expire(key, 60)
        pipe.execute()


def worker_commands(worker_id: str) -> dict[int, str]:
    """Take what was asked of this worker: {slot: command}."""
    key = f"worker:{worker_id}:commands"
    with client().pipeline() as pipe:
        pipe.hgetall(key)
        pipe.delete(key)
        commands, _ = pipe.execute()
    return {int(slot): command for slot, command in commands.items()}


# Streams ---------------------------------------------------------------------------------------------------------------


class StreamTaken(Exception):
    """Another writer went on with this stream: this one was taken for dead."""


class StreamWriter:
    """Writes one generation's frames, one entry a frame, deltas merged over ``BATCH_SECONDS``.

    What comes up to the first delta goes out at once, and so does a delta after a pause; a thread sends what gathers meanwhile.
    While Redis is away frames wait in memory and are retried in order. ``trace`` has ``[event number, characters, tokens,
    elapsed_ms]`` for every delta sent.
    """

    def __init__(self, generation_id: UUID):
        self.key = stream_key(generation_id)
        self.number = 0
        self.trace: list[list] = []
        self.taken = threading.Event()
        self._frames: list[dict] = []
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name=f"stream-{generation_id}", daemon=True)
        self._thread.start()

    def add(self, frame: dict) -> None:
        with self._changed:
            last = self._frames[-1] if self._frames else None
            if last and last["type"] == frame["type"] == "delta":
                _merge_delta(last, frame)
            else:
                self._frames.append(frame)
            self._changed.notify()

    def drain(self) -> None:
        """Send what is left and end the thread. Raises StreamTaken."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()
        if self.taken.is_set():
            raise StreamTaken(self.key)

    def end(self, frame: dict) -> None:
        """The last entry (``done`` or ``error``), after ``drain``; the stream expires ``stream_ttl_seconds`` later."""
        self._write([frame])
        client().expire(self.key, config.stream_ttl_seconds)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._frames or self._closed)
                frames, self._frames = self._frames, []
                closed = self._closed
            if frames and not self.taken.is_set():
                self._write(frames)
            if closed:
                return
            if any(frame["type"] == "delta" for frame in frames):
                self._pause()

    def _pause(self) -> None:
        """For a batch's time, or until the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed, BATCH_SECONDS)

    def _write(self, frames: list[dict]) -> None:
        first, attempt = self.number + 1, 0
        texts = [json.dumps(frame, ensure_ascii=False) for frame in frames]
        while True:
            try:
                if not self._send(first, texts):
                    self.taken.set()
                    return
                break
            except (redis.ConnectionError, redis.TimeoutError):
                attempt += 1
                time.sleep(min(1.0, 0.05 * 2**attempt))
        for number, frame in enumerate(frames, first):
            if frame["type"] == "delta":
                self.trace.append([number, len(frame["text"]), frame["tokens"], frame["elapsed_ms"]])
        self.number = first + len(frames) - 1

    def _send(self, first: int, texts: list[str]) -> bool:
        """False when another writer's entries are where these belong."""
        try:
            with client().pipeline(transaction=True) as pipe:
                for number, text in enumerate(texts, first):
                    pipe.xadd(self.key, {"f": text}, id=event_id(number), maxlen=STREAM_MAX_ENTRIES)
                if first == 1:
                    pipe.expire(self.key, RUNNING_TTL_SECONDS)
                pipe.execute()
        except redis.ResponseError as error:
            if "equal or smaller" not in str(error):
                raise
            # an earlier attempt, whose answer was lost, may have arrived after all
            there = client().xrange(self.key, event_id(first), event_id(first + len(texts) - 1))
            return [fields["f"] for _, fields in there] == texts
        return True


def _merge_delta(into: dict, frame: dict) -> None:
    into["text"] += frame["text"]
    into["tokens"] += frame["tokens"]
    into["elapsed_ms"] = frame["elapsed_ms"]
    if "logprobs" in frame:
        into.setdefault("logprobs", []).extend(frame["logprobs"])


def stream_read(generation_id: UUID) -> list[tuple[str, dict]]:
    """All entries kept of a stream: ``[(event_id, frame), ...]``; [] when it has expired."""
    return [(identifier, json.loads(fields["f"])) for identifier, fields in client().xrange(stream_key(generation_id))]


def stream_tail(generation_id: UUID | str, count: int) -> list[tuple[str, dict]]:
    """The newest entries of a stream, newest first."""
    return [(identifier, json.loads(fields["f"])) for identifier, fields in client().xrevrange(stream_key(generation_id), count=count)]


def stream_end(generation_id: UUID, last_number: int, frame: dict) -> None:
    """Append the end of a generation whose writer is gone or never was."""
    key = stream_key(generation_id)
    with client().pipeline() as pipe:
        pipe.xadd(key, {"f": json.dumps(frame, ensure_ascii=False)}, id=event_id(last_number + 1))
        pipe.expire(key, config.stream_ttl_seconds)
        pipe.execute()
