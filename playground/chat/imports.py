"""An exported chat comes back: its tree of messages as a new conversation of this owner, without generations."""

from datetime import timedelta
from typing import Annotated, Literal
from uuid import UUID, uuid5

from django.db import transaction
from django.http import HttpRequest
from django.utils import timezone
from ninja import Router, Status
from pydantic import BaseModel, Field

from playground.chat import services
from playground.chat.models import Conversation, Message
from playground.config import config
from playground.exceptions import InvalidParameter
from playground.identity import Owner
from playground.limits import check_can_store
from playground.schemas import Text

PART_MESSAGES = 1000
Name = Annotated[str, Field(min_length=1, max_length=100)]

router = Router()


class ImportedMessage(BaseModel):
    """``id`` and ``parent_id`` name messages within the file only."""

    id: Name
    parent_id: Name | None = None
    role: Literal["user", "assistant"]
    content: Text


class ConversationImport(BaseModel):
    """A chat, or the next part of one: a long chat comes in parts, which name the conversation that the first one made."""

    conversation_id: UUID | None = None
    title: Text = Field("", max_length=200)
    messages: list[ImportedMessage] = Field(min_length=1, max_length=PART_MESSAGES)


@router.post("", response={201: dict})
def import_conversation(request: HttpRequest, body: ConversationImport) -> Status:
    check_can_store(request.owner)
    conversation = conversation_import(owner=request.owner, body=body)
    return Status(201, {"id": str(conversation.id)})


@transaction.atomic
def conversation_import(*, owner: Owner, body: ConversationImport) -> Conversation:
    """Raises NotFound for a conversation that is not the owner's; InvalidParameter when the text is too large, an id comes twice or
    a message hangs under one that does not come before it."""
    size = sum(len(message.content.encode()) for message in body.messages)
    if size > config.max_message_bytes:
        raise InvalidParameter(f"This chat has {size / 1e6:.1f} MB of text; the limit is {config.max_message_bytes / 1e6:.0f} MB.")
    if body.conversation_id:
        conversation = services.conversation_held(owner=owner, conversation_id=body.conversation_id)
    else:
        conversation = services.conversation_create(owner=owner, title=body.title or services.title_from(body.messages[0].content))
    _store(conversation, body.messages)
    return conversation


def _store(conversation: Conversation, messages: list[ImportedMessage]) -> None:
    """A message's stored id follows from its id in the file, so that a later part finds the parents that came before."""

    def stored_id(name: str) -> UUID:
        return uuid5(conversation.pk, name)

    named = {name for message in messages for name in (message.id, message.parent_id) if name is not None}
    before = set(conversation.messages.filter(pk__in=map(stored_id, named)).values_list("pk", flat=True))
    now, new = timezone.now(), []
    for place, message in enumerate(messages):
        key = stored_id(message.id)
        parent = None if message.parent_id is None else stored_id(message.parent_id)
        if key in before:
            raise InvalidParameter(f"Two messages have the id '{message.id}'.")
        if parent is not None and parent not in before:
            raise InvalidParameter(f"Message '{message.id}' hangs under '{message.parent_id}', which does not come before it.")
        before.add(key)
        made = now + timedelta(microseconds=place)
        new.append(
            Message(id=key, conversation=conversation, parent_id=parent, role=message.role, content=message.content, created_at=made)
        )
    Message.objects.bulk_create(new)
