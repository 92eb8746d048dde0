"""Everything that reads usage. All figures of the stats page come from rollups, never from the rows."""

from collections import defaultdict
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import redis
from django.contrib.auth import get_user_model
from django.db.models import Count, QuerySet, Sum
from django.utils import timezone

from playground import streams
from playground.api.models import ApiKey
from playground.chat.models import Generation
from playground.exceptions import InvalidParameter
from playground.sharing.models import ShareLink, ShareViews
from playground.usage.histograms import bucket_of, lower_edge, merge, merged, percentile, rebinned
from playground.usage.models import SUMS, UsageRollup

Kind, Period = UsageRollup.Kind, UsageRollup.Period
HOUR, DAY = timedelta(hours=1), timedelta(days=1)
HOURLY_UP_TO = timedelta(days=8)
MOST = timedelta(days=1830)
PEOPLE_HOURLY_UP_TO = timedelta(days=2)  # there are many visitors
RANGES = {"24h": (timedelta(days=1), HOUR), "7d": (timedelta(days=7), DAY), "30d": (timedelta(days=30), DAY)}  # span, aligned to
SPREAD_BARS = 26
TABLE_ROWS = 50


@dataclass(frozen=True)
class Query:
    """What the page asks for. ``start`` and ``end`` lie on whole hours or days; ``user`` is a primary key."""

    start: datetime
    end: datetime
    model: str = ""
    source: str = ""
    user: str = ""

    @property
    def period(self) -> str:
        """Of the rollups that make totals: whole days where the span consists of them."""
        return Period.DAY if self.start == _floor(self.start, DAY) and self.end == _floor(self.end, DAY) else Period.HOUR

    @property
    def step(self) -> timedelta:
        """Between the points of a chart."""
        return HOUR if self.end - self.start <= HOURLY_UP_TO else DAY

    @property
    def before(self) -> "Query":
        """The span of the same length just before."""
        return Query(self.start - (self.end - self.start), self.start, self.model, self.source, self.user)

    def rollups(self, kind: str = "", step: timedelta | None = None, split: bool = False) -> QuerySet:
        """Rows of ``kind``; without one, everybody's or the chosen user's, together unless ``split`` by model and source.

        ``step``: by hour or day; else what totals need.
        """
        period = self.period if step is None else Period.HOUR if step == HOUR else Period.DAY
        rows = UsageRollup.objects.filter(period=period, start__gte=self.start, start__lt=self.end)
        if kind:
            rows = rows.filter(kind=kind)
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
    return Query(start, end, **_filters(params))


def _filters(params: dict) -> dict[str, str]:
    model, source, user = (params.get(name, "") for name in ("model", "source", "user"))
    if "\0" in model or len(model) > 200:
        raise InvalidParameter("A model's name has 200 characters at most, and no NUL.")
    if source not in ("", *Generation.Source.values):
        raise InvalidParameter(f"There is no source '{source[:20]}'. Choose one of {', '.join(Generation.Source.values)}.")
    if user and not (user.isascii() and user.isdecimal()):
        raise InvalidParameter(f"'{user[:20]}' is no user. Give the primary key.")
    return {"model": model, "source": source, "user": user}


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
    return moment.replace(hour=0) if step == DAY else moment


# Parts of the page -----------------------------------------------------------------------------------------------------


def summary(query: Query) -> dict:
    """The seven readouts, with the span before for comparison."""
    now, before = _totals(query), _totals(query.before)
    histograms = list(query.rollups().values_list("queue", "ttft", "rate"))
    queue, ttft, rate = (merged(column) for column in zip(*histograms, strict=True)) if histograms else ({}, {}, {})
    users, visitors = (query.rollups(kind).aggregate(n=Count("subject", distinct=True))["n"] for kind in (Kind.USER, Kind.VISITOR))
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
        "links": ShareLink.objects.filter(created_at__gte=query.start, created_at__lt=query.end).count(),
        "views": ShareViews.objects.filter(hour__gte=query.start, hour__lt=query.end).aggregate(n=Sum("views"))["n"] or 0,
    }


def _totals(query: Query) -> dict[str, int]:
    sums = query.rollups().aggregate(**{name: Sum(name) for name in SUMS})
    return {name: value or 0 for name, value in sums.items()}


def _percentiles(histogram: dict[int, int]) -> dict[str, float | None]:
    return {f"p{p}": percentile(histogram, p / 100) for p in (50, 95, 99)}


def _at_least(histogram: dict[int, int]) -> dict[str, float | None]:
    """p95 of a rate: 95 % of requests were at least this fast."""
    return {f"p{p}": percentile(histogram, 1 - p / 100) for p in (50, 95, 99)}


def series(query: Query) -> list[dict]:
    """One entry for each hour or day, also for the empty ones: counts by outcome, tokens, percentiles."""
    cells: dict[datetime, dict] = {}
    at = query.start
    while at < query.end:
        cells[at] = {name: 0 for name in SUMS} | {"queue": {}, "ttft": {}, "rate": {}}
        at += query.step
    for row in query.rollups(step=query.step).values("start", *SUMS, "queue", "ttft", "rate"):
        cell = cells[row["start"]]
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
    """Active users and visitors, and views of links, for each hour of up to two days, else for each day."""
    step = HOUR if query.end - query.start <= PEOPLE_HOURLY_UP_TO else DAY
    count = int((query.end - query.start) / step)
    out = {query.start + step * n: {"start": query.start + step * n, "people": 0, "views": 0} for n in range(count)}
    for kind in [Kind.USER] if query.user else [Kind.USER, Kind.VISITOR]:
        rows = query.rollups(kind, step=step).values("start").annotate(n=Count("subject", distinct=True))
        for row in rows.filter(subject=query.user) if query.user else rows:
            out[row["start"]]["people"] += row["n"]
    for hour, views in ShareViews.objects.filter(hour__gte=query.start, hour__lt=query.end).values_list("hour", "views"):
        out[_floor(hour, step)]["views"] += views
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
    """Errors and stops by kind, most frequent first."""
    counts: dict[tuple[str, str], int] = defaultdict(int)
    for row in query.rollups().values("errors", "stopped"):
        for code, count in row["errors"].items():
            counts[code, "error"] += count
        counts["stopped", "stop"] += row["stopped"]
    rows = [{"name": code, "kind": kind, "requests": count} for (code, kind), count in counts.items() if count]
    return sorted(rows, key=lambda row: -row["requests"])


def table(query: Query, kind: str) -> list[dict]:
    """Use by ``model``, ``user``, ``key``, ``link`` or ``engine``, the busiest first; models and engines also with percentiles."""
    if kind == "model":
        rows, key = query.rollups(split=True), "model"
    elif kind in (Kind.USER, Kind.KEY, Kind.LINK, Kind.ENGINE):
        rows, key = query.rollups(kind), "subject"
        rows = rows.filter(subject=query.user) if query.user and kind == Kind.USER else rows
    else:
        raise InvalidParameter(f"There is no table '{kind[:20]}'. Choose one of model, user, key, link, engine.")
    sums = {name: Sum(name) for name in SUMS}
    top = list(rows.values(key).annotate(**sums).order_by("-requests")[:TABLE_ROWS])
    names = _names(kind, [row[key] for row in top])
    out = [{"id": row[key], "name": names.get(row[key], row[key]), **{name: row[name] for name in SUMS}} for row in top]
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
    if kind == Kind.USER:
        users = get_user_model().objects.filter(pk__in=subjects)
        return {str(user.pk): user.email or user.get_username() for user in users}
    if kind == Kind.LINK:
        return {str(pk): title or "deleted" for pk, title in ShareLink.objects.filter(pk__in=subjects).values_list("pk", "title")}
    if kind == Kind.KEY:
        keys = ApiKey.objects.filter(pk__in=subjects).select_related("user")
        return {str(key.pk): f"{key.name} ({key.prefix}, {key.user})" for key in keys}
    return {}


def link_views(query: Query) -> list[dict]:
    """The most viewed links of the span."""
    views = ShareViews.objects.filter(hour__gte=query.start, hour__lt=query.end)
    rows = views.values("link", "link__title").annotate(views=Sum("views")).order_by("-views")[:TABLE_ROWS]
    return [{"id": str(row["link"]), "name": row["link__title"] or "deleted", "views": row["views"]} for row in rows]


def choices() -> dict:
    """What the filters offer: models, and the users with most requests of the last 30 days."""
    month = query_from({"range": "30d"})
    users = month.rollups(Kind.USER).values("subject").annotate(n=Sum("requests")).order_by("-n")[:TABLE_ROWS]
    names = _names(Kind.USER, [row["subject"] for row in users])
    models = month.rollups(split=True).values_list("model", flat=True).distinct().order_by("model")
    return {"models": list(models), "users": [{"id": row["subject"], "name": names.get(row["subject"], "deleted")} for row in users]}


# Workers now -----------------------------------------------------------------------------------------------------------


def workers() -> dict:
    """Engines of every worker that reports, and the length of the queue. Empty when Redis does not answer."""
    try:
        waiting, reports = streams.queue_length(), streams.workers()
    except redis.RedisError:
        return {"waiting": None, "engines": []}
    engines = [_engine(worker, report, engine) for worker, report in reports.items() for engine in report["engines"]]
    return {"waiting": waiting, "engines": engines}


def _engine(worker: str, report: dict, engine: dict) -> dict:
    info = engine["info"] or {}
    now = _now(engine["generation"]) if engine["generation"] else {}
    left = streams.client().pttl(f"worker:{worker}")
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
        "heartbeat_s": max(0.0, streams.WORKER_TTL_SECONDS - left / 1000) if left > 0 else None,
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
