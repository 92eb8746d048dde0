"""The choice of the next token, and what the kernel tells the host.

Each CTA publishes, to all ranks, one 64-bit word: (order-preserving bits of its best value) << 32 | (0x7fffffff - id), so that the maximum of all words is the
best value and, among ties, the lowest id. Every CTA reads all words and so knows the token without a further exchange.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from engine.kernel.gluon.exchange import push, tell_abort
from engine.kernel.gluon.flags import arrive, cta_barrier, load_relaxed, read_words, wait_count

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
def publish(words, tok, pid, best, where, wrong, bad, stop, counters, away, C: gl.constexpr):
    """Write this CTA's word of the token, and clear that of a later token. ``bad``: layer of a state that was not finite, or -1."""
    top = gl.max(order_word(best, where), axis=0)
    if (gl.max(wrong, axis=0) != 0) | (bad >= 0):
        top = top * 0 + BAD
        report_bad_layer(counters, bad, pid)
    CTAS: gl.constexpr = C.ctas * C.ranks
    now = words + (tok & 3) * (CTAS + 1)
    later = words + ((tok + 2) & 3) * (CTAS + 1)
    put_word(C, now, later, pid, top, away)
    if pid == 0:
        gl.store(later + CTAS, top * 0 - 1)
        if C.rank == 0:
            asked = gl.where(stop != 0, STOP, LOWEST)
            gl.store(now + CTAS, asked)
            push(C, now + CTAS, asked, None, away)


@gluon.jit
def put_word(C: gl.constexpr, now, later, pid, word, away):
    """This CTA's word, for all ranks: [ranks, CTAs] words at ``now``. Clears those that this CTA and its like on other ranks will write at ``later``."""
    for r in gl.static_range(gl.constexpr(C.ranks)):
        gl.store(later + (r * C.ctas + pid), word * 0 - 1)
    p = now + (C.rank * C.ctas + pid)
    gl.store(p, word)
    push(C, p, word, None, away)


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
def best_word(words, slot, width: gl.constexpr, count: gl.constexpr, guard):
    """Maximum of ``count`` words once all are there."""
    EACH: gl.constexpr = power_of_two((count + 127) // 128)
    L: gl.constexpr = gl.BlockedLayout([EACH], [32], [4], [0])
    idx = gl.arange(0, 128 * EACH, layout=L)
    inside = idx < count
    w = read_words(words + slot * width + gl.minimum(idx, count - 1), inside.to(gl.int32), guard)
    return gl.max(gl.where(inside, w, LOWEST), axis=0)


@gluon.constexpr_function
def power_of_two(n):
    return 1 << (n - 1).bit_length()


@gluon.jit
def read_best(words, tok, guard, C: gl.constexpr):
    """The best word of the step; the same in every CTA."""
    WORDS: gl.constexpr = C.ctas * C.ranks + 1
    return best_word(words, tok & 3, WORDS, WORDS, guard)


@gluon.jit
def token_of(word):
    return 0x7FFFFFFF - (word & 0x7FFFFFFF).to(gl.int32)


@gluon.jit
def state_of(top, token, tok, stop_ids, abort, max_tokens, C: gl.constexpr):
    """State of the generation after this token."""
    is_stop = gl.max((stop_ids == token).to(gl.int32), axis=0)
    state = gl.where(is_stop != 0, FINISH_STOP, gl.where(tok + 1 >= max_tokens, FINISH_LENGTH, RUNNING))
    state = gl.where(top >= STOP, FINISH_CANCELLED, gl.where(top >= BAD, FINISH_ERROR, state))
    state = gl.where((top < BAD) & ((token < 0) | (token >= C.all_vocab)), FINISH_ERROR, state)
    return gl.where(aborted(abort, C) != 0, FINISH_ERROR, state)


@gluon.jit
def aborted(abort, C: gl.constexpr):
    """The abort word. With several ranks it may be written at any time: all threads must take the same one, or they would part ways."""
    if C.ranks == 1:
        return load_relaxed(abort)
    else:
        return gl.max(load_relaxed(abort + 0 * gl.arange(0, 128, layout=gl.BlockedLayout([1], [32], [4], [0]))), axis=0)


# --- drawing: see engine/sampling.py for the definition -------------------------------------------------------------------------


@gluon.jit
def ordered_key(x):
    """int64 whose order is that of the float32 values."""
    return order_word(x, 0x7FFFFFFF + 0 * x.to(gl.int32)) >> 32


@gluon.jit
def philox(ids, position, low, high):
    """First word of Philox4x32-10 with counter (id, position, 0, 0) and key (low, high), as int64 in [0, 2**32)."""
    M: gl.constexpr = 0xFFFFFFFF
    c0 = ids.to(gl.int64)
    c1 = c0 * 0 + position
    c2 = c0 * 0
    c3 = c0 * 0
    k0 = low.to(gl.int64) & M
    k1 = high.to(gl.int64) & M
    for _ in gl.static_range(10):
        a = c0 * 0xD2511F53
        b = c2 * 0xCD9E8D57
        c0 = ((b >> 32) & M) ^ c1 ^ k0
        c1 = b & M
        c2 = ((a >> 32) & M) ^ c3 ^ k1
        c3 = a & M
        k0 = (k0 + 0x9E3779B9) & M
        k1 = (k1 + 0xBB67AE85) & M
    return c0


@gluon.jit
def gumbel(ids, position, low, high):
    u = (philox(ids, position, low, high).to(gl.float32) + 0.5) * 2.3283064365386963e-10
    u = gl.minimum(u, 0.999999940395355224609375)
    series = u * (1.0 + u * (0.5 + u * (0.3333333333333333 + u * (0.25 + u * 0.2))))
    return -gl.log(gl.where(u < 0.03125, series, -gl.log(1.0 - u)))


@gluon.jit
def exchange(C: gl.constexpr, count, mass, sums, counters, step, rounds, pid, away, guard):
    """Sum of count and mass [16] over all CTAs; the same in every CTA. One step of all CTAs. Returns count, mass, step, rounds."""
    CTAS: gl.constexpr = C.ctas * C.ranks
    slot = (rounds & 3) * (CTAS * 16)
    later = ((rounds + 2) & 3) * (CTAS * 16)
    word = (count.to(gl.int64) << 32) | (mass.to(gl.int32, bitcast=True).to(gl.int64) & 0xFFFFFFFF)
    j = gl.arange(0, 16, layout=count.type.layout)
    for r in gl.static_range(gl.constexpr(C.ranks)):
        gl.store(sums + later + (r * C.ctas + pid) * 16 + j, word * 0 - 1)
    mine = sums + slot + (C.rank * C.ctas + pid) * 16 + j
    gl.store(mine, word)
    push(C, mine, word, None, away)
    cta_barrier()
    arrive(counters)
    step += 1
    wait_count(counters, step * C.ctas, guard)
    L: gl.constexpr = gl.BlockedLayout([1, 1], [2, 16], [4, 1], [1, 0])
    row = gl.arange(0, 32, layout=gl.SliceLayout(1, L))
    col = gl.arange(0, 16, layout=gl.SliceLayout(0, L))
    counts = gl.zeros([32, 16], gl.int32, layout=L)
    masses = gl.zeros([32, 16], gl.float32, layout=L)
    for b in range((CTAS + 31) // 32):
        cta = b * 32 + row
        inside = (cta < CTAS)[:, None]
        p = sums + slot + gl.minimum(cta, CTAS - 1)[:, None] * 16 + col[None, :]
        w = read_words(p, inside.to(gl.int32) + 0 * col[None, :], guard)
        counts += gl.where(inside, (w >> 32).to(gl.int32), 0)
        masses += gl.where(inside, (w & 0xFFFFFFFF).to(gl.int32).to(gl.float32, bitcast=True), 0.0)
    total = gl.convert_layout(gl.sum(counts, axis=0), count.type.layout)
    return total, gl.convert_layout(gl.sum(masses, axis=0), count.type.layout), step, rounds + 1


@gluon.jit
def search(C: gl.constexpr, keys, mass, low, high, k, share, sums, counters, step, rounds, pid, away, guard, BY_MASS: gl.constexpr):
    """The highest key x in [low, high) for which the keys >= x number at least k, or (BY_MASS) hold ``share`` of the mass of those >= low.

    Sixteen candidates a round, so at most eight rounds for 32-bit keys. keys [n] int64, mass [n] float32 of this CTA.
    """
    L: gl.constexpr = gl.BlockedLayout([16, 1], [1, 32], [1, 4], [1, 0])
    mine = gl.convert_layout(keys, gl.SliceLayout(0, L))[None, :]
    weight = gl.convert_layout(mass, gl.SliceLayout(0, L))[None, :]
    j = gl.arange(0, 16, layout=gl.SliceLayout(1, L))
    target = share * 0.0 - 1.0
    while high - low > 1:
        width = (high - low + 15) // 16
        above = mine >= (low + j.to(gl.int64) * width)[:, None]
        count = gl.sum(above.to(gl.int32), axis=1)
        held = gl.sum(gl.where(above, weight, 0.0), axis=1)
        count, held, step, rounds = exchange(C, count, held, sums, counters, step, rounds, pid, away, guard)
        if BY_MASS:
            first = gl.max(gl.where(j == 0, held, 0.0), axis=0)
            target = gl.where(target < 0.0, share * first, target)
            enough = held >= target
        else:
            enough = count >= k
        last = gl.max(gl.where(enough | (j == 0), j, 0), axis=0)
        low = low + last.to(gl.int64) * width
        high = gl.minimum(high, low + width)
    return low, step, rounds


@gluon.jit
def draw(C: gl.constexpr, logits, first, pairs, top, ints, floats, sums, picks, counters, step, rounds, tok, position, pid, away, guard):
    """Temperature, top-k, top-p, min-p and the Gumbel maximum over all CTAs. Returns token, step, rounds.

    ``top``: the best word of the greedy choice; first, pairs: this CTA's share of the head, whose logits it wrote itself.
    """
    L: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    e = gl.arange(0, C.head_values, layout=L)
    row = ((first + e // (2 * C.rows) * C.ctas) * 2 * C.rows) + e % (2 * C.rows)
    token = row + C.first_vocab
    inside = (e // (2 * C.rows) < pairs) & (row < C.vocab)
    temperature = gl.load(floats)
    scaled = gl.load(logits + row, mask=inside, other=float("-inf"), cache_modifier=".cg") / temperature
    best_bits = (top >> 32).to(gl.int32)
    best = (best_bits ^ ((best_bits >> 31) & 0x7FFFFFFF)).to(gl.float32, bitcast=True) / temperature
    picked = token_of(top)
    if best - best == 0.0:  # a temperature so small that the quotient overflows is greedy
        keys = ordered_key(scaled)
        mass = gl.where(inside, gl.exp(scaled - best), 0.0)
        low = top * 0 - 0x7F800001  # below every finite value
        high = (top * 0) + gl.max(ordered_key(gl.full([128], 0.0, gl.float32, layout=L) + best), axis=0) + 1
        top_k = gl.load(ints + 1)
        top_p = gl.load(floats + 1)
        if (top_k > 0) & (top_k < C.all_vocab):
            low, step, rounds = search(C, keys, mass, low, high, top_k, top_p, sums, counters, step, rounds, pid, away, guard, False)
        if top_p < 1.0:
            low, step, rounds = search(C, keys, mass, low, high, top_k, top_p, sums, counters, step, rounds, pid, away, guard, True)
        kept = inside & (keys >= low) & (scaled >= best + gl.load(floats + 2)) & (scaled >= best - 26.0)
        noisy = gl.where(kept, scaled + gumbel(token, position, gl.load(ints + 2), gl.load(ints + 3)), float("-inf"))
        word = gl.max(gl.where(kept, order_word(noisy, token), LOWEST), axis=0)
        CTAS: gl.constexpr = C.ctas * C.ranks
        put_word(C, picks + (tok & 3) * CTAS, picks + ((tok + 2) & 3) * CTAS, pid, word, away)
        cta_barrier()
        arrive(counters)
        step += 1
        wait_count(counters, step * C.ctas, guard)
        picked = token_of(best_word(picks, tok & 3, CTAS, CTAS, guard))
    return picked, step, rounds


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
def finish_launch(C: gl.constexpr, host, pid, state, abort, counters, position, away):
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
            gl.store(error + 4, 0 * position + C.rank)
            gl.store(error + 5, gl.where(spin, info & 0xFFFF, 0))
            cta_barrier()
            code = gl.where(spin, 3, gl.where(layer < 0, 2, 1))
            if C.ranks > 1:
                code = gl.where(spin, info >> 28, code)
                if spin:
                    tell_abort(C, abort, info, away)
            write_host(error, code, error, code, 1)
        write_host(host[1] + 1, state, host[1] + 2, 1, 1)
