"""Everything that writes usage: rollups, retention, the audit log and the acts that go into it."""

import logging
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import accumulate

from django.contrib.auth.models import AbstractBaseUser
from django.db import DatabaseError, transaction
from django.db.models import Count, F, Q, QuerySet, Sum
from django.utils import timezone

from playground import streams
from playground.accounts.selectors import site_settings
from playground.accounts.services import user_block, user_unblock
from playground.api.models import ApiKey
from playground.api.services import key_revoke
from playground.chat.models import Conversation, Generation
from playground.chat.services import conversation_delete, generation_cancel
from playground.config import config
from playground.identity import Owner
from playground.sharing.models import ShareLink
from playground.sharing.services import link_revoke
from playground.usage.histograms import bucket_of
from playground.usage.models import SUMS, TALLIES, AuditEntry, Refusals, RollupState, StaleHour, UsageRollup

log = logging.getLogger(__name__)
Kind, Period = UsageRollup.Kind, UsageRollup.Period
HOUR = timedelta(hours=1)
TOTAL = (Kind.TOTAL, "", "", "")
KEY = ("kind", "subject", "model", "source")
FIGURES = (*SUMS, "peak_waiting", *TALLIES)
STALE_AT_ONCE = 24
MOST_SUBJECTS = 500  # of a day made anew one by one; more are made all together
OVERLAP = timedelta(minutes=2)  # a transaction that commits late is still seen
FRESH = timedelta(seconds=10)
COLUMNS = (
    "created_at",
    "finished_at",
    "model",
    "source",
    "user_id",
    "visitor_id",
    "api_key_id",
    "share_link_id",
    "worker",
    "engine",
    "state",
    "finish_reason",
    "error_code",
    "prompt_tokens",
    "completion_tokens",
    "queue_ms",
    "ttft_ms",
    "total_ms",
    "decode_tokens_per_s",
)

# Rollups ---------------------------------------------------------------------------------------------------------------


def rollup_update(*, force: bool = False) -> int:
    """Roll up every hour in which a generation ended, or whose rows changed hands, since the last time. The number of hours.

    At most every 10 s. Without ``force`` only the newest ``STALE_AT_ONCE`` of the hours that changed hands: a page waits for it.
    """
    state, _ = RollupState.objects.get_or_create(pk=1)
    now = timezone.now()
    if not force and state.checked_at and now - state.checked_at < FRESH:
        return 0
    ended = Generation.objects.exclude(state__in=Generation.ACTIVE)
    if state.done_until:
        ended = ended.filter(finished_at__gt=state.done_until - OVERLAP)
    hours = {hour_of(created) for created in ended.values_list("created_at", flat=True).iterator(chunk_size=10_000)}
    stale = StaleHour.objects.values_list("start", flat=True).distinct().order_by("-start")
    hours |= set(stale if force else stale[:STALE_AT_ONCE])
    _rollup(hours)
    RollupState(done_until=now, checked_at=now).save()
    return len(hours)


def rollup_rebuild() -> int:
    """Make every rollup again from the rows, an hour at a time. The number of generations counted."""
    now = timezone.now()
    RollupState.objects.get_or_create(pk=1)
    hours = {hour_of(created) for created in Generation.objects.datetimes("created_at", "hour", tzinfo=UTC)}
    hours |= set(UsageRollup.objects.filter(period=Period.HOUR).values_list("start", flat=True).distinct())
    _rollup(hours, whole=True)
    RollupState(done_until=now, checked_at=now).save()
    days = UsageRollup.objects.filter(kind=Kind.TOTAL, period=Period.DAY)
    return days.aggregate(n=Sum("requests"))["n"] or 0


@dataclass(frozen=True)
class Account:
    """One figure as the rows have it, and as the rollups of hours and of days add up to it."""

    name: str
    rows: int
    hours: int
    days: int

    @property
    def equal(self) -> bool:
        return self.rows == self.hours == self.days


def rollup_check() -> list[Account]:
    """Every sum of the rows beside that of the rollups."""
    ended = Generation.objects.exclude(state__in=Generation.ACTIVE)
    sums = {name: Sum(name) for name in ("prompt_tokens", "completion_tokens")} | {"requests": Count("pk")}
    sums |= {state: Count("pk", filter=Q(state=state)) for state in ("done", "stopped", "interrupted", "failed")}
    rows = ended.aggregate(**sums)
    found = [_account(name, rows[name] or 0, Kind.ALL, name) for name in SUMS]
    found += [_account(f"{name}, in total", rows[name] or 0, Kind.TOTAL, name) for name in SUMS]
    with_subject = {
        Kind.USER: Q(user__isnull=False),
        Kind.VISITOR: Q(user=None, visitor_id__isnull=False),
        Kind.KEY: Q(api_key__isnull=False),
        Kind.LINK: Q(share_link__isnull=False),
        Kind.ENGINE: ~Q(worker=""),
    }
    found += [_account(f"requests, by {kind}", ended.filter(rows).count(), kind, "requests") for kind, rows in with_subject.items()]
    return found


def _account(name: str, rows: int, kind: str, figure: str) -> Account:
    stored = UsageRollup.objects.filter(kind=kind)
    if kind != Kind.TOTAL:
        stored = stored.exclude(model="", source="")  # a visitor's day is also there together
    hours, days = (stored.filter(period=period).aggregate(n=Sum(figure))["n"] or 0 for period in (Period.HOUR, Period.DAY))
    return Account(name, rows, hours, days)


def rollups_outdate(generations: QuerySet) -> None:
    """Their owner is about to change, or has changed: the hours of these rows are made anew."""
    hours = {hour_of(created) for created in generations.values_list("created_at", flat=True).iterator()}
    StaleHour.objects.bulk_create(StaleHour(start=hour) for hour in hours)


def _rollup(hours: set[datetime], whole: bool = False) -> None:
    """``whole``: days from all their hours, whatever changed."""
    changed: dict[datetime, set[tuple]] = defaultdict(set)
    for hour in sorted(hours):
        changed[day_of(hour)] |= rollup_hour(hour)
    for day, keys in changed.items():
        rollup_day(day, None if whole else keys)


@transaction.atomic
def rollup_hour(hour: datetime) -> set[tuple]:
    """From the rows of the hour. The keys (kind, subject, model, source) of what changed."""
    _one_at_a_time()
    marks = list(StaleHour.objects.filter(start=hour).values_list("pk", flat=True))
    cells = _Cells()
    rows = list(_rows(Generation.objects.filter(created_at__gte=hour, created_at__lt=hour + HOUR)))
    for row in rows:
        cells.add(row)
    if rows:
        cells.cells[TOTAL]["peak_waiting"] = _peak_waiting(rows)
    StaleHour.objects.filter(pk__in=marks).delete()
    return _store(UsageRollup.objects.filter(kind__in=Kind.values, period=Period.HOUR, start=hour), Period.HOUR, hour, cells)


@transaction.atomic
def rollup_day(day: datetime, keys: set[tuple] | None = None) -> None:
    """From the rollups of its hours; only of ``keys``, if given."""
    _one_at_a_time()
    at = UsageRollup.objects.filter(kind__in=Kind.values)
    subjects = {subject for _, subject, _, _ in keys or ()}
    if keys is not None and len(subjects) <= MOST_SUBJECTS:
        at = at.filter(subject__in=subjects)
    cells = _Cells()
    for row in _cells_of(at.filter(period=Period.HOUR, start__gte=day, start__lt=day + timedelta(days=1))):
        cells.merge({row.pop("key"): row})
    cells.join_visitors()
    _store(at.filter(period=Period.DAY, start=day), Period.DAY, day, cells)


def _one_at_a_time() -> None:
    """Until the end of the transaction. (SQLite has one writer at a time anyway.)"""
    RollupState.objects.select_for_update().filter(pk=1).first()


def hour_of(moment: datetime) -> datetime:
    return moment.replace(minute=0, second=0, microsecond=0)


def day_of(moment: datetime) -> datetime:
    return hour_of(moment).replace(hour=0)


def _rows(generations) -> Iterable[tuple]:
    ended = generations.exclude(state__in=Generation.ACTIVE).order_by("created_at")
    return ended.values_list(*COLUMNS).iterator(chunk_size=10_000)


def _peak_waiting(rows: list[tuple]) -> int:
    """Most of ``rows`` that waited for an engine at once."""
    changes = []
    for row in rows:
        facts = dict(zip(COLUMNS, row, strict=True))
        since, waited = facts["created_at"], facts["queue_ms"]
        until = since + timedelta(milliseconds=waited) if waited is not None else facts["finished_at"]
        if until:
            changes += [(since, 1), (until, -1)]
    return max(accumulate(change for _, change in sorted(changes)), default=0)


class _Cells:
    """Rollups of one period by (kind, subject, model, source)."""

    def __init__(self):
        self.cells: dict[tuple, dict] = {}

    def add(self, row: tuple) -> None:
        """Count one generation (``COLUMNS``): in the total, for everybody by model and source, and for each subject it has."""
        _, _, model, source, user, visitor, key, link, worker, engine, *facts = row
        self._count(TOTAL, facts)
        self._count((Kind.ALL, "", model, source), facts)
        if user is not None:
            self._count((Kind.USER, str(user), model, source), facts)
        elif visitor is not None:  # thousands an hour, each with a request or two: counts are enough
            self._count((Kind.VISITOR, str(visitor), model, source), [*facts[:5], None, None, None, None])
        if key is not None:
            self._count((Kind.KEY, str(key), model, source), facts)
        if link is not None:
            self._count((Kind.LINK, str(link), model, source), facts)
        if worker:
            self._count((Kind.ENGINE, f"{worker}/{engine}", model, source), facts)

    def merge(self, cells: dict[tuple, dict]) -> None:
        for at, other in cells.items():
            cell = self._cell(at)
            for name in SUMS:
                cell[name] += other[name]
            cell["peak_waiting"] = max(cell["peak_waiting"], other["peak_waiting"])
            for name in TALLIES:
                for key, count in other[name].items():
                    cell[name][str(key)] += count

    def join_visitors(self) -> None:
        """One cell for each visitor beside those by model and source."""
        for (kind, subject, *_), cell in list(self.cells.items()):
            if kind == Kind.VISITOR:
                self.merge({(kind, subject, "", ""): cell})

    def _count(self, at: tuple, facts: list) -> None:
        state, finish, error, prompt, completion, queue_ms, ttft_ms, total_ms, rate = facts
        cell = self._cell(at)
        cell["requests"] += 1
        cell[state] += 1
        cell["prompt_tokens"] += prompt
        cell["completion_tokens"] += completion
        if error:
            cell["errors"][error] += 1
        if finish:
            cell["finishes"][finish] += 1
        for name, value in (("queue", queue_ms), ("ttft", ttft_ms), ("total", total_ms), ("rate", rate)):
            if value is not None:
                cell[name][str(bucket_of(value))] += 1

    def _cell(self, at: tuple) -> dict:
        cell = self.cells.get(at)
        if cell is None:
            cell = self.cells[at] = dict.fromkeys((*SUMS, "peak_waiting"), 0) | {name: defaultdict(int) for name in TALLIES}
        return cell


def _cells_of(rollups: QuerySet) -> Iterable[dict]:
    """Stored cells, each with its ``pk`` and its ``key``."""
    for pk, kind, subject, model, source, *values in rollups.values_list("pk", *KEY, *FIGURES).iterator():
        yield {"pk": pk, "key": (kind, subject, model, source), **dict(zip(FIGURES, values, strict=True))}


def _store(stored: QuerySet, period: str, start: datetime, cells: _Cells) -> set[tuple]:
    """Make ``stored`` equal to ``cells``, writing only what differs. The keys of what differed."""
    cells, gone = dict(cells.cells), {}
    for row in _cells_of(stored):
        pk, key = row.pop("pk"), row.pop("key")
        if cells.get(key) == row:
            del cells[key]
        else:
            gone[pk] = key
    pks = list(gone)
    for at in range(0, len(pks), 500):
        UsageRollup.objects.filter(pk__in=pks[at : at + 500]).delete()
    rows = (UsageRollup(period=period, start=start, **dict(zip(KEY, key, strict=True)), **cell) for key, cell in cells.items())
    UsageRollup.objects.bulk_create(rows, batch_size=2000)
    return {*cells, *gone.values()}


# Refusals --------------------------------------------------------------------------------------------------------------


def refusal_count(*, owner: Owner | None, source: str, code: str, model: str = "") -> None:
    """Count a request that was refused before a generation was stored. Never raises: the refusal is said in any case."""
    at = {
        "hour": hour_of(timezone.now()),
        "code": code[:64],
        "source": source,
        "model": model if model in config.model_names else "",
        "user": owner and owner.user,
    }
    try:
        row = Refusals.objects.filter(**at).first() or Refusals.objects.create(**at)
        Refusals.objects.filter(pk=row.pk).update(requests=F("requests") + 1)
    except DatabaseError as error:
        log.error("a refusal (%s) is not counted: %s", code, error)


# Retention -------------------------------------------------------------------------------------------------------------


def retention_apply(*, now: datetime | None = None) -> int:
    """Delete chats (with links) and request texts older than the site keeps them. Figures stay. The number of chats."""
    days = site_settings().text_retention_days
    if days is None:
        return 0
    before = (now or timezone.now()) - timedelta(days=days)
    chats = list(Conversation.objects.filter(updated_at__lt=before))
    for conversation in chats:
        conversation_delete(conversation=conversation)
    Generation.objects.filter(created_at__lt=before).exclude(state__in=Generation.ACTIVE).update(
        request={}, system_prompt="", end_user="", trace=[]
    )
    return len(chats)


# Acts of admins --------------------------------------------------------------------------------------------------------


def audit(*, actor: AbstractBaseUser, action: str, target: str, detail: str = "") -> None:
    AuditEntry.objects.create(actor=actor, actor_name=actor.get_username(), action=action, target=target[:300], detail=detail[:500])


def admin_cancel(*, actor: AbstractBaseUser, generation: Generation) -> None:
    audit(actor=actor, action="cancel generation", target=str(generation.pk), detail=f"{generation.model}, {generation.state}")
    generation_cancel(generation=generation)


def admin_engine(*, actor: AbstractBaseUser, command: str, worker: str, slot: int) -> None:
    """``drain`` (take no more requests), ``resume``, or ``restart`` (once its present request has ended)."""
    streams.worker_command(worker, slot, command)
    audit(actor=actor, action=f"{command} engine", target=f"{worker} / {slot}")


def admin_block(*, actor: AbstractBaseUser, user: AbstractBaseUser, block: bool = True) -> None:
    (user_block if block else user_unblock)(user=user)
    audit(actor=actor, action="block user" if block else "unblock user", target=user.get_username())


def admin_revoke_link(*, actor: AbstractBaseUser, link: ShareLink) -> None:
    audit(actor=actor, action="revoke link", target=str(link.pk), detail=link.title)
    link_revoke(link=link)


def admin_revoke_key(*, actor: AbstractBaseUser, key: ApiKey) -> None:
    audit(actor=actor, action="revoke key", target=str(key.pk), detail=f"{key.prefix} {key.name}")
    key_revoke(key=key)
