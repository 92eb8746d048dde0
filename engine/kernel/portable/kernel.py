"""The persistent kernel: prefill in chunks of rows, then token after token, all in one launch.

One program per multiprocessor, launched cooperatively; the phases of a layer are separated by grid barriers.
"""

import triton
import triton.language as tl

from engine.kernel import control
from engine.kernel.portable.attention import decode_attention, rows_attention, rows_rotary
from engine.kernel.portable.exchange import meet, push_outputs, stop_told, tell_stop
from engine.kernel.portable.gemm import gemm, gemm_gated
from engine.kernel.portable.gemv import gemv, head_gemv, lane_range, prefetch_tiles, tile_range
from engine.kernel.portable.lanes import final_lanes, rows_head, rows_norm, stage_head, stage_lanes, stage_norm, store_sums
from engine.kernel.portable.sampling import is_stop_id, sample
from engine.kernel.portable.sync import DECODE_FAILED, PREFILL_FAILED, STOP_AT, grid_barrier, read_word, release_word, report_error

PEER_LOST = tl.constexpr(control.ERROR_PEER_LOST)
NAN_LOGITS = tl.constexpr(control.ERROR_NAN_LOGITS)
STOP = tl.constexpr(control.FINISH_STOP)
LENGTH = tl.constexpr(control.FINISH_LENGTH)
CANCELLED = tl.constexpr(control.FINISH_CANCELLED)
ERROR = tl.constexpr(control.FINISH_ERROR)
WQKV, WO, W13, W2, ATTENTION_NORM, FFN_NORM, BIAS, Q_NORM, K_NORM = (tl.constexpr(i) for i in range(9))
TABLE = tl.constexpr(9)


@triton.jit
def _weight(B, layer, which):
    """Pointer to a weight matrix of a layer."""
    return tl.multiple_of(tl.load(B.table + layer * TABLE + which).to(B.embedding.dtype), 16)


@triton.jit
def _vector(B, layer, which):
    """Pointer to a float32 vector of a layer."""
    return tl.multiple_of(tl.load(B.table + layer * TABLE + which).to(B.norm.dtype), 16)


@triton.jit
def _stage_norms(
    B, C: tl.constexpr, M: tl.constexpr, scratch, x_in, x_out, out, sums, inbox, tick, layer, kind, token, scale, place, position
):
    """Stage the normalised state of every lane whose rows this program owns in M; the owner of its first row keeps the state."""
    first, end = tile_range(M, C.lanes, C.programs)
    lane_first, lane_last = lane_range(M, first, end)
    per_lane = tl.cdiv(M.n, M.bn)
    for lane in range(lane_first, lane_last + 1, C.lane_block):
        stage_norm(
            B, C, scratch, lane, lane_last, tl.cdiv(first, per_lane), tl.cdiv(end, per_lane),
            x_in, x_out, out, sums, inbox, tick, layer, kind, token, scale, place, position,
        )  # fmt: skip
    tl.debug_barrier()


@triton.jit
def _prefetch_after(B, C: tl.constexpr, layer):
    """Ask for the weights that follow a layer: the next layer's QKV, or the head."""
    QKV: tl.constexpr = C.qkv
    LM: tl.constexpr = C.lm
    if layer < C.layers - 1:
        prefetch_tiles(C, _weight(B, layer + 1, WQKV), QKV, C.lanes, False)
    else:
        prefetch_tiles(C, B.head, LM, C.head_lanes, False)


@triton.jit
def decode_layer(B, C: tl.constexpr, epoch, layer, kind_before, token, tick, position):
    """All phases of one layer for one row. Returns epoch and the layer's kind of reduction.

    Addresses are loaded before the waits, and each phase asks for the first weights of the next projection before it waits.
    """
    QKV: tl.constexpr = C.qkv
    OUT: tl.constexpr = C.o
    UP: tl.constexpr = C.w13
    DOWN: tl.constexpr = C.w2
    scratch = B.scratch + tl.program_id(0) * C.scratch_width
    odd = B.x + C.lanes * C.hidden
    slot = (layer % C.slots) * (C.lanes * C.hidden)
    words = (layer % C.slots) * C.inbox_layer
    tag = tick + layer
    PUSH_LATER: tl.constexpr = C.ranks > 1 and not C.push_at_once
    kind = tl.load(B.kinds + layer * 2)
    window = tl.load(B.kinds + layer * 2 + 1)
    attention_scale = _vector(B, layer, ATTENTION_NORM)
    ffn_scale = _vector(B, layer, FFN_NORM)
    wqkv = _weight(B, layer, WQKV)
    wo = _weight(B, layer, WO)
    w13 = _weight(B, layer, W13)
    w2 = _weight(B, layer, W2)

    _stage_norms(
        B, C, QKV, scratch, B.x, odd, B.ffn_out, B.ffn_sum, C.inbox_ffn, tick, layer - 1, kind_before, token, attention_scale, 1, position
    )
    store_sums(B, C, B.ffn_out, B.ffn_sum, C.inbox_ffn, tick, layer - C.delay, position)
    gemv(B, C, QKV, wqkv, scratch, B.qkv, _vector(B, layer, BIAS), 0, 0, False, C.qkv_bias, False)
    prefetch_tiles(C, wo, OUT, C.lanes, False)
    epoch = grid_barrier(B, C, epoch, 1, layer, position)

    decode_attention(B, C, layer, window, position, _vector(B, layer, Q_NORM), _vector(B, layer, K_NORM))
    epoch = grid_barrier(B, C, epoch, 3, layer, position)

    gemv(B, C, OUT, wo, B.attended, B.attention_out + slot, B.norm, words, tag, False, False, True)
    prefetch_tiles(C, w13, UP, C.lanes, True)
    epoch = grid_barrier(B, C, epoch, 4, layer, position)

    if PUSH_LATER:
        push_outputs(B, C, B.attention_out + slot, words, tag)
    _stage_norms(B, C, UP, scratch, odd, B.x, B.attention_out, B.attention_sum, 0, tick, layer, kind, token, ffn_scale, 5, position)
    store_sums(B, C, B.attention_out, B.attention_sum, 0, tick, layer - C.delay + 1, position)
    gemv(B, C, UP, w13, scratch, B.gated, B.norm, 0, 0, True, False, False)
    prefetch_tiles(C, w2, DOWN, C.lanes, False)
    epoch = grid_barrier(B, C, epoch, 5, layer, position)

    gemv(B, C, DOWN, w2, B.gated, B.ffn_out + slot, B.norm, C.inbox_ffn + words, tag, False, False, True)
    _prefetch_after(B, C, layer)
    epoch = grid_barrier(B, C, epoch, 6, layer, position)
    if PUSH_LATER:
        push_outputs(B, C, B.ffn_out + slot, C.inbox_ffn + words, tag)
    return epoch, kind


@triton.jit
def decode_head(B, C: tl.constexpr, epoch, kind, logits, temperature, seed, tick, position):
    """Final norm and head for one row: logits and candidates. Returns epoch."""
    LM: tl.constexpr = C.lm
    final_lanes(B, C, B.x, kind, tick, position)
    epoch = grid_barrier(B, C, epoch, 7, C.layers, position)
    scratch = B.scratch + tl.program_id(0) * C.scratch_width
    if C.shared_head:
        stage_head(B, C, scratch, tick, position)
        tl.debug_barrier()
    elif C.head == "lane" and C.ranks > 1:
        stage_lanes(B, C, scratch, tick, position)
        tl.debug_barrier()
    else:
        scratch = B.final
    bad = head_gemv(B, C, LM, scratch, logits, tick, position + 1, temperature, seed)
    if bad != 0:
        report_error(B, C, NAN_LOGITS, 7, C.layers, position)
    return grid_barrier(B, C, epoch, 7, C.layers, position)


@triton.jit
def decode(B, C: tl.constexpr, epoch, token, position, forced, logits_stride, tick):
    """Token after token until a stop id, the stop word, the limit or an error. Program 0 talks to the host.

    forced: -1 in every place, or the token that follows each position whatever the logits say. tick: see exchange.py.
    """
    pid = tl.program_id(0)
    temperature = tl.load(B.floats)
    seed = tl.load(B.ints + 2).to(tl.uint32, bitcast=True).to(tl.uint64)
    seed |= tl.load(B.ints + 3).to(tl.uint32, bitcast=True).to(tl.uint64) << 32
    limit = tl.load(B.ints)
    made = tl.full([], 0, tl.int32)
    finish = tl.where((tl.load(B.device + PREFILL_FAILED) != 0) | (epoch < 0), ERROR, 0)
    while finish == 0:
        if (pid == 0) & (C.rank == 0):
            stop = read_word(C, B.stop_word)
            if C.ranks == 1:
                tl.store(B.device + STOP_AT + position % 2, stop)
            else:
                tell_stop(B, C, tick, position, stop)
        kind = tl.full([], 0, tl.int32)
        for layer in range(0, C.layers):
            epoch, kind = decode_layer(B, C, epoch, layer, kind, token, tick, position)
        logits = B.logits + made.to(tl.int64) * logits_stride
        epoch = decode_head(B, C, epoch, kind, logits, temperature, seed, tick, position)
        token, epoch = sample(B, C, epoch, logits, temperature, seed, tick, position + 1)
        if C.ranks > 1:
            if token < 0:
                report_error(B, C, PEER_LOST, 11, C.layers, position)
        if (tl.load(B.device + DECODE_FAILED + position % 2) != 0) | (epoch < 0) | (token < 0):
            finish = ERROR
        else:
            if pid == 0:
                tl.store(B.ring + made, token)
                release_word(C, B.status, made + 1)
            made += 1
            finish = _finish(B, C, token, made, limit, tick, position)
        position += 1
        tick += C.ticks
        token = tl.where(tl.load(forced + position) >= 0, tl.load(forced + position), token)
    if pid == 0:
        tl.store(B.status + 1, finish)
        release_word(C, B.status + 2, 1)
    return epoch


@triton.jit
def _finish(B, C: tl.constexpr, token, made, limit, tick, position):
    """FINISH_* after a token: 0 to go on. Equal in every program of every rank."""
    if C.ranks == 1:
        stop = tl.load(B.device + STOP_AT + position % 2)
    else:
        stop = stop_told(B, C, tick, position)
    stopped = tl.where(is_stop_id(B, token), STOP, 0)
    full = tl.where(made >= limit, LENGTH, 0)
    cancelled = tl.where(stop != 0, CANCELLED, 0)
    return tl.where(stopped != 0, stopped, tl.where(full != 0, full, cancelled))


@triton.jit
def prefill_layer(B, C: tl.constexpr, epoch, layer, ids, start, rows, tick):
    """All phases of one layer for a chunk of rows at positions start .. start+rows-1. Returns epoch."""
    QKV: tl.constexpr = C.qkv
    OUT: tl.constexpr = C.o
    UP: tl.constexpr = C.w13
    DOWN: tl.constexpr = C.w2
    window = tl.load(B.kinds + layer * 2 + 1)
    kind = tl.load(B.kinds + layer * 2)
    kind_before = tl.load(B.kinds + tl.maximum(layer - 1, 0) * 2)
    slot = (layer % C.slots) * (C.rows * C.lanes * C.hidden)
    wide: tl.constexpr = C.lanes * C.hidden
    words = (layer % C.slots) * C.rows * C.inbox_layer
    tag = tick + layer

    scale = _vector(B, layer, ATTENTION_NORM)
    for row in range(tl.program_id(0), rows, C.programs):
        token = tl.load(ids + start + row)
        rows_norm(B, C, row, B.rows_ffn_out, C.inbox_rows_ffn, tick, layer - 1, kind_before, token, scale, start + row)
    epoch = grid_barrier(B, C, epoch, 10, layer, start)
    gemm(
        B, C, QKV, C.lanes, _weight(B, layer, WQKV), B.rows_n, wide, C.hidden,
        B.rows_qkv, C.lanes * C.qkv_rows, C.qkv_rows, _vector(B, layer, BIAS), C.qkv_bias, 0, 0, False,
    )  # fmt: skip
    epoch = grid_barrier(B, C, epoch, 1, layer, start)
    rows_rotary(B, C, layer, start, rows, _vector(B, layer, Q_NORM), _vector(B, layer, K_NORM))
    epoch = grid_barrier(B, C, epoch, 2, layer, start)
    rows_attention(B, C, layer, window, start, rows)
    epoch = grid_barrier(B, C, epoch, 3, layer, start)
    gemm(
        B, C, OUT, C.lanes, _weight(B, layer, WO), B.rows_a, C.lanes * C.attention_width, C.attention_width,
        B.rows_attention_out + slot, wide, C.hidden, B.norm, False, C.inbox_rows + words, tag, True,
    )  # fmt: skip
    epoch = grid_barrier(B, C, epoch, 4, layer, start)

    scale = _vector(B, layer, FFN_NORM)
    for row in range(tl.program_id(0), rows, C.programs):
        rows_norm(B, C, row, B.rows_attention_out, C.inbox_rows, tick, layer, kind, start, scale, start + row)
    epoch = grid_barrier(B, C, epoch, 10, layer, start)
    gemm_gated(C, UP, _weight(B, layer, W13), B.rows_n, wide, C.hidden, B.rows_gated, C.lanes * C.ffn, C.ffn)
    epoch = grid_barrier(B, C, epoch, 5, layer, start)
    gemm(
        B, C, DOWN, C.lanes, _weight(B, layer, W2), B.rows_gated, C.lanes * C.ffn, C.ffn,
        B.rows_ffn_out + slot, wide, C.hidden, B.norm, False, C.inbox_rows_ffn + words, tag, True,
    )  # fmt: skip
    return grid_barrier(B, C, epoch, 6, layer, start)


@triton.jit
def prefill_head(B, C: tl.constexpr, epoch, start, rows, all_logits):
    """Logits of every row of the chunk into all_logits [context, V]. Returns epoch."""
    LM: tl.constexpr = C.lm
    kind = tl.load(B.kinds + (C.layers - 1) * 2)
    for row in range(tl.program_id(0), rows, C.programs):
        rows_head(B, C, row, kind, start + row)
    epoch = grid_barrier(B, C, epoch, 10, C.layers, start)
    lane: tl.constexpr = C.hidden if C.head == "vocab_parallel" else 0
    out = all_logits + start.to(tl.int64) * C.vocab
    gemm(B, C, LM, C.head_lanes, B.head, B.rows_n, C.lanes * C.hidden, lane, out, C.vocab, LM.n, B.norm, False, 0, 0, False)
    return grid_barrier(B, C, epoch, 7, C.layers, start)


@triton.jit(do_not_specialize=["start", "n_prefill", "decoding", "token", "position", "logits_stride", "tick"])
def monokernel(
    B, ids, all_logits, forced, start, n_prefill, decoding, token, position, logits_stride, tick, C: tl.constexpr, ALL: tl.constexpr
):
    """Prefill ids[start : start+n_prefill], then, if ``decoding``, generate from ``token`` at ``position``.

    ids: int32, ids[p] stands at position p. ALL: also store the logits of every prefilled position in all_logits
    [context + rows, V] (one rank only). logits_stride: 0, or V to keep the logits of every generated token. tick: see exchange.py.
    """
    epoch = tl.full([], 0, tl.int32)
    done = tl.full([], 0, tl.int32)
    while (done < n_prefill) & (epoch >= 0):
        rows = tl.minimum(C.rows, n_prefill - done)
        for layer in range(0, C.layers):
            epoch = prefill_layer(B, C, epoch, layer, ids, start + done, rows, tick)
        if ALL:
            epoch = prefill_head(B, C, epoch, start + done, rows, all_logits)
        if C.ranks > 1:
            meet(B, C, tick, done // C.rows, start + done)
            tick += C.ticks
        done += rows
        if tl.program_id(0) == 0:
            release_word(C, B.status + 3, start + done)
    if decoding != 0:
        decode(B, C, epoch, token, position, forced, logits_stride, tick)
