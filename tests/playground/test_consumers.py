"""The socket, with a real Redis and a real Celery worker behind it; only the engine is a fake."""

import asyncio
from uuid import uuid4

import pytest
from asgiref.sync import sync_to_async
from django.contrib.auth import get_user_model
from django.db import OperationalError
from django.test import Client as Browser

from playground.accounts.services import account_delete, user_block
from playground.identity import Owner
from playground.streams import event_number
from tests.playground.conftest import Client, text_of, words

pytestmark = [pytest.mark.asyncio, pytest.mark.django_db(transaction=True)]


async def row(generation_id: str):
    from playground.chat.models import Generation

    return await Generation.objects.select_related("message", "conversation").aget(pk=generation_id)


async def test_a_prompt_is_answered_in_order_and_stored(worker, owner):
    async with Client(owner) as client:
        accepted = await client.generate("Write a function that adds\nmore", params={"max_tokens": 30, "temperature": 0.7, "stop": ["x"]})
        frames = await client.to_end()

    kinds = [f["type"] for f in frames if f["type"] not in ("queued", "loading")]
    assert kinds[0] == "started" and set(kinds[1:-1]) == {"delta"} and kinds[-1] == "done"
    numbers = [event_number(f["event_id"]) for f in frames if "event_id" in f]
    assert numbers == sorted(set(numbers))
    assert text_of(frames) == words(30)
    assert sum(f["tokens"] for f in frames if f["type"] == "delta") == 30
    assert frames[-1]["finish_reason"] == "length" and frames[-1]["usage"]["completion_tokens"] == 30

    generation = await row(accepted["generation_id"])
    assert (generation.state, generation.finish_reason, generation.completion_tokens) == ("done", "length", 30)
    assert generation.message.content == words(30)
    assert generation.conversation.title == "Write a function that adds"
    assert generation.last_event_id == frames[-1]["event_id"]
    assert generation.request == {} and generation.params["stop"] == ["x"]
    assert generation.queue_ms > 0 and generation.decode_tokens_per_s > 0


async def test_resuming_from_any_event_gives_exactly_the_rest(worker, owner, empty_redis):
    """Live, from Redis and from the database alone."""
    async with Client(owner) as client:
        accepted = await client.generate(params={"max_tokens": 60})
        frames = await client.to_end()
    seen = [f for f in frames if "event_id" in f]
    generation_id = accepted["generation_id"]

    async def resumed(last: str) -> list[dict]:
        async with Client(owner) as client:
            await client.send({"type": "resume", "generation_id": generation_id, "last_event_id": last})
            return await client.to_end()

    cuts = ["0", seen[0]["event_id"], seen[len(seen) // 2]["event_id"], seen[-2]["event_id"], seen[-1]["event_id"]]
    for expired in (False, True):
        if expired:
            empty_redis.delete(f"gen:{generation_id}")
        for cut in cuts:
            before = text_of([f for f in seen if event_number(f["event_id"]) <= event_number(cut)])
            rest = await resumed(cut)
            assert before + text_of(rest) == words(60), (expired, cut)
            assert rest[-1] == frames[-1]


async def test_a_dropped_socket_resumes_while_the_answer_is_made(worker, owner):
    async with Client(owner) as client:
        accepted = await client.generate(params={"max_tokens": 200})
        first = [await client.receive("delta") for _ in range(5)]
    async with Client(owner) as client:
        await client.send({"type": "resume", "generation_id": accepted["generation_id"], "last_event_id": first[-1]["event_id"]})
        rest = await client.to_end()
    assert text_of(first) + text_of(rest) == words(200)
    merged = [f for f in rest if f["type"] == "delta" and f.get("points")]
    assert all(sum(tokens for tokens, _, _ in f["points"]) == f["tokens"] for f in merged)
    assert all(sum(characters for _, _, characters in f["points"]) == len(f["text"]) for f in merged)


async def test_two_viewers_see_the_same(worker, owner):
    async with Client(owner) as first, Client(owner) as second:
        accepted = await first.generate(params={"max_tokens": 100})
        await first.receive("delta")
        await second.send({"type": "resume", "generation_id": accepted["generation_id"], "last_event_id": "0"})
        seen = await asyncio.gather(first.to_end(), second.to_end())
    assert text_of(seen[1]) == words(100)
    assert seen[0][-1] == seen[1][-1]


async def test_stop_is_heard_while_streaming_and_keeps_what_was_made(worker, owner):
    async with Client(owner) as client:
        accepted = await client.generate(params={"max_tokens": 5000})
        made = [await client.receive("delta") for _ in range(3)]
        await client.send({"type": "stop", "generation_id": accepted["generation_id"]})
        rest = await client.to_end()
    assert rest[-1]["finish_reason"] == "cancelled"
    generation = await row(accepted["generation_id"])
    assert generation.state == "stopped"
    assert generation.message.content == text_of(made) + text_of(rest)
    assert generation.completion_tokens < 200


async def test_stop_while_queued_never_reaches_the_engine(worker, owner, fake_engine):
    async with Client(owner) as client:
        first = await client.generate(params={"max_tokens": 5000})
        await client.receive("started")
        second = await client.generate("Second", request_id="r2")
        queued = await client.receive("queued")
        assert queued["generation_id"] == second["generation_id"] and queued["position"] == 1
        third = await client.generate("Third", request_id="r3")
        position = 0
        while position != 2:
            frame = await client.receive("queued")
            position = frame["position"] if frame["generation_id"] == third["generation_id"] else 0
        await client.send({"type": "stop", "generation_id": second["generation_id"]})
        done = await client.receive("done")
        assert done["generation_id"] == second["generation_id"] and done["finish_reason"] == "cancelled"
        moved = await client.receive("queued")
        assert (moved["generation_id"], moved["position"]) == (third["generation_id"], 1)
        await client.send({"type": "stop", "generation_id": first["generation_id"]})
        await client.receive("done")
        assert (await client.receive("done"))["generation_id"] == third["generation_id"]
    assert [r.request_id for r in fake_engine.submitted] == [first["generation_id"], third["generation_id"]]
    assert (await row(second["generation_id"])).state == "stopped"


async def test_a_client_that_does_not_acknowledge_gets_a_bounded_window_and_one_catch_up(worker, owner, monkeypatch):
    from playground.config import config

    monkeypatch.setattr(config, "viewer_window_bytes", 2000)
    async with Client(owner) as client:
        accepted = await client.generate(params={"max_tokens": 300})
        received = [await client.receive("started")]
        while not await client.nothing():
            received.append(await client.receive())
        size = sum(len(str(f)) for f in received)
        assert size < 6000, "the window bounds what is sent ahead"
        while (await row(accepted["generation_id"])).state != "done":
            await asyncio.sleep(0.05)
        assert await client.nothing(0.1)
        await client.send({"type": "ack", "generation_id": accepted["generation_id"], "event_id": received[-1]["event_id"]})
        catch_up = await client.receive("delta")
        assert len(catch_up["points"]) > 50
        await client.send({"type": "ack", "generation_id": accepted["generation_id"], "event_id": catch_up["event_id"]})
        assert (await client.receive("done"))["finish_reason"] == "length"
    assert text_of(received) + catch_up["text"] == words(300)


async def test_nobody_reaches_a_generation_of_somebody_else(worker, owner):
    async with Client(owner) as client:
        accepted = await client.generate(params={"max_tokens": 5000})
        async with Client(Owner(visitor_id=uuid4())) as stranger:
            for frame in ({"type": "stop"}, {"type": "resume", "last_event_id": "0"}):
                await stranger.send(frame | {"generation_id": accepted["generation_id"]})
                assert (await stranger.receive())["code"] == "not_found"
            error = await stranger.generate(conversation_id=accepted["conversation_id"])
            assert error["code"] == "not_found"
        await client.send({"type": "stop", "generation_id": accepted["generation_id"]})
        await client.receive("done")


GENERATE = '{"type":"generate","request_id":"r1","messages":[{"role":"user","content":"%s"}],"params":{"temperature":%s}}'
BAD_FRAMES = {
    "no JSON": ("{", "malformed"),
    "a number": ("3", "malformed"),
    "unknown type": ({"type": "dance"}, "malformed"),
    "missing field": ({"type": "stop"}, "malformed"),
    "spare field": ({"type": "stop", "generation_id": str(uuid4()), "now": 1}, "malformed"),
    "no id": ({"type": "stop", "generation_id": "x"}, "malformed"),
    "unknown generation": ({"type": "stop", "generation_id": str(uuid4())}, "not_found"),
    "deep nesting": ("[" * 100_000, "malformed"),
    "empty prompt": ({"messages": [{"role": "user", "content": "  \n"}]}, "empty_prompt"),
    "assistant last": ({"messages": [{"role": "assistant", "content": "x"}]}, "empty_prompt"),
    "no messages": ({"messages": []}, "malformed"),
    "unknown model": ({"params": {"model": "gpt-9"}}, "unknown_model"),
    "temperature": ({"params": {"temperature": 2.1}}, "invalid_request"),
    "top_p": ({"params": {"top_p": 0}}, "invalid_request"),
    "nan": (GENERATE % ("x", "NaN"), "invalid_request"),
    "top_k": ({"params": {"top_k": -1}}, "invalid_request"),
    "min_p": ({"params": {"min_p": "much"}}, "invalid_request"),
    "max_tokens": ({"params": {"max_tokens": 0}}, "invalid_request"),
    "seed": ({"params": {"seed": 2**60}}, "invalid_request"),
    "nine stops": ({"params": {"stop": ["a"] * 9}}, "invalid_request"),
    "unknown parameter": ({"params": {"heat": 1}}, "invalid_request"),
    "unknown parent": ({"conversation_id": str(uuid4())}, "not_found"),
    "no coercion": ({"params": {"temperature": "0.5"}}, "invalid_request"),
    "NUL": ({"messages": [{"role": "user", "content": "a\x00b"}]}, "malformed"),
    "NUL in a stop string": ({"params": {"stop": ["\x00"]}}, "invalid_request"),
    "half a character as id": ('{"type":"generate","request_id":"\\ud800"}', "malformed"),
    "surrogate": (GENERATE % ("\\ud800", "0"), "malformed"),
}


async def test_bad_frames_get_a_named_error_and_the_connection_goes_on(worker, owner):
    async with Client(owner) as client:
        for name, (bad, code) in BAD_FRAMES.items():
            if isinstance(bad, dict) and "type" not in bad:
                error = await client.generate(**bad)
                assert error.get("request_id") == "r1", name
            else:
                await client.send(bad)
                error = await client.receive()
            assert (error["type"], error["code"]) == ("error", code), (name, error)
            assert error["message"]
        await client.send_bytes(b"\x00\x01")
        assert (await client.receive())["code"] == "malformed"
        assert (await client.generate(params={"max_tokens": 2}))["type"] == "accepted"
        assert text_of(await client.to_end()) == words(2)


async def test_the_wrong_part_of_a_frame_is_named_even_when_it_is_called_like_a_type(owner):
    async with Client(owner) as client:
        for stop, name in (("x", "stop"), (["ok", ""], "stop.1"), (["a"] * 9, "stop")):
            error = await client.generate(params={"stop": stop})
            assert error["details"]["name"] == name and error["message"].startswith(f"{name}: "), error
        assert (await client.generate(params=5))["details"]["name"] == "params"


async def test_a_character_that_no_text_may_hold_is_named_with_its_place(owner):
    async with Client(owner) as client:
        for escape, what in (("\\u0000", "NUL (U+0000), which no text may hold here"), ("\\udc00", "half of a surrogate pair (U+DC00)")):
            await client.send(GENERATE % (f"two{escape}", "0"))
            error = await client.receive("error")
            assert error["message"].startswith(f"messages.0.content: Character 4 is {what}; got 'two"), error
            assert error["request_id"] == "r1"
        await client.send(GENERATE % ("\\ud83d\\ude00 is whole", "9"))
        assert (await client.receive("error"))["details"]["name"] == "temperature"


async def test_a_message_of_5_mb_is_refused_with_both_sizes(worker, owner):
    async with Client(owner) as client:
        error = await client.generate("x" * 6_200_000)
        assert (error["code"], error["message"]) == ("message_too_large", "This message is 6.3 MB; the limit is 5 MB.")
        assert (await client.generate(params={"max_tokens": 1}))["type"] == "accepted"
        await client.to_end()


async def test_a_prompt_over_the_context_is_refused_before_queueing_with_both_numbers(worker, owner):
    from playground.chat.models import Generation

    async with Client(owner) as client:
        error = await client.generate("word " * 3000)
    assert error["code"] == "prompt_too_long"
    assert "2,048" in error["message"] and "Shorten it by" in error["message"]
    many = [{"role": role, "content": "x"} for role in ("user", "assistant")] * 1000
    async with Client(owner) as client:  # a long chat: its tokens are what is too much, not its messages
        error = await client.generate(messages=[*many, {"role": "user", "content": "y"}])
    assert error["code"] == "prompt_too_long"
    assert await Generation.objects.acount() == 0


async def test_an_engine_that_dies_ends_the_generation_interrupted_and_is_loaded_again(worker, owner, fake_engine):
    async with Client(owner) as client:
        accepted = await client.generate(params={"max_tokens": 5000})
        await client.receive("delta")
        fake_engine.alive = False
        frames = await client.to_end()
        assert frames[-1]["finish_reason"] == "interrupted"
        generation = await row(accepted["generation_id"])
        assert generation.state == "interrupted" and generation.error_code == "engine_stopped"
        assert generation.message.content.startswith("word0 ")
        await client.generate(params={"max_tokens": 3})
        assert text_of(await client.to_end()) == words(3)


@pytest.mark.parametrize("end", ["signed out", "blocked", "deleted"])
async def test_an_open_socket_asks_nothing_for_a_user_who_is_gone(worker, end):
    from playground.chat.models import Generation

    user = await get_user_model().objects.acreate(username="ines")
    browser = Browser()
    await sync_to_async(browser.force_login)(user)
    async with Client(Owner(user=user), session=browser.cookies["sessionid"].value) as client:
        accepted = await client.generate()
        await client.to_end()
        leave = {"signed out": browser.logout, "blocked": lambda: user_block(user=user), "deleted": lambda: account_delete(user=user)}
        await sync_to_async(leave[end])()
        assert (await client.generate())["code"] == "sign_in_required"
        await client.send({"type": "resume", "generation_id": accepted["generation_id"]})
        assert (await client.receive("error"))["code"] == "sign_in_required"
    assert await Generation.objects.acount() == 1


async def test_a_nul_that_a_model_writes_ends_no_answer(worker, owner, fake_engine):
    fake_engine.word = "a\0b"
    async with Client(owner) as client:
        accepted = await client.generate(params={"max_tokens": 2})
        frames = await client.to_end()
    assert text_of(frames) == "a\ufffdb0 a\ufffdb1 "
    assert (await row(accepted["generation_id"])).message.content == text_of(frames)


async def test_an_answer_that_cannot_be_stored_says_so_and_is_stored_later(worker, owner, monkeypatch):
    from playground.chat import services

    def full(**_):
        raise OperationalError("database or disk is full")

    monkeypatch.setattr(services, "LOST_SECONDS", 0)
    async with Client(owner) as client:
        with monkeypatch.context() as disk:
            disk.setattr(services, "generation_finish", full)
            accepted = await client.generate(params={"max_tokens": 5})
            frames = await client.to_end()
        assert frames[-1]["code"] == "not_stored" and text_of(frames) == words(5)
        for _ in range(2):  # seen once is not lost yet
            await sync_to_async(services.generations_reap)()
        generation = await row(accepted["generation_id"])
        assert (generation.state, generation.message.content) == ("interrupted", words(5))
