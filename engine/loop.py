"""One generation from token ids to events: start, poll, post-process, finish."""

import secrets
import time
import traceback
from collections.abc import Callable
from dataclasses import replace

from engine.backend import Backend, Run, Token
from engine.errors import DeviceError, EngineError
from engine.request import Delta, Done, Event, Failed, PrefillProgress, PromptLogprobs, Started, Timings, TokenLogprob, Usage
from engine.stop import StopMatcher

FLUSH_NS = 10_000_000  # events of a fast generation leave in batches of this length
POLL_SECONDS = 0.05
LOOK_SECONDS = 0.0005  # between two looks at the tokens while some wait for the next batch

Emit = Callable[[list[Event]], None]


class Loop:
    """Runs jobs on a backend, one at a time. Without a tokenizer (None) all text is ""."""

    def __init__(self, backend: Backend, tokenizer):
        self._backend = backend
        self._tokenizer = tokenizer
        ends = set(backend.eos_ids) | (set(tokenizer.eos_ids) if tokenizer else set())
        self._stop_ids = frozenset(ends)

    def run(self, job, emit: Emit) -> None:
        """Emit the events of a job, the last being Done or Failed. Re-raises DeviceError after reporting it."""
        generation = Generation(job, self._tokenizer)
        try:
            self._run(job, generation, emit)
        except EngineError as error:
            emit([generation.failed(error.code, str(error))])
            if isinstance(error, DeviceError):
                raise
        except Exception as error:
            traceback.print_exc()
            emit([generation.failed(EngineError.code, f"The engine failed: {type(error).__name__}: {error}")])

    def _run(self, job, generation: "Generation", emit: Emit) -> None:
        if job.cancelled.is_set():
            emit([generation.done("cancelled")])
            return
        emit([generation.started()])
        if job.sampling.prompt_logprobs:
            emit([generation.prompt_logprobs(job.prompt_ids, self._backend)])
        room = self._backend.info.context_tokens - len(job.prompt_ids)
        max_tokens = min(job.sampling.max_tokens or room, room)
        if max_tokens == 0:
            emit([generation.done("length")])
            return
        sampling = job.sampling if job.sampling.seed is not None else replace(job.sampling, seed=secrets.randbits(63))
        stop_ids = frozenset() if sampling.ignore_eos else self._stop_ids
        run = self._backend.start(job.prompt_ids, sampling, stop_ids, max_tokens)
        try:
            job.stop_run = run.stop
            if job.cancelled.is_set():
                run.stop()
            self._follow(run, generation, emit)
        finally:
            job.stop_run = lambda: None
            run.close()

    @staticmethod
    def _follow(run: Run, generation: "Generation", emit: Emit) -> None:
        """Look often, so that every token has its own time; tell in batches."""
        held: list[Token] = []
        next_flush_ns = 0
        while True:
            polled_ns = time.monotonic_ns()
            try:
                held += run.poll(0.0 if held else POLL_SECONDS)
            except Exception:
                if held:
                    emit(generation.add(held))  # what was made is kept
                raise
            finish_reason = run.finish_reason
            if finish_reason:
                held += run.poll(0.0)
            elif held and time.monotonic_ns() < next_flush_ns:
                time.sleep(LOOK_SECONDS)
                continue
            events = generation.progress(run.prefill_done) + generation.add(held)
            held = []
            if generation.stopped or finish_reason:
                run.stop()
                reason = "stop" if generation.stopped else finish_reason
                emit(events + generation.flush() + [generation.done(reason)])
                return
            if events:
                emit(events)
                next_flush_ns = polled_ns + FLUSH_NS  # a backend that computes inside poll is not held up


class Generation:
    """What is known of a request while it runs: its clock, its text, its counts."""

    def __init__(self, job, tokenizer):
        self._prompt_tokens = len(job.prompt_ids)
        self._sampling = job.sampling
        self._received_ns = job.received_ns
        self._start_ns = time.monotonic_ns()
        self._tokenizer = tokenizer
        self._text = tokenizer.stream() if tokenizer else None
        self._stop = StopMatcher(job.sampling.stop)
        self._prefill_done = 0
        self._tokens = 0
        self._first_ns = self._last_ns = 0

    @property
    def stopped(self) -> bool:
        """A stop string is complete."""
        return self._stop.stopped

    def started(self) -> Started:
        self._start_ns = time.monotonic_ns()
        return Started(self._prompt_tokens)

    def prompt_logprobs(self, ids: list[int], backend: Backend) -> PromptLogprobs:
        """Reads the whole prompt once more than the generation does."""
        from engine.sampling import logprobs  # torch, where a backend has it anyway

        rows = backend.logits(ids)
        found = [(ids[0], None, ())] + [(ids[i], *logprobs(rows[i - 1], ids[i], self._sampling.logprobs)) for i in range(1, len(ids))]
        return PromptLogprobs(tuple(self._logprob(*one) for one in found))

    def progress(self, prefill_done: int) -> list[Event]:
        """PrefillProgress when there is news."""
        if prefill_done <= self._prefill_done:
            return []
        self._prefill_done = prefill_done
        return [PrefillProgress(prefill_done, self._prompt_tokens)]

    def add(self, tokens: list[Token]) -> list[Event]:
        """One Delta for the tokens, up to the one that completes a stop string."""
        text, used = "", []
        for token in tokens:
            used.append(token)
            text += self._stop.push(self._text.push(token.id)) if self._text else ""
            if self.stopped:
                break
        if not used:
            return []
        self._first_ns = self._first_ns or used[0].time_ns
        self._last_ns = used[-1].time_ns
        self._tokens += len(used)
        return [self._delta(text, used)]

    def flush(self) -> list[Event]:
        """The text that was held back as a possible stop string. A character whose last bytes were never made is left out."""
        text = self._stop.flush()
        return [Delta(text, (), self._elapsed_ms(self._last_ns))] if text else []

    def done(self, finish_reason: str) -> Done:
        return Done(finish_reason, self._usage(), self._timings())

    def failed(self, code: str, message: str) -> Failed:
        return Failed(code, message, self._usage(), self._timings())

    def _delta(self, text: str, tokens: list[Token]) -> Delta:
        points = tuple((1, self._elapsed_ms(token.time_ns)) for token in tokens) if len(tokens) > 1 else ()
        logprobs = tuple(self._logprob(t.id, t.logprob, t.top) for t in tokens) if self._sampling.logprobs is not None else ()
        return Delta(text, tuple(token.id for token in tokens), self._elapsed_ms(tokens[-1].time_ns), logprobs, points)

    def _logprob(self, token_id: int, logprob: float | None, top: tuple[tuple[int, float], ...]) -> TokenLogprob:
        name = self._tokenizer.token_text if self._tokenizer else lambda token_id: ""
        return TokenLogprob(token_id, name(token_id), logprob, tuple((i, name(i), value) for i, value in top))

    def _usage(self) -> Usage:
        return Usage(self._prompt_tokens, self._tokens)

    def _timings(self) -> Timings:
        decode_s = (self._last_ns - self._first_ns) / 1e9
        return Timings(
            queue_ms=self._elapsed_ms(self._start_ns),
            ttft_ms=self._elapsed_ms(self._first_ns) if self._tokens else None,
            total_ms=self._elapsed_ms(time.monotonic_ns()),
            decode_tokens_per_s=(self._tokens - 1) / decode_s if self._tokens > 1 and decode_s > 0 else None,
        )

    def _elapsed_ms(self, time_ns: int) -> float:
        return (time_ns - self._received_ns) / 1e6
