"""Chats and generations. Rows are written by ``services`` and read by ``selectors``."""

import uuid

from django.conf import settings
from django.db import models
from django.utils import timezone

from playground.identity import Owner


class OwnedQuerySet(models.QuerySet):
    def owned_by(self, owner: Owner) -> "OwnedQuerySet":
        return self.filter(**owner.fields())


class Owned(models.Model):
    """A row of a user or, when ``user`` is null, of an anonymous visitor."""

    user = models.ForeignKey(settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.CASCADE)
    visitor_id = models.UUIDField(null=True, blank=True)

    objects = OwnedQuerySet.as_manager()

    class Meta:
        abstract = True


class Conversation(Owned):
    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    title = models.CharField(max_length=200)
    created_at = models.DateTimeField(default=timezone.now)
    updated_at = models.DateTimeField(default=timezone.now)
    share_link = models.ForeignKey(  # the demo that it was forked from
        "sharing.ShareLink", null=True, blank=True, on_delete=models.SET_NULL, related_name="forks"
    )

    class Meta:
        indexes = [
            models.Index(fields=["user", "-updated_at"], name="conversation_user"),
            models.Index(fields=["visitor_id", "-updated_at"], name="conversation_visitor"),
        ]

    def __str__(self) -> str:
        return self.title


class Message(models.Model):
    """A node of the conversation's tree: editing a request or answering it again makes a sibling."""

    class Role(models.TextChoices):
        USER = "user"
        ASSISTANT = "assistant"

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    conversation = models.ForeignKey(Conversation, on_delete=models.CASCADE, related_name="messages")
    parent = models.ForeignKey("self", null=True, blank=True, on_delete=models.CASCADE, related_name="children")
    role = models.CharField(max_length=16, choices=Role)
    content = models.TextField(blank=True)
    created_at = models.DateTimeField(default=timezone.now)

    class Meta:
        indexes = [models.Index(fields=["conversation", "created_at"], name="message_conversation")]

    def __str__(self) -> str:
        return f"{self.role}: {self.content[:60]}"


class GenerationQuerySet(OwnedQuerySet):
    def active(self) -> "GenerationQuerySet":
        """Queued or running."""
        return self.filter(state__in=Generation.ACTIVE)


class Generation(models.Model):
    """One answer of a model, from any door. Survives its conversation so that usage is counted once and for ever.

    States: ``queued`` -> ``running`` -> one of ``done``, ``stopped``, ``interrupted``, ``failed``; a queued one may end
    without running. Every transition is a compare-and-set in ``services``, so that no two processes make the same one.
    Times in milliseconds are the engine's, except ``queue_ms`` (from acceptance to the engine).
    """

    class State(models.TextChoices):
        QUEUED = "queued"
        RUNNING = "running"
        DONE = "done"
        STOPPED = "stopped"
        INTERRUPTED = "interrupted"
        FAILED = "failed"

    class Source(models.TextChoices):
        WEB = "web"
        API = "api"

    ACTIVE = (State.QUEUED, State.RUNNING)

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    user = models.ForeignKey(settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.SET_NULL)
    visitor_id = models.UUIDField(null=True, blank=True)
    source = models.CharField(max_length=8, choices=Source, default=Source.WEB)
    conversation = models.ForeignKey(Conversation, null=True, blank=True, on_delete=models.SET_NULL, related_name="generations")
    message = models.OneToOneField(Message, null=True, blank=True, on_delete=models.SET_NULL, related_name="generation")
    share_link = models.ForeignKey(  # the demo whose fork asked
        "sharing.ShareLink", null=True, blank=True, on_delete=models.SET_NULL, related_name="generations"
    )
    api_key = models.ForeignKey("api.ApiKey", null=True, blank=True, on_delete=models.SET_NULL, related_name="generations")
    end_user = models.CharField(max_length=256, blank=True)  # whom a program asks for, in its own words

    # What was asked
    model = models.CharField(max_length=200)
    params = models.JSONField(default=dict)  # temperature, top_p, top_k, min_p, max_tokens, seed, stop, ...
    system_prompt = models.TextField(blank=True)
    request = models.JSONField(default=dict)  # messages | prompt | prompt_ids for the engine; emptied at the end

    # What happened
    state = models.CharField(max_length=16, choices=State, default=State.QUEUED)
    finish_reason = models.CharField(max_length=16, blank=True)
    error_code = models.CharField(max_length=64, blank=True)
    error_message = models.TextField(blank=True)
    prompt_tokens = models.PositiveIntegerField(default=0)
    completion_tokens = models.PositiveIntegerField(default=0)
    queue_ms = models.FloatField(null=True, blank=True)
    ttft_ms = models.FloatField(null=True, blank=True)
    total_ms = models.FloatField(null=True, blank=True)
    decode_tokens_per_s = models.FloatField(null=True, blank=True)
    trace = models.JSONField(default=list)  # [[event number, characters, tokens, elapsed_ms], ...], one per delta of the stream
    last_event_id = models.CharField(max_length=40, default="0")

    # Where it ran
    worker = models.CharField(max_length=200, blank=True)
    engine = models.CharField(max_length=64, blank=True)
    backend = models.CharField(max_length=64, blank=True)
    device = models.CharField(max_length=200, blank=True)
    gpus = models.PositiveSmallIntegerField(default=0)
    precision = models.CharField(max_length=32, blank=True)

    created_at = models.DateTimeField(default=timezone.now)
    started_at = models.DateTimeField(null=True, blank=True)
    finished_at = models.DateTimeField(null=True, blank=True)

    objects = GenerationQuerySet.as_manager()

    class Meta:
        indexes = [
            models.Index(fields=["state", "created_at"], name="generation_state"),
            models.Index(fields=["user", "created_at"], name="generation_user"),
            models.Index(fields=["visitor_id", "created_at"], name="generation_visitor"),
            models.Index(fields=["created_at"], name="generation_created"),
            models.Index(fields=["finished_at"], name="generation_finished"),
        ]

    def __str__(self) -> str:
        return f"{self.model} {self.state} {self.id}"

    @property
    def owner(self) -> Owner:
        return Owner(user=self.user, visitor_id=None if self.user_id else self.visitor_id)

    @property
    def ended(self) -> bool:
        return self.state not in self.ACTIVE

    @property
    def stream_state(self) -> dict:
        """``usage`` and ``timings`` in the form of the ``done`` frame."""
        return {
            "usage": {"prompt_tokens": self.prompt_tokens, "completion_tokens": self.completion_tokens},
            "timings": {
                "queue_ms": self.queue_ms,
                "ttft_ms": self.ttft_ms,
                "total_ms": self.total_ms,
                "decode_tokens_per_s": self.decode_tokens_per_s,
            },
        }
