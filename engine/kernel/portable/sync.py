"""Waiting and telling: grid barrier with a limit, error record, system-scope words, L2 prefetch.

`C.ptx` selects NVIDIA inline assembly: one polling thread per program and no program barrier inside the poll. Without it
plain atomics do the same on any device and in the interpreter.
"""

import triton
import triton.language as tl

from engine.kernel import control

CLAIM = tl.constexpr(1)  # words of Control.device: set by the first reporter of an error
STOP_AT = tl.constexpr(2)  # two words: the stop word as program 0 read it, by parity of the token
PREFILL_FAILED = tl.constexpr(4)
DECODE_FAILED = tl.constexpr(5)  # two words, by parity of the position
REDUCE = tl.constexpr(control.PLACE_REDUCE)
SPIN_LIMIT_CODE = tl.constexpr(control.ERROR_SPIN_LIMIT)
SIGN_ABORT = tl.constexpr(48)  # of a rank's inbox (exchange.py): another rank reported an error


@triton.jit(noinline=True)
def grid_barrier(B, C: tl.constexpr, epoch, place, layer, position):
    """All programs meet here. What any of them stored before is visible to all after. Returns epoch + 1.

    ``epoch`` counts the barriers of this launch; the counter only grows. A program that waits longer than the limit
    reports ERROR_SPIN_LIMIT and gets epoch -1: it waits no more and leaves at the end of its token.
    """
    if epoch >= 0:
        target = (epoch + 1) * C.programs
        limit = tl.load(B.ints + 5)
        _trace(B, C, epoch, 0)
        if C.ptx:
            late = _arrive_and_wait_ptx(B.barrier, target, limit)
        else:
            late = _arrive_and_wait_atomic(B.barrier, target, limit)
        _trace(B, C, epoch, 1)
        if late != 0:
            report_error(B, C, SPIN_LIMIT_CODE, place, layer, position)
        epoch = tl.where(late != 0, -1, epoch + 1)
    return epoch


@triton.jit
def _trace(B, C: tl.constexpr, epoch, side: tl.constexpr):
    """With C.profile: this processor's clock at the arrival (0) at barrier ``epoch`` and after it (1)."""
    if C.profile > 0:
        zero = tl.full([], 0, tl.int32)
        now = tl.inline_asm_elementwise("mov.u64 $0, %clock64;", "=l,r", [zero], dtype=tl.int64, is_pure=False, pack=1)
        place = ((epoch % C.profile) * C.programs + tl.program_id(0)) * 2 + side
        tl.store(B.trace + place, now)


@triton.jit
def _arrive_and_wait_ptx(counter, target, limit):
    """0 in time, 1 too late, the same in all threads. Thread 0 arrives by release and polls by acquire."""
    return tl.inline_asm_elementwise(
        """{
        .reg .pred other, more, late;
        .reg .u32 value, polls;
        bar.sync 0;
        mov.u32 value, %tid.x;
        setp.ne.u32 other, value, 0;
        setp.ne.u32 late, value, value;
        @other bra DONE;
        red.release.gpu.global.add.u32 [$1], 1;
        mov.u32 polls, 0;
        POLL:
        ld.acquire.gpu.global.u32 value, [$1];
        setp.ge.u32 more, value, $2;
        @more bra DONE;
        add.u32 polls, polls, 1;
        setp.lt.u32 more, polls, $3;
        @more bra POLL;
        setp.eq.u32 late, polls, polls;
        DONE:
        bar.red.or.pred late, 0, late;
        selp.u32 $0, 1, 0, late;
        }""",
        "=r,l,r,r",
        [counter, target, limit],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )


@triton.jit
def _arrive_and_wait_atomic(counter, target, limit):
    tl.debug_barrier()
    tl.atomic_add(counter, 1, sem="release")
    polls = 0
    while (tl.atomic_add(counter, 0, sem="acquire") < target) & (polls < limit):
        polls += 1
    tl.debug_barrier()
    return (polls >= limit).to(tl.int32)


@triton.jit
def report_error(B, C: tl.constexpr, code, place, layer, position):
    """Mark the token as failed; the first reporter on the device also fills the record.

    The mark of a token is read by all programs after its last barrier, so that all leave together.
    """
    tl.store(B.device + tl.where(place == REDUCE, PREFILL_FAILED, DECODE_FAILED + position % 2), 1)
    if C.ranks > 1:
        RANKS: tl.constexpr = C.ranks
        for rank in tl.static_range(RANKS):
            if rank != C.rank:
                tl.store(tl.load(B.peers + rank).to(B.inbox.dtype) + C.inbox_signs + SIGN_ABORT, 1)
    if tl.atomic_cas(B.device + CLAIM, 0, code) == 0:
        tl.store(B.error + 1, place)
        tl.store(B.error + 2, layer)
        tl.store(B.error + 3, position)
        tl.store(B.error + 4, C.rank)
        tl.store(B.error + 5, tl.program_id(0))
        release_word(C, B.error, code)


@triton.jit
def release_word(C: tl.constexpr, pointer, value):
    """Store one int32 that another device or the host reads, after everything this program stored before."""
    tl.debug_barrier()
    if C.ptx:
        tl.inline_asm_elementwise(
            """{
            .reg .pred first;
            .reg .u32 thread;
            mov.u32 thread, %tid.x;
            setp.eq.u32 first, thread, 0;
            @first st.release.sys.global.u32 [$1], $2;
            mov.u32 $0, 0;
            }""",
            "=r,l,r",
            [pointer, value],
            dtype=tl.int32,
            is_pure=False,
            pack=1,
        )
    else:
        tl.atomic_xchg(pointer, value, sem="release", scope="sys")


@triton.jit
def read_word(C: tl.constexpr, pointer):
    """Load one int32 that the host may change at any time."""
    if C.ptx:
        value = tl.inline_asm_elementwise("ld.relaxed.sys.global.u32 $0, [$1];", "=r,l", [pointer], dtype=tl.int32, is_pure=False, pack=1)
    else:
        value = tl.atomic_add(pointer, 0, sem="relaxed", scope="sys")
    return value


@triton.jit
def prefetch(C: tl.constexpr, pointer, size):
    """Ask for ``size`` bytes (a multiple of 16) from ``pointer`` on in the L2 cache; changes speed only."""
    if C.ptx:
        tl.inline_asm_elementwise(
            """{
            .reg .pred first;
            .reg .u32 thread;
            mov.u32 thread, %tid.x;
            setp.eq.u32 first, thread, 0;
            @first cp.async.bulk.prefetch.L2.global [$1], $2;
            mov.u32 $0, 0;
            }""",
            "=r,l,r",
            [pointer, size],
            dtype=tl.int32,
            is_pure=False,
            pack=1,
        )
