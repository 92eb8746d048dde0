"""The choice of the next token, and what the kernel tells the host.

Each CTA publishes one 64-bit word: (order-preserving bits of its best value) << 32 | (0x7fffffff - id), so that the maximum of all words is the
best value and, among ties, the lowest id. Every CTA reads all words and so knows the token without a further exchange.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from engine.kernel.gluon.flags import cta_barrier, load_relaxed, read_words

LOWEST = gl.constexpr(-(1 << 63))
BAD = gl.constexpr(0x7FFFFFFE00000000)  # above every finite value: a CTA saw NaN or infinity
STOP = gl.constexpr(0x7FFFFFFF00000000)  # above that: the host asked to stop

# states of a generation; 1 to 4 are engine.kernel.control's FINISH_*
RUNNING = gl.constexpr(0)
FINISH_STOP = gl.constexpr(1)
FINISH_LENGTH = gl.constexpr(2)
FINISH_CANCELLED = gl.constexpr(3)
FINISH_ERROR = gl.constexpr(4)


@gluon.jit
def order_word(value, token):
    """64-bit words whose order is that of the float32 values, then of the lower id. -0 counts as +0."""
    bits = gl.where(value == 0.0, 0.0, value).to(gl.int32, bitcast=True)
    ordered = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    return (ordered.to(gl.int64) << 32) | (0x7FFFFFFF - token).to(gl.int64)


@gluon.jit
def read_stop(host, pid):
    """The host's stop word, read by CTA 0 only (0 elsewhere); the value arrives while the head is computed."""
    return gl.inline_asm_elementwise(
        "{ .reg .pred q; mov.b32 $0, 0; setp.eq.s32 q, $2, 0; @q ld.relaxed.sys.global.u32 $0, [$1]; }",
        "=&r,l,r",
        [host[2], pid],
        dtype=gl.int32,
        is_pure=False,
        pack=1,
    )


@gluon.jit
def publish(words, tok, pid, best, where, wrong, bad, stop, counters, C: gl.constexpr):
    """Write this CTA's word of the token, and clear that of a later token. ``bad``: layer of a state that was not finite, or -1."""
    top = gl.max(order_word(best, where), axis=0)
    if (gl.max(wrong, axis=0) != 0) | (bad >= 0):
        top = top * 0 + BAD
        report_bad_layer(counters, bad, pid)
    WORDS: gl.constexpr = C.ctas + 1
    now = words + (tok & 3) * WORDS
    later = words + ((tok + 2) & 3) * WORDS
    gl.store(later + pid, top * 0 - 1)
    gl.store(now + pid, top)
    if pid == 0:
        gl.store(later + C.ctas, top * 0 - 1)
        gl.store(now + C.ctas, gl.where(stop != 0, STOP, LOWEST))


@gluon.jit
def report_bad_layer(counters, bad, pid):
    """Keep 2 + the layer in which the state stopped being finite (1: only the logits), of whoever comes first."""
    gl.atomic_cas(counters + 32 * 31, 0, bad + 2)


@gluon.jit
def load_stop_ids(ints):
    """[64] end-of-sequence ids from the parameter block; unused places hold -1."""
    k = gl.arange(0, 64, layout=gl.BlockedLayout([1], [32], [4], [0]))
    return gl.where((k >= 8) & (k < 8 + gl.load(ints + 4)), gl.load(ints + k), -1)


@gluon.jit
def choose(words, tok, stop_ids, abort, max_tokens, guard, C: gl.constexpr):
    """(token id, state) of the step; the same in every CTA."""
    WORDS: gl.constexpr = C.ctas + 1
    L: gl.constexpr = gl.BlockedLayout([2], [32], [4], [0])
    idx = gl.arange(0, 256, layout=L)
    inside = idx < WORDS
    w = read_words(words + (tok & 3) * WORDS + gl.minimum(idx, WORDS - 1), inside.to(gl.int32), guard)
    top = gl.max(gl.where(inside, w, LOWEST), axis=0)
    token = 0x7FFFFFFF - (top & 0x7FFFFFFF).to(gl.int32)
    is_stop = gl.max((stop_ids == token).to(gl.int32), axis=0)
    state = gl.where(is_stop != 0, FINISH_STOP, gl.where(tok + 1 >= max_tokens, FINISH_LENGTH, RUNNING))
    state = gl.where(top >= STOP, FINISH_CANCELLED, gl.where(top >= BAD, FINISH_ERROR, state))
    state = gl.where((top < BAD) & ((token < 0) | (token >= C.vocab)), FINISH_ERROR, state)
    return token, gl.where(load_relaxed(abort) != 0, FINISH_ERROR, state)


@gluon.jit
def write_host(p, value, q, count, on):
    """One thread: *p = value, then *q = count with system-scope release."""
    gl.inline_asm_elementwise(
        """{ .reg .pred q; .reg .b32 t; mov.u32 t, %tid.x; and.b32 t, t, 127; setp.ne.u32 q, t, 0; @q bra DONE;
        setp.eq.s32 q, $5, 0; @q bra DONE;
        st.relaxed.sys.global.u32 [$1], $2; st.release.sys.global.u32 [$3], $4;
        DONE: mov.u32 $0, 0; }""",
        "=r,l,r,l,r,r",
        [p, value, q, count, on],
        dtype=gl.int32,
        is_pure=False,
        pack=1,
    )


@gluon.jit
def report_token(host, pid, tok, token, state):
    """CTA 0 puts the token into the ring and releases the count."""
    kept = (pid == 0) & (state < FINISH_CANCELLED)
    write_host(host[0] + tok, token, host[1], tok + 1, kept.to(gl.int32))


@gluon.jit
def finish_launch(host, pid, state, abort, counters, position):
    """CTA 0 writes the error record, if any, then the reason and the end."""
    if pid == 0:
        error = host[3]
        if state == FINISH_ERROR:
            info = load_relaxed(abort)
            layer = load_relaxed(counters + 32 * 31) - 2
            spin = info != 0
            gl.store(error + 1, gl.where(spin, (info >> 24) & 15, gl.where(layer < 0, 7, 1)))
            gl.store(error + 2, gl.where(spin, (info >> 16) & 255, gl.maximum(layer, 0)))
            gl.store(error + 3, position)
            gl.store(error + 4, 0 * position)
            gl.store(error + 5, gl.where(spin, info & 0xFFFF, 0))
            cta_barrier()
            code = gl.where(spin, 3, gl.where(layer < 0, 2, 1))
            write_host(error, code, error, code, 1)
        write_host(host[1] + 1, state, host[1] + 2, 1, 1)
