"""The real ``openai`` package, and a raw connection, against the running product."""

import asyncio
import http.server
import json
import socketserver
import sqlite3
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from urllib.request import Request, urlopen

import httpx
import openai
import pytest

from tests.e2e.conftest import Product, is_prefix, manage, rows, wait_for
from tests.fakes import ANSWER

pytestmark = pytest.mark.e2e
MODEL = "smollm2-135m-instruct"
MESSAGES = [{"role": "user", "content": "Name three colours."}]


def new_key(product: Product, user: str) -> str:
    manage(product, "createsuperuser", "--noinput", "--username", user, "--email", "", DJANGO_SUPERUSER_PASSWORD="long enough")
    return manage(product, "create_api_key", "--user", user)


@pytest.fixture(scope="session")
def real(product: Product) -> openai.OpenAI:
    return openai.OpenAI(base_url=product.url + "v1", api_key=new_key(product, "real"), max_retries=0, timeout=120)


@pytest.fixture(scope="session")
def fast(synthetic: Product) -> openai.OpenAI:
    client = openai.OpenAI(base_url=synthetic.url + "v1", api_key=new_key(synthetic, "fast"), max_retries=0, timeout=120)
    client.completions.create(model=MODEL, prompt="Warm up", max_tokens=1)
    return client


def test_the_model_answers_the_same_for_the_same_seed(real):
    assert [model.id for model in real.models.list()] == [MODEL] and real.models.retrieve(MODEL).id == MODEL
    ask = {"model": MODEL, "messages": MESSAGES, "max_tokens": 12, "seed": 5, "temperature": 0.8}
    first = real.chat.completions.create(**ask, logprobs=True, top_logprobs=2)
    choice = first.choices[0]
    assert choice.message.content and choice.finish_reason in ("stop", "length")
    assert first.usage.total_tokens == first.usage.prompt_tokens + first.usage.completion_tokens
    assert "".join(token.token for token in choice.logprobs.content) == choice.message.content
    assert all(token.logprob <= 0 and len(token.top_logprobs) == 2 for token in choice.logprobs.content)
    assert bytes(b for token in choice.logprobs.content for b in token.bytes).decode() == choice.message.content
    with real.chat.completions.create(**ask, stream=True, stream_options={"include_usage": True}) as stream:
        chunks = list(stream)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == choice.message.content
    assert chunks[-1].choices == [] and chunks[-1].usage == first.usage and chunks[-1].timings["ttft_ms"] > 0


def test_completions_take_text_token_ids_stop_and_logprobs(real):
    plain = real.completions.create(model=MODEL, prompt="1, 2, 3, 4,", max_tokens=12, temperature=0, logprobs=2)
    assert plain.choices[0].text.startswith(" 5, 6") and plain.object == "text_completion"
    assert len(plain.choices[0].logprobs.tokens) == len(plain.choices[0].logprobs.token_logprobs) == 12
    stopped = real.completions.create(model=MODEL, prompt="1, 2, 3, 4,", max_tokens=12, temperature=0, stop=[" 6"], echo=True)
    assert (stopped.choices[0].text, stopped.choices[0].finish_reason) == ("1, 2, 3, 4, 5,", "stop")
    ids = real.completions.create(model=MODEL, prompt=[33, 28, 216, 34, 28], max_tokens=3, temperature=0, n=2)
    assert len(ids.choices) == 2 and ids.usage.prompt_tokens == 10 and ids.choices[0].text == ids.choices[1].text


def test_an_echoed_prompt_is_scored_as_it_was_generated(real):
    """The log-probabilities of an answer are those of the same tokens as a prompt, in one piece and streamed."""
    ask = {"model": MODEL, "temperature": 0, "logprobs": 1}
    made = real.completions.create(**ask, prompt="Colours: 🙂 red,", max_tokens=8).choices[0]
    prompt = "Colours: 🙂 red," + made.text
    scored = real.completions.create(**ask, prompt=prompt, max_tokens=2, echo=True).choices[0]
    assert scored.text.startswith(prompt) and scored.logprobs.token_logprobs[0] is scored.logprobs.top_logprobs[0] is None
    there = slice(-8 - len(scored.logprobs.tokens[-2:]), -2)
    assert scored.logprobs.tokens[there] == made.logprobs.tokens
    assert scored.logprobs.token_logprobs[there] == pytest.approx(made.logprobs.token_logprobs, abs=0.1)  # 16-bit weights
    places = zip(scored.logprobs.tokens, scored.logprobs.text_offset, strict=True)
    assert all(scored.text[at:].startswith(token) for token, at in places if not token.startswith("bytes:"))
    chunks = list(real.completions.create(**ask, prompt=prompt, max_tokens=2, echo=True, stream=True))
    parts = [chunk.choices[0] for chunk in chunks if chunk.choices]
    assert "".join(part.text for part in parts) == scored.text
    assert [offset for part in parts if part.logprobs for offset in part.logprobs.text_offset] == scored.logprobs.text_offset


def test_many_streams_of_an_async_client_do_not_mix(synthetic, fast):
    async def ask(client: openai.AsyncOpenAI, tokens: int) -> str:
        stream = await client.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=tokens, stream=True)
        return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

    async def ask_all() -> list[str]:
        async with openai.AsyncOpenAI(base_url=fast.base_url, api_key=fast.api_key, max_retries=0) as client:
            return await asyncio.gather(*(ask(client, tokens) for tokens in (60, 20, 40)))

    with ThreadPoolExecutor() as pool:  # this thread's event loop is the browser driver's, once a browser has been started
        long, short, middle = pool.submit(asyncio.run, ask_all()).result()
    assert all(map(is_prefix, (long, short, middle))) and len(long) > len(middle) > len(short) > 20


def test_a_client_that_leaves_stops_the_engine(synthetic, fast):
    for wanted in range(1, 9):  # leaving at any moment: while a chunk is sent, while none is there
        made = 0
        with fast.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=20_000, stream=True) as stream:
            for chunk in stream:
                made += bool(chunk.choices[0].delta.content)
                if made == wanted:
                    break
        identifier = chunk.id.removeprefix("chatcmpl-")

        def ended(identifier: str = identifier) -> list[tuple]:
            sql = "select state, completion_tokens from chat_generation where id = ? and state not in ('queued', 'running')"
            return rows(synthetic, sql, identifier)

        [(state, tokens)] = wait_for(ended, what="the end of the generation")
        assert state == "stopped"
        assert tokens < 400, "the engine, at 200 tokens/s, went on after the client had left"


def test_a_waiting_client_that_leaves_never_reaches_the_engine(synthetic, fast):
    with fast.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=20_000, stream=True) as running:
        next(iter(running))
        with pytest.raises(openai.APITimeoutError):
            fast.with_options(timeout=1.0).chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=77)
        sql = "select state, started_at from chat_generation where json_extract(params, '$.max_tokens') = 77"
        wait_for(lambda: rows(synthetic, sql) == [("stopped", None)], what="the end of the waiting one")


def signed_in(product: Product, user: str) -> httpx.Client:
    """A browser's session: cookies, and the CSRF token with every write."""
    browser = httpx.Client(base_url=product.url, timeout=30)
    browser.get("accounts/login/")
    form = {"login": user, "password": "long enough", "csrfmiddlewaretoken": browser.cookies["csrftoken"]}
    assert browser.post("accounts/login/", data=form).status_code == 302
    browser.headers["X-CSRFToken"] = browser.cookies["csrftoken"]
    return browser


def test_revoking_a_key_ends_its_streams_and_what_waits_within_a_second(synthetic, fast):
    """By its owner over HTTP, while one answer streams, one is made in one piece and one waits; another key's answer goes on."""
    browser = signed_in(synthetic, "fast")
    with ThreadPoolExecutor() as pool:
        made = browser.post("api/keys", json={"name": "mid-stream"}).json()
        mine = fast.with_options(api_key=made["secret"])
        ask = {"model": MODEL, "messages": MESSAGES, "max_tokens": 20_000}
        text, chunks = "", iter(mine.chat.completions.create(**ask, stream=True))
        while len(text) < 200:
            text += next(chunks).choices[0].delta.content or ""
        whole = pool.submit(mine.chat.completions.create, **ask)
        other = pool.submit(fast.chat.completions.create, **ask | {"max_tokens": 30})
        states = "select state from chat_generation where state in ('queued', 'running')"
        wait_for(lambda: sorted(rows(synthetic, states)) == [("queued",), ("queued",), ("running",)], what="two wait behind one")

        revoked = time.monotonic()
        assert browser.delete(f"api/keys/{made['id']}").status_code == 204
        with pytest.raises(openai.APIError) as ended:
            for chunk in chunks:
                text += chunk.choices[0].delta.content or ""
        assert time.monotonic() - revoked < 1.0
        assert ended.value.code == "cancelled" and "This answer was stopped after" in ended.value.message
        with pytest.raises(openai.BadRequestError) as never:
            whole.result(timeout=5)
        assert never.value.code == "cancelled" and "after 0 tokens" in never.value.message
        assert other.result(timeout=20).choices[0].finish_reason == "length"

        sql = "select state, completion_tokens from chat_generation where api_key_id = ? order by created_at"
        [(first, tokens), second] = rows(synthetic, sql, made["id"].replace("-", ""))
        assert first == "stopped" and 0 < tokens < 1000 and second == ("stopped", 0) and is_prefix(text)
        with pytest.raises(openai.AuthenticationError, match="revoked"):
            mine.chat.completions.create(**ask)


def test_errors_are_openai_s_exceptions(synthetic, fast):
    def ask(client: openai.OpenAI = fast, **change):
        return client.chat.completions.create(**({"model": MODEL, "messages": MESSAGES, "max_tokens": 2} | change))

    with pytest.raises(openai.AuthenticationError, match="Incorrect API key"):
        ask(fast.with_options(api_key="mk-wrong"))
    with pytest.raises(openai.NotFoundError) as missing:
        ask(model="gpt-9")
    assert missing.value.code == "model_not_found" and missing.value.request_id.startswith("req_")
    with pytest.raises(openai.BadRequestError) as wrong:
        ask(temperature=9)
    assert wrong.value.param == "temperature"
    with pytest.raises(openai.APIStatusError) as large:
        ask(messages=[{"role": "user", "content": "x" * 6_000_000}])
    assert large.value.status_code == 413

    key = manage(synthetic, "create_api_key", "--user", "fast", "--name", "narrow")
    narrow = fast.with_options(api_key=key)
    with sqlite3.connect(synthetic.folder / "playground.sqlite3", timeout=20) as database:
        database.execute("update api_apikey set requests_per_minute = 1 where name = 'narrow'")
    ask(narrow)
    with pytest.raises(openai.RateLimitError) as limited:
        ask(narrow)
    headers = limited.value.response.headers
    assert int(headers["retry-after"]) <= 60 and headers["x-ratelimit-remaining-requests"] == "0"
    with sqlite3.connect(synthetic.folder / "playground.sqlite3", timeout=20) as database:
        database.execute("update api_apikey set requests_per_minute = null, scopes = '[\"models\"]' where name = 'narrow'")
    with pytest.raises(openai.PermissionDeniedError):
        ask(narrow)
    assert list(narrow.models.list())


def test_tokens_arrive_as_they_are_made(synthetic, fast):
    """200 tokens at 200 tokens/s last a second; what a raw client sees must last about as long."""
    body = json.dumps({"model": MODEL, "messages": MESSAGES, "max_tokens": 200, "stream": True}).encode()
    headers = {"Authorization": f"Bearer {fast.api_key}", "Content-Type": "application/json"}
    arrivals, text = [], ""
    with urlopen(Request(f"{synthetic.url}v1/chat/completions", body, headers), timeout=60) as response:
        assert response.headers["Content-Type"] == "text/event-stream; charset=utf-8"
        for line in response:
            if line.startswith(b"data: {"):
                piece = json.loads(line[6:])["choices"][0]["delta"].get("content")
                if piece:
                    arrivals.append(time.monotonic())
                    text += piece
    assert is_prefix(text) and len(text) > len(ANSWER) / 2
    assert len(arrivals) > 30 and arrivals[-1] - arrivals[0] > 0.8


PAGE_OF_ANOTHER_SITE = """async ([url, key, model]) => {
  const headers = { "Authorization": `Bearer ${key}`, "Content-Type": "application/json", "X-Stainless-Lang": "js" };
  const body = JSON.stringify({ model, messages: [{ role: "user", content: "Hi" }], max_tokens: 40, stream: true });
  const answer = await fetch(url + "v1/chat/completions", { method: "POST", headers, body });
  return [answer.status, answer.headers.get("x-request-id"), answer.headers.get("x-ratelimit-limit-requests"), await answer.text()];
}"""


def test_a_page_of_another_site_streams_with_a_key(synthetic, fast, page):
    with socketserver.TCPServer(("127.0.0.1", 0), http.server.SimpleHTTPRequestHandler) as other:
        threading.Thread(target=other.serve_forever, daemon=True).start()
        page.goto(f"http://127.0.0.1:{other.server_address[1]}/")
        status, request_id, limit, text = page.evaluate(PAGE_OF_ANOTHER_SITE, [synthetic.url, fast.api_key, MODEL])
        other.shutdown()
    assert status == 200 and request_id.startswith("req_") and int(limit) > 0
    assert "Here" in text and text.endswith("data: [DONE]\n\n")
