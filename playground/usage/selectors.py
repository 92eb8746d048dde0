"""Everything that reads usage. All figures of the stats page come from rollups, never from the rows."""

from collections import defaultdict
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

import redis
from django.contrib.auth import get_user_model
from django.db.models import Count, Max, QuerySet, Sum
from django.utils import timezone

from playground import engine_client, streams
from playground.api.models import ApiKey
from playground.chat.models import Generation
from playground.exceptions import InvalidParameter
from playground.sharing.models import ShareLink, ShareViews
from playground.usage.histograms import bucket_of, lower_edge, merge, merged, percentile, rebinned
from playground.usage.models import SUMS, Refusals, UsageRollup

Kind, Period = UsageRollup.Kind, UsageRollup.Period
HOUR, DAY, WEEK = timedelta(hours=1), timedelta(days=1), timedelta(days=7)
STEPS = {"hour": HOUR, "day": DAY, "week": WEEK}
HOURLY_UP_TO = timedelta(days=8)
MOST = timedelta(days=1830)
PEOPLE_HOURLY_UP_TO = timedelta(days=2)  # there are many visitors
RANGES = {"24h": (timedelta(days=1), HOUR), "7d": (timedelta(days=7), DAY), "30d": (timedelta(days=30), DAY)}  # span, aligned to
SPREAD_BARS = 26
TABLE_ROWS = 50
DIFFERENT = Count("subject", distinct=True)


@dataclass(frozen=True)
class Query:
    """What the page asks for. ``start`` and ``end`` lie on whole hours or days; ``user`` is a primary key; ``by`` one of ``STEPS``."""

    start: datetime
    end: datetime
    model: str = ""
    source: str = ""
    user: str = ""
    by: str = ""

    @property
    def filtered(self) -> bool:
        return bool(self.model or self.source or self.user)

    @property
    def period(self) -> str:
        """Of the rollups that make totals: whole days where the span consists of them."""
        return Period.DAY if self.start == _floor(self.start, DAY) and self.end == _floor(self.end, DAY) else Period.HOUR

    @property
    def step(self) -> timedelta:
        """Between the points of a chart."""
        return STEPS.get(self.by) or (HOUR if self.end - self.start <= HOURLY_UP_TO else DAY)

    @property
    def people_step(self) -> timedelta:
        """The same for the chart of people, of whom there are many."""
        return STEPS.get(self.by) or (HOUR if self.end - self.start <= PEOPLE_HOURLY_UP_TO else DAY)

    def points(self, step: timedelta) -> list[datetime]:
        """Where the hours, days or weeks (from Monday) of the span begin; the first may begin before it."""
        first = _floor(self.start, step)
        return [first + step * n for n in range(-((first - self.end) // step))]

    @property
    def before(self) -> "Query":
        """The span of the same length just before."""
        return replace(self, start=self.start - (self.end - self.start), end=self.start)

    def rollups(self, kind: str = "", step: timedelta | None = None, split: bool = False) -> QuerySet:
        """Rows of ``kind``; without one, everybody's or the chosen user's, together unless ``split`` by model and source.

        ``step``: between the points of a chart that is made from them.
        """
        period = Period.HOUR if step == HOUR else self.period
        rows = UsageRollup.objects.filter(period=period, start__gte=self.start, start__lt=self.end)
        if kind:
            rows = rows.filter(kind=kind)
            if kind == Kind.VISITOR and period == Period.DAY and not (self.model or self.source):
                rows = rows.filter(model="", source="")  # these of a day are also there together
        elif self.user:
            rows = rows.filter(kind=Kind.USER, subject=self.user)
        elif self.model or self.source or split:
            rows = rows.filter(kind=Kind.ALL, subject="")
        else:
            rows = rows.filter(kind=Kind.TOTAL, subject="")
        if self.model:
            rows = rows.filter(model=self.model)
        return rows.filter(source=self.source) if self.source else rows


def query_from(params: dict) -> Query:
    """``range`` = 24h, 7d or 30d, or ``from`` and ``to`` as dates (both included). Raises InvalidParameter."""
    now = timezone.now()
    name = params.get("range") or "24h"
    if params.get("from") or params.get("to"):
        start, last = _day(params.get("from", "")), _day(params.get("to", ""))
        if not start <= last or last - start > MOST:
            raise InvalidParameter("Dates: the first must not be after the last, and five years lie between them at most.")
        end = last + DAY
    elif name in RANGES:
        span, step = RANGES[name]
        end = _floor(now, step) + step
        start = end - span
    else:
        raise InvalidParameter(f"There is no range '{name[:20]}'. Choose one of {', '.join(RANGES)}.")
    query = Query(start, end, **_filters(params))
    if query.by == "hour" and end - start > HOURLY_UP_TO:
        raise InvalidParameter(f"By hour {HOURLY_UP_TO.days} days can be shown; these are {(end - start).days}.")
    return query


def _filters(params: dict) -> dict[str, str]:
    model, source, user, by = (params.get(name, "") for name in ("model", "source", "user", "by"))
    if "\0" in model or len(model) > 200:
        raise InvalidParameter("A model's name has 200 characters at most, and no NUL.")
    if source not in ("", *Generation.Source.values):
        raise InvalidParameter(f"There is no source '{source[:20]}'. Choose one of {', '.join(Generation.Source.values)}.")
    if user and not (user.isascii() and user.isdecimal()):
        raise InvalidParameter(f"'{user[:20]}' is no user. Give the primary key.")
    if by not in ("", *STEPS):
        raise InvalidParameter(f"There is no step '{by[:20]}'. Choose one of {', '.join(STEPS)}.")
    return {"model": model, "source": source, "user": user, "by": by}


def _day(text: str) -> datetime:
    try:
        day = datetime.strptime(text, "%Y-%m-%d").replace(tzinfo=UTC)
    except ValueError:
        raise InvalidParameter(f"'{text[:20]}' is no date. Write it as 2026-11-30.") from None
    if not 2000 <= day.year < 3000:
        raise InvalidParameter(f"Dates lie between 2000-01-01 and 2999-12-31; got {text[:20]}.")
    return day


def _floor(moment: datetime, step: timedelta) -> datetime:
    moment = moment.replace(minute=0, second=0, microsecond=0)
    if step == HOUR:
        return moment
    return moment.replace(hour=0) - (timedelta(days=moment.weekday()) if step == WEEK else timedelta(0))


# Parts of the page -----------------------------------------------------------------------------------------------------


def summary(query: Query) -> dict:
    """The seven readouts, with the span before for comparison."""
    now, before = _totals(query), _totals(query.before)
    histograms = list(query.rollups().values_list("queue", "ttft", "rate"))
    queue, ttft, rate = (merged(column) for column in zip(*histograms, strict=True)) if histograms else ({}, {}, {})
    users, visitors = (query.rollups(kind).aggregate(n=DIFFERENT)["n"] for kind in (Kind.USER, Kind.VISITOR))
    return {
        "start": query.start,
        "end": query.end,
        **now,
        "before": {"requests": before["requests"], "completion_tokens": before["completion_tokens"]},
        "users": min(1, now["requests"]) if query.user else users,
        "visitors": 0 if query.user else visitors,
        "queue_ms": _percentiles(queue),
        "ttft_ms": _percentiles(ttft),
        "rate": _at_least(rate),
        "read_bound": _read_bound(query),
        "peak_waiting": None if query.filtered else query.rollups().aggregate(n=Max("peak_waiting"))["n"] or 0,
        "links": ShareLink.objects.filter(created_at__gte=query.start, created_at__lt=query.end).count(),
        "views": ShareViews.objects.filter(hour__gte=query.start, hour__lt=query.end).aggregate(n=Sum("views"))["n"] or 0,
    }


def _read_bound(query: Query) -> float | None:
    """Tokens/s at which the span's model would be bound by reading its weights, on the engine that serves it now.

    None where several models are shown, or none of them has a measured bound.
    """
    models = [query.model] if query.model else list(query.rollups(split=True).values_list("model", flat=True).distinct()[:2])
    if len(models) != 1:
        return None
    try:
        return next((card.bound_tokens_per_s for card in engine_client.model_cards() if card.name == models[0]), None)
    except redis.RedisError:
        return None


def _totals(query: Query) -> dict[str, int]:
    sums = query.rollups().aggregate(**{name: Sum(name) for name in SUMS})
    return {name: value or 0 for name, value in sums.items()}


def _percentiles(histogram: dict[int, int]) -> dict[str, float | None]:
    return {f"p{p}": percentile(histogram, p / 100) for p in (50, 95, 99)}


def _at_least(histogram: dict[int, int]) -> dict[str, float | None]:
    """p95 of a rate: 95 % of requests were at least this fast."""
    return {f"p{p}": percentile(histogram, 1 - p / 100) for p in (50, 95, 99)}


def series(query: Query) -> list[dict]:
    """One entry for each hour, day or week, also for the empty ones: counts by outcome, tokens, percentiles."""
    cells = {at: dict.fromkeys(SUMS, 0) | {"queue": {}, "ttft": {}, "rate": {}} for at in query.points(query.step)}
    for row in query.rollups(step=query.step).values("start", *SUMS, "queue", "ttft", "rate"):
        cell = cells[_floor(row["start"], query.step)]
        for name in SUMS:
            cell[name] += row[name]
        for name in ("queue", "ttft", "rate"):
            merge(cell[name], row[name])
    return [
        {
            "start": start,
            **{name: cell[name] for name in SUMS},
            "queue_ms": _percentiles(cell["queue"]),
            "ttft_ms": _percentiles(cell["ttft"]),
            "rate": _at_least(cell["rate"]),
        }
        for start, cell in cells.items()
    ]


def people(query: Query) -> list[dict]:
    """Active users and visitors, and views of links, for each hour of up to two days, else for each day, or as asked."""
    step = query.people_step
    out = {at: {"start": at, "people": 0, "views": 0} for at in query.points(step)}
    for kind in [Kind.USER] if query.user else [Kind.USER, Kind.VISITOR]:
        rows = query.rollups(kind, step=step)
        rows = rows.filter(subject=query.user) if query.user else rows
        if step == WEEK or (step == DAY and query.period == Period.HOUR):  # longer than the rows' own
            for at in out:
                out[at]["people"] += rows.filter(start__gte=at, start__lt=at + step).aggregate(n=DIFFERENT)["n"]
        else:
            for row in rows.values("start").annotate(n=DIFFERENT):
                out[row["start"]]["people"] += row["n"]
    views = ShareViews.objects.filter(hour__gte=query.start, hour__lt=query.end).values("hour").annotate(n=Sum("views"))
    for row in views:
        out[_floor(row["hour"], step)]["views"] += row["n"]
    return list(out.values())


def spread(query: Query, name: str) -> list[dict]:
    """The distribution of ``rate``, ``ttft`` or ``queue`` from 0 to its 99 % point; the last bar takes what lies above."""
    if name not in ("rate", "ttft", "queue"):
        raise InvalidParameter(f"There is no distribution of '{name[:20]}'. Choose one of rate, ttft, queue.")
    histogram = merged(query.rollups().values_list(name, flat=True))
    if not histogram:
        return []
    if name == "rate":  # the histogram's own buckets, which are a percentage wide
        low, high = percentile(histogram, 0.001) / 1.06, percentile(histogram, 0.999) * 1.06
        shown = range(bucket_of(low), bucket_of(high) + 1)
        return [{"from": lower_edge(b), "to": lower_edge(b + 1), "count": histogram.get(b, 0)} for b in shown]
    step = percentile(histogram, 0.99) / SPREAD_BARS
    edges = [step * i for i in range(SPREAD_BARS + 1)]
    return [{"from": a, "to": b, "count": n} for a, b, n in zip(edges, edges[1:], rebinned(histogram, edges), strict=False)]


def errors(query: Query) -> list[dict]:
    """Errors, stops and refusals by kind, most frequent first. What was refused is no request of the other figures."""
    counts: dict[tuple[str, str], int] = defaultdict(int)
    for row in query.rollups().values("errors", "stopped"):
        for code, count in row["errors"].items():
            counts[code, "error"] += count
        counts["stopped", "stop"] += row["stopped"]
    for code, count in _refused(query).values_list("code").annotate(n=Sum("requests")):
        counts[code, "refused"] += count
    rows = [{"name": code, "kind": kind, "requests": count} for (code, kind), count in counts.items() if count]
    return sorted(rows, key=lambda row: -row["requests"])


def _refused(query: Query) -> QuerySet:
    rows = Refusals.objects.filter(hour__gte=query.start, hour__lt=query.end)
    wanted = {"model": query.model, "source": query.source, "user": query.user}
    return rows.filter(**{name: value for name, value in wanted.items() if value})


def table(query: Query, kind: str) -> list[dict]:
    """Use by ``model`` or by a kind of rollup, the busiest first; models and engines also with percentiles. No name: deleted."""
    if kind == "model":
        rows, key = query.rollups(split=True), "model"
    elif kind in (Kind.USER, Kind.VISITOR, Kind.KEY, Kind.LINK, Kind.ENGINE):
        rows, key = query.rollups(kind), "subject"
        rows = rows.filter(subject=query.user) if query.user and kind == Kind.USER else rows
    else:
        raise InvalidParameter(f"There is no table '{kind[:20]}'. Choose one of model, user, visitor, key, link, engine.")
    sums = {name: Sum(name) for name in SUMS}
    top = list(rows.values(key).annotate(**sums).order_by("-requests")[:TABLE_ROWS])
    names = _names(kind, [row[key] for row in top])
    out = [{"id": row[key], "name": names.get(row[key], ""), **{name: row[name] for name in SUMS}} for row in top]
    if kind in ("model", Kind.ENGINE):
        speeds = _medians(rows, key)
        out = [row | speeds[row["id"]] for row in out]
    return out


def _medians(rows, key: str) -> dict[str, dict]:
    rates: dict[str, dict] = defaultdict(dict)
    firsts: dict[str, dict] = defaultdict(dict)
    for subject, rate, ttft in rows.values_list(key, "rate", "ttft"):
        merge(rates[subject], rate)
        merge(firsts[subject], ttft)
    return {subject: {"rate_p50": percentile(rates[subject], 0.5), "ttft_p50": percentile(firsts[subject], 0.5)} for subject in rates}


def _names(kind: str, subjects: list[str]) -> dict[str, str]:
    """None, or an empty one, of what has been deleted."""
    if kind == Kind.USER:
        users = get_user_model().objects.filter(pk__in=subjects)
        return {str(user.pk): user.email or user.get_username() for user in users}
    if kind == Kind.VISITOR:
        return {subject: f"visitor {subject[:8]}" for subject in subjects}
    if kind == Kind.LINK:
        return {str(pk): title for pk, title in ShareLink.objects.filter(pk__in=subjects).values_list("pk", "title")}
    if kind == Kind.KEY:
        keys = ApiKey.objects.filter(pk__in=subjects).select_related("user")
        return {str(key.pk): f"{key.name} ({key.prefix}, {key.user})" for key in keys}
    return {subject: subject for subject in subjects}


def link_views(query: Query) -> list[dict]:
    """The most viewed links of the span."""
    views = ShareViews.objects.filter(hour__gte=query.start, hour__lt=query.end)
    rows = views.values("link", "link__title").annotate(views=Sum("views")).order_by("-views")[:TABLE_ROWS]
    return [{"id": str(row["link"]), "name": row["link__title"], "views": row["views"]} for row in rows]


def choices() -> dict:
    """What the filters offer: models, and the users with most requests of the last 30 days."""
    month = query_from({"range": "30d"})
    users = month.rollups(Kind.USER).values("subject").annotate(n=Sum("requests")).order_by("-n")[:TABLE_ROWS]
    names = _names(Kind.USER, [row["subject"] for row in users])
    models = month.rollups(split=True).values_list("model", flat=True).distinct().order_by("model")
    return {"models": list(models), "users": [{"id": row["subject"], "name": names.get(row["subject"], "")} for row in users]}


# Workers now -----------------------------------------------------------------------------------------------------------


def workers() -> dict:
    """Engines of every worker that reports or has just stopped to, and the length of the queue. Empty when Redis does not answer."""
    try:
        waiting, seen, alive = streams.queue_length(), streams.workers_seen(), streams.workers()
        engines = [
            _engine(worker, report, engine, age_s, worker in alive)
            for worker, (report, age_s) in seen.items()
            for engine in report["engines"]
        ]
    except redis.RedisError:
        return {"waiting": None, "engines": []}
    return {"waiting": waiting, "engines": engines}


def _engine(worker: str, report: dict, engine: dict, age_s: float, alive: bool) -> dict:
    info = engine["info"] or {}
    now = _now(engine["generation"]) if engine["generation"] and alive else {}
    return {
        "worker": worker,
        "host": report["host"],
        "slot": engine["slot"],
        "model": info.get("title") or engine["model"],
        "device": info.get("device"),
        "gpus": info.get("gpus", 0),
        "state": engine["state"],
        "draining": engine.get("draining", False),
        "fraction": engine["fraction"],
        "detail": engine["detail"],
        "generation": engine["generation"],
        "memory": engine.get("memory"),
        "alive": alive,
        "heartbeat_s": age_s,
        **now,
    }


def _now(generation_id: str) -> dict:
    """Tokens so far and tokens/s of the last second of engine time, from the stream's newest entries."""
    frames = [frame for _, frame in streams.stream_tail(generation_id, 150)]
    deltas = [frame for frame in frames if frame["type"] == "delta"]
    if not deltas:
        prefill = next((frame for frame in frames if frame["type"] == "prefill"), None)
        return {"prefill": [prefill["done"], prefill["total"]] if prefill else None}
    newest = deltas[0]["elapsed_ms"]
    window = [frame for frame in deltas if frame["elapsed_ms"] > newest - 1000]
    first = window[-1]["elapsed_ms"]
    tokens = sum(frame["tokens"] for frame in window[:-1])
    return {"rate": tokens / (newest - first) * 1000 if newest > first else None}
