"""What an owner may start, counted in Redis: the one check for every door (socket and API).

Limits hold for each *subject* of a request: its user or visitor and, through the API, its key. Requests count in a moving
minute; output tokens when an answer ends, in the minute and the UTC day of its end; answers at once from acceptance to end.
A subject is refused once a window is used up, so one answer may run over it by its own length. Visitors of one network
address have a common limit of requests, because whoever drops the cookie is a new visitor.
"""

import logging
import time
from collections.abc import Iterable
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from functools import cache
from typing import TYPE_CHECKING
from uuid import UUID

import redis
from django.conf import settings
from limits.storage import RedisStorage

from playground import streams
from playground.accounts.selectors import Limits, check_may_use, quota_for
from playground.chat.models import Generation
from playground.config import config
from playground.exceptions import QueueFull, TooManyRequests
from playground.identity import Owner

if TYPE_CHECKING:
    from playground.api.models import ApiKey

log = logging.getLogger(__name__)
MINUTE = 60
DAY = 24 * 3600
VISITORS_PER_ADDRESS = 10  # as many times one visitor's requests may come from one address
COPIES_PER_MINUTE = 30  # of chats: each may be megabytes
SLOT_RETRY_SECONDS = 2  # nobody knows when an answer will end
YOUNG_SECONDS = 30  # a slot this young may belong to a request that is being stored


@dataclass(frozen=True)
class Subject:
    """Who is counted, and against which limits."""

    key: str
    limits: Limits
    name: str  # for people


@dataclass(frozen=True)
class Window:
    """What is left of a limit: ``remaining`` of ``limit``, and seconds until more is free."""

    limit: int
    remaining: int
    reset_s: float
    span: str  # "minute", "day"


def check_can_generate(owner: Owner, generation_ids: list[UUID], api_key: "ApiKey | None" = None) -> None:
    """Count one request and take a slot for each generation, until ``settle`` or ``release`` gives it back.

    Raises TooManyRequests (with ``retry_after_s``), QueueFull or SignInRequired; then no slot is taken.
    """
    check_may_use(owner)
    waiting = Generation.objects.filter(state=Generation.State.QUEUED).count()
    if waiting + len(generation_ids) > config.max_queued:
        raise QueueFull
    subjects = subjects_of(owner, api_key)
    for subject in subjects:
        _check_tokens(subject)
    try:
        for subject in subjects:
            if not subject.key.startswith("address:"):
                _take_slots(subject, generation_ids)
        for subject in subjects:
            _count_request(subject)
    except TooManyRequests:
        release(owner, generation_ids, api_key)
        raise


def check_can_store(owner: Owner) -> None:
    """Count one copy of a chat (import, fork, link, update of a link); raises TooManyRequests."""
    counted = [(owner.key, COPIES_PER_MINUTE, "you" if owner.user else "a visitor")]
    if owner.address:
        counted.append((f"address:{owner.address}", COPIES_PER_MINUTE * VISITORS_PER_ADDRESS, "visitors of one network address"))
    for key, limit, name in counted:
        at = f"{key}:copies"
        if not _storage().acquire_entry(at, limit, MINUTE):
            oldest, _ = _storage().get_moving_window(at, limit, MINUTE)
            wait_s = max(0.0, oldest + MINUTE - time.time())
            message = f"{limit:,} copies of chats a minute are the limit for {name}. Free again in {_shown(wait_s)}."
            raise TooManyRequests(message, wait_s, "copies", span="minute", limit=limit)


def release(owner: Owner, generation_ids: Iterable[UUID], api_key: "ApiKey | None" = None) -> None:
    """Give back the slots of generations that were not stored after all."""
    members = [str(i) for i in generation_ids]
    for key in _keys(owner, api_key and api_key.pk):
        streams.client().zrem(_active(key), *members)


def settle(*generations: Generation) -> None:
    """Answers have ended: their slots are free and their tokens are counted. While Redis is away the count is lost, not the answer."""
    try:
        for generation in generations:
            for key in _keys(generation.owner, generation.api_key_id):
                streams.client().zrem(_active(key), str(generation.pk))
                if generation.completion_tokens:
                    _storage().incr(_minute(key), MINUTE, amount=generation.completion_tokens)
                    _storage().incr(_day(key), DAY, amount=generation.completion_tokens)
    except redis.RedisError as error:
        log.error("generations %s are not counted: %s", [str(g.pk) for g in generations], error)


def subjects_of(owner: Owner, api_key: "ApiKey | None" = None) -> list[Subject]:
    """Read once a request: the limits come from the database."""
    found = [Subject(owner.key, quota_for(owner), "you" if owner.user else "a visitor")]
    if owner.address and (limit := found[0].limits.requests_per_minute) is not None:
        together = Limits(requests_per_minute=limit * VISITORS_PER_ADDRESS)
        found.append(Subject(f"address:{owner.address}", together, "visitors of one network address"))
    if api_key:
        own = Limits(**{field.name: getattr(api_key, field.name) for field in fields(Limits)})
        found.append(Subject(f"key:{api_key.pk}", own, "this key"))
    return found


def requests_left(subjects: list[Subject]) -> Window | None:
    """Of the subject with the fewest left; None without a limit."""
    return min(filter(None, map(_requests, subjects)), key=lambda w: w.remaining, default=None)


def tokens_left(subjects: list[Subject]) -> Window | None:
    """Of the subject and window with the fewest left; None without a limit."""
    return min((w for s in subjects for w in _tokens(s)), key=lambda w: w.remaining, default=None)


def _keys(owner: Owner, api_key_id: UUID | None) -> list[str]:
    return [owner.key] + ([f"key:{api_key_id}"] if api_key_id else [])


@cache
def _storage() -> RedisStorage:
    return RedisStorage(settings.REDIS_URL, streams.client().connection_pool, key_prefix="quota")


def _minute(key: str) -> str:
    return f"{key}:tokens"


def _day(key: str) -> str:
    return f"{key}:tokens:{datetime.now(UTC):%Y-%m-%d}"


def _active(key: str) -> str:
    return f"quota:{key}:active"


# Requests a minute -----------------------------------------------------------------------------------------------------


def _count_request(subject: Subject) -> None:
    limit = subject.limits.requests_per_minute
    if limit is None or (limit and _storage().acquire_entry(f"{subject.key}:requests", limit, MINUTE)):
        return
    _refuse(subject, _requests(subject), "requests")


def _requests(subject: Subject) -> Window | None:
    limit = subject.limits.requests_per_minute
    if limit is None:
        return None
    oldest, used = _storage().get_moving_window(f"{subject.key}:requests", limit, MINUTE)
    return Window(limit, max(0, limit - used), max(0.0, oldest + MINUTE - time.time()) if used else 0.0, "minute")


# Tokens a minute and a day ---------------------------------------------------------------------------------------------


def _check_tokens(subject: Subject) -> None:
    for window in _tokens(subject):
        if not window.remaining:
            _refuse(subject, window, "tokens")


def _tokens(subject: Subject) -> list[Window]:
    found = []
    if (limit := subject.limits.tokens_per_minute) is not None:
        used = _storage().get(_minute(subject.key))
        reset_s = _storage().get_expiry(_minute(subject.key)) - time.time() if used else 0.0
        found.append(Window(limit, max(0, limit - used), max(0.0, reset_s), "minute"))
    if (limit := subject.limits.tokens_per_day) is not None:
        used = _storage().get(_day(subject.key))
        found.append(Window(limit, max(0, limit - used), DAY - time.time() % DAY, "day"))
    return found


def _refuse(subject: Subject, window: Window, what: str) -> None:
    message = f"{window.limit:,} {what} a {window.span} are the limit for {subject.name}."
    if window.limit:
        message += f" Free again in {_shown(window.reset_s)}."
    raise TooManyRequests(message, window.reset_s, what, span=window.span, limit=window.limit)


# Answers at once -------------------------------------------------------------------------------------------------------


def _take_slots(subject: Subject, generation_ids: list[UUID]) -> None:
    limit = subject.limits.concurrent
    if limit is None and not subject.key.startswith("key:"):
        limit = config.max_active_per_owner
    now = time.time()
    with streams.client().pipeline() as pipe:
        pipe.zadd(_active(subject.key), {str(i): now for i in generation_ids})
        pipe.expire(_active(subject.key), DAY)
        pipe.zcard(_active(subject.key))
        taken = pipe.execute()[-1]
    if limit is None or taken <= limit or _forget_ended(subject, generation_ids) <= limit:
        return
    message = f"{limit:,} answers at once are the limit for {subject.name}. Stop one, or wait for its end."
    raise TooManyRequests(message, SLOT_RETRY_SECONDS, "concurrent", limit=limit)


def _forget_ended(subject: Subject, new_ids: list[UUID]) -> int:
    """Free the slots whose end nobody counted (Redis was away, a process died). The number of slots still taken."""
    members = set(streams.client().zrangebyscore(_active(subject.key), 0, time.time() - YOUNG_SECONDS)) - {str(i) for i in new_ids}
    active = Generation.objects.filter(pk__in=members).active().values_list("pk", flat=True)
    if ended := members - {str(i) for i in active}:
        streams.client().zrem(_active(subject.key), *ended)
    return streams.client().zcard(_active(subject.key))


def _shown(seconds: float) -> str:
    """12 s, 7 min, 3 h"""
    if seconds < 100:
        return f"{max(1, round(seconds))} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.0f} h"
