"""Writes and reads of chats and generations, with a real database and Redis and no worker."""

import threading
import time
from contextlib import ExitStack
from datetime import timedelta
from uuid import uuid4

import pytest

from playground.identity import Owner
from playground.schemas import ChatMessage, Params
from tests.playground.conftest import wait_for

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("empty_redis")]


@pytest.fixture
def services():
    from playground.chat import services

    return services


def ask(services, owner, text="Hello", **fields):
    fields = {"params": Params(max_tokens=5), "messages": [ChatMessage(role="user", content=text)]} | fields
    return services.generation_create(owner=owner, **fields)


def test_a_request_hangs_into_the_tree_and_waits_in_line(services, owner):
    from playground import streams
    from playground.chat.models import Message

    first = ask(services, owner, "One")
    edited = ask(services, owner, "One, edited", conversation_id=first.conversation_id)
    again = ask(services, owner, "One", conversation_id=first.conversation_id, user_message_id=first.message.parent_id)
    deeper = ask(services, owner, "Two", conversation_id=first.conversation_id, parent_id=again.message_id)

    assert Message.objects.filter(role="user", parent=None).count() == 2
    assert again.message.parent_id == first.message.parent_id != edited.message.parent_id
    assert deeper.message.parent.parent_id == again.message_id
    waiting = streams.client().zrange(streams.QUEUE, 0, -1)
    assert waiting == [str(g.pk) for g in (first, edited, again, deeper)]
    assert streams.broker_task_ids() == set(waiting)


def test_a_prompt_of_megabytes_is_refused_without_counting_all_of_it(services, owner, monkeypatch):
    from playground import engine_client
    from playground.chat.models import Generation
    from playground.exceptions import PromptTooLong

    monkeypatch.setattr(engine_client, "count_prompt_tokens", lambda *_: pytest.fail("all of it was counted"))
    with pytest.raises(PromptTooLong) as refused:
        ask(services, owner, "word " * 900_000)
    least = refused.value.prompt_tokens
    assert 8_192 < least < 900_000 and refused.value.details["bound"] == "at_least"
    assert refused.value.message.startswith(f"This prompt has at least {least:,} tokens; smollm2-135m-instruct takes 8,192. Shorten it by ")
    assert Generation.objects.count() == 0


def test_an_answer_whose_worker_fails_is_not_made_on(services, owner, engines, fake_engine, monkeypatch):
    import redis

    from playground import streams
    from playground.chat.runner import generation_run

    def silent(_):
        raise redis.TimeoutError("nothing heard")

    generation = ask(services, owner)
    engines.wait_ready()
    monkeypatch.setattr(streams, "cancel_requested", silent)
    generation_run(generation.pk)
    generation.refresh_from_db()
    assert (generation.state, generation.error_code) == ("failed", "internal")
    assert fake_engine.handles[0].cancelled.is_set()


def test_only_one_worker_starts_a_generation(services, owner):
    from playground import streams

    generation = ask(services, owner)
    info = {"backend": "torch", "device": "CPU", "gpus": 0, "dtype": "float32"}
    started = services.generation_start(generation_id=generation.pk, worker="w", engine="e", info=info)
    assert (started.state, started.worker, started.precision) == ("running", "w", "float32")
    assert services.generation_start(generation_id=generation.pk, worker="x", engine="e", info=info) is None
    assert streams.queue_length() == 0


def test_an_end_is_stored_once(services, owner):
    generation = ask(services, owner)
    done = services.Result("done", text="answer", finish_reason="stop", completion_tokens=3)
    assert services.generation_finish(generation_id=generation.pk, result=done)
    assert not services.generation_finish(generation_id=generation.pk, result=services.Result("failed"))
    generation.refresh_from_db()
    assert (generation.state, generation.message.content, generation.completion_tokens) == ("done", "answer", 3)


def test_a_running_generation_without_a_worker_ends_interrupted_with_its_text(services, owner, monkeypatch):
    from playground import streams

    generation = ask(services, owner)
    services.generation_start(generation_id=generation.pk, worker="gone", engine="e", info={})
    writer = streams.StreamWriter(generation.pk)
    writer.add({"type": "delta", "text": "half an ans", "tokens": 4, "elapsed_ms": 20.0})
    writer.drain()
    monkeypatch.setattr(services, "LOST_SECONDS", 0.2)
    assert services.generations_reap() == [], "seen once is not lost yet"
    time.sleep(0.3)
    assert services.generations_reap() == [generation.pk]
    generation.refresh_from_db()
    assert (generation.state, generation.message.content, generation.completion_tokens) == ("interrupted", "half an ans", 4)
    assert streams.stream_read(generation.pk)[-1][1]["finish_reason"] == "interrupted"


def test_a_queued_generation_whose_task_is_lost_ends_and_one_that_waits_does_not(services, owner, monkeypatch):
    from playground import streams

    lost, held, waits = (ask(services, owner, text) for text in ("lost", "held", "waits"))
    messages = streams.client().lrange("generate", 0, -1)
    for message in messages:
        if str(waits.pk) not in message:
            streams.client().lrem("generate", 1, message)
    streams.worker_beat("w", {"holds": [str(held.pk)], "engines": []})
    monkeypatch.setattr(services, "LOST_SECONDS", 0.2)
    services.generations_reap()
    time.sleep(0.3)
    assert services.generations_reap() == [lost.pk]
    assert streams.queue_length() == 2


def test_a_queue_that_does_not_answer_refuses_and_leaves_nothing_waiting(services, owner, monkeypatch):
    import redis

    from playground import streams
    from playground.chat.models import Generation
    from playground.exceptions import Unavailable

    def down(*_):
        raise redis.ConnectionError("down")

    monkeypatch.setattr(streams, "queue_add", down)
    with pytest.raises(Unavailable):
        ask(services, owner)
    assert Generation.objects.get().state == "failed"


def test_a_queue_that_falls_silent_is_given_up_and_nothing_is_left_half_done(
    services, owner, engines, fake_engine, frozen_redis, empty_redis, monkeypatch
):
    from playground import limits, streams
    from playground.chat.models import Generation
    from playground.chat.runner import generation_run
    from playground.config import config
    from playground.exceptions import Unavailable

    monkeypatch.setattr(config, "max_active_per_owner", 2)
    before = ask(services, owner)
    empty_redis.client_kill_filter(_type="normal", skipme=True)  # the broker's connection is made again
    services.generation_cancel(generation=ask(services, owner))
    assert str(before.pk) in streams.broker_task_ids()

    add = streams.queue_add
    with ExitStack() as stack, monkeypatch.context() as patch:
        patch.setattr(streams, "queue_add", lambda pk: (add(pk), stack.enter_context(frozen_redis())))
        started = time.monotonic()
        with pytest.raises(Unavailable, match="The queue does not answer. Nothing was sent."):
            ask(services, owner)
        assert time.monotonic() - started < 20, "given up by the publish, and once more where the slot is given back"
    refused = Generation.objects.get(state="failed")
    assert (refused.error_code, refused.owner) == ("unavailable", owner)

    wait_for(lambda: str(refused.pk) in streams.broker_task_ids())  # what lay in the connection arrives after all
    generation_run(refused.pk)
    assert not fake_engine.handles and Generation.objects.get(pk=refused.pk).state == "failed"
    services.generations_reap()
    assert streams.client().zrange(streams.QUEUE, 0, -1) == [str(before.pk)]
    monkeypatch.setattr(limits, "YOUNG_SECONDS", 0)
    assert str(ask(services, owner).pk) in streams.broker_task_ids(), "the slot is free again"


def test_limits_hold_for_every_owner_and_for_the_queue(services, owner, monkeypatch):
    from playground.config import config
    from playground.exceptions import QueueFull, TooManyRequests

    monkeypatch.setattr(config, "max_active_per_owner", 2)
    monkeypatch.setattr(config, "max_queued", 3)
    ask(services, owner), ask(services, owner)
    with pytest.raises(TooManyRequests):
        ask(services, owner)
    ask(services, Owner(visitor_id=uuid4()))
    with pytest.raises(QueueFull):
        ask(services, Owner(visitor_id=uuid4()))


def test_deleting_a_conversation_stops_it_and_keeps_the_account_of_it(services, owner):
    from playground import streams
    from playground.chat.models import Conversation, Generation, Message

    generation = ask(services, owner, messages=[ChatMessage(role="system", content="secret"), ChatMessage(role="user", content="Hi")])
    services.conversation_delete(conversation=generation.conversation)
    generation = Generation.objects.get()
    assert (generation.state, generation.conversation_id, generation.message_id) == ("stopped", None, None)
    assert generation.request == {} and generation.system_prompt == "" and generation.prompt_tokens > 0
    assert not Conversation.objects.exists() and not Message.objects.exists()
    assert streams.queue_length() == 0


def test_a_request_that_comes_while_its_conversation_is_deleted_finds_none(services, owner, monkeypatch):
    """The request comes after the deletion has looked for messages; it waits for the deletion, and neither fails over the other."""
    from django.db import connection
    from django.db.models.deletion import Collector

    from playground.chat.models import Conversation, Message
    from playground.exceptions import NotFound

    conversation = ask(services, owner).conversation
    collect, ended = Collector.collect, []

    def come() -> None:
        try:
            ended.append(ask(services, owner, "More", conversation_id=conversation.pk))
        except Exception as error:
            ended.append(error)
        connection.close()

    def look_then_wait(self, found, *args, **kwargs) -> None:
        collect(self, found, *args, **kwargs)
        if getattr(found, "model", type(found[0])) is Conversation:
            thread.start()
            thread.join(1)

    thread = threading.Thread(target=come)
    monkeypatch.setattr(Collector, "collect", look_then_wait)
    services.conversation_delete(conversation=conversation)
    thread.join(20)
    assert [type(end) for end in ended] == [NotFound]
    assert not Conversation.objects.exists() and not Message.objects.exists()


def test_conversations_are_listed_newest_first_found_by_text_and_paged(services, owner):
    from django.utils import timezone

    from playground.chat import selectors
    from playground.chat.models import Conversation

    for i in range(selectors.PAGE_SIZE + 5):
        made = services.conversation_create(owner=owner, title=f"Chat {i}")
        Conversation.objects.filter(pk=made.pk).update(updated_at=timezone.now() + timedelta(seconds=i))
    services.message_append(conversation=made, parent=None, role="user", content="Dijkstra's algorithm")
    services.conversation_create(owner=Owner(visitor_id=uuid4()), title="Somebody else's")

    page = selectors.conversation_list(owner=owner)
    assert page.items[0].title == f"Chat {selectors.PAGE_SIZE + 4}" and len(page.items) == selectors.PAGE_SIZE
    rest = selectors.conversation_list(owner=owner, before=page.next)
    assert [item.title for item in rest.items] == [f"Chat {i}" for i in (4, 3, 2, 1, 0)] and rest.next is None
    assert [item.id for item in selectors.conversation_list(owner=owner, query="dijkstra").items] == [made.pk]


@pytest.mark.parametrize(
    ("text", "title"),
    [("\n  def add(a, b)\nmore", "def add(a, b)"), ("word " * 40, "word " * 11 + "word…"), (" ", "")],
)
def test_titles_are_the_first_line(services, text, title):
    assert services.title_from(text) == title
