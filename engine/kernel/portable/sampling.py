"""The next token from the logits, exactly as engine/sampling.py defines it, on the whole grid.

Greedy and plain temperature need only every program's best candidate, made while the head streams. Top-k and top-p search
their pivot value digit by digit, four bits a round: every program counts (or weighs) its slice of the vocabulary against
15 thresholds, and all programs add the same partial results in the same order.
"""

import triton
import triton.language as tl

from engine.kernel.portable.exchange import AGREEMENT, TICK_BEST, TICK_FILTERED, TICK_PIVOT, float_of, float_word, push, receive
from engine.kernel.portable.gemv import gumbel, load_best, store_best
from engine.kernel.portable.sync import grid_barrier


@triton.jit
def _ordered(x):
    """uint32 that sorts like the float32 x."""
    bits = x.to(tl.int32, bitcast=True)
    return tl.where(bits < 0, ~bits, bits | -2147483648).to(tl.uint32, bitcast=True)


@triton.jit
def _pivot(B, C: tl.constexpr, epoch, keys, weights, goal, relative: tl.constexpr, tick, position):
    """The highest key v for which the weights of keys >= v sum to at least the goal (times the whole mass when relative).

    Returns (v, epoch).
    """
    digits = tl.arange(0, 16)
    programs = tl.arange(0, C.programs_pad)
    prefix = tl.full([], 0, tl.uint32)
    want = goal
    for turn in range(0, 8):
        shift = 28 - 4 * turn
        thresholds = prefix + (digits << shift).to(tl.uint32)
        above = tl.sum(tl.where(keys[:, None] >= thresholds[None, :], weights[:, None], 0.0), 0)
        if C.ranks == 1:
            half = B.mass + (turn % 2) * (C.programs * 16)
            tl.store(half + tl.program_id(0) * 16 + digits, above)
            epoch = grid_barrier(B, C, epoch, 8, 0, position)
            parts = tl.load(half + programs[:, None] * 16 + digits[None, :], mask=(programs < C.programs)[:, None], other=0.0)
            mass = tl.sum(parts, 0)
        else:
            mass = _mass_of_ranks(B, C, above, turn, tick + C.layers + TICK_PIVOT + turn + (8 if relative else 0), position)
        if relative:
            want = tl.where(turn == 0, goal * tl.sum(tl.where(digits == 0, mass, 0.0), 0), want)
        digit = tl.max(tl.where(mass >= want, digits, 0), 0)
        prefix += (digit << shift).to(tl.uint32)
    return prefix, epoch


@triton.jit
def _mass_of_ranks(B, C: tl.constexpr, above, turn, tag, position):
    """Sum of [16] partial masses over the programs of all ranks, in the same order everywhere."""
    RANKS: tl.constexpr = C.ranks
    digits = tl.arange(0, 16)
    programs = tl.arange(0, C.programs_pad)[:, None]
    half = C.inbox_mass + (turn % 2) * (C.ranks * C.programs * 16)
    place = half + (C.rank * C.programs + tl.program_id(0)) * 16 + digits
    push(B, C, place, float_word(above, tag), digits >= 0, True)
    mass = tl.full([16], 0.0, tl.float32)
    for rank in tl.static_range(RANKS):
        place = half + (rank * C.programs + programs) * 16 + digits[None, :]
        parts = receive(B, C, place, tag, (programs < C.programs) & (digits >= 0)[None, :], AGREEMENT, C.layers, position)
        mass += tl.sum(float_of(parts), 0)
    return mass


@triton.jit(noinline=True)
def _filtered(B, C: tl.constexpr, epoch, logits, top_logit, temperature, top_k, top_p, log_min_p, seed, tick, position):
    """Best candidate of this program's slice after top-k, top-p and min-p into best[1]. Returns epoch."""
    i = tl.arange(0, C.vocab_slice_pad)
    local = tl.program_id(0) * C.vocab_slice + i
    ids = C.rank * C.vocab + local
    valid = (i < C.vocab_slice) & (local < C.vocab)
    scaled = tl.load(logits + local, mask=valid, other=float("-inf")) / temperature
    top = top_logit / temperature
    keys = _ordered(scaled)
    kept = valid
    if (top_k > 0) & (top_k < C.vocab * C.ranks):
        pivot, epoch = _pivot(B, C, epoch, keys, kept.to(tl.float32), top_k.to(tl.float32), False, tick, position)
        kept = kept & (keys >= pivot)
    if top_p < 1.0:
        weights = tl.where(kept, tl.exp(scaled - top), 0.0)
        pivot, epoch = _pivot(B, C, epoch, keys, weights, top_p, True, tick, position)
        kept = kept & (keys >= pivot)
    kept = kept & (scaled >= top + log_min_p)
    score = tl.where(kept, scaled + gumbel(seed, position, ids), float("-inf"))
    store_best(B, C, 1, score, tl.where(kept, ids, 2147483647), 0, tick + C.layers + TICK_FILTERED, position)
    return grid_barrier(B, C, epoch, 8, 0, position)


@triton.jit
def sample(B, C: tl.constexpr, epoch, logits, temperature, seed, tick, position):
    """(token, epoch), the same in every program of every rank; token -1 when another rank's failed.

    Call after the barrier that ends the head. position: of the new token.
    """
    tag = tick + C.layers + TICK_BEST
    top_logit, token = load_best(B, C, 0, tag, position)
    if temperature > 0:
        if tl.abs(top_logit / temperature) < float("inf"):
            top_k = tl.load(B.ints + 1)
            top_p = tl.load(B.floats + 1)
            log_min_p = tl.load(B.floats + 2)
            if (top_k > 0) | (top_p < 1.0) | (log_min_p > float("-inf")):
                epoch = _filtered(B, C, epoch, logits, top_logit, temperature, top_k, top_p, log_min_p, seed, tick, position)
                tag = tick + C.layers + TICK_FILTERED
            _, token = load_best(B, C, 1, tag, position)
    return token, epoch


@triton.jit
def is_stop_id(B, token):
    """Whether the token is one of the stop ids of the parameter block."""
    i = tl.arange(0, 64)
    stops = tl.load(B.ints + 8 + i, mask=i < tl.load(B.ints + 4), other=-1)
    return tl.max((stops == token).to(tl.int32), 0) != 0
