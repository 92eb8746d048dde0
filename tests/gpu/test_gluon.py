"""The fast path on a real Hopper GPU, against the float32 reference on the same weights. ``make test-gpu``."""

import subprocess
import sys
from dataclasses import replace

import pytest
import torch

from engine import reference, sampling
from engine.bench.bandwidth import read_bandwidth
from engine.config import Head, ModelConfig, Reduction
from engine.errors import NumericalError
from engine.kernel.cache import KVCache
from engine.kernel.control import ERROR_SPIN_LIMIT, Control
from engine.kernel.params import ParamBlock
from engine.loading.assemble import assemble
from engine.loading.random import RandomReader
from engine.request import SamplingParams
from engine.shapes import SHAPES
from engine.weights import Shard

HOPPER = torch.cuda.is_available() and torch.cuda.get_device_capability()[0] == 9
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not HOPPER, reason="needs a Hopper GPU")]

GREEDY = SamplingParams()
SAMPLINGS = [
    SamplingParams(temperature=t, top_k=k, top_p=p, min_p=m)
    for t in (0.3, 0.8, 1.5)
    for k, p, m in ((0, 1.0, 0.0), (40, 1.0, 0.0), (1, 1.0, 0.0), (0, 0.9, 0.0), (0, 0.3, 0.0), (0, 1.0, 0.05), (50, 0.95, 0.02))
] + [SamplingParams(temperature=1e-39)]


def lanes(name: str, reductions: tuple, **changes) -> ModelConfig:
    """A few layers in the shape of Laneformer 2B, the last two with full attention."""
    count = len(reductions)
    windows = (512,) * (count - 2) + (None,) * 2
    return replace(SHAPES["laneformer-2b"], name=name, n_layers=count, windows=windows, reductions=reductions, vocab_size=8000, **changes)


PRESENT, PAST, NONE = Reduction.PRESENT, Reduction.PAST, Reduction.NONE
MODELS = {
    "lanes": (lanes("lanes", (PRESENT,) * 2 + (PAST,) * 3), 40),
    "lanes beyond the window": (lanes("lanes", (PRESENT,) * 2 + (PAST,) * 3), 700),
    "lanes without present sums": (lanes("lanes", (NONE,) * 2 + (PAST,) * 2, head=Head.PRE_NORM_SUM), 70),
    "llama": (replace(SHAPES["llama-3.2-1b"], name="llama", n_layers=4, vocab_size=8000), 40),
    "llama float16": (replace(SHAPES["llama-3.2-1b"], name="llama", n_layers=4, vocab_size=8000, dtype="float16"), 300),
    "smollm2": (SHAPES["smollm2-135m"], 40),
    "head size 128, biases": (
        replace(SHAPES["llama-3.2-1b"], name="biases", n_layers=3, vocab_size=8000, n_heads=16, n_kv_heads=4, head_size=128, qkv_bias=True),
        200,
    ),
}


class Rig:
    """A model on the fast path whose KV cache the reference fills; what no position has written holds NaN."""

    def __init__(self, config: ModelConfig, prompt_tokens: int, context: int = 1024):
        from engine.kernel.gluon.path import GluonPath

        device = torch.device("cuda")
        self.config, dtype = config, getattr(torch, config.dtype)
        assert GluonPath.supports(config, device, dtype) is None
        self.weights = assemble(config, RandomReader(config), dtype, device, Shard())
        self.cache = KVCache.allocate(config, context, dtype, device)
        self.control, self.params = Control(context, device), ParamBlock(device)
        self.path = GluonPath(config, self.weights, self.cache, self.control, self.params, device)
        self.prompt = torch.randint(0, config.vocab_size, (prompt_tokens,), generator=torch.Generator().manual_seed(5)).tolist()

    def start(self, max_tokens: int, params: SamplingParams = GREEDY, seed: int = 1, stop_ids=frozenset(), spin_limit: int = 2_000_000):
        position = len(self.prompt) - 1
        state = reference.State.new(self.config, self.weights, self.cache.context_tokens)
        reference.prefill(self.config, self.weights, state, self.prompt[:-1])
        for mine, theirs in ((self.cache.k, state.k), (self.cache.v, state.v)):
            for layer, values in zip(mine, theirs, strict=True):
                layer.copy_(values.permute(0, 2, 1, 3).reshape(layer.shape))
            mine[:, :, position:] = float("nan")
        self.control.reset()
        self.params.write(params, seed, stop_ids, max_tokens, spin_limit)
        torch.cuda.synchronize()
        self.path.launch(self.prompt[-1], position)

    def run(self, *args, **kwargs) -> list[int]:
        self.start(*args, **kwargs)
        torch.cuda.synchronize()
        self.control.raise_for_error()
        return self.control.poll()

    def expected(self, tokens: list[int]) -> torch.Tensor:
        """[len(tokens), V]: the reference's logits from which each of the tokens is chosen."""
        ids = (self.prompt + tokens)[:-1]
        return reference.forward(self.config, self.weights, ids)[len(self.prompt) - 1 :]


@pytest.fixture(scope="module", params=MODELS, ids=lambda name: name.replace(" ", "-"))
def rig(request):
    made = Rig(*MODELS[request.param])
    yield made
    made.path.close()


def test_logits_and_greedy_tokens_follow_the_reference(rig):
    tokens = rig.run(24)
    expected = rig.expected(tokens)
    error = (rig.path.logits - expected[-1]).norm() / expected[-1].norm()
    assert error < (2e-3 if rig.config.dtype == "float16" else 2e-2)
    margins = expected.max(1).values - expected.gather(1, torch.tensor(tokens, device="cuda")[:, None])[:, 0]
    assert margins.max() < (0.02 if rig.config.dtype == "float16" else 0.2)  # only near ties may fall the other way
    assert rig.control.finish_reason == "length"
    assert all(rig.run(24) == tokens for _ in range(20))


def test_tokens_are_drawn_as_the_reference_sampler_draws_them(rig):
    for params in SAMPLINGS:
        for seed in (1, 2**40 + 5):
            token = rig.run(1, params, seed)
            assert token == [sampling.sample(rig.path.logits.clone(), params, seed, len(rig.prompt))], params


def test_stop_ids_and_the_stop_word_end_the_launch(rig):
    tokens = rig.run(24)
    end = tokens[9]
    assert rig.run(24, stop_ids=frozenset({end})) == tokens[: tokens.index(end) + 1]
    assert rig.control.finish_reason == "stop"
    rig.start(900 - len(rig.prompt))
    seen = []
    while len(seen) < 5:
        seen += rig.control.poll()
    rig.control.stop()
    asked = len(seen) + len(rig.control.poll())
    torch.cuda.synchronize()
    assert rig.control.finish_reason == "cancelled"
    assert rig.control.status[0].item() <= asked + 2  # the host's write, and the token under way


def test_nan_ends_with_an_error_and_leaves_nothing_behind(rig):
    tokens = rig.run(24)
    table, row = rig.path.embedding, rig.prompt[-1]
    kept = table[row].clone()
    rig.start(24)
    torch.cuda.synchronize()
    table[row] = float("nan")
    rig.control.reset()
    rig.path.launch(row, len(rig.prompt) - 1)
    torch.cuda.synchronize()
    with pytest.raises(NumericalError):
        rig.control.raise_for_error()
    table[row] = kept
    assert rig.run(24) == tokens


def test_a_wait_has_a_limit(rig):
    """A value that never comes ends the launch with an error that names the place."""
    rig.start(4)
    torch.cuda.synchronize()
    rig.control.reset()
    rig.params.write(GREEDY, 1, frozenset(), 4, 2000)
    plan = rig.path.choose_plan(len(rig.prompt) - 1)
    rig.path.reset(plan)
    rig.path.counters[:COUNTER_WORDS] = -(1 << 20)  # arrivals that are never made up for
    rig.path.decode(plan, rig.prompt[-1], len(rig.prompt) - 1)
    torch.cuda.synchronize()
    assert rig.control.error_record().code == ERROR_SPIN_LIMIT


COUNTER_WORDS = 32 * 30  # the counters; the abort and error words follow


def test_laneformer_2b_decodes_near_the_read_bound():
    """At least 950 tokens/s on an H200 that reads 4.51 TB/s, in proportion on one that reads less (128 + 512 tokens, float16, greedy);
    512 tokens equal to the reference's choices."""
    made = Rig(SHAPES["laneformer-2b"], 128)
    tokens = made.run(512)
    assert (made.expected(tokens).argmax(1).cpu() == torch.tensor(tokens)).float().mean() > 0.99
    times = []
    for _ in range(5):
        made.control.reset()
        plan = made.path.choose_plan(127)
        made.path.reset(plan)
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        made.path.decode(plan, made.prompt[-1], 127)
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end))
    speed = 512e3 / sorted(times)[2]
    bandwidth = read_bandwidth(torch.device("cuda"))
    print(f"{torch.cuda.get_device_name()}: {speed:.0f} tokens/s at {bandwidth / 1e12:.2f} TB/s")
    if "H200" in torch.cuda.get_device_name():
        assert speed >= 950 * min(1.0, bandwidth / 4.51e12)


def test_ring_and_stop_word_cost_less_than_one_percent():
    """The decode launch with them against one that writes no ring and reads no stop word, in turn, in processes of their own."""
    times = {"full": [], "silent": []}
    for _ in range(3):
        for mode, values in times.items():
            command = [sys.executable, "-m", "tests.gpu.ring_overhead", mode]
            values.append(float(subprocess.run(command, capture_output=True, text=True, check=True).stdout))
    print(times)
    assert min(times["full"]) < 1.01 * min(times["silent"])
