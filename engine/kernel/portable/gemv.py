"""Matrix-vector products of one row: each program streams a contiguous range of weight tiles through an asynchronous pipeline.

A unit is [bn, bk] weights of one lane; a program's units follow each other without a gap, so the loads of the next tiles are in
flight while one is summed. Products and sums are float32.
"""

import triton
import triton.language as tl

from engine.kernel.portable.exchange import AGREEMENT, TICK_BEST, float_of, int_word, push, push_layer, receive
from engine.kernel.portable.sync import CLAIM, prefetch


@triton.jit
def tile_range(M: tl.constexpr, lanes: tl.constexpr, programs: tl.constexpr):
    """First tile and end of this program's share of lanes * ceil(n / bn) tiles."""
    tiles = lanes * tl.cdiv(M.n, M.bn)
    pid = tl.program_id(0)
    return pid * tiles // programs, (pid + 1) * tiles // programs


@triton.jit
def lane_range(M: tl.constexpr, first, end):
    """First and last lane that tiles first .. end-1 touch (last < first when there are none)."""
    per_lane = tl.cdiv(M.n, M.bn)
    return first // per_lane, tl.where(end > first, (end - 1) // per_lane, -1)


@triton.jit
def prefetch_tiles(C: tl.constexpr, W, M: tl.constexpr, lanes: tl.constexpr, gated: tl.constexpr):
    """Ask for this program's first tiles of a projection in the L2 cache. W: float16 or bfloat16 [lanes, N, K]."""
    if C.ptx:
        if (M.n % M.bn == 0) & (M.k % 8 == 0):
            first, end = tile_range(M, lanes, C.programs)
            per_lane: tl.constexpr = M.n // M.bn
            lane = first // per_lane
            tile: tl.constexpr = M.bn * M.k * 2
            size = tl.minimum(C.ahead, (end - first) * tile)
            if size > 0:
                if gated:  # the gate rows of the range, and the up rows half a lane further
                    start = W + ((lane * M.n + (first % per_lane) * (M.bn // 2)) * M.k).to(tl.int64)
                    size = tl.minimum(size, ((lane + 1) * per_lane - first) * tile) // 2
                    prefetch(C, start, size)
                    prefetch(C, start + (M.n // 2) * M.k, size)
                else:
                    prefetch(C, W + first.to(tl.int64) * (M.bn * M.k), size)


@triton.jit
def _weights(W, M: tl.constexpr, gated: tl.constexpr, lane, tile, chunk):
    """One unit [bn, bk] in the weight dtype. Gated: rows are gate 0, up 0, gate 1, up 1, ... of the lane."""
    o = tile * M.bn + tl.arange(0, M.bn)
    k = chunk * M.bk + tl.arange(0, M.bk)
    if gated:
        row = o // 2 + (o % 2) * (M.n // 2)
    else:
        row = o
    pointers = W + (lane * M.n + row)[:, None] * M.k + k[None, :]
    if M.even:
        w = tl.load(pointers)
    else:
        w = tl.load(pointers, mask=(o < M.n)[:, None] & (k < M.k)[None, :], other=0.0)
    return w


@triton.jit
def _inputs(X, M: tl.constexpr, lane, chunk):
    """Inputs [bk] float32 of a unit; X float32 [lanes, K]."""
    k = chunk * M.bk + tl.arange(0, M.bk)
    if M.even:
        x = tl.load(X + lane * M.k + k)
    else:
        x = tl.load(X + lane * M.k + k, mask=k < M.k, other=0.0)
    return x


@triton.jit
def _store(s, OUT, bias, M: tl.constexpr, gated: tl.constexpr, biased: tl.constexpr, lane, tile):
    """Epilogue of a tile: s [bn] float32 -> OUT float32 [lanes, N] (gated: [lanes, N/2] = silu(gate) * up)."""
    if gated:
        gate, up = tl.split(tl.reshape(s, [M.bn // 2, 2]))
        o = tile * (M.bn // 2) + tl.arange(0, M.bn // 2)
        tl.store(OUT + lane * (M.n // 2) + o, gate * tl.sigmoid(gate) * up, mask=o < M.n // 2)
    else:
        o = tile * M.bn + tl.arange(0, M.bn)
        if biased:
            s += tl.load(bias + lane * M.n + o, mask=o < M.n, other=0.0)
        tl.store(OUT + lane * M.n + o, s, mask=o < M.n)


@triton.jit(noinline=True)
def gemv(B, C: tl.constexpr, M: tl.constexpr, W, X, OUT, bias, place, tag, gated: tl.constexpr, biased: tl.constexpr, pushed: tl.constexpr):
    """OUT[lane] = W[lane] @ X[lane] for this program's tiles. W [L, N, K], X float32 [L, K].

    pushed: where C.push_at_once, the outputs also go to the other ranks, as words [sources, N] at ``place`` with this tag.
    """
    first, end = tile_range(M, C.lanes, C.programs)
    per_lane: tl.constexpr = (M.n + M.bn - 1) // M.bn
    acc = tl.full([M.bn, M.bk], 0.0, tl.float32)
    for unit in tl.range(first * M.chunks, end * M.chunks, num_stages=M.stages):
        tile = unit // M.chunks
        chunk = unit % M.chunks
        lane = tile // per_lane
        tile = tile % per_lane
        w = _weights(W, M, gated, lane, tile, chunk)
        acc += w.to(tl.float32) * _inputs(X, M, lane, chunk)[None, :]
        if chunk == M.chunks - 1:
            s = tl.sum(acc, 1)
            _store(s, OUT, bias, M, gated, biased, lane, tile)
            if pushed and C.push_at_once:
                o = tile * M.bn + tl.arange(0, M.bn)
                push_layer(B, C, place + (C.rank * C.lanes + lane) * C.hidden + o, tag, s, o < M.n)
            acc = tl.full([M.bn, M.bk], 0.0, tl.float32)


@triton.jit(noinline=True)
def head_gemv(B, C: tl.constexpr, M: tl.constexpr, X, logits, tick, position, temperature, seed):
    """Logits of this program's vocabulary rows, and its best candidates.

    Stores logits [V] (of this rank's ids), best[0] = highest logit, best[1] = highest logit / temperature + noise, each with its
    lowest id. position: of the new token.
    Returns whether a logit was NaN or infinite.
    """
    first, end = tile_range(M, C.head_lanes, C.programs)
    per_lane: tl.constexpr = (M.n + M.bn - 1) // M.bn
    acc = tl.full([M.bn, M.bk], 0.0, tl.float32)
    top = tl.full([M.bn], float("-inf"), tl.float32)
    top_id = tl.full([M.bn], 2147483647, tl.int32)
    noisy = top
    noisy_id = top_id
    bad = tl.full([M.bn], 0, tl.int32)
    for unit in tl.range(first * M.chunks, end * M.chunks, num_stages=M.stages):
        tile = unit // M.chunks
        chunk = unit % M.chunks
        lane = tile // per_lane
        tile = tile % per_lane
        w = _weights(B.head, M, False, lane, tile, chunk)
        acc += w.to(tl.float32) * _inputs(X, M, lane, chunk)[None, :]
        if chunk == M.chunks - 1:
            y = tl.sum(acc, 1)
            acc = tl.full([M.bn, M.bk], 0.0, tl.float32)
            o = tile * M.bn + tl.arange(0, M.bn)
            local = lane * M.n + o
            ids = C.rank * C.vocab + local
            valid = o < M.n
            tl.store(logits + local, y, mask=valid)
            bad |= (((y != y) | (tl.abs(y) == float("inf"))) & valid).to(tl.int32)
            y = tl.where(valid, y, float("-inf"))
            better = y > top
            top = tl.where(better, y, top)
            top_id = tl.where(better, ids, top_id)
            score = _noisy(y, ids, position, temperature, seed)
            better = score > noisy
            noisy = tl.where(better, score, noisy)
            noisy_id = tl.where(better, ids, noisy_id)
    failed = tl.max(bad, 0)
    store_best(B, C, 0, top, top_id, failed, tick + C.layers + TICK_BEST, position)
    store_best(B, C, 1, noisy, noisy_id, failed, tick + C.layers + TICK_BEST, position)
    return failed


@triton.jit
def _noisy(y, ids, position, temperature, seed):
    if temperature > 0:
        score = y / temperature + gumbel(seed, position, ids)
    else:
        score = y
    return score


@triton.jit
def gumbel(seed, position, ids):
    """float32 noise of token ids at a position, as engine/sampling.py defines it. seed: uint64."""
    h, _, _, _ = tl.philox(seed, ids.to(tl.uint32), position, 0, 0)
    u = tl.minimum((h.to(tl.float32) + 0.5) * 2.0**-32, 1.0 - 2.0**-24)
    series = u * (1.0 + u * (1.0 / 2 + u * (1.0 / 3 + u * (1.0 / 4 + u * (1.0 / 5)))))
    return -tl.log(tl.where(u < 1.0 / 32, series, -tl.log(1.0 - u)))


@triton.jit
def _best_place(C: tl.constexpr, which: tl.constexpr, position):
    return C.inbox_best + ((position % 2) * 2 + which) * (C.ranks * C.programs * 2)


@triton.jit
def store_best(B, C: tl.constexpr, which: tl.constexpr, scores, ids, failed, tag, position):
    """This program's highest score and the lowest id that has it; for all ranks, with id -1 when this rank's token failed."""
    value = tl.max(scores, 0)
    token = tl.min(tl.where(scores == value, ids, 2147483647), 0)
    if C.ranks == 1:
        tl.store(B.best + which * C.programs + tl.program_id(0), value)
        tl.store(B.best_id + which * C.programs + tl.program_id(0), token)
    else:
        token = tl.where((failed != 0) | (tl.load(B.device + CLAIM) != 0), -1, token)
        part = tl.arange(0, 2)
        place = _best_place(C, which, position) + (C.rank * C.programs + tl.program_id(0)) * 2 + part
        push(B, C, place, int_word(tl.where(part == 0, value.to(tl.int32, bitcast=True), token), tag), part >= 0, True)


@triton.jit
def load_best(B, C: tl.constexpr, which: tl.constexpr, tag, position):
    """(highest score, lowest id that has it) over all programs of all ranks; call after a barrier. Id -1: a rank's token failed."""
    if C.ranks == 1:
        p = tl.arange(0, C.programs_pad)
        mask = p < C.programs
        scores = tl.load(B.best + which * C.programs + p, mask=mask, other=float("-inf"))
        ids = tl.load(B.best_id + which * C.programs + p, mask=mask, other=2147483647)
    else:
        p = tl.arange(0, C.candidates_pad)
        mask = p < C.ranks * C.programs
        place = _best_place(C, which, position) + p * 2
        score_words = receive(B, C, place, tag, mask, AGREEMENT, C.layers, position)
        id_words = receive(B, C, place + 1, tag, mask, AGREEMENT, C.layers, position)
        scores = tl.where(mask, float_of(score_words), float("-inf"))
        ids = tl.where(mask, id_words.to(tl.int32), 2147483647)
    value = tl.max(scores, 0)
    lowest = tl.min(tl.where(scores == value, ids, 2147483647), 0)
    return value, tl.where(tl.min(ids, 0) < 0, -1, lowest)
