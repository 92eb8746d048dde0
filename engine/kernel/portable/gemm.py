"""Matrix products of a prefill chunk: R rows share one pass over the weights, on the matrix units."""

import triton
import triton.language as tl

from engine.kernel.portable.exchange import push_layer


@triton.jit
def _dot(a, b, acc):
    """acc + a @ b in float32; float32 operands are multiplied exactly (no TF32)."""
    if a.dtype == tl.float32:
        acc = tl.dot(a, b, acc, input_precision="ieee")
    else:
        acc = tl.dot(a, b, acc)
    return acc


@triton.jit
def _tile(P, stride, rows, k, n: tl.constexpr, depth: tl.constexpr, even: tl.constexpr):
    """[rows, k] of a row-major matrix; zero beyond n rows and depth columns."""
    pointers = P + rows[:, None] * stride + k[None, :]
    if even:
        tile = tl.load(pointers)
    else:
        tile = tl.load(pointers, mask=(rows < n)[:, None] & (k < depth)[None, :], other=0.0)
    return tile


@triton.jit
def gemm(
    B, C: tl.constexpr, M: tl.constexpr, lanes: tl.constexpr, W, A, a_row, a_lane, OUT, o_row, o_lane, bias, biased: tl.constexpr,
    place, tag, pushed: tl.constexpr,
):  # fmt: skip
    """OUT[row, lane, :] = W[lane] @ A[row, lane, :] for all C.rows rows. W [lanes, N, K]; strides in elements.

    pushed: the outputs also go to the other ranks, as words [R, sources, N] at ``place`` with this tag.
    """
    r = tl.arange(0, C.rows)
    per_lane: tl.constexpr = (M.n + M.mn - 1) // M.mn
    for t in range(tl.program_id(0), lanes * per_lane, C.programs):
        lane = t // per_lane
        o = (t % per_lane) * M.mn + tl.arange(0, M.mn)
        weights = W + lane * (M.n * M.k)
        inputs = A + lane * a_lane
        acc = tl.full([C.rows, M.mn], 0.0, tl.float32)
        for k0 in tl.range(0, M.k, M.mk, num_stages=M.mstages):
            k = k0 + tl.arange(0, M.mk)
            a = _tile(inputs, a_row, r, k, C.rows, M.k, M.even_mma)
            w = _tile(weights, M.k, o, k, M.n, M.k, M.even_mma)
            acc = _dot(a, tl.trans(w), acc)
        if biased:
            acc += tl.load(bias + lane * M.n + o, mask=o < M.n, other=0.0)[None, :]
        tl.store(OUT + lane * o_lane + r[:, None] * o_row + o[None, :], acc.to(OUT.dtype.element_ty), mask=(o < M.n)[None, :])
        if pushed and C.ranks > 1:
            words = place + (r[:, None] * C.sources + C.rank * C.lanes + lane) * C.hidden + o[None, :]
            push_layer(B, C, words, tag, acc, (r[:, None] >= 0) & (o < M.n)[None, :])


@triton.jit
def gemm_gated(C: tl.constexpr, M: tl.constexpr, W, A, a_row, a_lane, OUT, o_row, o_lane):
    """OUT[row, lane, :] = silu(gate) * up, gate and up being the two halves of W[lane] [N, K]."""
    r = tl.arange(0, C.rows)
    half: tl.constexpr = M.n // 2
    even: tl.constexpr = (half % M.mn == 0) & (M.k % M.mk == 0)
    per_lane: tl.constexpr = (half + M.mn - 1) // M.mn
    for t in range(tl.program_id(0), C.lanes * per_lane, C.programs):
        lane = t // per_lane
        o = (t % per_lane) * M.mn + tl.arange(0, M.mn)
        weights = W + lane * (M.n * M.k)
        inputs = A + lane * a_lane
        gate = tl.full([C.rows, M.mn], 0.0, tl.float32)
        up = tl.full([C.rows, M.mn], 0.0, tl.float32)
        for k0 in tl.range(0, M.k, M.mk, num_stages=M.mstages):
            k = k0 + tl.arange(0, M.mk)
            a = _tile(inputs, a_row, r, k, C.rows, M.k, even)
            g = _tile(weights, M.k, o, k, half, M.k, even)
            u = _tile(weights + half * M.k, M.k, o, k, half, M.k, even)
            gate = _dot(a, tl.trans(g), gate)
            up = _dot(a, tl.trans(u), up)
        y = gate * tl.sigmoid(gate) * up
        tl.store(OUT + lane * o_lane + r[:, None] * o_row + o[None, :], y.to(OUT.dtype.element_ty), mask=(o < half)[None, :])
