"""Processes die while an answer is being made: nothing is lost that was shown, nothing stays running for ever."""

import time

import pytest

from tests.e2e.conftest import is_prefix, text_of, wait_for

pytestmark = pytest.mark.e2e


def test_a_killed_worker_ends_the_answer_interrupted_with_its_text_and_comes_back(synthetic):
    cookies = synthetic.visit()
    with synthetic.socket(cookies) as client:
        accepted = client.generate("Go on", max_tokens=10_000)
        seen = [client.receive("delta") for _ in range(20)]
        synthetic.child("engine_worker").kill()
        killed = time.monotonic()
        rest = client.to_end(seconds=40)
        assert rest[-1]["finish_reason"] == "interrupted"
        assert time.monotonic() - killed < 30
        text = text_of(seen) + text_of(rest)
        stored = synthetic.get(f"/api/generations/{accepted['generation_id']}", cookies)
        assert (stored["state"], stored["text"], stored["error"]["code"]) == ("interrupted", text, "engine_stopped")
        assert is_prefix(text) and stored["usage"]["completion_tokens"] > 0
        wait_for(lambda: synthetic.get("/api/models")[0]["ready"], 60, "the new worker")
        client.generate("Again", max_tokens=50)
        assert is_prefix(text_of(client.to_end()))


def test_a_restarted_web_server_resumes_exactly_where_the_client_was(synthetic):
    cookies = synthetic.visit()
    with synthetic.socket(cookies) as client:
        accepted = client.generate("Go on", max_tokens=3000)
        seen = [client.receive("started", "prefill", "delta") for _ in range(20)]
        synthetic.child("daphne").kill()
    with synthetic.socket(cookies) as client:  # waits in the supervisor's listening socket until the new server accepts
        client.send({"type": "resume", "generation_id": accepted["generation_id"], "last_event_id": seen[-1]["event_id"]})
        rest = client.to_end()
    text = text_of(seen) + text_of(rest)
    assert is_prefix(text)
    assert sum(f["tokens"] for f in seen + rest if f["type"] == "delta") == 3000
    assert rest[-1]["finish_reason"] == "length"
    assert synthetic.get(f"/api/generations/{accepted['generation_id']}", cookies)["text"] == text


def test_a_killed_engine_ends_the_answer_and_is_loaded_again(synthetic):
    with synthetic.socket(synthetic.visit()) as client:
        client.generate("Go on", max_tokens=10_000)
        client.receive("delta")
        engine = next(p for p in synthetic.child("engine_worker").children() if "spawn_main" in " ".join(p.cmdline()))
        engine.kill()
        assert client.receive("done")["finish_reason"] == "interrupted"
        client.generate("Again", max_tokens=50)
        assert is_prefix(text_of(client.to_end()))


def test_a_killed_redis_loses_no_token_of_a_running_answer_and_new_sockets_work(synthetic):
    cookies = synthetic.visit()
    with synthetic.socket(cookies) as client:
        accepted = client.generate("Go on", max_tokens=1000)
        seen = [client.receive("delta") for _ in range(20)]
        synthetic.child("valkey").kill()
        rest = client.to_end()
        assert is_prefix(text_of(seen) + text_of(rest)) and rest[-1]["finish_reason"] == "length"
        stored = synthetic.get(f"/api/generations/{accepted['generation_id']}", cookies)
        assert (stored["state"], stored["text"]) == ("done", text_of(seen) + text_of(rest))
    for _ in range(2):
        with synthetic.socket(cookies) as client:
            client.generate("Again", max_tokens=20)
            assert is_prefix(text_of(client.to_end()))


def test_stop_while_streaming_and_while_queued_and_two_viewers(synthetic):
    cookies = synthetic.visit()
    with synthetic.socket(cookies) as client, synthetic.socket(cookies) as other:
        first = client.generate("First", max_tokens=10_000)
        seen = [client.receive("delta")]
        other.send({"type": "resume", "generation_id": first["generation_id"], "last_event_id": "0"})
        second = other.generate("Second", max_tokens=10)
        assert other.receive("queued")["position"] == 1
        other.send({"type": "stop", "generation_id": second["generation_id"]})
        assert other.receive("done")["generation_id"] == second["generation_id"]
        assert synthetic.get(f"/api/generations/{second['generation_id']}", cookies)["usage"]["completion_tokens"] == 0

        client.send({"type": "stop", "generation_id": first["generation_id"]})
        stopped = time.monotonic()
        seen += client.to_end()
        assert time.monotonic() - stopped < 2
        other.to_end()
        mine = [f for f in other.log if f["generation_id"] == first["generation_id"]]
        assert seen[-1] == mine[-1] and seen[-1]["finish_reason"] == "cancelled"
        assert is_prefix(text_of(seen)) and text_of(mine) == text_of(seen)
