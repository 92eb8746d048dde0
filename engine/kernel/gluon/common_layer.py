"""Layers of ``Plan.common``: all CTAs compute one after the other, of one lane or of lanes whose sum is needed at once."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from engine.kernel.gluon.flags import at_place, peek_tiles, settle_tiles, wait_count
from engine.kernel.gluon.gemv import hold_unit, staged_pack
from engine.kernel.gluon.phases import attend_all, buffers, project_down, project_gate_and_up, project_output, project_qkv
from engine.kernel.gluon.state import load_tiles, plain_sum
from engine.kernel.gluon.steps import AT_O, AT_QKV, AT_W2, AT_W13, at_layer, begin_step, now
from engine.kernel.gluon.sums import add_sum_of_all, begin_meeting, make_delayed_sums, part_of


@gluon.jit
def common_layer(mem, buf, model, h, w, at, step, bad, layer, tok, pos, pid, xo, guard, trace, T: gl.constexpr, C: gl.constexpr):
    """One layer computed by all CTAs. h: tiles of the hidden state without the last layer's W2. w: its attention norm. Returns h, the next layer's w, at, step, bad."""
    ring, kv, xs, full, empty, warps = mem
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
    step += 1
    if C.ranks > 1 and layer == 0:  # no sum, so no meeting
        begin_step(counters)
        tw = now(C, pid)
    else:
        begin_common(C, counters, away)
        h, tw = add_sum(C, h, buf, 1, sums, step, layer, tok, pid, xo, guard, T)
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
    begin_common(C, counters, away)
    step += 1
    held = ()
    if Q.holds:
        held = hold_unit(C, ring, full, empty, at)
    h, tw = add_sum(C, h, buf, 0, sums, step, layer, tok, pid, xo, guard, T)
    at, bad = project_gate_and_up(mem, here, h, w, held, at, bad, pid, t0, tw, trace, T, C)
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
def begin_common(C: gl.constexpr, counters, away):
    """Begin a step that needs a sum over the lanes of the last one."""
    if C.ranks == 1:
        begin_step(counters)
    else:
        begin_meeting(C, counters, away)


@gluon.jit
def add_sum(C: gl.constexpr, h, buf, mlp: gl.constexpr, n, step, layer, tok, pid, xo, guard, T: gl.constexpr):
    """h of the n-th running common layer + the sum over the lanes that was made in step - 1: of its O, or with ``mlp`` of W2 of the layer before, if there is
    one. Returns it and when all had arrived, for the profile."""
    act, lse, counters, unused, parts, away = buf
    Q: gl.constexpr = C.common
    EARLY: gl.constexpr = Q.early(Q.units_w2 if mlp else Q.units_o, C.early)
    PACK: gl.constexpr = staged_pack(C.segments_d)
    if C.ranks == 1:
        wait_count(counters, step * Q.ctas - EARLY, guard)
        tw = now(C, pid)
        use = (layer > 0).to(gl.int32) if mlp else 1
        p = at_layer(act, n - mlp, C) + (C.at_m if mlp else C.at_o) + xo
        v = settle_tiles(peek_tiles(p, use, C.boxes, PACK, not mlp), p, use, guard, T, C.boxes, PACK, not mlp)
        return plain_sum(h, v, C), tw
    else:
        met = tok * C.meetings + 2 * layer + 1 - mlp
        h = add_sum_of_all(C, h, part_of(parts, n - mlp, mlp, C), xo, counters, met, EARLY, layer, pid, guard, T)
        return h, now(C, pid)


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
