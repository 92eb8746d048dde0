"""What the layers that all CTAs compute together share: of one lane or of several (common_layer.py), or of a rank's only one (chain_layer.py).

A layer waits for the input of a phase and calls the phase, which does the rest. ``mem``, ``buf`` and ``model`` are the tuples of ``kernel.consumer``; ``here``
says where the layer is: (its number, its ``buffers``, those of its sums over the lanes, its first unit in the stream); ``t0``, ``tw``: see ``steps.record``.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from engine.kernel.gluon.attention import attend, combine, prepare, query_tiles, span
from engine.kernel.gluon.flags import at_place, wait_count
from engine.kernel.gluon.gemv import DELTA, GATE, QKV, run_blocks, run_lane_units, run_pairs_after, run_parts, share, stage
from engine.kernel.gluon.state import input_tiles, stage_hidden, stage_normed
from engine.kernel.gluon.steps import AT_ATTENTION, PARITIES, at_layer, begin_step, clear_distance, now, record
from engine.kernel.gluon.sums import part_of


@gluon.jit
def buffers(C: gl.constexpr, act, n):
    """(n, activation buffer, distance to the one to clear) of running layer n."""
    return n, at_layer(act, n, C), clear_distance(n, C.act)


@gluon.jit
def project_qkv(mem, bias, here, h, w, at, bad, pid, t0, tw, trace, T: gl.constexpr, C: gl.constexpr):
    """QKV of norm(h) with the weights w. Returns at, bad."""
    ring, kv, xs, full, empty, warps = mem
    layer, own, total, unit = here
    n, a, ahead = own
    Q: gl.constexpr = C.common
    staged, x = input_tiles(C, xs, C.segments_d, 1, T)
    scale, bad = stage_normed(C, staged, warps, h, w, bad, layer, T)
    t1 = now(C, pid)
    first, units = share(unit, Q.units_qkv, pid, Q.ctas, Q.block_qkv)
    ctx = (a + C.at_qkv, ahead, bias + layer * C.qkv_rows)
    at = run_blocks(C, ring, full, empty, x, at, first, units, scale, ctx, C.segments_d, QKV, Q.block_qkv, Q.units_qkv, Q)
    record(trace, pid, layer * 5, t0, tw, t1, C)
    return at, bad


@gluon.jit
def attend_all(mem, buf, model, here, at, step, pos, pid, guard, trace, T: gl.constexpr, C: gl.constexpr):
    """Attention, a (KV head, split) for each CTA, and the wait for QKV: one step. Returns at, step."""
    ring, kv, xs, full, empty, warps = mem
    act, lse, counters, unused, parts, away = buf
    layer, own, total, unit = here
    n, a, ahead = own
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
def project_output(mem, buf, here, at, pos, pid, guard, t0, tw, trace, T: gl.constexpr, C: gl.constexpr):
    """The output projection of the splits' combined outputs. Returns at."""
    ring, kv, xs, full, empty, warps = mem
    act, lse, counters, unused, parts, away = buf
    layer, own, total, unit = here
    n, a, ahead = own
    Q: gl.constexpr = C.common
    logs = lse + (n & (PARITIES - 1)) * C.lse
    start, used = span(C, layer, pos)
    used = gl.minimum(used, Q.splits)
    staged, x = input_tiles(C, xs, Q.segments_o, Q.sums, T)
    if not C.chain or layer < C.common_layers:  # the splits are added in the order of one rank's layers of this kind
        stage(staged, combine(C, a + C.at_part, logs, used, guard, Q.segments_o * Q.sums, Q.splits, C.ranks), T, C.boxes)
    else:
        stage(staged, combine(C, a + C.at_part, logs, used, guard, Q.segments_o * Q.sums, Q.splits), T, C.boxes)
    t1 = now(C, pid)
    at = project_delta(C, mem, buf, here, x, at, 0, pid)
    record(trace, pid, layer * 5 + 2, t0, tw, t1, C)
    return at


@gluon.jit
def project_gate_and_up(mem, here, h, w, held, at, bad, pid, t0, tw, trace, T: gl.constexpr, C: gl.constexpr):
    """Gate and up projection of norm(h) with the weights w. ``held``: what ``hold_unit`` has taken, or (). Returns at, bad."""
    ring, kv, xs, full, empty, warps = mem
    layer, own, total, unit = here
    n, a, ahead = own
    Q: gl.constexpr = C.common
    staged, x = input_tiles(C, xs, C.segments_d, 1, T)
    scale, bad = stage_normed(C, staged, warps, h, w, bad, layer, T)
    t1 = now(C, pid)
    first, pairs = share(unit + Q.units_qkv + Q.units_o, Q.units_w13, pid, Q.ctas, 2)
    ctx = (a + C.at_u, ahead)
    if len(held) > 0:
        at = run_pairs_after(C, ring, full, empty, x, at, held, first, pairs, scale, ctx, C.segments_d, GATE, Q)
    else:
        at = run_blocks(C, ring, full, empty, x, at, first, pairs, scale, ctx, C.segments_d, GATE, 2, Q.units_w13, Q)
    record(trace, pid, layer * 5 + 3, t0, tw, t1, C)
    return at, bad


@gluon.jit
def project_down(mem, buf, here, at, pid, guard, t0, tw, trace, T: gl.constexpr, C: gl.constexpr):
    """The down projection. Returns at."""
    ring, kv, xs, full, empty, warps = mem
    act, lse, counters, unused, parts, away = buf
    layer, own, total, unit = here
    n, a, ahead = own
    Q: gl.constexpr = C.common
    staged, x = input_tiles(C, xs, Q.segments_f, Q.sums, T)
    stage_hidden(C, staged, a + C.at_u, 1, guard, T, Q.segments_f * Q.sums, True)
    t1 = now(C, pid)
    at = project_delta(C, mem, buf, here, x, at, 1, pid)
    record(trace, pid, layer * 5 + 4, t0, tw, t1, C)
    return at


@gluon.jit
def project_delta(C: gl.constexpr, mem, buf, here, x, at, mlp: gl.constexpr, pid):
    """O, or W2 with ``mlp``: the products with the staged input x. Returns at."""
    ring, kv, xs, full, empty, warps = mem
    Q: gl.constexpr = C.common
    SEG: gl.constexpr = Q.segments_f if mlp else Q.segments_o
    BLOCK: gl.constexpr = Q.block_w2 if mlp else Q.block_o
    UNITS: gl.constexpr = Q.units_w2 if mlp else Q.units_o
    unit = here[3] + Q.units_qkv + (Q.units_o + Q.units_w13 if mlp else 0)
    if C.chain:  # the share comes first: in the order of the other branch the compiled kernel is not the one that was measured
        first, n = share(unit, UNITS, pid, Q.ctas, BLOCK)
        total, own = delta_places(C, buf, here, mlp)
        return run_blocks(C, ring, full, empty, x, at, first, n, 1.0, (own, total, here[0] < C.common_layers), SEG, DELTA, BLOCK, UNITS, Q)
    else:
        total, own = delta_places(C, buf, here, mlp)
        first, n = share(unit, UNITS, pid, Q.ctas, BLOCK)
        if Q.sums > 1:
            return run_lane_units(C, ring, full, empty, x, at, first, n, total, own, SEG, Q.sums, Q)
        elif SEG <= 16:
            return run_blocks(C, ring, full, empty, x, at, first, n, 1.0, total, SEG, DELTA, BLOCK, UNITS, Q)
        else:
            return run_parts(C, ring, full, empty, x, at, first, n, total, 16, SEG // 16, Q)


@gluon.jit
def delta_places(C: gl.constexpr, buf, here, mlp: gl.constexpr):
    """Where the outputs of O, or W2 with ``mlp``, go: (pointer, distance to clear, on several ranks the distances to them) of the sum over the lanes,
    or of this rank's part of it, and the same of each lane's own."""
    act, lse, counters, unused, parts, away = buf
    layer, own, total, unit = here
    n, a, ahead = own
    sums, a_sum, ahead_sum = total
    AT: gl.constexpr = C.at_m if mlp else C.at_o
    if C.ranks == 1:
        return (a_sum + AT, ahead_sum), (a + AT + C.padded_hidden, ahead)
    else:
        part = part_of(parts, sums, mlp, C) + C.rank * C.padded_hidden
        return (part, clear_distance(sums, C.parts), away), (a + AT + (1 + C.first_lane) * C.padded_hidden, ahead, away)
