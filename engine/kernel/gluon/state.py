"""The hidden state, as float32 tiles [rows, 64] in registers, and how the input of a phase is staged from it.

``Plan.boxes`` tiles make a segment of KW columns; ``xo`` is where the values of the first one stand (``input_offsets``), tile j lies 64 j further.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from engine.kernel.gluon.flags import peek_tiles, settle_tiles, widen
from engine.kernel.gluon.gemv import input_layout, stage, staged_pack, staged_rows


@gluon.jit
def input_offsets(C: gl.constexpr, SEG: gl.constexpr):
    """Where the values of an input's first tile [rows, 64] stand in the input [SEG * KW]."""
    LX: gl.constexpr = input_layout(SEG)
    r = gl.arange(0, staged_rows(SEG), layout=gl.SliceLayout(1, LX)) & (SEG - 1)
    return r[:, None] * C.kw + gl.arange(0, 64, layout=gl.SliceLayout(0, LX))[None, :]


@gluon.jit
def input_tiles(C: gl.constexpr, xs, SEG: gl.constexpr, LANES: gl.constexpr, T: gl.constexpr):
    """For each box (where an input of LANES times SEG segments is staged, the same cut into the tiles that one unit takes)."""
    ROWS: gl.constexpr = LANES * SEG if LANES * SEG > 8 else 8
    PARTS: gl.constexpr = (LANES if SEG >= 8 else 1) if LANES > 1 else max(1, SEG // 16)
    staged = ()
    tiles = ()
    for j in gl.static_range(gl.constexpr(C.boxes)):
        staged = staged + (xs[j]._reinterpret(T, [ROWS, 64], xs[j].layout),)
        tiles = tiles + (xs[j]._reinterpret(T, [PARTS, ROWS // PARTS, 64], xs[j].layout),)
    return staged, tiles


@gluon.jit
def load_tiles(p, N: gl.constexpr):
    """N tiles of read-only values at p, 64 columns apart."""
    v = ()
    for j in gl.static_range(N):
        v = v + (gl.load(p + 64 * j, cache_modifier=".cg"),)
    return v


@gluon.jit
def embed(C: gl.constexpr, table, token, xo):
    """Row ``token`` of the embedding as float32 tiles."""
    h = ()
    p = table + token.to(gl.int64) * C.hidden
    for j in gl.static_range(gl.constexpr(C.boxes)):
        h = h + (gl.load(p + xo + 64 * j, mask=xo + 64 * j < C.hidden, other=0.0).to(gl.float32),)
    return h


@gluon.jit
def scaled_sum(h, v, e, scale, C: gl.constexpr):
    """h + scale * v + e."""
    r = ()
    for j in gl.static_range(gl.constexpr(C.boxes)):
        r = r + (gl.fma(v[j].to(gl.float32), scale, h[j]) + e[j].to(gl.float32),)
    return r


@gluon.jit
def plain_sum(h, v, C: gl.constexpr):
    r = ()
    for j in gl.static_range(gl.constexpr(C.boxes)):
        r = r + (h[j] + widen(v[j]),)
    return r


@gluon.jit
def products(h, w, C: gl.constexpr):
    """h * w."""
    x = ()
    for j in gl.static_range(gl.constexpr(C.boxes)):
        x = x + (h[j] * w[j].to(gl.float32),)
    return x


@gluon.jit
def squares_of(h, C: gl.constexpr):
    """Squares of the tiles, added up; rows that repeat others count less."""
    t = h[0] * h[0]
    for j in gl.static_range(1, gl.constexpr(C.boxes)):
        t = gl.fma(h[j], h[j], t)
    return t * (C.segments_d / t.shape[0])


@gluon.jit
def inverse_rms(h, C: gl.constexpr):
    """(1 / rms, sum of squares) of the tiles."""
    squares = gl.sum(gl.sum(squares_of(h, C), axis=1), axis=0)
    return 1.0 / gl.sqrt(gl.fma(squares, 1.0 / C.hidden, C.eps)), squares


@gluon.jit
def weighted(h, r, w, C: gl.constexpr):
    """h * r * w."""
    x = ()
    for j in gl.static_range(gl.constexpr(C.boxes)):
        x = x + (h[j] * r * w[j].to(gl.float32),)
    return x


@gluon.jit
def stage_normed(C: gl.constexpr, xs, warps, h, w, bad, layer, T: gl.constexpr):
    """Stage norm(h) * w, or in bfloat16, which holds all of float32's range, h * w. Returns what the products must be multiplied by, and the
    first layer whose state was not finite (or ``bad``). ``warps``: shared memory [4], for the sums of squares."""
    if T == gl.bfloat16:
        t = squares_of(h, C)
        warps.store(gl.sum(gl.reshape(t, [4, t.shape[0] * 16]), axis=1))
        stage(xs, products(h, w, C), T, C.boxes)
        squares = gl.sum(warps.load(gl.BlockedLayout([4], [32], [4], [0])), axis=0)
        scale = gl.rsqrt(gl.fma(squares, 1.0 / C.hidden, C.eps))
    else:
        r, squares = inverse_rms(h, C)
        stage(xs, weighted(h, r, w, C), T, C.boxes)
        scale = 1.0
    return scale, gl.where((bad < 0) & ((squares - squares) != 0.0), layer, bad)


@gluon.jit
def stage_hidden(C: gl.constexpr, xf, u, use, guard, T: gl.constexpr, SEG: gl.constexpr, ALWAYS: gl.constexpr):
    """Stage the FFN activations u [SEG * KW] (zeros with ``use`` 0, unless ALWAYS)."""
    PACK: gl.constexpr = staged_pack(SEG)
    p = u + input_offsets(C, SEG)
    stage(xf, settle_tiles(peek_tiles(p, use, C.boxes, PACK, ALWAYS), p, use, guard, T, C.boxes, PACK, ALWAYS), T, C.boxes)
