"""Matrix-vector products of units from the ring by the tensor cores ("diagonal GEMV"), and what each phase does with the sums.

A unit is A [64, KW]: segment row m holds segment m % SEG of matrix row m // SEG. The input x is staged in shared memory as B [SEG, KW]. Of
D = A B^T [64, SEG] only D[m, m % SEG] is wanted; the sum over the SEG segment rows of a matrix row is its product with x.

Letters: SEG segments, R = 64 // SEG matrix rows per unit. ``at`` = (slot, phase) is a place in the ring, ``u`` the number of a unit in its phase.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, warpgroup_mma, warpgroup_mma_wait

from engine.kernel.gluon.flags import cta_barrier, put

QKV = gl.constexpr(0)
DELTA = gl.constexpr(1)
GATE = gl.constexpr(2)
HEAD = gl.constexpr(3)


@gluon.jit
def share(unit, units: gl.constexpr, rank, CTAS: gl.constexpr, TOGETHER: gl.constexpr):
    """What CTA ``rank`` takes of a phase of ``units`` units that begins at unit ``unit`` of the stream: blocks of TOGETHER units, dealt out in
    turn so that the turns go on from phase to phase. Returns (first block in the phase, number of blocks)."""
    start = unit // TOGETHER
    a = (start - rank + CTAS - 1) // CTAS
    b = (start + units // TOGETHER - rank + CTAS - 1) // CTAS
    return a * CTAS + rank - start, b - a


@gluon.jit
def stage(xs, v, T: gl.constexpr, N: gl.constexpr):
    """Round the input tiles v [rows, 64] to 16 bits and put them where the matrix unit reads them."""
    for j in gl.static_range(N):
        xs.index(j).store(v[j].to(T))
    fence_async_shared()
    cta_barrier()


@gluon.jit
def advance(C: gl.constexpr, at, n):
    """The ring place (slot, phase) n <= slots units later."""
    slot, phase = at
    wraps = (slot + n >= C.slots).to(gl.int32)
    return slot + n - wraps * C.slots, phase ^ wraps


@gluon.jit
def multiply(C: gl.constexpr, ring, full, xs, at, more, NX: gl.constexpr, FIRST, STEP: gl.constexpr):
    """Start D = A B^T [64, NX] for the unit at the ring place ``at`` once it is there (``more`` false: on whatever is there, without a
    wait); B's tile of box j is xs.index(FIRST + j * STEP). The caller waits for D."""
    LM: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, NX, 16])
    mbarrier.wait(full.index(at[0]), at[1], pred=more)
    acc = gl.zeros([64, NX], gl.float32, layout=LM)
    for j in gl.static_range(gl.constexpr(C.boxes)):
        b = xs.index(FIRST + j * STEP).permute((1, 0))
        acc = warpgroup_mma(ring.index(at[0] * C.boxes + j), b, acc, use_acc=(j > 0), is_async=True)
    return acc


@gluon.jit
def nothing(NX: gl.constexpr):
    return gl.zeros([64, NX], gl.float32, layout=gl.NVMMADistributedLayout([3, 0], [4, 1], [16, NX, 16]))


@gluon.jit
def rows(acc, SEG: gl.constexpr, first=0):
    """[R] products of the matrix rows; segment 0 stands in column ``first`` of acc."""
    LM: gl.constexpr = acc.type.layout
    m = gl.arange(0, 64, layout=gl.SliceLayout(1, LM))
    n = gl.arange(0, acc.shape[1], layout=gl.SliceLayout(0, LM))
    s = gl.sum(gl.where((m[:, None] & (SEG - 1)) + first == n[None, :], acc, 0.0), axis=1)
    if SEG == 1:
        return s
    else:
        return gl.sum(gl.reshape(s, [64 // SEG, SEG]), axis=1)


@gluon.jit
def in_registers(s):
    """The whole vector in every thread."""
    return gl.convert_layout(s, gl.BlockedLayout([s.shape[0]], [32], [4], [0]))


@gluon.jit
def finish_rows(s, u, ok, ctx, LIMIT: gl.constexpr):
    """Hand the sums s [R] of unit u over. ctx: pointer to [LIMIT], distance to the place to clear."""
    out, ahead = ctx
    row = u * s.shape[0] + gl.arange(0, s.shape[0], layout=s.type.layout)
    put(out + row, ahead, s.to(out.dtype.element_ty), ok & (row < LIMIT))


@gluon.jit
def finish_gate(acc, u, ok, ctx, C: gl.constexpr, SEG: gl.constexpr, FFN: gl.constexpr):
    """silu(gate) * up of a unit whose first half of rows are gates. ctx: pointer to [FFN], distance to clear."""
    out, ahead = ctx
    R: gl.constexpr = 64 // SEG
    s = in_registers(rows(acc, SEG))
    gate, up = gl.split(gl.permute(gl.reshape(s, [2, R // 2]), (1, 0)))
    v = gate * up / (1.0 + gl.exp(-gate))
    col = u * (R // 2) + gl.arange(0, R // 2, layout=v.type.layout)
    put(out + col, ahead, v.to(out.dtype.element_ty), ok & (col < FFN))


@gluon.jit
def with_bias(s, u, ok, bias, LIMIT: gl.constexpr):
    row = u * s.shape[0] + gl.arange(0, s.shape[0], layout=s.type.layout)
    return s + gl.load(bias + row, mask=ok & (row < LIMIT), other=0.0).to(gl.float32)


@gluon.jit
def finish(acc, u, ok, ctx, C: gl.constexpr, SEG: gl.constexpr, KIND: gl.constexpr, Q: gl.constexpr):
    if KIND == GATE:
        finish_gate(acc, u, ok, ctx, C, SEG, Q.ffn)
    elif KIND == DELTA:
        finish_rows(rows(acc, SEG), u, ok, ctx, C.hidden)
    else:
        LIMIT: gl.constexpr = (Q.heads + 2 * Q.kv_heads) * C.head_size
        out, ahead, bias = ctx
        s = rows(acc, SEG)
        if C.bias:
            s = with_bias(s, u, ok, bias, LIMIT)
        finish_rows(s, u, ok, (out, ahead), LIMIT)


@gluon.jit
def run_units(C: gl.constexpr, ring, full, empty, xs, base, at, first, n, ctx, SEG: gl.constexpr, KIND: gl.constexpr, Q: gl.constexpr):
    """n units of one phase from the ring place ``at``; ``first`` is the number of the first one in its phase.

    The sums of unit k - 1 are finished while unit k is multiplied; the last pass multiplies nothing new. ``base``: a zero that the compiler does
    not know, added to the index of x's tiles. (Descriptors of constant tiles are all computed at the start of the kernel, fill the
    registers, and ptxas of CUDA 12.8 was seen to use one before its value was there.) Returns the ring place after them.
    """
    NX: gl.constexpr = SEG if SEG > 8 else 8
    prev = nothing(NX)
    for k in range(n + 1):
        more = k < n
        acc = multiply(C, ring, full, xs, at, more, NX, base, 1)
        finish(prev, first + (k - 1) * Q.ctas, k > 0, ctx, C, SEG, KIND, Q)
        acc = warpgroup_mma_wait(0, deps=[acc])
        mbarrier.arrive(empty.index(at[0]), count=1, pred=more)
        prev = acc
        at = advance(C, at, more.to(gl.int32))
    return at


@gluon.jit
def run_lane_units(C: gl.constexpr, ring, full, empty, xs, base, at, first, n, total, own, SEG: gl.constexpr, LANES: gl.constexpr, Q: gl.constexpr):
    """O or W2 of all lanes: n blocks of rows, LANES units each. ``own``: (pointer to [LANES, padded D], distance to clear) for each lane's
    sums; ``total``: the same for their sum [D]. xs holds the segments of all lanes one after the other."""
    R: gl.constexpr = 64 // SEG
    WIDE: gl.constexpr = SEG < 8  # a lane's segments are no tile of their own
    NX: gl.constexpr = LANES * SEG if WIDE else SEG
    prev = nothing(NX)
    out, ahead = own
    s = rows(prev, SEG)
    count = n * LANES
    for k in range(count + 1):
        more = k < count
        acc = multiply(C, ring, full, xs, at, more, NX, base if WIDE else k % LANES, 1 if WIDE else LANES)
        lane = (k + LANES - 1) % LANES
        block = first + (k - 1) // LANES * Q.ctas
        part = rows(prev, SEG, lane * SEG if WIDE else 0)
        finish_rows(part, block, k > 0, (out + lane * C.padded_hidden, ahead), C.hidden)
        s = gl.where(lane == 0, part, s + part)
        finish_rows(s, block, (k > 0) & (lane == LANES - 1), total, C.hidden)
        acc = warpgroup_mma_wait(0, deps=[acc])
        mbarrier.arrive(empty.index(at[0]), count=1, pred=more)
        prev = acc
        at = advance(C, at, more.to(gl.int32))
    return at


@gluon.jit
def better(s, u, ok, best, where, bad, logits, C: gl.constexpr):
    """Take the logits of unit u into the running best (value, id); store them."""
    row = u * C.rows + gl.arange(0, C.rows, layout=s.type.layout)
    inside = ok & (row < C.vocab)
    gl.store(logits + row, s, mask=inside)
    wins = inside & (s > best)
    bad = bad | (inside & ((s - s) != 0.0)).to(gl.int32)
    return gl.where(wins, s, best), gl.where(wins, row, where), bad


@gluon.jit
def run_head(C: gl.constexpr, ring, full, empty, xs, base, at, first, n, logits):
    """Logits of this CTA's vocabulary rows. Returns the ring place, best value [R], its id [R], nonzero where a logit is NaN or infinite [R]."""
    SEG: gl.constexpr = C.segments_d
    NX: gl.constexpr = SEG if SEG > 8 else 8
    prev = nothing(NX)
    s = rows(prev, SEG)
    best = gl.full([C.rows], float("-inf"), gl.float32, layout=s.type.layout)
    where = gl.full([C.rows], C.vocab, gl.int32, layout=s.type.layout)
    bad = gl.full([C.rows], 0, gl.int32, layout=s.type.layout)
    for k in range(n + 1):
        more = k < n
        acc = multiply(C, ring, full, xs, at, more, NX, base, 1)
        best, where, bad = better(rows(prev, SEG), first + (k - 1) * C.ctas, k > 0, best, where, bad, logits, C)
        acc = warpgroup_mma_wait(0, deps=[acc])
        mbarrier.arrive(empty.index(at[0]), count=1, pred=more)
        prev = acc
        at = advance(C, at, more.to(gl.int32))
    return at, best, where, bad
