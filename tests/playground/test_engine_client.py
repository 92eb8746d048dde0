"""The worker's engine pool."""

import subprocess
import threading
import time

import pytest

from playground.engine_client import EnginePool, count_prompt_tokens, gpu_count, parse_pool
from playground.exceptions import InvalidParameter
from tests.fakes import FakeEngine
from tests.playground.conftest import wait_for

MODEL = "smollm2-135m-instruct"


@pytest.mark.parametrize(
    ("text", "gpus", "layout"),
    [
        ("", 0, [()]),
        ("cpu", 8, [()]),
        ("", 3, [(0,), (1,), (2,)]),
        ("1x2", 2, [(0, 1)]),
        ("2x4", 8, [(0, 1, 2, 3), (4, 5, 6, 7)]),
        ("3x1", 4, [(0,), (1,), (2,)]),
    ],
)
def test_a_pool_is_laid_out_over_the_gpus(text, gpus, layout):
    assert parse_pool(text, gpus) == layout


@pytest.mark.parametrize(
    ("text", "gpus", "words"), [("2x8", 8, "needs 16 GPUs; this machine has 8"), ("two", 8, "got 'two'"), ("0x1", 8, "0x1")]
)
def test_a_pool_that_the_machine_cannot_hold_is_refused(text, gpus, words):
    with pytest.raises(InvalidParameter, match=words):
        parse_pool(text, gpus)


def test_torch_is_asked_for_gpus_only_where_a_driver_is(tmp_path, monkeypatch):
    asked = []

    def run(command, **_):
        asked.append(command)
        return subprocess.CompletedProcess(command, 0, stdout="2\n")

    monkeypatch.setattr(subprocess, "run", run)
    (tmp_path / "nvme0").touch()
    assert gpu_count(tmp_path) == 0 and not asked
    (tmp_path / "nvidia0").touch()
    assert gpu_count(tmp_path) == 2 and len(asked) == 1


def test_a_chat_with_random_weights_is_counted():
    """The page and /v1 take a model that has no files: its tokenizer is made up."""
    assert count_prompt_tokens("random:laneformer-2b", {"messages": [{"role": "user", "content": "Hi"}]}) == 5


@pytest.mark.usefixtures("empty_redis")
def test_slots_are_lent_to_one_request_at_a_time_and_reported():
    pool = EnginePool([(0,), (1,)], factory=lambda *_: FakeEngine())
    pool.start()
    try:
        wait_for(lambda: all(e["state"] == "ready" for e in pool.report()["engines"]))
        third = threading.Event()

        def wait_for_slot() -> None:
            with pool.lease("c", MODEL):
                third.set()

        with pool.hold("a"), pool.lease("a", MODEL) as first, pool.lease("b", MODEL) as second:
            assert {first.engine_name, second.engine_name} == {f"0/{MODEL}", f"1/{MODEL}"}
            assert pool.report()["holds"] == ["a"] and [e["generation"] for e in pool.report()["engines"]] == ["a", "b"]
            thread = threading.Thread(target=wait_for_slot)
            thread.start()
            assert not third.wait(0.2)
        assert third.wait(2)
        thread.join()
    finally:
        pool.close()


@pytest.mark.usefixtures("empty_redis")
def test_an_engine_that_fails_to_load_is_tried_again_and_says_why(monkeypatch):
    from playground import engine_client

    monkeypatch.setattr(engine_client, "RESTART_SECONDS", (0.1,))
    attempts = []

    def factory(*_):
        attempts.append(time.monotonic())
        if len(attempts) < 3:
            raise RuntimeError("the file is cut short")
        return FakeEngine()

    pool = EnginePool([()], factory=factory)
    pool.start()
    try:
        failed = wait_for(lambda: [e for e in pool.report()["engines"] if e["state"] == "failed"])
        assert failed[0]["detail"] == "the file is cut short"
        pool.wait_ready()
        assert len(attempts) == 3
    finally:
        pool.close()
