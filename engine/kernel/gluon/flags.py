"""Hand-over of values between CTAs: arrival counters as hints, and values that are their own flags.

A 16-bit value of bits 0xffff (a 32-bit one of bits 0xffffffff, a 64-bit one of all ones) means "not written yet": conversions to float16 and
bfloat16 never make it. ``peek_*`` issues the loads of a value and does not wait; ``settle_*`` checks every word and loads again
until all are there. The counter only says when asking is worth while, so it needs no fence.

Every wait is bounded. ``guard`` is (address of the abort word, poll limit, info): at the limit the first waiter puts ``info`` into the abort
word, and every other wait, which looks at that word now and then, ends too. See ``info_word``.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language._core import _unwrap_if_constexpr, builtin

BACKOFF_NS = 200  # between two looks at a value, but the first two: more would delay, fewer would take cache bandwidth from the weights

cta_barrier = getattr(gl, "thread_barrier", None) or gl.barrier  # triton 3.6 / 3.7


@gluon.constexpr_function
def _loads(tiles, words, stride, address, always):
    vector = {1: "", 2: ".v2", 4: ".v4"}[words]
    lines = []
    for t in range(tiles):
        registers = ",".join(f"${t * words + w}" for w in range(words))
        target = f"{{{registers}}}" if words > 1 else registers
        predicate = "" if always else f"@u{t} "
        lines.append(f"{predicate}ld.relaxed.gpu.global{vector}.u32 {target}, [${address}+{t * stride}];")
    return "\n".join(lines)


@gluon.constexpr_function
def _predicates(tiles, use, always):
    if always:
        return ""
    names = ", ".join(f"u{t}" for t in range(tiles))
    return f".reg .pred {names}; " + " ".join(f"setp.gt.s32 u{t}, ${use}, {t};" for t in range(tiles))


@gluon.constexpr_function
def peek_asm(tiles, words, pack, stride, always):
    """Loads of ``tiles`` groups of ``words`` 32-bit words, ``stride`` bytes apart, at each address: all, or the first ``use`` of them; the others
    are 0.

    Inputs: address x pack, use x pack (``pack`` elements share one run of the code, with the address of the first).
    """
    n = tiles * words
    clear = "" if always else " ".join(f"mov.b32 ${k}, 0;" for k in range(n))
    return f"{{ {_predicates(tiles, n + pack, always)} {clear}\n{_loads(tiles, words, stride, n, always)} }}"


@gluon.constexpr_function
def peek_constraints(tiles, words, pack):
    return ",".join(["=&r"] * (tiles * words) + ["l"] * pack + ["r"] * pack)


@gluon.constexpr_function
def settle_asm(tiles, words, pack, stride, half_words, always):
    """Check the words of ``peek_asm`` and load again until none is unwritten.

    Inputs: the values (tied to the outputs), then address, use, abort address, limit, info, each x pack.
    """
    n = tiles * words
    address, use, abort, limit, info = (2 * n + k * pack for k in range(5))
    op = "max.u16x2" if half_words else "max.u32"
    check = "mov.b32 m, $0; " + " ".join(f"{op} m, m, ${k};" for k in range(1, n))
    if half_words:
        check += " shr.u32 k, m, 16; and.b32 m, m, 0xffff; max.u32 m, m, k; setp.ne.u32 q, m, 0xffff;"
    else:
        check += " setp.ne.u32 q, m, 0xffffffff;"
    return f"""{{ .reg .pred q; .reg .b32 m, k, n, t;
    mov.u32 n, 0;
    SPIN: {check}
    @q bra DONE;
    add.u32 n, n, 1; and.b32 t, n, 255; setp.ne.u32 q, t, 0; @q bra LOAD;
    ld.relaxed.gpu.global.u32 t, [${abort}]; setp.ne.u32 q, t, 0; @q bra DONE;
    setp.lt.u32 q, n, ${limit}; @q bra LOAD;
    atom.relaxed.gpu.global.cas.b32 t, [${abort}], 0, ${info}; bra DONE;
    LOAD: setp.gt.u32 q, n, 1; @q nanosleep.u32 {BACKOFF_NS};
    {{ {_predicates(tiles, use, always)}
    {_loads(tiles, words, stride, address, always)} }}
    bra SPIN;
    DONE: }}"""


@gluon.constexpr_function
def settle_constraints(tiles, words, pack):
    n = tiles * words
    return ",".join(["=&r"] * n + [str(k) for k in range(n)] + ["l"] * pack + ["r"] * pack + ["l"] * pack + ["r"] * (2 * pack))


@gluon.jit
def info_word(place: gl.constexpr, layer, pid):
    """3 (spin limit) << 28 | place << 24 | layer << 16 | CTA."""
    return (3 << 28) + (place << 24) + (layer << 16) + pid


@gluon.jit
def at_place(guard, place: gl.constexpr, layer, pid):
    """The guard with the place of the next wait."""
    return guard[0], guard[1], info_word(place, layer, pid)


@builtin
def run_asm(asm, constraints, args, dtype, count, pack, _semantic=None):
    """inline_asm_elementwise with ``count`` results of one type (the plain form takes their types as a literal tuple only)."""
    asm, constraints, dtype, count, pack = (_unwrap_if_constexpr(x) for x in (asm, constraints, dtype, count, pack))
    results = gl.inline_asm_elementwise(asm, constraints, list(args), dtype=(dtype,) * count, is_pure=False, pack=pack, _semantic=_semantic)
    return gl.tuple(results)


@gluon.jit
def peek(p, use, N: gl.constexpr, STRIDE: gl.constexpr, PACK: gl.constexpr, ALWAYS: gl.constexpr = False):
    """N tiles of 16-bit values (all with ALWAYS, else the first ``use``; others 0), STRIDE bytes apart. p: pointers, PACK (8, 4, 2) contiguous per thread."""
    asm: gl.constexpr = peek_asm(N, PACK // 2, PACK, STRIDE, ALWAYS)
    constraints: gl.constexpr = peek_constraints(N, PACK // 2, PACK)
    return run_asm(asm, constraints, (p.to(gl.int64), use), gl.int16, N, PACK)


@gluon.jit
def settle(v, p, use, guard, T: gl.constexpr, N: gl.constexpr, STRIDE: gl.constexpr, PACK: gl.constexpr, ALWAYS: gl.constexpr = False):
    """The values of ``peek`` as N tiles of type T, once all are there."""
    asm: gl.constexpr = settle_asm(N, PACK // 2, PACK, STRIDE, True, ALWAYS)
    constraints: gl.constexpr = settle_constraints(N, PACK // 2, PACK)
    args = (p.to(gl.int64), use, guard[0], guard[1], guard[2])
    w = run_asm(asm, constraints, v + args, gl.int16, N, PACK)
    t = ()
    for j in gl.static_range(N):
        t = t + (w[j].to(T, bitcast=True),)
    return t


@gluon.jit
def peek_tiles(p, use, N: gl.constexpr, PACK: gl.constexpr, ALWAYS: gl.constexpr = False):
    """N input tiles, 64 columns apart; p: pointers [rows, 64], PACK contiguous per thread. ``use`` nonzero or ALWAYS: all, else zeros."""
    return peek(p, use * N, N, 128, PACK, ALWAYS)


@gluon.jit
def settle_tiles(v, p, use, guard, T: gl.constexpr, N: gl.constexpr, PACK: gl.constexpr, ALWAYS: gl.constexpr = False):
    return settle(v, p, use * N, guard, T, N, 128, PACK, ALWAYS)


@gluon.jit
def peek32(p, use, N: gl.constexpr, STRIDE: gl.constexpr, PACK: gl.constexpr):
    """As ``peek`` for float32 values, PACK (4, 1) contiguous per thread."""
    asm: gl.constexpr = peek_asm(N, PACK, PACK, STRIDE, True)
    constraints: gl.constexpr = peek_constraints(N, PACK, PACK)
    return run_asm(asm, constraints, (p.to(gl.int64), use), gl.float32, N, PACK)


@gluon.jit
def settle32(v, p, use, guard, N: gl.constexpr, STRIDE: gl.constexpr, PACK: gl.constexpr):
    asm: gl.constexpr = settle_asm(N, PACK, PACK, STRIDE, False, True)
    constraints: gl.constexpr = settle_constraints(N, PACK, PACK)
    args = (p.to(gl.int64), use, guard[0], guard[1], guard[2])
    return run_asm(asm, constraints, v + args, gl.float32, N, PACK)


@gluon.jit
def peek_some(p, left, PACK: gl.constexpr):
    """One tile of float32 values, PACK (4, 2, 1) contiguous per thread; of each pack the first ``left`` (a tensor like p) are in use."""
    asm: gl.constexpr = peek_asm(PACK, 1, PACK, 4, False)
    constraints: gl.constexpr = peek_constraints(PACK, 1, PACK)
    return run_asm(asm, constraints, (p.to(gl.int64), left), gl.float32, 1, PACK)[0]


@gluon.jit
def settle_some(v, p, left, guard, PACK: gl.constexpr):
    asm: gl.constexpr = settle_asm(PACK, 1, PACK, 4, False, False)
    constraints: gl.constexpr = settle_constraints(PACK, 1, PACK)
    return run_asm(asm, constraints, (v, p.to(gl.int64), left, guard[0], guard[1], guard[2]), gl.float32, 1, PACK)[0]


@gluon.constexpr_function
def words_asm(tiles, stride):
    """Load ``tiles`` 64-bit words, ``stride`` bytes apart, together, and again until none of the first ``use`` is all ones; the others are 0.

    Inputs: address, use, abort address, limit, info.
    """
    address, use, abort, limit, info = range(tiles, tiles + 5)
    clear = " ".join(f"mov.b64 ${t}, 0;" for t in range(tiles))
    loads = "\n".join(f"@u{t} ld.relaxed.gpu.global.u64 ${t}, [${address}+{t * stride}];" for t in range(tiles))
    check = "setp.ne.s64 q, $0, -1; " + " ".join(f"setp.ne.and.s64 q, ${t}, -1, q;" for t in range(1, tiles))
    return f"""{{ .reg .pred q; .reg .b32 n, t; {_predicates(tiles, use, False)}
    {clear} mov.u32 n, 0;
    SPIN: {loads}
    {check} @q bra DONE;
    add.u32 n, n, 1; and.b32 t, n, 255; setp.ne.u32 q, t, 0; @q bra SPIN;
    ld.relaxed.gpu.global.u32 t, [${abort}]; setp.ne.u32 q, t, 0; @q bra DONE;
    setp.lt.u32 q, n, ${limit}; @q bra SPIN;
    atom.relaxed.gpu.global.cas.b32 t, [${abort}], 0, ${info};
    DONE: }}"""


@gluon.jit
def read_words(p, use, guard, N: gl.constexpr, STRIDE: gl.constexpr):
    """N tiles of 64-bit words, STRIDE bytes apart. Waits until the first ``use`` of them are written (not all ones); the others are 0."""
    asm: gl.constexpr = words_asm(N, STRIDE)
    constraints: gl.constexpr = words_constraints(N)
    return run_asm(asm, constraints, (p.to(gl.int64), use, guard[0], guard[1], guard[2]), gl.int64, N, 1)


@gluon.constexpr_function
def words_constraints(tiles):
    return ",".join(["=&l"] * tiles + ["l", "r", "l", "r", "r"])


@gluon.jit
def read_total(p, arrivals, use, guard):
    """p: pointers to 64-bit words that begin at all ones and to which each arrival adds 1 << 32 and a number. Waits until there were so many arrivals.
    Returns the sums of the numbers; 0 where not used."""
    return gl.inline_asm_elementwise(
        """{ .reg .pred q; .reg .b32 n, t; .reg .b64 m, w;
        mov.b64 w, 0; setp.eq.s32 q, $3, 0; @q bra DONE;
        mov.u32 n, 0;
        SPIN: ld.relaxed.gpu.global.u64 w, [$1];
        add.s64 w, w, 1; shr.s64 m, w, 32; cvt.u32.u64 t, m; setp.ge.s32 q, t, $2; @q bra DONE;
        add.u32 n, n, 1; and.b32 t, n, 255; setp.ne.u32 q, t, 0; @q bra SPIN;
        ld.relaxed.gpu.global.u32 t, [$4]; setp.ne.u32 q, t, 0; @q bra DONE;
        setp.lt.u32 q, n, $5; @q bra SPIN;
        atom.relaxed.gpu.global.cas.b32 t, [$4], 0, $6;
        DONE: cvt.u32.u64 $0, w; }""",
        "=r,l,r,r,l,r,r",
        [p.to(gl.int64), arrivals, use, guard[0], guard[1], guard[2]],
        dtype=gl.int32,
        is_pure=False,
        pack=1,
    )


@gluon.jit
def arrive(counter):
    """This CTA has done everything before here (one thread adds 1; call after a CTA barrier)."""
    gl.inline_asm_elementwise(
        """{ .reg .pred p; .reg .u32 t; mov.u32 t, %tid.x; and.b32 t, t, 127; setp.eq.u32 p, t, 0;
        @p red.relaxed.gpu.global.inc.u32 [$1], -2; mov.u32 $0, 0; }""",
        "=r,l",
        [counter],
        dtype=gl.int32,
        is_pure=False,
        pack=1,
    )


@gluon.constexpr_function
def count_asm(counters):
    """One thread of the CTA polls ``counters`` counters together until each has reached its target. Inputs: (address, target) of each, abort address, limit, info."""
    abort, limit, info = range(1 + 2 * counters, 4 + 2 * counters)
    loads = " ".join(f"ld.relaxed.gpu.global.u32 c{k}, [${1 + 2 * k}];" for k in range(counters))
    check = "setp.ge.u32 q, c0, $2; " + " ".join(f"setp.ge.and.u32 q, c{k}, ${2 + 2 * k}, q;" for k in range(1, counters))
    return f"""{{ .reg .pred q; .reg .b32 n, t, {", ".join(f"c{k}" for k in range(counters))};
    mov.u32 t, %tid.x; and.b32 t, t, 127; setp.ne.u32 q, t, 0; @q bra DONE;
    mov.u32 n, 0;
    SPIN: {loads} {check} @q bra DONE;
    add.u32 n, n, 1; and.b32 t, n, 255; setp.ne.u32 q, t, 0; @q bra SPIN;
    ld.relaxed.gpu.global.u32 t, [${abort}]; setp.ne.u32 q, t, 0; @q bra DONE;
    setp.lt.u32 q, n, ${limit}; @q bra SPIN;
    atom.relaxed.gpu.global.cas.b32 t, [${abort}], 0, ${info};
    DONE: mov.u32 $0, 0; }}"""


@gluon.jit
def wait_count(counter, target, guard):
    """One thread polls until the counter reaches ``target`` (unsigned: up to 2^32); the CTA barrier after it holds the others."""
    asm: gl.constexpr = count_asm(1)
    run_asm(asm, "=r,l,r,l,r,r", (counter, target, guard[0], guard[1], guard[2]), gl.int32, 1, 1)
    cta_barrier()


@gluon.jit
def wait_counts(counter, target, other, least, guard):
    """``wait_count`` until also the counter ``other`` has reached ``least``."""
    asm: gl.constexpr = count_asm(2)
    run_asm(asm, "=r,l,r,l,r,l,r,r", (counter, target, other, least, guard[0], guard[1], guard[2]), gl.int32, 1, 1)
    cta_barrier()


@gluon.jit
def barriers_off():
    """From here to ``barriers_on`` the barriers that the compiler puts before each use of an mbarrier are taken out (``ptx_edits.without_barriers``)."""
    gl.inline_asm_elementwise("// barriers off\nmov.u32 $0, 0;", "=r", [], dtype=gl.int32, is_pure=False, pack=1)


@gluon.jit
def barriers_on():
    gl.inline_asm_elementwise("// barriers on\nmov.u32 $0, 0;", "=r", [], dtype=gl.int32, is_pure=False, pack=1)


@gluon.jit
def widen(v):
    """v as float32. (Of two bfloat16 values the compiler makes three instructions, here two.)"""
    if v.dtype == gl.bfloat16:
        return gl.inline_asm_elementwise(
            "shl.b32 $0, $2, 16; and.b32 $1, $2, 0xffff0000;", "=r,=r,r", [v], dtype=gl.float32, is_pure=True, pack=2
        )
    else:
        return v.to(gl.float32)


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
