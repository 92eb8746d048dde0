"""Compile-time sizes of the fast path on one rank and the order in which it streams the weights.

A **unit** is what one ring slot holds and one matrix instruction chain multiplies: 64 segment rows of KW = 64 * boxes columns, stored
as `boxes` contiguous [64, 64] tiles. A matrix row of K columns is cut into ``segments`` = K / KW pieces (rounded up to a power of two,
padded with zeros); segment row m of a unit is row m // segments, segment m % segments, so a unit holds 64 // segments matrix rows.

All units of the model form one array [units, boxes, 64, 64] in the order of use. Layers before ``Plan.common_layers`` are computed by
all CTAs together (one lane, or lanes whose sum is needed at once); in the later layers the CTAs form ``groups``, each of which owns
``group_lanes`` lanes and needs the others only through sums that are ``delay`` layers old. A rank with one lane of several (``Plan.chain``) streams
all its layers like a model of one lane.
"""

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from engine.config import Head, ModelConfig, Reduction
from engine.kernel.gluon import ptx_edits
from engine.weights import LayerWeights, ModelWeights, Shard

PARITIES = 8  # activation buffers of this many consecutive layers exist side by side
RESET_AHEAD = 2  # a writer clears the buffer of the layer that comes this many later
MAX_SPLITS = 8  # of the positions of one KV head
KV_ROWS = 64  # positions of one KV unit
LISTED = 128  # candidates for a drawn token that all CTAs look at by themselves: one per thread
SHARED_LIMIT = 232_448 - 5_120  # bytes; the rest is scratch of the compiler and barriers


@dataclass(frozen=True)
class Mode:
    """Sizes of the layers computed by ``ctas`` CTAs together, for ``lanes`` lanes one after the other. Heads, K and F are of one such lane."""

    ctas: int
    lanes: int
    heads: int
    kv_heads: int
    ffn: int
    segments_o: int  # of one lane's columns
    segments_f: int
    splits: int
    sums: int  # lanes whose sums O and W2 keep apart: a block of rows is then ``sums`` units, one for the columns of each lane
    units_qkv: int
    units_o: int
    units_w13: int
    units_w2: int

    def early(self, units: int, most: int) -> int:
        """Arrivals that a wait for the outputs of a phase of ``units`` units may leave out. (Values are checked themselves; but where few CTAs make
        them, the others would all poll those.)"""
        return most if units // self.sums >= 2 * self.ctas else 0

    def together(self, units: int) -> int:
        """Units of a phase that a CTA takes at a time: a pair, which needs one barrier, or one where every unit can have a CTA of its own."""
        return 1 if units <= self.ctas else 2

    @property
    def holds(self) -> bool:
        """Whether the first unit of gate and up waits in registers for its input: where every CTA has one, in models of one lane."""
        return self.sums == 1 and self.units_w13 >= 2 * self.ctas

    @property
    def three_qkv(self) -> bool:
        """Whether a CTA takes two or three units of QKV, one by one: then none waits for a fourth."""
        return 2 * self.ctas < self.units_qkv <= 3 * self.ctas

    @property
    def block_qkv(self) -> int:
        return 1 if self.three_qkv else self.together(self.units_qkv)

    @property
    def block_o(self) -> int:
        """As ``together``, or all lanes of one row block."""
        return self.sums if self.sums > 1 else self.together(self.units_o)

    @property
    def block_w2(self) -> int:
        """As ``block_o``; with more than 16 segments, the pieces of 16 segments of one row block."""
        return self.sums if self.sums > 1 else max(self.together(self.units_w2), self.segments_f // 16)

    @property
    def attending(self) -> int:
        """CTAs that one lane's attention has work for."""
        return self.kv_heads * self.splits

    @property
    def apart(self) -> bool:
        """Whether a lane's output projection goes to CTAs that have no attention meanwhile: those are enough for one pair each."""
        return self.ctas - self.attending >= self.units_o // 2

    @property
    def units_lane(self) -> int:
        return self.units_qkv + self.units_o + self.units_w13 + self.units_w2

    @property
    def units_layer(self) -> int:
        return self.lanes * self.units_lane


@dataclass(frozen=True)
class Plan:
    """Everything the kernel is compiled for. Sizes are of one rank unless their name says ``all``; offsets count 16-bit elements inside one
    parity of the activation buffer."""

    ctas: int
    layers: int
    common_layers: int
    lanes: int
    all_lanes: int  # of the model
    groups: int
    group_lanes: int
    hidden: int
    heads: int
    kv_heads: int
    head_size: int
    ffn: int
    vocab: int
    context: int
    boxes: int
    slots: int
    in_flight: int
    segments_d: int
    x_rows: int  # rows of the shared tiles that hold a phase's input
    common: Mode
    lane: Mode
    units_head: int
    window: int  # 0: none
    windowed: int  # bit per layer
    delay: int
    past_from: int  # first layer with delayed sums
    own_scale: float
    exchange: bool  # some layer needs the other lanes' delayed sums
    head_mean: bool  # the head takes the mean of the normalised lanes, else the norm of their sum
    bias: bool
    eps: float
    early: int  # arrivals that a wait may leave out, since the data are checked themselves
    profile: bool = False
    draws: bool = False  # tokens may be drawn; without it the kernel is shorter and greedy only
    evict_first: bool = False  # weights leave the second-level cache first
    rank: int = 0
    ranks: int = 1
    edits: str = ptx_edits.DIGEST  # only so that Triton compiles again when the edits of the PTX have changed

    @property
    def chain(self) -> bool:
        """This rank owns one of several lanes."""
        return self.lanes == 1 and self.all_lanes > 1

    @property
    def first_lane(self) -> int:
        """The number of this rank's first lane among all."""
        return self.rank * self.lanes if self.all_lanes > 1 else 0

    @property
    def all_groups(self) -> int:
        """Parts of the sum over lanes that the head takes: one per group of lanes."""
        return self.groups * self.ranks

    @property
    def all_vocab(self) -> int:
        return self.vocab * self.ranks

    @property
    def first_vocab(self) -> int:
        """The token id of this rank's first logit."""
        return self.rank * self.vocab

    @property
    def meetings(self) -> int:
        """Arrivals of a CTA at the counter of all ranks per token: after O and W2 of each common layer, before the head if lanes meet
        there, after it."""
        return 2 * self.common_layers + (1 if self.common_layers == self.layers else 2)

    @property
    def parts(self) -> int:
        """Float32 values of one parity of the sums that all ranks need at once: [2 (O, W2), ranks, padded D]."""
        return 2 * self.ranks * self.padded_hidden

    @property
    def pushed_bytes(self) -> int:
        """Bytes that this rank stores in the others' memory for one greedy token."""
        rows = 2 * self.layers * self.lanes * 2 if self.exchange else 0
        sums = (2 * self.common_layers + (self.groups if self.all_lanes > 1 else 0)) * 4
        return (self.ranks - 1) * ((rows + sums) * self.hidden + 8 * self.ctas)

    @property
    def scores_ahead(self) -> bool:
        """Whether attention multiplies the keys of a unit before the unit before is done (with lanes or wide heads that would cost spills)."""
        return self.all_lanes == 1 and self.head_size < 128

    @property
    def kw(self) -> int:
        return 64 * self.boxes

    @property
    def padded_hidden(self) -> int:
        return self.segments_d * self.kw

    @property
    def rows(self) -> int:
        """Matrix rows of a unit whose input is the hidden state."""
        return 64 // self.segments_d

    @property
    def qkv_rows(self) -> int:
        return (self.heads + 2 * self.kv_heads) * self.head_size

    @property
    def max_splits(self) -> int:
        return max(self.common.splits, self.lane.splits)

    # --- offsets in one parity of the activation buffer -----------------------------------------------------------------

    @property
    def at_qkv(self) -> int:
        return 0

    @property
    def at_part(self) -> int:  # [heads, splits, head_size]: attention outputs of the splits
        return _align(self.qkv_rows)

    @property
    def padded_heads(self) -> int:
        """Heads of whole segments of O's input."""
        return self.common.sums * self.common.segments_o * self.kw // self.head_size

    @property
    def lse(self) -> int:
        """Float32 values of one parity of the log-sum-exp buffer [heads, splits]."""
        return self.padded_heads * self.max_splits

    @property
    def at_o(self) -> int:  # [1 + all lanes, padded D]: sum over the lanes (on one rank), then each lane's own
        return _align(self.at_part + self.padded_heads * self.max_splits * self.head_size)

    @property
    def at_u(self) -> int:  # [F]
        return self.at_o + (1 + self.all_lanes) * self.padded_hidden

    @property
    def at_m(self) -> int:  # as at_o, for W2
        return _align(self.at_u + max(self.ffn, self.common.sums * self.common.segments_f * self.kw))

    @property
    def at_e(self) -> int:  # [2, lanes, padded D]: sums over the other lanes, of O and of W2
        return self.at_m + (1 + self.all_lanes) * self.padded_hidden

    @property
    def act(self) -> int:
        return _align(self.at_e + (2 * self.lanes * self.padded_hidden if self.exchange else 0))

    @property
    def padding(self) -> list[tuple[int, int]]:
        """[first, end) of the values in one parity that are read and never written: they must be zero."""
        ranges = []
        for at in (self.at_o, self.at_m):
            ranges += [(at + k * self.padded_hidden + self.hidden, at + (k + 1) * self.padded_hidden) for k in range(1 + self.all_lanes)]
        splits = self.max_splits * self.head_size
        ranges.append((self.at_part + self.heads * splits, self.at_part + self.padded_heads * splits))
        ranges.append((self.at_u + self.ffn, self.at_u + self.common.sums * self.common.segments_f * self.kw))
        return [(first, end) for first, end in ranges if first < end]

    @property
    def sums_by_idle(self) -> bool:
        """Whether the delayed sums are made by those CTAs of a group that have no output projection meanwhile (of the first of its lanes)."""
        return self.lane.apart and not self.chain and self.ranks > 1

    @property
    def presum_columns(self) -> int:
        """Columns of the delayed sums that one CTA makes."""
        ctas = self.groups * (self.lane.ctas - self.lane.units_o // 2) if self.sums_by_idle else self.ctas
        return 2 * -(-self.hidden // (2 * ctas))

    @property
    def presum_width(self) -> int:
        """``presum_columns`` rounded up to a power of two (at least 128)."""
        return max(128, 1 << (self.presum_columns - 1).bit_length())

    # --- units --------------------------------------------------------------------------------------------------------

    @property
    def first_lane_unit(self) -> int:
        return self.common_layers * self.common.units_layer

    @property
    def units_group(self) -> int:
        return (self.layers - self.common_layers) * self.lane.units_layer

    @property
    def first_head_unit(self) -> int:
        return self.first_lane_unit + self.groups * self.units_group

    @property
    def units(self) -> int:
        return self.first_head_unit + self.units_head

    @property
    def head_values(self) -> int:
        """Logits of one CTA, rounded up to a power of two (at least 128)."""
        pairs = -(-self.units_head // (2 * self.ctas))
        return max(128, 1 << (pairs * 2 * self.rows - 1).bit_length())

    @property
    def listed(self) -> int:
        return LISTED

    @property
    def picks(self) -> int:
        """Words with which CTAs agree on a drawn token: [CTAs] picks, [CTAs] masses, [ranks] totals, [ranks, LISTED] candidates."""
        return (2 * self.ctas + 1 + LISTED) * self.ranks

    @property
    def shortlist(self) -> int:
        """The highest k for which the values from the k-th best of the CTAs' best ones up, about -n log(1 - k/n) of n, nearly always fit a list."""
        bests = min(self.ctas * self.ranks, 128)
        return max(1, int(bests * (1 - math.exp(-0.75 * LISTED / bests))))

    @property
    def steps(self) -> int:
        """Profile records of one token."""
        return (self.whole_layers + self.halves) * 5 + 2

    @property
    def whole_layers(self) -> int:
        """Leading layers that all CTAs compute together, phase after phase."""
        return self.layers if self.chain else self.common_layers

    @property
    def halves(self) -> int:
        """Half layers of a group's two lanes: one lane is half a layer behind the other."""
        return 0 if self.chain else 2 * (self.layers - self.common_layers) + 1


def _align(n: int) -> int:
    return -(-n // 64) * 64


def segments(columns: int, kw: int) -> int:
    """Pieces of KW columns of a matrix row, rounded up to a power of two."""
    return 1 << (-(-columns // kw) - 1).bit_length()


def _even(units: int, together: int = 1) -> int:
    """Units rounded up so that, ``together`` at a time, they come in pairs."""
    return units + (units & 1 if together == 1 else 0)


def floor_power_of_two(n: int) -> int:
    """The highest power of two that is at most n, or 1."""
    return 1 << max(0, n.bit_length() - 1)


def choose_boxes(config: ModelConfig) -> int:
    """3 or 4 tiles of 64 columns per unit: whichever pads fewer weight bytes; more bytes per unit wins a tie."""

    def padded(boxes: int) -> float:
        kw, lanes = 64 * boxes, config.n_lanes
        if kw % config.head_size or config.head_size > 32 * boxes:
            return float("inf")
        size = 0
        for rows, columns in (
            ((config.q_size + 2 * config.kv_size) + 2 * config.ffn_size, config.hidden_size),
            (config.hidden_size * lanes, config.q_size // lanes),
            (config.hidden_size * lanes, config.ffn_size // lanes),
        ):
            size += rows * segments(columns, kw) * kw
        return size

    return min((4, 3), key=padded)


def make_plan(
    config: ModelConfig,
    context: int,
    ctas: int,
    *,
    slots: int = 0,
    in_flight: int = 2,
    early: int = 8,
    profile: bool = False,
    evict_first: bool = True,
    max_splits: int = MAX_SPLITS,
    shard: Shard = Shard(),  # noqa: B008
) -> Plan:
    """The plan for one rank, a GPU with ``ctas`` multiprocessors. The model must have passed ``unsupported``.

    in_flight: units whose copies are on their way at a time (more make queues, which delay everything else); early: arrivals that a wait
    may leave out; evict_first: the weight stream does not push code, norms and activations out of the second-level cache.
    """
    all_lanes, reductions = config.n_lanes, config.layer_reductions
    common_layers = config.n_layers if all_lanes == 1 else _present_layers(config)
    config = part_of(config, shard)
    boxes = choose_boxes(config)
    kw = 64 * boxes
    lanes = config.n_lanes
    groups = _groups(lanes, ctas)
    common = _mode(config, ctas, 1, 1, kw, lanes if lanes > 1 else 1, max_splits)
    lane = _mode(config, ctas // groups, lanes // groups, lanes, kw, 1, max_splits)
    past = [i for i, kind in enumerate(reductions) if kind == Reduction.PAST]
    window = next((w for w in config.layer_windows if w), 0)
    segments_d = segments(config.hidden_size, kw)
    x_rows = max(32, segments_d, *(m.sums * max(m.segments_o, m.segments_f) for m in (common, lane)))
    return Plan(
        ctas=ctas,
        layers=config.n_layers,
        common_layers=common_layers,
        lanes=lanes,
        all_lanes=all_lanes,
        groups=groups,
        group_lanes=lanes // groups,
        hidden=config.hidden_size,
        heads=config.n_heads,
        kv_heads=config.n_kv_heads,
        head_size=config.head_size,
        ffn=config.ffn_size,
        vocab=config.vocab_size,
        context=context,
        boxes=boxes,
        slots=slots or min(8, (SHARED_LIMIT - boxes * x_rows * 128) // (boxes * 8192)),
        in_flight=in_flight,
        segments_d=segments_d,
        x_rows=x_rows,
        common=common,
        lane=lane,
        units_head=_even(-(-config.vocab_size // (64 // segments_d))),
        window=window,
        windowed=sum(1 << i for i, w in enumerate(config.layer_windows) if w),
        delay=config.delay,
        past_from=past[0] if past else config.n_layers,
        own_scale=float(all_lanes) ** 0.5,
        exchange=bool(past),
        head_mean=config.head == Head.REPLICATE,
        bias=config.qkv_bias,
        eps=config.norm_eps,
        early=early,
        profile=profile,
        evict_first=evict_first,
        rank=shard.rank,
        ranks=shard.ranks,
    )


def part_of(config: ModelConfig, shard: Shard) -> ModelConfig:
    """Sizes of the part that one rank computes, of which each of its lanes (or its part of the only lane) has its share."""
    ranks = shard.ranks
    return replace(
        config,
        n_heads=config.n_heads // ranks,
        n_kv_heads=config.n_kv_heads // ranks,
        ffn_size=config.ffn_size // ranks,
        vocab_size=config.vocab_size // ranks,
        n_lanes=max(1, config.n_lanes // ranks),
    )


def _mode(config: ModelConfig, ctas: int, lanes: int, parts: int, kw: int, sums: int, max_splits: int) -> Mode:
    """``parts``: lanes that the model is cut into; ``lanes`` of them are computed by these CTAs."""
    heads, kv_heads, ffn = config.n_heads // parts, config.n_kv_heads // parts, config.ffn_size // parts
    d, size = config.hidden_size, config.head_size
    rows_d = 64 // segments(d, kw)
    segments_o, segments_f = segments(heads * size // sums, kw), segments(ffn // sums, kw)
    parts_f = max(1, segments_f // 16)
    return Mode(
        ctas=ctas,
        lanes=lanes,
        heads=heads,
        kv_heads=kv_heads,
        ffn=ffn,
        segments_o=segments_o,
        segments_f=segments_f,
        splits=min(max_splits, floor_power_of_two(ctas // (lanes * kv_heads))),
        sums=sums,
        units_qkv=_even(-(-(heads + 2 * kv_heads) * size // rows_d)),
        units_o=sums * _even(-(-d // (64 // segments_o)), sums),
        units_w13=2 * -(-ffn // rows_d),
        units_w2=sums * parts_f * _even(-(-d // (64 * parts_f // segments_f)), sums * parts_f),
    )


def useful_ctas(config: ModelConfig, ctas: int) -> int:
    """CTAs that the largest phase of a layer has work for, but at least half of all, for the head. In a small model the others would only wait,
    and their polls would slow the rest (SmolLM2-135M on an H200: 132, 96, 66, 48 CTAs take 409, 403, 408, 416 us a token)."""
    if config.n_lanes > 1:
        return ctas
    mode = _mode(config, ctas, 1, 1, 64 * choose_boxes(config), 1, MAX_SPLITS)
    pairs = max(mode.units_qkv, mode.units_o, mode.units_w13, mode.units_w2) // 2
    return min(ctas, max(pairs, ctas // 2))


def _groups(lanes: int, ctas: int) -> int:
    """As many groups as give each two lanes: while one lane's values travel, the other lane's weights are multiplied."""
    return max(1, lanes // 2) if lanes > 1 else 1


def _present_layers(config: ModelConfig) -> int:
    """Leading layers whose lane sum is needed at once."""
    count = 0
    while count < config.n_layers and config.layer_reductions[count] == Reduction.PRESENT:
        count += 1
    return count


def unsupported(config: ModelConfig, ctas: int, shard: Shard = Shard()) -> str | None:  # noqa: B008
    """Why the fast path cannot run this model on such ranks, or None."""
    all_lanes, reductions = config.n_lanes, config.layer_reductions
    if all_lanes & (all_lanes - 1):
        return f"{all_lanes} lanes (2, 4, 8, ... are taken)"
    present = _present_layers(config)
    config = part_of(config, shard)
    lanes = config.n_lanes
    if config.head_size not in (64, 96, 128):
        return f"head size {config.head_size} (64, 96 and 128 are taken)"
    if config.qk_norm:
        return "norms of q and k"
    if config.heads_per_kv_head > 7:
        return f"{config.heads_per_kv_head} query heads per KV head (at most 7)"
    if config.lane_norms:
        return "norms per lane"
    if config.n_layers > 63:
        return f"{config.n_layers} layers (at most 63)"
    if len({w for w in config.layer_windows if w}) > 1:
        return "windows of different sizes"
    boxes = choose_boxes(config)
    kw = 64 * boxes
    if kw % config.head_size or config.head_size > 32 * boxes:
        return f"head size {config.head_size} with units of {kw} columns"
    for name, columns in (("hidden size", config.hidden_size), ("FFN size", config.ffn_size), ("attention width", config.q_size)):
        if segments(columns, kw) > 64:
            return f"{name} {columns:,} (at most {64 * kw:,})"
    for name, columns in (("hidden size", config.hidden_size), ("attention width of a lane", config.q_size // lanes)):
        if segments(columns, kw) > 16:
            return f"{name} {columns:,} (at most {16 * kw:,})"
    if config.n_kv_heads > ctas:
        return f"{config.n_kv_heads} KV heads on {ctas} multiprocessors"
    if all_lanes == 1:
        return None
    if config.qkv_bias:
        return "biases with lanes"
    if config.head not in (Head.PRE_NORM_SUM, Head.REPLICATE):
        return f"head arrangement {config.head}"
    if ctas % _groups(lanes, ctas):
        return f"{lanes} lanes on {ctas} multiprocessors"
    if present == config.n_layers or Reduction.PRESENT in reductions[present:]:
        return "layers with present sums after others"
    past = [i for i, kind in enumerate(reductions) if kind == Reduction.PAST]
    if past and (past != list(range(past[0], config.n_layers)) or config.delay != 2):
        return f"this pattern of delayed sums (delay {config.delay})"
    for name, columns in (("attention width", config.q_size), ("FFN size", config.ffn_size)):
        if columns % (lanes * kw) or segments(columns, kw) * kw != columns:
            return f"{name} {columns:,} in {lanes} lanes"
    if segments(config.hidden_size, kw) * kw != config.hidden_size:
        return f"hidden size {config.hidden_size:,} with lanes"
    if segments(config.ffn_per_lane, kw) > 16:
        return f"FFN size of a lane {config.ffn_per_lane:,} (at most {16 * kw:,})"
    return None


# --- packing ------------------------------------------------------------------------------------------------------------


def pack_rows(w: Tensor, boxes: int, out: Tensor) -> None:
    """w [rows, K] -> out [units, boxes, 64, 64] in unit order, padded with zeros."""
    kw = 64 * boxes
    pieces = segments(w.shape[1], kw)
    per_unit = 64 // pieces
    padded = _padded(w, out.shape[0] * per_unit, pieces * kw)
    view = padded.view(out.shape[0], per_unit, pieces, boxes, 64).permute(0, 3, 1, 2, 4)
    out.unflatten(2, (per_unit, pieces)).copy_(view)


def permute_heads(wo: Tensor, head_size: int, kw: int) -> Tensor:
    """Columns of wo [D, heads * h] in the order in which the attention outputs are laid out for the matrix unit.

    With head size 96 (two heads per 192 columns) tile j of a segment holds columns 32j .. 32j+31 of both heads; otherwise the order is
    the natural one.
    """
    if head_size != 96:
        return wo
    d = wo.shape[0]
    pad = -wo.shape[1] % kw
    if pad:
        wo = torch.cat([wo, wo.new_zeros(d, pad)], 1)
    return wo.view(d, -1, 2, 3, 32).transpose(2, 3).reshape(d, -1)


def pack(config: ModelConfig, weights: ModelWeights, plan: Plan) -> Tensor:
    """A rank's part of all matrices as [units, boxes, 64, 64] in the order of use, on the device of the weights."""
    config = part_of(config, Shard(plan.rank, plan.ranks))
    first = weights.layers[0].wqkv
    packed = torch.empty(plan.units, plan.boxes, 64, 64, dtype=first.dtype, device=first.device)
    for index, layer in enumerate(weights.layers):
        if index < plan.common_layers:
            at = index * plan.common.units_layer
            _pack_lane(plan, plan.common, packed, at, 0, _joined(config, layer))
            continue
        for lane in range(plan.lanes):
            group, a = divmod(lane, plan.group_lanes)
            at = plan.first_lane_unit + group * plan.units_group + (index - plan.common_layers) * plan.lane.units_layer
            _pack_lane(
                plan, plan.lane, packed, at, a, (layer.wqkv[lane], layer.wo[lane : lane + 1], layer.w13[lane], layer.w2[lane : lane + 1])
            )
    pack_rows(weights.head, plan.boxes, packed[plan.first_head_unit :])
    return packed


def _pack_lane(plan: Plan, mode: Mode, packed: Tensor, at: int, index: int, matrices: tuple[Tensor, ...]) -> None:
    """Pack lane ``index`` of a group's layer, whose units start at ``at``: QKV of all its lanes, then O of all, W13, W2.

    ``matrices``: wqkv [rows, D], wo [sums, D, columns], w13 [2F, D], w2 [sums, D, columns].
    """
    wqkv, wo, w13, w2 = matrices
    wo = torch.stack([permute_heads(w, plan.head_size, plan.kw) for w in wo])
    gate_and_up = torch.stack(w13.chunk(2))  # a pair of units: the gates and the ups of the same columns
    if mode.sums == 1 and mode.segments_f > 16:  # a row block is cut into units of 16 segments
        w2 = torch.stack(_padded(w2[0], w2.shape[1], mode.segments_f * plan.kw).split(16 * plan.kw, dim=1))
    for units, matrix in zip((mode.units_qkv, mode.units_o, mode.units_w13, mode.units_w2), (wqkv[None], wo, gate_and_up, w2), strict=True):
        start, kinds = at + index * units, len(matrix)
        blocks = packed[start : start + units].view(units // kinds, kinds, plan.boxes, 64, 64)
        for k, w in enumerate(matrix):
            pack_rows(w, plan.boxes, blocks[:, k])
        at += mode.lanes * units


def _padded(w: Tensor, rows: int, columns: int) -> Tensor:
    """w with zeros below and to the right."""
    if w.shape == (rows, columns):
        return w
    out = w.new_zeros(rows, columns)
    out[: w.shape[0], : w.shape[1]] = w
    return out


def _joined(config: ModelConfig, layer: LayerWeights) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The layer as one lane: q rows of all lanes, then k, then v; gates of all lanes, then ups."""
    size = config.head_size
    sizes = [config.heads_per_lane * size, config.kv_heads_per_lane * size, config.kv_heads_per_lane * size]
    wqkv = torch.cat([part.flatten(0, 1) for part in layer.wqkv.split(sizes, dim=1)])
    gate, up = layer.w13.chunk(2, dim=1)
    w13 = torch.cat([gate.flatten(0, 1), up.flatten(0, 1)])
    return wqkv, layer.wo, w13, layer.w2
