"""Lane reductions and norms: from the outputs of a layer to the next normalised input.

Letters: L lanes, D hidden. History buffers keep the outputs of the last `slots` layers; layer i writes slot i % slots.
"""

import triton
import triton.language as tl

from engine.kernel import control
from engine.kernel.portable.sync import report_error

PAST = tl.constexpr(1)
PRESENT = tl.constexpr(2)
NAN_HIDDEN = tl.constexpr(control.ERROR_NAN_HIDDEN)


@triton.jit
def normalise(B, C: tl.constexpr, x, scale, place, layer, position):
    """RMSNorm of x [D_pad] (zero beyond D) with ``scale`` (pointer to float32 [D]). Reports NaN or infinity."""
    d = tl.arange(0, C.hidden_pad)
    squares = tl.sum(x * x, 0)
    if (squares != squares) | (squares == float("inf")):
        report_error(B, C, NAN_HIDDEN, place, layer, position)
    return x * (1.0 / tl.sqrt(squares / C.hidden + C.eps)) * tl.load(scale + d, mask=d < C.hidden, other=0.0)


@triton.jit
def sum_lanes(C: tl.constexpr, source, d, mask):
    """Sum over the lanes of float32 [L, D] at ``source``, elements d."""
    total = tl.load(source + d, mask=mask, other=0.0)
    for lane in range(1, C.lanes):
        total += tl.load(source + lane * C.hidden + d, mask=mask, other=0.0)
    return total


@triton.jit
def reduction(C: tl.constexpr, out, sums, layer, kind, lane):
    """R_layer(out)[lane], [D_pad]: what lane ``lane`` adds to its state.

    out: float32 [slots, L, D]; sums: float32 [slots, D], over the lanes, of every earlier layer.
    """
    d = tl.arange(0, C.hidden_pad)
    mask = d < C.hidden
    now = out + (layer % C.slots) * (C.lanes * C.hidden)
    own = tl.load(now + lane * C.hidden + d, mask=mask, other=0.0)
    if C.lanes == 1:
        delta = own
    else:
        delta = _reduction_of_lanes(C, out, sums, now, own, layer, kind, lane)
    return delta


@triton.jit
def _reduction_of_lanes(C: tl.constexpr, out, sums, now, own, layer, kind, lane):
    d = tl.arange(0, C.hidden_pad)
    mask = d < C.hidden
    if kind == PRESENT:
        delta = sum_lanes(C, now, d, mask)
    elif kind == PAST:
        old = (layer - C.delay) % C.slots
        others = tl.load(sums + old * C.hidden + d, mask=mask, other=0.0)
        delta = own + (others - tl.load(out + (old * C.lanes + lane) * C.hidden + d, mask=mask, other=0.0))
    else:
        delta = own * C.lanes**0.5
    return delta


@triton.jit(noinline=True)
def store_sums(C: tl.constexpr, out, sums, layer):
    """Each program sums its slice of D of the layer's outputs over the lanes, for the layer that consumes them later."""
    if C.lanes > 1:
        slot = layer % C.slots
        d = tl.program_id(0) * tl.cdiv(C.hidden, C.programs) + tl.arange(0, C.slice_pad)
        end = tl.minimum((tl.program_id(0) + 1) * tl.cdiv(C.hidden, C.programs), C.hidden)
        mask = d < end
        tl.store(sums + slot * C.hidden + d, sum_lanes(C, out + slot * (C.lanes * C.hidden), d, mask), mask=mask)


@triton.jit
def lane_scale(C: tl.constexpr, scale, lane):
    """Pointer to the norm scale of a lane: its own when `lane_norms`, else the shared one."""
    if C.lane_norms:
        pointer = scale + lane * C.hidden
    else:
        pointer = scale
    return pointer


@triton.jit
def embed_row(B, C: tl.constexpr, token):
    d = tl.arange(0, C.hidden_pad)
    return tl.load(B.embedding + token.to(tl.int64) * C.hidden + d, mask=d < C.hidden, other=0.0).to(tl.float32)


@triton.jit
def _state(B, C: tl.constexpr, x_in, out, sums, layer, token, lane):
    """Lane state after the outputs of ``layer``; the embedding when layer is -1."""
    d = tl.arange(0, C.hidden_pad)
    if layer < 0:
        x = embed_row(B, C, token)
    else:
        kind = tl.load(B.kinds + layer * 2)
        x = tl.load(x_in + lane * C.hidden + d, mask=d < C.hidden, other=0.0) + reduction(C, out, sums, layer, kind, lane)
    return x


@triton.jit(noinline=True)
def stage_norm(B, C: tl.constexpr, scratch, lane, write, x_in, x_out, out, sums, layer, token, scale, place, position):
    """One lane's state after ``layer`` and its norm: scratch[lane] [D]. The writer also stores the new state.

    Every program that needs the lane computes the same values; one of them writes x_out, which nobody reads in this phase.
    """
    d = tl.arange(0, C.hidden_pad)
    mask = d < C.hidden
    x = _state(B, C, x_in, out, sums, layer, token, lane)
    if write:
        tl.store(x_out + lane * C.hidden + d, x, mask=mask)
    n = normalise(B, C, x, lane_scale(C, scale, lane), place, layer, position)
    tl.store(scratch + lane * C.hidden + d, n, mask=mask)


@triton.jit(noinline=True)
def stage_head(B, C: tl.constexpr, scratch, x_in, lane_first, lane_last, position):
    """Input of the head in scratch: [D], or [L, D] for the `lane` and `vocab_parallel` heads (its lanes only)."""
    d = tl.arange(0, C.hidden_pad)
    mask = d < C.hidden
    last = C.layers - 1
    if C.head == "pre_norm_lane_agg":
        total = _state(B, C, x_in, B.ffn_out, B.ffn_sum, last, position, 0)
        for lane in range(1, C.lanes):
            total += _state(B, C, x_in, B.ffn_out, B.ffn_sum, last, position, lane)
        tl.store(scratch + d, normalise(B, C, total, B.norm, 7, last, position), mask=mask)
    elif C.head == "replicate":
        total = tl.full([C.hidden_pad], 0.0, tl.float32)
        for lane in range(0, C.lanes):
            x = _state(B, C, x_in, B.ffn_out, B.ffn_sum, last, position, lane)
            total += normalise(B, C, x, lane_scale(C, B.norm, lane), 7, last, position)
        tl.store(scratch + d, total / C.lanes, mask=mask)
    else:
        for lane in range(lane_first, lane_last + 1):
            x = _state(B, C, x_in, B.ffn_out, B.ffn_sum, last, position, lane)
            n = normalise(B, C, x, lane_scale(C, B.norm, lane), 7, last, position)
            tl.store(scratch + lane * C.hidden + d, n, mask=mask)


@triton.jit(noinline=True)
def rows_norm(B, C: tl.constexpr, row, out, layer, token, scale, place, position):
    """A row of a prefill chunk: every lane's state after ``layer`` (in place) and its norm in rows_n.

    out: float32 [slots, R, L, D]. A row belongs to one program, so nothing else reads or writes its state.
    """
    d = tl.arange(0, C.hidden_pad)
    mask = d < C.hidden
    x_row = B.rows_x + row * (C.lanes * C.hidden)
    n_row = B.rows_n + row * (C.lanes * C.hidden)
    if layer < 0:
        x = embed_row(B, C, token)
        for lane in range(0, C.lanes):
            tl.store(x_row + lane * C.hidden + d, x, mask=mask)
            n = normalise(B, C, x, lane_scale(C, scale, lane), place, layer, position)
            tl.store(n_row + lane * C.hidden + d, n.to(B.rows_n.dtype.element_ty), mask=mask)
    else:
        kind = tl.load(B.kinds + layer * 2)
        common = _rows_common(C, out, row, layer, kind)
        for lane in range(0, C.lanes):
            x = tl.load(x_row + lane * C.hidden + d, mask=mask, other=0.0) + _rows_delta(C, out, row, layer, kind, common, lane)
            tl.store(x_row + lane * C.hidden + d, x, mask=mask)
            n = normalise(B, C, x, lane_scale(C, scale, lane), place, layer, position)
            tl.store(n_row + lane * C.hidden + d, n.to(B.rows_n.dtype.element_ty), mask=mask)


@triton.jit
def _slot(C: tl.constexpr, out, row, layer):
    """Pointer to the [L, D] outputs of ``layer`` for a row."""
    return out + ((layer % C.slots) * C.rows + row) * (C.lanes * C.hidden)


@triton.jit
def _rows_common(C: tl.constexpr, out, row, layer, kind):
    """Sum over the lanes that this layer's reduction needs: of its own outputs (present) or of those `delay` layers ago (past)."""
    d = tl.arange(0, C.hidden_pad)
    mask = d < C.hidden
    total = tl.full([C.hidden_pad], 0.0, tl.float32)
    if C.lanes > 1:
        if kind != 0:
            source = _slot(C, out, row, tl.where(kind == PAST, layer - C.delay, layer))
            total = sum_lanes(C, source, d, mask)
    return total


@triton.jit
def _rows_delta(C: tl.constexpr, out, row, layer, kind, common, lane):
    d = tl.arange(0, C.hidden_pad)
    mask = d < C.hidden
    own = tl.load(_slot(C, out, row, layer) + lane * C.hidden + d, mask=mask, other=0.0)
    if C.lanes == 1:
        delta = own
    else:
        old = tl.load(_slot(C, out, row, layer - C.delay) + lane * C.hidden + d, mask=mask & (kind == PAST), other=0.0)
        delta = tl.where(kind == PRESENT, common, tl.where(kind == PAST, own + (common - old), own * C.lanes**0.5))
    return delta


@triton.jit(noinline=True)
def rows_head(B, C: tl.constexpr, row, position):
    """Input of the head for a row whose states are final: rows_n [row, 0] or [row, L]."""
    d = tl.arange(0, C.hidden_pad)
    mask = d < C.hidden
    last = C.layers - 1
    kind = tl.load(B.kinds + last * 2)
    x_row = B.rows_x + row * (C.lanes * C.hidden)
    n_row = B.rows_n + row * (C.lanes * C.hidden)
    common = _rows_common(C, B.rows_ffn_out, row, last, kind)
    total = tl.full([C.hidden_pad], 0.0, tl.float32)
    for lane in range(0, C.lanes):
        x = tl.load(x_row + lane * C.hidden + d, mask=mask, other=0.0)
        x += _rows_delta(C, B.rows_ffn_out, row, last, kind, common, lane)
        if C.head == "pre_norm_lane_agg":
            total += x
        else:
            n = normalise(B, C, x, lane_scale(C, B.norm, lane), 7, last, position)
            if C.head == "replicate":
                total += n / C.lanes
            else:
                tl.store(n_row + lane * C.hidden + d, n.to(B.rows_n.dtype.element_ty), mask=mask)
    if C.head == "pre_norm_lane_agg":
        total = normalise(B, C, total, B.norm, 7, last, position)
    if (C.head == "pre_norm_lane_agg") | (C.head == "replicate"):
        tl.store(n_row + d, total.to(B.rows_n.dtype.element_ty), mask=mask)
