"""Matrix-vector products of units from the ring by the tensor cores ("diagonal GEMV"), and what each phase does with the sums.

A unit is A [64, KW]: segment row m holds segment m % SEG of matrix row m // SEG. The input x is staged in shared memory as B [SEG, KW]. Of
D = A B^T [64, SEG] only D[m, m % SEG] is wanted; the sum over the SEG segment rows of a matrix row is its product with x. With at most 16
segments a matrix row lies in one warp, so that its sum needs no shared memory. Units are mostly taken in pairs: one barrier for both.

Letters: SEG segments, R = 64 // SEG matrix rows per unit. ``at`` = (slot, phase) is a place in the ring, ``u`` the number of a unit in its phase.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, warpgroup_mma, warpgroup_mma_wait

from engine.kernel.gluon.exchange import push, put_everywhere
from engine.kernel.gluon.flags import barriers_off, barriers_on, cta_barrier, put

QKV = gl.constexpr(0)
DELTA = gl.constexpr(1)
GATE = gl.constexpr(2)


@gluon.jit
def share(unit, units: gl.constexpr, rank, CTAS: gl.constexpr, TOGETHER: gl.constexpr):
    """What CTA ``rank`` takes of a phase of ``units`` units that begins at unit ``unit`` of the stream: blocks of TOGETHER units, dealt out in
    turn so that the turns go on from phase to phase. Returns (first block in the phase, number of blocks)."""
    start = unit // TOGETHER
    a = (start - rank + CTAS - 1) // CTAS
    b = (start + units // TOGETHER - rank + CTAS - 1) // CTAS
    return a * CTAS + rank - start, b - a


@gluon.jit
def share_output(unit, rank, turn, G: gl.constexpr):
    """``share`` of a lane's output projection in a half layer; see ``Mode.apart``."""
    if G.apart:
        block = after_attending(rank, turn, G)
        return block, (block < G.units_o // 2).to(gl.int32)
    else:
        return share(unit, G.units_o, rank, G.ctas, 2)


@gluon.jit
def after_attending(rank, turn, G: gl.constexpr):
    """Number of a CTA of a group, counted from the first one after those that attend in this half, which come last."""
    number = rank - G.attending * (turn + 1)
    return gl.where(number < 0, number + G.ctas, number)


@gluon.constexpr_function
def staged_rows(segments):
    """Rows of an input tile as it is staged: one for each segment, or repeated ones up to 4."""
    return max(4, segments)


@gluon.constexpr_function
def staged_pack(segments):
    """Neighbouring columns of an input tile that a thread holds: so many that no two threads hold the same."""
    return min(8, staged_rows(segments) // 2)


@gluon.constexpr_function
def input_layout(segments):
    """Layout of the input tiles [staged_rows, 64]."""
    pack = staged_pack(segments)
    return gl.BlockedLayout([1, pack], [pack // 2, 64 // pack], [4, 1], [1, 0])


@gluon.jit
def eight_rows(x):
    """x [rows, 64], or its 4 rows twice."""
    if x.shape[0] > 4:
        return x
    else:
        L: gl.constexpr = gl.BlockedLayout([2, 1, 2], [1, 1, 32], [1, 4, 1], [2, 1, 0])
        twice = gl.zeros([2, 4, 64], gl.int16, layout=L)
        return gl.reshape(gl.broadcast(gl.convert_layout(x, gl.SliceLayout(0, L))[None, :, :], twice)[0], [8, 64])


@gluon.jit
def stage(xs, v, T: gl.constexpr, N: gl.constexpr):
    """Round the input tiles v [rows, 64] to 16 bits and put them where the matrix unit reads them. (Tiles are memory of their own: the
    compiler puts a barrier between two stores to the same.)"""
    for j in gl.static_range(N):
        xs[j].store(eight_rows(v[j].to(T)))
    fence_async_shared()
    cta_barrier()


@gluon.jit
def advance(C: gl.constexpr, at, n):
    """The ring place (slot, phase) n <= slots units later."""
    slot, phase = at
    wraps = (slot + n >= C.slots).to(gl.int32)
    return slot + n - wraps * C.slots, phase ^ wraps


@gluon.jit
def wait_unit(full, at):
    """Wait for the unit at the ring place: each thread by itself, since ``release`` has the barrier that the ring needs."""
    barriers_off()
    mbarrier.wait(full.index(at[0]), at[1])
    barriers_on()


@gluon.jit
def multiply(C: gl.constexpr, ring, xs, at, acc, more: gl.constexpr, part):
    """Start acc = A B^T (+ acc with ``more``) for the unit at the ring place ``at``; B's tile of box j is xs[j].index(part)."""
    for j in gl.static_range(gl.constexpr(C.boxes)):
        b = xs[j].index(part).permute((1, 0))
        acc = warpgroup_mma(ring.index(at[0] * C.boxes + j), b, acc, use_acc=more or j > 0, is_async=True)
    return acc


@gluon.jit
def hold_unit(C: gl.constexpr, ring, full, empty, at):
    """Take the unit at the ring place into registers and give its slot back: room for one more while its input is awaited. Returns A's tiles."""
    A: gl.constexpr = gl.DotOperandLayout(0, gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 8, 16]), 2)
    wait_unit(full, at)
    held = ()
    for j in gl.static_range(gl.constexpr(C.boxes)):
        held = held + (ring.index(at[0] * C.boxes + j).load(A),)
    mbarrier.arrive(empty.index(at[0]), count=1)
    return held


@gluon.jit
def multiply_held(C: gl.constexpr, held, xs, acc, part):
    """``multiply`` for a unit that ``hold_unit`` took."""
    for j in gl.static_range(gl.constexpr(C.boxes)):
        acc = warpgroup_mma(held[j], xs[j].index(part).permute((1, 0)), acc, use_acc=j > 0, is_async=True)
    return acc


@gluon.jit
def unknown_zero(at):
    """A zero that the compiler does not know, for the index of x's tiles: made where it is used from what is alike in all threads. (Descriptors of constant
    tiles are all computed at the start of the kernel and fill the registers, and ptxas of CUDA 12.8 was seen to use one before its value was there.)"""
    return at[0] >> 30


@gluon.jit
def release(empty, at, following):
    """Give the two slots back, once all threads have arrived here."""
    mbarrier.arrive(empty.index(at[0]), count=1)
    barriers_off()
    mbarrier.arrive(empty.index(following[0]), count=1)
    barriers_on()


@gluon.jit
def nothing(NX: gl.constexpr):
    return gl.zeros([64, NX], gl.float32, layout=gl.NVMMADistributedLayout([3, 0], [4, 1], [16, NX, 16]))


@gluon.jit
def wanted(acc, SEG: gl.constexpr, first=0):
    """The wanted values of acc [64, NX], added up as far as one thread holds them: what ``rows`` needs, in a few registers. Segment 0 stands in
    column ``first``."""
    LM: gl.constexpr = acc.type.layout
    m = gl.arange(0, 64, layout=gl.SliceLayout(1, LM))
    n = gl.arange(0, acc.shape[1], layout=gl.SliceLayout(0, LM))
    v = gl.where((m[:, None] & (SEG - 1)) + first == n[None, :], acc, 0.0)
    v = gl.reshape(v, [4, 2, 8, acc.shape[1] // 8, 4, 2])  # a thread holds rows 8 apart, column blocks 8 apart and neighbouring columns
    v = gl.sum(gl.sum(v, axis=5), axis=3)
    if SEG == 16:
        return gl.sum(v, axis=1)
    else:
        return v


@gluon.jit
def rows(v, SEG: gl.constexpr):
    """[R] products of the matrix rows from what ``wanted`` has left."""
    return gl.sum(gl.reshape(v, [64 // SEG, 32 if SEG == 16 else 4 * SEG]), axis=1)


@gluon.jit
def finish_rows(s, u, ok, ctx, LIMIT: gl.constexpr):
    """Hand the sums s [R] of unit u over. ctx: pointer to [LIMIT], distance to the place to clear."""
    out, ahead = ctx
    row = u * s.shape[0] + gl.arange(0, s.shape[0], layout=s.type.layout)
    put(out + row, ahead, s.to(out.dtype.element_ty), ok & (row < LIMIT))


@gluon.jit
def finish_delta(s, u, ok, ctx, C: gl.constexpr):
    """``finish_rows`` of a lane's output, or of this rank's part of the only lane's, for all ranks. Of the only lane of a rank (``Plan.chain``) both,
    the part where it is needed at once; ctx: (of the lane, of the part, whether at once)."""
    if C.ranks == 1:
        finish_rows(s, u, ok, ctx, C.hidden)
    elif C.chain:
        lane, part, at_once = ctx
        finish_lane(s, u, ok, lane, C)
        if at_once:
            finish_part(s, u, ok, part, C)
    elif C.all_lanes == 1:
        finish_part(s, u, ok, ctx, C)
    else:
        finish_lane(s, u, ok, ctx, C)


@gluon.jit
def finish_lane(s, u, ok, ctx, C: gl.constexpr):
    """Hand a lane's output over to all ranks."""
    out, ahead, away = ctx
    row = u * s.shape[0] + gl.arange(0, s.shape[0], layout=s.type.layout)
    ok = ok & (row < C.hidden)
    put(out + row, ahead, s.to(out.dtype.element_ty), ok)
    push(C, out + row, s.to(out.dtype.element_ty), ok, away)


@gluon.jit
def finish_part(s, u, ok, ctx, C: gl.constexpr):
    """Hand this rank's part of a sum that is needed at once over to all ranks."""
    out, ahead, away = ctx
    row = u * s.shape[0] + gl.arange(0, s.shape[0], layout=s.type.layout)
    put_everywhere(C, out + row, ahead, s, ok & (row < C.hidden), away, C.padded_hidden)


@gluon.jit
def with_bias(s, u, ok, bias, LIMIT: gl.constexpr):
    row = u * s.shape[0] + gl.arange(0, s.shape[0], layout=s.type.layout)
    return s + gl.load(bias + row, mask=ok & (row < LIMIT), other=0.0).to(gl.float32)


@gluon.jit
def finish(s0, s1, pair, ok, scale, ctx, C: gl.constexpr, KIND: gl.constexpr, Q: gl.constexpr):
    """Hand over the sums of a pair of units, times ``scale``: two blocks of rows, or the gates and the ups of one block (KIND GATE)."""
    s0 = s0 * scale
    s1 = s1 * scale
    if KIND == GATE:
        finish_rows(s0 * s1 / (1.0 + gl.exp(-s0)), pair, ok, ctx, Q.ffn)
    else:
        finish_unit(s0, 2 * pair, ok, ctx, C, KIND, Q)
        finish_unit(s1, 2 * pair + 1, ok, ctx, C, KIND, Q)


@gluon.jit
def finish_unit(s, u, ok, ctx, C: gl.constexpr, KIND: gl.constexpr, Q: gl.constexpr):
    """Hand over the sums of one unit of QKV, O or W2."""
    if KIND == DELTA:
        finish_delta(s, u, ok, ctx, C)
    else:
        LIMIT: gl.constexpr = (Q.heads + 2 * Q.kv_heads) * C.head_size
        if C.bias:
            s = with_bias(s, u, ok, ctx[2], LIMIT)
        finish_rows(s, u, ok, (ctx[0], ctx[1]), LIMIT)


@gluon.jit
def run_blocks(C: gl.constexpr, ring, full, empty, xs, at, first, n, scale, ctx, SEG: gl.constexpr, KIND: gl.constexpr,
               TOGETHER: gl.constexpr, UNITS: gl.constexpr, Q: gl.constexpr):  # fmt: skip
    """n blocks of TOGETHER (1, 2) units of a phase of UNITS units from the ring place ``at``; ``first`` is the number of the first block in its
    phase. Returns the ring place after them.
    """
    if TOGETHER == 1 and UNITS > Q.ctas:
        return run_three(C, ring, full, empty, xs, at, first, n, scale, ctx, SEG, KIND, Q)
    elif TOGETHER == 1:
        return run_unit(C, ring, full, empty, xs, at, first, n, scale, ctx, SEG, KIND, Q)
    elif UNITS <= 2 * Q.ctas:
        return run_pair(C, ring, full, empty, xs, at, first, n, scale, ctx, SEG, KIND, Q)
    else:
        return run_pairs(C, ring, full, empty, xs, at, first, n, scale, ctx, SEG, KIND, Q)


@gluon.jit
def run_pairs(C: gl.constexpr, ring, full, empty, xs, at, first, n, scale, ctx, SEG: gl.constexpr, KIND: gl.constexpr, Q: gl.constexpr):
    """n pairs of units; the sums of pair k - 1 are finished while pair k is multiplied."""
    v1 = wanted(nothing(SEG if SEG > 8 else 8), SEG)
    return more_pairs(C, ring, full, empty, xs, at, rows(v1, SEG), v1, 0, first, n, scale, ctx, SEG, KIND, Q)


@gluon.jit
def run_pairs_after(
    C: gl.constexpr, ring, full, empty, xs, at, held, first, n, scale, ctx, SEG: gl.constexpr, KIND: gl.constexpr, Q: gl.constexpr
):
    """``run_pairs`` of at least one pair, of which ``hold_unit`` has taken the first unit."""
    NX: gl.constexpr = SEG if SEG > 8 else 8
    following = advance(C, at, 1)
    a0 = multiply_held(C, held, xs, nothing(NX), unknown_zero(at))
    wait_unit(full, following)
    a1 = multiply(C, ring, xs, following, nothing(NX), False, unknown_zero(following))
    d0, d1 = warpgroup_mma_wait(0, deps=[a0, a1])
    mbarrier.arrive(empty.index(following[0]), count=1)
    at = advance(C, following, 1)
    return more_pairs(C, ring, full, empty, xs, at, rows(wanted(d0, SEG), SEG), wanted(d1, SEG), 1, first, n, scale, ctx, SEG, KIND, Q)


@gluon.jit
def more_pairs(C: gl.constexpr, ring, full, empty, xs, at, s0, v1, DONE: gl.constexpr, first, n, scale, ctx, SEG: gl.constexpr, KIND: gl.constexpr,
               Q: gl.constexpr):  # fmt: skip
    """The pairs from number DONE (0, 1) on. s0, v1: of the pair before them, its first unit's sums and what ``rows`` needs of its second."""
    NX: gl.constexpr = SEG if SEG > 8 else 8
    for k in range(DONE, n):
        following = advance(C, at, 1)
        here = unknown_zero(at)
        wait_unit(full, at)
        a0 = multiply(C, ring, xs, at, nothing(NX), False, here)
        finish(s0, rows(v1, SEG), first + (k - 1) * Q.ctas, k > 0, scale, ctx, C, KIND, Q)
        wait_unit(full, following)
        a1 = multiply(C, ring, xs, following, nothing(NX), False, unknown_zero(following))
        d0 = warpgroup_mma_wait(C.boxes, deps=[a0])
        s0 = rows(wanted(d0, SEG), SEG)
        d1 = warpgroup_mma_wait(0, deps=[a1])
        release(empty, at, following)
        v1 = wanted(d1, SEG)
        at = advance(C, following, 1)
    finish(s0, rows(v1, SEG), first + (n - 1) * Q.ctas, n > 0, scale, ctx, C, KIND, Q)
    return at


@gluon.jit
def run_pair(C: gl.constexpr, ring, full, empty, xs, at, pair, n, scale, ctx, SEG: gl.constexpr, KIND: gl.constexpr, Q: gl.constexpr):
    """``run_pairs`` of one pair, or of none with n = 0."""
    NX: gl.constexpr = SEG if SEG > 8 else 8
    if n > 0:
        following = advance(C, at, 1)
        wait_unit(full, at)
        wait_unit(full, following)
        d0 = multiply(C, ring, xs, at, nothing(NX), False, unknown_zero(at))
        d1 = multiply(C, ring, xs, following, nothing(NX), False, unknown_zero(following))
        d0, d1 = warpgroup_mma_wait(0, deps=[d0, d1])
        finish(rows(wanted(d0, SEG), SEG), rows(wanted(d1, SEG), SEG), pair, True, scale, ctx, C, KIND, Q)
        release(empty, at, following)
        at = advance(C, following, 1)
    return at


@gluon.jit
def run_unit(C: gl.constexpr, ring, full, empty, xs, at, u, n, scale, ctx, SEG: gl.constexpr, KIND: gl.constexpr, Q: gl.constexpr):
    """Unit u alone, or nothing with n = 0."""
    if n > 0:
        d = warpgroup_mma_wait(0, deps=[begin_unit(C, ring, full, xs, at, SEG)])
        finish_product(d, u, scale, ctx, C, SEG, KIND, Q)
        mbarrier.arrive(empty.index(at[0]), count=1)
        at = advance(C, at, 1)
    return at


@gluon.jit
def run_three(C: gl.constexpr, ring, full, empty, xs, at, first, n, scale, ctx, SEG: gl.constexpr, KIND: gl.constexpr, Q: gl.constexpr):
    """n single units, 2 or 3: all are multiplied, then all are finished."""
    second = advance(C, at, 1)
    if n > 2:  # (by arithmetic the ring place would not be known to be alike in all threads: twice the instructions for every address)
        third = advance(C, second, 1)
        a0 = begin_unit(C, ring, full, xs, at, SEG)
        a1 = begin_unit(C, ring, full, xs, second, SEG)
        a2 = begin_unit(C, ring, full, xs, third, SEG)
        d0, d1, d2 = warpgroup_mma_wait(0, deps=[a0, a1, a2])
        finish_product(d0, first, scale, ctx, C, SEG, KIND, Q)
        finish_product(d1, first + Q.ctas, scale, ctx, C, SEG, KIND, Q)
        finish_product(d2, first + 2 * Q.ctas, scale, ctx, C, SEG, KIND, Q)
        release(empty, at, second)
        barriers_off()
        mbarrier.arrive(empty.index(third[0]), count=1)
        barriers_on()
        at = advance(C, third, 1)
    else:
        a0 = begin_unit(C, ring, full, xs, at, SEG)
        a1 = begin_unit(C, ring, full, xs, second, SEG)
        d0, d1 = warpgroup_mma_wait(0, deps=[a0, a1])
        finish_product(d0, first, scale, ctx, C, SEG, KIND, Q)
        finish_product(d1, first + Q.ctas, scale, ctx, C, SEG, KIND, Q)
        release(empty, at, second)
        at = advance(C, second, 1)
    return at


@gluon.jit
def begin_unit(C: gl.constexpr, ring, full, xs, at, SEG: gl.constexpr):
    """Start the product of the unit at the ring place, once it is there."""
    wait_unit(full, at)
    return multiply(C, ring, xs, at, nothing(SEG if SEG > 8 else 8), False, unknown_zero(at))


@gluon.jit
def finish_product(d, u, scale, ctx, C: gl.constexpr, SEG: gl.constexpr, KIND: gl.constexpr, Q: gl.constexpr):
    """Hand over the sums of the product d of unit u, times ``scale``."""
    finish_unit(rows(wanted(d, SEG), SEG) * scale, u, True, ctx, C, KIND, Q)


@gluon.jit
def run_parts(C: gl.constexpr, ring, full, empty, xs, at, first, n, ctx, SEG: gl.constexpr, PARTS: gl.constexpr, Q: gl.constexpr):
    """O or W2 whose rows have PARTS (even) times SEG segments: n blocks of rows, PARTS units each; xs: for each box PARTS tiles [SEG, 64]."""
    v = wanted(nothing(SEG), SEG)
    s = rows(v, SEG)
    count = n * (PARTS // 2)
    for k in range(count):
        following = advance(C, at, 1)
        part = 2 * (k % (PARTS // 2))
        wait_unit(full, at)
        a = multiply(C, ring, xs, at, nothing(SEG), False, part)
        s = add_part(v, s, k - 1, k > 0, first, ctx, C, SEG, PARTS, Q)
        wait_unit(full, following)
        a = multiply(C, ring, xs, following, a, True, part + 1)
        d = warpgroup_mma_wait(0, deps=[a])
        release(empty, at, following)
        v = wanted(d, SEG)
        at = advance(C, following, 1)
    add_part(v, s, count - 1, count > 0, first, ctx, C, SEG, PARTS, Q)
    return at


@gluon.jit
def add_part(v, s, k, ok, first, ctx, C: gl.constexpr, SEG: gl.constexpr, PARTS: gl.constexpr, Q: gl.constexpr):
    """Add the sums of step k to those of its block (s); hand the block over with its last step."""
    STEPS: gl.constexpr = PARTS // 2
    step = (k + STEPS) % STEPS
    s = gl.where(step == 0, rows(v, SEG), s + rows(v, SEG))
    finish_delta(s, first + k // STEPS * Q.ctas, ok & (step == STEPS - 1), ctx, C)
    return s


@gluon.jit
def run_lane_units(
    C: gl.constexpr, ring, full, empty, xs, at, first, n, total, own, SEG: gl.constexpr, LANES: gl.constexpr, Q: gl.constexpr
):
    """O or W2 of all lanes: n blocks of rows, LANES (even) units each. ``own``: (pointer to [LANES, padded D], distance to clear) for each
    lane's sums; ``total``: the same for their sum [D], on several ranks with the distances to them. xs holds the segments of all lanes
    one after the other."""
    WIDE: gl.constexpr = SEG < 8  # a lane's segments are no tile of their own
    NX: gl.constexpr = max(8, LANES * SEG) if WIDE else SEG
    v0 = wanted(nothing(NX), SEG)
    v1 = wanted(nothing(NX), SEG)
    s = (rows(v0, SEG), rows(v0, SEG))
    count = n * (LANES // 2)
    for k in range(count):
        following = advance(C, at, 1)
        step = k % (LANES // 2)
        tile = unknown_zero(at) if WIDE else 2 * step
        column = 2 * step * SEG if WIDE else 0
        wait_unit(full, at)
        a0 = multiply(C, ring, xs, at, nothing(NX), False, tile)
        s = add_lanes(v0, v1, s, k - 1, k > 0, first, total, own, C, SEG, LANES, Q)
        wait_unit(full, following)
        a1 = multiply(C, ring, xs, following, nothing(NX), False, unknown_zero(following) if WIDE else tile + 1)
        d0, d1 = warpgroup_mma_wait(0, deps=[a0, a1])
        release(empty, at, following)
        v0 = wanted(d0, SEG, column)
        v1 = wanted(d1, SEG, column + SEG if WIDE else 0)
        at = advance(C, following, 1)
    add_lanes(v0, v1, s, count - 1, count > 0, first, total, own, C, SEG, LANES, Q)
    return at


@gluon.jit
def add_lanes(v0, v1, s, k, ok, first, total, own, C: gl.constexpr, SEG: gl.constexpr, LANES: gl.constexpr, Q: gl.constexpr):
    """Hand over the sums of two lanes (step k), add them to those of the block, and hand that over with its last step. s: (sum of this block's last lanes, of
    the first half of eight): eight lanes are added as two ranks with four each add them."""
    STEPS: gl.constexpr = LANES // 2
    step = (k + STEPS) % STEPS
    block = first + k // STEPS * Q.ctas
    out = own[0]
    s0 = rows(v0, SEG)
    s1 = rows(v1, SEG)
    latest, half = s
    if STEPS == 4:
        latest = gl.where(step % 2 == 0, s0 + s1, latest + (s0 + s1))
        half = gl.where(step == 1, latest, half)
        all_lanes = half + latest
    else:
        latest = gl.where(step == 0, s0 + s1, latest + (s0 + s1))
        all_lanes = latest
    if C.ranks > 1:
        finish_delta(s0, block, ok, (out + 2 * step * C.padded_hidden, own[1], own[2]), C)
        finish_delta(s1, block, ok, (out + (2 * step + 1) * C.padded_hidden, own[1], own[2]), C)
        finish_part(all_lanes, block, ok & (step == STEPS - 1), total, C)
    else:
        finish_rows(s0, block, ok, (out + 2 * step * C.padded_hidden, own[1]), C.hidden)
        finish_rows(s1, block, ok, (out + (2 * step + 1) * C.padded_hidden, own[1]), C.hidden)
        finish_rows(all_lanes, block, ok & (step == STEPS - 1), total, C.hidden)
    return latest, half


@gluon.jit
def better(s, u, ok, best, where, bad, logits, C: gl.constexpr):
    """Take the logits of unit u into the running best (value, id); store them."""
    row = u * C.rows + gl.arange(0, C.rows, layout=s.type.layout)
    inside = ok & (row < C.vocab)
    gl.store(logits + row, s, mask=inside)
    wins = inside & (s > best)
    bad = bad | (inside & ((s - s) != 0.0)).to(gl.int32)
    return gl.where(wins, s, best), gl.where(wins, row + C.first_vocab, where), bad


@gluon.jit
def run_head(C: gl.constexpr, ring, full, empty, xs, at, first, n, scale, logits):
    """Logits of this CTA's n pairs of vocabulary blocks: products times ``scale``. Returns the ring place, best value [R], its id [R], nonzero where a logit is NaN or
    infinite [R]."""
    SEG: gl.constexpr = C.segments_d
    NX: gl.constexpr = SEG if SEG > 8 else 8
    v0 = wanted(nothing(NX), SEG)
    v1 = wanted(nothing(NX), SEG)
    s = rows(v0, SEG)
    best = gl.full([C.rows], float("-inf"), gl.float32, layout=s.type.layout)
    where = gl.full([C.rows], C.all_vocab, gl.int32, layout=s.type.layout)
    bad = gl.full([C.rows], 0, gl.int32, layout=s.type.layout)
    for k in range(n):
        following = advance(C, at, 1)
        wait_unit(full, at)
        a0 = multiply(C, ring, xs, at, nothing(NX), False, unknown_zero(at))
        pair = first + (k - 1) * C.ctas
        best, where, bad = better(rows(v0, SEG) * scale, 2 * pair, k > 0, best, where, bad, logits, C)
        best, where, bad = better(rows(v1, SEG) * scale, 2 * pair + 1, k > 0, best, where, bad, logits, C)
        wait_unit(full, following)
        a1 = multiply(C, ring, xs, following, nothing(NX), False, unknown_zero(following))
        d0, d1 = warpgroup_mma_wait(0, deps=[a0, a1])
        release(empty, at, following)
        v0 = wanted(d0, SEG)
        v1 = wanted(d1, SEG)
        at = advance(C, following, 1)
    pair = first + (n - 1) * C.ctas
    best, where, bad = better(rows(v0, SEG) * scale, 2 * pair, n > 0, best, where, bad, logits, C)
    best, where, bad = better(rows(v1, SEG) * scale, 2 * pair + 1, n > 0, best, where, bad, logits, C)
    return at, best, where, bad
