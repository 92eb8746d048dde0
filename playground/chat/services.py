"""Everything that writes chats and generations. Views, consumers, tasks and commands call these."""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from uuid import UUID, uuid4

import redis
from django.db import transaction
from django.utils import timezone
from kombu.exceptions import OperationalError

from engine.request import MAX_SCORED_TOKENS
from playground import engine_client, streams
from playground.api.models import ApiKey
from playground.chat.models import Conversation, Generation, Message
from playground.config import config
from playground.exceptions import EmptyPrompt, InvalidParameter, NotFound, PromptTooLong, Unavailable, UnknownModel
from playground.identity import Owner
from playground.limits import check_can_generate, release, settle
from playground.schemas import ChatMessage, Params

log = logging.getLogger(__name__)
State = Generation.State
TITLE_CHARS = 60
LOST_SECONDS = 6


# Conversations and messages --------------------------------------------------------------------------------------------


def conversation_create(*, owner: Owner, title: str) -> Conversation:
    return Conversation.objects.create(title=title, **owner.fields())


def conversation_rename(*, conversation: Conversation, title: str) -> None:
    conversation.title = title
    conversation.save(update_fields=["title"])


def conversation_held(*, owner: Owner, conversation_id: UUID) -> Conversation:
    """To add to it: nobody deletes it before the transaction ends. Raises NotFound, also when it is somebody else's."""
    conversation = Conversation.objects.owned_by(owner).select_for_update().filter(pk=conversation_id).first()
    if conversation is None:
        raise NotFound("There is no such conversation.")
    return conversation


def conversation_delete(*, conversation: Conversation) -> None:
    """Stops what still runs in it. Generations stay for the accounts, without their texts."""
    for generation in conversation.generations.active():
        generation_cancel(generation=generation)
    with transaction.atomic():  # locks in the order of ``generation_finish``; nothing comes into the conversation once it is held
        list(conversation.generations.select_for_update().values_list("pk"))
        Conversation.objects.select_for_update().filter(pk=conversation.pk).first()
        conversation.generations.update(request={}, system_prompt="")
        conversation.delete()


def conversations_delete(*, owner: Owner) -> None:
    """All chats of an owner, with their links."""
    for conversation in Conversation.objects.owned_by(owner):
        conversation_delete(conversation=conversation)


def message_append(*, conversation: Conversation, parent: Message | None, role: str, content: str) -> Message:
    return Message.objects.create(conversation=conversation, parent=parent, role=role, content=content)


def title_from(text: str) -> str:
    """The first line that says something, shortened at a word."""
    line = next((line.strip() for line in text.splitlines() if line.strip()), "")
    if len(line) <= TITLE_CHARS:
        return line
    return line[:TITLE_CHARS].rsplit(" ", 1)[0] + "…"


# Start -----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Job:
    """One answer wanted. Exactly one of ``messages``, ``prompt`` and ``prompt_ids`` is given.

    ``sampling`` goes to the engine besides ``params``.
    """

    params: Params
    messages: list[ChatMessage] | None = None
    prompt: str | None = None
    prompt_ids: list[int] | None = None
    sampling: dict = field(default_factory=dict)


def generation_create(
    *,
    owner: Owner,
    params: Params,
    messages: list[ChatMessage],
    conversation_id: UUID | None = None,
    parent_id: UUID | None = None,
    user_message_id: UUID | None = None,
) -> Generation:
    """Check a request of the browser, store it, and put it into the queue once the transaction has committed.

    The last message and the answer hang into the conversation's tree.

    Raises UnknownModel, EmptyPrompt, PromptTooLong, NotFound, or what ``check_can_generate`` raises; then nothing is stored.
    """
    if not messages or messages[-1].role != "user":
        raise EmptyPrompt("The last message must be the user's.")

    def hang(generation: Generation) -> None:
        place = (conversation_id, parent_id, user_message_id)
        generation.conversation, generation.message = _hang_into_tree(owner, messages, *place)
        generation.share_link_id = generation.conversation.share_link_id

    return generations_create(owner=owner, jobs=[Job(params, messages=messages)], before_save=hang)[0]


def generations_create(
    *,
    owner: Owner,
    jobs: list[Job],
    source: str = Generation.Source.WEB,
    api_key: ApiKey | None = None,
    end_user: str = "",
    before_save: Callable[[Generation], None] = lambda generation: None,
) -> list[Generation]:
    """Check, store and queue the answers of one request: all of them or, when this raises, none."""
    requests = [(_served_model(job.params.model), _request(job.messages, job.prompt, job.prompt_ids)) for job in jobs]
    ids = [uuid4() for _ in jobs]
    check_can_generate(owner, ids, api_key)
    try:
        tokens = _prompt_tokens(requests)
        _check_scored(jobs, tokens)
        with transaction.atomic():
            generations = []
            for i, job, (model, request), prompt_tokens in zip(ids, jobs, requests, tokens, strict=True):
                generation = Generation(
                    id=i,
                    **owner.fields(),
                    source=source,
                    api_key=api_key,
                    end_user=end_user,
                    model=model,
                    params=job.params.model_dump() | {"model": model} | job.sampling,
                    system_prompt="\n\n".join(m.content for m in job.messages or [] if m.role == "system"),
                    request=request,
                    prompt_tokens=prompt_tokens,
                )
                before_save(generation)
                generation.save(force_insert=True)
                generations.append(generation)
    except BaseException:
        release(owner, ids, api_key)
        raise
    transaction.on_commit(lambda: _enqueue(generations))
    return generations


def _prompt_tokens(requests: list[tuple[str, dict]]) -> list[int]:
    """Of each request; the n answers of one prompt share a count, because a long prompt takes a while."""
    known: list[tuple[str, dict, int]] = []
    for model, request in requests:
        if not any(model == m and request == r for m, r, _ in known):
            known.append((model, request, _check_length(model, request)))
    return [next(tokens for m, r, tokens in known if (m, r) == wanted) for wanted in requests]


def _check_scored(jobs: list[Job], tokens: list[int]) -> None:
    longest = max((n for job, n in zip(jobs, tokens, strict=True) if job.sampling.get("prompt_logprobs")), default=0)
    if longest > MAX_SCORED_TOKENS:
        raise InvalidParameter(f"A prompt with log-probabilities may have {MAX_SCORED_TOKENS:,} tokens; this one has {longest:,}.")


def _served_model(name: str) -> str:
    name = name or config.model_names[0]
    if name not in config.model_names:
        raise UnknownModel(model=name, served=len(config.model_names))
    return name


def _request(messages: list[ChatMessage] | None, prompt: str | None, prompt_ids: list[int] | None) -> dict:
    if messages is not None:
        if not messages or not messages[-1].content.strip():
            raise EmptyPrompt("Type a request first.")
        return {"messages": [m.model_dump() for m in messages]}
    if prompt_ids is not None:
        if not prompt_ids:
            raise EmptyPrompt("The prompt has no tokens.")
        return {"prompt_ids": prompt_ids}
    if not prompt:
        raise EmptyPrompt("Type a request first.")
    return {"prompt": prompt}


def _check_length(model: str, request: dict) -> int:
    """The number of prompt tokens; raises PromptTooLong before anything is queued."""
    context = engine_client.context_tokens(model)
    if context and (fewest := engine_client.far_over(model, request, context)):
        raise PromptTooLong(prompt_tokens=fewest, context_tokens=context, model=engine_client.title(model), at_least=True)
    tokens = engine_client.count_prompt_tokens(model, request)
    if context and tokens >= context:
        raise PromptTooLong(prompt_tokens=tokens, context_tokens=context, model=engine_client.title(model))
    return tokens


def _hang_into_tree(
    owner: Owner, messages: list[ChatMessage], conversation_id: UUID | None, parent_id: UUID | None, user_message_id: UUID | None
) -> tuple[Conversation, Message]:
    """The conversation and the empty assistant message that will hold the answer."""
    text = messages[-1].content
    if conversation_id is None:
        conversation = conversation_create(owner=owner, title=title_from(text))
    else:
        conversation = conversation_held(owner=owner, conversation_id=conversation_id)
    if user_message_id is not None:
        asked = _message_of(conversation, user_message_id)
        if asked.role != Message.Role.USER:
            raise NotFound("Only a request can be answered again.")
    else:
        parent = _message_of(conversation, parent_id) if parent_id else None
        asked = message_append(conversation=conversation, parent=parent, role=Message.Role.USER, content=text)
    Conversation.objects.filter(pk=conversation.pk).update(updated_at=timezone.now())
    return conversation, message_append(conversation=conversation, parent=asked, role=Message.Role.ASSISTANT, content="")


def _message_of(conversation: Conversation, message_id: UUID) -> Message:
    message = conversation.messages.filter(pk=message_id).first()
    if message is None:
        raise NotFound("There is no such message in this conversation.")
    return message


def _enqueue(generations: list[Generation]) -> None:
    from playground.chat.tasks import generate

    try:
        for generation in generations:
            streams.queue_add(generation.pk)
            generate.apply_async((str(generation.pk),), task_id=str(generation.pk))
    except (redis.RedisError, OperationalError) as error:
        log.error("generations %s could not be queued: %s", [str(g.pk) for g in generations], error)
        result = Result(State.FAILED, error_code="unavailable", error_message=NO_QUEUE)
        ended = [_store_end(generation.pk, result, Generation.ACTIVE) for generation in generations]
        settle(*filter(None, ended))
        raise Unavailable(NO_QUEUE) from error


NO_QUEUE = "The queue does not answer. Nothing was sent."


# Transitions -----------------------------------------------------------------------------------------------------------


@dataclass
class Result:
    """How a generation ended and what it made."""

    state: str
    text: str = ""
    finish_reason: str = ""
    error_code: str = ""
    error_message: str = ""
    prompt_tokens: int | None = None
    completion_tokens: int = 0
    ttft_ms: float | None = None
    total_ms: float | None = None
    decode_tokens_per_s: float | None = None
    trace: list | None = None
    last_event_id: str = "0"


def generation_start(*, generation_id: UUID, worker: str, engine: str, info: dict) -> Generation | None:
    """queued -> running. None when it is no longer queued (stopped, or taken by another worker)."""
    now = timezone.now()
    generation = Generation.objects.filter(pk=generation_id, state=State.QUEUED).first()
    if generation is None:
        return None
    queue_ms = (now - generation.created_at).total_seconds() * 1000
    changed = Generation.objects.filter(pk=generation_id, state=State.QUEUED).update(
        state=State.RUNNING,
        started_at=now,
        queue_ms=queue_ms,
        worker=worker,
        engine=engine,
        backend=info.get("backend", ""),
        device=info.get("device", ""),
        gpus=info.get("gpus", 0),
        precision=info.get("dtype", ""),
    )
    if not changed:
        return None
    streams.queue_remove(generation_id)
    generation.refresh_from_db()
    return generation


def generation_finish(*, generation_id: UUID, result: Result, was: tuple[str, ...] = Generation.ACTIVE) -> bool:
    """One transaction stores text, usage and timings. False when somebody else had ended it, and nothing is changed."""
    if generation := _store_end(generation_id, result, was):
        settle(generation)
    return generation is not None


@transaction.atomic
def _store_end(generation_id: UUID, result: Result, was: tuple[str, ...]) -> Generation | None:
    fields = {
        "state": result.state,
        "finish_reason": result.finish_reason,
        "error_code": result.error_code,
        "error_message": result.error_message,
        "completion_tokens": result.completion_tokens,
        "ttft_ms": result.ttft_ms,
        "total_ms": result.total_ms,
        "decode_tokens_per_s": result.decode_tokens_per_s,
        "trace": result.trace or [],
        "last_event_id": result.last_event_id,
        "finished_at": timezone.now(),
        "request": {},
    }
    if result.prompt_tokens is not None:
        fields["prompt_tokens"] = result.prompt_tokens
    if not Generation.objects.filter(pk=generation_id, state__in=was).update(**fields):
        return None
    generation = Generation.objects.defer("trace", "params", "request").select_related("user").get(pk=generation_id)
    Message.objects.filter(pk=generation.message_id).update(content=result.text)
    Conversation.objects.filter(pk=generation.conversation_id).update(updated_at=timezone.now())
    return generation


def generation_cancel(*, generation: Generation) -> None:
    """Stop it: a queued one never reaches an engine, a running one ends within a token. Ended ones stay as they are.

    The engine is told first: it must not run on while the database waits for a lock.
    """
    streams.cancel_request(generation.pk)
    result = Result(State.STOPPED, finish_reason="cancelled", prompt_tokens=generation.prompt_tokens, last_event_id=streams.event_id(1))
    if generation_finish(generation_id=generation.pk, result=result, was=(State.QUEUED,)):
        streams.queue_remove(generation.pk)
        streams.stream_end(generation.pk, 0, end_frame(generation.pk))


def end_frame(generation_id: UUID) -> dict:
    """The last frame (``done`` or ``error``) of an ended generation, as the database has it."""
    generation = Generation.objects.get(pk=generation_id)
    if generation.state == State.FAILED:
        return {"type": "error", "code": generation.error_code, "message": generation.error_message}
    return {"type": "done", "finish_reason": generation.finish_reason, **generation.stream_state}


# Reaper ----------------------------------------------------------------------------------------------------------------


def generations_reap() -> list[UUID]:
    """End what nobody will end: running ones whose worker's heartbeat stopped, queued ones whose task is lost.

    They become ``interrupted`` with the text their stream has. Who waits no more leaves the waiting line. Safe to call from any process
    at any time.
    """
    line = streams.queue_ids()  # read before the database: what stands in it is stored there
    workers = streams.workers()
    held = {i for report in workers.values() for i in report.get("holds", [])}
    orphans = [g for g in Generation.objects.filter(state=State.RUNNING) if g.worker not in workers or str(g.pk) not in held]
    waiting = list(Generation.objects.filter(state=State.QUEUED))
    if left := line - {str(g.pk) for g in waiting}:
        streams.queue_remove(*left)
    queued = [g for g in waiting if str(g.pk) not in held]
    if queued:
        at_broker = streams.broker_task_ids()
        orphans += [g for g in queued if str(g.pk) not in at_broker]
    return [g.pk for g in orphans if streams.seen_lost(g.pk, LOST_SECONDS) and generation_interrupt(generation=g)]


def generation_interrupt(*, generation: Generation) -> bool:
    """End a generation whose worker is gone; the text so far is kept."""
    entries = streams.stream_read(generation.pk)
    deltas = [(streams.event_number(i), frame) for i, frame in entries if frame["type"] == "delta"]
    number = streams.event_number(entries[-1][0]) if entries else 0
    tokens = sum(frame["tokens"] for _, frame in deltas)
    first, last = (deltas[0][1]["elapsed_ms"], deltas[-1][1]["elapsed_ms"]) if deltas else (None, None)
    result = Result(
        State.INTERRUPTED,
        text="".join(frame["text"] for _, frame in deltas),
        finish_reason="interrupted",
        error_code="engine_stopped",
        error_message=f"The engine went away. {tokens:,} tokens kept.",
        completion_tokens=tokens,
        ttft_ms=first,
        total_ms=last,
        trace=[[n, len(f["text"]), f["tokens"], f["elapsed_ms"]] for n, f in deltas],
        last_event_id=streams.event_id(number + 1),
    )
    if not generation_finish(generation_id=generation.pk, result=result, was=(generation.state,)):
        return False
    streams.queue_remove(generation.pk)
    try:
        streams.stream_end(generation.pk, number, end_frame(generation.pk))
    except redis.ResponseError:  # its worker lives after all and wrote on; it will find the row ended and stop
        streams.cancel_request(generation.pk)
    log.warning("generation %s interrupted after %d tokens", generation.pk, tokens)
    return True
