"""The answers of one API request, read from the same streams as the browser's: as server-sent events or in one piece."""

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager

import redis
from asgiref.sync import sync_to_async
from channels.db import database_sync_to_async

from playground import engine_client, streams
from playground.api import services
from playground.api.errors import ApiError
from playground.api.forms import ChatForm, TextForm
from playground.chat.models import Generation
from playground.tailer import tailer

log = logging.getLogger(__name__)
KEEP_ALIVE_SECONDS = 15.0  # a comment line at least this often, so that proxies do not close a connection that waits
stopping: set[asyncio.Task] = set()  # kept here so that they are not collected before they are done


class Answers:
    """The n answers of one request. Whoever leaves ``following`` early stops those that still run."""

    def __init__(self, form: ChatForm | TextForm, generations: list[Generation]):
        self.form = form
        self.generations = generations
        self.running = {g.pk: g for g in generations}
        self.usage = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}
        self.timings: dict = {}
        self._head = {"id": form.completion_id(generations[0].pk), "created": int(time.time()), "model": generations[0].model}
        self._logprobs = [Logprobs(g.model) for g in generations]

    async def events(self, include_usage: bool) -> AsyncIterator[str]:
        """Server-sent events: chunks, a usage chunk when it was asked for, ``[DONE]``; an error ends them without it."""
        more = {"usage": None} if include_usage else {}
        try:
            for index in range(len(self.generations)):
                if choice := self.form.first(index):
                    yield self._chunk([choice], more)
            async with self.following() as frames:
                async for index, frame in frames:
                    text, tokens = frame.get("text", ""), self._logprobs[index].take(frame)
                    if frame["type"] == "prompt_logprobs":
                        text, tokens = self.form.echo(index), self.form.prompt_tokens(index, frame["tokens"])
                    if text or tokens:
                        yield self._chunk([self.form.piece(index, text, tokens)], more)
                    if frame["type"] == "done":
                        yield self._chunk([self.form.last(index, frame["finish_reason"])], more | {"timings": frame["timings"]})
                    elif frame["type"] in COMMENTS:
                        yield COMMENTS[frame["type"]](frame)
            if include_usage:
                yield self._chunk([], {"usage": self.usage, "timings": self.timings})
            yield "data: [DONE]\n\n"
        except ApiError as error:
            yield _event(error.body)
        except Exception:
            log.exception("the stream of %s broke", self._head["id"])
            yield _event(ApiError(500, "The server failed on this request.").body)

    async def whole(self) -> dict:
        """The body of an answer in one piece. Raises ApiError."""
        texts: list[list[str]] = [[] for _ in self.generations]
        logprobs: list[list[dict]] = [[] for _ in self.generations]
        reasons = [""] * len(self.generations)
        async with self.following() as frames:
            async for index, frame in frames:
                logprobs[index] += self._logprobs[index].take(frame)
                if frame["type"] == "prompt_logprobs":
                    logprobs[index] += self.form.prompt_tokens(index, frame["tokens"])
                elif frame["type"] == "delta":
                    texts[index].append(frame["text"])
                elif frame["type"] == "done":
                    reasons[index] = frame["finish_reason"]
        choices = [self.form.whole(i, "".join(texts[i]), logprobs[i], reason) for i, reason in enumerate(reasons)]
        return {**self._head, "object": self.form.object, "choices": choices, "usage": self.usage, "timings": self.timings}

    @asynccontextmanager
    async def following(self) -> AsyncIterator[AsyncIterator[tuple[int, dict]]]:
        """(index of the choice, frame) of all answers as they come, each up to its ``done``. Raises ApiError when one fails."""
        queue: asyncio.Queue = asyncio.Queue(maxsize=1)  # while nobody takes it, what follows gathers into one delta
        tasks = [asyncio.create_task(self._follow(i, g, queue)) for i, g in enumerate(self.generations)]
        tasks.append(asyncio.create_task(self._say_read()))
        try:
            yield self._taken(queue)
        finally:
            for task in tasks:
                task.cancel()
            self.stop()

    def stop(self) -> None:
        """Stop what still runs, whatever becomes of the caller's own task."""
        generations, self.running = list(self.running.values()), {}
        if generations:
            log.info("%s ends early; %d answers are stopped", self._head["id"], len(generations))
            task = asyncio.create_task(database_sync_to_async(services.answers_stop, thread_sensitive=False)(generations=generations))
            stopping.add(task)
            task.add_done_callback(stopping.discard)

    async def _follow(self, index: int, generation: Generation, queue: asyncio.Queue) -> None:
        try:
            async with aclosing(tailer().follow(generation.pk)) as frames:
                async for frame in frames:
                    await queue.put((index, frame))
        except Exception as error:
            await queue.put((index, error))

    async def _say_read(self) -> None:
        """Should this process die, the worker misses it and ends the answers."""
        while True:
            try:
                await sync_to_async(streams.reader_beat, thread_sensitive=False)(list(self.running))
            except redis.RedisError as error:
                log.warning("%s: %s", self._head["id"], error)
            await asyncio.sleep(streams.READER_TTL_SECONDS / 4)

    async def _taken(self, queue: asyncio.Queue) -> AsyncIterator[tuple[int, dict]]:
        while self.running:
            try:
                async with asyncio.timeout(KEEP_ALIVE_SECONDS):  # not wait_for: in Python 3.11 it can swallow the client's leaving
                    index, frame = await queue.get()
            except TimeoutError:
                yield 0, {"type": "silence"}
                continue
            if isinstance(frame, Exception):
                raise frame
            if frame["type"] in ("done", "error"):
                self._end(index, frame)
            yield index, frame

    def _end(self, index: int, frame: dict) -> None:
        del self.running[self.generations[index].pk]
        if frame["type"] == "error":
            raise ApiError.of(frame["code"], frame["message"])
        made = frame["usage"]["completion_tokens"]
        if frame["finish_reason"] == "cancelled":
            raise ApiError.of("cancelled", f"This answer was stopped after {made:,} tokens.")
        if frame["finish_reason"] == "interrupted":
            raise ApiError.of("engine_stopped", f"The engine went away after {made:,} tokens.")
        self.usage["prompt_tokens"] += frame["usage"]["prompt_tokens"]
        self.usage["completion_tokens"] += made
        self.usage["total_tokens"] = self.usage["prompt_tokens"] + self.usage["completion_tokens"]
        self.timings = frame["timings"]

    def _chunk(self, choices: list[dict], more: dict) -> str:
        return _event({**self._head, "object": self.form.chunk_object, "choices": choices, **more})


class Logprobs:
    """The tokens of one answer, each let out with the text that it begins in: a stop string and what ends the answer leave none."""

    def __init__(self, model: str):
        self._stream = engine_client.tokenizer(model).stream()
        self._held: list[dict] = []
        self._made = self._shown = 0  # characters

    def take(self, frame: dict) -> list[dict]:
        """Those that a frame lets out, with ``start``, the character of the answer at which they begin."""
        for token in frame.get("logprobs", ()):
            self._held.append(token | {"start": self._made})
            self._made += len(self._stream.push(token["id"]))
        self._shown += len(frame.get("text", ""))
        certain = self._held if frame.get("finish_reason") == "length" else [t for t in self._held if t["start"] < self._shown]
        self._held = self._held[len(certain) :]
        return certain


COMMENTS: dict[str, Callable[[dict], str]] = {
    "queued": lambda frame: f": queued, place {frame['position']}\n\n",
    "loading": lambda frame: f": loading, {frame['fraction']:.0%}\n\n",
    "silence": lambda frame: ": waiting\n\n",
}


def _event(body: dict) -> str:
    return f"data: {json.dumps(body, ensure_ascii=False, separators=(',', ':'))}\n\n"
