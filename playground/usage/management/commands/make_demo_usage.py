"""Fill the database with generations, keys, links and views that look like use, to try and to time the stats page."""

import random
import secrets
import time
import uuid
from datetime import datetime, timedelta

from django.contrib.auth import get_user_model
from django.core.management.base import BaseCommand, CommandParser
from django.db import connection, transaction
from django.utils import timezone

from playground.api.models import ApiKey
from playground.chat.models import Generation
from playground.sharing.models import ShareLink, ShareViews

MODELS = (  # name, share of requests, tokens/s, device, GPUs, engine
    ("laneformer-2b", 0.6, 950.0, "NVIDIA H200", 1, "gpu-a/0"),
    ("llama-3.2-1b", 0.25, 1800.0, "NVIDIA H200", 2, "gpu-b/0"),
    ("smollm2-135m-instruct", 0.15, 46.0, "CPU, 2 threads", 0, "cpu-1/0"),
)
ERRORS = (("engine_stopped", "interrupted"), ("invalid_numbers", "failed"), ("internal", "failed"))
BATCH = 5000
WEIGHTS = [share for _, share, *_ in MODELS]
FIELDS = (
    *("id", "visitor_id", "created_at", "started_at", "finished_at"),
    *(
        "user_id",
        "api_key_id",
        "share_link_id",
        "source",
        "model",
        "state",
        "finish_reason",
        "error_code",
        "prompt_tokens",
        "completion_tokens",
    ),
    *("queue_ms", "ttft_ms", "total_ms", "decode_tokens_per_s", "worker", "engine", "backend", "device", "gpus", "precision"),
    *("params", "request", "trace"),
)
REST = [f for f in Generation._meta.concrete_fields if f.column not in FIELDS and not f.null]  # get their defaults
COLUMNS = [*FIELDS, *(field.column for field in REST)]
INSERT = f"INSERT INTO {Generation._meta.db_table} ({', '.join(COLUMNS)}) VALUES ({', '.join(['%s'] * len(COLUMNS))})"


class Command(BaseCommand):
    help = "Make generations of the last days, with a daily rhythm. For empty databases: it asks for --yes when there are any."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--count", type=int, default=1_000_000)
        parser.add_argument("--days", type=int, default=30)
        parser.add_argument("--users", type=int, default=40)
        parser.add_argument("--visitors", type=int, default=2000)
        parser.add_argument("--seed", type=int, default=1)
        parser.add_argument("--yes", action="store_true", help="Add to a database that has generations.")

    def handle(self, *args, count: int, days: int, users: int, visitors: int, seed: int, yes: bool, **options) -> None:
        if Generation.objects.exists() and not yes:
            self.stderr.write("There are generations already; nothing was made. Add --yes to mix these in.")
            return
        started, chance = time.monotonic(), random.Random(seed)
        now = timezone.now()
        accounts = _users(users)
        links = _links(chance, accounts, now, days)
        people = [(user.pk, key, None) for user, key in zip(accounts, _keys(accounts), strict=True)]
        people += [(None, None, uuid.UUID(int=chance.getrandbits(128))) for _ in range(visitors)]
        for first in range(0, count, BATCH):
            rows = [_row(chance, people, links, now, days) for _ in range(min(BATCH, count - first))]
            with transaction.atomic(), connection.cursor() as cursor:
                cursor.executemany(INSERT, rows)
            if first % 100_000 == 0:
                self.stdout.write(f"{first:,} of {count:,}", ending="\r")
        self.stdout.write(f"Made {count:,} generations in {time.monotonic() - started:.0f} s. Next: manage.py rollup_usage --rebuild")


def _users(count: int) -> list:
    model = get_user_model()
    names = [f"demo-{n}" for n in range(count)]
    model.objects.bulk_create([model(username=name, email=f"{name}@example.org") for name in names], ignore_conflicts=True)
    return list(model.objects.filter(username__in=names))


def _keys(users: list) -> list[uuid.UUID]:
    """One for each; nobody knows its secret."""
    keys = [ApiKey(user=user, name="demo", prefix="mk-demo", digest=secrets.token_hex(32), scopes=["generate"]) for user in users]
    return [key.pk for key in ApiKey.objects.bulk_create(keys)]


def _links(chance: random.Random, users: list, now: datetime, days: int) -> list[uuid.UUID]:
    """One for each user, revoked, with views in every hour."""
    links = ShareLink.objects.bulk_create(ShareLink(user=user, title=f"Demo of {user}", revoked_at=now) for user in users)
    first = now.replace(minute=0, second=0, microsecond=0) - timedelta(days=days)
    hours = [first + timedelta(hours=n) for n in range(days * 24)]
    ShareViews.objects.bulk_create(ShareViews(link=link, hour=hour, views=chance.randrange(1, 20)) for link in links for hour in hours)
    return [link.pk for link in links]


def _row(chance: random.Random, people: list, links: list, now: datetime, days: int) -> tuple:
    """Values of ``FIELDS``."""
    user, key, visitor = people[min(int(chance.expovariate(12) * len(people)), len(people) - 1)]
    name, _, speed, device, gpus, engine = chance.choices(MODELS, WEIGHTS)[0]
    created = now - timedelta(seconds=chance.random() * days * 86_400)
    while chance.random() > 0.35 + 0.65 * max(0.0, 1 - abs(created.hour - 14) / 10):
        created = now - timedelta(seconds=chance.random() * days * 86_400)
    prompt, tokens = int(chance.lognormvariate(5.3, 0.8)), max(1, int(chance.lognormvariate(6, 0.8)))
    queue, ttft = chance.lognormvariate(1.2, 1.4), 12 + prompt * 0.04 + chance.lognormvariate(1, 0.6)
    rate = speed * chance.gauss(1, 0.015) * (0.9 if chance.random() < 0.01 else 1)
    state, finish, error, luck = "done", "stop", "", chance.random()
    if luck < 0.01:
        error, state = chance.choice(ERRORS)
        finish, tokens = "interrupted" if state == "interrupted" else "", int(tokens * chance.random())
    elif luck < 0.07:
        state, finish, tokens = "stopped", "cancelled", max(1, int(tokens * chance.random()))
    elif luck < 0.2:
        finish = "length"
    total = ttft + tokens / rate * 1000
    started, finished = created + timedelta(milliseconds=queue), created + timedelta(milliseconds=queue + total)
    api = key is not None and chance.random() < 0.3
    link = chance.choice(links) if links and chance.random() < 0.1 else None
    return (
        *(_uuid(value) for value in (uuid.UUID(int=chance.getrandbits(128)), visitor)),
        *(_moment(value) for value in (created, started, finished)),
        *(
            user,
            _uuid(key if api else None),
            _uuid(None if api else link),
            "api" if api else "web",
            name,
            state,
            finish,
            error,
            prompt,
            tokens,
        ),
        *(queue, ttft if tokens else None, total, rate if tokens > 1 else None),
        *(engine.split("/")[0], f"0/{name}", "monokernel" if gpus else "torch", device, gpus, "float16" if gpus else "float32"),
        *("{}", "{}", "[]"),
        *(field.get_db_prep_save(field.get_default(), connection) for field in REST),
    )


def _uuid(value: uuid.UUID | None) -> str | uuid.UUID | None:
    return value if value is None or connection.features.has_native_uuid_field else value.hex


def _moment(value: datetime) -> str | datetime:
    return value if connection.vendor == "postgresql" else value.replace(tzinfo=None).isoformat(" ", "microseconds")
