"""Everything that reads chats and generations."""

from datetime import datetime
from uuid import UUID

import redis
from django.db.models import OuterRef, Q, Subquery

from playground import streams
from playground.chat.models import Conversation, Generation, Message
from playground.exceptions import NotFound
from playground.identity import Owner
from playground.schemas import ConversationItem, ConversationOut, ConversationPage, ErrorBody, GenerationOut, MessageOut, Timings, Usage

PAGE_SIZE = 50


def conversation_get(*, owner: Owner, conversation_id: UUID) -> Conversation:
    """Raises NotFound, also when it is somebody else's."""
    conversation = Conversation.objects.owned_by(owner).filter(pk=conversation_id).first()
    if conversation is None:
        raise NotFound("There is no such conversation.")
    return conversation


def generation_get(*, owner: Owner, generation_id: UUID) -> Generation:
    """Raises NotFound, also when it is somebody else's."""
    generation = Generation.objects.owned_by(owner).select_related("message").filter(pk=generation_id).first()
    if generation is None:
        raise NotFound("There is no such generation.")
    return generation


def conversation_list(*, owner: Owner, query: str = "", before: str = "") -> ConversationPage:
    """Newest first; ``query`` looks into titles and texts; ``before`` is the ``next`` of the page above."""
    rows = Conversation.objects.owned_by(owner)
    if query:
        query = query.replace("\x00", "")  # databases hold none
        rows = rows.filter(Q(title__icontains=query) | Q(pk__in=_with_text(query)))
    if before:
        rows = rows.filter(updated_at__lt=_moment(before))
    last = Generation.objects.filter(conversation=OuterRef("pk")).order_by("-created_at")
    rows = rows.annotate(last_rate=Subquery(last.values("decode_tokens_per_s")[:1]), last_state=Subquery(last.values("state")[:1]))
    page = list(rows.order_by("-updated_at")[: PAGE_SIZE + 1])
    items = [
        ConversationItem(id=c.pk, title=c.title, updated_at=c.updated_at, decode_tokens_per_s=c.last_rate, state=c.last_state)
        for c in page[:PAGE_SIZE]
    ]
    return ConversationPage(items=items, next=items[-1].updated_at.isoformat() if len(page) > PAGE_SIZE else None)


def _with_text(query: str):
    return Message.objects.filter(content__icontains=query).values("conversation_id")


def _moment(text: str) -> datetime:
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        raise NotFound("There is no such page.") from None


def conversation_out(conversation: Conversation) -> ConversationOut:
    messages = conversation.messages.select_related("generation").order_by("created_at")
    return ConversationOut(id=conversation.pk, title=conversation.title, messages=[_message_out(m) for m in messages])


def _message_out(message: Message) -> MessageOut:
    generation = getattr(message, "generation", None)
    out = generation_out(generation) if generation else None
    return MessageOut(
        id=message.pk,
        parent_id=message.parent_id,
        role=message.role,
        content=message.content or (out.text if out else ""),
        created_at=message.created_at,
        generation=out,
    )


def generation_out(generation: Generation) -> GenerationOut:
    """The row; while it runs, text and points are what its stream has so far."""
    if generation.state == Generation.State.RUNNING:
        text, trace, last = _running_text(generation)
    else:
        text, trace, last = generation_text(generation), generation.trace, generation.last_event_id
    error = ErrorBody(code=generation.error_code, message=generation.error_message) if generation.error_code else None
    return GenerationOut(
        id=generation.pk,
        state=generation.state,
        model=generation.model,
        params=generation.params,
        system_prompt=generation.system_prompt,
        usage=Usage(**generation.stream_state["usage"]),
        timings=Timings(**generation.stream_state["timings"]),
        error=error,
        finish_reason=generation.finish_reason,
        text=text,
        last_event_id=last,
        points=[(tokens, elapsed_ms, characters) for _, characters, tokens, elapsed_ms in trace],
    )


def generation_text(generation: Generation) -> str:
    """The stored answer; "" when its chat was deleted."""
    return generation.message.content if generation.message_id else ""


def _running_text(generation: Generation) -> tuple[str, list, str]:
    try:
        entries = streams.stream_read(generation.pk)
    except redis.RedisError:
        entries = []
    entries = [(i, frame) for i, frame in entries if frame["type"] not in streams.TERMINAL]
    deltas = [(i, f) for i, f in entries if f["type"] == "delta"]
    trace = [[streams.event_number(i), len(f["text"]), f["tokens"], f["elapsed_ms"]] for i, f in deltas]
    return "".join(f["text"] for _, f in deltas), trace, entries[-1][0] if entries else "0"


def frames_after(generation: Generation, last_event_id: str) -> list[dict]:
    """What a viewer that has seen ``last_event_id`` still lacks of an ended generation, from the database alone."""
    from playground.chat.services import end_frame

    seen, text = streams.event_number(last_event_id), generation_text(generation)
    frames, offset, missing = [], 0, []
    for number, chars, tokens, elapsed_ms in generation.trace:
        if number > seen:
            missing.append((number, text[offset : offset + chars], tokens, elapsed_ms))
        offset += chars
    if missing:
        frames.append(
            {
                "type": "delta",
                "event_id": streams.event_id(missing[-1][0]),
                "text": "".join(m[1] for m in missing),
                "tokens": sum(m[2] for m in missing),
                "elapsed_ms": missing[-1][3],
                "points": [[m[2], m[3], len(m[1])] for m in missing],
            }
        )
    return [*frames, {**end_frame(generation.pk), "event_id": generation.last_event_id}]
