"""Phases of a layer that all CTAs compute together, of one lane or of several."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from engine.kernel.gluon.attention import attend, prepare, query_tiles
from engine.kernel.gluon.flags import at_place, wait_count
from engine.kernel.gluon.steps import AT_ATTENTION, PARITIES, begin_step, clear_distance, now, record


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
