"""Values for other GPUs: stored into their hand-over buffers at the place they have in this rank's own, read there like local ones.

All ranks lay their buffers out alike in memory that all of them see; ``away`` holds the distance to each rank's buffers. Nothing is
fenced and nobody is asked: a value is its own flag on every GPU. Who clears a copy of another rank's value, so that the next one can be told from it:
- rows of lanes (read once, by the thread that adds them up): that thread, right after it has read them;
- words, and sums that all CTAs need at once: the CTA that writes this rank's own values of the same columns, two uses ahead.
Both have read, before they clear, what nobody could make without every earlier reader of the place, and both write later, in the same thread, a value
that the owner must have before it can write the place again. tests/engine/kernel/gluon/test_exchange_model.py explores this.
With one rank nothing of this is compiled.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from engine.kernel.gluon.flags import arrive, clock, put, unwritten, wait_count

EVERYONE = gl.constexpr(32 * 29)  # counter of the arrivals of all ranks' CTAs
WAITED = gl.constexpr(32 * 28)  # clocks / 64 that CTAs waited: for sums of old layers, sums that are needed at once, agreement on a token
DELAYED = gl.constexpr(0)
AT_ONCE = gl.constexpr(1)
AGREEMENT = gl.constexpr(2)
AT_EXCHANGE = gl.constexpr(11)  # place of engine.kernel.control.PLACES
PEER_LOST = gl.constexpr(4)  # engine.kernel.control.ERROR_PEER_LOST
SHARE = gl.constexpr(
    32
)  # a wait for another rank takes this part of the limit of other waits: half a second where all CTAs poll one counter


@gluon.jit
def distances(C: gl.constexpr, peers):
    """What ``there`` needs. ``peers``: pointer to the addresses of all ranks' buffers. Of two ranks, 8-byte words from this rank's buffers to each one's; more
    ranks' would fill the registers, so the pointer and this rank's address."""
    away = ()
    if C.ranks > 1:
        own = gl.load(peers + C.rank)
        if C.ranks > 2:
            away = (peers, own)
        else:
            for r in gl.static_range(gl.constexpr(C.ranks)):
                away = away + ((gl.load(peers + r) - own) >> 3,)
    return away


@gluon.jit
def there(C: gl.constexpr, p, r: gl.constexpr, away):
    """The same place in rank r's buffers."""
    distance = (gl.load(away[0] + r) - away[1]) >> 3 if C.ranks > 2 else away[r]
    return p + distance * (64 // p.dtype.element_ty.primitive_bitwidth)


@gluon.jit
def push(C: gl.constexpr, p, v, ok, away):
    """Store v at the place p of every other rank."""
    for r in gl.static_range(gl.constexpr(C.ranks)):
        if r != C.rank:
            gl.store(there(C, p, r, away), v, mask=ok)


@gluon.jit
def put_everywhere(C: gl.constexpr, p, ahead, v, ok, away, PER_RANK: gl.constexpr):
    """``put`` here, v at the same place of every other rank, and clear the places ``ahead`` further that the others will write here, which lie PER_RANK
    elements apart."""
    put(p, ahead, v, ok)
    for r in gl.static_range(gl.constexpr(C.ranks)):
        if r != C.rank:
            gl.store(p + (ahead + (r - C.rank) * PER_RANK), unwritten(v), mask=ok)
    push(C, p, v, ok, away)


@gluon.jit
def peer_guard(guard, layer, pid):
    """The guard for a wait that another rank can end."""
    return guard[0], guard[1] // SHARE, (PEER_LOST << 28) + (AT_EXCHANGE << 24) + (layer << 16) + pid


@gluon.jit
def guard_of(C: gl.constexpr, guard, layer, pid):
    """The guard for a wait that ends with values of all ranks."""
    if C.ranks == 1:
        return guard
    else:
        return peer_guard(guard, layer, pid)


@gluon.jit
def begin_launch(C: gl.constexpr, ready, launch, away, pid, guard):
    """Wait until every rank has cleared its buffers for this launch. ready: [ranks] words that only grow; launch: its number."""
    if pid == 0:
        for r in gl.static_range(gl.constexpr(C.ranks)):
            if r != C.rank:
                gl.store(there(C, ready + C.rank, r, away), launch)
    for r in gl.static_range(gl.constexpr(C.ranks)):
        if r != C.rank:
            wait_count(ready + r, launch, peer_guard(guard, 0, pid))


@gluon.jit
def arrive_everywhere(C: gl.constexpr, counters, away):
    """Tell all ranks that this CTA has pushed what it made (call after a CTA barrier). A hint: the values themselves say whether they are there."""
    arrive(counters + EVERYONE)
    for r in gl.static_range(gl.constexpr(C.ranks)):
        if r != C.rank:
            arrive_there(there(C, counters + EVERYONE, r, away))


@gluon.jit
def arrive_there(counter):
    gl.inline_asm_elementwise(
        """{ .reg .pred p; .reg .u32 t; mov.u32 t, %tid.x; and.b32 t, t, 127; setp.eq.u32 p, t, 0;
        @p red.relaxed.sys.global.add.u32 [$1], 1; mov.u32 $0, 0; }""",
        "=r,l",
        [counter],
        dtype=gl.int32,
        is_pure=False,
        pack=1,
    )


@gluon.jit
def wait_everyone(C: gl.constexpr, counters, meeting, early: gl.constexpr, guard):
    """Wait until the CTAs of all ranks have arrived ``meeting`` times, but for ``early`` arrivals."""
    wait_count(counters + EVERYONE, meeting * (C.ctas * C.ranks) - early, guard)


@gluon.jit
def add_waited(counters, kind: gl.constexpr, began):
    """One thread adds the clocks since ``began`` to those that CTAs waited."""
    gl.inline_asm_elementwise(
        """{ .reg .pred p; .reg .u32 t; mov.u32 t, %tid.x; and.b32 t, t, 127; setp.eq.u32 p, t, 0;
        @p red.relaxed.gpu.global.add.u32 [$1], $2; mov.u32 $0, 0; }""",
        "=r,l,r",
        [counters + (WAITED + kind), ((clock() - began) >> 6).to(gl.int32)],
        dtype=gl.int32,
        is_pure=False,
        pack=1,
    )


@gluon.jit
def tell_abort(C: gl.constexpr, abort, info, away):
    """A wait of this rank ended at its limit: the others need not wait for it."""
    for r in gl.static_range(gl.constexpr(C.ranks)):
        if r != C.rank:
            gl.store(there(C, abort, r, away), (PEER_LOST << 28) + (AT_EXCHANGE << 24) + (info & 0xFFFFFF))
