"""Attention of one new token: each CTA takes (KV head, split of the positions); the splits are combined where O's input is staged.

K and V come through the ring as units of 64 positions; the row of the new token, which the copy engine may have read too early, is
taken from the activations instead. S = Q K^T and P V run on the tensor cores with the query heads of one KV head as (padded) rows.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, warpgroup_mma, warpgroup_mma_wait

from engine.kernel.gluon.flags import cta_barrier, peek, peek_some, settle, settle_some, unwritten, wait_count
from engine.kernel.gluon.gemv import advance

LOG2_E = gl.constexpr(1.4426950408889634)


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
def rotate(x, cos, sin, T: gl.constexpr):
    """Rotary embedding of the pairs (2j, 2j + 1) along the last axis of x (n values); cos, sin: pointers to n / 2 values. Rounded to T."""
    if len(x.shape) == 1:
        even, odd = gl.split(gl.reshape(x.to(gl.float32), [x.shape[0] // 2, 2]))
        j = gl.arange(0, x.shape[0] // 2, layout=even.type.layout)
        c = gl.load(cos + j)
        s = gl.load(sin + j)
    else:
        even, odd = gl.split(gl.reshape(x.to(gl.float32), [x.shape[0], x.shape[1] // 2, 2]))
        j = gl.arange(0, x.shape[1] // 2, layout=gl.SliceLayout(0, even.type.layout))
        c = gl.load(cos + j)[None, :]
        s = gl.load(sin + j)[None, :]
    y = gl.reshape(gl.join(even * c - odd * s, even * s + odd * c), x.shape)
    return gl.convert_layout(y.to(T), x.type.layout)


@gluon.jit
def insert_new(C: gl.constexpr, kv, base, r, new, k, v, use, cache, cos, sin, guard):
    """Rotate the new token's key, append key and value to the cache, and put them into row r of the unit whose boxes begin at ``base``. The
    rows after it, which may hold anything, become zero in V (their weights are zero, but zero times NaN is NaN). k, v: the peeked values."""
    HB: gl.constexpr = C.head_size // 32
    LK: gl.constexpr = gl.BlockedLayout([1, 8], [8, 4], [4, 1], [1, 0])
    T: gl.constexpr = new[0].dtype.element_ty
    col = gl.arange(0, 32, layout=gl.SliceLayout(0, LK))
    row = gl.arange(0, 64, layout=gl.SliceLayout(1, LK))[:, None]
    zero = gl.zeros([64, 32], gl.float32, layout=LK).to(T)
    k = settle(k, new[0] + col, use, guard, T, HB, 64, 8)
    v = settle(v, new[1] + col, use, guard, T, HB, 64, 8)
    boxes = ()
    for j in gl.static_range(HB):
        key = rotate(k[j], cos + 16 * j, sin + 16 * j, T)
        gl.store(cache[0] + 32 * j + col, key)
        gl.store(cache[1] + 32 * j + col, v[j])
        boxes = boxes + (gl.where(row == r, key[None, :], kv.index(base + j).load(LK)),)
    for j in gl.static_range(HB):
        t = kv.index(base + HB + j).load(LK)
        boxes = boxes + (gl.where(row == r, v[j][None, :], gl.where(row > r, zero, t)),)
    for j in gl.static_range(2 * HB):
        kv.index(base + j).store(boxes[j])


@gluon.jit
def attend(C: gl.constexpr, kv, full, empty, qs, at, layer, pos, split, active, q, new, cache, cos, sin, part, lse, ahead, ahead32,
           counter, target, guard, RATIO: gl.constexpr, SPLITS: gl.constexpr):  # fmt: skip
    """Attention of RATIO query heads over this split's units of one KV head, once ``counter`` has reached ``target``. Returns the new ring place.

    q: pointer to [RATIO, h], not rotated; new: to the key (not rotated) and the value [h] of the new token; cache: to its rows in the K and V
    cache; cos, sin: to its angles [h / 2]; part: to [RATIO, SPLITS, h] at this split; lse: to [RATIO, SPLITS] at this split (base-2
    logarithm of the sum of exponentials). ``active`` false: nothing to do here.
    """
    HB: gl.constexpr = C.head_size // 32
    LQ: gl.constexpr = gl.BlockedLayout([1, 2], [2, 16], [4, 1], [1, 0])
    LK: gl.constexpr = gl.BlockedLayout([1, 8], [8, 4], [4, 1], [1, 0])
    T: gl.constexpr = q.dtype.element_ty
    start, units = span(C, layer, pos)
    n = gl.where(active, (units - split + SPLITS - 1) // SPLITS, 0)
    if n > 0:
        # query heads into rows 0..7; rows from RATIO on repeat the last head and are never used
        row = gl.minimum(gl.arange(0, 8, layout=gl.SliceLayout(1, LQ)), RATIO - 1)[:, None]
        p = q + row * C.head_size + gl.arange(0, 32, layout=gl.SliceLayout(0, LQ))[None, :]
        col = gl.arange(0, 32, layout=gl.SliceLayout(0, LK))
        last = (units - 1) % SPLITS == split
        use = last.to(gl.int32) * HB
        heads = peek(p, HB, HB, 64, 2)
        key = peek(new[0] + col, use, HB, 64, 8)
        value = peek(new[1] + col, use, HB, 64, 8)
        wait_count(counter, target, guard)
        heads = settle(heads, p, HB, guard, T, HB, 64, 2)
        for j in gl.static_range(HB):
            qs.index(j).slice(0, 8).store(rotate(heads[j], cos + 16 * j, sin + 16 * j, T))
        mbarrier.wait(full.index(at[0]), at[1])
        if last:
            insert_new(C, kv, at[0] * (2 * C.boxes), pos - start - 64 * (units - 1), new, key, value, use, cache, cos, sin, guard)
        fence_async_shared()
        cta_barrier()
        at = run_splits(C, kv, full, empty, qs, at, n, start, units, pos, split, part, lse, RATIO, SPLITS)
    if active:
        clear(C, part + ahead, lse + ahead32, RATIO, SPLITS)
    return at


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
def run_splits(C: gl.constexpr, kv, full, empty, qs, at, n, start, units, pos, split, part, lse, RATIO: gl.constexpr, SPLITS: gl.constexpr):
    """Online softmax over n units; writes the normalised output and its log-sum-exp. Returns the new ring place."""
    HB: gl.constexpr = C.head_size // 32
    BOXES: gl.constexpr = 2 * C.boxes  # [64, 32] boxes of a ring slot
    LS: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 64, 16])
    LO: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 32, 16])
    T: gl.constexpr = part.dtype.element_ty
    SCALE: gl.constexpr = C.head_size**-0.5 * LOG2_E
    m = gl.full([64], float("-inf"), gl.float32, layout=gl.SliceLayout(1, LS))
    total = gl.zeros([64], gl.float32, layout=gl.SliceLayout(1, LS))
    out = ()
    for j in gl.static_range(HB):
        out = out + (gl.zeros([64, 32], gl.float32, layout=LO),)
    for k in range(n):
        unit = taken(units, split, k, SPLITS)
        base = at[0] * BOXES
        mbarrier.wait(full.index(at[0]), at[1])
        s = gl.zeros([64, 64], gl.float32, layout=LS)
        for j in gl.static_range(HB):
            s = warpgroup_mma(qs.index(j), kv.index(base + j).permute((1, 0)), s, use_acc=(j > 0), is_async=True)
        s = warpgroup_mma_wait(0, deps=[s])
        col = gl.arange(0, 64, layout=gl.SliceLayout(0, LS))
        s = gl.where((start + 64 * unit + col <= pos)[None, :], s * SCALE, float("-inf"))
        top = gl.maximum(m, gl.max(s, axis=1))
        old = gl.exp2(m - top)
        p = gl.exp2(s - top[:, None])
        total = total * old + gl.sum(p, axis=1)
        m = top
        weights = gl.convert_layout(p.to(T), gl.DotOperandLayout(0, LO, 2))
        old = gl.convert_layout(old, gl.SliceLayout(1, LO))
        acc = ()
        for j in gl.static_range(HB):
            acc = acc + (warpgroup_mma(weights, kv.index(base + HB + j), out[j] * old[:, None], is_async=True),)
        out = warpgroup_mma_wait(0, deps=acc)
        mbarrier.arrive(empty.index(at[0]), count=1)
        at = advance(C, at, 1)
    write_split(C, out, m, total, part, lse, RATIO, SPLITS)
    return at


@gluon.jit
def write_split(C: gl.constexpr, out, m, total, part, lse, RATIO: gl.constexpr, SPLITS: gl.constexpr):
    LO: gl.constexpr = out[0].type.layout
    row = gl.arange(0, 64, layout=gl.SliceLayout(1, LO))[:, None]
    col = gl.arange(0, 32, layout=gl.SliceLayout(0, LO))[None, :]
    share = gl.convert_layout(1.0 / total, gl.SliceLayout(1, LO))[:, None]
    for j in gl.static_range(gl.constexpr(C.head_size // 32)):
        gl.store(part + row * (SPLITS * C.head_size) + 32 * j + col, (out[j] * share).to(part.dtype.element_ty), mask=row < RATIO)
    r = gl.arange(0, 64, layout=m.type.layout)
    gl.store(lse + r * SPLITS, m + gl.log2(total), mask=r < RATIO)


@gluon.jit
def combine(C: gl.constexpr, part, lse, splits, guard, HEADS: gl.constexpr, SEG: gl.constexpr, SPLITS: gl.constexpr):
    """The attention output as input tiles of O: boxes x [max(8, SEG), 64]. Sum over the splits, weighted by their share of the softmax.

    part: pointer to [HEADS, SPLITS, h]; lse: to [HEADS, SPLITS]; the first ``splits`` are in use. Tile j of segment s holds, for head size 96,
    columns 32j .. 32j+31 of heads 2s and 2s+1; otherwise 64 columns, from (64j) % h on, of head s * (KW / h) + 64j // h. Rows beyond SEG repeat.
    """
    H: gl.constexpr = C.head_size
    W: gl.constexpr = 32 if H == 96 else 64  # columns of a head in a tile
    ROWS: gl.constexpr = SEG * 64 // W
    T: gl.constexpr = part.dtype.element_ty
    ACROSS: gl.constexpr = 256 // W  # threads of a warp across heads and splits
    BY_HEAD: gl.constexpr = min(ACROSS, max(1, ROWS // 4))
    EACH: gl.constexpr = max(1, SPLITS * BY_HEAD // ACROSS)  # neighbouring splits of a thread
    PACK: gl.constexpr = min(4, EACH)
    L: gl.constexpr = gl.BlockedLayout([1, EACH, 8], [BY_HEAD, ACROSS // BY_HEAD, W // 8], [4, 1, 1], [2, 1, 0])
    L2: gl.constexpr = gl.SliceLayout(2, L)
    r = gl.arange(0, ROWS, layout=gl.SliceLayout(1, L2))
    split = gl.arange(0, SPLITS, layout=gl.SliceLayout(0, L2))
    col = gl.arange(0, W, layout=gl.SliceLayout(0, gl.SliceLayout(1, L)))[None, None, :]
    left = (splits - split)[None, :]  # positive: this split is in use
    used = (split < splits).to(gl.int32)[None, :, None]
    loaded = ()
    logs = ()
    for j in gl.static_range(gl.constexpr(C.boxes)):
        row = (head_of(r, j, C, HEADS) * SPLITS)[:, None] + split[None, :]
        loaded = loaded + (peek((part + row * H)[:, :, None] + first_column(j, H) + col, used, 1, 0, 8),)
        if same_heads(j, H) == j:
            logs = logs + (peek_some(lse + row, left, PACK),)
    tiles = ()
    weight = gl.zeros([ROWS, SPLITS], gl.float32, layout=L2)
    for j in gl.static_range(gl.constexpr(C.boxes)):
        row = (head_of(r, j, C, HEADS) * SPLITS)[:, None] + split[None, :]
        if same_heads(j, H) == j:
            log = settle_some(logs[log_index(j, H)], lse + row, left, guard, PACK)
            log = gl.where(left > 0, log, float("-inf"))
            weight = gl.exp2(log - gl.max(log, axis=1)[:, None])
            weight = weight / gl.sum(weight, axis=1)[:, None]
        p = (part + row * H)[:, :, None] + first_column(j, H) + col
        v = settle(loaded[j], p, used, guard, T, 1, 0, 8)[0]
        tiles = tiles + (repeated_rows(gl.sum(v.to(gl.float32) * weight[:, :, None], axis=1), SEG),)
    return tiles


@gluon.jit
def repeated_rows(x, SEG: gl.constexpr):
    """x [rows, W], SEG * 64 values -> [max(8, SEG), 64]."""
    if SEG >= 8:
        return gl.reshape(x, [SEG, 64])
    else:
        TIMES: gl.constexpr = 8 // SEG
        W: gl.constexpr = x.shape[1]
        L: gl.constexpr = gl.BlockedLayout([1, 1, 4], [1, 128 // W, W // 4], [4, 1, 1], [2, 1, 0])
        x = gl.convert_layout(x, gl.SliceLayout(0, L))[None, :, :]
        return gl.reshape(x + gl.zeros([TIMES, x.shape[1], W], gl.float32, layout=L), [8, 64])


@gluon.constexpr_function
def same_heads(j, head_size):
    """The first tile whose rows belong to the same heads as those of tile j."""
    return 0 if head_size == 96 else j - j % 2 if head_size == 128 else j


@gluon.constexpr_function
def log_index(j, head_size):
    return j // 2 if head_size == 128 else j


@gluon.constexpr_function
def first_column(j, head_size):
    return 32 * j if head_size == 96 else 64 * j % head_size


@gluon.jit
def head_of(r, j: gl.constexpr, C: gl.constexpr, HEADS: gl.constexpr):
    """Heads of the rows r of tile j; see ``combine``."""
    if C.head_size == 96:
        return gl.minimum(r, HEADS - 1)
    else:
        return gl.minimum(r * (C.kw // C.head_size) + 64 * j // C.head_size, HEADS - 1)
