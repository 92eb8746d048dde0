"""API keys. Rows are written by ``services`` and read by ``selectors``."""

import uuid

from django.conf import settings
from django.db import models
from django.utils import timezone


class ApiKeyQuerySet(models.QuerySet):
    def live(self) -> "ApiKeyQuerySet":
        """Neither revoked nor expired."""
        now = timezone.now()
        return self.filter(revoked_at=None).filter(models.Q(expires_at=None) | models.Q(expires_at__gt=now))


class ApiKey(models.Model):
    """A program's access in a user's name. The key itself is shown once; the row has its SHA-256 and its first characters.

    Limits hold for this key, besides those of its user; an empty one is no limit of its own.
    """

    class Scope(models.TextChoices):
        MODELS = "models", "list the models"
        GENERATE = "generate", "generate text"

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="api_keys")
    name = models.CharField(max_length=100)
    prefix = models.CharField(max_length=16)
    digest = models.CharField(max_length=64, unique=True)
    scopes = models.JSONField(default=list)
    created_at = models.DateTimeField(default=timezone.now)
    expires_at = models.DateTimeField(null=True, blank=True, help_text="Empty: never.")
    revoked_at = models.DateTimeField(null=True, blank=True)
    last_used_at = models.DateTimeField(null=True, blank=True)

    requests_per_minute = models.PositiveIntegerField(null=True, blank=True)
    tokens_per_minute = models.PositiveIntegerField(null=True, blank=True, help_text="Output tokens.")
    tokens_per_day = models.PositiveIntegerField(null=True, blank=True, help_text="Output tokens from 00:00 UTC.")
    concurrent = models.PositiveIntegerField(null=True, blank=True, help_text="Answers queued or running at once.")

    objects = ApiKeyQuerySet.as_manager()

    class Meta:
        verbose_name = "API key"
        ordering = ["-created_at"]

    def __str__(self) -> str:
        return f"{self.name} ({self.prefix}…)"

    @property
    def state(self) -> str:
        """``live``, ``expired`` or ``revoked``."""
        if self.revoked_at:
            return "revoked"
        return "expired" if self.expires_at and self.expires_at <= timezone.now() else "live"
