"""The persistent decode kernel: a producer warp streams weights and KV through a ring, one consumer warpgroup computes.

Life of a token: embedding; per layer norm + QKV + rotary + KV append, attention, O, norm + gate/up, W2; head; choice of the token; step. A CTA
meets the others only through the activation buffers (see flags.py). Layers of ``Plan.common`` are computed by all CTAs, those of
``Plan.lane`` by each group for its own lanes, one lane after the other, so that one lane's values travel while the other's weights are
multiplied.

Steps are numbered by arrivals at a counter: ``step`` counts this CTA's arrivals; a value made in a step d is there when all CTAs
arrived at step d + 1.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma

from engine.kernel.gluon.attention import attend, combine, load_angles, prepare, span, taken
from engine.kernel.gluon.exchange import (
    AGREEMENT,
    AT_ONCE,
    DELAYED,
    add_waited,
    arrive_everywhere,
    begin_launch,
    distances,
    guard_of,
    peer_guard,
    put_everywhere,
    wait_everyone,
)
from engine.kernel.gluon.flags import (
    arrive,
    at_place,
    clock,
    cta_barrier,
    fence,
    fence_copy_engine,
    load_relaxed,
    peek,
    peek32,
    peek_tiles,
    put,
    settle,
    settle32,
    settle_tiles,
    unwritten,
    wait_count,
    wait_counts,
    widen,
)
from engine.kernel.gluon.gemv import (
    DELTA,
    GATE,
    QKV,
    advance,
    after_attending,
    hold_unit,
    input_layout,
    run_blocks,
    run_head,
    run_lane_units,
    run_pair,
    run_pairs,
    run_pairs_after,
    run_parts,
    share,
    share_output,
    stage,
    staged_pack,
    staged_rows,
)
from engine.kernel.gluon.sample import (
    BAD,
    draw,
    finish_launch,
    load_stop_ids,
    own_logits,
    publish,
    read_best,
    read_stop,
    report_token,
    state_of,
    token_of,
)

# Places of engine.kernel.control.PLACES
AT_QKV = gl.constexpr(1)
AT_ATTENTION = gl.constexpr(3)
AT_O = gl.constexpr(4)
AT_W13 = gl.constexpr(5)
AT_W2 = gl.constexpr(6)
AT_HEAD = gl.constexpr(7)
AT_SAMPLE = gl.constexpr(8)
AT_REDUCE = gl.constexpr(10)

PARITIES = gl.constexpr(8)
RESET_AHEAD = gl.constexpr(2)


# --- producer -------------------------------------------------------------------------------------------------------------


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


# --- consumer: hidden state -------------------------------------------------------------------------------------------------


@gluon.jit
def load_tiles(p, N: gl.constexpr):
    """N tiles of read-only values at p, 64 columns apart."""
    v = ()
    for j in gl.static_range(N):
        v = v + (gl.load(p + 64 * j, cache_modifier=".cg"),)
    return v


@gluon.jit
def embed(C: gl.constexpr, table, token, xo):
    """Row ``token`` of the embedding as float32 tiles."""
    h = ()
    p = table + token.to(gl.int64) * C.hidden
    for j in gl.static_range(gl.constexpr(C.boxes)):
        h = h + (gl.load(p + xo + 64 * j, mask=xo + 64 * j < C.hidden, other=0.0).to(gl.float32),)
    return h


@gluon.jit
def scaled_sum(h, v, e, scale, C: gl.constexpr):
    """h + scale * v + e."""
    r = ()
    for j in gl.static_range(gl.constexpr(C.boxes)):
        r = r + (gl.fma(v[j].to(gl.float32), scale, h[j]) + e[j].to(gl.float32),)
    return r


@gluon.jit
def plain_sum(h, v, C: gl.constexpr):
    r = ()
    for j in gl.static_range(gl.constexpr(C.boxes)):
        r = r + (h[j] + widen(v[j]),)
    return r


@gluon.jit
def products(h, w, C: gl.constexpr):
    """h * w."""
    x = ()
    for j in gl.static_range(gl.constexpr(C.boxes)):
        x = x + (h[j] * w[j].to(gl.float32),)
    return x


@gluon.jit
def squares_of(h, C: gl.constexpr):
    """Squares of the tiles, added up; rows that repeat others count less."""
    t = h[0] * h[0]
    for j in gl.static_range(1, gl.constexpr(C.boxes)):
        t = gl.fma(h[j], h[j], t)
    return t * (C.segments_d / t.shape[0])


@gluon.jit
def inverse_rms(h, C: gl.constexpr):
    """(1 / rms, sum of squares) of the tiles."""
    squares = gl.sum(gl.sum(squares_of(h, C), axis=1), axis=0)
    return 1.0 / gl.sqrt(gl.fma(squares, 1.0 / C.hidden, C.eps)), squares


@gluon.jit
def weighted(h, r, w, C: gl.constexpr):
    """h * r * w."""
    x = ()
    for j in gl.static_range(gl.constexpr(C.boxes)):
        x = x + (h[j] * r * w[j].to(gl.float32),)
    return x


@gluon.jit
def stage_normed(C: gl.constexpr, xs, warps, h, w, bad, layer, T: gl.constexpr):
    """Stage norm(h) * w, or in bfloat16, which holds all of float32's range, h * w. Returns what the products must be multiplied by, and the
    first layer whose state was not finite (or ``bad``). ``warps``: shared memory [4], for the sums of squares."""
    if T == gl.bfloat16:
        t = squares_of(h, C)
        warps.store(gl.sum(gl.reshape(t, [4, t.shape[0] * 16]), axis=1))
        stage(xs, products(h, w, C), T, C.boxes)
        squares = gl.sum(warps.load(gl.BlockedLayout([4], [32], [4], [0])), axis=0)
        scale = gl.rsqrt(gl.fma(squares, 1.0 / C.hidden, C.eps))
    else:
        r, squares = inverse_rms(h, C)
        stage(xs, weighted(h, r, w, C), T, C.boxes)
        scale = 1.0
    return scale, gl.where((bad < 0) & ((squares - squares) != 0.0), layer, bad)


@gluon.jit
def begin_step(counter):
    cta_barrier()
    arrive(counter)


@gluon.jit
def at_layer(act, n, C: gl.constexpr):
    """Activation buffer of running layer n (it may be negative: a buffer that is not read)."""
    return act + (n & (PARITIES - 1)) * C.act


@gluon.jit
def clear_distance(n, size: gl.constexpr):
    """From the buffer of running layer n to the one to clear."""
    return (((n + RESET_AHEAD) & (PARITIES - 1)) - (n & (PARITIES - 1))) * size


@gluon.jit
def record(trace, pid, at, t0, tw, t1, C: gl.constexpr):
    """Profile of one step, clock of this multiprocessor: begin, others ready (begin where not taken), input staged, end."""
    if C.profile:
        p = trace + (pid * C.steps + at) * 4
        gl.store(p, t0)
        gl.store(p + 1, tw)
        gl.store(p + 2, t1)
        gl.store(p + 3, clock())


@gluon.jit
def now(C: gl.constexpr, pid):
    if C.profile:
        return clock()
    else:
        return pid.to(gl.int64)


@gluon.jit
def sums_number(C: gl.constexpr, pid):
    """Which columns of the delayed sums this CTA makes; see ``Plan.sums_by_idle``."""
    if C.sums_by_idle:
        G: gl.constexpr = C.lane
        IDLE: gl.constexpr = G.ctas - G.units_o // 2
        number = after_attending(pid % G.ctas, 0, G) - G.units_o // 2
        return gl.where(number < 0, C.ctas, pid // G.ctas * IDLE + number)
    else:
        return pid


@gluon.jit
def make_delayed_sums(C: gl.constexpr, act, n, pid, guard, counters, T: gl.constexpr):
    """This CTA's columns of the sums over the other lanes, those of other ranks too: of O in running layer n - delay + 1 and of W2 in layer n - delay."""
    number = sums_number(C, pid)
    if number * C.presum_columns < C.hidden:
        add_delayed(C, act, n, number, guard, counters, T)


@gluon.jit
def add_delayed(C: gl.constexpr, act, n, number, guard, counters, T: gl.constexpr):
    """``make_delayed_sums`` of the columns with this number."""
    L: gl.constexpr = gl.BlockedLayout([C.all_lanes, 2], [1, 32], [1, 4], [1, 0])
    W: gl.constexpr = C.presum_width
    t = gl.arange(0, 2 * W, layout=gl.SliceLayout(0, L))
    lane = gl.arange(0, C.all_lanes, layout=gl.SliceLayout(1, L))[:, None]
    mlp = t >= W
    col = number * C.presum_columns + (t & (W - 1))
    made = gl.where(mlp, n - C.delay, n - C.delay + 1)
    use = (made >= 0) & ((t & (W - 1)) < C.presum_columns) & (col < C.hidden)
    src = at_layer(act, made, C) + gl.where(mlp, C.at_m, C.at_o) + col
    p = src[None, :] + (1 + lane) * C.padded_hidden
    used = gl.broadcast(use.to(gl.int32)[None, :], p)[0]
    if C.ranks == 1:
        v = settle(peek(p, used, 1, 0, 2), p, used, guard, T, 1, 0, 2)[0].to(gl.float32)
    else:
        began = clock()
        words = settle(peek(p, used, 1, 0, 2), p, used, guard, T, 1, 0, 2)[0]
        add_waited(counters, DELAYED, began)
        other = (lane < C.first_lane) | (lane >= C.first_lane + C.lanes)
        own = (lane >= C.first_lane) & (lane < C.first_lane + C.lanes)
        gl.store(p, unwritten(words), mask=use[None, :] & other)  # nobody else reads the others' rows
        v = words.to(gl.float32)
    e = (gl.sum(v, axis=0)[None, :] - v).to(T)
    dst = at_layer(act, made, C) + C.at_e + gl.where(mlp, C.lanes * C.padded_hidden, 0) + col
    if C.ranks == 1:
        put(dst[None, :] + lane * C.padded_hidden, clear_distance(made, C.act)[None, :], e, use[None, :])
    else:
        put(dst[None, :] + (lane - C.first_lane) * C.padded_hidden, clear_distance(made, C.act)[None, :], e, use[None, :] & own)


# --- consumer: layers ---------------------------------------------------------------------------------------------------------


@gluon.jit
def read_tree(C: gl.constexpr, p, N: gl.constexpr, guard):
    """Sum [D] of N neighbouring float32 parts, of which this thread's values of the first lie at p: of each half, then of both. So a rank may hand over
    the sum of its lanes as one part, or as several, with the same bits."""
    if N == 1:
        PACK: gl.constexpr = min(4, staged_pack(C.segments_d))
        return settle32(peek32(p, C.boxes, C.boxes, 256, PACK), p, C.boxes, guard, C.boxes, 256, PACK)
    elif N == 2:
        return read_pair(C, p, guard)
    else:
        return plain_sum(read_tree(C, p, N // 2, guard), read_tree(C, p + N // 2 * C.padded_hidden, N - N // 2, guard), C)


@gluon.jit
def read_pair(C: gl.constexpr, p, guard):
    """The sum of two neighbouring parts."""
    N: gl.constexpr = C.boxes
    PACK: gl.constexpr = min(4, staged_pack(C.segments_d))
    v = peek32(p, N, N, 256, PACK)
    other = peek32(p + C.padded_hidden, N, N, 256, PACK)
    v = settle32(v, p, N, guard, N, 256, PACK)
    return plain_sum(v, settle32(other, p + C.padded_hidden, N, guard, N, 256, PACK), C)


@gluon.jit
def part_of(parts, n, kind: gl.constexpr, C: gl.constexpr):
    """Parts [ranks, padded D] of the sums of O (kind 0) or W2 (1) of the n-th running common layer."""
    return parts + (n & (PARITIES - 1)) * C.parts + kind * (C.ranks * C.padded_hidden)


@gluon.jit
def begin_meeting(C: gl.constexpr, counters, away):
    """Begin a step that needs what all ranks made in the last."""
    begin_step(counters)
    arrive_everywhere(C, counters, away)


@gluon.jit
def add_sum_of_all(C: gl.constexpr, h, parts, xo, counters, meeting, early: gl.constexpr, layer, pid, guard, T: gl.constexpr):
    """h + a sum over all ranks, rounded as one rank would hand it over."""
    began = clock()
    guard = peer_guard(guard, layer, pid)
    wait_everyone(C, counters, meeting, early, guard)
    y = read_tree(C, parts + xo, C.ranks, guard)
    add_waited(counters, AT_ONCE, began)
    v = ()
    for j in gl.static_range(gl.constexpr(C.boxes)):
        v = v + (y[j].to(T),)
    return plain_sum(h, v, C)


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
def input_tiles(C: gl.constexpr, xs, SEG: gl.constexpr, LANES: gl.constexpr, T: gl.constexpr):
    """For each box (where an input of LANES times SEG segments is staged, the same cut into the tiles that one unit takes)."""
    ROWS: gl.constexpr = LANES * SEG if LANES * SEG > 8 else 8
    PARTS: gl.constexpr = (LANES if SEG >= 8 else 1) if LANES > 1 else max(1, SEG // 16)
    staged = ()
    tiles = ()
    for j in gl.static_range(gl.constexpr(C.boxes)):
        staged = staged + (xs[j]._reinterpret(T, [ROWS, 64], xs[j].layout),)
        tiles = tiles + (xs[j]._reinterpret(T, [PARTS, ROWS // PARTS, 64], xs[j].layout),)
    return staged, tiles


@gluon.jit
def query_tiles(C: gl.constexpr, xs, kv, T: gl.constexpr):
    """Tiles [64, 32] for attention's queries, one in each box."""
    tiles = ()
    for j in gl.static_range(gl.constexpr(C.head_size // 32)):
        tiles = tiles + (xs[j]._reinterpret(T, [1, 64, 32], kv.layout),)
    return tiles


@gluon.jit
def attend_all(mem, model, lse, counters, a, n, ahead, at, step, layer, pos, pid, guard, trace, T: gl.constexpr, C: gl.constexpr):
    """Attention of a layer by all CTAs, a (KV head, split) each. a, ahead: activations of running layer n and the distance to those to clear. Returns at, step."""
    ring, kv, xs, full, empty, warps = mem
    norms, bias, angles, kcache, vcache = model
    Q: gl.constexpr = C.common
    H: gl.constexpr = C.head_size
    t0 = now(C, pid)
    guard = at_place(guard, AT_ATTENTION, layer, pid)
    begin_step(counters)
    step += 1
    head = pid // Q.splits
    split = pid % Q.splits
    ratio: gl.constexpr = Q.heads // Q.kv_heads
    qkv = a + C.at_qkv
    new = (qkv + (Q.heads + head) * H, qkv + (Q.heads + Q.kv_heads + head) * H)
    row = ((layer * C.kv_heads + head).to(gl.int64) * C.context + pos) * H
    out = head * ratio * Q.splits + split
    logs = lse + (n & (PARITIES - 1)) * C.lse
    part = a + C.at_part + out * H
    active = head < Q.kv_heads
    prepare(C, kv, full, at, layer, pos, split, active, part, logs + out, ahead, clear_distance(n, C.lse), ratio, Q.splits)
    if active:
        wait_count(counters, step * Q.ctas - Q.early(Q.units_qkv, C.early), guard)
    t1 = now(C, pid)
    qs = query_tiles(C, xs, kv, T)
    at = attend(C, kv, full, empty, qs, step >> 30, at, layer, pos, split, active, qkv + head * (ratio * H), new, (kcache + row, vcache + row),
                angles, part, logs + out, guard, ratio, Q.splits)  # fmt: skip
    record(trace, pid, layer * 5 + 1, t0, t1, t1, C)
    return at, step


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
def input_offsets(C: gl.constexpr, SEG: gl.constexpr):
    """Where the values of an input's first tile [rows, 64] stand in the input [SEG * KW]."""
    LX: gl.constexpr = input_layout(SEG)
    r = gl.arange(0, staged_rows(SEG), layout=gl.SliceLayout(1, LX)) & (SEG - 1)
    return r[:, None] * C.kw + gl.arange(0, 64, layout=gl.SliceLayout(0, LX))[None, :]


@gluon.jit
def stage_hidden(C: gl.constexpr, xf, u, use, guard, T: gl.constexpr, SEG: gl.constexpr, ALWAYS: gl.constexpr):
    """Stage the FFN activations u [SEG * KW] (zeros with ``use`` 0, unless ALWAYS)."""
    PACK: gl.constexpr = staged_pack(SEG)
    p = u + input_offsets(C, SEG)
    stage(xf, settle_tiles(peek_tiles(p, use, C.boxes, PACK, ALWAYS), p, use, guard, T, C.boxes, PACK, ALWAYS), T, C.boxes)


@gluon.jit
def peek_update(C: gl.constexpr, update):
    """Ask for what ``lane_update`` adds."""
    own, delayed, use, past = update
    PACK: gl.constexpr = staged_pack(C.segments_d)
    return peek_tiles(delayed, past, C.boxes, PACK), peek_tiles(own, use, C.boxes, PACK)


@gluon.jit
def lane_update(C: gl.constexpr, h, peeked, update, guard, T: gl.constexpr):
    """h of one lane after a block: + its own output + the other lanes' delayed sum. ``update``: (pointers to them, whether each is used); ``peeked``: what
    ``peek_update`` gave."""
    own, delayed, use, past = update
    PACK: gl.constexpr = staged_pack(C.segments_d)
    v = settle_tiles(peeked[1], own, use, guard, T, C.boxes, PACK)
    e = settle_tiles(peeked[0], delayed, past, guard, T, C.boxes, PACK)
    return scaled_sum(h, v, e, gl.where(past != 0, 1.0, C.own_scale), C)


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
    begin_step(group_counter)
    peeked = peek_update(C, update)  # looked for while the counter is: mostly it has been there for long
    step = end_of_others(C, group_counter, step, guard)
    h = lane_update(C, hs[0], peeked, update, guard, T)
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
    begin_step(group_counter)
    peeked = peek_update(C, update)
    step = end_of_others(C, group_counter, step, guard)
    g = lane_update(C, hs[1], peeked, update, guard, T)
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
            make_delayed_sums(C, act, n, pid, guard_of(C, at_place(guard, AT_REDUCE, layer, pid), layer, pid), counters, T)
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
            make_delayed_sums(C, act, n, pid, guard_of(C, at_place(guard, AT_REDUCE, layer, pid), layer, pid), counters, T)
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


# --- consumer: head -------------------------------------------------------------------------------------------------------------


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


@gluon.jit
def write_lane_sum(C: gl.constexpr, total, hs, w, group, rank, tok, xo, away):
    """This CTA's columns of the sum over the group's lanes of what the head takes from each, float32, to ``total`` [4, all groups, D]."""
    COLUMNS: gl.constexpr = (C.hidden + 8 * C.lane.ctas - 1) // (8 * C.lane.ctas) * 8
    y = ()
    for k in gl.static_range(gl.constexpr(C.group_lanes)):
        v = hs[k]
        if C.head_mean:
            r, squares = inverse_rms(v, C)
            v = weighted(v, r * (1.0 / C.all_lanes), w, C)
        if k == 0:
            y = v
        else:
            y = plain_sum(y, v, C)
    ahead = (((tok + 2) & 3) - (tok & 3)) * (C.all_groups * C.padded_hidden)
    for j in gl.static_range(gl.constexpr(C.boxes)):
        col = xo + 64 * j
        p = total + ((tok & 3) * C.all_groups + C.rank * C.groups + group) * C.padded_hidden + col
        put_everywhere(C, p, ahead, y[j], (col // COLUMNS) == rank, away, C.groups * C.padded_hidden)


@gluon.jit
def consumer(mem, token_bar, halts, act, lse, total, words, sums, picks, counters, model, head_io, host, trace, pid, first_token, position,
             others, C: gl.constexpr):  # fmt: skip
    ring, kv, xs, full, empty, warps = mem
    norms, bias, cos, sin, kcache, vcache = model
    table, logits, ints, floats = head_io
    T: gl.constexpr = act.dtype.element_ty
    xo = input_offsets(C, C.segments_d)
    group = pid // C.lane.ctas
    rank = pid % C.lane.ctas
    parts, peers, ready, launch = others
    away = distances(C, peers)
    buf = (act, lse, counters, group, parts, away)
    abort = counters + 32 * 30
    max_tokens = gl.load(ints)
    guard = (abort.to(gl.int64), gl.load(ints + 5), pid)
    if C.ranks > 1:
        begin_launch(C, ready, launch, away, pid, guard)
    staged, xd = input_tiles(C, xs, C.segments_d, 1, T)
    stop_ids = load_stop_ids(ints)
    temperature = gl.load(floats)
    rounds = pid * 0
    token = first_token
    tok = pid * 0
    at = (pid * 0, pid * 0)
    step = pid * 0
    lane_steps = pid * 0
    going = pid >= 0
    while going:
        pos = position + tok
        mbarrier.arrive(token_bar, count=1)
        bad = pid * 0 - 1
        h = embed(C, table, token, xo)
        w = load_tiles(norms + xo, C.boxes)
        rotated_model = (norms, bias, load_angles(C, cos, sin, pos), kcache, vcache)
        if C.chain:
            for layer in range(C.layers):
                h, w, at, step, bad = chain_layer(
                    mem, buf, rotated_model, h, w, at, step, bad, layer, tok, pos, pid, xo, guard, trace, T, C
                )
        else:
            for layer in range(C.common_layers):
                h, w, at, step, bad = common_layer(
                    mem, buf, rotated_model, h, w, at, step, bad, layer, tok, pos, pid, xo, guard, trace, T, C
                )
        t0 = now(C, pid)
        guard = at_place(guard, AT_HEAD, C.common_layers, pid)
        if C.common_layers > 0 and not C.chain:
            step += 1
            h = add_common(C, act, h, (tok + 1) * C.common_layers, counters, step, xo, guard, parts, away, tok, pid, T)
        if C.common_layers < C.layers:
            if C.chain:
                begin_step(counters)
                step += 1
                hs = (add_block(C, h, buf, 1, pid * 0 + C.layers - 1, tok, step, xo, pid, guard, T),)
            else:
                hs = (h, h)
                for half in range(C.halves):
                    hs, w, at, lane_steps, bad = half_layer(
                        mem, buf, rotated_model, hs, w, at, lane_steps, bad, half, tok, pos, pid, xo, guard, trace, T, C
                    )
                t0 = now(C, pid)
                guard = at_place(guard, AT_HEAD, C.layers, pid)
                # the first lane of the group is complete; the second needs its last W2
                last = pid * 0 + C.layers
                update = mlp_update(C, act, (tok + 1) * C.layers, last, group * 2 + 1, xo)
                wait_count(counters + 32 * (1 + group), lane_steps * C.lane.ctas, guard)
                h = lane_update(C, hs[0], peek_update(C, update), update, guard, T)
                hs = (h, hs[1])
            write_lane_sum(C, total, hs, w, group, rank, tok, xo, away)
            p = total + (tok & 3) * (C.all_groups * C.padded_hidden) + xo
            if C.ranks == 1:
                h = read_tree(C, p, C.all_groups, guard)
            else:
                began = clock()
                cta_barrier()
                arrive_everywhere(C, counters, away)
                far = peer_guard(guard, C.layers, pid)
                wait_everyone(C, counters, (tok + 1) * C.meetings - 1, 0, far)
                h = read_tree(C, p, C.all_groups, far)
                add_waited(counters, AT_ONCE, began)
        if (C.common_layers < C.layers) and C.head_mean:
            stage(staged, h, T, C.boxes)
            scale = 1.0
        else:
            scale, bad = stage_normed(C, staged, warps, h, w, bad, C.layers, T)
        fence()
        t1 = now(C, pid)
        stop = read_stop(host, pid)
        first, units = share(0, C.units_head, pid, C.ctas, 2)
        at, best, where, wrong = run_head(C, ring, full, empty, xd, at, first, units, scale, logits)
        record(trace, pid, C.steps - 2, t0, t0, t1, C)
        t0 = now(C, pid)
        publish(words, tok, pid, best, where, wrong, bad, stop, counters, away, C)
        if C.ranks == 1:
            begin_step(counters)
            step += 1
            if C.draws:
                own = own_logits(C, logits, first, units, tok >> 30)
            guard = at_place(guard, AT_SAMPLE, C.layers, pid)
            wait_count(counters, step * C.ctas, guard)
        else:
            began = clock()
            begin_meeting(C, counters, away)
            step += 1
            if C.draws:
                own = own_logits(C, logits, first, units, tok >> 30)
            wait_everyone(C, counters, (tok + 1) * C.meetings, 0, peer_guard(guard, C.layers, pid))
            add_waited(counters, AGREEMENT, began)
        tw = now(C, pid)
        far = guard_of(C, guard, C.layers, pid)
        top, bests = read_best(words, tok, far, C)
        token = token_of(top)
        if C.draws:
            if (temperature > 0.0) & (top < BAD):
                token, step, rounds = draw(
                    C, xs[0], own, top, bests, ints, floats, sums, picks, counters, step, rounds, tok, pos + 1, pid, away, far
                )
        state = state_of(top, token, tok, stop_ids, abort, max_tokens, C)
        t1 = now(C, pid)
        report_token(host, pid, tok, token, state)
        record(trace, pid, C.steps - 1, t0, tw, t1, C)
        going = state == 0
        tok += 1
        if state != 0:
            finish_launch(C, host, pid, state, abort, counters, pos, away)
    # let the producer end: it has copied the first units of one more token
    FIRST: gl.constexpr = C.common.block_qkv if C.whole_layers > 0 else 2
    if C.whole_layers > 0:
        first, n = share(0, C.common.units_qkv, pid, C.ctas, FIRST)
    else:
        first, n = share(0, C.lane.units_qkv, rank, C.lane.ctas, FIRST)
    for k in range(FIRST * before_gate(C, n, FIRST)):
        mbarrier.wait(full.index(at[0]), at[1])
        at = advance(C, at, 1)
    gl.store(halts + pid, 1)
    fence()
    cta_barrier()
    mbarrier.arrive(token_bar, count=1)


@gluon.jit(do_not_specialize=("first_token", "position", "launch"))
def decode(weights, keys, values, act, lse, total, words, sums, picks, counters, halts, norms, bias, cos, sin, kcache, vcache, table, logits, ints, floats,
           tokens, status, stop_word, error, trace, first_token, position, parts, peers, ready, launch, C: gl.constexpr):  # fmt: skip
    """One launch, C.ctas programs, cooperative: decode from ``first_token`` at ``position`` until the generation ends.

    weights: descriptor of [units * boxes * 64, 64], box [64, 64]; keys, values: of the KV cache [layers * K * context, h], box [64, 32].
    act, lse, total, words, sums, picks, parts: hand-over buffers, all ones at the start; counters, halts: zero at the start.
    peers, ready, launch: of several ranks, see ``exchange.begin_launch``; then the buffers and counters lie in memory that all ranks see.
    """
    pid = gl.program_id(0)
    T: gl.constexpr = act.dtype.element_ty
    ring = gl.allocate_shared_memory(T, [C.boxes * C.slots, 64, 64], weights.layout)
    xs = ()
    for j in gl.static_range(gl.constexpr(C.boxes)):
        xs = xs + (gl.allocate_shared_memory(T, [1, C.x_rows, 64], weights.layout),)
    warps = gl.allocate_shared_memory(gl.float32, [4], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    kv = ring._reinterpret(T, [2 * C.boxes * C.slots, 64, 32], keys.layout)
    full = gl.allocate_shared_memory(gl.int64, [C.slots, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [C.slots, 1], mbarrier.MBarrierLayout())
    token_bar = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    for s in gl.static_range(gl.constexpr(C.slots)):
        mbarrier.init(full.index(s), count=1)
        mbarrier.init(empty.index(s), count=1)
    mbarrier.init(token_bar, count=1)
    fence_async_shared()
    cta_barrier()
    mem = (ring, kv, xs, full, empty, warps)
    model = (norms, bias, cos, sin, kcache, vcache)
    gl.warp_specialize(
        [
            (
                consumer,
                (
                    mem,
                    token_bar,
                    halts,
                    act,
                    lse,
                    total,
                    words,
                    sums,
                    picks,
                    counters,
                    model,
                    (table, logits, ints, floats),
                    (tokens, status, stop_word, error),
                    trace,
                    pid,
                    first_token,
                    position,
                    (parts, peers, ready, launch),
                    C,
                ),
            ),  # fmt: skip
            (producer, (weights, keys, values, ring, kv, full, empty, token_bar, halts, pid, position, C)),
        ],
        [1],
        [64],
    )
