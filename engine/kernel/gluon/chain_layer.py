"""Layers of a rank that has one of several lanes (``Plan.chain``)."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from engine.kernel.gluon.exchange import arrive_everywhere
from engine.kernel.gluon.flags import at_place, wait_count
from engine.kernel.gluon.phases import attend_all, buffers, project_down, project_gate_and_up, project_output, project_qkv
from engine.kernel.gluon.state import load_tiles
from engine.kernel.gluon.steps import AT_O, AT_QKV, AT_W2, AT_W13, at_layer, begin_step, now
from engine.kernel.gluon.sums import add_sum_of_all, lane_update, make_delayed_sums, part_of, peek_update


@gluon.jit
def chain_layer(mem, buf, model, h, w, at, step, bad, layer, tok, pos, pid, xo, guard, trace, T: gl.constexpr, C: gl.constexpr):
    """One layer of a rank's only lane, by all its CTAs. h: tiles of the lane's state without the last layer's W2; w: its attention norm.

    The other lanes are needed at once in the first ``Plan.common_layers`` layers; later only as sums of old layers, made while W2's input is awaited.
    Returns h, the next layer's w, at, step, bad.
    """
    act, lse, counters, unused, parts, away = buf
    norms, bias, angles, kcache, vcache = model
    Q: gl.constexpr = C.common
    n = tok * C.layers + layer
    own = buffers(C, act, n)
    sums = tok * C.common_layers + layer  # the sums over the lanes have buffers of their own count: only common layers write them
    here = (layer, own, buffers(C, act, sums), layer * Q.units_layer)
    # norm and QKV
    t0 = now(C, pid)
    guard = at_place(guard, AT_QKV, layer, pid)
    begin_step(counters)
    step += 1
    h = add_block(C, h, buf, 1, layer - 1, tok, step, xo, pid, guard, T)
    tw = now(C, pid)
    at, bad = project_qkv(mem, bias, here, h, w, at, bad, pid, t0, tw, trace, T, C)
    # attention
    w = load_tiles(norms + (2 * layer + 1) * C.padded_hidden + xo, C.boxes)
    at, step = attend_all(mem, buf, model, here, at, step, pos, pid, guard, trace, T, C)
    # output projection
    t0 = now(C, pid)
    guard = at_place(guard, AT_O, layer, pid)
    begin_step(counters)
    step += 1
    wait_count(counters, step * Q.ctas, guard)
    tw = now(C, pid)
    at = project_output(mem, buf, here, at, pos, pid, guard, t0, tw, trace, T, C)
    # norm, gate and up
    t0 = now(C, pid)
    guard = at_place(guard, AT_W13, layer, pid)
    begin_step(counters)
    step += 1
    h = add_block(C, h, buf, 0, layer, tok, step, xo, pid, guard, T)
    tw = now(C, pid)
    at, bad = project_gate_and_up(mem, here, h, w, (), at, bad, pid, t0, tw, trace, T, C)
    # down projection
    w = load_tiles(norms + (2 * layer + 2) * C.padded_hidden + xo, C.boxes)
    t0 = now(C, pid)
    guard = at_place(guard, AT_W2, layer, pid)
    begin_step(counters)
    step += 1
    if C.exchange:
        make_delayed_sums(C, act, n, layer, pid, guard, counters, T)
    wait_count(counters, step * Q.ctas - Q.early(Q.units_w13, C.early), guard)
    tw = now(C, pid)
    at = project_down(mem, buf, here, at, pid, guard, t0, tw, trace, T, C)
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
