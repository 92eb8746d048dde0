"""Layers of ``Plan.common``: all CTAs compute one after the other, of one lane or of lanes whose sum is needed at once."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from engine.kernel.gluon.attention import combine, span
from engine.kernel.gluon.exchange import guard_of
from engine.kernel.gluon.flags import at_place, peek_tiles, settle_tiles, wait_count
from engine.kernel.gluon.gemv import (
    DELTA,
    GATE,
    QKV,
    hold_unit,
    run_blocks,
    run_lane_units,
    run_pairs_after,
    run_parts,
    share,
    stage,
    staged_pack,
)
from engine.kernel.gluon.phases import attend_all
from engine.kernel.gluon.state import input_tiles, load_tiles, plain_sum, stage_hidden, stage_normed
from engine.kernel.gluon.steps import AT_O, AT_QKV, AT_REDUCE, AT_W2, AT_W13, PARITIES, at_layer, begin_step, clear_distance, now, record
from engine.kernel.gluon.sums import add_sum_of_all, begin_meeting, make_delayed_sums, part_of


@gluon.jit
def delta_phase(C: gl.constexpr, ring, full, empty, x, at, unit, units: gl.constexpr, total, own, pid, SEG: gl.constexpr, BLOCK: gl.constexpr,
                Q: gl.constexpr):  # fmt: skip
    """O or W2 of a common layer. ``total``, ``own``: (pointer, distance to clear) of the sum over the lanes and of each lane's own."""
    first, n = share(unit, units, pid, Q.ctas, BLOCK)
    if Q.sums > 1:
        return run_lane_units(C, ring, full, empty, x, at, first, n, total, own, SEG, Q.sums, Q)
    elif SEG <= 16:
        return run_blocks(C, ring, full, empty, x, at, first, n, 1.0, total, SEG, DELTA, BLOCK, units, Q)
    else:
        return run_parts(C, ring, full, empty, x, at, first, n, total, 16, SEG // 16, Q)


@gluon.jit
def common_layer(mem, buf, model, h, w, at, step, bad, layer, tok, pos, pid, xo, guard, trace, T: gl.constexpr, C: gl.constexpr):
    """One layer computed by all CTAs. h: tiles of the hidden state without the last layer's W2. w: its attention norm. Returns h, the next layer's w, at, step, bad."""
    ring, kv, xs, full, empty, warps = mem
    act, lse, counters, unused, shared, away = buf
    norms, bias, angles, kcache, vcache = model
    Q: gl.constexpr = C.common
    n = tok * C.layers + layer
    a = at_layer(act, n, C)
    ahead = clear_distance(n, C.act)
    sums = tok * C.common_layers + layer  # the sums over the lanes have buffers of their own count: only common layers write them
    a_sum = at_layer(act, sums, C)
    ahead_sum = clear_distance(sums, C.act)
    unit = layer * Q.units_layer
    PACK: gl.constexpr = staged_pack(C.segments_d)
    staged_d, xd = input_tiles(C, xs, C.segments_d, 1, T)
    # norm and QKV
    t0 = now(C, pid)
    guard = at_place(guard, AT_QKV, layer, pid)
    if C.ranks == 1:
        begin_step(counters)
        step += 1
        wait_count(counters, step * Q.ctas - Q.early(Q.units_w2, C.early), guard)
        tw = now(C, pid)
        use = (layer > 0).to(gl.int32)
        p = at_layer(act, sums - 1, C) + C.at_m + xo
        h = plain_sum(h, settle_tiles(peek_tiles(p, use, C.boxes, PACK), p, use, guard, T, C.boxes, PACK), C)
    else:
        step += 1
        if layer == 0:
            begin_step(counters)
        else:
            begin_meeting(C, counters, away)
            h = add_sum_of_all(C, h, part_of(shared, sums - 1, 1, C), xo, counters, tok * C.meetings + 2 * layer, Q.early(Q.units_w2, C.early), layer, pid,
                               guard, T)  # fmt: skip
        tw = now(C, pid)
    scale, bad = stage_normed(C, staged_d, warps, h, w, bad, layer, T)
    t1 = now(C, pid)
    first, units = share(unit, Q.units_qkv, pid, Q.ctas, Q.block_qkv)
    ctx = (a + C.at_qkv, ahead, bias + layer * C.qkv_rows)
    at = run_blocks(C, ring, full, empty, xd, at, first, units, scale, ctx,
                    C.segments_d, QKV, Q.block_qkv, Q.units_qkv, Q)  # fmt: skip
    record(trace, pid, layer * 5, t0, tw, t1, C)
    # attention
    w = load_tiles(norms + (2 * layer + 1) * C.padded_hidden + xo, C.boxes)
    at, step = attend_all(mem, model, lse, counters, a, n, ahead, at, step, layer, pos, pid, guard, trace, T, C)
    logs = lse + (n & (PARITIES - 1)) * C.lse
    # output projection
    t0 = now(C, pid)
    guard = at_place(guard, AT_O, layer, pid)
    begin_step(counters)
    step += 1
    wait_count(counters, step * Q.ctas, guard)
    tw = now(C, pid)
    start, parts = span(C, layer, pos)
    staged, x = input_tiles(C, xs, Q.segments_o, Q.sums, T)
    x_heads = combine(C, a + C.at_part, logs, gl.minimum(parts, Q.splits), guard, Q.segments_o * Q.sums, Q.splits, C.ranks)
    stage(staged, x_heads, T, C.boxes)
    t1 = now(C, pid)
    unit += Q.units_qkv
    if C.ranks == 1:
        total = (a_sum + C.at_o, ahead_sum)
        own = (a + C.at_o + C.padded_hidden, ahead)
    else:
        total = (part_of(shared, sums, 0, C) + C.rank * C.padded_hidden, clear_distance(sums, C.parts), away)
        own = (a + C.at_o + (1 + C.first_lane) * C.padded_hidden, ahead, away)
    at = delta_phase(C, ring, full, empty, x, at, unit, Q.units_o, total, own, pid, Q.segments_o, Q.block_o, Q)
    record(trace, pid, layer * 5 + 2, t0, tw, t1, C)
    # norm, gate and up
    t0 = now(C, pid)
    guard = at_place(guard, AT_W13, layer, pid)
    if C.ranks == 1:
        begin_step(counters)
        step += 1
        if Q.holds:
            held = hold_unit(C, ring, full, empty, at)
        wait_count(counters, step * Q.ctas - Q.early(Q.units_o, C.early), guard)
        tw = now(C, pid)
        p = a_sum + C.at_o + xo
        h = plain_sum(h, settle_tiles(peek_tiles(p, 1, C.boxes, PACK, True), p, 1, guard, T, C.boxes, PACK, True), C)
    else:
        begin_meeting(C, counters, away)
        step += 1
        if Q.holds:
            held = hold_unit(C, ring, full, empty, at)
        h = add_sum_of_all(C, h, part_of(shared, sums, 0, C), xo, counters, tok * C.meetings + 2 * layer + 1, Q.early(Q.units_o, C.early), layer, pid,
                           guard, T)  # fmt: skip
        tw = now(C, pid)
    scale, bad = stage_normed(C, staged_d, warps, h, w, bad, layer, T)
    t1 = now(C, pid)
    unit += Q.units_o
    first, units = share(unit, Q.units_w13, pid, Q.ctas, 2)
    ctx = (a + C.at_u, ahead)
    if Q.holds:
        at = run_pairs_after(C, ring, full, empty, xd, at, held, first, units, scale, ctx, C.segments_d, GATE, Q)
    else:
        at = run_blocks(C, ring, full, empty, xd, at, first, units, scale, ctx, C.segments_d, GATE, 2, Q.units_w13, Q)
    record(trace, pid, layer * 5 + 3, t0, tw, t1, C)
    # down projection
    w = load_tiles(norms + (2 * layer + 2) * C.padded_hidden + xo, C.boxes)
    t0 = now(C, pid)
    guard = at_place(guard, AT_W2, layer, pid)
    begin_step(counters)
    step += 1
    if C.exchange:
        make_delayed_sums(C, act, n, pid, guard_of(C, at_place(guard, AT_REDUCE, layer, pid), layer, pid), counters, T)
    wait_count(counters, step * Q.ctas - Q.early(Q.units_w13, C.early), guard)
    tw = now(C, pid)
    staged, x = input_tiles(C, xs, Q.segments_f, Q.sums, T)
    stage_hidden(C, staged, a + C.at_u, 1, guard, T, Q.segments_f * Q.sums, True)
    t1 = now(C, pid)
    unit += Q.units_w13
    if C.ranks == 1:
        total = (a_sum + C.at_m, ahead_sum)
        own = (a + C.at_m + C.padded_hidden, ahead)
    else:
        total = (part_of(shared, sums, 1, C) + C.rank * C.padded_hidden, clear_distance(sums, C.parts), away)
        own = (a + C.at_m + (1 + C.first_lane) * C.padded_hidden, ahead, away)
    at = delta_phase(C, ring, full, empty, x, at, unit, Q.units_w2, total, own, pid, Q.segments_f, Q.block_w2, Q)
    record(trace, pid, layer * 5 + 4, t0, tw, t1, C)
    return h, w, at, step, bad


@gluon.jit
def add_common(C: gl.constexpr, act, h, n, counters, step, xo, guard, parts, away, tok, pid, T: gl.constexpr):
    """h after the last common layer (n - 1 in the count of common layers). One step of all CTAs."""
    EARLY: gl.constexpr = C.common.early(C.common.units_w2, C.early)
    if C.ranks > 1:
        begin_meeting(C, counters, away)
        met = tok * C.meetings + 2 * C.common_layers
        return add_sum_of_all(C, h, part_of(parts, n - 1, 1, C), xo, counters, met, EARLY, C.common_layers, pid, guard, T)
    else:
        begin_step(counters)
        wait_count(counters, step * C.ctas - EARLY, guard)
        p = at_layer(act, n - 1, C) + C.at_m + xo
        PACK: gl.constexpr = staged_pack(C.segments_d)
        return plain_sum(h, settle_tiles(peek_tiles(p, 1, C.boxes, PACK, True), p, 1, guard, T, C.boxes, PACK, True), C)
