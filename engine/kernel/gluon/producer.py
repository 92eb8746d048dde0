"""The producer warp: it copies the units of token after token into the ring, in the order in which the consumer takes them."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma

from engine.kernel.gluon.attention import span, taken
from engine.kernel.gluon.flags import fence_copy_engine, load_relaxed
from engine.kernel.gluon.gemv import advance, share, share_output


@gluon.jit
def begin_slot(C: gl.constexpr, full, empty, at, run):
    """Wait until the slot is free and at most ``in_flight`` units are on their way. (A fresh barrier lets the phase before its first pass.)"""
    slot, phase = at
    wraps = (slot < C.in_flight).to(gl.int32)
    mbarrier.wait(empty.index(slot), phase ^ 1, pred=run)
    mbarrier.wait(full.index(slot + wraps * C.slots - C.in_flight), phase ^ wraps, pred=run)


@gluon.jit
def feed(C: gl.constexpr, weights, ring, full, empty, at, unit, n, run, CTAS: gl.constexpr, TOGETHER: gl.constexpr):
    """Copy n blocks of TOGETHER units from ``unit`` on, CTAS blocks apart. Returns the new ring place."""
    for k in range(n * TOGETHER):
        begin_slot(C, full, empty, at, run)
        slot = at[0]
        row = (unit + k // TOGETHER * (CTAS * TOGETHER) + k % TOGETHER) * (C.boxes * 64)
        mbarrier.expect(full.index(slot), C.boxes * 8192, pred=run)
        for j in gl.static_range(gl.constexpr(C.boxes)):
            tma.async_copy_global_to_shared(weights, [row + 64 * j, 0], full.index(slot), ring.index(slot * C.boxes + j), pred=run)
        at = advance(C, at, 1)
    return at


@gluon.jit
def feed_kv(C: gl.constexpr, keys, values, kv, full, empty, at, layer, head, pos, split, active, run, SPLITS: gl.constexpr):
    """Copy this CTA's KV units of a layer. Returns the new ring place."""
    HB: gl.constexpr = C.head_size // 32
    start, units = span(C, layer, pos)
    n = gl.where(active, (units - split + SPLITS - 1) // SPLITS, 0)
    first = (layer * C.kv_heads + head) * C.context + start
    for k in range(n):
        begin_slot(C, full, empty, at, run)
        slot = at[0]
        row = first + 64 * taken(units, split, k, SPLITS)
        base = slot * (2 * C.boxes)
        mbarrier.expect(full.index(slot), 2 * HB * 4096, pred=run)
        for j in gl.static_range(HB):
            tma.async_copy_global_to_shared(keys, [row, 32 * j], full.index(slot), kv.index(base + j), pred=run)
        for j in gl.static_range(HB):
            tma.async_copy_global_to_shared(values, [row, 32 * j], full.index(slot), kv.index(base + HB + j), pred=run)
        at = advance(C, at, 1)
    return at


@gluon.jit
def before_gate(C: gl.constexpr, n, TOGETHER: gl.constexpr):
    """Blocks of units of a token that may be copied before its start is certain: no KV among them, and the ring takes no more anyway."""
    return gl.minimum(n, C.slots // TOGETHER)


@gluon.jit
def gate(token_bar, halt, tok, run):
    """Wait until the token has begun (every CTA has finished the one before); false when the generation ended instead."""
    mbarrier.wait(token_bar, tok & 1, pred=run)
    go = run & (load_relaxed(halt) == 0)
    fence_copy_engine()
    return go


@gluon.jit
def feed_first(
    C: gl.constexpr, weights, ring, full, empty, token_bar, halt, at, tok, unit, n, run, CTAS: gl.constexpr, TOGETHER: gl.constexpr
):
    """The first units of a token, with the gate between those that are copied ahead and the others."""
    ahead = before_gate(C, n, TOGETHER)
    at = feed(C, weights, ring, full, empty, at, unit, ahead, run, CTAS, TOGETHER)
    run = gate(token_bar, halt, tok, run)
    return feed(C, weights, ring, full, empty, at, unit + ahead * TOGETHER * CTAS, n - ahead, run, CTAS, TOGETHER), run


@gluon.jit
def producer(weights, keys, values, ring, kv, full, empty, token_bar, halts, pid, position, C: gl.constexpr):
    """Issue the copies of all units of token after token, in the order in which the consumer takes them."""
    Q: gl.constexpr = C.common
    G: gl.constexpr = C.lane
    halt = halts + pid
    group = pid // G.ctas
    rank = pid % G.ctas
    item = rank // G.splits
    HALVES: gl.constexpr = C.halves
    at = (pid * 0, pid * 0)
    tok = pid * 0
    run = pid >= 0
    while run:
        pos = position + tok
        for layer in range(C.whole_layers):
            unit = layer * Q.units_layer
            first, n = share(unit, Q.units_qkv, pid, Q.ctas, Q.block_qkv)
            start = unit + first * Q.block_qkv
            if layer == 0:
                at, run = feed_first(C, weights, ring, full, empty, token_bar, halt, at, tok, start, n, run, Q.ctas, Q.block_qkv)
            else:
                at = feed(C, weights, ring, full, empty, at, start, n, run, Q.ctas, Q.block_qkv)
            at = feed_kv(
                C,
                keys,
                values,
                kv,
                full,
                empty,
                at,
                layer,
                pid // Q.splits,
                pos,
                pid % Q.splits,
                pid // Q.splits < Q.kv_heads,
                run,
                Q.splits,
            )
            unit += Q.units_qkv
            first, n = share(unit, Q.units_o, pid, Q.ctas, Q.block_o)
            at = feed(C, weights, ring, full, empty, at, unit + first * Q.block_o, n, run, Q.ctas, Q.block_o)
            unit += Q.units_o
            first, n = share(unit, Q.units_w13, pid, Q.ctas, 2)
            at = feed(C, weights, ring, full, empty, at, unit + first * 2, n, run, Q.ctas, 2)
            unit += Q.units_w13
            first, n = share(unit, Q.units_w2, pid, Q.ctas, Q.block_w2)
            at = feed(C, weights, ring, full, empty, at, unit + first * Q.block_w2, n, run, Q.ctas, Q.block_w2)
        base = C.first_lane_unit + group * C.units_group
        for half in range(HALVES):
            lane = half & 1
            layer = half // 2
            n_own = gl.where(half < HALVES - 1, 1, 0)  # the lane of QKV, attention and O has a layer left
            n_other = gl.where(half > 0, 1, 0)  # so has the lane of W13 and W2
            unit = layer * G.units_layer + lane * G.units_qkv
            first, n = share(unit, G.units_qkv, rank, G.ctas, 2)
            n *= n_own
            if (half == 0) & (C.common_layers == 0):
                at, run = feed_first(C, weights, ring, full, empty, token_bar, halt, at, tok, base + unit + first * 2, n, run, G.ctas, 2)
            else:
                at = feed(C, weights, ring, full, empty, at, base + unit + first * 2, n, run, G.ctas, 2)
            unit = (half - 1) // 2 * G.units_layer + 2 * (G.units_qkv + G.units_o) + (1 - lane) * G.units_w13
            first, n = share(unit, G.units_w13, rank, G.ctas, 2)
            at = feed(C, weights, ring, full, empty, at, base + unit + first * 2, n * n_other, run, G.ctas, 2)
            head = (group * 2 + lane) * G.kv_heads + item % G.kv_heads
            mine = (item // G.kv_heads == lane) & (n_own != 0)
            at = feed_kv(C, keys, values, kv, full, empty, at, C.common_layers + layer, head, pos, rank % G.splits, mine, run, G.splits)
            unit = (half - 1) // 2 * G.units_layer + 2 * (G.units_qkv + G.units_o + G.units_w13) + (1 - lane) * G.units_w2
            first, n = share(unit, G.units_w2, rank, G.ctas, 2)
            at = feed(C, weights, ring, full, empty, at, base + unit + first * 2, n * n_other, run, G.ctas, 2)
            unit = layer * G.units_layer + 2 * G.units_qkv + lane * G.units_o
            first, n = share_output(unit, rank, lane, G)
            at = feed(C, weights, ring, full, empty, at, base + unit + first * 2, n * n_own, run, G.ctas, 2)
        first, n = share(0, C.units_head, pid, C.ctas, 2)
        at = feed(C, weights, ring, full, empty, at, C.first_head_unit + first * 2, n, run, C.ctas, 2)
        tok += 1
