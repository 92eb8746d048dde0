"""Layers of ``Plan.lane``: a group of CTAs computes its two lanes, one of them half a layer behind the other."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from engine.kernel.gluon.attention import attend, combine, prepare, query_tiles, span
from engine.kernel.gluon.flags import at_place, wait_count, wait_counts
from engine.kernel.gluon.gemv import DELTA, GATE, QKV, run_pair, run_pairs, share, share_output, stage
from engine.kernel.gluon.state import input_tiles, load_tiles, stage_hidden, stage_normed
from engine.kernel.gluon.steps import (
    AT_ATTENTION,
    AT_O,
    AT_QKV,
    AT_W2,
    AT_W13,
    PARITIES,
    at_layer,
    begin_step,
    clear_distance,
    now,
    record,
)
from engine.kernel.gluon.sums import lane_update, make_delayed_sums, peek_update


@gluon.jit
def mlp_update(C: gl.constexpr, act, n, layer, lane, xo):
    """What the state of a lane before layer ``layer`` (running number n) takes from W2 of the layer before, if that was a layer of lanes."""
    own = at_layer(act, n - 1, C) + C.at_m + (1 + C.first_lane + lane) * C.padded_hidden + xo
    delayed = at_layer(act, n - 1 - C.delay, C) + C.at_e + (C.lanes + lane) * C.padded_hidden + xo
    use = (layer > C.common_layers).to(gl.int32)
    past = ((layer > C.common_layers) & (layer > C.past_from)).to(gl.int32)
    return own, delayed, use, past


@gluon.jit
def end_of_others(C: gl.constexpr, counter, step, guard):
    """Wait until the step before the last is done everywhere in the group. Returns the new count."""
    wait_count(counter, step * C.lane.ctas, guard)
    return step + 1


@gluon.jit
def end_with_next_group(C: gl.constexpr, counters, group, step, guard):
    """``end_of_others``, and the next group is at most two steps behind: a group that runs ahead takes bandwidth from one that all wait for in the end."""
    counter = counters + 32 * (1 + group)
    if C.groups == 1:
        wait_count(counter, step * C.lane.ctas, guard)
    else:
        wait_counts(counter, step * C.lane.ctas, counters + 32 * (1 + (group + 1) % C.groups), (step - 2) * C.lane.ctas, guard)
    return step + 1


@gluon.jit
def await_update(C: gl.constexpr, h, update, counter, step, guard, T: gl.constexpr):
    """``lane_update`` in a step of the group. Returns h, the new count."""
    begin_step(counter)
    peeked = peek_update(C, update)  # looked for while the counter is: mostly it has been there for long
    step = end_of_others(C, counter, step, guard)
    return lane_update(C, h, peeked, update, guard, T), step


@gluon.jit
def delta_ctx(C: gl.constexpr, p, ahead, away):
    if C.ranks == 1:
        return p, ahead
    else:
        return p, ahead, away


@gluon.jit
def half_layer(mem, buf, model, hs, w, at, step, bad, half, tok, pos, pid, xo, guard, trace, T: gl.constexpr, C: gl.constexpr):
    """QKV, attention and O of one lane of the group in its layer, and between them W13 and W2 of the other lane in its own.

    So every value has a phase of the other lane to travel: a phase needs what was made two phases before. The first half has no W13 and W2, the
    last no QKV (but adds the last W2), attention and O. hs: states of (this lane, the other); w: this lane's attention norm.
    Returns hs exchanged, the next half's w, at, step, bad.
    """
    ring, kv, xs, full, empty, warps = mem
    act, lse, counters, group, shared, away = buf
    norms, bias, angles, kcache, vcache = model
    G: gl.constexpr = C.lane
    H: gl.constexpr = C.head_size
    QKV_LANE: gl.constexpr = (G.heads + 2 * G.kv_heads) * H
    group_counter = counters + 32 * (1 + group)
    rank = pid % G.ctas
    turn = half & 1
    lane = group * 2 + turn
    other = group * 2 + 1 - turn
    layer = C.common_layers + half // 2
    other_layer = C.common_layers + (half - 1) // 2
    n_own = gl.where(half < C.halves - 1, 1, 0)
    n_other = gl.where(half > 0, 1, 0)
    n = tok * C.layers + layer
    m = tok * C.layers + other_layer
    a = at_layer(act, n, C)
    b = at_layer(act, m, C)
    ahead = clear_distance(n, C.act)
    ahead_other = clear_distance(m, C.act)
    own_unit = half // 2 * G.units_layer
    other_unit = (half - 1) // 2 * G.units_layer
    trace_at = C.common_layers * 5 + half * 5
    staged_d, xd = input_tiles(C, xs, C.segments_d, 1, T)
    # norm and QKV
    t0 = now(C, pid)
    guard = at_place(guard, AT_QKV, layer, pid)
    update = mlp_update(C, act, n, layer, lane, xo)
    h, step = await_update(C, hs[0], update, group_counter, step, guard, T)
    w_ffn = load_tiles(norms + (2 * other_layer + 1) * C.padded_hidden + xo, C.boxes)
    scale, bad = stage_normed(C, staged_d, warps, h, w, bad, layer, T)
    t1 = now(C, pid)
    first, pairs = share(own_unit + turn * G.units_qkv, G.units_qkv, rank, G.ctas, 2)
    ctx = (a + C.at_qkv + lane * QKV_LANE, ahead, bias)
    at = run_pairs(C, ring, full, empty, xd, at, first, pairs * n_own, scale, ctx, C.segments_d, QKV, G)
    record(trace, pid, trace_at, t0, t0, t1, C)
    # norm, gate and up of the other lane
    t0 = now(C, pid)
    guard = at_place(guard, AT_W13, other_layer, pid)
    past = ((other_layer >= C.past_from) & (half > 0)).to(gl.int32)
    own = b + C.at_o + (1 + C.first_lane + other) * C.padded_hidden + xo
    delayed = at_layer(act, m - C.delay, C) + C.at_e + other * C.padded_hidden + xo
    update = (own, delayed, n_other, past)
    g, step = await_update(C, hs[1], update, group_counter, step, guard, T)
    scale, bad = stage_normed(C, staged_d, warps, g, w_ffn, bad, other_layer, T)
    t1 = now(C, pid)
    first, pairs = share(other_unit + 2 * (G.units_qkv + G.units_o) + (1 - turn) * G.units_w13, G.units_w13, rank, G.ctas, 2)
    ctx = (b + C.at_u + other * G.ffn, ahead_other)
    at = run_pairs(C, ring, full, empty, xd, at, first, pairs * n_other, scale, ctx, C.segments_d, GATE, G)
    record(trace, pid, trace_at + 1, t0, t0, t1, C)
    # attention
    t0 = now(C, pid)
    guard = at_place(guard, AT_ATTENTION, layer, pid)
    begin_step(group_counter)
    item = rank // G.splits
    split = rank % G.splits
    head = item % G.kv_heads
    ratio: gl.constexpr = G.heads // G.kv_heads
    qkv = a + C.at_qkv + lane * QKV_LANE
    out = (lane * G.heads + head * ratio) * G.splits + split
    logs = lse + (n & (PARITIES - 1)) * C.lse
    part = a + C.at_part + out * H
    new = (qkv + (G.heads + head) * H, qkv + (G.heads + G.kv_heads + head) * H)
    row = ((layer * C.kv_heads + lane * G.kv_heads + head).to(gl.int64) * C.context + pos) * H
    mine = (item // G.kv_heads == turn) & (n_own != 0)
    prepare(C, kv, full, at, layer, pos, split, mine, part, logs + out, ahead, clear_distance(n, C.lse), ratio, G.splits)
    step += 1  # without asking the counter: QKV was made two phases ago
    t1 = now(C, pid)
    qs = query_tiles(C, xs, kv, T)
    at = attend(C, kv, full, empty, qs, step >> 30, at, layer, pos, split, mine, qkv + head * (ratio * H), new, (kcache + row, vcache + row),
                angles, part, logs + out, guard, ratio, G.splits)  # fmt: skip
    record(trace, pid, trace_at + 2, t0, t0, t1, C)
    # down projection of the other lane
    w = load_tiles(norms + (2 * C.common_layers + 2 * ((half + 1) // 2)) * C.padded_hidden + xo, C.boxes)
    t0 = now(C, pid)
    guard = at_place(guard, AT_W2, other_layer, pid)
    if C.exchange and not C.sums_by_idle:
        if (turn == 1) & (n_own != 0):
            make_delayed_sums(C, act, n, layer, pid, guard, counters, T)
    begin_step(group_counter)
    step = end_with_next_group(C, counters, group, step, guard)
    tw = now(C, pid)
    staged, xf = input_tiles(C, xs, G.segments_f, 1, T)
    stage_hidden(C, staged, b + C.at_u + other * G.ffn, n_other, guard, T, G.segments_f, False)
    t1 = now(C, pid)
    first, pairs = share(other_unit + 2 * (G.units_qkv + G.units_o + G.units_w13) + (1 - turn) * G.units_w2, G.units_w2, rank, G.ctas, 2)
    ctx = delta_ctx(C, b + C.at_m + (1 + C.first_lane + other) * C.padded_hidden, ahead_other, away)
    at = run_pairs(C, ring, full, empty, xf, at, first, pairs * n_other, 1.0, ctx, G.segments_f, DELTA, G)
    record(trace, pid, trace_at + 3, t0, tw, t1, C)
    # output projection
    t0 = now(C, pid)
    guard = at_place(guard, AT_O, layer, pid)
    first, pairs = share_output(own_unit + 2 * G.units_qkv + turn * G.units_o, rank, turn, G)
    pairs *= n_own
    begin_step(group_counter)
    if C.exchange and C.sums_by_idle:
        if (turn == 0) & (n_own != 0):
            make_delayed_sums(C, act, n, layer, pid, guard, counters, T)
    step = end_of_others(C, group_counter, step, guard)
    tw = now(C, pid)
    t1 = tw
    if pairs > 0:
        start, parts = span(C, layer, pos)
        staged, xq = input_tiles(C, xs, G.segments_o, 1, T)
        at_head = lane * G.heads * G.splits
        x = combine(C, a + C.at_part + at_head * H, logs + at_head, gl.minimum(parts, G.splits), guard, G.segments_o, G.splits)
        stage(staged, x, T, C.boxes)
        t1 = now(C, pid)
        ctx = delta_ctx(C, a + C.at_o + (1 + C.first_lane + lane) * C.padded_hidden, ahead, away)
        if G.apart:
            at = run_pair(C, ring, full, empty, xq, at, first, pairs, 1.0, ctx, G.segments_o, DELTA, G)
        else:
            at = run_pairs(C, ring, full, empty, xq, at, first, pairs, 1.0, ctx, G.segments_o, DELTA, G)
    record(trace, pid, trace_at + 4, t0, tw, t1, C)
    return (g, h), w, at, step, bad
