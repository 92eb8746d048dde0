"""The fast path on two GPUs, both ranks in this process: the bits of one GPU's logits, and its tokens."""

from dataclasses import replace

import pytest
import torch

from engine.config import ModelConfig, Reduction
from engine.kernel.cache import KVCache
from engine.kernel.control import ERROR_PEER_LOST, Control
from engine.kernel.gluon.path import GluonPath
from engine.kernel.params import DEFAULT_SPIN_LIMIT, ParamBlock
from engine.loading.assemble import assemble
from engine.loading.random import RandomReader
from engine.request import SamplingParams
from engine.shapes import SHAPES
from engine.weights import Shard

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA GPUs")]
CONTEXT, PROMPT = 1024, 128
GREEDY = SamplingParams()
SAMPLINGS = [
    SamplingParams(temperature=0.8, top_p=0.95),
    SamplingParams(temperature=0.8),
    SamplingParams(temperature=0.8, top_k=40, min_p=0.02),
]
LANEFORMER = SHAPES["laneformer-2b"]
NO_SUMS_AT_ONCE = replace(
    LANEFORMER, n_layers=4, windows=(512, 512, None, None), reductions=(Reduction.NONE,) * 2 + (Reduction.PAST,) * 2, vocab_size=8000
)
LLAMA = replace(SHAPES["llama-3.1-8b"], n_layers=4, vocab_size=8000)


class Memory:
    """Stands in for ``Peers``: buffers of both ranks in one process, allocated by whoever asks first."""

    def __init__(self):
        self.buffers: list[torch.Tensor] = []

    def peers(self, rank: int) -> "OnePeer":
        return OnePeer(self, Shard(rank, 2))


class OnePeer:
    def __init__(self, memory: Memory, shard: Shard):
        self.memory, self.shard = memory, shard

    def allocate(self, words: int) -> tuple[torch.Tensor, torch.Tensor]:
        if not self.memory.buffers:
            self.memory.buffers = [torch.zeros(words, dtype=torch.int64, device=f"cuda:{rank}") for rank in range(2)]
            torch.cuda.synchronize(0)
            torch.cuda.synchronize(1)
        own = self.memory.buffers[self.shard.rank]
        return own, torch.tensor([buffer.data_ptr() for buffer in self.memory.buffers], dtype=torch.int64, device=own.device)


class Rank:
    """A rank (or the only one) whose KV cache holds its part of given random rows; what no position has written holds NaN."""

    def __init__(self, config: ModelConfig, peers: OnePeer | None, rows: list[torch.Tensor]):
        shard = peers.shard if peers else Shard()
        self.device, dtype = torch.device("cuda", shard.rank), getattr(torch, config.dtype)
        torch.cuda.set_device(self.device)
        assert GluonPath.supports(config, self.device, dtype, shard) is None
        weights = assemble(config, RandomReader(config), dtype, self.device, shard)
        cache = KVCache.allocate(config, CONTEXT, dtype, self.device, shard.ranks)
        for mine, all_heads in zip((cache.k, cache.v), rows, strict=True):
            mine[:, :, : PROMPT - 1] = all_heads.chunk(shard.ranks, dim=1)[shard.rank].to(self.device, dtype)
            mine[:, :, PROMPT - 1 :] = float("nan")
        self.control, self.params = Control(CONTEXT, self.device, shard.rank), ParamBlock(self.device)
        self.path = GluonPath(config, weights, cache, self.control, self.params, self.device, peers)
        self.path.compile(self.path.plans[False, False])._init_handles()
        self.path.compile(self.path.plans[False, True])._init_handles()

    def launch(self, count: int, sampling: SamplingParams, spin_limit: int) -> None:
        torch.cuda.set_device(self.device)
        self.control.reset()
        self.params.write(sampling, 11, frozenset(), count, spin_limit)
        self.path.launch(7, PROMPT - 1)


def run(ranks: list[Rank], count: int, sampling: SamplingParams = GREEDY) -> tuple[list[int], torch.Tensor]:
    """(tokens, the last token's logits); all ranks must have made the same tokens."""
    for rank in ranks:
        rank.launch(count, sampling, DEFAULT_SPIN_LIMIT)
    for rank in ranks:
        torch.cuda.synchronize(rank.device)
        rank.control.raise_for_error()
    tokens = [rank.control.poll() for rank in ranks]
    assert all(made == tokens[0] for made in tokens) and len(tokens[0]) == count
    return tokens[0], torch.cat([rank.path.logits.cpu() for rank in ranks])


def close(ranks: list[Rank]) -> None:
    for rank in ranks:
        rank.path.close()


@pytest.fixture(scope="module", params=[LANEFORMER, NO_SUMS_AT_ONCE, LLAMA], ids=["laneformer", "no-sums-at-once", "one-lane"])
def model(request):
    """(config, one GPU, two ranks)."""
    for here, there in ((0, 1), (1, 0)):  # a copy opens each GPU's memory to the other
        torch.ones(8, device=f"cuda:{here}").to(f"cuda:{there}")
    config, memory = request.param, Memory()
    generator = torch.Generator().manual_seed(3)
    rows = [torch.randn(config.n_layers, config.n_kv_heads, PROMPT - 1, config.head_size, generator=generator) for _ in range(2)]
    one, two = [Rank(config, None, rows)], [Rank(config, memory.peers(rank), rows) for rank in range(2)]
    yield config, one, two
    close(one + two)


def test_logits_and_tokens_are_those_of_one_gpu(model):
    config, one, two = model
    for count in (1, 24, 800):
        (tokens, logits), (expected, reference) = run(two, count), run(one, count)
        if config.n_lanes > 1:
            assert tokens == expected and torch.equal(logits, reference)
        elif count == 1:  # partial sums are added in another order; later tokens may part at a near tie
            assert (logits - reference).norm() / reference.norm() < 2e-2
    assert all(run(two, 100) == run(two, 100) for _ in range(3))


def test_drawn_tokens_are_those_of_one_gpu(model):
    config, one, two = model
    for sampling in SAMPLINGS:
        tokens, expected = run(two, 64, sampling)[0], run(one, 64, sampling)[0]
        assert tokens == expected if config.n_lanes > 1 else tokens[:8] == expected[:8]


def test_a_rank_that_does_not_start_is_reported(model):
    _, _, two = model
    two[0].launch(4, GREEDY, 100_000)
    torch.cuda.synchronize(two[0].device)
    assert two[0].control.error_record().code == ERROR_PEER_LOST
    two[1].path._launches += 1  # so that both count alike again
    assert len(run(two, 24)[0]) == 24
