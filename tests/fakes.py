"""Stand-ins for what cannot run in a test: an engine without a model."""

import itertools
import threading
import time
from collections.abc import Iterator

from engine.backend import EngineInfo
from engine.request import Delta, Done, Event, Failed, GenerationRequest, Started, Timings, Usage

FAKE_INFO = EngineInfo(
    model="smollm2-135m-instruct",
    title="SmolLM2 135M Instruct",
    architecture="llama",
    backend="fake",
    device="CPU, 1 thread",
    gpus=0,
    dtype="float32",
    parameters=134_515_008,
    context_tokens=2048,
    vocab_size=49_152,
    bytes_per_token=269_030_016,
)


class FakeHandle:
    """Events of one request: ``word0 word1 ...``, a token each, until max_tokens, a cancel or the engine's death."""

    def __init__(self, engine: "FakeEngine", request: GenerationRequest):
        self._engine, self._request = engine, request
        self._cancelled = threading.Event()

    def cancel(self) -> None:
        self._cancelled.set()

    def __iter__(self) -> Iterator[Event]:
        started = time.monotonic()

        def elapsed_ms() -> float:
            return (time.monotonic() - started) * 1000

        yield Started(prompt_tokens=7)
        made, first_ms = 0, None
        for made in itertools.count():
            if self._cancelled.is_set():
                reason = "cancelled"
                break
            if made == self._request.sampling.max_tokens:
                reason = "length"
                break
            if not self._engine.alive:
                reason = None
                break
            time.sleep(self._engine.seconds_per_token)
            first_ms = first_ms or elapsed_ms()
            yield Delta(text=f"word{made} ", token_ids=(made,), elapsed_ms=elapsed_ms())
        total = elapsed_ms()
        usage = Usage(prompt_tokens=7, completion_tokens=made)
        rate = (made - 1) / (total - first_ms) * 1000 if made > 1 else None
        timings = Timings(queue_ms=0.0, ttft_ms=first_ms, total_ms=total, decode_tokens_per_s=rate)
        if reason is None:
            yield Failed("engine_stopped", "The engine process went away.", usage, timings)
        else:
            yield Done(reason, usage, timings)


class FakeEngine:
    """The door of ``engine.Engine`` without processes or weights."""

    def __init__(self, model: str = "smollm2-135m-instruct", seconds_per_token: float = 0.005):
        self.info = FAKE_INFO
        self.alive = True
        self.seconds_per_token = seconds_per_token
        self.submitted: list[GenerationRequest] = []

    def submit(self, request: GenerationRequest) -> FakeHandle:
        self.submitted.append(request)
        return FakeHandle(self, request)

    def close(self) -> None:
        self.alive = False
