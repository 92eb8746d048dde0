"""What a worker thread does with one generation: wait for an engine, stream its events, store the end."""

import logging
from uuid import UUID

from django.db import DatabaseError, close_old_connections

from engine.errors import EngineError
from engine.request import Delta, Done, Event, Failed, PrefillProgress, PromptLogprobs, Started, TokenLogprob
from playground import streams
from playground.chat import services
from playground.chat.models import Generation
from playground.chat.services import Result
from playground.engine_client import EnginePool, Lease

log = logging.getLogger(__name__)
State = Generation.State
pool: EnginePool | None = None  # set once by the worker command


def generation_run(generation_id: UUID, engines: EnginePool | None = None) -> None:
    """Run one queued generation to its end. Does nothing when it is no longer queued."""
    engines = engines or pool
    assert engines is not None, "tasks run in a process started by `manage.py engine_worker`"
    model = Generation.objects.filter(pk=generation_id, state=State.QUEUED).values_list("model", flat=True).first()
    if model is None:
        return
    with engines.hold(str(generation_id)), engines.lease(str(generation_id), model) as lease:
        close_old_connections()  # the wait for an engine may have been long
        generation = services.generation_start(
            generation_id=generation_id, worker=lease.worker_id, engine=lease.engine_name, info=lease.info
        )
        if generation is not None:
            lease.needs_reader = generation.source == Generation.Source.API
            _Run(generation, lease).run()


class _Run:
    """One generation on one engine."""

    def __init__(self, generation: Generation, lease: Lease):
        self.generation = generation
        self.lease = lease
        self.writer = streams.StreamWriter(generation.pk)
        self.texts: list[str] = []
        self.tokens = 0

    def run(self) -> None:
        try:
            result = self._stream()
        except EngineError as error:  # refused
            result = Result(State.FAILED, error_code=error.code, error_message=str(error))
        except Exception as error:
            self.lease.cancel()  # what nobody takes is not made
            log.exception("generation %s failed", self.generation.pk)
            result = Result(State.FAILED, error_code="internal", error_message=f"{type(error).__name__}: {error}")
        self._finish(result)

    def _stream(self) -> Result:
        generation = self.generation
        handle = self.lease.submit(str(generation.pk), generation.request, generation.params)
        if streams.cancel_requested([generation.pk]):
            handle.cancel()
        for event in handle:
            if self.writer.taken.is_set():
                handle.cancel()
            if isinstance(event, Done | Failed):
                return self._result(event)
            self._add(event)
        raise RuntimeError("the engine's events ended without Done or Failed")

    def _add(self, event: Event) -> None:
        match event:
            case Started():
                frame = {"type": "started", "prompt_tokens": event.prompt_tokens, "queue_ms": round(self.generation.queue_ms, 3)}
            case PrefillProgress():
                frame = {"type": "prefill", "done": event.tokens_done, "total": event.tokens_total}
            case PromptLogprobs():
                frame = {"type": "prompt_logprobs", "tokens": _logprobs(event.tokens)}
            case Delta():
                text = event.text.replace("\0", "\ufffd")  # databases hold no NUL in texts
                self.texts.append(text)
                self.tokens += len(event.token_ids)
                frame = {"type": "delta", "text": text, "tokens": len(event.token_ids), "elapsed_ms": round(event.elapsed_ms, 3)}
                if event.logprobs:
                    frame["logprobs"] = _logprobs(event.logprobs)
        self.writer.add(frame)

    def _result(self, event: Done | Failed) -> Result:
        timings = event.timings
        result = Result(
            State.DONE,
            prompt_tokens=event.usage.prompt_tokens,
            completion_tokens=event.usage.completion_tokens,
            ttft_ms=timings.ttft_ms,
            total_ms=timings.total_ms,
            decode_tokens_per_s=timings.decode_tokens_per_s,
        )
        if isinstance(event, Failed):
            result.state, result.error_code, result.error_message = State.FAILED, event.code, event.message
            if event.code == "engine_stopped":
                result.state, result.finish_reason = State.INTERRUPTED, "interrupted"
        elif event.finish_reason == "cancelled":
            result.state, result.finish_reason = State.STOPPED, "cancelled"
            if self.lease.interrupted:
                result.state, result.finish_reason = State.INTERRUPTED, "interrupted"
                result.error_code, result.error_message = "engine_stopped", f"The engine went away. {self.tokens:,} tokens kept."
        else:
            result.finish_reason = event.finish_reason
        return result

    def _finish(self, result: Result) -> None:
        """Store the end first, then say it: who hears ``done`` finds it in the database."""
        try:
            self.writer.drain()
        except streams.StreamTaken:
            return
        result.text = "".join(self.texts)
        result.completion_tokens = result.completion_tokens or self.tokens
        result.trace = self.writer.trace
        result.last_event_id = streams.event_id(self.writer.number + 1)
        try:
            if services.generation_finish(generation_id=self.generation.pk, result=result, was=(State.RUNNING,)):
                self.writer.end(services.end_frame(self.generation.pk))
        except DatabaseError as error:  # its disk is full, ...; the reaper stores it as interrupted when it can
            log.error("generation %s cannot be stored: %s", self.generation.pk, error)
            self.writer.end(
                {"type": "error", "code": "not_stored", "message": "This answer could not be stored. Copy what you need of it."}
            )


def _logprobs(tokens: tuple[TokenLogprob, ...]) -> list[dict]:
    return [{"id": p.token_id, "text": p.text, "logprob": p.logprob, "top": p.top} for p in tokens]
