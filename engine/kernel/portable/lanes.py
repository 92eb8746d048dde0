"""Lane reductions and norms: from the outputs of a layer to the next normalised input.

Letters: L lanes, D hidden, LB lanes in one block of work. History buffers keep the outputs of the last `slots` layers; layer i
writes slot i % slots.
"""

import triton
import triton.language as tl

from engine.kernel import control
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
def sum_lanes(C: tl.constexpr, source, d, mask):
    """Sum over the lanes of float32 [L, D] at ``source``, elements d. All loads are in flight together."""
    LANES: tl.constexpr = C.lanes
    total = tl.load(source + d, mask=mask, other=0.0)
    for lane in tl.static_range(1, LANES):
        total += tl.load(source + lane * C.hidden + d, mask=mask, other=0.0)
    return total


@triton.jit
def store_sums(C: tl.constexpr, out, sums, layer):
    """Each program sums its slice of D of the layer's outputs over the lanes, for the layer that consumes them later."""
    if C.lanes > 1:
        slot = layer % C.slots
        d = tl.program_id(0) * tl.cdiv(C.hidden, C.programs) + tl.arange(0, C.slice_pad)
        end = tl.minimum((tl.program_id(0) + 1) * tl.cdiv(C.hidden, C.programs), C.hidden)
        mask = d < end
        tl.store(sums + slot * C.hidden + d, sum_lanes(C, out + slot * (C.lanes * C.hidden), d, mask), mask=mask)


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
    if C.lanes > 1:
        past = tl.load(old + lanes * C.hidden + d, mask=mask & (kind == PAST), other=0.0)
        own = tl.where(kind == PRESENT, common, tl.where(kind == PAST, own + (common - past), own * C.lanes**0.5))
    return own


@triton.jit
def _row_common(C: tl.constexpr, now, old_sum, kind):
    """The lane sum that one row's reduction needs, [1, D_pad]; old_sum: float32 [D], made when it was new."""
    d = tl.arange(0, C.hidden_pad)[None, :]
    mask = d < C.hidden
    if kind == PRESENT:
        common = sum_lanes(C, now, d, mask)
    else:
        common = tl.load(old_sum + d, mask=mask & (kind == PAST), other=0.0)
    return common


@triton.jit
def _state(B, C: tl.constexpr, x_in, out, sums, layer, kind, token, lanes, mask):
    """Lane states [LB, D_pad] after the outputs of ``layer``; the embedding when layer is -1.

    out: float32 [slots, L, D]; sums: float32 [slots, D], over the lanes, of every earlier layer.
    """
    if layer < 0:
        x = embed_row(B, C, token) + tl.full([C.lane_block, C.hidden_pad], 0.0, tl.float32)
    else:
        d = tl.arange(0, C.hidden_pad)[None, :]
        now = out + (layer % C.slots) * (C.lanes * C.hidden)
        slot = (layer + C.slots - C.delay) % C.slots
        x = tl.load(x_in + lanes * C.hidden + d, mask=mask, other=0.0)
        if C.lanes > 1:
            common = _row_common(C, now, sums + slot * C.hidden, kind)
        else:
            common = x
        x += _delta(C, now, out + slot * (C.lanes * C.hidden), common, kind, lanes, mask)
    return x


@triton.jit(noinline=True)
def stage_norm(
    B, C: tl.constexpr, scratch, lane, lane_last, write_from, write_to, x_in, x_out, out, sums, layer, kind, token, scale, place, position
):
    """States after ``layer`` of lanes ``lane`` .. lane_last (at most LB) and their norms: scratch[lane] [D].

    Every program that needs a lane computes the same values; the one for which write_from <= lane < write_to also stores the
    new state in x_out, which nobody reads in this phase.
    """
    lanes, d = _lane_block(C, lane)
    mask = (lanes <= lane_last) & (d < C.hidden)
    g = load_scale(C, scale, lanes, mask)
    x = tl.where(mask, _state(B, C, x_in, out, sums, layer, kind, token, lanes, mask), 0.0)
    tl.store(scratch + lanes * C.hidden + d, normalise(B, C, x, g, place, layer, position), mask=mask)
    tl.store(x_out + lanes * C.hidden + d, x, mask=mask & (lanes >= write_from) & (lanes < write_to))


@triton.jit(noinline=True)
def final_lanes(B, C: tl.constexpr, x_in, kind, position):
    """Final state of every lane, normalised where the head wants it per lane: B.final [L, D]. A program takes LB lanes."""
    last = C.layers - 1
    for lane in range(tl.program_id(0) * C.lane_block, C.lanes, C.programs * C.lane_block):
        lanes, d = _lane_block(C, lane)
        mask = (lanes < C.lanes) & (d < C.hidden)
        x = tl.where(mask, _state(B, C, x_in, B.ffn_out, B.ffn_sum, last, kind, position, lanes, mask), 0.0)
        if C.head != "pre_norm_lane_agg":
            x = normalise(B, C, x, load_scale(C, B.norm, lanes, mask), 7, last, position)
        tl.store(B.final + lanes * C.hidden + d, x, mask=mask)


@triton.jit(noinline=True)
def stage_head(B, C: tl.constexpr, scratch, position):
    """Input [D] of a head that all lanes share, from B.final: norm of the sum, or mean of the norms."""
    d = tl.arange(0, C.hidden_pad)[None, :]
    mask = d < C.hidden
    x = sum_lanes(C, B.final, d, mask)
    if C.head == "pre_norm_lane_agg":
        x = normalise(B, C, x, tl.load(B.norm + d, mask=mask, other=0.0), 7, C.layers - 1, position)
    else:
        x = x / C.lanes
    tl.store(scratch + d, x, mask=mask)


@triton.jit
def _slot(C: tl.constexpr, out, row, layer):
    """Pointer to the [L, D] outputs of ``layer`` for a row; out: float32 [slots, R, L, D]."""
    return out + (((layer + C.slots) % C.slots) * C.rows + row) * (C.lanes * C.hidden)


@triton.jit
def _rows_common(C: tl.constexpr, out, row, layer, kind):
    """The lane sum that this layer's reduction needs for a row, [1, D_pad]."""
    d = tl.arange(0, C.hidden_pad)[None, :]
    total = tl.full([1, C.hidden_pad], 0.0, tl.float32)
    if C.lanes > 1:
        if kind != 0:
            source = _slot(C, out, row, tl.where(kind == PAST, layer - C.delay, layer))
            total = sum_lanes(C, source, d, d < C.hidden)
    return total


@triton.jit(noinline=True)
def rows_norm(B, C: tl.constexpr, row, out, layer, kind, token, scale, position):
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
        common = _rows_common(C, out, row, layer, kind)
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
    """Input of the head for a row: rows_n [row, 0] (one for all lanes) or [row, L]."""
    last = C.layers - 1
    x_row = B.rows_x + row * (C.lanes * C.hidden)
    n_row = B.rows_n + row * (C.lanes * C.hidden)
    now = _slot(C, B.rows_ffn_out, row, last)
    old = _slot(C, B.rows_ffn_out, row, last - C.delay)
    common = _rows_common(C, B.rows_ffn_out, row, last, kind)
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
