"""Pages, the browser's API and health, through Django's own stack."""

import json
import time
from concurrent.futures import ThreadPoolExecutor
from uuid import uuid4

import pytest
import redis
from django.db import OperationalError
from django.test import Client

from tests.playground.conftest import wait_for

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("empty_redis")]


@pytest.fixture
def browser() -> Client:
    client = Client(enforce_csrf_checks=True)
    client.get("/")
    return client


def owned_conversation(browser: Client, title: str = "Mine"):
    from playground.chat import services
    from playground.identity import COOKIE, Owner, visitor_from_cookie

    return services.conversation_create(owner=Owner(visitor_id=visitor_from_cookie(browser.cookies[COOKIE].value)), title=title)


@pytest.mark.parametrize("error", [redis.ConnectionError("away"), redis.TimeoutError("slow"), OperationalError("database is locked")])
def test_storage_that_does_not_answer_is_said_and_no_failure_of_the_server(browser, monkeypatch, error):
    from playground import engine_client

    def fail():
        raise error

    monkeypatch.setattr(engine_client, "model_cards", fail)
    answer = browser.get("/api/models")
    assert (answer.status_code, answer.json()["code"]) == (503, "unavailable")


def test_the_page_carries_boot_data_a_policy_and_a_visitor_cookie():
    browser = Client()
    response = browser.get("/")
    boot = json.loads(response.content.decode().split('id="boot" type="application/json">')[1].split("</script>")[0])
    assert boot["anonymous"] and boot["default_model"] == "smollm2-135m-instruct" and boot["socket_path"] == "/ws/playground/"
    assert boot["models"][0]["context_tokens"] > 0 and not boot["models"][0]["ready"]
    policy = response["Content-Security-Policy"]
    nonce = policy.split("'nonce-")[1].split("'")[0]
    assert f'nonce="{nonce}"' in response.content.decode() and "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy and response["X-Content-Type-Options"] == "nosniff"
    cookie = response.cookies["visitor"]
    assert cookie["httponly"] and cookie["samesite"] == "Lax"
    assert "visitor" not in browser.get("/").cookies, "the identity stays"


def test_a_forged_cookie_is_nobody(browser):
    mine = owned_conversation(browser)
    assert browser.get(f"/c/{mine.pk}").status_code == 200
    browser.cookies["visitor"] = "x" + browser.cookies["visitor"].value
    assert browser.get(f"/c/{mine.pk}").status_code == 404


def test_conversations_are_read_renamed_and_deleted_by_their_owner_alone(browser):
    mine = owned_conversation(browser)
    url = f"/api/conversations/{mine.pk}"
    token = {"HTTP_X_CSRFTOKEN": browser.cookies["csrftoken"].value}

    assert browser.get("/api/conversations").json()["items"][0]["title"] == "Mine"
    assert browser.patch(url, {"title": "x"}, content_type="application/json").status_code == 403
    renamed = browser.patch(url, {"title": "Renamed"}, content_type="application/json", **token)
    assert renamed.json() == {"id": str(mine.pk), "title": "Renamed", "messages": []}
    assert browser.patch(url, {"title": ""}, content_type="application/json", **token).json()["code"] == "malformed"

    stranger = Client(enforce_csrf_checks=True)
    stranger.get("/")
    theirs = {"HTTP_X_CSRFTOKEN": stranger.cookies["csrftoken"].value}
    assert stranger.get(url).json() == {"code": "not_found", "message": "There is no such conversation."}
    assert stranger.delete(url, **theirs).status_code == 404
    assert browser.delete(url, **token).status_code == 204
    assert browser.get(url).status_code == 404


def test_a_generation_is_read_by_its_owner_with_text_and_points(browser):
    from playground.chat import services
    from playground.chat.models import Generation
    from playground.identity import COOKIE, Owner, visitor_from_cookie
    from playground.schemas import ChatMessage, Params

    owner = Owner(visitor_id=visitor_from_cookie(browser.cookies[COOKIE].value))
    generation = services.generation_create(owner=owner, params=Params(), messages=[ChatMessage(role="user", content="Hi")])
    result = services.Result("done", text="Hello", finish_reason="stop", trace=[[2, 5, 1, 12.5]], last_event_id="3-0", completion_tokens=1)
    services.generation_finish(generation_id=generation.pk, result=result)
    body = browser.get(f"/api/generations/{generation.pk}").json()
    assert (body["text"], body["points"], body["last_event_id"], body["state"]) == ("Hello", [[1, 12.5, 5]], "3-0", "done")
    assert browser.get(f"/api/conversations/{generation.conversation_id}").json()["messages"][1]["content"] == "Hello"
    assert Client().get(f"/api/generations/{generation.pk}").status_code == 404
    assert Generation.objects.get().owner == owner


def test_health_names_what_does_not_answer(browser, engines):
    assert browser.get("/healthz").json() == {"status": "ok"}
    wait_for(lambda: browser.get("/readyz").status_code == 200)
    assert browser.get("/readyz").json() == {"status": "ok", "database": "ok", "redis": "ok", "engine": "ok"}
    engines.close()
    response = browser.get("/readyz")
    assert response.status_code == 503 and response.json()["engine"] == "not ready: smollm2-135m-instruct"


def test_a_redis_that_says_nothing_keeps_nobody_waiting(browser, engines, frozen_redis):
    def timed(path: str) -> tuple[int, float]:
        started = time.monotonic()
        return Client().get(path).status_code, time.monotonic() - started

    wait_for(lambda: browser.get("/readyz").status_code == 200)
    with frozen_redis(), ThreadPoolExecutor() as threads:
        page, models, ready = threads.map(timed, ("/", "/api/models", "/readyz"))
    assert (page[0], models[0], ready[0]) == (200, 503, 503)
    assert page[1] < 12 and models[1] < 12 and ready[1] < 5
    assert browser.get("/readyz").status_code == 200


def test_what_goes_wrong_is_a_page_of_the_site_in_the_readers_language(monkeypatch):
    from playground import health

    visitor = Client(raise_request_exception=False)
    missing = visitor.get("/nowhere").content.decode()
    assert "<h1>There is no such page</h1>" in missing and 'href="/"' in missing and "/static/app/assets/" in missing
    french = visitor.get("/nowhere", headers={"Accept-Language": "fr"}).content.decode()
    assert '<html lang="fr"' in french and "<h1>Cette page n’existe pas</h1>" in french
    host = visitor.get("/", headers={"Host": "playground.example"})
    assert host.status_code == 400 and "must add it to ALLOWED_HOSTS" in host.content.decode()
    form = Client(enforce_csrf_checks=True).post("/accounts/login/", {"login": "x"})
    assert form.status_code == 403 and "<h1>This form is too old</h1>" in form.content.decode()

    def broken():
        raise RuntimeError("a secret")

    monkeypatch.setattr(health, "_database", broken)
    failed = visitor.get("/readyz")
    assert failed.status_code == 500 and "<h1>The server failed on this page</h1>" in failed.content.decode()
    assert "secret" not in failed.content.decode()
    for page in (failed, host, form):
        nonce = page["Content-Security-Policy"].split("'nonce-")[1].split("'")[0]
        assert page.content.decode().count(f'nonce="{nonce}"') == 2


def test_unknown_pages_are_404(browser):
    assert browser.get(f"/c/{uuid4()}").status_code == 404
    assert browser.get("/api/conversations?before=yesterday").status_code == 404
