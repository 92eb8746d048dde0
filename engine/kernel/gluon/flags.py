"""Hand-over of values between CTAs: arrival counters as hints, and values that are their own flags.

A 16-bit value of bits 0xffff (a 32-bit one of bits 0xffffffff, a 64-bit one of all ones) means "not written yet": conversions to float16 and
bfloat16 never make it. ``peek_*`` issues the loads of a value and does not wait; ``settle_*`` checks every word and loads again
until all are there. The counter only says when asking is worth while, so it needs no fence.

Every wait is bounded. ``guard`` is (address of the abort word, poll limit, info): at the limit the first waiter puts ``info`` into the abort
word, and every other wait, which looks at that word now and then, ends too. See ``info_word``.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

cta_barrier = getattr(gl, "thread_barrier", None) or gl.barrier  # triton 3.6 / 3.7


def _loads(tiles: int, words: int, stride: int, first_input: int, predicate: str) -> str:
    vector = {1: "", 2: ".v2", 4: ".v4"}[words]
    lines = []
    for t in range(tiles):
        registers = ",".join(f"${t * words + w}" for w in range(words))
        target = f"{{{registers}}}" if words > 1 else registers
        lines.append(f"{predicate}ld.relaxed.gpu.global{vector}.u32 {target}, [${first_input}+{t * stride}];")
    return "\n".join(lines)


def _peek(tiles: int, words: int, pack: int, stride: int) -> tuple[str, str]:
    """(asm, constraints): inputs address x pack, use x pack. Unused values become 0."""
    n = tiles * words
    clear = " ".join(f"mov.b32 ${k}, 0;" for k in range(n))
    asm = f"{{ .reg .pred u; setp.ne.s32 u, ${n + pack}, 0; {clear}\n{_loads(tiles, words, stride, n, '@u ')} }}"
    return asm, ",".join(["=&r"] * n + ["l"] * pack + ["r"] * pack)


def _settle(tiles: int, words: int, pack: int, stride: int, half_words: bool) -> tuple[str, str]:
    """(asm, constraints): inputs the values (tied), then address, use, abort address, limit, info, each x pack."""
    n = tiles * words
    address, use, abort, limit, info = (2 * n + k * pack for k in range(5))
    op = "max.u16x2" if half_words else "max.u32"
    check = "mov.b32 m, $0; " + " ".join(f"{op} m, m, ${k};" for k in range(1, n))
    if half_words:
        check += " shr.u32 k, m, 16; and.b32 m, m, 0xffff; max.u32 m, m, k; setp.ne.u32 q, m, 0xffff;"
    else:
        check += " setp.ne.u32 q, m, 0xffffffff;"
    asm = f"""{{ .reg .pred q; .reg .b32 m, k, n, t;
    setp.eq.s32 q, ${use}, 0; @q bra DONE;
    mov.u32 n, 0;
    SPIN: {check}
    @q bra DONE;
    add.u32 n, n, 1; and.b32 t, n, 255; setp.ne.u32 q, t, 0; @q bra LOAD;
    ld.relaxed.gpu.global.u32 t, [${abort}]; setp.ne.u32 q, t, 0; @q bra DONE;
    setp.lt.u32 q, n, ${limit}; @q bra LOAD;
    atom.relaxed.gpu.global.cas.b32 t, [${abort}], 0, ${info}; bra DONE;
    LOAD: {_loads(tiles, words, stride, address, "")}
    bra SPIN;
    DONE: }}"""
    constraints = ["=&r"] * n + [str(k) for k in range(n)] + ["l"] * pack + ["r"] * pack + ["l"] * pack + ["r"] * (2 * pack)
    return asm, ",".join(constraints)


def _constants(tiles: int, words: int, pack: int, stride: int, half_words: bool) -> tuple:
    return tuple(gl.constexpr(x) for x in (*_peek(tiles, words, pack, stride), *_settle(tiles, words, pack, stride, half_words)))


# 8 contiguous 16-bit values of each of 3 or 4 tiles that lie 64 columns apart
P3, P3C, S3, S3C = _constants(3, 4, 8, 128, True)
P4, P4C, S4, S4C = _constants(4, 4, 8, 128, True)
# one tile: 8, 4, 2 contiguous 16-bit values; one float32; 4 contiguous float32
PH8, PH8C, SH8, SH8C = _constants(1, 4, 8, 0, True)
PH4, PH4C, SH4, SH4C = _constants(1, 2, 4, 0, True)
PH2, PH2C, SH2, SH2C = _constants(1, 1, 2, 0, True)
PF1, PF1C, SF1, SF1C = _constants(1, 1, 1, 0, False)
PF4, PF4C, SF4, SF4C = _constants(1, 4, 4, 0, False)


@gluon.jit
def info_word(place: gl.constexpr, layer, pid):
    """3 (spin limit) << 28 | place << 24 | layer << 16 | CTA."""
    return (3 << 28) + (place << 24) + (layer << 16) + pid


@gluon.jit
def at_place(guard, place: gl.constexpr, layer, pid):
    """The guard with the place of the next wait."""
    return guard[0], guard[1], info_word(place, layer, pid)


@gluon.jit
def peek_tiles(p, use, T: gl.constexpr, N: gl.constexpr):
    """p: pointers [rows, 64], 8 contiguous per thread. N tiles, 64 columns apart."""
    a = p.to(gl.int64)
    if N == 3:
        return gl.inline_asm_elementwise(P3, P3C, [a, use], dtype=(T, T, T), is_pure=False, pack=8)
    else:
        return gl.inline_asm_elementwise(P4, P4C, [a, use], dtype=(T, T, T, T), is_pure=False, pack=8)


@gluon.jit
def settle_tiles(v, p, use, guard, T: gl.constexpr, N: gl.constexpr):
    a = p.to(gl.int64)
    if N == 3:
        return gl.inline_asm_elementwise(
            S3, S3C, [v[0], v[1], v[2], a, use, guard[0], guard[1], guard[2]], dtype=(T, T, T), is_pure=False, pack=8
        )
    else:
        return gl.inline_asm_elementwise(
            S4, S4C, [v[0], v[1], v[2], v[3], a, use, guard[0], guard[1], guard[2]], dtype=(T, T, T, T), is_pure=False, pack=8
        )


@gluon.jit
def peek(p, use, T: gl.constexpr, PACK: gl.constexpr):
    """One tile of 16-bit values, PACK (8, 4, 2) contiguous per thread."""
    a = p.to(gl.int64)
    if PACK == 8:
        return gl.inline_asm_elementwise(PH8, PH8C, [a, use], dtype=T, is_pure=False, pack=8)
    elif PACK == 4:
        return gl.inline_asm_elementwise(PH4, PH4C, [a, use], dtype=T, is_pure=False, pack=4)
    else:
        return gl.inline_asm_elementwise(PH2, PH2C, [a, use], dtype=T, is_pure=False, pack=2)


@gluon.jit
def settle(v, p, use, guard, T: gl.constexpr, PACK: gl.constexpr):
    a = p.to(gl.int64)
    if PACK == 8:
        return gl.inline_asm_elementwise(SH8, SH8C, [v, a, use, guard[0], guard[1], guard[2]], dtype=T, is_pure=False, pack=8)
    elif PACK == 4:
        return gl.inline_asm_elementwise(SH4, SH4C, [v, a, use, guard[0], guard[1], guard[2]], dtype=T, is_pure=False, pack=4)
    else:
        return gl.inline_asm_elementwise(SH2, SH2C, [v, a, use, guard[0], guard[1], guard[2]], dtype=T, is_pure=False, pack=2)


@gluon.jit
def peek32(p, use, PACK: gl.constexpr):
    """Float32 values, PACK (4, 1) contiguous per thread."""
    a = p.to(gl.int64)
    if PACK == 4:
        return gl.inline_asm_elementwise(PF4, PF4C, [a, use], dtype=gl.float32, is_pure=False, pack=4)
    else:
        return gl.inline_asm_elementwise(PF1, PF1C, [a, use], dtype=gl.float32, is_pure=False, pack=1)


@gluon.jit
def settle32(v, p, use, guard, PACK: gl.constexpr):
    a = p.to(gl.int64)
    if PACK == 4:
        return gl.inline_asm_elementwise(SF4, SF4C, [v, a, use, guard[0], guard[1], guard[2]], dtype=gl.float32, is_pure=False, pack=4)
    else:
        return gl.inline_asm_elementwise(SF1, SF1C, [v, a, use, guard[0], guard[1], guard[2]], dtype=gl.float32, is_pure=False, pack=1)


@gluon.jit
def read_words(p, use, guard):
    """p: pointers to 64-bit words. Waits until each is written (not all ones); 0 where not used."""
    return gl.inline_asm_elementwise(
        """{ .reg .pred q; .reg .b32 n, t;
        mov.b64 $0, 0; setp.eq.s32 q, $2, 0; @q bra DONE;
        mov.u32 n, 0;
        SPIN: ld.relaxed.gpu.global.u64 $0, [$1];
        setp.ne.s64 q, $0, -1; @q bra DONE;
        add.u32 n, n, 1; and.b32 t, n, 255; setp.ne.u32 q, t, 0; @q bra SPIN;
        ld.relaxed.gpu.global.u32 t, [$3]; setp.ne.u32 q, t, 0; @q bra DONE;
        setp.lt.u32 q, n, $4; @q bra SPIN;
        atom.relaxed.gpu.global.cas.b32 t, [$3], 0, $5;
        DONE: }""",
        "=&l,l,r,l,r,r",
        [p.to(gl.int64), use, guard[0], guard[1], guard[2]],
        dtype=gl.int64,
        is_pure=False,
        pack=1,
    )


@gluon.jit
def arrive(counter):
    """This CTA has done everything before here (one thread adds 1; call after a CTA barrier)."""
    gl.inline_asm_elementwise(
        """{ .reg .pred p; .reg .u32 t; mov.u32 t, %tid.x; and.b32 t, t, 127; setp.eq.u32 p, t, 0;
        @p red.relaxed.gpu.global.add.u32 [$1], 1; mov.u32 $0, 0; }""",
        "=r,l",
        [counter],
        dtype=gl.int32,
        is_pure=False,
        pack=1,
    )


@gluon.jit
def wait_count(counter, target, guard):
    """One thread polls until the counter reaches ``target``; the CTA barrier after it holds the others."""
    gl.inline_asm_elementwise(
        """{ .reg .pred q; .reg .b32 n, t; mov.u32 t, %tid.x; and.b32 t, t, 127; setp.ne.u32 q, t, 0; @q bra DONE;
        mov.u32 n, 0;
        SPIN: ld.relaxed.gpu.global.u32 t, [$1]; setp.ge.s32 q, t, $2; @q bra DONE;
        add.u32 n, n, 1; and.b32 t, n, 255; setp.ne.u32 q, t, 0; @q bra SPIN;
        ld.relaxed.gpu.global.u32 t, [$3]; setp.ne.u32 q, t, 0; @q bra DONE;
        setp.lt.u32 q, n, $4; @q bra SPIN;
        atom.relaxed.gpu.global.cas.b32 t, [$3], 0, $5;
        DONE: mov.u32 $0, 0; }""",
        "=r,l,r,l,r,r",
        [counter, target, guard[0], guard[1], guard[2]],
        dtype=gl.int32,
        is_pure=False,
        pack=1,
    )
    cta_barrier()


@gluon.jit
def load_relaxed(p):
    """One int32 past the caches of this multiprocessor."""
    return gl.inline_asm_elementwise("ld.relaxed.gpu.global.u32 $0, [$1];", "=r,l", [p], dtype=gl.int32, is_pure=False, pack=1)


@gluon.jit
def fence():
    """Everything this thread wrote before is visible to the GPU before what it writes later."""
    gl.inline_asm_elementwise("fence.acq_rel.gpu; mov.u32 $0, 0;", "=r", [], dtype=gl.int32, is_pure=False, pack=1)


@gluon.jit
def fence_copy_engine():
    """Rows of the KV cache that ordinary stores wrote are visible to the copies issued after this."""
    gl.inline_asm_elementwise("fence.proxy.async; mov.u32 $0, 0;", "=r", [], dtype=gl.int32, is_pure=False, pack=1)


@gluon.jit
def unwritten(v):
    """A tensor like v whose words all mean "not written yet"."""
    if v.dtype.primitive_bitwidth == 16:
        return gl.full(v.shape, -1, gl.int16, layout=v.type.layout).to(v.dtype, bitcast=True)
    else:
        return gl.full(v.shape, -1, gl.int32, layout=v.type.layout).to(v.dtype, bitcast=True)


@gluon.jit
def put(p, ahead, v, ok):
    """Write v at the pointers p and clear the places ``ahead`` elements further, which a later layer will write."""
    gl.store(p + ahead, unwritten(v), mask=ok)
    gl.store(p, v, mask=ok)


@gluon.jit
def clock():
    return gl.inline_asm_elementwise("mov.u64 $0, %clock64;", "=l", [], dtype=gl.int64, is_pure=False, pack=1)
