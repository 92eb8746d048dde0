"""How fast one rank's kernel would be if the other ranks were always in time and the wire cost nothing.

    python -m tests.gpu.rank_alone SHAPE DTYPE RANKS     (laneformer-2b float16 8)

It runs alone on one GPU: what it would send to the others goes into the places in its own buffers where their values arrive. So the
work, the stores and the waits of all its processors are those of RANKS GPUs, but the tokens mean nothing.
"""

import statistics
import sys
from dataclasses import replace
from importlib import import_module
from pkgutil import iter_modules

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from engine.bench.profile import _fast_phases
from engine.kernel import gluon as fast_path
from engine.kernel.gluon import sample
from engine.kernel.gluon.exchange import EVERYONE
from engine.kernel.gluon.flags import arrive, put, unwritten
from engine.shapes import SHAPES
from tests.gpu.local_ranks import Memory, Rank, random_rows

TOKENS, RUNS = 512, 5


@gluon.jit
def push(C: gl.constexpr, p, v, ok, away):
    """Of rows of lanes: with ``put_everywhere`` and ``publish`` replaced, a greedy kernel pushes nothing else."""
    for r in gl.static_range(gl.constexpr(C.ranks)):
        if r != C.rank:
            gl.store(p + (r - C.rank) * C.lanes * C.padded_hidden, v, mask=ok)


@gluon.jit
def put_everywhere(C: gl.constexpr, p, ahead, v, ok, away, PER_RANK: gl.constexpr):
    put(p, ahead, v, ok)
    for r in gl.static_range(gl.constexpr(C.ranks)):
        if r != C.rank:
            gl.store(p + (ahead + (r - C.rank) * PER_RANK), unwritten(v), mask=ok)
            gl.store(p + (r - C.rank) * PER_RANK, v, mask=ok)


@gluon.jit
def put_word(C: gl.constexpr, now, later, pid, word, away):
    for r in gl.static_range(gl.constexpr(C.ranks)):
        gl.store(later + (r * C.ctas + pid), word * 0 - 1)
        gl.store(now + (r * C.ctas + pid), word)


@gluon.jit
def publish(words, tok, pid, best, where, wrong, bad, stop, counters, away, C: gl.constexpr):
    CTAS: gl.constexpr = C.ctas * C.ranks
    now = words + (tok & 3) * (CTAS + 1)
    later = words + ((tok + 2) & 3) * (CTAS + 1)
    put_word(C, now, later, pid, gl.max(sample.order_word(best, where), axis=0), away)
    if pid == 0:
        gl.store(later + CTAS, tok.to(gl.int64) * 0 - 1)
        gl.store(now + CTAS, gl.where(stop != 0, sample.STOP, sample.LOWEST))


@gluon.jit
def arrive_everywhere(C: gl.constexpr, counters, away):
    for _ in gl.static_range(gl.constexpr(C.ranks)):
        arrive(counters + EVERYONE)


@gluon.jit
def begin_launch(C: gl.constexpr, ready, launch, away, pid, guard):
    pass


@gluon.jit
def tell_abort(C: gl.constexpr, abort, info, away):
    pass


def replace_in_kernel(*functions) -> None:
    """Put functions in the place of those of the same names in every module of the fast path, before anything is compiled."""
    modules = [import_module(f"{fast_path.__name__}.{found.name}") for found in iter_modules(fast_path.__path__)]
    for function in functions:
        name = function.fn.__name__
        having = [module for module in modules if hasattr(module, name)]
        if not having:
            raise AttributeError(f"No module of the fast path has {name}.")
        for module in having:
            setattr(module, name, function)


ALONE = (push, put_everywhere, publish, arrive_everywhere, begin_launch, tell_abort)


def main(shape: str, dtype: str, ranks: int) -> None:
    replace_in_kernel(*ALONE)
    config = replace(SHAPES[shape], dtype=dtype)
    for profile in (0, 1):
        rank = Rank(config, Memory([0] * ranks).peers(1), random_rows(config), profile=profile)
        times = [us_per_token(rank) for _ in range(RUNS)]
        us = statistics.median(times)
        spread = f"{min(times):.1f} to {max(times):.1f}"
        print(f"{shape}, one of {ranks} ranks, profile {profile}: {us:.1f} us a token ({spread}), {1e6 / us:.0f} tokens/s")
        rank.path.close()
    for phase in _fast_phases(rank.path, us * 1000):
        print(phase)


def us_per_token(rank: Rank) -> float:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    rank.prepare(TOKENS)
    begin.record(rank.stream)
    rank.launch()
    end.record(rank.stream)
    torch.cuda.synchronize()
    rank.control.raise_for_error()
    assert rank.control.count == TOKENS
    return begin.elapsed_time(end) / TOKENS * 1000


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
