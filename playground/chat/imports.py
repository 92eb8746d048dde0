"""An exported chat comes back: its tree of messages as a new conversation of this owner, without generations."""

from datetime import timedelta
from typing import Annotated, Literal
from uuid import uuid4

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

MAX_MESSAGES = 1000
Name = Annotated[str, Field(min_length=1, max_length=100)]

router = Router()


class ImportedMessage(BaseModel):
    """``id`` and ``parent_id`` name messages within the file only."""

    id: Name
    parent_id: Name | None = None
    role: Literal["user", "assistant"]
    content: Text


class ConversationImport(BaseModel):
    title: Text = Field("", max_length=200)
    messages: list[ImportedMessage] = Field(min_length=1, max_length=MAX_MESSAGES)


@router.post("", response={201: dict})
def import_conversation(request: HttpRequest, body: ConversationImport) -> Status:
    check_can_store(request.owner)
    conversation = conversation_import(owner=request.owner, body=body)
    return Status(201, {"id": str(conversation.id)})


@transaction.atomic
def conversation_import(*, owner: Owner, body: ConversationImport) -> Conversation:
    """Raises InvalidParameter when the text is too large, an id comes twice or a message hangs under one that does not come before it."""
    size = sum(len(message.content.encode()) for message in body.messages)
    if size > config.max_message_bytes:
        raise InvalidParameter(f"This chat has {size / 1e6:.1f} MB of text; the limit is {config.max_message_bytes / 1e6:.0f} MB.")
    conversation = services.conversation_create(owner=owner, title=body.title or services.title_from(body.messages[0].content))
    now = timezone.now()
    stored: dict[str, Message] = {}
    for place, message in enumerate(body.messages):
        if message.id in stored:
            raise InvalidParameter(f"Two messages have the id '{message.id}'.")
        if message.parent_id is not None and message.parent_id not in stored:
            raise InvalidParameter(f"Message '{message.id}' hangs under '{message.parent_id}', which does not come before it.")
        stored[message.id] = Message(
            id=uuid4(),
            conversation=conversation,
            parent=stored[message.parent_id] if message.parent_id is not None else None,
            role=message.role,
            content=message.content,
            created_at=now + timedelta(microseconds=place),
        )
    Message.objects.bulk_create(stored.values())
    return conversation
