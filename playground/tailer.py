"""Follows the streams that viewers of this process watch: one blocking multi-key XREAD for all of them.

A ``Feed`` keeps the entries of one watched stream; every viewer walks along it at its own pace, so a slow viewer costs nothing
but its place. Sockets and the API's event streams both read through ``Tailer.follow``.
"""

import asyncio
import json
import logging
import time
from bisect import bisect_right
from collections.abc import AsyncIterator
from uuid import UUID, uuid4

import redis
import redis.asyncio
from asgiref.sync import sync_to_async
from channels.db import database_sync_to_async
from django.conf import settings

from playground import engine_client, streams
from playground.chat import selectors, services
from playground.chat.models import Generation

log = logging.getLogger(__name__)
BLOCK_MS = 2000
READ_COUNT = 2000
MERGE_CHARS = 32_768  # of one catch-up delta
QUEUE_SECONDS = 0.25  # between looks at the waiting line
REAP_SECONDS = 3.0
SILENT_SECONDS = 5.0  # a feed without news for this long is compared with the database


class Feed:
    """The entries of one stream that this process watches, and a condition for whoever waits for more."""

    def __init__(self, generation_id: UUID):
        self.generation_id = generation_id
        self.key = streams.stream_key(generation_id)
        self.numbers: list[int] = []
        self.frames: list[dict] = []
        self.ended = False
        self.viewers = 0
        self.news_at = time.monotonic()
        self.waiting: dict | None = None  # the last queued or loading frame
        self._events: set[asyncio.Event] = set()

    @property
    def last_id(self) -> str:
        return streams.event_id(self.numbers[-1]) if self.numbers else "0"

    def append(self, number: int, frame: dict) -> None:
        self.numbers.append(number)
        self.frames.append(frame)
        self.ended = self.ended or frame["type"] in streams.TERMINAL
        self.waiting = None
        self.news_at = time.monotonic()

    def after(self, number: int) -> dict | None:
        """The next frame after event ``number``, with its ``event_id``; consecutive deltas merged. None when there is none yet."""
        start = bisect_right(self.numbers, number)
        if start == len(self.numbers):
            return None
        end, frame = start + 1, self.frames[start]
        if frame["type"] == "delta":
            chars = len(frame["text"])
            while end < len(self.frames) and self.frames[end]["type"] == "delta" and chars < MERGE_CHARS:
                chars += len(self.frames[end]["text"])
                end += 1
        return merged(self.numbers[start:end], self.frames[start:end])

    def subscribe(self) -> asyncio.Event:
        event = asyncio.Event()
        self._events.add(event)
        return event

    def unsubscribe(self, event: asyncio.Event) -> None:
        self._events.discard(event)

    def notify(self) -> None:
        for event in self._events:
            event.set()


def merged(numbers: list[int], frames: list[dict]) -> dict:
    """One frame for one entry, or one catch-up delta (with ``points``) for several."""
    event_id = streams.event_id(numbers[-1])
    if len(frames) == 1:
        return {**frames[0], "event_id": event_id}
    whole = {
        "type": "delta",
        "event_id": event_id,
        "text": "".join(f["text"] for f in frames),
        "tokens": sum(f["tokens"] for f in frames),
        "elapsed_ms": frames[-1]["elapsed_ms"],
        "points": [[f["tokens"], f["elapsed_ms"], len(f["text"])] for f in frames],
    }
    if any("logprobs" in f for f in frames):
        whole["logprobs"] = [p for f in frames for p in f.get("logprobs", [])]
    return whole


class Tailer:
    """One per process and event loop; get it with ``tailer()``."""

    def __init__(self):
        self._feeds: dict[UUID, Feed] = {}
        self._wake_key = f"tail:{uuid4()}"
        self._tasks: list[asyncio.Task] = []
        self._redis = redis.asyncio.Redis.from_url(settings.REDIS_URL, decode_responses=True, socket_timeout=None)

    async def follow(self, generation_id: UUID, last_event_id: str = "0") -> AsyncIterator[dict]:
        """Frames after ``last_event_id``, past and future, up to and including ``done`` or ``error``.

        Frames are those of the stream with their ``event_id``; deltas that are already there come merged, with ``points``.
        ``queued`` and ``loading`` frames (no ``event_id``) come while it waits. The caller has checked the owner.
        """
        generation = await _generation(generation_id)
        feed = await self._feed(generation)
        event, number = feed.subscribe(), streams.event_number(last_event_id)
        waiting = None
        try:
            if feed.ended and not feed.numbers:  # the stream has expired: the database has the whole text
                for frame in await database_sync_to_async(selectors.frames_after)(generation, last_event_id):
                    yield frame
                return
            while True:
                event.clear()
                frame = feed.after(number)
                if frame is not None:
                    number = streams.event_number(frame["event_id"])
                    yield frame
                    if frame["type"] in streams.TERMINAL:
                        return
                elif feed.ended:  # it had seen the end already
                    yield {**feed.frames[-1], "event_id": feed.last_id}
                    return
                elif feed.waiting and feed.waiting != waiting:
                    waiting = feed.waiting
                    yield waiting
                else:
                    await event.wait()
        finally:
            feed.unsubscribe(event)
            feed.viewers -= 1
            if not feed.viewers and self._feeds.get(generation_id) is feed:
                del self._feeds[generation_id]

    async def _feed(self, generation: Generation) -> Feed:
        """The feed to read, with one viewer more."""
        feed = self._feeds.get(generation.pk)
        new = feed is None
        feed = feed or Feed(generation.pk)
        feed.viewers += 1
        if not new:
            return feed
        if generation.ended:
            await self._fill(feed)
            if feed.ended or not feed.numbers:
                feed.ended = True
                return feed
            if known := self._feeds.get(generation.pk):  # meanwhile
                known.viewers += 1
                return known
        self._feeds[generation.pk] = feed
        self._start()
        await self._redis.xadd(self._wake_key, {"w": 1}, maxlen=1)
        if generation.state == Generation.State.QUEUED:
            await self._tell_places([feed])
        return feed

    async def _fill(self, feed: Feed) -> None:
        """The entries of an ended generation; none when its stream is gone or lacks the beginning. The end, said after it has been
        stored, may be on its way."""
        entries = await self._redis.xrange(feed.key)
        if entries and streams.event_number(entries[0][0]) == 1:
            for identifier, fields in entries:
                feed.append(streams.event_number(identifier), json.loads(fields["f"]))

    def _start(self) -> None:
        if not any(not task.done() for task in self._tasks):
            self._tasks = [asyncio.create_task(self._read_loop()), asyncio.create_task(self._housekeeping())]

    async def _read_loop(self) -> None:
        wake_id = "0"
        while True:
            keys = {feed.key: feed for feed in self._feeds.values() if not feed.ended}
            try:
                await self._redis.expire(self._wake_key, 600)
                answer = await self._redis.xread(
                    {self._wake_key: wake_id} | {key: feed.last_id for key, feed in keys.items()}, count=READ_COUNT, block=BLOCK_MS
                )
            except redis.RedisError as error:
                log.warning("streams cannot be read: %s", error)
                await asyncio.sleep(0.2)
                continue
            for key, entries in answer:
                if key == self._wake_key:
                    wake_id = entries[-1][0]
                    continue
                feed = keys[key]
                for identifier, fields in entries:
                    feed.append(streams.event_number(identifier), json.loads(fields["f"]))
                feed.notify()

    async def _housekeeping(self) -> None:
        reap_at = 0.0
        while True:
            await asyncio.sleep(QUEUE_SECONDS)
            try:
                await self._tell_places([f for f in self._feeds.values() if not f.numbers])
                if time.monotonic() >= reap_at:
                    reap_at = time.monotonic() + REAP_SECONDS
                    await self._compare_silent_feeds()
                    if await self._redis.set("reaper", 1, nx=True, px=int(REAP_SECONDS * 900)):
                        await database_sync_to_async(services.generations_reap)()
            except redis.RedisError as error:
                log.warning("housekeeping failed: %s", error)
            except Exception:
                log.exception("housekeeping failed")

    async def _tell_places(self, feeds: list[Feed]) -> None:
        """Set each waiting feed's ``queued`` or ``loading`` frame; viewers pass on what changed."""
        if not feeds:
            return
        progress = await sync_to_async(engine_client.loading_progress, thread_sensitive=False)()
        async with self._redis.pipeline(transaction=False) as pipe:
            for feed in feeds:
                pipe.zrank(streams.QUEUE, str(feed.generation_id))
            ranks = await pipe.execute()
        for feed, rank in zip(feeds, ranks, strict=True):
            if rank is None or feed.numbers:
                continue
            if progress:
                feed.waiting = {"type": "loading", "fraction": round(progress[0], 3), "detail": progress[1]}
            else:
                feed.waiting = {"type": "queued", "position": rank + 1}
            feed.notify()

    async def _compare_silent_feeds(self) -> None:
        """A stream whose end was lost (Redis restarted, a worker killed between database and stream) ends from the database."""
        for feed in list(self._feeds.values()):
            if feed.ended or time.monotonic() - feed.news_at < SILENT_SECONDS:
                continue
            generation = await _generation(feed.generation_id)
            if not generation.ended:
                continue
            for frame in await database_sync_to_async(selectors.frames_after)(generation, feed.last_id):
                feed.append(streams.event_number(frame.pop("event_id")), frame)
            feed.notify()


@database_sync_to_async
def _generation(generation_id: UUID) -> Generation:
    return Generation.objects.select_related("message").get(pk=generation_id)


_tailers: dict[asyncio.AbstractEventLoop, Tailer] = {}


def tailer() -> Tailer:
    """The tailer of the running event loop."""
    loop = asyncio.get_running_loop()
    if loop not in _tailers:
        for closed in [known for known in _tailers if known.is_closed()]:
            del _tailers[closed]
        _tailers[loop] = Tailer()
    return _tailers[loop]
