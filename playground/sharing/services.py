"""Everything that writes demo links."""

from datetime import datetime, timedelta
from uuid import UUID

import redis
from django.db import transaction
from django.db.models import F
from django.utils import timezone

from playground import streams
from playground.accounts.selectors import site_settings
from playground.chat.models import Conversation, Message
from playground.chat.services import conversation_create, message_append
from playground.exceptions import InvalidParameter, LinkGone, SharingOff
from playground.identity import Owner
from playground.sharing.models import ShareLink, SharePreview, ShareViews
from playground.sharing.snapshots import answer_of, snapshot_take

MAX_DAYS = 3650


def link_create(
    *,
    conversation: Conversation,
    message_id: UUID | None = None,
    scope: str = ShareLink.Scope.CONVERSATION,
    title: str = "",
    expires_in_days: int | None = None,
    allow_embed: bool = False,
    owner_name: str = "",
) -> ShareLink:
    """Take a snapshot and give it an address. Raises SharingOff, NotFound, InvalidParameter."""
    if not site_settings().sharing_enabled:
        raise SharingOff
    answer = answer_of(conversation, message_id)
    return ShareLink.objects.create(
        user=conversation.user,
        visitor_id=conversation.visitor_id,
        conversation=conversation,
        scope=scope,
        title=title.strip() or conversation.title,
        snapshot=snapshot_take(conversation=conversation, answer=answer, whole=scope == ShareLink.Scope.CONVERSATION),
        expires_at=expiry(expires_in_days),
        allow_embed=allow_embed,
        owner_name=owner_name.strip(),
    )


def expiry(days: int | None) -> datetime | None:
    """None: never."""
    if days is None:
        return None
    if not 1 <= days <= MAX_DAYS:
        raise InvalidParameter(f"A link can live 1 to {MAX_DAYS:,} days; got {days}.")
    return timezone.now() + timedelta(days=days)


def link_update(*, link: ShareLink, **changes) -> None:
    """``title``, ``allow_embed``, ``owner_name``, ``expires_in_days`` (None: never). The snapshot stays."""
    _must_exist(link)
    if "expires_in_days" in changes:
        link.expires_at = expiry(changes.pop("expires_in_days"))
    for name, value in changes.items():
        setattr(link, name, value)
    link.version += "title" in changes  # the preview image shows the title
    link.save(update_fields=["expires_at", "version", *changes])


def link_publish(*, link: ShareLink, message_id: UUID | None = None) -> None:
    """Put a new snapshot of the chat under the same address."""
    _must_exist(link)
    if not site_settings().sharing_enabled:
        raise SharingOff
    if link.conversation is None or link.revoked_at:
        raise LinkGone
    answer = answer_of(link.conversation, message_id)
    link.snapshot = snapshot_take(conversation=link.conversation, answer=answer, whole=link.scope == ShareLink.Scope.CONVERSATION)
    link.published_at = timezone.now()
    link.version += 1
    link.save(update_fields=["snapshot", "published_at", "version"])


def link_revoke(*, link: ShareLink) -> None:
    """The address answers 410 from now on; the owner still sees the link in the list."""
    _must_exist(link)
    link.revoked_at = link.revoked_at or timezone.now()
    link.save(update_fields=["revoked_at"])
    SharePreview.objects.filter(link=link).delete()


def link_delete(*, link: ShareLink) -> None:
    """Wipe everything but the token, the dates and the number of views."""
    ShareLink.objects.filter(pk=link.pk).update(
        snapshot={}, title="", owner_name="", user=None, visitor_id=None, conversation=None, deleted_at=timezone.now()
    )
    SharePreview.objects.filter(link=link).delete()


def links_delete_of(*, owner: Owner) -> None:
    for link in ShareLink.objects.existing().owned_by(owner).only("pk"):
        link_delete(link=link)


def _must_exist(link: ShareLink) -> None:
    if link.deleted_at:
        raise LinkGone


@transaction.atomic
def link_fork(*, link: ShareLink, owner: Owner) -> Conversation:
    """A chat of ``owner`` with the texts of the snapshot. It shares nothing with the original and outlives it."""
    conversation = conversation_create(owner=owner, title=link.title)
    conversation.share_link = link
    conversation.save(update_fields=["share_link"])
    parent = None
    for turn in link.snapshot["turns"]:
        if turn["prompt"]:
            parent = message_append(conversation=conversation, parent=parent, role=Message.Role.USER, content=turn["prompt"])
        parent = message_append(conversation=conversation, parent=parent, role=Message.Role.ASSISTANT, content=turn["answer"]["text"])
    return conversation


def view_count(*, link: ShareLink, viewer: Owner) -> None:
    """Count a look at the page: each viewer once an hour, the owner never."""
    if viewer.key == link.owner.key or not _first_look(link, viewer):
        return
    hour = timezone.now().replace(minute=0, second=0, microsecond=0)
    row, _ = ShareViews.objects.get_or_create(link=link, hour=hour)
    ShareViews.objects.filter(pk=row.pk).update(views=F("views") + 1)
    ShareLink.objects.filter(pk=link.pk).update(views=F("views") + 1)


def _first_look(link: ShareLink, viewer: Owner) -> bool:
    try:
        return bool(streams.client().set(f"view:{link.pk}:{viewer.key}", 1, nx=True, ex=3600))
    except redis.RedisError:
        return True
