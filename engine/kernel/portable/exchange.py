"""Words between GPUs: pushed into the others' memory as soon as they exist, read when due.

A word is an int64: a float32 or an int32 in its low half, its tag in the high half. Loads and stores of 64 bits are never torn, so
who finds the tag that is due has the value that belongs to it: no flag, no fence, no barrier between GPUs. The tag of a layer's
output is tick + layer, where ``tick`` grows by C.ticks with every token, chunk of a prompt and launch, equally on all ranks.

Places are used again (places of outputs: layer % slots; of the others: by parity) without asking the reader. It is safe because
a rank that is far enough to write a place again has read words that its owner could only push after it read the old ones:
- outputs of a layer are read at once (present), or delay layers later (past); layers >= delay await the others' old outputs even
  where their own sum does not need them. So a rank is at most `delay` layers ahead of another, which is at most `delay` layers
  behind with its reading: 2 * delay + 1 slots;
- no rank starts the next token before it has read all candidates of this one, or the next chunk before all ranks ended this one.
tests/engine/kernel/test_exchange_model.py explores all interleavings of this.

A rank that reports an error tells the others (SIGN_ABORT); who waits longer than its limit reports ERROR_PEER_LOST.
"""

import triton
import triton.language as tl

from engine.kernel import control
from engine.kernel.portable.sync import CLAIM, PREFILL_FAILED, SIGN_ABORT, report_error

PEER_LOST = tl.constexpr(control.ERROR_PEER_LOST)
SIGN_STOP = tl.constexpr(0)  # two words: rank 0's stop word, by parity of the position
SIGN_CHUNK = tl.constexpr(2)  # two times [16]: rank r ended a chunk, by parity of the chunk
TICK_STOP = tl.constexpr(1)  # tags of a token after its layers' and the final states' (tick + layers)
TICK_BEST = tl.constexpr(2)
TICK_FILTERED = tl.constexpr(3)
TICK_CHUNK = tl.constexpr(4)
TICK_PIVOT = tl.constexpr(8)  # 16 rounds
WAITED = tl.constexpr(8)  # words of Control.device: clocks / 64 that programs waited for others' words, one word per kind of wait:
DELAYED = tl.constexpr(0)  # outputs of old layers,
PRESENT_SUM = tl.constexpr(1)  # outputs that are needed at once, final states,
AGREEMENT = tl.constexpr(2)  # candidates, masses, stop word, ends of chunks
POLLS_SHARE = tl.constexpr(10)  # a wait for a peer takes this part of the limit of a barrier: about half a second


@triton.jit
def float_word(value, tag):
    """int64 word of a float32."""
    return int_word(value.to(tl.int32, bitcast=True), tag)


@triton.jit
def int_word(value, tag):
    return (value.to(tl.int64) & 0xFFFFFFFF) | (tag.to(tl.int64) << 32)


@triton.jit
def push(B, C: tl.constexpr, place, words, mask, whole: tl.constexpr):
    """Store words at ``place`` of the other ranks' inboxes; with ``whole`` in this rank's own too."""
    RANKS: tl.constexpr = C.ranks
    for rank in tl.static_range(RANKS):
        if whole or rank != C.rank:
            inbox = tl.load(B.peers + rank).to(B.inbox.dtype)
            tl.store(inbox + place, words, mask=mask)


@triton.jit
def push_layer(B, C: tl.constexpr, place, tag, values, mask):
    """Outputs of a layer, float32, to the other ranks."""
    push(B, C, place, float_word(values, tag), mask, False)


@triton.jit(noinline=True)
def push_outputs(B, C: tl.constexpr, own, place, tag):
    """This rank's outputs of a layer, float32 ``own`` [L, D], to the words [sources, D] at ``place`` of the others, after the barrier
    that makes them visible: each program pushes a slice.

    In the epilogue that makes them they would leave earlier, but the barrier that ends a phase waits until its stores have arrived
    on the other GPUs. From here it is a whole phase to the next one.
    """
    e = tl.program_id(0) * C.push_share + tl.arange(0, C.push_pad)
    end = tl.minimum((tl.program_id(0) + 1) * C.push_share, C.lanes * C.hidden)
    values = tl.load(own + e, mask=e < end, other=0.0)
    push_layer(B, C, place + C.rank * (C.lanes * C.hidden) + e, tag, values, e < end)


@triton.jit
def _missing(words, tag, mask):
    return tl.max((((words >> 32).to(tl.int32) != tag) & mask).to(tl.int32))


@triton.jit
def _state(B, C: tl.constexpr, words, tag, mask):
    """0: all words are there; 1: one is missing; 2 or 3: the generation has failed, on this GPU or on another. The same in all threads:
    each of them reads the signs for itself, and they would part ways over one that appears in between."""
    failed = (tl.load(B.inbox + C.inbox_signs + SIGN_ABORT, volatile=True) != 0) | (tl.load(B.device + CLAIM, volatile=True) != 0)
    late = (((words >> 32).to(tl.int32) != tag) & mask).to(tl.int32)
    return tl.max(late + tl.where(failed, 2, 0))


@triton.jit
def _clock(C: tl.constexpr):
    if C.ptx:
        zero = tl.full([], 0, tl.int32)
        now = tl.inline_asm_elementwise("mov.u64 $0, %clock64;", "=l,r", [zero], dtype=tl.int64, is_pure=False, pack=1)
    else:
        now = tl.full([], 0, tl.int64)
    return now


@triton.jit
def receive(B, C: tl.constexpr, place, tag, mask, kind: tl.constexpr, layer, position):
    """Words at ``place`` (a block) of this rank's inbox, once all of them carry the tag. kind: the word of WAITED that counts."""
    pointers = B.inbox + place
    words = tl.load(pointers, mask=mask, other=0, volatile=True)
    missing = _missing(words, tag, mask)
    if missing != 0:
        limit = tl.load(B.ints + 5) // POLLS_SHARE
        state = missing
        polls = 0
        began = _clock(C)
        while (state == 1) & (polls < limit):
            words = tl.load(pointers, mask=mask, other=0, volatile=True)
            state = _state(B, C, words, tag, mask)
            polls += 1
        tl.atomic_add(B.device + WAITED + kind, ((_clock(C) - began) >> 6).to(tl.int32), sem="relaxed")
        if state != 0:
            lose_peer(B, C, layer, position)
    return words


@triton.jit
def float_of(words):
    return words.to(tl.int32).to(tl.float32, bitcast=True)


@triton.jit(noinline=True)
def lose_peer(B, C: tl.constexpr, layer, position):
    """Mark the prompt and the token as failed."""
    tl.store(B.device + PREFILL_FAILED, 1)
    report_error(B, C, PEER_LOST, 11, layer, position)


@triton.jit
def await_sources(B, C: tl.constexpr, place, tag, d, mask, block: tl.constexpr, kind: tl.constexpr, layer, position):
    """Wait for elements d [1, n] of the other ranks' part of [sources, D] words at ``place``, ``block`` sources at a time."""
    SOURCES: tl.constexpr = C.sources
    for first in tl.static_range(0, SOURCES, block):
        if first // C.lanes != C.rank or (first + block - 1) // C.lanes != C.rank:
            source = first + tl.arange(0, block)[:, None]
            remote = (source // C.lanes != C.rank) & (source < C.sources)
            receive(B, C, place + source * C.hidden + d, tag, remote & mask, kind, layer, position)


@triton.jit
def source_row(B, C: tl.constexpr, own, place, source: tl.constexpr, d, mask):
    """Elements d of a source's output: from ``own`` [L, D], or from the words at ``place``, which have been awaited."""
    if source // C.lanes == C.rank:
        row = tl.load(own + (source - C.rank * C.lanes) * C.hidden + d, mask=mask, other=0.0)
    else:
        row = float_of(tl.load(B.inbox + place + source * C.hidden + d, mask=mask, other=0, volatile=True))
    return row


@triton.jit
def tell_stop(B, C: tl.constexpr, tick, position, stop):
    """Rank 0, program 0: the stop word of this token, for all ranks."""
    push(B, C, C.inbox_signs + SIGN_STOP + position % 2, int_word(stop, tick + C.layers + TICK_STOP), None, True)


@triton.jit
def stop_told(B, C: tl.constexpr, tick, position):
    """The stop word that rank 0 read for this token."""
    one = tl.arange(0, 1)
    place = C.inbox_signs + SIGN_STOP + position % 2 + one
    words = receive(B, C, place, tick + C.layers + TICK_STOP, one == 0, AGREEMENT, C.layers, position)
    return tl.max(words.to(tl.int32))


@triton.jit
def meet(B, C: tl.constexpr, tick, chunk, position):
    """All ranks ended a chunk. Call after the barrier that ends it."""
    signs = C.inbox_signs + SIGN_CHUNK + (chunk % 2) * 16
    tag = tick + C.layers + TICK_CHUNK
    if tl.program_id(0) == 0:
        push(B, C, signs + C.rank, int_word(tag, tag), None, False)
    rank = tl.arange(0, C.ranks_pad)
    receive(B, C, signs + rank, tag, (rank < C.ranks) & (rank != C.rank), AGREEMENT, C.layers, position)
