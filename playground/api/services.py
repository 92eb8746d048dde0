"""Everything that writes keys, and the start of an API request's answers."""

import secrets
from dataclasses import dataclass
from datetime import timedelta

from django.contrib.auth.models import AbstractBaseUser
from django.utils import timezone

from playground import engine_client
from playground.api.errors import InvalidApiKey, NoEngine
from playground.api.models import ApiKey
from playground.api.selectors import digest_of
from playground.chat.models import Generation
from playground.chat.services import Job, generation_cancel, generations_create
from playground.exceptions import TooManyRequests, UnknownModel
from playground.identity import Owner

PREFIX = "mk-"
SHOWN_CHARS = 8  # of a key, in lists
MAX_LIVE_KEYS = 50  # of a user
TOUCH_SECONDS = 60  # between two writes of last_used_at


@dataclass(frozen=True)
class Caller:
    """Who calls the API: the user of a key, or where an admin allows it a visitor without one."""

    owner: Owner
    api_key: ApiKey | None = None


# Keys ------------------------------------------------------------------------------------------------------------------


def key_create(
    *, user: AbstractBaseUser, name: str, scopes: list[str] | None = None, expires_in_days: int | None = None
) -> tuple[ApiKey, str]:
    """A new key and its secret, which is stored nowhere. Raises TooManyRequests over MAX_LIVE_KEYS."""
    if ApiKey.objects.filter(user=user).live().count() >= MAX_LIVE_KEYS:
        raise TooManyRequests(f"{MAX_LIVE_KEYS} keys are the limit. Revoke one first.", limited="keys", limit=MAX_LIVE_KEYS)
    secret = PREFIX + secrets.token_urlsafe(32)
    key = ApiKey.objects.create(
        user=user,
        name=name,
        prefix=secret[:SHOWN_CHARS],
        digest=digest_of(secret),
        scopes=scopes if scopes is not None else list(ApiKey.Scope.values),
        expires_at=timezone.now() + timedelta(days=expires_in_days) if expires_in_days else None,
    )
    return key, secret


def key_revoke(*, key: ApiKey) -> None:
    """It works no more, and what it runs is stopped."""
    if key.revoked_at is None:
        key.revoked_at = timezone.now()
        key.save(update_fields=["revoked_at"])
    for generation in key.generations.active():
        generation_cancel(generation=generation)


def key_touch(*, key: ApiKey) -> None:
    """Note that it was used, at most once a minute."""
    now = timezone.now()
    if key.last_used_at is None or now - key.last_used_at > timedelta(seconds=TOUCH_SECONDS):
        ApiKey.objects.filter(pk=key.pk).update(last_used_at=now)


# Answers ---------------------------------------------------------------------------------------------------------------


def answers_start(*, caller: Caller, jobs: list[Job], end_user: str = "") -> list[Generation]:
    """Queue the answers of one request. Raises NoEngine, InvalidApiKey (revoked meanwhile) and what ``generations_create`` raises."""
    _check_engine(jobs[0].params.model)
    key = caller.api_key
    made = generations_create(owner=caller.owner, jobs=jobs, source=Generation.Source.API, api_key=key, end_user=end_user)
    if key and not ApiKey.objects.filter(pk=key.pk, revoked_at=None).exists():  # revoking or deleting it found nothing to stop
        answers_stop(generations=made)
        raise InvalidApiKey("This API key is revoked. Make a new one under API keys.")
    return made


def answers_stop(*, generations: list[Generation]) -> None:
    """The client has gone away."""
    for generation in generations:
        generation_cancel(generation=generation)


def _check_engine(model: str) -> None:
    cards = engine_client.model_cards()
    card = next((card for card in cards if card.name == model), None)
    if card is None:
        raise UnknownModel(model=model, served=len(cards))
    if not card.ready:
        raise NoEngine(f"No engine for '{model}' is ready. Try again in a few seconds.")
