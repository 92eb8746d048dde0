"""The playground's socket: checks each frame against the schema, calls a service, and shows generations to the client."""

import asyncio
import json
import logging
from collections import deque
from contextlib import aclosing
from uuid import UUID

import redis
from channels.db import database_sync_to_async
from channels.generic.websocket import AsyncWebsocketConsumer
from django.db import DatabaseError
from pydantic import ValidationError

from playground import streams
from playground.chat import selectors, services
from playground.chat.models import Generation
from playground.config import config
from playground.exceptions import InvalidParameter, Malformed, MessageTooLarge, PlaygroundError, TooManyRequests, Unavailable
from playground.identity import check_still_signed_in, owner_from_scope
from playground.schemas import Ack, Generate, Resume, Stop, client_frames
from playground.tailer import tailer
from playground.usage.services import refusal_count
from playground.validation import words_of

log = logging.getLogger(__name__)
MAX_VIEWS = 32  # generations that one socket watches at once
MAX_PENDING = 8  # frames of one socket being worked on at once


class PlaygroundConsumer(AsyncWebsocketConsumer):
    """Protocol v1. Frames are handled in tasks of their own, so that ``stop`` is heard while everything else goes on."""

    async def connect(self) -> None:
        self.owner = owner_from_scope(self.scope)
        self.views: dict[UUID, View] = {}
        self.pending: set[asyncio.Task] = set()
        self.open = True
        await self.accept()

    async def disconnect(self, code: int) -> None:
        self.open = False
        for task in [*self.pending, *(view.task for view in self.views.values())]:
            task.cancel()

    async def receive(self, text_data: str | None = None, bytes_data: bytes | None = None) -> None:
        try:
            frame = parse(text_data, bytes_data)
            if isinstance(frame, Ack):
                self.on_ack(frame)
                return
            if len(self.pending) >= MAX_PENDING:
                raise TooManyRequests(f"{MAX_PENDING} requests at once are the limit of a connection.")
        except PlaygroundError as error:
            await self.send_error(error, request_id=getattr(error, "request_id", None))
            await self.count_refusal(error)
            return
        task = asyncio.create_task(self.handle(frame))
        self.pending.add(task)
        task.add_done_callback(self.pending.discard)

    async def handle(self, frame: Generate | Stop | Resume) -> None:
        request_id = getattr(frame, "request_id", None)
        generation_id = getattr(frame, "generation_id", None)
        try:
            await getattr(self, f"on_{frame.type}")(frame)
        except PlaygroundError as error:
            await self.send_error(error, request_id=request_id, generation_id=generation_id)
            if isinstance(frame, Generate):
                await self.count_refusal(error, frame.params.model or config.model_names[0])
        except (redis.RedisError, DatabaseError) as error:
            log.error("%s failed: %s", frame.type, error)
            await self.send_error(Unavailable("The server's storage does not answer. Try again."), request_id, generation_id)
        except Exception:
            log.exception("%s failed", frame.type)
            await self.send_error(PlaygroundError("The server failed on this request."), request_id, generation_id)

    async def on_generate(self, frame: Generate) -> None:
        generation = await self.create(frame)
        await self.send_frame(
            {
                "type": "accepted",
                "generation_id": str(generation.pk),
                "request_id": frame.request_id,
                "conversation_id": str(generation.conversation_id),
                "user_message_id": str(generation.message.parent_id),
                "assistant_message_id": str(generation.message_id),
            }
        )
        self.watch(generation.pk, "0")

    async def on_stop(self, frame: Stop) -> None:
        generation = await self.get(frame.generation_id)
        await database_sync_to_async(services.generation_cancel)(generation=generation)

    async def on_resume(self, frame: Resume) -> None:
        await self.get(frame.generation_id)  # the owner's only
        self.watch(frame.generation_id, frame.last_event_id)

    def on_ack(self, frame: Ack) -> None:
        if view := self.views.get(frame.generation_id):
            view.acknowledge(frame.event_id)

    async def create(self, frame: Generate) -> Generation:
        """In a thread of its own: counting the tokens of a long prompt takes seconds."""
        return await database_sync_to_async(self._create, thread_sensitive=False)(frame)

    def _create(self, frame: Generate) -> Generation:
        self.check_owner()
        return services.generation_create(
            owner=self.owner,
            params=frame.params,
            messages=frame.messages,
            conversation_id=frame.conversation_id,
            parent_id=frame.parent_id,
            user_message_id=frame.user_message_id,
        )

    @database_sync_to_async
    def get(self, generation_id: UUID) -> Generation:
        self.check_owner()
        return selectors.generation_get(owner=self.owner, generation_id=generation_id)

    def check_owner(self) -> None:
        check_still_signed_in(self.owner, self.scope["session"].session_key)

    @database_sync_to_async
    def count_refusal(self, error: PlaygroundError, model: str = "") -> None:
        refusal_count(owner=self.owner, source=Generation.Source.WEB, code=error.code, model=model)

    def watch(self, generation_id: UUID, last_event_id: str) -> None:
        """Show a generation from ``last_event_id`` on; a second resume replaces the first."""
        old = self.views.pop(generation_id, None)
        if old:
            old.task.cancel()
        if len(self.views) >= MAX_VIEWS:
            raise TooManyRequests(f"{MAX_VIEWS} answers at once are the limit of a connection.")
        self.views[generation_id] = View(self, generation_id, last_event_id)

    def forget(self, view: "View") -> None:
        if self.views.get(view.generation_id) is view:
            del self.views[view.generation_id]

    async def send_error(self, error: PlaygroundError, request_id: str | None = None, generation_id: UUID | None = None) -> None:
        frame = {"type": "error", "generation_id": str(generation_id) if generation_id else None, **error.body}
        frame |= {"request_id": request_id} if request_id else {}
        await self.send_frame(frame)

    async def send_frame(self, frame: dict) -> int:
        """Send when the socket is still open; the bytes sent."""
        text = json.dumps(frame, ensure_ascii=False)
        if self.open:
            try:
                await self.send(text_data=text)
            except Exception as error:  # the socket closed under us: the same as a disconnect
                log.info("socket closed while sending: %s", error)
                self.open = False
        return len(text)


class View:
    """One generation shown on one socket, with a bounded window of unacknowledged bytes.

    While the window is full nothing is sent; what gathers meanwhile goes out as one merged delta.
    """

    def __init__(self, consumer: PlaygroundConsumer, generation_id: UUID, last_event_id: str):
        self.consumer = consumer
        self.generation_id = generation_id
        self._sent: deque[tuple[int, int]] = deque()  # (event number, bytes)
        self._unacknowledged = 0
        self._room = asyncio.Event()
        self._room.set()
        self.task = asyncio.create_task(self._show(last_event_id))

    def acknowledge(self, event_id: str) -> None:
        number = streams.event_number(event_id)
        while self._sent and self._sent[0][0] <= number:
            self._unacknowledged -= self._sent.popleft()[1]
        if self._unacknowledged < config.viewer_window_bytes:
            self._room.set()

    async def _show(self, last_event_id: str) -> None:
        try:
            async with aclosing(tailer().follow(self.generation_id, last_event_id)) as frames:
                async for frame in frames:
                    if frame["type"] == "prompt_logprobs":
                        continue  # an API's
                    frame.pop("logprobs", None)
                    size = await self.consumer.send_frame({"generation_id": str(self.generation_id)} | frame)
                    if not self.consumer.open:
                        return
                    await self._count(frame.get("event_id"), size)
        except asyncio.CancelledError:
            raise
        except Exception:
            log.exception("generation %s cannot be shown", self.generation_id)
            await self.consumer.send_error(Unavailable("The stream does not answer. Reload to go on."), generation_id=self.generation_id)
        finally:
            self.consumer.forget(self)

    async def _count(self, event_id: str | None, size: int) -> None:
        if event_id is None:
            return
        self._sent.append((streams.event_number(event_id), size))
        self._unacknowledged += size
        if self._unacknowledged >= config.viewer_window_bytes:
            self._room.clear()
            await self._room.wait()


def parse(text: str | None, data: bytes | None) -> Generate | Stop | Resume | Ack:
    """A client frame. Raises MessageTooLarge, Malformed, or InvalidParameter for a parameter out of range."""
    size = len(data) if data is not None else len(text.encode())
    if size > config.max_message_bytes:
        raise MessageTooLarge(size_bytes=size, limit_bytes=config.max_message_bytes)
    if text is None:
        raise Malformed("Frames are JSON text; this one is binary.")
    try:
        return client_frames.validate_json(text)
    except ValidationError as error:
        raise _refusal(_within(error, text), text) from None


def _within(error: ValidationError, text: str) -> ValidationError:
    """``error``; of a frame that only a more lenient parser reads, as it has half a character as ``\\ud800``, what is wrong inside."""
    if error.errors(include_url=False)[0]["type"] == "json_invalid":
        try:
            client_frames.validate_python(json.loads(text))
        except ValidationError as within:
            return within
        except (ValueError, RecursionError):
            pass
    return error


def _refusal(error: ValidationError, text: str) -> PlaygroundError:
    """The first thing wrong with a frame, as an error that names it; with the frame's ``request_id`` when it has one."""
    first = error.errors(include_url=False, include_context=False)[0]
    place = [str(part) for part in first["loc"][1:]]  # the first is the frame's type
    said, given = words_of(first), repr(first["input"])
    given = given if len(given) <= 80 else given[:77] + "..."
    if place[:1] == ["params"]:
        name = ".".join(place[1:]) or "params"
        refusal = InvalidParameter(f"{name}: {said}; got {given}.", name=name, given=given)
    elif place:
        refusal = Malformed(f"{'.'.join(place)}: {said}; got {given}.")
    else:
        refusal = Malformed(f"{said}; got {given}.")
    refusal.request_id = _request_id(text)
    return refusal


def _request_id(text: str) -> str | None:
    try:
        value = json.loads(text).get("request_id")
    except (ValueError, AttributeError, RecursionError):
        return None
    return value[:100] if isinstance(value, str) and value.isprintable() else None  # half a character cannot be sent
