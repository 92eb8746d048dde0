"""The Gluon kernel's source run on the CPU (``emulator``): tokens and logits against the reference, of one rank and of several."""

from dataclasses import replace

import numpy as np
import pytest
import torch

pytest.importorskip("triton")
pytest.importorskip("greenlet")

from greenlet import getcurrent

from engine import reference, sampling
from engine.config import Head, ModelConfig, Reduction
from engine.kernel.cache import KVCache
from engine.kernel.control import Control
from engine.kernel.gluon.plan import unsupported
from engine.kernel.params import ParamBlock
from engine.loading.assemble import assemble
from engine.loading.random import RandomReader
from engine.request import SamplingParams
from engine.weights import Shard
from tests.engine.kernel.gluon.emulator import EmulatedPath, Machine, Memory, Peers, Stuck, Value, raw, run_together

CONTEXT = 128
PROMPT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 35, 89, 79]
SEED, GREEDY = 7, SamplingParams()
TOKENS = 5  # enough for every buffer to be used again
PRESENT, PAST, NONE = Reduction.PRESENT, Reduction.PAST, Reduction.NONE
LANES = ModelConfig(
    name="lanes", architecture="laneformer_tp", n_layers=5, hidden_size=192, n_heads=16, n_kv_heads=8, head_size=96, ffn_size=1536,
    vocab_size=256, context_tokens=CONTEXT, norm_eps=1e-5, rope_theta=1e4, n_lanes=8, delay=2, head=Head.REPLICATE, dtype="float16",
    reductions=(PRESENT,) * 2 + (PAST,) * 3, windows=(8,) * 3 + (None,) * 2,
)  # fmt: skip
NO_SUMS_AT_ONCE = replace(LANES, reductions=(NONE,) * 2 + (PAST,) * 3, head=Head.PRE_NORM_SUM)
LLAMA = ModelConfig(
    name="llama", architecture="llama", n_layers=4, hidden_size=256, n_heads=8, n_kv_heads=4, head_size=64, ffn_size=900,
    vocab_size=256, context_tokens=CONTEXT, norm_eps=1e-5, rope_theta=1e4, dtype="float16",
)  # fmt: skip


def make(config: ModelConfig, ranks: int, ctas: int, memory: Memory, prompt: list[int] = PROMPT) -> list[EmulatedPath]:
    """All ranks of a model, whose KV caches the reference has filled with the prompt but its last token."""
    device, buffers, paths, context = torch.device("cpu"), [], [], config.context_tokens
    whole = assemble(config, RandomReader(config), torch.float16, device, Shard())
    state = reference.State.new(config, whole, context)
    reference.prefill(config, whole, state, prompt[:-1])
    for rank in range(ranks):
        shard = Shard(rank, ranks)
        assert unsupported(config, ctas, shard) is None
        weights = assemble(config, RandomReader(config), torch.float16, device, shard)
        cache = KVCache.allocate(config, context, torch.float16, device, ranks)
        for mine, theirs in ((cache.k, state.k), (cache.v, state.v)):
            for layer, values in zip(mine, theirs, strict=True):
                layer.copy_(values.permute(0, 2, 1, 3).flatten(0, 1).chunk(ranks)[rank])
            mine[:, :, len(prompt) - 1 :] = float("nan")
        peers = Peers(memory, shard, buffers) if ranks > 1 else None
        paths.append(EmulatedPath(config, weights, cache, Control(context, device, rank), ParamBlock(device), device, peers, ctas))
    return paths


def run(
    paths: list[EmulatedPath],
    machine: Machine,
    count: int = TOKENS,
    sampling: SamplingParams = GREEDY,
    stop_ids: frozenset[int] = frozenset(),
    prompt: list[int] = PROMPT,
) -> list[int]:
    """The tokens, the same on all ranks, of a generation that may end in any way."""
    for path in paths:
        path.control.reset()
        path.params.write(sampling, SEED, stop_ids, count)
        path.launch(prompt[-1], len(prompt) - 1)
    run_together(machine, paths)
    tokens = [path.control.poll() for path in paths]
    assert all(made == tokens[0] for made in tokens) and all(path.control.done for path in paths)
    return tokens[0]


def generate(
    paths: list[EmulatedPath],
    memory: Memory,
    count: int = TOKENS,
    sampling: SamplingParams = GREEDY,
    prompt: list[int] = PROMPT,
    **order,
) -> tuple[list[int], torch.Tensor]:
    """(tokens, the last token's logits). ``order``: of the turns, see ``Machine``."""
    tokens = run(paths, Machine(memory, **order), count, sampling, prompt=prompt)
    for path in paths:
        path.control.raise_for_error()
        assert path.control.finish_reason == "length"
    assert len(tokens) == count
    return tokens, torch.cat([path.logits for path in paths])


def expected(config: ModelConfig, tokens: list[int], prompt: list[int] = PROMPT) -> torch.Tensor:
    """[len(tokens), V]: the reference's logits from which each of the tokens is chosen."""
    weights = assemble(config, RandomReader(config), torch.float16, torch.device("cpu"), Shard())
    return reference.forward(config, weights, (prompt + tokens)[:-1])[-len(tokens) :]


WIDE_LLAMA = replace(LLAMA, n_kv_heads=8, ffn_size=904)
CASES = {
    "lanes, one rank": (LANES, 1, 8),
    "lanes, 2 ranks": (LANES, 2, 4),
    "lanes, 4 ranks": (LANES, 4, 2),
    "lanes, 2 ranks, CTAs without attention": (LANES, 2, 8),
    "lanes, 4 ranks, CTAs without attention": (LANES, 4, 4),
    "lanes, 8 ranks": (LANES, 8, 2),
    "4 lanes, 2 ranks": (replace(LANES, n_lanes=4, n_heads=8, n_kv_heads=4, ffn_size=768), 2, 5),
    "no sums at once, 8 ranks": (NO_SUMS_AT_ONCE, 8, 1),
    "one lane, one rank": (LLAMA, 1, 4),
    "one lane, two or three units of QKV": (LLAMA, 1, 6),
    "one lane, wide heads": (replace(LLAMA, head_size=128, n_heads=4, n_kv_heads=2), 1, 4),
    "one lane, 2 ranks": (LLAMA, 2, 3),
    "one lane, 3 ranks": (replace(LLAMA, n_heads=24, n_kv_heads=6, vocab_size=258), 3, 3),
    "one lane, 4 ranks": (LLAMA, 4, 2),
    "one lane, 8 ranks": (WIDE_LLAMA, 8, 1),
    "one lane, biases": (replace(LLAMA, architecture="qwen2", qkv_bias=True), 1, 4),
    "one lane, biases, 2 ranks": (replace(LLAMA, architecture="qwen2", qkv_bias=True), 2, 3),
}


@pytest.mark.parametrize("case", CASES)
def test_tokens_and_logits_are_those_of_the_reference(case):
    config, ranks, ctas = CASES[case]
    memory = Memory()
    paths = make(config, ranks, ctas, memory)
    tokens, logits = generate(paths, memory)
    wanted = expected(config, tokens)
    assert tokens == wanted.argmax(1).tolist()
    assert (logits - wanted[-1]).norm() / wanted[-1].norm() < 2e-3


LONG_PROMPT = [(7 * n * n + n) % 256 for n in range(300)]  # five units of 64 positions: splits with one unit, with two, with a part of one
LONG_CASES = {
    "lanes, 2 ranks": (LANES, 2, 16),
    "lanes, 8 ranks": (LANES, 8, 4),
    "one lane": (LLAMA, 1, 12),
    "one lane, wide heads": (replace(LLAMA, head_size=128, n_heads=4, n_kv_heads=2), 1, 12),
    "one lane, 2 ranks": (LLAMA, 2, 8),
}


@pytest.mark.parametrize("case", LONG_CASES)
def test_splits_of_a_long_context_are_weighted_by_their_share(case):
    config, ranks, ctas = LONG_CASES[case]
    windows = (70,) * 3 + (None,) * 2 if config is LANES else (None, 130) * 2  # begin inside a unit, and span two or three
    config = replace(config, context_tokens=320, windows=windows)
    memory = Memory()
    paths = make(config, ranks, ctas, memory, LONG_PROMPT)
    assert all(plan.common.splits > 1 for plan in paths[0].plans.values())
    tokens, logits = generate(paths, memory, 2, prompt=LONG_PROMPT)
    wanted = expected(config, tokens, LONG_PROMPT)
    assert tokens == wanted.argmax(1).tolist()
    assert (logits - wanted[-1]).norm() / wanted[-1].norm() < 2e-3


@pytest.mark.parametrize("ranks, ctas, late", [(2, 4, 1), (4, 4, 2), (8, 1, 5)])
def test_a_rank_that_is_late_changes_nothing(ranks, ctas, late):
    memory = Memory()
    paths = make(LANES, ranks, ctas, memory)
    tokens, logits = generate(paths, memory)
    again, others = generate(paths, memory, seed=1, late=late)
    assert again == tokens and torch.equal(others, logits)


class Watched(Memory):
    """Counts the bytes that go to the hand-over buffers of other ranks, from which each takes ``size`` bytes."""

    def __init__(self):
        super().__init__()
        self.pushed, self.buffers, self.size = 0, [], 0

    def store(self, pointers: Value, value, mask=None) -> None:
        super().store(pointers, value, mask)
        at, inside = np.broadcast_arrays(pointers.data, True if mask is None else raw(mask))
        at = np.unique(at[inside])  # in narrow models some threads store the same
        others = [start for rank, start in enumerate(self.buffers) if rank != getcurrent().rank]
        hits = sum(np.count_nonzero((at >= start) & (at < start + self.size)) for start in others)
        self.pushed += hits * pointers.element.primitive_bitwidth // 8


@pytest.mark.parametrize("case", ["lanes, 2 ranks", "lanes, 8 ranks", "one lane, 2 ranks"])
def test_as_many_bytes_are_pushed_as_the_plan_says(case):
    config, ranks, ctas = CASES[case]
    memory, pushed = Watched(), []
    paths = make(config, ranks, ctas, memory)
    memory.buffers, memory.size = paths[0].addresses.tolist(), paths[0].flags.numel()
    for count in (1, 2):
        memory.pushed = 0
        generate(paths, memory, count)
        pushed.append(memory.pushed)
    stop_word = 8 * (ranks - 1)  # of rank 0
    assert pushed[1] - pushed[0] == ranks * paths[0].pushed_bytes + stop_word


@pytest.mark.parametrize("ranks, ctas", [(1, 8), (8, 1)])
def test_drawn_tokens_are_those_of_the_reference_sampler(ranks, ctas):
    memory = Memory()
    paths = make(LANES, ranks, ctas, memory)
    free = SamplingParams(temperature=2.0)
    for params in (
        SamplingParams(temperature=0.8, top_p=0.9),
        SamplingParams(temperature=1.5, top_k=20, min_p=0.02),
        *(replace(free, **one) for one in ({"top_k": 3}, {"top_p": 0.02}, {"min_p": 0.7})),
    ):
        token, logits = generate(paths, memory, 1, params)
        assert token == [sampling.sample(logits, params, SEED, len(PROMPT))]
        if params.temperature == free.temperature:  # each filter alone changes the token
            assert token != [sampling.sample(logits, free, SEED, len(PROMPT))]


def test_ranks_wait_for_one_that_is_missing():
    memory = Memory()
    paths = make(LANES, 8, 1, memory)
    for path in paths:
        path.params.write(GREEDY, SEED, frozenset(), 1)
        path.launch(PROMPT[-1], len(PROMPT) - 1)
    with pytest.raises(Stuck):
        run_together(Machine(memory), paths[:-1])
