"""What may this person do, and what do they have? Everything that reads access settings."""

from dataclasses import dataclass

from django.contrib.auth.models import AbstractBaseUser

from playground.accounts.models import Quota, SiteSettings
from playground.chat.models import Conversation, Generation
from playground.exceptions import SignInRequired
from playground.identity import Owner


@dataclass(frozen=True)
class Limits:
    """None: no limit. Tokens are output tokens."""

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    tokens_per_day: int | None = None
    concurrent: int | None = None


VISITOR_DEFAULTS = Limits(requests_per_minute=20, tokens_per_day=50_000)
USER_DEFAULTS = Limits(requests_per_minute=60, tokens_per_day=500_000)


def site_settings() -> SiteSettings:
    """The row, or its defaults while nobody has saved it."""
    return SiteSettings.objects.filter(pk=1).first() or SiteSettings(pk=1)


def check_may_use(owner: Owner) -> None:
    """Raises SignInRequired for a visitor while the site is for signed-in users only."""
    if owner.user is None and site_settings().sign_in_required:
        raise SignInRequired("Sign in first. This site is for signed-in users.")


def quota_for(owner: Owner) -> Limits:
    """The limits of a user or visitor. Rows of the admin come first, then the defaults above."""
    if owner.user is None:
        return _merge([Quota.objects.filter(applies_to=Quota.Applies.VISITORS)], VISITOR_DEFAULTS)
    rows = [
        Quota.objects.filter(user=owner.user),
        Quota.objects.filter(group__in=owner.user.groups.all()),
        Quota.objects.filter(applies_to=Quota.Applies.USERS),
    ]
    return _merge(rows, USER_DEFAULTS)


def _merge(levels: list, defaults: Limits) -> Limits:
    found = [list(level.values(*Quota.LIMITS)) for level in levels]
    return Limits(**{name: _first(found, name, getattr(defaults, name)) for name in Quota.LIMITS})


def _first(levels: list[list[dict]], name: str, default: int | None) -> int | None:
    """Of the first level that sets this limit the largest value."""
    for rows in levels:
        values = [row[name] for row in rows if row[name] is not None]
        if values:
            return max(values)
    return default


def account_export(user: AbstractBaseUser) -> dict:
    """Everything stored about a user, as plain data for one JSON file."""
    from playground.sharing.selectors import links_of

    return {
        "account": {"email": user.email, "username": user.get_username(), "date_joined": user.date_joined, "last_login": user.last_login},
        "chats": [_chat(c) for c in Conversation.objects.filter(user=user).order_by("created_at").prefetch_related("messages")],
        "links": [link.model_dump(mode="json") for link in links_of(owner=Owner(user=user))],
        "api_keys": list(user.api_keys.values("name", "prefix", "scopes", "created_at", "expires_at", "revoked_at", "last_used_at")),
        "usage": list(
            Generation.objects.filter(user=user)
            .order_by("created_at")
            .values(
                "created_at", "model", "state", "source", "prompt_tokens", "completion_tokens", "queue_ms", "ttft_ms", "decode_tokens_per_s"
            )
        ),
    }


def _chat(conversation: Conversation) -> dict:
    messages = sorted(conversation.messages.all(), key=lambda m: m.created_at)
    return {
        "id": conversation.pk,
        "title": conversation.title,
        "created_at": conversation.created_at,
        "messages": [
            {"id": m.pk, "parent_id": m.parent_id, "role": m.role, "content": m.content, "created_at": m.created_at} for m in messages
        ],
    }
