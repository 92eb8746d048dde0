"""Rotary embedding, KV append and attention: split over the KV length for one row, in row blocks for a prefill chunk.

Query head g of lane l reads KV head g // group of the same lane; both are numbered lane by lane. Rotary pairs are (2j, 2j+1).
Softmax is float32; queries and probabilities are rounded to the weight dtype for the matrix units.
"""

import triton
import triton.language as tl

from engine.kernel.portable.gemm import _dot


@triton.jit
def _rotated(C: tl.constexpr, B, source, j, valid, position, scale, normed: tl.constexpr):
    """Elements j of a head at ``source`` (float32 [h]) after the optional QK norm and the rotary embedding. source may be a
    block of pointers that broadcasts with j."""
    x = tl.load(source + j, mask=valid, other=0.0)
    partner = tl.load(source + (j ^ 1), mask=valid, other=0.0)
    if normed:
        inverse = 1.0 / tl.sqrt(tl.sum(x * x, 1) / C.head_size + C.eps)
        x = x * inverse[:, None] * tl.load(scale + j, mask=valid, other=0.0)
        partner = partner * inverse[:, None] * tl.load(scale + (j ^ 1), mask=valid, other=0.0)
    angle = position * (C.head_size // 2) + j // 2
    cos = tl.load(B.cos + angle, mask=valid, other=0.0)
    sin = tl.load(B.sin + angle, mask=valid, other=0.0)
    return x * cos + tl.where(j % 2 == 0, -partner, partner) * sin


@triton.jit
def _append(B, C: tl.constexpr, layer, lane, kv, source, position, k_scale):
    """Rotate one key and store it with its value at ``position``. source: float32 [(H+2K)*h] of the lane and row."""
    j = tl.arange(0, C.head_pad)
    valid = j < C.head_size
    j2 = j[None, :]
    k = _rotated(C, B, source + (C.q_heads + kv) * C.head_size, j2, j2 < C.head_size, position, k_scale, C.qk_norm)
    v = tl.load(source + (C.q_heads + C.kv_heads + kv) * C.head_size + j, mask=valid, other=0.0)
    place = _cache_row(C, layer, lane * C.kv_heads + kv) + position * C.head_size
    tl.store(B.k_cache + place + j2, k.to(B.k_cache.dtype.element_ty), mask=j2 < C.head_size)
    tl.store(B.v_cache + place + j, v.to(B.v_cache.dtype.element_ty), mask=valid)


@triton.jit
def _cache_row(C: tl.constexpr, layer, head):
    """Offset of [context, h] of a layer and KV head of this rank."""
    return (layer * (C.lanes * C.kv_heads) + head).to(tl.int64) * (C.context * C.head_size)


@triton.jit
def kv_splits(C: tl.constexpr, window, position):
    """(first position, positions a split takes, number of splits) of the KV range that ``position`` sees."""
    first = tl.maximum(0, position - window + 1)
    length = position + 1 - first
    splits = tl.minimum(C.max_splits, tl.cdiv(length, C.block_t))
    each = tl.cdiv(tl.cdiv(length, splits), C.block_t) * C.block_t
    return first, each, tl.cdiv(length, each)


@triton.jit(noinline=True)
def decode_attention(B, C: tl.constexpr, layer, window, position, q_scale, k_scale):
    """Attention of one row: a program takes (KV head, split) pairs; the last split also appends the new key and value.

    Writes part, part_max, part_sum of its splits; who finishes the last split of a KV head combines them into B.attended.
    """
    first, each, splits = kv_splits(C, window, position)
    for item in range(tl.program_id(0), C.lanes * C.kv_heads * splits, C.programs):
        head = item // splits
        split = item % splits
        lane = head // C.kv_heads
        kv = head % C.kv_heads
        source = B.qkv + lane * C.qkv_rows
        if split == splits - 1:
            _append(B, C, layer, lane, kv, source, position, k_scale)
        tl.debug_barrier()
        _decode_split(B, C, layer, head, lane, kv, split, source, first + split * each, each, position, q_scale)
        tl.debug_barrier()
        if tl.atomic_add(B.arrived + head, 1, sem="acq_rel") == splits - 1:
            tl.store(B.arrived + head, 0)
            _combine(B, C, head, splits)


@triton.jit
def _decode_split(B, C: tl.constexpr, layer, head, lane, kv, split, source, begin, each, position, q_scale):
    g = tl.arange(0, C.group_pad)[:, None]
    j = tl.arange(0, C.head_pad)[None, :]
    valid = (g < C.group) & (j < C.head_size)
    q = _rotated(C, B, source + (kv * C.group + g) * C.head_size, j, valid, position, q_scale, C.qk_norm)
    q = (q * (C.head_size**-0.5)).to(B.k_cache.dtype.element_ty)
    end = tl.minimum(begin + each, position + 1)
    row = _cache_row(C, layer, head)
    top = tl.full([C.group_pad], float("-inf"), tl.float32)
    total = tl.full([C.group_pad], 0.0, tl.float32)
    acc = tl.full([C.group_pad, C.head_pad], 0.0, tl.float32)
    for t0 in range(begin, end, C.block_t):
        t = t0 + tl.arange(0, C.block_t)
        cell = row + t[:, None] * C.head_size + j
        mask = (t < end)[:, None] & (j < C.head_size)
        k = tl.load(B.k_cache + cell, mask=mask, other=0.0)
        v = tl.load(B.v_cache + cell, mask=mask, other=0.0)
        s = _dot(q, tl.trans(k), tl.full([C.group_pad, C.block_t], 0.0, tl.float32))
        s = tl.where((t < end)[None, :], s, float("-inf"))
        new_top = tl.maximum(top, tl.max(s, 1))
        p = tl.exp(s - new_top[:, None])
        keep = tl.exp(top - new_top)
        total = total * keep + tl.sum(p, 1)
        acc = _dot(p.to(v.dtype), v, acc * keep[:, None])
        top = new_top
    rows = tl.arange(0, C.group_pad)
    out = (head * C.group + rows) * C.max_splits + split
    tl.store(B.part_max + out, top, mask=rows < C.group)
    tl.store(B.part_sum + out, total, mask=rows < C.group)
    tl.store(B.part + out[:, None] * C.head_pad + j, acc, mask=valid)


@triton.jit
def _combine(B, C: tl.constexpr, head, splits):
    """Attention output of one KV head's query heads from all its splits, in the order of the splits: B.attended [L*H, h]."""
    s = tl.arange(0, C.splits_pad)[:, None, None]
    g = tl.arange(0, C.combine_group)[None, :, None]
    j = tl.arange(0, C.head_pad)[None, None, :]
    at = (head * C.group + g) * C.max_splits + s
    mask = (s < splits) & (g < C.group)
    tops = tl.load(B.part_max + at, mask=mask, other=float("-inf"))
    sums = tl.load(B.part_sum + at, mask=mask, other=0.0)
    parts = tl.load(B.part + at * C.head_pad + j, mask=mask & (j < C.head_size), other=0.0)
    top = tl.where(g < C.group, tl.max(tops, 0)[None, :, :], 0.0)
    weights = tl.exp(tops - top)
    y = tl.sum(weights * parts, 0) / tl.where(tl.arange(0, C.combine_group)[:, None] < C.group, tl.sum(weights * sums, 0), 1.0)
    rows = tl.arange(0, C.combine_group)[:, None]
    columns = tl.arange(0, C.head_pad)[None, :]
    tl.store(B.attended + (head * C.group + rows) * C.head_size + columns, y, mask=(rows < C.group) & (columns < C.head_size))


@triton.jit(noinline=True)
def rows_rotary(B, C: tl.constexpr, layer, start, rows, q_scale, k_scale):
    """Rotate the queries of a chunk into rows_q (scaled) and append its keys and values at positions start .. start+rows-1."""
    heads: tl.constexpr = C.q_heads // C.kv_heads
    for item in range(tl.program_id(0), rows * C.lanes * C.kv_heads, C.programs):
        row = item // (C.lanes * C.kv_heads)
        head = item % (C.lanes * C.kv_heads)
        lane = head // C.kv_heads
        kv = head % C.kv_heads
        source = B.rows_qkv + (row * C.lanes + lane) * C.qkv_rows
        _append(B, C, layer, lane, kv, source, start + row, k_scale)
        g = tl.arange(0, C.group_pad)[:, None]
        j = tl.arange(0, C.head_pad)[None, :]
        valid = (g < heads) & (j < C.head_size)
        q = _rotated(C, B, source + (kv * heads + g) * C.head_size, j, valid, start + row, q_scale, C.qk_norm)
        out = (row * C.lanes * C.q_heads + head * heads + g) * C.head_size + j
        tl.store(B.rows_q + out, (q * (C.head_size**-0.5)).to(B.rows_q.dtype.element_ty), mask=valid)


@triton.jit(noinline=True)
def rows_attention(B, C: tl.constexpr, layer, window, start, rows):
    """Attention of a chunk: a program takes (query head, block of rows) pairs. rows_q [R, L*H, h] -> rows_a [R, L*H*h]."""
    blocks = tl.cdiv(rows, C.block_q)
    for item in range(tl.program_id(0), C.lanes * C.q_heads * blocks, C.programs):
        head = item // blocks
        row0 = (item % blocks) * C.block_q
        _attention_block(B, C, layer, window, start, rows, head, row0)


@triton.jit
def _attention_block(B, C: tl.constexpr, layer, window, start, rows, head, row0):
    r = row0 + tl.arange(0, C.block_q)
    j = tl.arange(0, C.head_pad)[None, :]
    at = (r[:, None] * (C.lanes * C.q_heads) + head) * C.head_size + j
    valid = (r < rows)[:, None] & (j < C.head_size)
    q = tl.load(B.rows_q + at, mask=valid, other=0.0)
    position = (start + r)[:, None]
    row = _cache_row(C, layer, head // C.group)
    begin = tl.maximum(0, start + row0 - window + 1) // C.block_t * C.block_t
    end = tl.minimum(start + row0 + C.block_q, start + rows)
    top = tl.full([C.block_q], -1e30, tl.float32)
    total = tl.full([C.block_q], 0.0, tl.float32)
    acc = tl.full([C.block_q, C.head_pad], 0.0, tl.float32)
    for t0 in range(begin, end, C.block_t):
        t = t0 + tl.arange(0, C.block_t)
        cell = row + t[:, None] * C.head_size + j
        mask = (t < end)[:, None] & (j < C.head_size)
        k = tl.load(B.k_cache + cell, mask=mask, other=0.0)
        v = tl.load(B.v_cache + cell, mask=mask, other=0.0)
        s = _dot(q, tl.trans(k), tl.full([C.block_q, C.block_t], 0.0, tl.float32))
        seen = (t[None, :] <= position) & (t[None, :] > position - window)
        s = tl.where(seen, s, float("-inf"))
        new_top = tl.maximum(top, tl.max(s, 1))
        p = tl.exp(s - new_top[:, None])
        keep = tl.exp(top - new_top)
        total = total * keep + tl.sum(p, 1)
        acc = _dot(p.to(v.dtype), v, acc * keep[:, None])
        top = new_top
    tl.store(B.rows_a + at, (acc / total[:, None]).to(B.rows_a.dtype.element_ty), mask=valid)
