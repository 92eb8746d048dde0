"""Attention of one new token: each CTA takes (KV head, split of the positions); the splits are combined where O's input is staged.

K and V come through the ring as units of 64 positions; the row of the new token, which the copy engine may have read too early, is
taken from the activations instead. S = Q K^T and P V run on the tensor cores with the query heads of one KV head as (padded) rows.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, warpgroup_mma, warpgroup_mma_wait

from engine.kernel.gluon import plan
from engine.kernel.gluon.flags import cta_barrier, peek, peek_some, settle, settle_some, unwritten, widen
from engine.kernel.gluon.gemv import advance, wait_unit

LOG2_E = gl.constexpr(1.4426950408889634)
floor_power_of_two = gluon.constexpr_function(plan.floor_power_of_two)


@gluon.jit
def span(C: gl.constexpr, layer, pos):
    """First position that the token at ``pos`` sees, and how many units of 64 positions that makes."""
    start = 0 * pos
    if C.window > 0:
        start = gl.where((C.windowed >> layer.to(gl.int64)) & 1 != 0, gl.maximum(pos + 1 - C.window, 0), 0)
    return start, (pos + 64 - start) // 64


@gluon.jit
def taken(units, split, k, SPLITS: gl.constexpr):
    """The k-th unit that a split takes, from the last one down: the unit with the new token comes first."""
    return split + ((units - 1 - split) // SPLITS - k) * SPLITS


@gluon.jit
def load_angles(C: gl.constexpr, cos, sin, pos):
    """The rotary angles of a position for ``rotate``: per box of 32 columns cos and sin, one pair of columns per thread."""
    H: gl.constexpr = C.head_size
    even, odd = pairs(gl.zeros([8, 32], gl.float32, layout=gl.BlockedLayout([1, 2], [2, 16], [4, 1], [1, 0])))
    j = pos * (H // 2) + gl.arange(0, 16, layout=gl.SliceLayout(0, even.type.layout))
    c = ()
    s = ()
    for b in gl.static_range(H // 32):
        c = c + (gl.load(cos + 16 * b + j)[None, :] + even,)
        s = s + (gl.load(sin + 16 * b + j)[None, :] + even,)
    return c, s


@gluon.jit
def pairs(x):
    """x [8, 32] -> the even and the odd columns [8, 16]."""
    return gl.split(gl.reshape(x, [8, 16, 2]))


@gluon.jit
def rotate(x, c, s, T: gl.constexpr):
    """Rotary embedding of the pairs (2j, 2j + 1) of x [8, 32]. Rounded to T."""
    even, odd = pairs(x.to(gl.float32))
    y = gl.reshape(gl.join(gl.fma(odd * -1.0, s, even * c), gl.fma(odd, c, even * s)), [8, 32])
    return gl.convert_layout(y.to(T), x.type.layout)


@gluon.jit
def query_tiles(C: gl.constexpr, xs, kv, T: gl.constexpr):
    """Tiles [64, 32] for attention's queries, one in each box."""
    tiles = ()
    for j in gl.static_range(gl.constexpr(C.head_size // 32)):
        tiles = tiles + (xs[j]._reinterpret(T, [1, 64, 32], kv.layout),)
    return tiles


@gluon.jit
def hide_rows(C: gl.constexpr, kv, base, r):
    """Zero the rows from r on of the V boxes that begin at ``base``: they may hold anything (their weights are zero, but zero times NaN is NaN)."""
    HB: gl.constexpr = C.head_size // 32
    LK: gl.constexpr = gl.BlockedLayout([1, 8], [8, 4], [4, 1], [1, 0])
    row = gl.arange(0, 64, layout=gl.SliceLayout(1, LK))[:, None]
    zero = gl.zeros([64, 32], gl.float32, layout=LK).to(kv.dtype)
    boxes = ()
    for j in gl.static_range(HB):
        boxes = boxes + (gl.where(row < r, kv.index(base + j).load(LK), zero),)
    for j in gl.static_range(HB):
        kv.index(base + j).store(boxes[j])


@gluon.jit
def prepare(C: gl.constexpr, kv, full, at, layer, pos, split, active, part, lse, ahead, ahead32, RATIO: gl.constexpr, SPLITS: gl.constexpr):
    """What ``attend`` needs that does not depend on the new token: do it while that is being made. ``ahead``, ``ahead32``: distances to the places to clear."""
    if active:
        clear(C, part + ahead, lse + ahead32, RATIO, SPLITS)
        start, units = span(C, layer, pos)
        if (units - 1) % SPLITS == split:
            mbarrier.wait(full.index(at[0]), at[1])
            hide_rows(C, kv, at[0] * (2 * C.boxes) + C.head_size // 32, pos - start - 64 * (units - 1))


@gluon.jit
def attend(C: gl.constexpr, kv, full, empty, qs, zero, at, layer, pos, split, active, q, new, cache, angles, part, lse, guard,
           RATIO: gl.constexpr, SPLITS: gl.constexpr):  # fmt: skip
    """Attention of RATIO query heads over this split's units of one KV head, after ``prepare``. Returns the new ring place.

    q: pointer to [RATIO, h], not rotated; new: to the key (not rotated) and the value [h] of the new token; cache: to its rows in the K and V
    cache; angles: of its position; part: to [RATIO, SPLITS, h] at this split; lse: to [RATIO, SPLITS] at this split (base-2 logarithm
    of the sum of exponentials). ``active`` false: nothing to do here. ``zero``: see ``gemv.unknown_zero``.
    """
    HB: gl.constexpr = C.head_size // 32
    LQ: gl.constexpr = gl.BlockedLayout([1, 2], [2, 16], [4, 1], [1, 0])
    LO: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 32, 16])
    T: gl.constexpr = q.dtype.element_ty
    start, units = span(C, layer, pos)
    n = gl.where(active, (units - split + SPLITS - 1) // SPLITS, 0)
    if n > 0:
        # rows 0 .. RATIO-1: the query heads; the rows after them: the new key
        row = gl.arange(0, 8, layout=gl.SliceLayout(1, LQ))[:, None]
        col = gl.arange(0, 32, layout=gl.SliceLayout(0, LQ))[None, :]
        p = gl.where(row < RATIO, q + row * C.head_size + col, new[0] + 0 * row + col)
        vcol = gl.arange(0, 32, layout=gl.SliceLayout(0, LO))
        ccol = gl.arange(0, 32, layout=gl.SliceLayout(0, LQ))  # for the cache: stores from the other layout take many registers
        last = (units - 1) % SPLITS == split
        use = last.to(gl.int32) * HB
        heads = peek(p, HB, HB, 64, 2, True)
        value = peek(new[1] + vcol, use, HB, 64, 2)
        copy = peek(new[1] + ccol, use, HB, 64, 2)
        heads = settle(heads, p, HB, guard, T, HB, 64, 2, True)
        for j in gl.static_range(HB):
            x = rotate(heads[j], angles[0][j], angles[1][j], T)
            qs[j].index(zero).slice(0, 8).store(x)
            gl.store(cache[0] + 32 * j + 0 * row + col, x, mask=last & (row == RATIO))
        if C.scores_ahead:
            fence_async_shared()
            cta_barrier()
            fresh = own_scores(C, qs, zero)
            first = scores(C, kv, full, qs, zero, at)
        value = settle(value, new[1] + vcol, use, guard, T, HB, 64, 2)
        copy = settle(copy, new[1] + ccol, use, guard, T, HB, 64, 2)
        for j in gl.static_range(HB):
            gl.store(cache[1] + 32 * j + ccol, copy[j], mask=last)
        if C.scores_ahead:
            fresh, s = warpgroup_mma_wait(0, deps=[fresh, first])
        else:
            fence_async_shared()
            cta_barrier()
            fresh = warpgroup_mma_wait(0, deps=[own_scores(C, qs, zero)])
            s = fresh
        at = run_splits(C, kv, full, empty, qs, zero, at, n, pos - start, units, split, last, fresh, s, value, part, lse, RATIO, SPLITS)
    return at


@gluon.jit
def own_scores(C: gl.constexpr, qs, zero):
    """Start Q times itself [64, 8]: column RATIO is Q times the new key."""
    fresh = gl.zeros([64, 8], gl.float32, layout=gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 8, 16]))
    for j in gl.static_range(gl.constexpr(C.head_size // 32)):
        fresh = warpgroup_mma(qs[j].index(zero), qs[j].index(zero).slice(0, 8).permute((1, 0)), fresh, use_acc=(j > 0), is_async=True)
    return fresh


@gluon.jit
def clear(C: gl.constexpr, part, lse, RATIO: gl.constexpr, SPLITS: gl.constexpr):
    """Mark the outputs of a later layer as not written yet."""
    L: gl.constexpr = gl.BlockedLayout([1, 4], [8, 4] if C.head_size == 96 else [1, 32], [1, 4] if C.head_size == 96 else [4, 1], [1, 0])
    row = gl.arange(0, 8, layout=gl.SliceLayout(1, L))[:, None]
    col = gl.arange(0, 128, layout=gl.SliceLayout(0, L))[None, :]
    v = gl.zeros([8, 128], gl.float32, layout=L).to(part.dtype.element_ty)
    gl.store(part + row * (SPLITS * C.head_size) + col, unwritten(v), mask=(row < RATIO) & (col < C.head_size))
    r = gl.arange(0, 8, layout=gl.SliceLayout(1, L))
    gl.store(lse + r * SPLITS, unwritten(r.to(gl.float32)), mask=r < RATIO)


@gluon.jit
def scores(C: gl.constexpr, kv, full, qs, zero, at):
    """Start the products [64, 64] of the queries with the keys of the unit at a ring place, once they are there."""
    LS: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 64, 16])
    if C.scores_ahead:
        wait_unit(full, at)
    else:
        mbarrier.wait(full.index(at[0]), at[1])
    s = gl.zeros([64, 64], gl.float32, layout=LS)
    for j in gl.static_range(gl.constexpr(C.head_size // 32)):
        s = warpgroup_mma(qs[j].index(zero), kv.index(at[0] * (2 * C.boxes) + j).permute((1, 0)), s, use_acc=(j > 0), is_async=True)
    return s


@gluon.jit
def exp2(x):
    """2 ** x, where results below the normal range may be zero."""
    return gl.inline_asm_elementwise("ex2.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=gl.float32, is_pure=True, pack=1)


@gluon.jit
def reciprocal(x):
    """1 / x, within a unit in the last place."""
    return gl.inline_asm_elementwise("rcp.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=gl.float32, is_pure=True, pack=1)


@gluon.jit
def computed_rows(C: gl.constexpr, L: gl.constexpr):
    """[64]: true in the first 8 of every 16 rows. Only those can hold heads; a thread's other rows need not be computed. (With head size 128 their
    constants would cost spills: true everywhere.)"""
    return (gl.arange(0, 64, layout=gl.SliceLayout(1, L)) & (8 if C.head_size < 128 else 0)) == 0


@gluon.jit
def run_splits(C: gl.constexpr, kv, full, empty, qs, zero, at, n, older, units, split, last, fresh, s, value, part, lse, RATIO: gl.constexpr,
               SPLITS: gl.constexpr):  # fmt: skip
    """Online softmax over n units; writes the normalised output and its log-sum-exp. ``older``: positions before the new one; with ``last`` its
    score (column RATIO of ``fresh``) and its ``value`` come first. s: products of the first unit with
    ``Plan.scores_ahead``. Returns the new ring place."""
    HB: gl.constexpr = C.head_size // 32
    LS: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 64, 16])
    LO: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 32, 16])
    T: gl.constexpr = part.dtype.element_ty
    SCALE: gl.constexpr = C.head_size**-0.5 * LOG2_E
    n8 = gl.arange(0, 8, layout=gl.SliceLayout(0, fresh.type.layout))[None, :]
    new_score = gl.convert_layout(gl.sum(gl.where(n8 == RATIO, fresh, 0.0), axis=1), gl.SliceLayout(1, LS))
    m = gl.where(last, new_score, float("-inf"))
    total = gl.where(last, m * 0.0 + 1.0, 0.0)
    out = ()
    for j in gl.static_range(HB):
        out = out + (gl.zeros([64, 32], gl.float32, layout=LO) + value[j].to(gl.float32)[None, :],)
    col = gl.arange(0, 64, layout=gl.SliceLayout(0, LS))[None, :]
    for k in range(n):
        if C.scores_ahead:
            t = s
        else:
            t = warpgroup_mma_wait(0, deps=[scores(C, kv, full, qs, zero, at)])
        left = older - 64 * taken(units, split, k, SPLITS) - (col & 6)  # a thread's columns differ outside of these bits
        t = gl.where((col & 57) < left, t, float("-inf"))
        top = gl.maximum(m, gl.max(t, axis=1))
        old = gl.where(computed_rows(C, LS), exp2((m - top) * SCALE), 1.0)
        p = gl.where(computed_rows(C, LS)[:, None], exp2(gl.fma(t, SCALE, (top * -SCALE)[:, None])), 0.0)
        total = gl.fma(total, old, gl.sum(p, axis=1))
        m = top
        weights = gl.convert_layout(p.to(T), gl.DotOperandLayout(0, LO, 2))
        old = gl.convert_layout(old, gl.SliceLayout(1, LO))[:, None]
        acc = ()
        for j in gl.static_range(HB):
            acc = acc + (warpgroup_mma(weights, kv.index(at[0] * (2 * C.boxes) + HB + j), out[j] * old, is_async=True),)
        if C.scores_ahead:
            if k + 1 < n:
                waited = warpgroup_mma_wait(0, deps=acc + (scores(C, kv, full, qs, zero, advance(C, at, 1)),))
                s = waited[HB]
                out = ()
                for j in gl.static_range(HB):
                    out = out + (waited[j],)
            else:
                out = warpgroup_mma_wait(0, deps=acc)
        else:
            out = warpgroup_mma_wait(0, deps=acc)
        mbarrier.arrive(empty.index(at[0]), count=1)
        at = advance(C, at, 1)
    write_split(C, out, m * SCALE, total, part, lse, RATIO, SPLITS)
    return at


@gluon.jit
def write_split(C: gl.constexpr, out, m, total, part, lse, RATIO: gl.constexpr, SPLITS: gl.constexpr):
    LO: gl.constexpr = out[0].type.layout
    row = gl.arange(0, 64, layout=gl.SliceLayout(1, LO))[:, None]
    col = gl.arange(0, 32, layout=gl.SliceLayout(0, LO))[None, :]
    share = gl.convert_layout(reciprocal(total), gl.SliceLayout(1, LO))[:, None]
    for j in gl.static_range(gl.constexpr(C.head_size // 32)):
        gl.store(part + row * (SPLITS * C.head_size) + 32 * j + col, (out[j] * share).to(part.dtype.element_ty), mask=row < RATIO)
    r = gl.arange(0, 64, layout=m.type.layout)
    gl.store(lse + r * SPLITS, m + gl.log2(total), mask=r < RATIO)


@gluon.jit
def combine(C: gl.constexpr, part, lse, splits, guard, SEG: gl.constexpr, SPLITS: gl.constexpr, RANKS: gl.constexpr = 1):
    """The attention output as input tiles of O: boxes x [max(8, SEG), 64]. Sum over the splits, weighted by their share of the softmax.

    part: pointer to [heads, SPLITS, h]; lse: to [heads, SPLITS]; heads that pad the segments hold zeros; the first ``splits`` are in use. Tile j of segment s holds, for head size 96,
    columns 32j .. 32j+31 of heads 2s and 2s+1; otherwise 64 columns, from (64j) % h on, of head s * (KW / h) + 64j // h. Rows beyond SEG repeat.
    """
    H: gl.constexpr = C.head_size
    W: gl.constexpr = 32 if H == 96 else 64  # columns of a head in a tile
    ROWS: gl.constexpr = SEG * 64 // W
    T: gl.constexpr = part.dtype.element_ty
    ACROSS: gl.constexpr = 256 // W  # threads of a warp across heads and splits
    # so that the splits of a head are added in one order on any number of ranks, and no two threads add the same on two
    BY_HEAD: gl.constexpr = min(ACROSS, floor_power_of_two(ROWS * RANKS // (8 if C.all_lanes > 1 else 4)))
    EACH: gl.constexpr = max(1, SPLITS * BY_HEAD // ACROSS)  # neighbouring splits of a thread
    PACK: gl.constexpr = min(4, EACH)
    L: gl.constexpr = gl.BlockedLayout([1, EACH, 8], [BY_HEAD, ACROSS // BY_HEAD, W // 8], [4, 1, 1], [2, 1, 0])
    L2: gl.constexpr = gl.SliceLayout(2, L)
    r = gl.arange(0, ROWS, layout=gl.SliceLayout(1, L2))
    split = gl.arange(0, SPLITS, layout=gl.SliceLayout(0, L2))
    col = gl.arange(0, W, layout=gl.SliceLayout(0, gl.SliceLayout(1, L)))[None, None, :]
    left = (splits - split)[None, :]  # positive: this split is in use
    # tiles whose values lie at a constant distance are loaded and checked together
    TOGETHER: gl.constexpr = 2 if H == 128 else C.boxes
    STRIDE: gl.constexpr = 2 * (SPLITS * H if H == 64 else 32 if H == 96 else 64)
    used = (split < splits).to(gl.int32)[None, :, None] * TOGETHER
    logs = ()
    for j in gl.static_range(gl.constexpr(C.boxes)):
        if same_heads(j, H) == j:
            logs = logs + (peek_some(lse + head_of(r, j, C)[:, None] * SPLITS + split[None, :], left, PACK),)
    loaded = ()
    for g in gl.static_range(gl.constexpr(C.boxes // TOGETHER)):
        row = ((r * (C.kw // H if H != 96 else 1) + g) * SPLITS)[:, None] + split[None, :]
        loaded = loaded + (peek((part + row * H)[:, :, None] + col, used, TOGETHER, STRIDE, 8),)
    written = ()
    for j in gl.static_range(gl.constexpr(C.boxes)):
        if same_heads(j, H) == j:
            p = lse + head_of(r, j, C)[:, None] * SPLITS + split[None, :]
            written = written + (settle_some(logs[log_index(j, H)], p, left, guard, PACK),)
    weights = ()
    for j in gl.static_range(len(written)):
        log = gl.where(left > 0, written[j], float("-inf"))
        weight = exp2(log - gl.max(log, axis=1)[:, None])
        weights = weights + (weight * reciprocal(gl.sum(weight, axis=1))[:, None],)
    tiles = ()
    for g in gl.static_range(gl.constexpr(C.boxes // TOGETHER)):
        row = ((r * (C.kw // H if H != 96 else 1) + g) * SPLITS)[:, None] + split[None, :]
        v = settle(loaded[g], (part + row * H)[:, :, None] + col, used, guard, T, TOGETHER, STRIDE, 8)
        for t in gl.static_range(TOGETHER):
            x = widen(v[t])
            weight = gl.broadcast(weights[log_index(g * TOGETHER + t, H)][:, :, None], x)[0]
            tiles = tiles + (input_rows(C, weighted_sum(x, weight, EACH), x, SEG),)
    return tiles


@gluon.jit
def every(x, N: gl.constexpr):
    """x [rows, splits, W], of which a thread holds N (1, 2, 4, 8) neighbouring splits -> N tensors [rows, splits / N, W] of one split per thread."""
    if N == 1:
        return (x,)
    else:
        even, odd = gl.split(gl.permute(gl.reshape(x, [x.shape[0], x.shape[1] // 2, 2, x.shape[2]]), (0, 1, 3, 2)))
        return every(even, N // 2) + every(odd, N // 2)


@gluon.jit
def weighted_sum(v, weight, EACH: gl.constexpr):
    """Sum over the splits of v * weight [rows, splits, W]; a thread holds EACH neighbouring splits and adds these up first."""
    a = every(v, EACH)
    b = every(weight, EACH)
    y = a[0] * b[0]
    for k in gl.static_range(1, EACH):
        y = gl.fma(a[k], b[k], y)
    return gl.convert_layout(gl.sum(y, axis=1), gl.SliceLayout(1, v.type.layout))


@gluon.jit
def input_rows(C: gl.constexpr, x, like, SEG: gl.constexpr):
    """x [rows, W], SEG * 64 values -> [max(8, SEG), 64], repeated by threads that hold the same: those of other splits in ``like`` [rows, SPLITS, W];
    two rows of a lane of two through shared memory. (That takes 16 us from a token of Laneformer on two GPUs, and would add 6 to one on eight.)"""
    W: gl.constexpr = x.shape[1]
    if SEG >= 8:
        return gl.reshape(x, [SEG, 64])
    elif SEG == 2 and not C.chain:
        L: gl.constexpr = gl.BlockedLayout([1, 1, 4], [1, 128 // W, W // 4], [4, 1, 1], [2, 1, 0])
        x = gl.convert_layout(x, gl.SliceLayout(0, L))[None, :, :]
        return gl.reshape(x + gl.zeros([4, x.shape[1], W], gl.float32, layout=L), [8, 64])
    else:
        room = gl.full([x.shape[0], 8 // SEG, W], 0.0, gl.float32, layout=like.type.layout)
        return gl.reshape(gl.permute(gl.broadcast(x[:, None, :], room)[0], (1, 0, 2)), [8, 64])


@gluon.constexpr_function
def same_heads(j, head_size):
    """The first tile whose rows belong to the same heads as those of tile j."""
    return 0 if head_size == 96 else j - j % 2 if head_size == 128 else j


@gluon.constexpr_function
def log_index(j, head_size):
    return 0 if head_size == 96 else j // 2 if head_size == 128 else j


@gluon.jit
def head_of(r, j: gl.constexpr, C: gl.constexpr):
    """Heads of the rows r of tile j; see ``combine``."""
    if C.head_size == 96:
        return r
    else:
        return r * (C.kw // C.head_size) + 64 * j // C.head_size
