"""Lane reductions and norms: from the outputs of a layer to the next normalised input.

Letters: L lanes, D hidden, LB lanes in one block of work. History buffers keep the outputs of the last `slots` layers; layer i
writes slot i % slots.

On several ranks L counts this rank's lanes, and sums take the others' outputs from the inbox (exchange.py): `inbox` is where the
words [slots, sources, D] of a history buffer start, and layer i has the tag tick + i.
"""

import triton
import triton.language as tl

from engine.kernel import control
from engine.kernel.portable.exchange import DELAYED, PRESENT_SUM, await_sources, float_word, push, source_row
from engine.kernel.portable.sync import report_error

PAST = tl.constexpr(1)
PRESENT = tl.constexpr(2)
NAN_HIDDEN = tl.constexpr(control.ERROR_NAN_HIDDEN)


@triton.jit
def _lane_block(C: tl.constexpr, lane):
    """(lanes [LB, 1] from ``lane`` on, d [1, D_pad])."""
    return lane + tl.arange(0, C.lane_block)[:, None], tl.arange(0, C.hidden_pad)[None, :]


@triton.jit
def normalise(B, C: tl.constexpr, x, scale, place, layer, position):
    """RMSNorm of x [LB, D_pad] (zero beyond D) with scale [LB or 1, D_pad]. Reports NaN or infinity."""
    squares = tl.sum(x * x, 1)
    n = x * (1.0 / tl.sqrt(squares / C.hidden + C.eps))[:, None] * scale
    if tl.max(((squares != squares) | (squares == float("inf"))).to(tl.int32), 0) != 0:
        report_error(B, C, NAN_HIDDEN, place, layer, position)
    return n


@triton.jit
def load_scale(C: tl.constexpr, scale, lanes, mask):
    """Norm scales [LB, D_pad] of the lanes: their own when `lane_norms`, else the shared one."""
    d = tl.arange(0, C.hidden_pad)[None, :]
    if C.lane_norms:
        values = tl.load(scale + lanes * C.hidden + d, mask=mask, other=0.0)
    else:
        values = tl.load(scale + d, mask=d < C.hidden, other=0.0)
    return values


@triton.jit
def sum_lanes(B, C: tl.constexpr, own, place, tag, d, mask, block: tl.constexpr, wait: tl.constexpr, layer, position):
    """Sum over all sources, in their order, of elements d [1, n]: ``own`` float32 [L, D], and the other ranks' words at ``place``.

    All loads are in flight together; words are awaited ``block`` sources at a time. wait: kind of wait (exchange.py).
    """
    SOURCES: tl.constexpr = C.sources
    if C.ranks > 1:
        await_sources(B, C, place, tag, d, mask, block, wait, layer, position)
    total = source_row(B, C, own, place, 0, d, mask)
    for source in tl.static_range(1, SOURCES):
        total += source_row(B, C, own, place, source, d, mask)
    return total


@triton.jit
def store_sums(B, C: tl.constexpr, out, sums, inbox, tick, layer, position):
    """Each program sums its slice of D of an old layer's outputs over the lanes, for the layer that consumes them next."""
    if C.delay > 0:
        if (layer >= 0) & (layer < C.layers - C.delay):
            slot = layer % C.slots
            d = tl.program_id(0) * tl.cdiv(C.hidden, C.programs) + tl.arange(0, C.slice_pad)[None, :]
            end = tl.minimum((tl.program_id(0) + 1) * tl.cdiv(C.hidden, C.programs), C.hidden)
            mask = d < end
            own = out + slot * (C.lanes * C.hidden)
            place = inbox + slot * C.inbox_layer
            total = sum_lanes(B, C, own, place, tick + layer, d, mask, C.sources_pad, DELAYED, layer, position)
            tl.store(sums + slot * C.hidden + d, total, mask=mask)


@triton.jit
def embed_row(B, C: tl.constexpr, token):
    """Embedding of a token, [1, D_pad] float32."""
    d = tl.arange(0, C.hidden_pad)[None, :]
    return tl.load(B.embedding + token.to(tl.int64) * C.hidden + d, mask=d < C.hidden, other=0.0).to(tl.float32)


@triton.jit
def _delta(C: tl.constexpr, now, old, common, kind, lanes, mask):
    """R(out) [LB, D_pad]: what a layer's reduction adds to each lane.

    now, old: float32 [L, D], the outputs of this layer and of the one `delay` before; common [1, D_pad]: the lane sum of
    ``now`` (present) or of ``old`` (past).
    """
    d = tl.arange(0, C.hidden_pad)[None, :]
    own = tl.load(now + lanes * C.hidden + d, mask=mask, other=0.0)
    if C.sources > 1:
        past = tl.load(old + lanes * C.hidden + d, mask=mask & (kind == PAST), other=0.0)
        own = tl.where(kind == PRESENT, common, tl.where(kind == PAST, own + (common - past), own * C.total_lanes**0.5))
    return own


@triton.jit
def _row_common(B, C: tl.constexpr, now, old_sum, place, tag, kind, layer, position):
    """The lane sum that one row's reduction needs, [1, D_pad]; old_sum: float32 [D], made when it was new."""
    d = tl.arange(0, C.hidden_pad)[None, :]
    mask = d < C.hidden
    if kind == PRESENT:
        common = sum_lanes(B, C, now, place, tag, d, mask, C.source_block, PRESENT_SUM, layer, position)
    else:
        common = tl.load(old_sum + d, mask=mask & (kind == PAST), other=0.0)
    return common


@triton.jit
def _state(B, C: tl.constexpr, x_in, out, sums, inbox, tick, layer, kind, token, lanes, mask, position):
    """Lane states [LB, D_pad] after the outputs of ``layer``; the embedding when layer is -1.

    out: float32 [slots, L, D]; sums: float32 [slots, D], over the lanes, of the layer `delay` before.
    """
    if layer < 0:
        x = embed_row(B, C, token) + tl.full([C.lane_block, C.hidden_pad], 0.0, tl.float32)
    else:
        d = tl.arange(0, C.hidden_pad)[None, :]
        now = out + (layer % C.slots) * (C.lanes * C.hidden)
        slot = (layer + C.slots - C.delay) % C.slots
        x = tl.load(x_in + lanes * C.hidden + d, mask=mask, other=0.0)
        if C.sources > 1:
            place = inbox + (layer % C.slots) * C.inbox_layer
            common = _row_common(B, C, now, sums + slot * C.hidden, place, tick + layer, kind, layer, position)
        else:
            common = x
        x += _delta(C, now, out + slot * (C.lanes * C.hidden), common, kind, lanes, mask)
    return x


@triton.jit(noinline=True)
def stage_norm(
    B, C: tl.constexpr, scratch, lane, lane_last, write_from, write_to,
    x_in, x_out, out, sums, inbox, tick, layer, kind, token, scale, place, position,
):  # fmt: skip
    """States after ``layer`` of lanes ``lane`` .. lane_last (at most LB) and their norms: scratch[lane] [D].

    Every program that needs a lane computes the same values; the one for which write_from <= lane < write_to also stores the
    new state in x_out, which nobody reads in this phase.
    """
    lanes, d = _lane_block(C, lane)
    mask = (lanes <= lane_last) & (d < C.hidden)
    g = load_scale(C, scale, lanes, mask)
    x = tl.where(mask, _state(B, C, x_in, out, sums, inbox, tick, layer, kind, token, lanes, mask, position), 0.0)
    tl.store(scratch + lanes * C.hidden + d, normalise(B, C, x, g, place, layer, position), mask=mask)
    tl.store(x_out + lanes * C.hidden + d, x, mask=mask & (lanes >= write_from) & (lanes < write_to))


@triton.jit(noinline=True)
def final_lanes(B, C: tl.constexpr, x_in, kind, tick, position):
    """Final state of every lane, normalised where the head wants it per lane: B.final [L, D]. A program takes LB lanes.

    A head that reads all lanes gets those of the other ranks as words.
    """
    last = C.layers - 1
    for lane in range(tl.program_id(0) * C.lane_block, C.lanes, C.programs * C.lane_block):
        lanes, d = _lane_block(C, lane)
        mask = (lanes < C.lanes) & (d < C.hidden)
        x = tl.where(mask, _state(B, C, x_in, B.ffn_out, B.ffn_sum, C.inbox_ffn, tick, last, kind, position, lanes, mask, position), 0.0)
        if C.head != "pre_norm_lane_agg":
            x = normalise(B, C, x, load_scale(C, B.norm, lanes, mask), 7, last, position)
        tl.store(B.final + lanes * C.hidden + d, x, mask=mask)
        if (C.ranks > 1) & (C.total_lanes > 1) & (C.head != "vocab_parallel"):
            place = C.inbox_final + (C.rank * C.lanes + lanes) * C.hidden + d
            push(B, C, place, float_word(x, tick + C.layers), mask, False)


@triton.jit(noinline=True)
def stage_lanes(B, C: tl.constexpr, scratch, tick, position):
    """Input [L * D] of a head that reads all lanes of all ranks."""
    d = tl.arange(0, C.hidden_pad)[None, :]
    mask = d < C.hidden
    SOURCES: tl.constexpr = C.sources
    await_sources(B, C, C.inbox_final, tick + C.layers, d, mask, C.source_block, PRESENT_SUM, C.layers, position)
    for source in tl.static_range(SOURCES):
        tl.store(scratch + source * C.hidden + d, source_row(B, C, B.final, C.inbox_final, source, d, mask), mask=mask)


@triton.jit(noinline=True)
def stage_head(B, C: tl.constexpr, scratch, tick, position):
    """Input [D] of a head that all lanes share, from B.final: norm of the sum, or mean of the norms."""
    d = tl.arange(0, C.hidden_pad)[None, :]
    mask = d < C.hidden
    if C.total_lanes > 1:
        x = sum_lanes(B, C, B.final, C.inbox_final, tick + C.layers, d, mask, C.source_block, PRESENT_SUM, C.layers, position)
    else:
        x = tl.load(B.final + d, mask=mask, other=0.0)
    if C.head == "pre_norm_lane_agg":
        x = normalise(B, C, x, tl.load(B.norm + d, mask=mask, other=0.0), 7, C.layers - 1, position)
    else:
        x = x / C.total_lanes
    tl.store(scratch + d, x, mask=mask)


@triton.jit
def _slot(C: tl.constexpr, out, row, layer):
    """Pointer to the [L, D] outputs of ``layer`` for a row; out: float32 [slots, R, L, D]."""
    return out + (((layer + C.slots) % C.slots) * C.rows + row) * (C.lanes * C.hidden)


@triton.jit
def _rows_common(B, C: tl.constexpr, out, inbox, tick, row, layer, kind, position):
    """The lane sum that this layer's reduction needs for a row, [1, D_pad].

    inbox: where the words [slots, R, sources, D] start. A layer that sums nothing awaits the others' old outputs all the same:
    that keeps the ranks together.
    """
    d = tl.arange(0, C.hidden_pad)[None, :]
    total = tl.full([1, C.hidden_pad], 0.0, tl.float32)
    if C.sources > 1:
        if (kind != 0) | ((C.ranks > 1) & (C.delay > 0) & (layer >= C.delay)):
            of = tl.where(kind == PRESENT, layer, layer - C.delay)
            place = inbox + ((of % C.slots) * C.rows + row) * C.inbox_layer
            own = _slot(C, out, row, of)
            total = sum_lanes(B, C, own, place, tick + of, d, d < C.hidden, C.source_block, PRESENT_SUM, layer, position)
    return total


@triton.jit(noinline=True)
def rows_norm(B, C: tl.constexpr, row, out, inbox, tick, layer, kind, token, scale, position):
    """A row of a prefill chunk: every lane's state after ``layer`` (in place) and its norm in rows_n.

    A row belongs to one program, so nothing else reads or writes its state.
    """
    x_row = B.rows_x + row * (C.lanes * C.hidden)
    n_row = B.rows_n + row * (C.lanes * C.hidden)
    now = _slot(C, out, row, layer)
    old = _slot(C, out, row, layer - C.delay)
    if layer < 0:
        common = embed_row(B, C, token)
    else:
        common = _rows_common(B, C, out, inbox, tick, row, layer, kind, position)
    for lane in range(0, C.lanes, C.lane_block):
        lanes, d = _lane_block(C, lane)
        mask = (lanes < C.lanes) & (d < C.hidden)
        g = load_scale(C, scale, lanes, mask)
        x = tl.load(x_row + lanes * C.hidden + d, mask=mask & (layer >= 0), other=0.0)
        if layer < 0:
            x = tl.where(mask, common + x, 0.0)
        else:
            x = tl.where(mask, x + _delta(C, now, old, common, kind, lanes, mask), 0.0)
        tl.store(x_row + lanes * C.hidden + d, x, mask=mask)
        n = normalise(B, C, x, g, 10, layer, position)
        tl.store(n_row + lanes * C.hidden + d, n.to(B.rows_n.dtype.element_ty), mask=mask)


@triton.jit(noinline=True)
def rows_head(B, C: tl.constexpr, row, kind, position):
    """Input of the head for a row: rows_n [row, 0] (one for all lanes) or [row, L]. On one rank only."""
    last = C.layers - 1
    x_row = B.rows_x + row * (C.lanes * C.hidden)
    n_row = B.rows_n + row * (C.lanes * C.hidden)
    now = _slot(C, B.rows_ffn_out, row, last)
    old = _slot(C, B.rows_ffn_out, row, last - C.delay)
    common = _rows_common(B, C, B.rows_ffn_out, 0, 0, row, last, kind, position)
    total = tl.full([1, C.hidden_pad], 0.0, tl.float32)
    for lane in range(0, C.lanes, C.lane_block):
        lanes, d = _lane_block(C, lane)
        mask = (lanes < C.lanes) & (d < C.hidden)
        x = tl.load(x_row + lanes * C.hidden + d, mask=mask, other=0.0)
        x = tl.where(mask, x + _delta(C, now, old, common, kind, lanes, mask), 0.0)
        if C.head != "pre_norm_lane_agg":
            x = normalise(B, C, x, load_scale(C, B.norm, lanes, mask), 10, last, position)
        if C.shared_head:
            total += tl.sum(x, 0)[None, :]
        else:
            tl.store(n_row + lanes * C.hidden + d, x.to(B.rows_n.dtype.element_ty), mask=mask)
    if C.shared_head:
        d = tl.arange(0, C.hidden_pad)[None, :]
        if C.head == "pre_norm_lane_agg":
            total = normalise(B, C, total, tl.load(B.norm + d, mask=d < C.hidden, other=0.0), 10, last, position)
        else:
            total = total / C.lanes
        tl.store(n_row + d, total.to(B.rows_n.dtype.element_ty), mask=d < C.hidden)
