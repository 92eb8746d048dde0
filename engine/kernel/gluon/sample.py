"""The choice of the next token, and what the kernel tells the host.

Each CTA publishes, to all ranks, one 64-bit word: (order-preserving bits of its best value) << 32 | (0x7fffffff - id), so that the maximum of all words is the
best value and, among ties, the lowest id. Every CTA reads all words and so knows the token without a further exchange.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from engine.kernel.gluon.exchange import push, tell_abort, there
from engine.kernel.gluon.flags import arrive, cta_barrier, load_relaxed, read_total, read_words, wait_count

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
def ordered_key(x):
    """int32 whose order is that of the float32 values. -0 counts as +0."""
    bits = gl.where(x == 0.0, 0.0, x).to(gl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@gluon.jit
def value_of(key):
    """The float32 value of an ordered key."""
    return (key ^ ((key >> 31) & 0x7FFFFFFF)).to(gl.float32, bitcast=True)


@gluon.jit
def order_word(value, token):
    """64-bit words whose order is that of the float32 values, then of the lower id."""
    return (ordered_key(value).to(gl.int64) << 32) | (0x7FFFFFFF - token).to(gl.int64)


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
    tell(C, now, pid, word, away)


@gluon.jit
def tell(C: gl.constexpr, now, pid, word, away):
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
def read_row(words, count: gl.constexpr, guard):
    """``count`` words once all are there: a tuple of [128], the n-th word in place n % 128; 0 beyond the end."""
    EACH: gl.constexpr = (count + 127) // 128
    t = gl.arange(0, 128, layout=gl.BlockedLayout([1], [32], [4], [0]))
    return read_words(words + t, (count - t + 127) // 128, guard, EACH, 128 * 8)


@gluon.jit
def best_words(words, count: gl.constexpr, guard):
    """[128]: each the best of every 128th word; LOWEST where there is none."""
    w = read_row(words, count, guard)
    t = gl.arange(0, 128, layout=gl.BlockedLayout([1], [32], [4], [0]))
    best = gl.where(t < count, w[0], LOWEST)
    for j in gl.static_range(1, gl.constexpr((count + 127) // 128)):
        best = gl.maximum(best, gl.where(t + 128 * j < count, w[j], LOWEST))
    return best


@gluon.jit
def read_best(words, tok, guard, C: gl.constexpr):
    """The best word of the step, the same in every CTA, and [128] best words of groups of CTAs."""
    WORDS: gl.constexpr = C.ctas * C.ranks + 1
    bests = best_words(words + (tok & 3) * WORDS, WORDS, guard)
    return gl.max(bests, axis=0), bests


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
def mass_of(scaled, best):
    """Probability over that of the best value, in units of 2**-40: sums of integers are the same in any order and on any number of CTAs."""
    return (gl.exp(scaled - best) * 1099511627776.0).to(gl.int64)


@gluon.jit
def share_of(whole, top_p):
    """The mass that top-p asks for, at least one unit."""
    return gl.maximum((whole.to(gl.float32) * top_p).to(gl.int64), 1)


@gluon.jit
def own_logits(C: gl.constexpr, logits, first, pairs, base):
    """(values, token ids, whether there is one) of this CTA's share of the head, which it wrote itself; -inf where there is none.

    base: 0 that the compiler does not know, so that it keeps no indices through the layers."""
    e = base + gl.arange(0, C.head_values, layout=gl.BlockedLayout([1], [32], [4], [0]))
    row = ((first + e // (2 * C.rows) * C.ctas) * 2 * C.rows) + e % (2 * C.rows)
    inside = (e // (2 * C.rows) < pairs) & (row < C.vocab)
    return gl.load(logits + row, mask=inside, other=float("-inf"), cache_modifier=".cg"), row + C.first_vocab, inside


# a list: every CTA publishes its few best candidates, and all choose among all of them


@gluon.jit
def clear_picks(C: gl.constexpr, later, pid):
    """Mark the words of a later token as not written. All that this CTA tells others before they can write them comes after the fence of its next token."""
    place = pid * 128 + gl.arange(0, 128, layout=gl.BlockedLayout([1], [32], [4], [0]))
    for n in gl.static_range(gl.constexpr((C.picks + C.ctas * 128 - 1) // (C.ctas * 128))):
        at = place + n * (C.ctas * 128)
        gl.store(later + at, at.to(gl.int64) * 0 - 1, mask=at < C.picks)


@gluon.jit
def rows_of(scratch, T: gl.constexpr, WIDTH: gl.constexpr):
    """2 KB of shared memory as rows."""
    return scratch._reinterpret(T, [16384 // T.primitive_bitwidth // WIDTH, WIDTH], gl.SwizzledSharedLayout(1, 1, 1, [0]))


@gluon.jit
def count_better(scratch, keys, n):
    """How many of the first n keys [128] are higher than each. Sixteen a turn, which every thread compares with its own."""
    L: gl.constexpr = gl.BlockedLayout([1, 16], [32, 1], [4, 1], [1, 0])
    rows_of(scratch, gl.int32, 128).index(0).store(keys)
    cta_barrier()
    mine = gl.convert_layout(keys, gl.SliceLayout(1, L))
    count = mine * 0
    for i in range((n + 15) // 16):
        others = rows_of(scratch, gl.int32, 16).index(i).load(gl.SliceLayout(0, L))
        count += gl.sum((others[None, :] > mine[:, None]).to(gl.int32), axis=1)
    return gl.convert_layout(count, keys.type.layout)


@gluon.jit
def mass_above(scratch, keys, mass, n):
    """The mass of the first n keys [128] that are higher than each; ``count_better`` has left the keys in the scratch."""
    L: gl.constexpr = gl.BlockedLayout([1, 16], [32, 1], [4, 1], [1, 0])
    rows_of(scratch, gl.int64, 128).index(1).store(mass)
    cta_barrier()
    mine = gl.convert_layout(keys, gl.SliceLayout(1, L))
    above = mine.to(gl.int64) * 0
    for i in range((n + 15) // 16):
        others = rows_of(scratch, gl.int32, 16).index(i).load(gl.SliceLayout(0, L))
        theirs = rows_of(scratch, gl.int64, 16).index(8 + i).load(gl.SliceLayout(0, L))
        above += gl.sum(gl.where(others[None, :] > mine[:, None], theirs[None, :], 0), axis=1)
    return gl.convert_layout(above, keys.type.layout)


@gluon.jit
def kth_best(scratch, bests, k):
    """Ordered key of the k-th best word: so many tokens at least are as good. The lowest int32 where there are fewer words."""
    keys = (bests >> 32).to(gl.int32)
    return gl.min(gl.where(count_better(scratch, keys, 128) < k, keys, 0x7FFFFFFF), axis=0)


@gluon.jit
def add(a, b):
    return a + b


@gluon.jit
def put_candidates(C: gl.constexpr, totals, listed, words, mine, away):
    """Add the words marked by ``mine`` to this rank's list in all ranks. One atomic addition is this CTA's arrival and reserves the places."""
    number = gl.associative_scan(mine.to(gl.int32), 0, add)
    arrival = gl.max(number, axis=0).to(gl.int64) + (1 << 32)
    total = totals + C.rank
    before = gl.atomic_add(total, arrival, sem="relaxed", scope="gpu") + 1
    for r in gl.static_range(gl.constexpr(C.ranks)):
        if r != C.rank:
            gl.atomic_add(there(C, total, r, away), arrival, sem="relaxed", scope="sys")
    place = before.to(gl.int32) + number - 1
    ok = mine & (place < C.listed)
    p = listed + C.rank * C.listed + gl.where(ok, place, 0)
    gl.store(p, words, mask=ok)
    push(C, p, words, ok, away)


@gluon.jit
def read_candidates(C: gl.constexpr, totals, listed, guard):
    """(n, [128] words of which the first n count, in no certain order). Where n is more than a list takes, no words."""
    t = gl.arange(0, 128, layout=gl.BlockedLayout([1], [32], [4], [0]))
    counts = read_total(totals + gl.minimum(t, C.ranks - 1), C.ctas, (t < C.ranks).to(gl.int32), guard)
    n = gl.max(gl.where(t == 0, counts, 0), axis=0)
    place = t
    for r in gl.static_range(1, gl.constexpr(C.ranks)):
        place = gl.where(t >= n, r * C.listed + t - n, place)
        n += gl.max(gl.where(t == r, counts, 0), axis=0)
    use = (t < n) & (n <= C.listed)
    return n, read_words(listed + gl.where(use, place, 0), use.to(gl.int32), guard, 1, 8)[0]


@gluon.jit
def choose(scratch, words, n, best, top_k, top_p, whole, log_min_p, seed, position):
    """The token among the first n candidates, all that are as good as the last of them. top_k: 0 off; ``whole``: mass of all tokens, for top-p alone.

    Returns (token, whether the candidates reach so far down that nobody else can be drawn).
    """
    inside = gl.arange(0, 128, layout=gl.BlockedLayout([1], [32], [4], [0])) < n
    keys = gl.where(inside, (words >> 32).to(gl.int32), -0x7F800001)
    scaled = value_of(keys)
    mass = gl.where(inside, mass_of(scaled, best), 0)
    count = count_better(scratch, keys, n)
    above = mass_above(scratch, keys, mass, n)
    kept = inside & ((count < top_k) | (top_k == 0))
    listed = gl.sum(gl.where(kept, mass, 0), axis=0)
    share = share_of(gl.where(top_k > 0, listed, whole), top_p)
    kept = kept & ((above < share) | (top_p >= 1.0))
    kept = kept & (scaled >= best + log_min_p) & (scaled >= best - 26.0)
    token = token_of(words)
    noisy = gl.where(kept, scaled + gumbel(token, position, seed[0], seed[1]), float("-inf"))
    word = gl.max(gl.where(kept, order_word(noisy, token), LOWEST), axis=0)
    return token_of(word), (top_k > 0) | (listed >= share)


# a search over all logits, where a list would be too long


@gluon.jit
def exchange(C: gl.constexpr, word, sums, counters, step, rounds, pid, away, guard):
    """Sums over all CTAs of word [16] >> 2 and word & 3; the same in every CTA. One step of all CTAs. Returns both sums, step, rounds."""
    CTAS: gl.constexpr = C.ctas * C.ranks
    slot = (rounds & 3) * (CTAS * 16)
    later = ((rounds + 2) & 3) * (CTAS * 16)
    j = gl.arange(0, 16, layout=word.type.layout)
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
    row = gl.arange(0, 8, layout=gl.SliceLayout(1, L))[:, None]
    col = gl.arange(0, 16, layout=gl.SliceLayout(0, L))[None, :]
    high = gl.zeros([8, 16], gl.int64, layout=L)
    low = gl.zeros([8, 16], gl.int32, layout=L)
    for b in range(step >> 30, (CTAS + 63) // 64):  # from 0, which the compiler does not know; 8 words per thread at once
        cta = b * 64 + row + 0 * col
        w = read_words(sums + slot + cta * 16 + col, (CTAS - cta + 7) // 8, guard, 8, 8 * 16 * 8)
        for i in gl.static_range(8):
            high += w[i] >> 2
            low += (w[i] & 3).to(gl.int32)
    total = gl.convert_layout(gl.sum(high, axis=0), word.type.layout)
    return total, gl.convert_layout(gl.sum(low, axis=0), word.type.layout), step, rounds + 1


@gluon.jit
def search(C: gl.constexpr, keys, weight, low, high, target, top_p, sums, counters, step, rounds, pid, away, guard):
    """The keys [n] of all CTAs from the highest x in [low, high) up for which their weights add up to ``target`` (-1: to the share ``top_p`` of
    those >= low). Returns a key that divides these from the others, step, rounds.

    Sixteen bounds a round, so at most eight rounds for 32-bit keys; fewer as soon as one key lies between two bounds, or the sum is met.
    """
    L: gl.constexpr = gl.BlockedLayout([16, 1], [1, 32], [1, 4], [1, 0])
    mine = gl.convert_layout(keys, gl.SliceLayout(0, L))[None, :]
    weights = gl.convert_layout(weight, gl.SliceLayout(0, L))[None, :]
    j = gl.arange(0, 16, layout=gl.SliceLayout(1, L))
    while high - low > 1:
        width = (high - low + 15) // 16
        bound = low + j.to(gl.int64) * width
        above = mine >= bound.to(gl.int32)[:, None]
        between = above & (mine < (bound + width).to(gl.int32)[:, None])
        alone = gl.minimum(gl.sum(between.to(gl.int32), axis=1), 3)
        held = gl.sum(gl.where(above, weights, 0), axis=1)
        held, alone, step, rounds = exchange(C, (held << 2) | alone.to(gl.int64), sums, counters, step, rounds, pid, away, guard)
        if target < 0:
            target = share_of(gl.max(gl.where(j == 0, held, 0), axis=0), top_p)
        last = gl.max(gl.where((held >= target) | (j == 0), j, 0), axis=0)
        found = gl.max(gl.where((j == last) & ((alone == 1) | (held == target)), 1, 0), axis=0)
        low = low + last.to(gl.int64) * width
        high = gl.where(found != 0, low + 1, gl.minimum(high, low + width))
    return low, step, rounds


@gluon.jit
def draw(C: gl.constexpr, scratch, own, top, bests, ints, floats, sums, picks, counters, step, rounds, tok, position, pid, away, guard):
    """Temperature, top-k, top-p, min-p and the Gumbel maximum over all CTAs. Returns token, step, rounds.

    scratch: 2 KB of shared memory; own: see ``own_logits``; top, bests: see ``read_best``.
    """
    CTAS: gl.constexpr = C.ctas * C.ranks
    now = picks + (tok & 3) * C.picks
    clear_picks(C, picks + ((tok + 2) & 3) * C.picks, pid)
    values, token, inside = own
    temperature = gl.load(floats)
    best = value_of((top >> 32).to(gl.int32)) / temperature
    picked = token_of(top)
    if best - best == 0.0:  # a temperature so small that the quotient overflows is greedy
        scaled = values / temperature
        keys = ordered_key(scaled)
        mass = gl.where(inside, mass_of(scaled, best), 0)
        low = top * 0 - 0x7F800001  # below every finite value
        high = ordered_key(best).to(gl.int64) + 1
        top_k = gl.load(ints + 1)
        top_k = gl.where(top_k < C.all_vocab, top_k, 0)
        top_p = gl.load(floats + 1)
        log_min_p = gl.load(floats + 2)
        seed = (gl.load(ints + 2), gl.load(ints + 3))
        by_list = gl.where(top_k > 0, top_k <= C.shortlist, top_p < 1.0)
        if by_list:
            bound = kth_best(scratch, bests, gl.where(top_k > 0, top_k, C.shortlist * 3 // 4 + 1))
            if bound > -0x7FFFFFFF - 1:
                bound = ordered_key(value_of(bound) / temperature)
            if top_k == 0:
                tell(C, now + CTAS, pid, gl.sum(mass, axis=0), away)
            totals = now + 2 * CTAS
            put_candidates(C, totals, totals + C.ranks, order_word(scaled, token), inside & (keys >= bound), away)
            n, words = read_candidates(C, totals, totals + C.ranks, guard)
            whole = top * 0
            if top_k == 0:
                masses = read_row(now + CTAS, CTAS, guard)
                mine = masses[0]
                for i in gl.static_range(1, gl.constexpr((CTAS + 127) // 128)):
                    mine += masses[i]
                whole = gl.sum(mine, axis=0)
            by_list = n <= C.listed
            if by_list:
                picked, by_list = choose(scratch, words, n, best, top_k, top_p, whole, log_min_p, seed, position)
                high = gl.where(by_list, high, gl.maximum(bound.to(gl.int64), low + 1))
            if top_k > 0:
                low = gl.maximum(low, bound.to(gl.int64))
        if not by_list:
            for kind in range(2):  # top-k, then top-p
                by_mass = kind == 1
                if gl.where(by_mass, top_p < 1.0, top_k > 0):
                    weight = gl.where(by_mass, mass, inside.to(gl.int64))
                    target = gl.where(by_mass, -1, top_k).to(gl.int64)
                    low, step, rounds = search(C, keys, weight, low, high, target, top_p, sums, counters, step, rounds, pid, away, guard)
            kept = inside & (keys >= low) & (scaled >= best + log_min_p) & (scaled >= best - 26.0)
            noisy = gl.where(kept, scaled + gumbel(token, position, seed[0], seed[1]), float("-inf"))
            word = gl.max(gl.where(kept, order_word(noisy, token), LOWEST), axis=0)
            tell(C, now, pid, word, away)
            cta_barrier()
            arrive(counters)
            step += 1
            wait_count(counters, step * C.ctas, guard)
            picked = token_of(gl.max(best_words(now, CTAS, guard), axis=0))
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
