"""Bodies of ``/api/links``."""

from datetime import datetime
from typing import Literal
from uuid import UUID

from pydantic import Field

from playground.schemas import Strict, Text, Title


class LinkIn(Strict):
    conversation_id: UUID
    message_id: UUID | None = Field(None, description="The answer to end with. Null: the newest.")
    scope: Literal["conversation", "answer"] = "conversation"
    title: Text = Field("", max_length=200, description="Empty: the chat's.")
    expires_in_days: int | None = Field(None, description="Null: never.")
    allow_embed: bool = False
    owner_name: Text = Field("", max_length=100, description="Shown to viewers. Empty: nobody's name.")


class LinkPatch(Strict):
    """Only the fields given are changed."""

    title: Title = ""
    expires_in_days: int | None = None
    allow_embed: bool = False
    owner_name: Text = Field("", max_length=100)


class LinkPublish(Strict):
    message_id: UUID | None = None


class LinkOut(Strict):
    id: UUID
    url: str
    title: str
    scope: Literal["conversation", "answer"]
    state: Literal["live", "expired", "revoked"]
    conversation_id: UUID | None
    created_at: datetime
    published_at: datetime
    expires_at: datetime | None
    views: int
    allow_embed: bool
    owner_name: str


class LinkPage(Strict):
    items: list[LinkOut]


class Forked(Strict):
    conversation_id: UUID
