"""Sums over lanes and over ranks: the delayed ones, those that all CTAs need at once, and the head's; what a lane's state takes from them."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from engine.kernel.gluon.exchange import (
    AT_ONCE,
    DELAYED,
    add_waited,
    arrive_everywhere,
    guard_of,
    peer_guard,
    put_everywhere,
    wait_everyone,
)
from engine.kernel.gluon.flags import at_place, clock, peek, peek32, peek_tiles, put, settle, settle32, settle_tiles, unwritten
from engine.kernel.gluon.gemv import after_attending, staged_pack
from engine.kernel.gluon.state import inverse_rms, plain_sum, scaled_sum, weighted
from engine.kernel.gluon.steps import AT_REDUCE, PARITIES, at_layer, begin_step, clear_distance


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
def make_delayed_sums(C: gl.constexpr, act, n, layer, pid, guard, counters, T: gl.constexpr):
    """This CTA's columns of the sums over the other lanes, those of other ranks too: of O in running layer n - delay + 1 and of W2 in layer n - delay."""
    guard = guard_of(C, at_place(guard, AT_REDUCE, layer, pid), layer, pid)
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
