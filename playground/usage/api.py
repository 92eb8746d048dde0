"""``/api/stats``: the figures of the stats page, each part also as CSV. Staff only."""

import csv
import io
from collections.abc import Callable
from datetime import datetime
from typing import Literal
from uuid import UUID

from django.contrib.auth import get_user_model
from django.http import HttpRequest, HttpResponse
from ninja import Router, Schema

from playground.api.models import ApiKey
from playground.chat.models import Generation
from playground.exceptions import NotFound, PlaygroundError
from playground.sharing.models import ShareLink
from playground.usage import selectors, services

router = Router()


class StaffOnly(PlaygroundError):
    code = "staff_only"
    status = 403


PARTS: dict[str, Callable[[selectors.Query], list | dict]] = {
    "summary": selectors.summary,
    "series": selectors.series,
    "people": selectors.people,
    "spread-rate": lambda query: selectors.spread(query, "rate"),
    "spread-ttft": lambda query: selectors.spread(query, "ttft"),
    "spread-queue": lambda query: selectors.spread(query, "queue"),
    "errors": selectors.errors,
    "models": lambda query: selectors.table(query, "model"),
    "users": lambda query: selectors.table(query, "user"),
    "visitors": lambda query: selectors.table(query, "visitor"),
    "keys": lambda query: selectors.table(query, "key"),
    "links": lambda query: selectors.table(query, "link"),
    "engines": lambda query: selectors.table(query, "engine"),
    "link-views": selectors.link_views,
}


def _check(request: HttpRequest) -> None:
    user = request.owner.user
    if user is None or not user.is_staff:
        raise StaffOnly("This page is for staff.")


@router.get("/workers")
def workers(request: HttpRequest) -> dict:
    _check(request)
    return selectors.workers()


@router.get("/choices")
def choices(request: HttpRequest) -> dict:
    _check(request)
    services.rollup_update()
    return selectors.choices()


@router.get("/{part}")
def part(request: HttpRequest, part: str, format: Literal["json", "csv"] = "json"):
    """``range`` or ``from`` and ``to``, ``by``, ``model``, ``source``, ``user``; ``format=csv`` for a table of the same figures."""
    _check(request)
    if part not in PARTS:
        raise NotFound(f"There is no part '{part[:40]}'. Choose one of {', '.join(PARTS)}.")
    query = selectors.query_from(request.GET.dict())
    services.rollup_update()
    answer = PARTS[part](query)
    if format != "csv":
        return answer
    name = f"{part}-{query.start:%Y-%m-%d}-{query.end:%Y-%m-%d}.csv"
    rows = answer if isinstance(answer, list) else [answer]
    return HttpResponse(to_csv(rows), content_type="text/csv", headers={"Content-Disposition": f'attachment; filename="{name}"'})


def to_csv(rows: list[dict]) -> str:
    """Nested figures get a column each: ``ttft_ms.p95``. A text that a spreadsheet would compute is quoted with an apostrophe."""
    flat = [_flat(row) for row in rows]
    out = io.StringIO()
    writer = csv.DictWriter(out, fieldnames=list(flat[0]) if flat else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(flat)
    return out.getvalue()


def _flat(row: dict, prefix: str = "") -> dict:
    out = {}
    for name, value in row.items():
        if isinstance(value, dict):
            out |= _flat(value, f"{prefix}{name}.")
        elif isinstance(value, datetime):
            out[prefix + name] = value.isoformat()
        elif isinstance(value, str) and value[:1] in tuple("=+-@\t\r\n"):
            out[prefix + name] = f"'{value}"
        else:
            out[prefix + name] = value
    return out


class EngineAct(Schema):
    worker: str
    slot: int


@router.post("/engines/{command}", response={204: None})
def engine_act(request: HttpRequest, command: str, body: EngineAct) -> HttpResponse:
    """``drain``, ``resume`` or ``restart``."""
    _check(request)
    if command not in ("drain", "resume", "restart"):
        raise NotFound("Choose one of drain, resume, restart.")
    if not any((e["worker"], e["slot"]) == (body.worker, body.slot) and e["alive"] for e in selectors.workers()["engines"]):
        raise NotFound("There is no such engine now.")
    services.admin_engine(actor=request.owner.user, command=command, worker=body.worker, slot=body.slot)
    return HttpResponse(status=204)


@router.post("/generations/{uuid:generation_id}/cancel", response={204: None})
def cancel(request: HttpRequest, generation_id: UUID) -> HttpResponse:
    _check(request)
    generation = Generation.objects.filter(pk=generation_id).first()
    if generation is None:
        raise NotFound("There is no such generation.")
    services.admin_cancel(actor=request.owner.user, generation=generation)
    return HttpResponse(status=204)


@router.post("/users/{int:user_id}/block", response={204: None})
def block(request: HttpRequest, user_id: int) -> HttpResponse:
    _check(request)
    user = get_user_model().objects.filter(pk=user_id).first()
    if user is None or user == request.owner.user:
        raise NotFound("There is no such user to block.")
    if user.is_superuser and not request.owner.user.is_superuser:
        raise StaffOnly("Only a superuser may block a superuser.")
    services.admin_block(actor=request.owner.user, user=user)
    return HttpResponse(status=204)


@router.post("/links/{uuid:link_id}/revoke", response={204: None})
def revoke_link(request: HttpRequest, link_id: UUID) -> HttpResponse:
    _check(request)
    link = ShareLink.objects.existing().filter(pk=link_id).first()
    if link is None:
        raise NotFound("There is no such link.")
    services.admin_revoke_link(actor=request.owner.user, link=link)
    return HttpResponse(status=204)


@router.post("/keys/{uuid:key_id}/revoke", response={204: None})
def revoke_key(request: HttpRequest, key_id: UUID) -> HttpResponse:
    _check(request)
    key = ApiKey.objects.filter(pk=key_id).first()
    if key is None:
        raise NotFound("There is no such key.")
    services.admin_revoke_key(actor=request.owner.user, key=key)
    return HttpResponse(status=204)
