"""The kernel's sampler against engine/sampling.py, alone on given logits."""

import random

import pytest
import torch
import triton
import triton.language as tl

from engine import sampling as reference
from engine.kernel.portable.gemv import _noisy, store_best
from engine.kernel.portable.sampling import is_stop_id, sample
from engine.request import SamplingParams
from tests.engine.kernel.interpreted.models import Setup, llama_config, random_weights

VOCAB = 50


@triton.jit
def _sample(B, logits, out, position, C: tl.constexpr):
    """What the head leaves behind, then the sampler: out[0] = token, out[1] = whether it is a stop id."""
    temperature = tl.load(B.floats)
    seed = tl.load(B.ints + 2).to(tl.uint32, bitcast=True).to(tl.uint64)
    seed |= tl.load(B.ints + 3).to(tl.uint32, bitcast=True).to(tl.uint64) << 32
    ids = tl.arange(0, 64)
    y = tl.load(logits + ids, mask=ids < C.vocab, other=float("-inf"))
    zero = tl.full([], 0, tl.int32)  # one rank: ticks and tags count nothing
    store_best(B, C, 0, y, ids, 0, zero, position)
    store_best(B, C, 1, tl.where(ids < C.vocab, _noisy(y, ids, position, temperature, seed), float("-inf")), ids, 0, zero, position)
    token, epoch = sample(B, C, zero, logits, temperature, seed, zero, position)
    tl.store(out, token)
    tl.store(out + 1, is_stop_id(B, token).to(tl.int32))


@pytest.fixture(scope="module")
def setup():
    config = llama_config(n_layers=1)
    return Setup(config, random_weights(config))


def kernel_sample(
    setup: Setup, logits: torch.Tensor, params: SamplingParams, seed: int, position: int, stops=frozenset()
) -> tuple[int, int]:
    setup.control.reset()
    setup.path.buffers.barrier.zero_()
    setup.params.write(params, seed, stops, 5)
    out = torch.zeros(2, dtype=torch.int32)
    _sample[(1,)](setup.path.buffers, logits, out, position, setup.path.shape)
    setup.control.raise_for_error()
    return int(out[0]), int(out[1])


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(),
        SamplingParams(temperature=0.7),
        SamplingParams(temperature=1.5, min_p=0.1),
        SamplingParams(temperature=1.0, top_k=5),
        SamplingParams(temperature=2.0, top_p=0.6),
        SamplingParams(temperature=0.9, top_k=20, top_p=0.8, min_p=0.02),
    ],
    ids=str,
)
def test_tokens_equal_the_reference_sampler(setup, params):
    rng = random.Random(str(params))
    for _ in range(5):
        logits = torch.randn(VOCAB, generator=torch.Generator().manual_seed(rng.randrange(2**31))) * 3
        seed, position = rng.randrange(2**63), rng.randrange(4096)
        assert kernel_sample(setup, logits, params, seed, position)[0] == reference.sample(logits, params, seed, position)


def test_ties_go_to_the_lowest_id(setup):
    logits = torch.zeros(VOCAB)
    logits[[7, 30]] = 4.0
    assert kernel_sample(setup, logits, SamplingParams(), 0, 1)[0] == 7
    one = SamplingParams(temperature=1.0, top_k=1)  # both ties of the first are kept
    assert kernel_sample(setup, logits, one, 3, 9)[0] == reference.sample(logits, one, 3, 9)


def test_a_temperature_too_small_for_float32_is_greedy(setup):
    logits = torch.randn(VOCAB, generator=torch.Generator().manual_seed(5)) * 10
    params = SamplingParams(temperature=1e-38, top_k=3)
    assert kernel_sample(setup, logits, params, 1, 2)[0] == reference.sample(logits, params, 1, 2)


@pytest.mark.parametrize("stops", [{11}, {11, 40}, {3, 11, 40}, {3, 11}, set(range(2, 50)), set(range(11, 50))], ids=len)
def test_every_stop_id_of_the_block_is_seen(setup, stops):
    """Alone, first, inside and last of few and of many."""
    for token in sorted(stops)[:: max(1, len(stops) - 1)]:
        logits = torch.zeros(VOCAB)
        logits[token] = 1.0
        assert kernel_sample(setup, logits, SamplingParams(), 0, 0, frozenset(stops)) == (token, 1)
        assert kernel_sample(setup, logits, SamplingParams(), 0, 0, frozenset(stops - {token}))[1] == 0
