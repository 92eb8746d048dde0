"""Usage: rollups of the Generation rows, and what admins did. The rows are the account; rollups can always be made from them."""

from django.conf import settings
from django.db import models
from django.utils import timezone

SUMS = ("requests", "done", "stopped", "interrupted", "failed", "prompt_tokens", "completion_tokens")
TALLIES = ("errors", "finishes", "queue", "ttft", "total", "rate")  # name or bucket -> count


class UsageRollup(models.Model):
    """Ended generations of one hour or day (UTC, by the time of the request), for everybody or for one subject.

    ``kind`` "all" counts every generation once, "total" too, for all models and sources together; the other kinds split the
    same generations by user, visitor, key, link or engine.
    A visitor's rollups of a day also have one for all models and sources together: there are thousands of visitors.
    Histograms map the bucket numbers of ``histograms`` to counts, so rollups of any span add up to exact counts.
    """

    class Period(models.TextChoices):
        HOUR = "hour"
        DAY = "day"

    class Kind(models.TextChoices):
        TOTAL = "total"
        ALL = "all"
        USER = "user"
        VISITOR = "visitor"
        KEY = "key"
        LINK = "link"
        ENGINE = "engine"

    period = models.CharField(max_length=4, choices=Period)
    start = models.DateTimeField()
    kind = models.CharField(max_length=8, choices=Kind)
    subject = models.CharField(max_length=280, blank=True, help_text="Primary key of the user, key or link; visitor id; worker/engine.")
    model = models.CharField(max_length=200)
    source = models.CharField(max_length=8)

    requests = models.PositiveIntegerField(default=0)
    done = models.PositiveIntegerField(default=0)
    stopped = models.PositiveIntegerField(default=0)
    interrupted = models.PositiveIntegerField(default=0)
    failed = models.PositiveIntegerField(default=0)
    prompt_tokens = models.PositiveBigIntegerField(default=0)
    completion_tokens = models.PositiveBigIntegerField(default=0)
    peak_waiting = models.PositiveIntegerField(default=0)  # of the total only: most of an hour's requests that waited at once
    errors = models.JSONField(default=dict)  # error code -> count
    finishes = models.JSONField(default=dict)  # finish reason -> count
    queue = models.JSONField(default=dict)  # histogram of ms
    ttft = models.JSONField(default=dict)  # histogram of ms
    total = models.JSONField(default=dict)  # histogram of ms
    rate = models.JSONField(default=dict)  # histogram of decode tokens/s

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["kind", "period", "start", "subject", "model", "source"], name="usagerollup_one"),
        ]
        indexes = [models.Index(fields=["kind", "subject", "period", "start"], name="usagerollup_subject")]

    def __str__(self) -> str:
        return f"{self.kind} {self.subject} {self.period} {self.start:%Y-%m-%d %H:%M} {self.model}"


class RollupState(models.Model):
    """Up to when ended generations have been rolled up. One row."""

    done_until = models.DateTimeField(null=True)
    checked_at = models.DateTimeField(null=True)

    def save(self, *args, **kwargs) -> None:
        self.pk = 1
        super().save(*args, **kwargs)


class StaleHour(models.Model):
    """An hour whose rows changed hands since it was rolled up; ``rollup_update`` makes it anew and drops the mark."""

    start = models.DateTimeField()


class Refusals(models.Model):
    """Requests for an answer that were refused before a generation was stored, in one hour (UTC) and for one reason.

    Not unique: two processes may begin the same row at once; the sum is what counts.
    """

    hour = models.DateTimeField()
    code = models.CharField(max_length=64)
    source = models.CharField(max_length=8)
    model = models.CharField(max_length=200, blank=True)  # "": none that is served, or the request was not read so far
    user = models.ForeignKey(settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL, related_name="+")
    requests = models.PositiveIntegerField(default=0)

    class Meta:
        indexes = [models.Index(fields=["hour"], name="refusals_hour")]

    def __str__(self) -> str:
        return f"{self.hour:%Y-%m-%d %H:00} {self.code}"


class AuditEntry(models.Model):
    """What an admin did to running parts, people, links or keys."""

    at = models.DateTimeField(default=timezone.now)
    actor = models.ForeignKey(settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL, related_name="+")
    actor_name = models.CharField(max_length=150)
    action = models.CharField(max_length=40)
    target = models.CharField(max_length=300)
    detail = models.CharField(max_length=500, blank=True)

    class Meta:
        ordering = ["-at"]
        verbose_name_plural = "audit log"

    def __str__(self) -> str:
        return f"{self.at:%Y-%m-%d %H:%M} {self.actor_name}: {self.action} {self.target}"
