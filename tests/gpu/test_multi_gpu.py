"""Two or more GPUs of this machine: the same tokens and logits as one, speed, waits, failures. ``pytest -s`` prints the figures."""

import os
import signal
import time
from collections.abc import Callable

import psutil
import pytest
import torch

from engine import Engine, EngineConfig, GenerationRequest
from engine.__main__ import main
from engine.bench.measure import measure
from engine.errors import DeviceError
from engine.kernel.backend import MonokernelBackend
from engine.kernel.ranks import MultiGpuBackend, make_backend
from engine.request import Delta, Failed, SamplingParams
from tests.gpu.test_monokernel import generate, prompt

GPUS = torch.cuda.device_count()
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(GPUS < 2, reason="needs two CUDA GPUs")]
CONTEXT, POSITIONS = 1024, 1000
MODELS = {"random:laneformer-2b": "float16", "random:llama-3.2-1b": "bfloat16"}
SAMPLED = SamplingParams(temperature=0.8, top_k=50, top_p=0.95, seed=11)


def counts() -> list[int]:
    return [n for n in (2, 4, 8) if n <= GPUS]


def results(backend: "MonokernelBackend | MultiGpuBackend") -> dict:
    """What one and several GPUs are compared by. A MonokernelBackend's logits come from the decode phases too."""
    ids = prompt(POSITIONS, backend.config.vocab_size)
    found = {
        "speed": measure(backend, 128, 512, runs=3),
        "greedy": generate(backend, ids[:300], 64),
        "sampled": generate(backend, ids[:40], 64, SAMPLED),
        "logits": backend.logits(ids, decode=True),
    }
    if isinstance(backend, MultiGpuBackend):
        generate(backend, ids[:128], 512)
        found["waits"] = {kind: time_us / 512 for kind, time_us in backend.waited_us().items()}
    backend.close()
    return found


@pytest.fixture(scope="module", params=[(name, kernel) for name in MODELS for kernel in ("portable", "gluon")], ids=" ".join)
def one(request):
    name, kernel = request.param
    backend = MonokernelBackend(name, dtype=MODELS[name], context_tokens=CONTEXT, kernel=kernel, measure_bandwidth=False)
    return name, kernel, results(backend)


@pytest.mark.parametrize("gpus", counts())
def test_several_gpus_agree_with_one(one, gpus):
    name, kernel, single = one
    if (name, kernel, gpus) == ("random:laneformer-2b", "gluon", 8):
        pytest.skip("the fast path takes pairs of lanes")
    settings = {"dtype": MODELS[name], "context_tokens": CONTEXT, "kernel": kernel, "measure_bandwidth": False}
    several = results(make_backend(name, gpus=gpus, **settings))
    a, b = single["logits"], several["logits"]
    error = ((a - b).norm() / a.norm()).item()
    agree = (a.argmax(-1) == b.argmax(-1)).float().mean().item()
    speeds = single["speed"].decode_tokens_per_s, several["speed"].decode_tokens_per_s
    times = several["speed"].ttft_ms, single["speed"].ttft_ms
    print(f"\n{name}, {kernel} kernel, {gpus} GPUs: {speeds[1]:.1f} tokens/s, {speeds[1] / speeds[0]:.2f} x one GPU ({speeds[0]:.1f})")
    print(f"TTFT {times[0]:.2f} ms, one GPU {times[1]:.2f}; waits for peers, us per token: {several['waits']}")
    print(f"logits of {POSITIONS} positions: relative error {error:.1e}, top-1 {agree:.4f}, equal bits: {torch.equal(a, b)}")
    assert error < 2e-3 and agree > 0.99
    for kind in ("greedy", "sampled"):
        same = next((i for i, (x, y) in enumerate(zip(single[kind], several[kind], strict=True)) if x != y), 64)
        print(f"{kind}: first {same} of 64 tokens equal")
        assert same >= 16  # random weights: rounding may part them at a near tie, never at once


def test_a_killed_rank_ends_the_generation_within_a_second():
    backend = make_backend("random:laneformer-2b", gpus=2, dtype="float16", context_tokens=CONTEXT, measure_bandwidth=False)
    try:
        run = backend.start([1, 2, 3], SamplingParams(), frozenset(), CONTEXT - 3)
        while not run.poll(1.0):
            pass
        os.kill(backend._ranks[0]._process.pid, signal.SIGKILL)
        killed = time.monotonic()
        with pytest.raises(DeviceError):
            while run.finish_reason is None:
                run.poll(1.0)
        print(f"\nerror after {time.monotonic() - killed:.3f} s")
        assert time.monotonic() - killed < 1
        run._own.close()  # the kernel of this rank ends by itself
        assert time.monotonic() - killed < 2
    finally:
        backend.close()


def start_engine() -> Engine:
    return Engine(EngineConfig("random:laneformer-2b", backend="monokernel", gpus=2, dtype="float16", context_tokens=CONTEXT))


def rank_of(engine: Engine) -> psutil.Process:
    """The process of GPU 1."""
    children = psutil.Process(engine.pid).children(recursive=True)
    return next(child for child in children if "spawn_main" in " ".join(child.cmdline()))


def failure(engine: Engine, act: Callable[[], None]) -> Failed:
    """The end of a generation in whose course something happens."""
    events = iter(engine.submit(GenerationRequest("r", SamplingParams(ignore_eos=True), prompt_ids=[1, 2, 3])))
    for event in events:
        if isinstance(event, Delta):
            act()
            break
    return list(events)[-1]


@pytest.mark.parametrize("signal_number", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "hung"])
def test_a_lost_rank_ends_the_engine_and_frees_all_memory(signal_number):
    """A process that hangs leaves its kernel running: the generation is made to its end, and reported as failed half a second later."""
    before = [torch.cuda.mem_get_info(gpu)[0] for gpu in range(2)]
    engine = start_engine()
    rank = rank_of(engine)
    last = failure(engine, lambda: rank.send_signal(signal_number))
    ended = time.monotonic()
    assert isinstance(last, Failed) and last.code == "device_error" and "GPU 1" in last.message
    while engine.alive:
        assert time.monotonic() - ended < 3
        time.sleep(0.01)
    engine.close()
    while rank.is_running() or any(torch.cuda.mem_get_info(gpu)[0] < before[gpu] - 2**28 for gpu in range(2)):
        assert time.monotonic() - ended < 5, "a process or its memory is left"
        time.sleep(0.05)
    print(f"\n{last.message} Memory free after {time.monotonic() - ended:.1f} s")


def test_a_rank_that_never_starts_is_given_up_within_a_second():
    with start_engine() as engine:
        rank_of(engine).suspend()
        began = time.monotonic()
        last = list(engine.submit(GenerationRequest("r", SamplingParams(ignore_eos=True), prompt_ids=[1, 2, 3])))[-1]
        print(f"\n{last.message} After {time.monotonic() - began:.2f} s")
        assert isinstance(last, Failed) and last.code == "device_error"
        assert time.monotonic() - began < 1


def test_a_gpu_without_memory_is_named():
    free, _ = torch.cuda.mem_get_info(1)
    filling = torch.empty(free - 2**30, dtype=torch.uint8, device="cuda:1")
    with pytest.raises(DeviceError, match="does not fit on cuda:1|no memory left on GPU 1|GPU 1 has no memory left"):
        start_engine()
    del filling
    torch.cuda.empty_cache()


def test_bench_measures_fewer_gpus_in_the_same_run(tmp_path, capsys):
    arguments = ["--dtype", "float16", "--gpus", "2", "--runs", "2", "--scaling", str(tmp_path / "scaling.svg")]
    assert main(["bench", "random:laneformer-2b", *arguments]) == 0
    out = capsys.readouterr().out
    print(out)
    assert "us a layer" in out and "GB/s pushed" in out and "2 GPUs are" in out
    assert (tmp_path / "scaling.svg").read_text().count("<circle") == 2


@pytest.mark.skipif(GPUS >= 8, reason="the model has eight lanes")
def test_too_many_gpus_are_refused():
    with pytest.raises(DeviceError, match=f"this machine has {GPUS}"):
        make_backend("random:laneformer-2b", gpus=8, context_tokens=CONTEXT)
