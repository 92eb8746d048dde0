"""Stand-ins for what cannot run in a test: an engine without a model, and a backend of a fixed rate."""

import itertools
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from engine.backend import EngineInfo, Token
from engine.errors import NumericalError
from engine.request import Delta, Done, Event, Failed, GenerationRequest, Progress, SamplingParams, Started, Timings, Usage

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
        self.cancelled = threading.Event()

    def cancel(self) -> None:
        self.cancelled.set()

    def __iter__(self) -> Iterator[Event]:
        started = time.monotonic()

        def elapsed_ms() -> float:
            return (time.monotonic() - started) * 1000

        yield Started(prompt_tokens=7)
        made, first_ms = 0, None
        for made in itertools.count():
            if self.cancelled.is_set():
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
            yield Delta(text=f"{self._engine.word}{made} ", token_ids=(made,), elapsed_ms=elapsed_ms())
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
        self.word = "word"
        self.seconds_per_token = seconds_per_token
        self.submitted: list[GenerationRequest] = []
        self.handles: list[FakeHandle] = []

    def submit(self, request: GenerationRequest) -> FakeHandle:
        self.submitted.append(request)
        self.handles.append(FakeHandle(self, request))
        return self.handles[-1]

    def close(self) -> None:
        self.alive = False


ANSWER = """Here is a function that adds two numbers:

```python
def add(first: int, second: int) -> int:
    \"\"\"Their sum, for instance 7 for 3 and 4.\"\"\"
    return first + second
```

- It takes **two** whole numbers; `add(3, 4)` is 7.
- Tests: déjà vu, 数字, 🙂.

"""


FAILING_SEED = 13


class SyntheticBackend:
    """Emits ANSWER (or the file SYNTHETIC_TEXT) again and again at SYNTHETIC_TOKENS_PER_S (default 1,000), through the real loop,
    detokeniser and pipes.

    Selected with ENGINE_BACKEND=tests.fakes:SyntheticBackend. Never ends by itself before max_tokens.
    """

    eos_ids = ()

    def __init__(self, model: str, *, gpus, dtype: str, context_tokens: int | None, on_progress):
        from dataclasses import replace

        from engine.tokenizer import load_tokenizer

        on_progress(Progress("load", 0.5, f"Reading {FAKE_INFO.title}"))
        self.rate = float(os.environ.get("SYNTHETIC_TOKENS_PER_S", "1000"))
        text = os.environ.get("SYNTHETIC_TEXT")
        self.ids = load_tokenizer(model).encode(Path(text).read_text() if text else ANSWER)
        title = FAKE_INFO.title if model == FAKE_INFO.model else Path(model).stem
        self.info = replace(FAKE_INFO, model=model, title=title, backend="synthetic", context_tokens=context_tokens or 100_000)

    def start(self, prompt_ids: list[int], sampling: SamplingParams, stop_ids: frozenset[int], max_tokens: int) -> "SyntheticRun":
        return SyntheticRun(self, len(prompt_ids), max_tokens, fails=sampling.seed == FAILING_SEED)

    def logits(self, ids: list[int]):
        raise NotImplementedError("a synthetic backend has no logits")

    def close(self) -> None:
        pass


class SyntheticRun:
    """Token n is due n / rate seconds after the start, and carries that time."""

    def __init__(self, backend: SyntheticBackend, prompt_tokens: int, max_tokens: int, fails: bool = False):
        self._fails = fails  # after ten tokens
        self._backend, self._max_tokens = backend, max_tokens
        self._start_ns = time.monotonic_ns()
        print(f"synthetic run started at {self._start_ns} ns", flush=True)  # for the path's benchmark
        self._made = 0
        self.prefill_done = prompt_tokens
        self.finish_reason: str | None = None
        self._stopped = threading.Event()

    def poll(self, timeout_s: float) -> list[Token]:
        if self.finish_reason:
            return []
        wait_s = self._due_ns(self._made) / 1e9 - time.monotonic()
        if self._stopped.wait(min(max(0.0, wait_s), timeout_s)):
            self.finish_reason = "cancelled"
            return []
        if self._fails and self._made > 10:
            raise NumericalError("The logits are not finite.")
        due = int((time.monotonic_ns() - self._start_ns) * self._backend.rate / 1e9)
        last = min(due, self._max_tokens)
        ids = self._backend.ids
        tokens = [Token(ids[n % len(ids)], self._due_ns(n)) for n in range(self._made, last)]
        self._made = max(self._made, last)
        if self._made == self._max_tokens:
            self.finish_reason = "length"
        return tokens

    def stop(self) -> None:
        self._stopped.set()

    def close(self) -> None:
        self.stop()

    def _due_ns(self, n: int) -> int:
        return self._start_ns + int((n + 1) / self._backend.rate * 1e9)
