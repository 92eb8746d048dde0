"""The stream's writer, with a real Redis."""

import threading
import time
from uuid import uuid4

import pytest
import redis

from tests.playground.conftest import wait_for


@pytest.fixture
def streams(empty_redis):
    from playground import streams

    return streams


def delta(text: str, elapsed_ms: float = 1.0) -> dict:
    return {"type": "delta", "text": text, "tokens": 1, "elapsed_ms": elapsed_ms}


def test_frames_come_out_in_order_batched_and_numbered(streams):
    generation_id = uuid4()
    writer = streams.StreamWriter(generation_id)
    writer.add({"type": "started", "prompt_tokens": 1, "queue_ms": 0.0})
    for i in range(2000):
        writer.add(delta(f"{i} ", float(i)))
    writer.drain()
    writer.end({"type": "done"})

    entries = streams.stream_read(generation_id)
    assert [i for i, _ in entries] == [f"{n}-0" for n in range(1, len(entries) + 1)]
    assert "".join(f["text"] for _, f in entries if f["type"] == "delta") == "".join(f"{i} " for i in range(2000))
    assert len(entries) < 200, "deltas that come faster than a batch are merged"
    assert [row[0] for row in writer.trace] == [n for n, (_, f) in enumerate(entries, 1) if f["type"] == "delta"]
    assert sum(row[2] for row in writer.trace) == 2000
    assert 0 < streams.client().ttl(streams.stream_key(generation_id)) <= 3600


def test_a_single_frame_goes_out_at_once(streams):
    generation_id = uuid4()
    writer = streams.StreamWriter(generation_id)
    time.sleep(0.05)
    started = time.monotonic()
    writer.add(delta("x"))
    wait_for(lambda: streams.stream_read(generation_id))
    assert time.monotonic() - started < 0.5  # 10 ms and what a loaded machine adds
    writer.drain()


def test_neither_the_first_delta_nor_the_end_waits_for_a_batch(streams, monkeypatch):
    monkeypatch.setattr(streams, "BATCH_SECONDS", 60)
    generation_id = uuid4()
    writer = streams.StreamWriter(generation_id)
    for count, frame in enumerate(({"type": "started"}, {"type": "prefill"}, delta("first")), 1):
        writer.add(frame)
        wait_for(lambda count=count: len(streams.stream_read(generation_id)) == count)
    writer.add(delta("second"))
    writer.drain()
    assert [frame.get("text") for _, frame in streams.stream_read(generation_id)] == [None, None, "first", "second"]


def test_a_writer_that_was_taken_for_dead_is_refused(streams):
    generation_id = uuid4()
    writer = streams.StreamWriter(generation_id)
    writer.add(delta("kept"))
    wait_for(lambda: streams.stream_read(generation_id))
    streams.stream_end(generation_id, 1, {"type": "done"})
    writer.add(delta("lost"))
    with pytest.raises(streams.StreamTaken):
        writer.drain()
    assert [f["type"] for _, f in streams.stream_read(generation_id)] == ["delta", "done"]


def test_cancel_reaches_a_listener_and_stays_for_a_late_one(streams):
    generation_id = uuid4()
    heard = []
    with streams.client().pubsub(ignore_subscribe_messages=True) as pubsub:
        pubsub.subscribe(streams.CANCEL_CHANNEL)
        thread = threading.Thread(target=lambda: heard.append(wait_for(lambda: pubsub.get_message(timeout=0.1))))
        thread.start()
        time.sleep(0.1)
        streams.cancel_request(generation_id)
        thread.join()
    assert heard[0]["data"] == str(generation_id)
    assert streams.cancel_requested([uuid4(), generation_id]) == [generation_id]


def test_a_worker_without_heartbeat_disappears(streams):
    streams.worker_beat("a", {"engines": []})
    streams.worker_beat("b", {"engines": []})
    streams.client().delete("worker:a")
    assert list(streams.workers()) == ["b"]
    assert streams.client().smembers(streams.WORKERS) == {"b"}


def test_a_writer_goes_on_where_it_was_after_a_silence_in_which_its_entries_arrived(streams, frozen_redis, monkeypatch):
    """Redis takes what lies in a connection that its client has long given up, and then the same from the next one."""
    quick = redis.Redis.from_url(streams.settings.REDIS_URL, decode_responses=True, socket_timeout=0.2)
    quick.ping()
    monkeypatch.setattr(streams, "client", lambda: quick)
    streams.be_patient()
    generation_id = uuid4()
    writer = streams.StreamWriter(generation_id)
    writer.add(delta("before "))
    wait_for(lambda: streams.stream_read(generation_id))
    with frozen_redis():
        writer.add(delta("meanwhile "))
        time.sleep(0.7)
    writer.add(delta("after"))
    writer.drain()
    assert [frame["text"] for _, frame in streams.stream_read(generation_id)] == ["before ", "meanwhile ", "after"]
    assert [row[:2] for row in writer.trace] == [[1, 7], [2, 10], [3, 5]]


def test_a_silent_server_is_asked_once_and_a_lost_connection_is_made_again(streams, empty_redis, frozen_redis, settings):
    settings.REDIS_SILENCE_SECONDS = 0.5
    client = streams.client.__wrapped__()
    client.set("kept", "1")
    empty_redis.client_kill_filter(_type="normal", skipme=True)
    assert client.get("kept") == "1", "its idle connection was dead"
    for _ in range(2):  # an open connection, then a new one
        with frozen_redis():
            started = time.monotonic()
            with pytest.raises(redis.TimeoutError):
                client.get("kept")
            assert time.monotonic() - started < 1.0
    client.set("other", "2")
    assert (client.get("kept"), client.get("other")) == ("1", "2"), "no answer of before is taken for a later one's"
