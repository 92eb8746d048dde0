"""Ranks of the fast path that live in one process, on a GPU each or all on one, and see each other's memory."""

import multiprocessing

import torch

from engine.config import ModelConfig
from engine.kernel.cache import KVCache
from engine.kernel.control import Control
from engine.kernel.gluon.path import GluonPath
from engine.kernel.params import DEFAULT_SPIN_LIMIT, ParamBlock
from engine.loading.assemble import assemble
from engine.loading.random import RandomReader
from engine.request import SamplingParams
from engine.weights import Shard

CONTEXT, PROMPT = 1024, 128
GREEDY = SamplingParams()
SAMPLINGS = [
    SamplingParams(temperature=0.8, top_p=0.95),
    SamplingParams(temperature=0.8),
    SamplingParams(temperature=0.8, top_k=40, min_p=0.02),
]


class Memory:
    """Stands in for ``Peers``: the buffers of all ranks, allocated by whoever asks first. devices: of each rank."""

    def __init__(self, devices: list[int]):
        self.devices = [torch.device("cuda", number) for number in devices]
        self.buffers: list[torch.Tensor] = []

    def peers(self, rank: int) -> "OnePeer":
        return OnePeer(self, Shard(rank, len(self.devices)))


class OnePeer:
    def __init__(self, memory: Memory, shard: Shard):
        self.memory, self.shard, self.device = memory, shard, memory.devices[shard.rank]

    def allocate(self, words: int) -> tuple[torch.Tensor, torch.Tensor]:
        if not self.memory.buffers:
            self.memory.buffers = [torch.zeros(words, dtype=torch.int64, device=device) for device in self.memory.devices]
            for device in set(self.memory.devices):
                torch.cuda.synchronize(device)
        own = self.memory.buffers[self.shard.rank]
        return own, torch.tensor([buffer.data_ptr() for buffer in self.memory.buffers], dtype=torch.int64, device=own.device)


class Rank:
    """A rank (or the only one) whose KV cache holds its part of given random rows; what no position has written holds NaN."""

    def __init__(self, config: ModelConfig, peers: OnePeer | None, rows: list[torch.Tensor], ctas: int | None = None, **options: int):
        """rows: keys and values [layers, KV heads of all ranks, PROMPT - 1, h]; ctas, options: see ``GluonPath``."""
        shard = peers.shard if peers else Shard()
        self.device, dtype = peers.device if peers else torch.device("cuda", 0), getattr(torch, config.dtype)
        torch.cuda.set_device(self.device)
        assert GluonPath.supports(config, self.device, dtype, shard) is None
        weights = assemble(config, RandomReader(config), dtype, self.device, shard)
        self.cache = KVCache.allocate(config, CONTEXT, dtype, self.device, shard.ranks)
        for mine, all_heads in zip((self.cache.k, self.cache.v), rows, strict=True):
            mine[:, :, : PROMPT - 1] = all_heads.chunk(shard.ranks, dim=1)[shard.rank].to(self.device, dtype)
            mine[:, :, PROMPT - 1 :] = float("nan")
        self.control, self.params = Control(CONTEXT, self.device, shard.rank), ParamBlock(self.device)
        self.path = GluonPath(config, weights, self.cache, self.control, self.params, self.device, peers, ctas, **options)
        for draws in (False, True):
            self.path.compile(self.path.plans[False, draws])._init_handles()
        self.stream = torch.cuda.Stream(self.device)

    def prepare(self, count: int, sampling: SamplingParams = GREEDY, spin_limit: int = DEFAULT_SPIN_LIMIT) -> None:
        """Everything before the launch, which then is the only thing that its stream has to do."""
        torch.cuda.set_device(self.device)
        self.control.reset()
        self.params.write(sampling, 11, frozenset(), count, spin_limit)
        self._plan = self.path.choose_plan(PROMPT - 1)
        self.path._launches += 1
        self.path.reset(self._plan)
        torch.cuda.synchronize(self.device)

    def launch(self) -> None:
        torch.cuda.set_device(self.device)
        with torch.cuda.stream(self.stream):
            self.path.decode(self._plan, 7, PROMPT - 1)


def random_rows(config: ModelConfig) -> list[torch.Tensor]:
    """Keys and values of the prompt, for all ranks' heads."""
    generator = torch.Generator().manual_seed(3)
    return [torch.randn(config.n_layers, config.n_kv_heads, PROMPT - 1, config.head_size, generator=generator) for _ in range(2)]


def make_ranks(config: ModelConfig, devices: list[int], ctas: int | None = None) -> list[Rank]:
    """One rank per device number. Each has launched its kernels alone once, in vain: a first launch may wait until its GPU is idle."""
    memory, rows = Memory(devices), random_rows(config)
    ranks = [Rank(config, memory.peers(rank), rows, ctas) for rank in range(len(devices))]
    for sampling in (GREEDY, SAMPLINGS[0]):
        for rank in ranks:
            rank.prepare(1, sampling, spin_limit=10_000)
            rank.launch()
            torch.cuda.synchronize(rank.device)
    return ranks


def run(ranks: list[Rank], count: int, sampling: SamplingParams = GREEDY) -> tuple[list[int], torch.Tensor]:
    """(tokens, the last token's logits); all ranks must have made the same tokens."""
    for rank in ranks:
        rank.prepare(count, sampling)
    for rank in ranks:
        rank.launch()
    for rank in ranks:
        torch.cuda.synchronize(rank.device)
        rank.control.raise_for_error()
    tokens = [rank.control.poll() for rank in ranks]
    assert all(made == tokens[0] for made in tokens) and len(tokens[0]) == count
    return tokens[0], torch.cat([rank.path.logits.cpu() for rank in ranks])


def close(ranks: list[Rank]) -> None:
    for rank in ranks:
        rank.path.close()


def compile_side_by_side(config: ModelConfig, cases: list[tuple[list[int], int | None]]) -> None:
    """Compile the kernels of every rank of every case (device numbers, ctas), and those of one rank alone, into Triton's cache on disk,
    each rank in a process of its own."""
    context = multiprocessing.get_context("spawn")
    jobs = [(config, None, None, 0)] + [(config, devices, ctas, rank) for devices, ctas in cases for rank in range(len(devices))]
    processes = [context.Process(target=_compile, args=job) for job in jobs]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert all(process.exitcode == 0 for process in processes)


def _compile(config: ModelConfig, devices: list[int] | None, ctas: int | None, rank: int) -> None:
    Rank(config, Memory(devices).peers(rank) if devices else None, random_rows(config), ctas)
