"""The fast path on 4 and 8 ranks of one GPU, each with its part of the multiprocessors: logits, tokens and KV rows of one rank."""

from dataclasses import replace

import pytest
import torch

from engine.config import Reduction
from engine.kernel.control import ERROR_PEER_LOST
from engine.shapes import SHAPES
from tests.gpu.local_ranks import CONTEXT, GREEDY, PROMPT, SAMPLINGS, Rank, close, compile_side_by_side, make_ranks, random_rows, run

HOPPER = torch.cuda.is_available() and torch.cuda.get_device_capability()[0] == 9
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not HOPPER, reason="needs a Hopper GPU")]
MODEL = replace(
    SHAPES["laneformer-2b"],
    n_layers=6,
    windows=(512,) * 4 + (None,) * 2,
    reductions=(Reduction.PRESENT,) * 2 + (Reduction.PAST,) * 4,
    vocab_size=8000,
)
CTAS = {4: 32, 8: 16}  # multiprocessors of each rank, by the number of ranks


@pytest.fixture(scope="module")
def one():
    compile_side_by_side(MODEL, [([0] * count, ctas) for count, ctas in CTAS.items()])
    rank = Rank(MODEL, None, random_rows(MODEL))
    yield [rank]
    close([rank])


@pytest.fixture(scope="module", params=CTAS, ids=lambda count: f"{count}-ranks")
def ranks(request, one):
    made = make_ranks(MODEL, [0] * request.param, CTAS[request.param])
    yield made
    close(made)


def kv_rows(ranks: list[Rank], count: int) -> torch.Tensor:
    """Keys and values of all heads at the positions of the prompt and of ``count`` steps."""
    return torch.stack([torch.cat([getattr(rank.cache, name) for rank in ranks], dim=1)[:, :, : PROMPT - 1 + count] for name in "kv"])


@pytest.mark.parametrize("count", [1, 24, CONTEXT - PROMPT])
def test_logits_tokens_and_kv_rows_are_those_of_one_rank(one, ranks, count):
    tokens, logits = run(ranks, count)
    expected, reference = run(one, count)
    assert tokens == expected
    assert torch.equal(logits, reference)
    assert torch.equal(kv_rows(ranks, count), kv_rows(one, count))


def test_a_repeat_makes_the_same_tokens(ranks):
    tokens = run(ranks, 100)[0]
    assert all(run(ranks, 100)[0] == tokens for _ in range(5))


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=["top-p", "plain", "top-k"])
def test_drawn_tokens_are_those_of_one_rank(one, ranks, sampling):
    assert run(ranks, 64, sampling)[0] == run(one, 64, sampling)[0]


def test_ranks_that_wait_for_one_report_it(ranks):
    for rank in ranks[:-1]:
        rank.prepare(4, GREEDY, 100_000)
    for rank in ranks[:-1]:
        rank.launch()
    torch.cuda.synchronize()
    assert all(rank.control.error_record().code == ERROR_PEER_LOST for rank in ranks[:-1])
    ranks[-1].path._launches += 1  # so that all count alike again
    assert len(run(ranks, 24)[0]) == 24
