"""Demo links: an immutable snapshot of a chat or of one answer under an address that cannot be guessed."""

import secrets
import uuid

from django.conf import settings
from django.db import models
from django.utils import timezone

from playground.chat.models import Conversation, Owned, OwnedQuerySet
from playground.identity import Owner


def new_token() -> str:
    """192 random bits, 32 characters that are safe in an address."""
    return secrets.token_urlsafe(24)


class ShareLinkQuerySet(OwnedQuerySet):
    def existing(self) -> "ShareLinkQuerySet":
        """Not deleted; expired and revoked ones are still listed for their owner."""
        return self.filter(deleted_at=None)

    def live(self) -> "ShareLinkQuerySet":
        """What a stranger may see."""
        return self.existing().filter(models.Q(expires_at=None) | models.Q(expires_at__gt=timezone.now()), revoked_at=None)


class ShareLink(Owned):
    """One address. ``snapshot`` (see ``snapshots``) is all that a viewer can get; it is emptied when the link is deleted.

    A deleted link keeps its row, without content and owner, so that its address answers 410 and its use stays counted.
    """

    class Scope(models.TextChoices):
        CONVERSATION = "conversation"
        ANSWER = "answer"

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    user = models.ForeignKey(settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.SET_NULL)
    token = models.CharField(max_length=43, unique=True, default=new_token, editable=False)
    conversation = models.ForeignKey(Conversation, null=True, blank=True, on_delete=models.SET_NULL, related_name="links")
    scope = models.CharField(max_length=16, choices=Scope, default=Scope.CONVERSATION)
    title = models.CharField(max_length=200)
    snapshot = models.JSONField(default=dict)
    owner_name = models.CharField(max_length=100, blank=True, help_text="Shown to viewers. Empty: nobody's name.")
    allow_embed = models.BooleanField(default=False)
    views = models.PositiveIntegerField(default=0)
    version = models.PositiveIntegerField(default=1)
    created_at = models.DateTimeField(default=timezone.now)
    published_at = models.DateTimeField(default=timezone.now)
    expires_at = models.DateTimeField(null=True, blank=True)
    revoked_at = models.DateTimeField(null=True, blank=True)
    deleted_at = models.DateTimeField(null=True, blank=True)

    objects = ShareLinkQuerySet.as_manager()

    class Meta:
        indexes = [
            models.Index(fields=["user", "-created_at"], name="sharelink_user"),
            models.Index(fields=["visitor_id", "-created_at"], name="sharelink_visitor"),
            models.Index(fields=["created_at"], name="sharelink_created"),
        ]

    def __str__(self) -> str:
        return self.title or f"deleted link {self.pk}"

    @property
    def owner(self) -> Owner:
        return Owner(user=self.user, visitor_id=None if self.user_id else self.visitor_id)

    @property
    def state(self) -> str:
        """``live``, ``expired``, ``revoked`` or ``deleted``."""
        if self.deleted_at:
            return "deleted"
        if self.revoked_at:
            return "revoked"
        return "expired" if self.expires_at and self.expires_at <= timezone.now() else "live"


class SharePreview(models.Model):
    """The preview image of one published version, made when it is first asked for."""

    link = models.OneToOneField(ShareLink, on_delete=models.CASCADE, related_name="preview")
    version = models.PositiveIntegerField()
    png = models.BinaryField()


class ShareViews(models.Model):
    """Views of a link within one hour. A viewer counts once an hour, the owner never."""

    link = models.ForeignKey(ShareLink, on_delete=models.CASCADE, related_name="hours")
    hour = models.DateTimeField()
    views = models.PositiveIntegerField(default=0)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["link", "hour"], name="shareviews_link_hour")]
        indexes = [models.Index(fields=["hour"], name="shareviews_hour")]
