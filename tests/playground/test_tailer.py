"""Following a stream, with a real Redis."""

import asyncio

import pytest
from asgiref.sync import sync_to_async

pytestmark = [pytest.mark.asyncio, pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("empty_redis")]
DELTA = {"type": "delta", "text": "Hi", "tokens": 1, "elapsed_ms": 1.0, "logprobs": [{"id": 1}]}


async def test_an_end_that_is_stored_and_not_yet_said_is_waited_for(owner):
    """Otherwise the database would answer, which has no log-probabilities."""
    from playground.chat.models import Generation
    from playground.streams import StreamWriter
    from playground.tailer import tailer

    generation = await Generation.objects.acreate(**owner.fields(), model="m", state="done", finish_reason="length")
    writer = StreamWriter(generation.pk)
    writer.add(DELTA)
    await sync_to_async(writer.drain)()

    async def follow() -> list[dict]:
        return [frame async for frame in tailer().follow(generation.pk)]

    viewers = [asyncio.create_task(follow()) for _ in range(3)]
    await asyncio.sleep(0.3)
    await sync_to_async(writer.end)({"type": "done", "finish_reason": "length"})
    for frames in await asyncio.wait_for(asyncio.gather(*viewers), 10):
        assert frames == [DELTA | {"event_id": "1-0"}, {"type": "done", "finish_reason": "length", "event_id": "2-0"}]
