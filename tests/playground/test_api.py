"""``/v1`` in process: bodies, errors, headers, keys and quotas, with a real queue and a fake engine."""

import json
import threading
import time
from datetime import timedelta

import pytest
from asgiref.sync import async_to_sync
from asgiref.testing import ApplicationCommunicator
from django.core.asgi import get_asgi_application
from django.core.management import CommandError, call_command
from django.test import AsyncClient
from django.utils import timezone

from playground.api.schemas import ChatCompletion, Completion, ErrorResponse
from playground.schemas import Params
from tests.playground.conftest import wait_for

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("empty_redis")]
MODEL = "smollm2-135m-instruct"
CHAT = {"model": MODEL, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4}


@pytest.fixture
def user(django_user_model):
    return django_user_model.objects.create_user("ada", "ada@example.org", "pass")


@pytest.fixture
def key(user) -> str:
    from playground.api.services import key_create

    return key_create(user=user, name="test")[1]


class Api:
    """Calls /v1 as a program does; ``body`` is the parsed answer."""

    def __init__(self, key: str):
        self.headers = {"Authorization": f"Bearer {key}"} if key else {}

    def post(self, path: str, data, **headers):
        content = data if isinstance(data, bytes) else json.dumps(data)
        return self._call("post", path, data=content, content_type="application/json", headers=self.headers | headers)

    def get(self, path: str):
        return self._call("get", path, headers=self.headers)

    def _call(self, method: str, path: str, **more):
        async def call():
            response = await getattr(AsyncClient(), method)(f"/v1/{path}", **more)
            if response.streaming:
                response.events = b"".join([part async for part in response.streaming_content]).decode()
            else:
                response.body = json.loads(response.content)
            return response

        return async_to_sync(call)()


@pytest.fixture
def api(key) -> Api:
    return Api(key)


def events(text: str) -> list[dict]:
    assert text.endswith("data: [DONE]\n\n")
    lines = [line.removeprefix("data: ") for line in text.split("\n\n") if line.startswith("data: ")]
    return [json.loads(line) for line in lines[:-1]]


def test_an_answer_in_one_piece(api, worker):
    from playground.chat.models import Generation

    response = api.post("chat/completions", CHAT | {"user": "customer 7"})
    body = response.body
    assert response.status_code == 200, body
    ChatCompletion.model_validate(body)
    assert body["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "word0 word1 word2 word3 ", "refusal": None},
            "logprobs": None,
            "finish_reason": "length",
        }
    ]
    assert body["usage"] == {"prompt_tokens": 7, "completion_tokens": 4, "total_tokens": 11}
    assert body["timings"]["decode_tokens_per_s"] > 0 and body["timings"]["queue_ms"] > 0
    assert body["id"].startswith("chatcmpl-") and body["object"] == "chat.completion" and body["model"] == MODEL
    assert response.headers["x-request-id"].startswith("req_")
    assert response.headers["x-ratelimit-limit-requests"] == "60"
    assert response.headers["x-ratelimit-remaining-requests"] == "59"
    row = Generation.objects.get()
    assert (row.source, row.user.username, row.api_key.name, row.end_user) == ("api", "ada", "test", "customer 7")
    assert row.api_key.last_used_at


def test_one_answer_after_the_other_does_not_wait_for_the_queue(api, worker):
    """A worker that slept between two looks at the broker kept all but the first ones waiting for a second."""
    waits = [api.post("chat/completions", CHAT).body["timings"]["queue_ms"] for _ in range(7)]
    assert sorted(waits)[3] < 400, waits


def test_a_stream_has_role_text_finish_and_usage_only_when_asked(api, worker):
    plain = events(api.post("chat/completions", CHAT | {"stream": True}).events)
    assert plain[0]["choices"][0]["delta"] == {"role": "assistant", "content": "", "refusal": None}
    assert "".join(e["choices"][0]["delta"].get("content", "") for e in plain) == "word0 word1 word2 word3 "
    assert plain[-1]["choices"][0]["finish_reason"] == "length" and plain[-1]["timings"]["ttft_ms"] > 0
    assert all("usage" not in e and e["object"] == "chat.completion.chunk" for e in plain)

    asked = events(api.post("chat/completions", CHAT | {"stream": True, "stream_options": {"include_usage": True}}).events)
    assert asked[-1]["choices"] == [] and asked[-1]["usage"]["completion_tokens"] == 4 and asked[-1]["timings"]
    assert all(e["usage"] is None for e in asked[:-1])


def test_choices_prompts_echo_and_token_ids(api, worker, fake_engine):
    body = api.post("chat/completions", CHAT | {"n": 3, "seed": 10}).body
    assert [c["index"] for c in body["choices"]] == [0, 1, 2] and body["usage"]["completion_tokens"] == 12
    assert sorted(r.sampling.seed for r in fake_engine.submitted) == [10, 11, 12]

    body = api.post("completions", {"model": MODEL, "prompt": ["One", "Two"], "n": 2, "echo": True, "max_tokens": 1}).body
    assert [c["text"] for c in body["choices"]] == ["Oneword0 ", "Oneword0 ", "Twoword0 ", "Twoword0 "]

    fake_engine.submitted.clear()
    body = api.post("completions", {"model": MODEL, "prompt": [504, 30.0], "max_tokens": 2.0, "stop": "x", "top_k": 3, "min_p": 0.1}).body
    asked = fake_engine.submitted[0]
    assert asked.prompt_ids == [504, 30] and asked.sampling.stop == ("x",) and (asked.sampling.top_k, asked.sampling.min_p) == (3, 0.1)
    Completion.model_validate(body)
    assert body["object"] == "text_completion" and asked.sampling.temperature == 1.0

    stream = events(api.post("completions", {"model": MODEL, "prompt": [504, 30], "echo": True, "max_tokens": 1, "stream": True}).events)
    assert "".join(e["choices"][0]["text"] for e in stream).endswith("word0 ") and len(stream) == 3


def test_content_parts_and_harmless_fields_are_taken(api, worker, fake_engine):
    parts = [{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo"}]
    messages = [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": parts, "name": "ada"}]
    more = {
        "tools": [],
        "tool_choice": "none",
        "response_format": {"type": "text"},
        "frequency_penalty": 0,
        "logit_bias": {},
        "store": False,
    }
    assert api.post("chat/completions", CHAT | {"messages": messages, "stop": None} | more).status_code == 200
    assert fake_engine.submitted[0].messages == [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}]


IMAGE = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}]


@pytest.mark.parametrize(
    ("change", "param", "words"),
    [
        ({"temperature": 3}, "temperature", "less than or equal to 2"),
        ({"max_tokens": 0}, "max_tokens", "greater than or equal to 1"),
        ({"n": 9}, "n", "less than or equal to 8"),
        ({"flux": 1}, "flux", "Unrecognized request argument supplied: flux"),
        ({"tools": [{"type": "function"}]}, "tools", "not supported"),
        ({"response_format": {"type": "json_object"}}, "response_format.type", "not supported"),
        ({"presence_penalty": 0.5}, "presence_penalty", "not supported"),
        ({"messages": IMAGE}, "messages[0].content[0].type", "'text'"),
        ({"messages": []}, "messages", "at least 1"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role", "'system'"),
        ({"temperature": "0.5"}, "temperature", "valid number"),
        ({"top_logprobs": 2}, "top_logprobs", "logprobs"),
        ({"messages": [{"role": "user", "content": "a\x00b"}]}, "messages[0].content", "Character 2 is NUL"),
        (
            {"messages": [{"role": "user", "content": "ab\ud800"}]},
            "messages[0].content",
            "Character 3 is half of a surrogate pair (U+D800)",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "text", "text": "\0"}]}]},
            "messages[0].content[0].text",
            "Character 1 is NUL",
        ),
        ({"model": "\udc00"}, "model", "Character 1 is half of a surrogate pair (U+DC00)."),
        ({"stop": ["a"] * 9}, "stop", "8"),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": " "}]}]}, "messages", "empty"),
    ],
)
def test_a_wrong_field_is_named(api, engines, change, param, words):
    from playground.chat.models import Generation

    response = api.post("chat/completions", CHAT | change)
    ErrorResponse.model_validate(response.body)
    error = response.body["error"]
    assert response.status_code == 400 and error["type"] == "invalid_request_error", error
    assert error["param"] == param and words in error["message"], error
    assert Generation.objects.count() == 0


def test_refusals_carry_openai_s_status_and_code(api, engines, monkeypatch):
    from playground.config import config

    def refused(data, path="chat/completions", api=api):
        response = api.post(path, data)
        return response.status_code, response.body["error"]["code"], response.body["error"]["param"]

    assert refused(CHAT | {"model": "gpt-9"}) == (404, "model_not_found", "model")
    assert refused({"messages": CHAT["messages"]}) == (400, None, "model")
    assert refused(b"{") == (400, None, None) and refused(b"[1]") == (400, None, None) and refused(b"") == (400, None, None)
    assert refused(CHAT, api=Api("mk-wrong")) == (401, "invalid_api_key", None)
    assert refused(CHAT, api=Api("")) == (401, "invalid_api_key", None)
    assert refused({"model": MODEL, "prompt": [99_999_999]}, "completions") == (400, None, None)
    assert refused({"model": MODEL, "prompt": "word " * 3000}, "completions") == (400, "context_length_exceeded", None)
    many = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}] * 1000 + CHAT["messages"]
    assert refused(CHAT | {"messages": many}) == (400, "context_length_exceeded", None)
    assert refused({"model": MODEL, "prompt": [5] * 1025, "echo": True, "logprobs": 1}, "completions") == (400, None, None)
    assert refused({"model": MODEL, "prompt": ["x", ""]}, "completions") == (400, None, "prompt")
    assert refused({"model": MODEL, "prompt": ["x"] * 5, "n": 2}, "completions") == (400, None, "n")
    assert refused({}, "nothing") == (404, "unknown_url", None)
    monkeypatch.setattr(config, "max_message_bytes", 50)
    assert refused(CHAT) == (413, "message_too_large", None)


def test_every_refusal_has_openai_s_form_and_a_request_id(api, engines):
    def refused(method, path, **more):
        response = api._call(method, path, **{"headers": api.headers} | more)
        ErrorResponse.model_validate(response.body)
        assert response.headers["x-request-id"].startswith("req_")
        return response.status_code, response.body["error"]["code"]

    assert refused("post", "embeddings", data="{}", content_type="application/json") == (404, "unknown_url")
    assert refused("post", "chat/completions/", data="{}", content_type="application/json") == (404, "unknown_url")
    assert refused("get", "") == (404, "unknown_url") and refused("get", "a%0Ab") == (404, "unknown_url")
    assert refused("get", "chat/completions") == refused("delete", "models") == (405, "method_not_allowed")
    assert refused("post", "chat/completions", data="x", content_type="multipart/form-data; boundary=x")[0] == 400
    assert refused("get", "models", headers={"host": "evil.example"})[0] == 400


def test_a_large_body_without_a_length_is_413(key):
    """As a chunked one arrives."""

    async def call() -> int:
        application = get_asgi_application()
        headers = [(b"authorization", f"Bearer {key}".encode()), (b"host", b"testserver"), (b"content-type", b"application/json")]
        scope = {"type": "http", "http_version": "1.1", "method": "POST", "path": "/v1/chat/completions", "headers": headers}
        server = ApplicationCommunicator(application, scope | {"query_string": b"", "client": ("127.0.0.1", 1)})
        await server.send_input({"type": "http.request", "body": b"x" * 6_000_000})
        return (await server.receive_output(20))["status"]

    assert async_to_sync(call)() == 413


def test_pages_of_other_sites_may_call_it_with_a_key(api, engines):
    """What a browser asks before the JavaScript client's request, and what it lets the page read."""
    asked = {"Origin": "https://app.example", "Access-Control-Request-Method": "POST"}
    names = "authorization,content-type,x-stainless-lang,x-stainless-retry-count,x-stainless-timeout"
    client = AsyncClient()
    preflight = async_to_sync(client.options)("/v1/chat/completions", headers=asked | {"Access-Control-Request-Headers": names})
    assert preflight.status_code == 200 and preflight.headers["Access-Control-Allow-Origin"] == "*"
    assert set(names.split(",")) <= set(preflight.headers["Access-Control-Allow-Headers"].split(", "))
    for headers in (api.headers, {}):
        answer = async_to_sync(client.get)("/v1/models", headers=headers | {"Origin": "https://app.example"})
        assert answer.headers["Access-Control-Allow-Origin"] == "*" and "x-request-id" in answer.headers["Access-Control-Expose-Headers"]
        assert "Access-Control-Allow-Credentials" not in answer.headers
    page = async_to_sync(client.get)("/api/models", headers={"Origin": "https://app.example"})
    assert "Access-Control-Allow-Origin" not in page.headers


def test_without_an_engine_it_is_503_and_says_when_to_try_again(api):
    response = api.post("chat/completions", CHAT)
    assert response.status_code == 503 and response.body["error"]["type"] == "server_error" and int(response.headers["Retry-After"]) >= 1


def test_an_engine_that_dies_is_an_error_not_an_answer(api, worker, fake_engine):
    fake_engine.seconds_per_token = 0.02

    def die() -> None:
        wait_for(lambda: fake_engine.submitted)
        time.sleep(0.2)
        fake_engine.alive = False

    threading.Thread(target=die).start()
    response = api.post("chat/completions", CHAT | {"max_tokens": 500, "stream": True})
    assert "[DONE]" not in response.events
    assert json.loads(response.events.strip().split("\n\n")[-1].removeprefix("data: "))["error"]["code"] == "engine_stopped"


def test_models(api, engines):
    assert api.get("models").body["data"][0] == {
        "id": MODEL,
        "object": "model",
        "created": 0,
        "owned_by": "playground",
        "context_tokens": 2048,
    }
    assert api.get(f"models/{MODEL}").body["id"] == MODEL
    assert api.get("models/org/name").status_code == api.get("models/a%0Ab").status_code == 404


def test_keys_are_hashed_scoped_expire_and_are_revoked(user, engines):
    from playground.api.models import ApiKey
    from playground.api.services import key_create, key_revoke

    key, secret = key_create(user=user, name="models only", scopes=["models"], expires_in_days=1)
    stored = ApiKey.objects.filter(pk=key.pk).values().get()
    assert secret.startswith(stored["prefix"]) and secret not in str(stored) and len(secret) > 40
    assert Api(secret).get("models").status_code == 200
    assert Api(secret).post("chat/completions", CHAT).status_code == 403

    ApiKey.objects.filter(pk=key.pk).update(expires_at=timezone.now() - timedelta(seconds=1))
    assert "expired" in Api(secret).get("models").body["error"]["message"]
    key, secret = key_create(user=user, name="second")
    user.is_active = False
    user.save()
    assert Api(secret).get("models").status_code == 401
    user.is_active = True
    user.save()
    key_revoke(key=key)
    assert "revoked" in Api(secret).get("models").body["error"]["message"]


@pytest.mark.parametrize("end", ["revoked", "deleted"])
def test_a_key_that_ends_stops_what_it_runs(user, worker, fake_engine, end):
    from playground.api.models import ApiKey
    from playground.api.services import Caller, answers_start, key_create, key_revoke
    from playground.chat.models import Generation
    from playground.chat.services import Job
    from playground.identity import Owner

    key, _ = key_create(user=user, name="runs")
    answers_start(caller=Caller(Owner(user=user), key), jobs=[Job(Params(model=MODEL, max_tokens=100_000), prompt="Go")])
    wait_for(lambda: Generation.objects.get().state == "running")
    if end == "deleted":
        ApiKey.objects.filter(pk=key.pk).delete()
    else:
        key_revoke(key=ApiKey.objects.get(pk=key.pk))
    wait_for(lambda: Generation.objects.get().state == "stopped")


def test_a_key_revoked_while_its_request_is_stored_runs_nothing(user, worker, fake_engine, monkeypatch):
    """The request was let in, and the revoking looked for what the key runs before the answer was there."""
    from playground.api import services
    from playground.chat.models import Generation

    key, secret = services.key_create(user=user, name="late")
    create = services.generations_create

    def revoked_meanwhile(**request):
        services.key_revoke(key=key)
        return create(**request)

    monkeypatch.setattr(services, "generations_create", revoked_meanwhile)
    response = Api(secret).post("chat/completions", CHAT | {"max_tokens": 100_000})
    assert response.status_code == 401 and "revoked" in response.body["error"]["message"]
    wait_for(lambda: Generation.objects.get().state == "stopped")


def test_an_answer_whose_web_process_died_is_ended(user, worker, api, fake_engine, monkeypatch):
    from playground import engine_client
    from playground.api.services import Caller, answers_start
    from playground.chat.models import Generation
    from playground.chat.services import Job
    from playground.identity import Owner

    monkeypatch.setattr(engine_client, "UNREAD_BEATS", 2)
    answers_start(caller=Caller(Owner(user=user)), jobs=[Job(Params(model=MODEL, max_tokens=100_000), prompt="Go")])  # nobody follows it
    wait_for(lambda: Generation.objects.get().state == "stopped")
    fake_engine.seconds_per_token = 0.5
    assert api.post("chat/completions", CHAT | {"max_tokens": 8}).body["usage"]["completion_tokens"] == 8  # read for longer than that


def test_keys_belong_to_their_owner_in_the_browser(client, user, django_user_model):
    assert client.get("/api/keys").status_code == 401
    client.force_login(user)
    made = client.post("/api/keys", {"name": "laptop", "expires_in_days": 30}, content_type="application/json").json()
    assert made["secret"].startswith(made["prefix"]) and made["state"] == "live" and made["scopes"] == ["models", "generate"]
    listed = client.get("/api/keys").json()["items"]
    assert [k["name"] for k in listed] == ["laptop"] and "secret" not in listed[0]
    client.force_login(django_user_model.objects.create_user("eve"))
    assert client.get("/api/keys").json()["items"] == []
    assert client.delete(f"/api/keys/{made['id']}").status_code == 404
    client.force_login(user)
    assert client.delete(f"/api/keys/{made['id']}").status_code == 204
    assert client.get("/api/keys").json()["items"][0]["state"] == "revoked"


def test_the_command_prints_a_key_that_works(user, engines, capsys):
    call_command("create_api_key", user="ada@example.org", expires=3)
    secret = capsys.readouterr().out.strip()
    assert Api(secret).get("models").status_code == 200
    with pytest.raises(CommandError, match="There is no user 'bob'"):
        call_command("create_api_key", user="bob")


def test_no_key_is_needed_where_that_is_allowed(worker, monkeypatch):
    from playground.chat.models import Generation
    from playground.config import config

    monkeypatch.setattr(config, "api_anonymous", True)
    response = Api("").post("chat/completions", CHAT)
    assert response.status_code == 200 and response.headers["x-ratelimit-limit-requests"] == "20"
    assert Generation.objects.get().visitor_id and Api("mk-wrong").post("chat/completions", CHAT).status_code == 401


def test_the_openapi_document_is_served_to_everybody(engines):
    document = Api("").get("openapi.json").body
    assert set(document["paths"]) == {"/v1/models", "/v1/models/{model}", "/v1/chat/completions", "/v1/completions"}
    answers = document["paths"]["/v1/chat/completions"]["post"]["responses"]
    assert set(answers["200"]["content"]) == {"application/json", "text/event-stream"} and {"401", "429", "503"} < set(answers)


def test_admins_see_keys_and_limit_and_revoke_them(admin_client, user, key):
    from playground.api.models import ApiKey

    row = ApiKey.objects.get()
    page = f"/admin/api/apikey/{row.pk}/change/"
    assert row.prefix in admin_client.get("/admin/api/apikey/").content.decode()
    assert key not in admin_client.get(page).content.decode()
    form = {"name": "test", "scopes": '["models"]', "requests_per_minute": "7"}
    assert admin_client.post(page, form).status_code == 302
    row.refresh_from_db()
    assert (row.requests_per_minute, row.tokens_per_day, row.scopes) == (7, None, ["models"])
    admin_client.post("/admin/api/apikey/", {"action": "revoke", "_selected_action": [str(row.pk)]})
    assert Api(key).get("models").status_code == 401


def test_logprobs_come_with_the_text_that_their_tokens_begin_in():
    """Parts of a character wait for it, a stop string and the end leave none, a character that the token limit cuts keeps its parts."""
    from playground import engine_client
    from playground.api.answers import Logprobs

    tokenizer = engine_client.tokenizer(MODEL)
    ids = tokenizer.encode(" 1🙂, 2") + list(tokenizer.eos_ids)[:1]
    pieces = [tokenizer.token_bytes(i) for i in ids]
    assert pieces[:4] == [b" ", b"1", b"\xf0\x9f", b"\x99\x82"]

    def let_out(frames: list[tuple[int, str]], reason: str) -> list[list[tuple[int, int]]]:
        """(index of the token, its start) for each frame of (tokens, text), the last with ``reason``."""
        logprobs, numbered = Logprobs(MODEL), iter(enumerate(ids))
        taken = []
        for count, text in frames:
            tokens = [{"id": token_id, "at": at} for at, token_id in (next(numbered) for _ in range(count))]
            taken.append(logprobs.take({"type": "delta", "text": text, "logprobs": tokens}))
        taken.append(logprobs.take({"type": "done", "finish_reason": reason}))
        return [[(token["at"], token["start"]) for token in tokens] for tokens in taken]

    assert let_out([(2, " 1"), (1, ""), (1, "🙂")], "length") == [[(0, 0), (1, 1)], [], [(2, 2), (3, 2)], []]
    assert let_out([(3, " 1")], "length") == [[(0, 0), (1, 1)], [(2, 2)]]
    assert let_out([(6, " 1🙂")], "stop") == [[(0, 0), (1, 1), (2, 2), (3, 2)], []]
    whole = let_out([(len(ids), " 1🙂, 2")], "stop")
    assert [at for at, _ in whole[0]] == list(range(len(ids) - 1)) and whole[1] == []


def test_a_part_of_a_character_is_named_by_its_bytes():
    from playground.api.forms import TextForm
    from playground.api.schemas import CompletionRequest

    form = TextForm(CompletionRequest(model=MODEL, prompt="Go", echo=False, logprobs=1))
    part = form.piece(0, "", [{"id": 10813, "start": 0, "logprob": -1.0, "top": [(10813, "\ufffd", -1.0), (33, "1", -2.0)]}])["logprobs"]
    assert part["tokens"][0].startswith("bytes:\\x") and set(part["top_logprobs"][0]) == {part["tokens"][0], "1"}
