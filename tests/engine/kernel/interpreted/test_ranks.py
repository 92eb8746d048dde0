"""Several ranks, each a process with the kernel in the interpreter, over shared memory: tokens, logits, stop, lost ranks."""

import os
import pkgutil
import signal
import time
from functools import partial

import psutil
import pytest
import torch

from engine import Engine, EngineConfig, GenerationRequest, reference, sampling
from engine.config import Head, Reduction
from engine.errors import DeviceError, EngineError, InvalidRequest, ModelError, NumericalError
from engine.kernel import backend as one_rank
from engine.kernel import ranks as module
from engine.kernel.ranks import MultiGpuBackend, check, make_backend, serve
from engine.loading.export import export
from engine.loading.random import RandomReader
from engine.request import Failed, SamplingParams, Started
from engine.weights import Shard
from tests.engine.kernel.interpreted.models import CONTEXT, CPU, lanes_config, llama_config

SIZES = dict(hidden_size=48, reductions=(Reduction.PRESENT, Reduction.PAST, Reduction.PAST))  # config.json has no head size
MODELS = {
    "replicate": lanes_config(Head.REPLICATE, **SIZES),
    "vocab_parallel": lanes_config(Head.VOCAB_PARALLEL, lane_norms=False, **SIZES),
    "lane": lanes_config(Head.LANE, **SIZES),
    "llama": llama_config(n_heads=4, n_kv_heads=2, qkv_bias=False),
    "four lanes": lanes_config(Head.REPLICATE, **SIZES, n_lanes=4, n_heads=4, n_kv_heads=4, vocab_size=48),
    "eight lanes": lanes_config(Head.REPLICATE, **SIZES, n_lanes=8, n_heads=8, n_kv_heads=8, head_size=6, vocab_size=48),
}
RANKS = {"four lanes": 4, "eight lanes": 8}  # of the others: 2
PROMPT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2, 3]  # 17 of them are prefilled, in two chunks of 16 rows
SPIN_LIMIT = 2_000_000  # a wait of a rank: a quarter of a million polls in Python, minutes


@pytest.fixture(autouse=True)
def a_slow_machine_is_no_failure(monkeypatch):
    """Ranks that the interpreter runs end far apart."""
    monkeypatch.setattr(module, "ANSWER_SECONDS", 30.0)


def start(name: str, tmp_path_factory, ranks: int = 2) -> MultiGpuBackend:
    folder = tmp_path_factory.mktemp(name) / "model"
    export(MODELS[name], RandomReader(MODELS[name]), folder, torch.float32)
    backend = make_backend(str(folder), gpus=ranks, dtype="float32", measure_bandwidth=False)
    assert isinstance(backend, MultiGpuBackend)
    return backend


def tokens_of(backend: MultiGpuBackend, prompt: list[int], params: SamplingParams, count: int) -> list:
    run = backend.start(prompt, params, frozenset(), count, spin_limit=SPIN_LIMIT)
    tokens = []
    while run.finish_reason is None:
        tokens += run.poll(1.0)
    run.close()
    assert run.finish_reason == "length"
    return tokens


def expected_tokens(name: str, prompt: list[int], params: SamplingParams, count: int) -> tuple[list[int], torch.Tensor]:
    """By the reference forward and the reference sampler; with the logits of every choice."""
    from engine.loading.assemble import assemble

    config = MODELS[name]
    weights = assemble(config, RandomReader(config), torch.float32, CPU, Shard())
    ids, rows = list(prompt), []
    for _ in range(count):
        rows.append(reference.forward(config, weights, ids)[-1])
        ids.append(sampling.sample(rows[-1], params, params.seed or 0, len(ids)))
    return ids[len(prompt) :], torch.stack(rows)


@pytest.mark.parametrize("name", MODELS)
def test_ranks_make_the_tokens_of_one(name, tmp_path_factory):
    backend = start(name, tmp_path_factory, RANKS.get(name, 2))
    try:
        cases = [(PROMPT, 3, SamplingParams())] if name == "replicate" else [(PROMPT[:3], 2, SamplingParams())]
        if name in ("replicate", "llama"):
            cases.append((PROMPT[:2], 2, SamplingParams(temperature=1.2, top_k=20, top_p=0.8, seed=7, logprobs=3)))
        if name == "replicate":  # the same lengths: no word of one generation may pass for one of the next
            cases += [(prompt, 1, SamplingParams(logprobs=3)) for prompt in ([7, 30], [44, 2], [19, 11])]
        for prompt, count, params in cases:
            wanted, rows = expected_tokens(name, prompt, params, count)
            made = tokens_of(backend, prompt, params, count)
            assert [token.id for token in made] == wanted
            if params.logprobs:
                for token, row in zip(made, rows, strict=True):
                    logprob, top = sampling.logprobs(row, token.id, 3)
                    assert abs(token.logprob - logprob) < 1e-4
                    assert [i for i, _ in token.top] == [i for i, _ in top]
    finally:
        backend.close()


def test_logits_bad_numbers_stop_and_a_rank_that_is_killed(tmp_path_factory):
    backend = start("replicate", tmp_path_factory)
    try:
        config = MODELS["replicate"]
        assert backend.info.gpus == 0 and backend.info.vocab_size == config.vocab_size
        wanted, rows = expected_tokens("replicate", [3, 1], SamplingParams(), 1)
        logits = backend.logits([3, 1])
        assert (logits[-1] - rows[0]).abs().max() < 1e-5

        backend._local.weights.embedding[7] = float("nan")  # on rank 0 only
        for prompt in ([7, 3], [3, 7]):  # in the prompt's chunk; in the first token
            run = backend.start(prompt, SamplingParams(), frozenset(), 5, spin_limit=SPIN_LIMIT)
            with pytest.raises(NumericalError):
                while run.finish_reason is None:
                    assert not run.poll(1.0)
            run.close()
            assert len(tokens_of(backend, [3, 1], SamplingParams(), 1)) == 1  # the other rank has heard of it, and waits no more
        with pytest.raises(InvalidRequest, match="end-of-sequence ids"):
            backend.start([3, 1], SamplingParams(), frozenset(range(49)), 5)

        run = backend.start([3, 1], SamplingParams(), frozenset(), CONTEXT - 2, spin_limit=SPIN_LIMIT)
        made = []
        while not made:
            made += run.poll(1.0)
        run.stop()
        while run.finish_reason is None:
            made += run.poll(1.0)
        assert run.finish_reason == "cancelled" and made[0].id == wanted[0] and len(made) < CONTEXT - 2
        run.close()

        run = backend.start([3, 1], SamplingParams(), frozenset(), CONTEXT - 2, spin_limit=SPIN_LIMIT)
        while not run.poll(1.0):
            pass
        os.kill(backend._ranks[0]._process.pid, signal.SIGKILL)
        killed = time.monotonic()
        with pytest.raises(DeviceError, match=r"process of GPU 1 ended \(exit code -9\)"):
            while True:
                run.poll(1.0)
        assert time.monotonic() - killed < 5
        run._own.close()  # the kernel of this rank has been told, whatever its own limit
    finally:
        backend.close()


def test_a_rank_that_hangs_is_reported_by_the_kernel(tmp_path_factory):
    backend = start("llama", tmp_path_factory)
    try:
        run = backend.start([3, 1], SamplingParams(), frozenset(), 10, spin_limit=4_000)
        while not run.poll(1.0):
            pass
        os.kill(backend._ranks[0]._process.pid, signal.SIGSTOP)
        with pytest.raises(EngineError, match="Another GPU did not answer|does not answer"):
            while True:
                run.poll(1.0)
    finally:
        os.kill(backend._ranks[0]._process.pid, signal.SIGKILL)
        backend.close()


def test_an_engine_whose_rank_is_killed_fails_its_request_and_leaves_no_process(tmp_path):
    folder = tmp_path / "model"
    export(MODELS["replicate"], RandomReader(MODELS["replicate"]), folder, torch.float32)
    engine = Engine(EngineConfig(str(folder), backend="monokernel", gpus=2, dtype="float32"))
    processes = [psutil.Process(engine.pid), *psutil.Process(engine.pid).children(recursive=True)]
    rank = next(process for process in processes[1:] if "spawn_main" in " ".join(process.cmdline()))
    events = iter(engine.submit(GenerationRequest("r", SamplingParams(), prompt_ids=[3, 1])))
    assert isinstance(next(events), Started)
    rank.kill()
    killed = time.monotonic()
    last = list(events)[-1]
    assert isinstance(last, Failed) and last.code == "device_error" and "GPU 1 ended (exit code -9)" in last.message
    assert time.monotonic() - killed < 5
    assert not psutil.wait_procs(processes, timeout=60)[1] and not engine.alive


@pytest.mark.parametrize(
    ("config", "ranks", "words"),
    [
        (MODELS["replicate"], 3, "2 lanes do not divide over 3 GPUs"),
        (MODELS["llama"], 4, "2 KV heads do not divide over 4 GPUs"),
        (llama_config(n_heads=4, n_kv_heads=2, vocab_size=51), 2, "51 vocabulary rows do not divide over 2 GPUs"),
        (lanes_config(Head.REPLICATE, reductions=(Reduction.PRESENT, Reduction.PAST, Reduction.PRESENT)), 2, "no present sums"),
    ],
)
def test_what_does_not_divide_is_refused(config, ranks, words):
    with pytest.raises(ModelError, match=words):
        check(config, ranks)


def test_a_rank_that_cannot_load_ends_the_start(tmp_path_factory):
    folder = tmp_path_factory.mktemp("broken") / "model"
    export(MODELS["llama"], RandomReader(MODELS["llama"]), folder, torch.float32)
    (folder / "model.safetensors").write_bytes(b"not a checkpoint")
    started = time.monotonic()
    with pytest.raises(ModelError, match="no safetensors file"):
        make_backend(str(folder), gpus=2, dtype="float32", measure_bandwidth=False)
    assert time.monotonic() - started < 60


def serve_and_fail(name: str, error: Exception, *arguments) -> None:
    """``serve`` of a rank in which the function ``name`` raises."""

    def fail(*_, **__):
        time.sleep(1.0)  # rank 0 may be ready by then
        raise error

    owner, _, attribute = name.rpartition(".")
    setattr(pkgutil.resolve_name(owner), attribute, fail)
    serve(*arguments)


@pytest.mark.parametrize(
    ("name", "error", "words"),
    [
        ("engine.kernel.ranks._peers", RuntimeError("invalid device ordinal"), "GPU 1 failed: RuntimeError: invalid device ordinal"),
        ("engine.kernel.backend.load_weights", torch.OutOfMemoryError("2 GiB wanted"), "GPU 1 has no memory left: 2 GiB wanted"),
        ("engine.kernel.backend.MonokernelBackend._fit_context", DeviceError("no context fits"), "GPU 1: no context fits"),
        ("engine.kernel.backend.MonokernelBackend._warm_up", DeviceError("the launch failed"), "GPU 1: the launch failed"),
    ],
)
def test_what_a_rank_that_cannot_start_says_is_what_the_user_hears(name, error, words, tmp_path_factory, monkeypatch):
    monkeypatch.setattr(module, "serve", partial(serve_and_fail, name, error))
    with pytest.raises(DeviceError) as raised:
        start("llama", tmp_path_factory)
    assert str(raised.value) == words


def serve_with_memory(free_bytes: list[int], *arguments) -> None:
    """``serve`` of a rank that finds so much free memory, one look after the other."""
    one_rank.free_bytes = lambda device: free_bytes.pop(0)
    serve(*arguments)


def test_rows_of_logits_that_do_not_fit_on_one_rank_are_refused_before_any_starts(tmp_path_factory, monkeypatch):
    monkeypatch.setattr(module, "serve", partial(serve_with_memory, [0, 1_000_000, 0]))
    backend = start("llama", tmp_path_factory)
    rows = ([3, 1], SamplingParams(logprobs=3), frozenset(), 2, SPIN_LIMIT)
    try:
        with pytest.raises(InvalidRequest, match="GPU 1: Log-probabilities of up to 2 tokens take"):
            backend.start(*rows)
        with monkeypatch.context() as patch, pytest.raises(InvalidRequest, match="^Log-probabilities of up to 2 tokens take"):
            patch.setattr(one_rank, "free_bytes", lambda device: 0)
            backend.start(*rows)
        assert len(tokens_of(backend, [3, 1], SamplingParams(), 1)) == 1, "the ranks are in step"

        run = backend.start(*rows)  # rank 1's memory went after it was asked: the others have started
        with pytest.raises(DeviceError, match="GPU 1: Log-probabilities of up to 2 tokens take"):
            while run.finish_reason is None:
                run.poll(1.0)
        run.close()
        assert run.failed
    finally:
        backend.close()
