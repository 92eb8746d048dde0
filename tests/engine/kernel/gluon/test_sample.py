"""The sampler of the Gluon kernel, run on the CPU (``emulator``) on chosen logits, against the reference sampler."""

import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

pytest.importorskip("triton")
pytest.importorskip("greenlet")

from engine import sampling
from engine.kernel.gluon.plan import make_plan
from engine.request import SamplingParams
from engine.shapes import SHAPES
from engine.weights import Shard
from tests.engine.kernel.gluon.emulator import Machine, Memory, Shared, Value

SEED, POSITION = 2**40 + 5, 17
TOKENS = 5  # the same logits again: enough for every buffer to be used again
PAGE = SamplingParams(temperature=0.2, top_k=40, top_p=0.95)


class Sampler:
    """The choice of a token by all CTAs of all ranks, from given logits."""

    def __init__(self, vocab: int, ctas: int, ranks: int = 1):
        config = replace(SHAPES["laneformer-2b"], vocab_size=vocab)
        self.plans = [replace(make_plan(config, 128, ctas, shard=Shard(rank, ranks)), draws=True) for rank in range(ranks)]
        self.memory = Memory(1 << 24)
        self.machine = Machine(self.memory)
        self.names = self.machine.names
        self.choices: dict = {}

    def __call__(self, logits: torch.Tensor, params: SamplingParams, seed: int = SEED, tokens: int = 1) -> tuple[int, int]:
        """(token, rounds of the search), alike in all CTAs. ``tokens``: so many in turn, of which the last one counts."""
        self.memory.end = 256
        memory, self.choices = self.memory, {}
        ints = np.zeros(64, np.int32)
        ints[1], ints[2:4] = params.top_k, np.array([seed & 0xFFFFFFFF, seed >> 32], np.uint32).view(np.int32)
        floats = np.zeros(8, np.float32)
        floats[:3] = params.temperature, params.top_p, math.log(params.min_p) if params.min_p else -math.inf
        shared = []
        for plan in self.plans:
            ctas = plan.ctas * plan.ranks
            sizes = (4 * (ctas + 1), 4 * ctas * 16, 4 * plan.picks)
            shared.append([memory.put(np.full(size, -1, np.int64)) for size in sizes] + [memory.put(np.zeros(1024, np.int32))])
        addresses = memory.put(np.array([int(buffers[0].data) for buffers in shared]))
        launches = []
        for plan, buffers in zip(self.plans, shared, strict=True):
            part = logits[plan.first_vocab : plan.first_vocab + plan.vocab].numpy().astype(np.float32)
            values = memory.put(part), memory.put(ints), memory.put(floats)
            launches.append((plan.ctas, (plan, *buffers, addresses, *values, tokens)))
        self.machine.run(launches, self._cta)
        assert len(set(self.choices.values())) == 1
        return next(iter(self.choices.values()))

    def _cta(self, plan, words, sums, picks, counters, addresses, logits, ints, floats, tokens):
        f, gl = SimpleNamespace(**self.names), self.machine._gluon()
        pid = gl.program_id(0)
        away = f.distances(plan, addresses)
        first, pairs = f.share(0, plan.units_head, pid, plan.ctas, 2)
        step = rounds = pid * 0
        guard, scratch = (counters + 32 * 30, 0, 0), Shared(np.zeros(1024, np.float16))
        position = Value(np.int32(POSITION))
        for n in range(tokens):
            tok = Value(np.int32(n))
            own = f.own_logits(plan, logits, first, pairs, pid * 0)
            values, ids, inside = own
            top = gl.where(inside, values, -np.inf)
            f.publish(words, tok, pid, top, ids, gl.where(inside, 0, 0), pid * 0 - 1, pid * 0, counters, away, plan)
            f.arrive(counters)
            step += 1
            f.wait_count(counters, step * plan.ctas, guard)
            top, bests = f.read_best(words, tok, guard, plan)
            token, step, rounds = f.draw(
                plan, scratch, own, top, bests, ints, floats, sums, picks, counters, step, rounds, tok, position, pid, away, guard
            )
        self.choices[plan.rank, int(pid)] = int(token), int(rounds) // tokens


def normal(vocab: int, spread: float, seed: int = 0) -> torch.Tensor:
    return spread * torch.randn(vocab, generator=torch.Generator().manual_seed(seed))


def steps(vocab: int) -> torch.Tensor:
    """Many ties: 12 different values, both zeros among them."""
    values = (normal(vocab, 2.0) * 2).round() / 2
    return torch.where((values == 0) & (torch.arange(vocab) % 2 == 0), -0.0, values)


def neighbours(vocab: int) -> torch.Tensor:
    """The best 60 ids in one place, so that one CTA has most of them."""
    values = normal(vocab, 0.1)
    values[320:380] += 10
    return values


LOGITS = {
    "wide": lambda vocab: normal(vocab, 4.0),
    "narrow": lambda vocab: normal(vocab, 0.5),
    "ties": steps,
    "all equal": lambda vocab: torch.full((vocab,), -1.5),
    "neighbours": neighbours,
    "peaked": lambda vocab: normal(vocab, 1.0) + 30.0 * (torch.arange(vocab) == vocab // 3),
    "huge": lambda vocab: normal(vocab, 1e37),
}
CASES = [
    PAGE,
    *(
        SamplingParams(temperature=t, top_k=k, top_p=p, min_p=m)
        for t in (0.3, 1.5)
        for k, p, m in (
            (0, 1.0, 0.0),
            (1, 1.0, 0.0),
            (7, 1.0, 0.0),
            (40, 0.9, 0.0),
            (300, 1.0, 0.0),
            (300, 0.8, 0.0),
            (0, 0.9, 0.0),
            (0, 0.3, 0.05),
            (50, 1e-6, 0.0),
            (0, 1e-6, 0.0),
            (999, 0.5, 0.0),
            (1000, 0.95, 0.0),
            (5000, 0.95, 0.02),
        )
    ),
    SamplingParams(temperature=1e-39, top_k=40, top_p=0.95),
]
GRIDS = {"7 CTAs": (7, 1), "2 ranks of 3": (3, 2), "4 ranks of one": (1, 4)}


@pytest.fixture(scope="module", params=GRIDS)
def sampler(request):
    return Sampler(1000, *GRIDS[request.param])


@pytest.mark.parametrize("logits", LOGITS)
def test_tokens_are_drawn_as_the_reference_sampler_draws_them(sampler, logits):
    values = LOGITS[logits](1000)
    for params in CASES:
        token, _ = sampler(values, params)
        assert token == sampling.sample(values, params, SEED, POSITION), params


def test_buffers_are_used_again(sampler):
    for params in (PAGE, SamplingParams(temperature=1.0, top_p=0.999), SamplingParams(temperature=1.0, top_k=300)):
        values = normal(1000, 2.0)
        assert sampler(values, params, tokens=TOKENS)[0] == sampling.sample(values, params, SEED, POSITION)


def test_tokens_follow_the_probabilities():
    """Chi-square of 300 tokens over the kept set, 6 ids of which 5 pass top-p."""
    sampler = Sampler(1000, 2)
    values, params = torch.full((1000,), -20.0), SamplingParams(temperature=1.0, top_k=0, top_p=0.97)
    ids = torch.arange(6) * 151
    values[ids] = torch.tensor([0.30, 0.25, 0.20, 0.14, 0.09, 0.02]).log()
    drawn = [sampler(values, params, seed)[0] for seed in range(300)]
    counts = torch.tensor([drawn.count(int(i)) for i in ids]).double()
    chances = torch.softmax(values[ids[:5]].double(), 0)
    assert counts[5] == 0 and counts.sum() == 300
    assert ((counts[:5] - 300 * chances) ** 2 / (300 * chances)).sum() < 18.5  # 4 degrees of freedom: passed by 99.9 %


ROUNDS = [  # logits' spread, parameters, rounds of the search at most; 0: a list was enough
    (2.0, PAGE, 0),
    (2.0, SamplingParams(temperature=0.8, top_k=50), 0),
    (4.0, SamplingParams(temperature=0.8, top_p=0.9), 0),
    (2.0, SamplingParams(temperature=0.8, top_k=200), 5),
    (1.0, SamplingParams(temperature=0.8, top_p=0.95), 6),
    (2.0, SamplingParams(temperature=1.0), 0),
]


def test_a_list_or_few_rounds_are_enough():
    """The size of Laneformer 2B's vocabulary; sixteen bounds a round find one of 2**32 keys in eight."""
    sampler = Sampler(49152, 132)
    for spread, params, most in ROUNDS:
        values = normal(49152, spread)
        token, rounds = sampler(values, params)
        assert token == sampling.sample(values, params, SEED, POSITION), params
        assert rounds <= most, params
