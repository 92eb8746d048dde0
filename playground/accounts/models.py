"""What an admin decides about access: one row of site settings, and quotas. Read through ``selectors``."""

from django.conf import settings
from django.contrib.auth.models import Group
from django.core.exceptions import ValidationError
from django.db import models


class SiteSettings(models.Model):
    """The one row of switches, edited in the admin."""

    signup_open = models.BooleanField("sign-up is open", default=True, help_text="Off: only admins create accounts.")
    sign_in_required = models.BooleanField(
        "sign-in is required", default=False, help_text="On: visitors must sign in before they can use anything."
    )
    sharing_enabled = models.BooleanField(
        "sharing is on", default=True, help_text="Off: no new links, and existing links answer 410 until it is on again."
    )
    text_retention_days = models.PositiveIntegerField(
        "keep texts for (days)",
        null=True,
        blank=True,
        help_text="Chats older than this are deleted by `python manage.py apply_retention`; usage figures stay. Empty: for ever.",
    )

    class Meta:
        verbose_name = verbose_name_plural = "site settings"

    def __str__(self) -> str:
        return "Site settings"

    def save(self, *args, **kwargs) -> None:
        self.pk = 1
        super().save(*args, **kwargs)


class Quota(models.Model):
    """Limits of one user, of a group's members, of all signed-in users, or of all visitors. An empty field falls through.

    Order: the user's own, then the most generous of the user's groups, then that of all users; see ``selectors.quota_for``.
    """

    class Applies(models.TextChoices):
        VISITORS = "visitors", "each visitor without an account"
        USERS = "users", "each signed-in user"
        GROUP = "group", "each member of a group"
        USER = "user", "one user"

    LIMITS = ("requests_per_minute", "tokens_per_minute", "tokens_per_day", "concurrent")

    applies_to = models.CharField(max_length=16, choices=Applies)
    group = models.OneToOneField(Group, null=True, blank=True, on_delete=models.CASCADE)
    user = models.OneToOneField(settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.CASCADE)
    requests_per_minute = models.PositiveIntegerField(null=True, blank=True)
    tokens_per_minute = models.PositiveIntegerField(null=True, blank=True, help_text="Output tokens.")
    tokens_per_day = models.PositiveIntegerField(null=True, blank=True, help_text="Output tokens from 00:00 UTC.")
    concurrent = models.PositiveIntegerField(null=True, blank=True, help_text="Answers queued or running at once.")

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["applies_to"], condition=models.Q(applies_to__in=["visitors", "users"]), name="quota_one_default_each"
            ),
        ]

    def __str__(self) -> str:
        return str(self.user or self.group or self.get_applies_to_display())

    def clean(self) -> None:
        wanted = {self.Applies.GROUP: "group", self.Applies.USER: "user"}.get(self.applies_to)
        for field in ("group", "user"):
            if (getattr(self, field) is not None) != (field == wanted):
                raise ValidationError({field: f"Choose a {field}." if field == wanted else "Leave this empty."})
