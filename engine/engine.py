"""The parent's side of an engine: starts its process, sends requests, hands out events."""

import atexit
import multiprocessing
import queue
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import wait

from engine import errors
from engine.backend import EngineInfo
from engine.errors import EngineError, EngineStopped, InvalidRequest, ModelError, PromptTooLong
from engine.request import MAX_SCORED_TOKENS, Delta, Done, Event, Failed, GenerationRequest, Progress, Timings, Usage

CLOSE_SECONDS = 5.0  # how long a process may take to end by itself


@dataclass(frozen=True)
class EngineConfig:
    """``backend``: auto, torch, monokernel, or "module:factory" for a Backend of one's own.

    ``gpus``: None takes one GPU where there is one, a number takes the first so many, a tuple names them, () or 0 is the CPU.
    ``dtype``: auto, float32, float16, bfloat16. ``context_tokens``: a limit below the model's own.
    """

    model: str
    backend: str = "auto"
    gpus: int | tuple[int, ...] | None = None
    dtype: str = "auto"
    context_tokens: int | None = None

    def __post_init__(self):
        numbers = self.gpus if isinstance(self.gpus, tuple) else (self.gpus or 0,)
        whole = all(type(number) is int for number in numbers)
        if not whole or min(numbers, default=0) < 0 or len(set(numbers)) < len(numbers):
            raise InvalidRequest(f"gpus must be a number of at least 0, or a tuple of different GPUs from 0 on; got {self.gpus!r}.")
        if self.context_tokens is not None and (type(self.context_tokens) is not int or self.context_tokens < 1):
            raise InvalidRequest(f"context_tokens must be a whole number of at least 1; got {self.context_tokens!r}.")


class Handle:
    """A request in the engine. Iterating gives its events; the last is Done or Failed. One consumer."""

    def __init__(self, request: GenerationRequest, prompt_ids: list[int], received_ns: int, cancel: Callable[[], None]):
        self.request_id = request.request_id
        self.prompt_ids = prompt_ids
        self.cancel = cancel  # from any thread, any number of times; honoured within a token
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._received_ns = received_ns
        self._made = 0  # tokens in the events so far

    def __iter__(self) -> Iterator[Event]:
        while True:
            event = self._events.get()
            yield event
            if isinstance(event, Done | Failed):
                return


class Engine:
    """A model in a process of its own. Requests run one at a time, first come first served.

    Waits until the model can answer. Raises the EngineError that kept it from loading.
    """

    def __init__(self, config: EngineConfig, on_progress: Callable[[Progress], None] | None = None):
        from engine.worker import main

        self.config = config
        self.alive = False
        self._tokenizer = None
        self._handles: dict[str, Handle] = {}
        self._lock = threading.Lock()
        context = multiprocessing.get_context("spawn")  # never fork: a forked CUDA or torch thread pool is broken
        self._connection, child = context.Pipe()
        self._process = context.Process(target=main, args=(child, config), name=f"engine {config.model}")
        self._process.start()
        child.close()  # so that the end of the process closes the pipe
        _engines.add(self)
        try:
            self.info: EngineInfo = self._wait_ready(on_progress or (lambda progress: None))
            self._warm_up()
        except BaseException:
            self.close()
            raise
        self.alive = True
        self._receiver = threading.Thread(target=self._receive, name="engine events", daemon=True)
        self._receiver.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def submit(self, request: GenerationRequest) -> Handle:
        """Queue a request. Raises InvalidRequest or PromptTooLong before anything runs, EngineStopped when the process is gone."""
        received_ns = time.monotonic_ns()
        prompt_ids = self._prompt_ids(request)
        handle = Handle(request, prompt_ids, received_ns, lambda: self._send("cancel", request.request_id))
        with self._lock:
            if not self.alive:
                raise EngineStopped("The engine has stopped.")
            if request.request_id in self._handles:
                raise InvalidRequest(f"The request id {request.request_id!r} is in use.")
            self._handles[request.request_id] = handle
        self._send("submit", request.request_id, prompt_ids, request.sampling, handle._received_ns)
        return handle

    def close(self) -> None:
        """End the process; running requests end with Failed. Idempotent."""
        self._send("close")
        self._process.join(CLOSE_SECONDS)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        self._stopped()
        _engines.discard(self)

    def __enter__(self) -> "Engine":
        return self

    def __exit__(self, *exception) -> None:
        self.close()

    def _wait_ready(self, on_progress: Callable[[Progress], None]) -> EngineInfo:
        while True:
            try:
                kind, *content = self._connection.recv()
            except (EOFError, OSError):
                self._process.join(CLOSE_SECONDS)
                raise EngineStopped(f"The engine's process ended while loading (exit code {self._process.exitcode}).") from None
            if kind == "progress":
                on_progress(*content)
            elif kind == "ready":
                return content[0]
            elif kind == "failed":
                raise _error(*content)

    def _warm_up(self) -> None:
        """Load the tokenizer and its chat template: the first request must not wait for them."""
        with suppress(EngineError):  # a model without them takes token ids or plain prompts only
            self.tokenizer().count([{"role": "user", "content": "Hello"}])

    def _prompt_ids(self, request: GenerationRequest) -> list[int]:
        given = [value for value in (request.messages, request.prompt, request.prompt_ids) if value is not None]
        if len(given) != 1:
            raise InvalidRequest(f"Give exactly one of messages, prompt and prompt_ids; got {len(given)}.")
        if request.prompt_ids is not None:
            ids = list(request.prompt_ids)
            for token in ids:
                if type(token) is not int or not 0 <= token < self.info.vocab_size:
                    raise InvalidRequest(f"Token ids of {self.info.model} lie between 0 and {self.info.vocab_size - 1:,}; got {token!r}.")
        elif request.prompt is not None:
            ids = self.tokenizer().encode_prompt(request.prompt)
        else:
            ids = self.tokenizer().render_chat(request.messages)
        if not ids:
            raise InvalidRequest("The prompt is empty.")
        if max(ids) >= self.info.vocab_size:
            raise InvalidRequest(
                f"The tokenizer of {self.info.model} makes token {max(ids):,} of this text; the model's vocabulary ends with "
                f"{self.info.vocab_size - 1:,}."
            )
        if request.sampling.stop:
            self._check_stop_strings()
        if len(ids) > self.info.context_tokens:
            raise PromptTooLong(len(ids), self.info.context_tokens, self.info.title)
        if request.sampling.prompt_logprobs and len(ids) > MAX_SCORED_TOKENS:
            raise InvalidRequest(f"A prompt with log-probabilities may have {MAX_SCORED_TOKENS:,} tokens; this one has {len(ids):,}.")
        return ids

    def tokenizer(self):
        """The model's, loaded once. Raises ModelError when it has none."""
        with self._lock:
            if self._tokenizer is None:
                from engine.tokenizer import load_tokenizer

                self._tokenizer = load_tokenizer(self.config.model)
        return self._tokenizer

    def _check_stop_strings(self) -> None:
        try:
            self.tokenizer()
        except ModelError as error:
            raise InvalidRequest(f"Stop strings need a tokenizer. {error}") from error

    def _send(self, *message) -> None:
        try:
            with self._lock:
                self._connection.send(message)
        except OSError:
            pass  # the process is gone: the receiver ends every handle

    def _receive(self) -> None:
        """Until the process ends: pass events to their handles. Then end the handles that still wait."""
        try:
            while True:
                ready = wait([self._connection, self._process.sentinel])
                if self._connection not in ready:
                    break
                request_id, events = self._connection.recv()
                handle = self._handles.get(request_id)
                if handle is None:
                    continue
                if isinstance(events[-1], Done | Failed):
                    with self._lock:
                        del self._handles[request_id]
                for event in events:
                    handle._made += len(event.token_ids) if isinstance(event, Delta) else 0
                    handle._events.put(event)
        except (EOFError, OSError):
            pass
        self._stopped()

    def _stopped(self) -> None:
        with self._lock:
            self.alive = False
            handles, self._handles = list(self._handles.values()), {}
            self._connection.close()
        for handle in handles:
            usage = Usage(len(handle.prompt_ids), handle._made)
            total_ms = (time.monotonic_ns() - handle._received_ns) / 1e6
            handle._events.put(Failed(EngineStopped.code, "The engine stopped.", usage, Timings(0.0, None, total_ms, None)))


def _error(code: str, message: str) -> EngineError:
    """The error that a process reported, as an exception of the same class where its message is all it needs."""
    classes = {ModelError, InvalidRequest, errors.UnknownModel, errors.DeviceError, errors.NumericalError}
    return next((kind for kind in classes if kind.code == code), EngineError)(message)


_engines: weakref.WeakSet[Engine] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    for engine in list(_engines):
        engine.close()
