"""Liveness and readiness for people, supervisors and load balancers."""

import redis
from django.conf import settings
from django.db import DatabaseError, connection
from django.http import HttpRequest, JsonResponse
from redis.backoff import NoBackoff
from redis.retry import Retry

from playground import engine_client

REDIS_SECONDS = 3.0  # who asks for readiness wants to know soon


def healthz(request: HttpRequest) -> JsonResponse:
    """The process is up."""
    return JsonResponse({"status": "ok"})


def readyz(request: HttpRequest) -> JsonResponse:
    """200 when the database, Redis and an engine for each model answer; otherwise 503. The body says which does not."""
    parts = {"database": _database(), "redis": _redis()}
    parts["engine"] = _engine() if parts["redis"] == "ok" else "unknown: Redis does not answer"
    ready = all(state == "ok" for state in parts.values())
    return JsonResponse({"status": "ok" if ready else "unavailable", **parts}, status=200 if ready else 503)


def _database() -> str:
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1")
    except DatabaseError:
        return "does not answer"
    return "ok"


def _redis() -> str:
    try:
        with redis.Redis.from_url(settings.REDIS_URL, socket_timeout=REDIS_SECONDS, retry=Retry(NoBackoff(), 0)) as client:
            client.ping()
    except redis.RedisError:
        return "does not answer"
    return "ok"


def _engine() -> str:
    waiting = [card.name for card in engine_client.model_cards() if not card.ready]
    return f"not ready: {', '.join(waiting)}" if waiting else "ok"
