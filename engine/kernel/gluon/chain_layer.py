"""Layers of a rank that has one of several lanes (``Plan.chain``)."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from engine.kernel.gluon.attention import combine, span
from engine.kernel.gluon.exchange import arrive_everywhere, guard_of
from engine.kernel.gluon.flags import at_place, wait_count
from engine.kernel.gluon.gemv import DELTA, GATE, QKV, run_blocks, share, stage
from engine.kernel.gluon.phases import attend_all
from engine.kernel.gluon.state import input_tiles, load_tiles, stage_hidden, stage_normed
from engine.kernel.gluon.steps import AT_O, AT_QKV, AT_REDUCE, AT_W2, AT_W13, PARITIES, at_layer, begin_step, clear_distance, now, record
from engine.kernel.gluon.sums import add_sum_of_all, lane_update, make_delayed_sums, part_of, peek_update


@gluon.jit
def chain_layer(mem, buf, model, h, w, at, step, bad, layer, tok, pos, pid, xo, guard, trace, T: gl.constexpr, C: gl.constexpr):
    """One layer of a rank's only lane, by all its CTAs. h: tiles of the lane's state without the last layer's W2; w: its attention norm.

    The other lanes are needed at once in the first ``Plan.common_layers`` layers; later only as sums of old layers, made while W2's input is awaited.
    Returns h, the next layer's w, at, step, bad.
    """
    ring, kv, xs, full, empty, warps = mem
    act, lse, counters, unused, parts, away = buf
    norms, bias, angles, kcache, vcache = model
    Q: gl.constexpr = C.common
    n = tok * C.layers + layer
    a = at_layer(act, n, C)
    ahead = clear_distance(n, C.act)
    sums = tok * C.common_layers + layer
    unit = layer * Q.units_layer
    staged_d, xd = input_tiles(C, xs, C.segments_d, 1, T)
    # norm and QKV
    t0 = now(C, pid)
    guard = at_place(guard, AT_QKV, layer, pid)
    begin_step(counters)
    step += 1
    h = add_block(C, h, buf, 1, layer - 1, tok, step, xo, pid, guard, T)
    tw = now(C, pid)
    scale, bad = stage_normed(C, staged_d, warps, h, w, bad, layer, T)
    t1 = now(C, pid)
    first, units = share(unit, Q.units_qkv, pid, Q.ctas, Q.block_qkv)
    ctx = (a + C.at_qkv, ahead, bias)
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
    staged, xq = input_tiles(C, xs, Q.segments_o, 1, T)
    start, used = span(C, layer, pos)
    used = gl.minimum(used, Q.splits)
    if layer < C.common_layers:  # the splits are added in the order of one rank's layers of this kind
        stage(staged, combine(C, a + C.at_part, logs, used, guard, Q.segments_o, Q.splits, C.ranks), T, C.boxes)
    else:
        stage(staged, combine(C, a + C.at_part, logs, used, guard, Q.segments_o, Q.splits), T, C.boxes)
    t1 = now(C, pid)
    unit += Q.units_qkv
    first, units = share(unit, Q.units_o, pid, Q.ctas, Q.block_o)
    own = (a + C.at_o + (1 + C.first_lane) * C.padded_hidden, ahead, away)
    shared = (part_of(parts, sums, 0, C) + C.rank * C.padded_hidden, clear_distance(sums, C.parts), away)
    ctx = (own, shared, layer < C.common_layers)
    at = run_blocks(C, ring, full, empty, xq, at, first, units, 1.0, ctx,
                    Q.segments_o, DELTA, Q.block_o, Q.units_o, Q)  # fmt: skip
    record(trace, pid, layer * 5 + 2, t0, tw, t1, C)
    # norm, gate and up
    t0 = now(C, pid)
    guard = at_place(guard, AT_W13, layer, pid)
    begin_step(counters)
    step += 1
    h = add_block(C, h, buf, 0, layer, tok, step, xo, pid, guard, T)
    tw = now(C, pid)
    scale, bad = stage_normed(C, staged_d, warps, h, w, bad, layer, T)
    t1 = now(C, pid)
    unit += Q.units_o
    first, units = share(unit, Q.units_w13, pid, Q.ctas, 2)
    ctx = (a + C.at_u, ahead)
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
    staged, xf = input_tiles(C, xs, Q.segments_f, 1, T)
    stage_hidden(C, staged, a + C.at_u, 1, guard, T, Q.segments_f, True)
    t1 = now(C, pid)
    unit += Q.units_w13
    first, units = share(unit, Q.units_w2, pid, Q.ctas, Q.block_w2)
    own = (a + C.at_m + (1 + C.first_lane) * C.padded_hidden, ahead, away)
    shared = (part_of(parts, sums, 1, C) + C.rank * C.padded_hidden, clear_distance(sums, C.parts), away)
    ctx = (own, shared, layer < C.common_layers)
    at = run_blocks(C, ring, full, empty, xf, at, first, units, 1.0, ctx,
                    Q.segments_f, DELTA, Q.block_w2, Q.units_w2, Q)  # fmt: skip
    record(trace, pid, layer * 5 + 4, t0, tw, t1, C)
    return h, w, at, step, bad


@gluon.jit
def add_block(C: gl.constexpr, h, buf, mlp: gl.constexpr, layer, tok, step, xo, pid, guard, T: gl.constexpr):
    """h of a rank's only lane after O, or W2 with ``mlp``, of ``layer`` (-1: none), which was made in step - 1."""
    act, lse, counters, unused, parts, away = buf
    Q: gl.constexpr = C.common
    EARLY: gl.constexpr = Q.early(Q.units_w2 if mlp else Q.units_o, C.early)
    if layer >= C.common_layers:
        made = tok * C.layers + layer
        own = at_layer(act, made, C) + (C.at_m if mlp else C.at_o) + (1 + C.first_lane) * C.padded_hidden + xo
        delayed = at_layer(act, made - C.delay, C) + C.at_e + mlp * C.padded_hidden + xo
        wait_count(counters, step * Q.ctas - EARLY, guard)
        update = (own, delayed, 1, (layer >= C.past_from).to(gl.int32))
        h = lane_update(C, h, peek_update(C, update), update, guard, T)
    if C.common_layers > 0:
        if (layer >= 0) & (layer < C.common_layers):
            arrive_everywhere(C, counters, away)
            p = part_of(parts, tok * C.common_layers + layer, mlp, C)
            h = add_sum_of_all(C, h, p, xo, counters, tok * C.meetings + 2 * layer + 1 + mlp, EARLY, layer, pid, guard, T)
    return h
