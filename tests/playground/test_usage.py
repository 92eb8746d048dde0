"""Usage: every generation counted once, rollups equal to the rows, percentiles, access, admin acts, metrics, retention."""

import random
import re
import threading
import uuid
from collections import Counter
from datetime import UTC, datetime, timedelta
from itertools import product

import pytest
from asgiref.sync import async_to_sync
from django.contrib.auth import get_user_model
from django.core.management import CommandError, call_command
from django.db import connection
from django.test import Client
from django.utils import timezone

from playground import streams
from playground.accounts.models import SiteSettings
from playground.accounts.services import account_claim
from playground.api.services import key_create
from playground.chat.models import Conversation, Generation
from playground.chat.services import generation_cancel, generation_create, generations_reap
from playground.config import BASE_DIR, config
from playground.identity import Owner
from playground.schemas import ChatMessage, Params
from playground.usage import selectors, services
from playground.usage.histograms import bucket_of, percentile
from playground.usage.models import AuditEntry, StaleHour, UsageRollup
from tests.playground.conftest import wait_for
from tests.playground.test_sharing import browser, chat, share

User = get_user_model()
KEYS = ("period", "start", *services.KEY, *services.FIGURES)


@pytest.fixture
def admin(db):
    return User.objects.create_superuser("root", "root@example.org", "pw")


@pytest.fixture
def staff(admin) -> Client:
    return browser(Owner(user=admin))


def ended(count: int, seed: int = 0, **fields) -> None:
    """Generations of three days with random figures."""
    chance = random.Random(seed)
    first = datetime(2026, 11, 20, tzinfo=UTC)
    states = ["done"] * 8 + ["stopped", "failed"]
    Generation.objects.bulk_create(
        Generation(
            visitor_id=uuid.UUID(int=chance.randrange(5)),
            model=chance.choice(["a", "b"]),
            source=chance.choice(["web", "api"]),
            state=(state := chance.choice(states)),
            finish_reason={"done": "stop", "stopped": "cancelled"}.get(state, ""),
            error_code="internal" if state == "failed" else "",
            prompt_tokens=chance.randrange(500),
            completion_tokens=chance.randrange(900),
            queue_ms=chance.lognormvariate(1, 1),
            ttft_ms=chance.lognormvariate(3, 0.5),
            total_ms=chance.lognormvariate(6, 0.5),
            decode_tokens_per_s=chance.gauss(950, 20),
            worker="host-1",
            engine="0/a",
            created_at=first + timedelta(seconds=chance.randrange(3 * 86_400)),
            finished_at=timezone.now(),
            **fields,
        )
        for _ in range(count)
    )


def stored() -> Counter:
    """Every rollup as a comparable value."""
    rows = UsageRollup.objects.values(*KEYS)
    return Counter(str([sorted(v.items()) if isinstance(v, dict) else v for v in row.values()]) for row in rows)


def assert_rollups_equal_rows() -> None:
    rows = Generation.objects.exclude(state__in=Generation.ACTIVE)
    for period, kind in product(("hour", "day"), ("total", "all")):
        rollups = UsageRollup.objects.filter(kind=kind, period=period)
        assert sum(r.requests for r in rollups) == rows.count()
        for state in ("done", "stopped", "interrupted", "failed"):
            assert sum(getattr(r, state) for r in rollups) == rows.filter(state=state).count(), state
        for name in ("prompt_tokens", "completion_tokens"):
            assert sum(getattr(r, name) for r in rollups) == sum(rows.values_list(name, flat=True)), name
        wanted = Counter(bucket_of(v) for v in rows.values_list("ttft_ms", flat=True) if v is not None)
        counted = sum((Counter({int(b): n for b, n in r.ttft.items()}) for r in rollups), Counter())
        assert counted == wanted
        errors = sum((Counter(r.errors) for r in rollups), Counter())
        assert errors == Counter(rows.exclude(error_code="").values_list("error_code", flat=True))


def ask(owner: Owner, tokens: int = 5) -> Generation:
    return generation_create(owner=owner, params=Params(max_tokens=tokens), messages=[ChatMessage(role="user", content="Hello")])


@pytest.mark.django_db(transaction=True)
def test_rollups_equal_the_rows_after_stops_errors_and_a_killed_worker(worker, fake_engine, owner) -> None:
    state_of = lambda g: Generation.objects.get(pk=g.pk).state  # noqa: E731
    answered = [ask(owner) for _ in range(3)]
    wait_for(lambda: all(state_of(g) == "done" for g in answered))
    services.rollup_update(force=True)
    fake_engine.seconds_per_token = 0.02
    stopped = ask(owner, tokens=1000)
    wait_for(lambda: state_of(stopped) == "running")
    generation_cancel(generation=stopped)
    wait_for(lambda: state_of(stopped) == "stopped")
    waiting = ask(owner, tokens=1000)
    wait_for(lambda: state_of(waiting) == "running")
    killed = ask(owner)  # as if its worker had died: running, with an owner that does not report
    Generation.objects.filter(pk=killed.pk).update(state="running", worker="dead-host-1")
    fake_engine.alive = False  # the engine dies under the running one
    wait_for(lambda: state_of(waiting) in ("failed", "interrupted"))
    wait_for(lambda: generations_reap() or state_of(killed) == "interrupted", seconds=20)
    services.rollup_update(force=True)
    assert_rollups_equal_rows()
    assert UsageRollup.objects.filter(kind="visitor", subject=str(owner.visitor_id), period="day", model="").get().requests == 6
    incremental = stored()
    services.rollup_rebuild()
    assert stored() == incremental


@pytest.mark.django_db
def test_updates_in_pieces_equal_a_rebuild() -> None:
    for seed in range(3):
        ended(400, seed)
        services.rollup_update(force=True)
    pieces = stored()
    assert services.rollup_rebuild() == 1200
    assert stored() == pieces
    assert_rollups_equal_rows()


@pytest.mark.django_db
def test_rollups_equal_a_rebuild_after_a_claim_and_a_deletion(empty_redis, owner) -> None:
    user = User.objects.create_user("ines", "ines@example.org", "pw")
    key, _ = key_create(user=user, name="editor")
    ended(300)
    visitor = uuid.UUID(int=3)
    of_visitor = Generation.objects.filter(visitor_id=visitor).count()
    services.rollup_update(force=True)

    account_claim(user=user, visitor_id=visitor)
    Generation.objects.filter(user=user, source="api").update(api_key=key)
    services.rollup_update(force=True)
    claimed = stored()
    assert not UsageRollup.objects.filter(kind="visitor", subject=str(visitor)).exists()
    assert sum(r.requests for r in UsageRollup.objects.filter(kind="user", subject=str(user.pk), period="day")) == of_visitor
    services.rollup_rebuild()
    assert stored() == claimed

    user.delete()
    services.rollup_update(force=True)
    deleted = stored()
    assert not UsageRollup.objects.filter(kind__in=["user", "key"]).exists()
    assert_rollups_equal_rows()
    services.rollup_rebuild()
    assert stored() == deleted


@pytest.mark.django_db
def test_a_page_makes_only_some_of_the_outdated_hours_anew(monkeypatch) -> None:
    ended(300)
    services.rollup_update(force=True)
    services.rollups_outdate(Generation.objects.all())
    hours = StaleHour.objects.count()
    monkeypatch.setattr(services, "FRESH", timedelta(0))
    monkeypatch.setattr(services, "OVERLAP", timedelta(0))
    monkeypatch.setattr(services, "STALE_AT_ONCE", 5)
    assert services.rollup_update() == 5 and StaleHour.objects.count() == hours - 5
    assert services.rollup_update(force=True) == hours - 5 and not StaleHour.objects.exists()


@pytest.mark.django_db
def test_the_peak_of_the_queue_is_the_most_that_waited_at_once(empty_redis, staff) -> None:
    def waited(start_s: float, seconds: float | None, end_s: float = 99) -> None:
        at = datetime(2026, 11, 20, 13, tzinfo=UTC) + timedelta(seconds=start_s)
        state, queue_ms = ("stopped", None) if seconds is None else ("done", seconds * 1000)
        until = at + timedelta(seconds=end_s)
        Generation.objects.create(model="a", state=state, created_at=at, queue_ms=queue_ms, finished_at=until)

    waited(0, 10)
    waited(5, 10)
    waited(9, None, end_s=20)  # stopped before an engine took it
    waited(10, 1)  # the first has just left
    waited(3000, 1)
    summary = staff.get("/api/stats/summary?from=2026-11-20&to=2026-11-20").json()
    assert summary["peak_waiting"] == 3
    assert staff.get("/api/stats/summary?from=2026-11-20&to=2026-11-20&model=a").json()["peak_waiting"] is None


@pytest.mark.django_db
def test_the_check_names_a_sum_that_differs(capsys) -> None:
    ended(100)
    call_command("rollup_usage", "--check")
    assert "differs" not in capsys.readouterr().out
    row = UsageRollup.objects.filter(kind="all", period="day").first()
    UsageRollup.objects.filter(pk=row.pk).update(completion_tokens=row.completion_tokens + 1)
    with pytest.raises(CommandError, match="--rebuild"):
        call_command("rollup_usage", "--check")
    assert re.findall(r"(\w+) .*differs", capsys.readouterr().out) == ["completion_tokens"]
    call_command("rollup_usage", "--rebuild", "--check")


@pytest.mark.django_db
def test_an_update_writes_only_what_changed() -> None:
    ended(600)
    services.rollup_update(force=True)
    before = set(UsageRollup.objects.values_list("pk", flat=True))
    ended(1, seed=9)
    services.rollup_update(force=True)
    after = set(UsageRollup.objects.values_list("pk", flat=True))
    assert len(after - before) == 9  # total, all, visitor and engine, of an hour and of its day; the visitor's day together
    services.rollup_update(force=True)
    assert set(UsageRollup.objects.values_list("pk", flat=True)) == after


@pytest.mark.django_db(transaction=True)
def test_processes_that_roll_up_at_once_do_not_disturb_each_other() -> None:
    ended(600)
    errors: list[Exception] = []

    def update() -> None:
        try:
            services.rollup_update(force=True)
        except Exception as error:
            errors.append(error)
        finally:
            connection.close()

    threads = [threading.Thread(target=update) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert_rollups_equal_rows()


@pytest.mark.django_db
def test_a_generation_that_ends_later_is_counted_in_the_hour_of_its_request() -> None:
    at = datetime(2026, 11, 20, 13, 59, tzinfo=UTC)
    late = Generation.objects.create(model="a", state="running", created_at=at)
    services.rollup_update(force=True)
    assert not UsageRollup.objects.exists()
    Generation.objects.filter(pk=late.pk).update(state="done", finished_at=timezone.now())
    services.rollup_update(force=True)
    services.rollup_update(force=True)
    hour = UsageRollup.objects.get(kind="all", period="hour")
    assert (hour.start.hour, hour.requests) == (13, 1)


def test_percentiles_of_the_histogram_are_within_two_and_a_half_per_cent() -> None:
    chance = random.Random(4)
    values = sorted(chance.lognormvariate(3, 1.2) for _ in range(20_000))
    histogram = Counter(map(bucket_of, values))
    for part in (0.01, 0.05, 0.5, 0.95, 0.99):
        assert percentile(histogram, part) == pytest.approx(values[int(part * len(values))], rel=0.025)
    assert percentile({}, 0.5) is None


@pytest.mark.django_db
def test_the_pages_figures_come_from_the_span_and_filters_asked_for(empty_redis, staff) -> None:
    ended(600)
    every = staff.get("/api/stats/summary?from=2026-11-20&to=2026-11-22").json()
    assert every["requests"] == 600 and every["visitors"] == 5
    some = staff.get("/api/stats/summary?from=2026-11-20&to=2026-11-22&model=a&source=api").json()
    assert some["requests"] == Generation.objects.filter(model="a", source="api").count()
    one_day = staff.get("/api/stats/series?from=2026-11-21&to=2026-11-21").json()
    assert len(one_day) == 24 and sum(h["requests"] for h in one_day) == Generation.objects.filter(created_at__day=21).count()
    assert every["rate"]["p95"] < every["rate"]["p50"] < 1000  # p95 of a rate: 95 % were at least this fast
    assert {row["name"]: row["requests"] for row in staff.get("/api/stats/models?from=2026-11-20&to=2026-11-22").json()} == dict(
        Counter(Generation.objects.values_list("model", flat=True))
    )
    errors = staff.get("/api/stats/errors?from=2026-11-20&to=2026-11-22").json()
    assert {row["name"]: row["requests"] for row in errors} == {
        "internal": Generation.objects.filter(state="failed").count(),
        "stopped": Generation.objects.filter(state="stopped").count(),
    }
    spread = staff.get("/api/stats/spread-rate?from=2026-11-20&to=2026-11-22").json()
    assert sum(bar["count"] for bar in spread) >= 0.99 * 600


@pytest.mark.django_db
@pytest.mark.parametrize("by, points", [("hour", 96), ("day", 4), ("week", 2)])
def test_charts_by_hour_day_and_week_add_up_to_the_same(empty_redis, staff, by: str, points: int) -> None:
    ended(600)  # Friday the 20th to Sunday the 22nd
    span = f"from=2026-11-20&to=2026-11-23&by={by}"  # up to Monday
    series = staff.get(f"/api/stats/series?{span}").json()
    assert len(series) == points and sum(point["requests"] for point in series) == 600
    assert series[0]["start"].startswith({"week": "2026-11-16"}.get(by, "2026-11-20"))
    people = staff.get(f"/api/stats/people?{span}").json()
    assert len(people) == points and max(point["people"] for point in people) == 5
    some = staff.get(f"/api/stats/people?{span}&model=a&source=api").json()
    assert len(some) == points and max(point["people"] for point in some) <= 5


@pytest.mark.django_db
@pytest.mark.parametrize("by", ["", "hour", "day", "week"])
def test_the_last_24_hours_keep_their_sum_in_every_step(empty_redis, staff, by: str) -> None:
    ended(50)
    Generation.objects.update(created_at=timezone.now() - timedelta(hours=20))
    asked = staff.get("/api/stats/summary?range=24h").json()["requests"]
    assert asked == 50
    for part, name in (("series", "requests"), ("people", "people")):
        points = staff.get(f"/api/stats/{part}?range=24h&by={by}").json()
        assert sum(point[name] for point in points) == (asked if name == "requests" else 5)


@pytest.mark.django_db
def test_visitors_have_a_table_of_their_own(empty_redis, staff) -> None:
    ended(300)
    rows = staff.get("/api/stats/visitors?from=2026-11-20&to=2026-11-22").json()
    asked = Counter(str(v) for v in Generation.objects.values_list("visitor_id", flat=True))
    assert {row["id"]: row["requests"] for row in rows} == asked
    assert rows[0]["name"] == f"visitor {rows[0]['id'][:8]}" and rows[0]["requests"] == max(asked.values())
    some = staff.get("/api/stats/visitors?from=2026-11-20&to=2026-11-22&model=a").json()
    assert sum(row["requests"] for row in some) == Generation.objects.filter(model="a").count()


@pytest.mark.django_db
def test_the_read_bound_is_that_of_the_one_model_shown(empty_redis, staff) -> None:
    ended(40)
    name = config.model_names[0]
    Generation.objects.filter(model="a").update(model=name)
    info = {"title": "T", "context_tokens": 2048, "parameters": 1, "dtype": "float16", "device": "NVIDIA H200", "gpus": 1}
    info |= {
        "backend": "monokernel",
        "bytes_per_token": 4_000_000,
        "datasheet_bytes_per_s": None,
        "measured_bytes_per_s": 4e9,
        "driver": None,
    }
    engine = {"model": name, "state": "ready", "info": info, "slot": 0}
    streams.worker_beat("w", {"host": "h", "holds": [], "engines": [engine]})
    span = "from=2026-11-20&to=2026-11-22"
    assert staff.get(f"/api/stats/summary?{span}").json()["read_bound"] is None  # two models
    assert staff.get(f"/api/stats/summary?{span}&model={name}").json()["read_bound"] == 1000
    assert staff.get(f"/api/stats/summary?{span}&model=b").json()["read_bound"] is None


@pytest.mark.django_db
def test_a_worker_that_vanishes_is_shown_for_a_while_and_takes_no_acts(empty_redis, staff) -> None:
    engine = {"slot": 0, "engine": "0/a", "model": "a", "state": "ready", "fraction": 1, "detail": "", "generation": None, "info": None}
    for name in ("lost-1", "left-1"):
        streams.worker_beat(name, {"host": name, "holds": [], "engines": [engine]})
    streams.worker_gone("left-1")  # said goodbye
    empty_redis.delete("worker:lost-1")  # its heartbeat ran out
    empty_redis.pexpire("worker:lost-1:seen", 90_000)
    (shown,) = staff.get("/api/stats/workers").json()["engines"]
    assert (shown["worker"], shown["alive"]) == ("lost-1", False) and 29 < shown["heartbeat_s"] < 31
    body = {"worker": "lost-1", "slot": 0}
    assert staff.post("/api/stats/engines/drain", body, content_type="application/json").status_code == 404
    empty_redis.delete("worker:lost-1:seen")
    assert staff.get("/api/stats/workers").json()["engines"] == []


@pytest.mark.django_db
def test_every_part_is_also_csv_and_no_cell_is_a_formula(empty_redis, staff) -> None:
    ended(50)
    Generation.objects.update(model="=HYPERLINK(1)")
    for part in ("summary", "series", "models", "users", "visitors", "links", "engines", "errors", "spread-rate"):
        answer = staff.get(f"/api/stats/{part}?from=2026-11-20&to=2026-11-22&format=csv")
        assert answer["Content-Type"].startswith("text/csv") and "attachment" in answer["Content-Disposition"]
    lines = staff.get("/api/stats/models?from=2026-11-20&to=2026-11-22&format=csv").content.decode().splitlines()
    assert lines[0].startswith("id,name,requests") and lines[1].startswith("'=HYPERLINK(1)")
    assert "ttft_ms.p95" in staff.get("/api/stats/series?range=24h&format=csv").content.decode().splitlines()[0]


@pytest.mark.django_db
def test_stats_are_for_staff(empty_redis, owner) -> None:
    user = User.objects.create_user("ines", "ines@example.org", "pw")
    for client in (browser(owner), browser(Owner(user=user))):
        assert client.get("/api/stats/summary").status_code == 403
        assert client.get("/api/stats/workers").status_code == 403
        assert client.post("/api/stats/engines/drain", {"worker": "w", "slot": 0}, content_type="application/json").status_code == 403
        assert client.get("/stats/").status_code in (302, 403)


@pytest.mark.django_db
@pytest.mark.parametrize(
    "query, words",
    [
        ("range=1y", "24h, 7d, 30d"),
        ("from=x&to=y", "no date"),
        ("from=2026-11-01", "no date"),
        ("from=2026-11-02&to=2026-11-01", "must not"),
        ("from=0001-01-01&to=0001-01-02", "2000-01-01 and 2999"),
        ("from=9999-12-31&to=9999-12-31", "2000-01-01 and 2999"),
        ("source=telnet", "web, api"),
        ("user=ines", "primary key"),
        ("model=%00", "no NUL"),
        ("by=month", "hour, day, week"),
        ("range=30d&by=hour", "8 days can be shown; these are 30"),
    ],
)
def test_a_bad_filter_names_what_is_wrong(empty_redis, staff, query: str, words: str) -> None:
    refused = staff.get(f"/api/stats/summary?{query}")
    assert refused.status_code == 400 and words in refused.json()["message"]


@pytest.mark.django_db(transaction=True)
def test_admins_drain_resume_and_restart_an_engine(engines, fake_engine, staff) -> None:
    def engine() -> dict:
        return staff.get("/api/stats/workers").json()["engines"][0]

    def act(command: str) -> None:
        body = {"worker": engine()["worker"], "slot": 0}
        assert staff.post(f"/api/stats/engines/{command}", body, content_type="application/json").status_code == 204

    act("drain")
    wait_for(lambda: engine()["draining"])
    with pytest.raises(AssertionError, match="in time"):
        wait_for(lambda: engines._free_slot("smollm2-135m-instruct"), seconds=0.3)
    act("resume")
    wait_for(lambda: not engine()["draining"] and engines._free_slot("smollm2-135m-instruct"))
    first = engines.slots[0].members["smollm2-135m-instruct"].engine
    loads = []
    engines._factory = lambda *_: loads.append(1) or first
    act("restart")
    wait_for(lambda: loads and engine()["state"] == "ready")
    assert engine()["memory"]["used"] > 0 and engine()["heartbeat_s"] < 5
    assert [e.action for e in AuditEntry.objects.order_by("at")] == ["drain engine", "resume engine", "restart engine"]


@pytest.mark.django_db
def test_acts_on_what_is_not_there_or_above_one_are_refused(empty_redis, staff, admin) -> None:
    helper = browser(Owner(user=User.objects.create_user("helper", "helper@example.org", "pw", is_staff=True)))
    assert helper.post(f"/api/stats/users/{admin.pk}/block").status_code == 403
    body = {"worker": "nobody-1", "slot": 0}
    assert staff.post("/api/stats/engines/drain", body, content_type="application/json").status_code == 404
    admin.refresh_from_db()
    assert admin.is_active and not AuditEntry.objects.exists()


@pytest.mark.django_db
def test_admin_acts_take_effect_and_stand_in_the_audit_log(empty_redis, staff, admin, owner) -> None:
    conversation = chat(owner)
    link = share(browser(owner), conversation)
    queued = Generation.objects.create(model="a", **owner.fields())
    user = User.objects.create_user("ines", "ines@example.org", "pw")
    assert staff.post(f"/api/stats/generations/{queued.pk}/cancel").status_code == 204
    assert staff.post(f"/api/stats/users/{user.pk}/block").status_code == 204
    assert staff.post(f"/api/stats/users/{admin.pk}/block").status_code == 404  # not oneself
    assert staff.post(f"/api/stats/links/{link['id']}/revoke").status_code == 204
    key, _ = key_create(user=user, name="editor")
    assert staff.post(f"/api/stats/keys/{key.pk}/revoke").status_code == 204
    key.refresh_from_db()
    assert key.revoked_at
    queued.refresh_from_db()
    user.refresh_from_db()
    assert queued.state == "stopped" and not user.is_active and Client().get(link["url"]).status_code == 410
    entries = AuditEntry.objects.order_by("at").values_list("actor_name", "action", "target")
    assert list(entries) == [
        ("root", "cancel generation", str(queued.pk)),
        ("root", "block user", "ines"),
        ("root", "revoke link", link["id"]),
        ("root", "revoke key", str(key.pk)),
    ]


@pytest.mark.django_db
def test_metrics_have_the_shape_that_prometheus_reads(empty_redis, settings) -> None:
    from prometheus_client.parser import text_string_to_metric_families

    ended(300)
    streams.queue_add(uuid.uuid4())
    text = Client().get("/metrics").content.decode()
    families = {family.name: family for family in text_string_to_metric_families(text)}
    tokens = sum(s.value for s in families["playground:generation_tokens"].samples if s.name.endswith("_total"))
    assert tokens == sum(Generation.objects.values_list("completion_tokens", flat=True))
    ttft = families["playground:time_to_first_token_seconds"].samples
    counts = [s.value for s in ttft if s.name.endswith("_bucket") and s.labels["model_name"] == "a"]
    assert counts == sorted(counts) and counts[-1] == Generation.objects.filter(model="a").count()
    assert families["playground:num_requests_waiting"].samples[0].value == 1
    again = {f.name: f for f in text_string_to_metric_families(Client().get("/metrics").content.decode())}
    assert again["playground:generation_tokens"].samples == families["playground:generation_tokens"].samples


@pytest.mark.django_db
def test_metrics_are_not_for_everybody(empty_redis, monkeypatch, staff) -> None:
    from playground.config import config

    assert Client(REMOTE_ADDR="203.0.113.9").get("/metrics").status_code == 403
    assert Client(headers={"X-Forwarded-For": "203.0.113.9"}).get("/metrics").status_code == 403
    assert staff.get("/metrics", REMOTE_ADDR="203.0.113.9").status_code == 200
    monkeypatch.setattr(config, "metrics_token", "scrape-me")
    assert Client().get("/metrics").status_code == 403
    assert Client(headers={"Authorization": "Bearer scrape-me"}).get("/metrics").status_code == 200


@pytest.mark.django_db
def test_retention_deletes_texts_and_links_and_keeps_figures(empty_redis, owner) -> None:
    conversation = chat(owner)
    link = share(browser(owner), conversation)
    recent = chat(owner, title="Recent")
    Conversation.objects.filter(pk=conversation.pk).update(updated_at=timezone.now() - timedelta(days=40))
    Generation.objects.update(finished_at=timezone.now())
    services.rollup_update(force=True)
    before = stored()
    assert services.retention_apply() == 0  # no limit is set
    SiteSettings(text_retention_days=30).save()
    call_command("apply_retention")
    assert list(Conversation.objects.all()) == [recent]
    assert Client().get(link["url"]).status_code == 410
    services.rollup_rebuild()
    assert stored() == before


@pytest.mark.django_db
def test_demo_usage_fills_every_part_of_the_page(empty_redis, staff) -> None:
    call_command("make_demo_usage", count=500, days=3, users=3, visitors=20)
    call_command("rollup_usage", rebuild=True)
    assert_rollups_equal_rows()
    for part in ("series", "models", "users", "engines", "errors", "spread-rate", "spread-ttft", "spread-queue"):
        assert staff.get(f"/api/stats/{part}?range=7d").json(), part
    assert staff.get("/api/stats/choices").json()["models"] == ["laneformer-2b", "llama-3.2-1b", "smollm2-135m-instruct"]
    user = staff.get("/api/stats/choices").json()["users"][0]
    own = staff.get(f"/api/stats/summary?range=30d&user={user['id']}").json()
    assert own["requests"] == Generation.objects.filter(user_id=user["id"]).count() and own["users"] == 1


@pytest.mark.django_db
def test_a_model_is_offered_as_a_filter_as_soon_as_it_has_answered(empty_redis, staff, owner) -> None:
    Generation.objects.create(model="fresh", state="done", finished_at=timezone.now(), **owner.fields())
    assert staff.get("/api/stats/choices").json()["models"] == ["fresh"]


@pytest.mark.django_db
def test_an_answer_of_a_fork_is_counted_for_its_link(empty_redis, owner) -> None:
    link = share(browser(owner), chat(owner))
    viewer = Owner(visitor_id=uuid.uuid4())
    forked = browser(viewer).post(f"/api/links/fork/{link['url'][3:]}", content_type="application/json").json()
    asked = [ChatMessage(role="user", content="Go on")]
    made = generation_create(owner=viewer, params=Params(), messages=asked, conversation_id=uuid.UUID(forked["conversation_id"]))
    generation_cancel(generation=made)
    services.rollup_update(force=True)
    assert UsageRollup.objects.get(kind="link", period="day").subject == link["id"]
    span = selectors.query_from({"range": "24h"})
    assert selectors.table(span, "link")[0]["name"] == "Cheapest path"


@pytest.mark.django_db
def test_the_dashboard_asks_only_for_metrics_that_exist(empty_redis) -> None:
    from prometheus_client.parser import text_string_to_metric_families

    ended(50)
    text = Client().get("/metrics").content.decode()
    names = {family.name for family in text_string_to_metric_families(text)}
    dashboard = (BASE_DIR / "docs" / "grafana-dashboard.json").read_text()
    asked = {re.sub("_(bucket|count|total)$", "", name) for name in re.findall(r"playground:[a-z0-9_]+", dashboard)}
    assert len(asked) > 8 and asked <= names


@pytest.mark.django_db(transaction=True)
def test_refused_requests_are_counted_by_reason_at_every_door(worker, staff, admin, owner) -> None:
    """Too long, out of range, over a quota; the figures of answers stay as they are, and filters hold."""
    from tests.playground.conftest import Client as Socket
    from tests.playground.test_api import CHAT, MODEL, Api

    async def ask() -> None:
        async with Socket(owner) as client:
            assert (await client.generate("word " * 3000))["code"] == "prompt_too_long"
            assert (await client.generate(params={"temperature": 9}))["code"] == "invalid_request"
            assert (await client.generate("x" * 6_000_000))["code"] == "message_too_large"
            assert (await client.generate(params={"max_tokens": 1}))["type"] == "accepted"
            await client.to_end()
            await client.send({"type": "resume", "generation_id": str(uuid.uuid4())})  # no request for an answer
            assert (await client.receive("error"))["code"] == "not_found"

    async_to_sync(ask)()
    key, secret = key_create(user=admin, name="limited")
    api = Api(secret)
    statuses = [
        api.post("chat/completions", CHAT | more).status_code for more in ({"temperature": 9}, {"model": "gpt-9"}, {"messages": []})
    ]
    statuses.append(api.post("chat/completions", CHAT | {"top_logprobs": 2}).status_code)
    statuses.append(api.post("chat/completions", b"{").status_code)
    key.requests_per_minute = 1
    key.save()
    statuses += [api.post("chat/completions", CHAT | {"max_tokens": 1}).status_code for _ in range(3)]
    assert statuses == [400, 404, 400, 400, 400, 200, 429, 429]
    assert api.get("models/gpt-9").status_code == 404 and Api("mk-wrong").post("chat/completions", CHAT).status_code == 401

    def refused(**filters: str) -> dict[str, int]:
        rows = staff.get("/api/stats/errors", filters).json()
        return {row["name"]: row["requests"] for row in rows if row["kind"] == "refused"}

    web = {"prompt_too_long": 1, "invalid_request": 1, "message_too_large": 1}
    assert refused(source="web") == web
    program = {"invalid_request": 3, "unknown_model": 1, "malformed": 1, "rate_limited": 2}
    assert refused(source="api") == refused(user=str(admin.pk)) == program
    assert refused() == {**web, **program, "invalid_request": 4}
    assert refused(model=MODEL) == {"prompt_too_long": 1, "rate_limited": 2}
    assert staff.get("/api/stats/summary").json()["requests"] == 2
    metrics = staff.get("/metrics").content.decode()
    assert f'playground:request_refused_total{{error="rate_limited",model_name="{MODEL}"}} 2.0' in metrics
