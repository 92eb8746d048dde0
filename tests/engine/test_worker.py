"""The engine as processes: real spawn, real pipes; cancel, crash, parent's death, refusals, no process left."""

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest
from tokenizers import Tokenizer as Pipeline
from tokenizers import decoders, models, pre_tokenizers

from engine import Engine, EngineConfig, GenerationRequest, SamplingParams
from engine.errors import EngineError, EngineStopped, InvalidRequest, ModelError, PromptTooLong, UnknownModel
from engine.request import Delta, Done, Failed, Progress, Started
from engine.tokenizer.tokenizer import ALPHABET
from engine.worker import make_backend

MODEL = "smollm2-135m-instruct"
TINY = str(next((Path(__file__).parent.parent / "golden" / "llama").iterdir()))
SYNTHETIC = "tests.fakes:SyntheticBackend"
HELLO = [{"role": "user", "content": "hello"}]


def request(name="r", **sampling):
    return GenerationRequest(name, SamplingParams(**sampling), messages=HELLO)


@pytest.fixture(scope="module")
def rate():
    os.environ["SYNTHETIC_TOKENS_PER_S"] = "2000"
    yield 2000
    del os.environ["SYNTHETIC_TOKENS_PER_S"]


@pytest.fixture(scope="module")
def synthetic(rate):
    with Engine(EngineConfig(MODEL, backend=SYNTHETIC)) as engine:
        yield engine


def text_of(events):
    return "".join(event.text for event in events if isinstance(event, Delta))


def test_many_tokens_in_few_messages_none_lost(synthetic, rate):
    events = list(synthetic.submit(request(max_tokens=2000)))
    deltas = [event for event in events if isinstance(event, Delta)]
    assert sum(len(delta.token_ids) for delta in deltas) == 2000 and len(deltas) < 130
    times = [ms for delta in deltas for _, ms in delta.points or ((1, delta.elapsed_ms),)]
    assert times == sorted(times)
    assert text_of(events).startswith("Here is a function that adds two numbers:") and "\ufffd" not in text_of(events)
    assert events[-1].timings.decode_tokens_per_s == pytest.approx(rate, rel=0.02)


def test_the_first_request_waits_for_no_tokenizer(synthetic, monkeypatch):
    monkeypatch.delattr("engine.tokenizer.load_tokenizer")  # it has been loaded already
    for prompt in ({"messages": [{"role": "user", "content": "Hi"}]}, {"prompt": "Hi"}):
        assert list(synthetic.submit(GenerationRequest("first", SamplingParams(max_tokens=1), **prompt)))[-1].finish_reason == "length"


def test_first_come_first_served(synthetic):
    handles = [synthetic.submit(request(f"r{i}", max_tokens=20)) for i in range(5)]
    ends = [list(handle)[-1] for handle in handles]
    assert all(end.finish_reason == "length" for end in ends)
    starts_ms = [handle._received_ns / 1e6 + end.timings.queue_ms for handle, end in zip(handles, ends, strict=True)]
    assert starts_ms == sorted(starts_ms)


def test_cancel_from_another_thread(synthetic):
    handle = synthetic.submit(request())
    cancelled_at = []
    threading.Timer(0.3, lambda: (cancelled_at.append(time.monotonic()), handle.cancel())).start()
    events = list(handle)
    delay = time.monotonic() - cancelled_at[0]
    print(f"cancelled to Done: {delay * 1e3:.1f} ms")
    assert events[-1].finish_reason == "cancelled" and delay < 0.5
    assert events[-1].usage.completion_tokens == sum(len(e.token_ids) for e in events if isinstance(e, Delta)) > 0
    handle.cancel()  # idempotent, also afterwards
    assert list(synthetic.submit(request(max_tokens=3)))[-1].finish_reason == "length"


def test_cancel_while_queued(synthetic):
    first, second = synthetic.submit(request("first")), synthetic.submit(request("second"))
    second.cancel()
    first.cancel()
    assert list(first)[-1].finish_reason == "cancelled"
    assert [type(event) for event in second] == [Done]


def test_refusals_come_before_the_queue(synthetic):
    tokens = synthetic.info.context_tokens
    with pytest.raises(PromptTooLong, match=f"{tokens + 1:,} tokens; .* takes {tokens:,}. Shorten it by 1"):
        synthetic.submit(GenerationRequest("r", prompt_ids=[5] * (tokens + 1)))
    for bad, message in [
        ({"prompt_ids": [49_152]}, "49,151; got 49152"),
        ({"prompt_ids": [1, 1.0]}, "49,151; got 1.0"),
        ({"prompt_ids": [True]}, "49,151; got True"),
        ({"prompt_ids": ["7"]}, "49,151; got '7'"),
        ({"prompt_ids": []}, "empty"),
        ({"prompt": ""}, "empty"),
        ({"prompt": "a", "prompt_ids": [1]}, "exactly one"),
        ({}, "exactly one"),
        ({"messages": [{"role": "boss", "content": "x"}]}, "'boss'"),
    ]:
        with pytest.raises(InvalidRequest, match=message):
            synthetic.submit(GenerationRequest("r", **bad))


def test_a_killed_process_ends_every_request_within_a_second(rate):
    engine = Engine(EngineConfig(MODEL, backend=SYNTHETIC))
    running, waiting = engine.submit(request("running")), engine.submit(request("waiting"))
    events = iter(running)
    assert isinstance(next(events), Started)
    made = len(next(event for event in events if isinstance(event, Delta)).token_ids)
    os.kill(engine.pid, signal.SIGKILL)
    start = time.monotonic()
    *deltas, last = events
    assert last.code == "engine_stopped"
    assert last.usage.completion_tokens == made + sum(len(delta.token_ids) for delta in deltas) > 0
    assert [type(event) for event in waiting] == [Failed]
    print(f"crash to Failed: {(time.monotonic() - start) * 1e3:.1f} ms")
    assert time.monotonic() - start < 1.0 and not engine.alive
    with pytest.raises(EngineStopped):
        engine.submit(request("after"))
    engine.close()


def test_close_leaves_no_process_and_ends_the_running_request(rate):
    engine = Engine(EngineConfig(MODEL, backend=SYNTHETIC))
    handle, pid = engine.submit(request()), engine.pid
    engine.close()
    assert isinstance(list(handle)[-1], Done | Failed)
    assert not psutil.pid_exists(pid) and not engine.alive
    engine.close()


def test_the_process_ends_with_its_parent(rate):
    code = (
        "import os, signal\nfrom engine import Engine, EngineConfig\n"
        f"if __name__ == '__main__':\n    e = Engine(EngineConfig({MODEL!r}, backend={SYNTHETIC!r}))\n"
        "    print(e.pid, flush=True)\n    os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    pid = int(done.stdout)
    deadline = time.monotonic() + 5
    while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline, "the engine outlives its parent"
        time.sleep(0.05)


def test_loading_reports_progress_and_a_model_without_tokenizer_takes_ids():
    seen: list[Progress] = []
    with Engine(EngineConfig(TINY, backend="torch", gpus=0, context_tokens=32), on_progress=seen.append) as engine:
        assert {progress.stage for progress in seen} >= {"load", "warmup"} and seen[-1].fraction == 1.0
        assert engine.info.context_tokens == 32
        events = list(engine.submit(GenerationRequest("r", SamplingParams(ignore_eos=True), prompt_ids=[1] * 30)))
        assert text_of(events) == "" and events[-1].finish_reason == "length" and events[-1].usage.completion_tokens == 2
        with pytest.raises(ModelError, match="no tokenizer"):
            engine.submit(request())


def test_a_token_beyond_the_models_vocabulary_never_reaches_it(tmp_path):
    """The tokenizer has one token more than the model, as after a token was added and the embedding was not resized."""
    folder = shutil.copytree(TINY, tmp_path / "model")
    pipeline = Pipeline(models.BPE({sign: i for i, sign in enumerate(ALPHABET)}, []))
    pipeline.pre_tokenizer, pipeline.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    pipeline.add_tokens(["[more]"])
    pipeline.save(str(folder / "tokenizer.json"))
    with Engine(EngineConfig(str(folder), backend="torch", gpus=0)) as engine:
        assert (
            list(engine.submit(GenerationRequest("a", SamplingParams(max_tokens=2, ignore_eos=True), prompt="a")))[
                -1
            ].usage.completion_tokens
            == 2
        )
        with pytest.raises(InvalidRequest, match="makes token 256 of this text; the model's vocabulary ends with 255"):
            engine.submit(GenerationRequest("b", prompt="a [more]"))


def test_random_weights_answer_a_chat_up_to_its_length():
    with Engine(EngineConfig("random:tiny", backend="torch", gpus=0)) as engine:
        events = list(engine.submit(request(max_tokens=20, temperature=1.0, seed=3)))
    assert events[-1].finish_reason == "length" and events[-1].usage.completion_tokens == 20 and len(text_of(events)) > 20


def test_what_keeps_an_engine_from_loading_is_raised(tmp_path):
    with pytest.raises(UnknownModel, match="no-such-model"):
        Engine(EngineConfig("no-such-model", backend="torch"))
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ModelError):
        Engine(EngineConfig(str(tmp_path), backend="torch"))
    with pytest.raises(EngineStopped, match="exit code 3"):
        Engine(EngineConfig(MODEL, backend="tests.engine.test_worker:exit_at_once"))


@pytest.mark.parametrize(
    ("gpus", "backend", "words"),
    [
        (-1, "auto", "gpus must be a number of at least 0.*; got -1"),
        ((0, 0), "auto", r"tuple of different GPUs from 0 on; got \(0, 0\)"),
        (64, "auto", "gpus=64 is more than this machine's"),
        (64, "torch", "gpus=64: the torch backend uses at most one GPU"),
        (64, "monokernel", "8 lanes do not divide over 64 GPUs"),
    ],
)
def test_gpus_that_cannot_be_had_are_refused(gpus, backend, words):
    with pytest.raises(EngineError, match=words):
        make_backend(EngineConfig("random:tiny", backend=backend, gpus=gpus), lambda progress: None)


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ({"gpus": "2"}, "gpus must be a number of at least 0.*; got '2'"),
        ({"gpus": 1.5}, "gpus must be a number of at least 0.*; got 1.5"),
        ({"context_tokens": 0}, "context_tokens must be a whole number of at least 1; got 0"),
        ({"context_tokens": -5}, "context_tokens must be a whole number of at least 1; got -5"),
    ],
)
def test_settings_that_mean_nothing_are_refused_before_a_process_starts(setting, words):
    with pytest.raises(InvalidRequest, match=words):
        EngineConfig("random:tiny", **setting)


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"max_tokens": 2.5}, "Max tokens must be a whole number; got 2.5"),
        ({"top_k": 1.5}, "Top-k must be a whole number; got 1.5"),
        ({"seed": 3.0}, "Seed must be a whole number; got 3.0"),
        ({"logprobs": 1.0}, "Logprobs must be a whole number; got 1.0"),
        ({"temperature": float("nan")}, "Temperature must lie between 0.0 and 2.0; got nan"),
        ({"max_tokens": True}, "Max tokens must lie between 1 and 1,000,000; got True"),
        ({"stop": "abc"}, "Stop strings must be a tuple of strings; got 'abc'"),
        ({"stop": ("a", 1)}, r"Stop strings must be a tuple of strings; got \('a', 1\)"),
        ({"stop": None}, "Stop strings must be a tuple of strings; got None"),
    ],
)
def test_sampling_parameters_that_mean_nothing_are_refused(parameters, words):
    with pytest.raises(InvalidRequest, match=words):
        SamplingParams(**parameters)


def test_no_gpus_is_the_cpu_on_a_machine_with_gpus_too(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    for none in (0, ()):
        assert make_backend(EngineConfig("random:tiny", gpus=none), lambda progress: None).info.backend == "torch"


def exit_at_once(model, **settings):
    os._exit(3)
