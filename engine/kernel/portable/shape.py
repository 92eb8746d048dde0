"""Everything the portable kernel knows at compile time, and the buffers it works in."""

from dataclasses import dataclass
from typing import Any, NamedTuple


def ceil_power_of_two(n: int) -> int:
    """The smallest power of two >= n."""
    return 1 << max(0, n - 1).bit_length()


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


@dataclass(frozen=True)
class Matrix:
    """Tile sizes of one projection: N output rows and K inputs per lane.

    gemv: one row of activations; a unit is [bn, bk] weights, `stages` of them in flight. gemm: `rows` of activations in tiles
    of [mn, mk]. Where a gate and an up row make one output, N counts both and mn the outputs.
    """

    n: int
    k: int
    bn: int
    bk: int
    stages: int
    mn: int
    mk: int
    mstages: int

    @property
    def chunks(self) -> int:
        return ceil_div(self.k, self.bk)

    @property
    def even(self) -> bool:
        return self.n % self.bn == 0 and self.k % self.bk == 0

    @property
    def even_mma(self) -> bool:
        return self.n % self.mn == 0 and self.k % self.mk == 0


@dataclass(frozen=True)
class Shape:
    """Sizes are of one rank. L lanes, D hidden, H and K heads of one lane, h head size, F FFN columns of one lane."""

    layers: int
    lanes: int  # L
    hidden: int  # D
    q_heads: int  # H/L
    kv_heads: int  # K/L
    head_size: int  # h
    ffn: int  # F/L
    vocab: int  # V
    context: int
    delay: int
    head: str  # engine.config.Head value
    eps: float
    qkv_bias: bool
    qk_norm: bool
    lane_norms: bool
    programs: int  # grid size
    rows: int  # rows of a prefill chunk
    rank: int
    ptx: bool
    warps: int
    qkv: Matrix
    o: Matrix
    w13: Matrix
    w2: Matrix
    lm: Matrix
    max_splits: int  # of the KV length, in decode
    lane_block: int = 1  # lanes that a program stages together
    ahead: int = 65536  # bytes of the next projection that a program asks for in the L2 cache before it waits
    profile: int = 0  # barriers that the trace holds; 0: no trace
    block_t: int = 64  # KV positions a step of attention takes
    block_q: int = 32  # query rows an attention program takes in prefill
    ranks: int = 1
    total_lanes: int = 1  # of the model

    @property
    def slots(self) -> int:
        """Layers whose outputs are kept: this one and the `delay` before it. A peer may be `delay` layers ahead."""
        return self.delay + 1 if self.ranks == 1 else 2 * self.delay + 1

    @property
    def sources(self) -> int:
        """Outputs that a layer's sum has: one per lane, or one partial sum per rank of a one-lane model."""
        return self.total_lanes if self.total_lanes > 1 else self.ranks

    @property
    def ticks(self) -> int:
        """Tags that a token or a chunk takes: its layers, then TICK_* of exchange.py."""
        return self.layers + 32

    # --- words that other ranks push into this one's memory: offsets into its inbox, int64 (exchange.py) ---------------

    @property
    def inbox_layer(self) -> int:
        """Words of one layer's outputs for one row: [sources, D]."""
        return self.sources * self.hidden

    @property
    def inbox_ffn(self) -> int:
        """FFN outputs [slots, sources, D]; the attention outputs before them start at 0."""
        return self.slots * self.inbox_layer

    @property
    def inbox_final(self) -> int:
        """Final lane states [sources, D]."""
        return 2 * self.inbox_ffn

    @property
    def inbox_best(self) -> int:
        """Candidates [2 (parity of the position), 2 (plain, noisy), ranks, programs, 2 (score, id)]."""
        return self.inbox_final + self.inbox_layer

    @property
    def inbox_mass(self) -> int:
        """Partial masses of a pivot search [2 (parity of the round), ranks, programs, 16]."""
        return self.inbox_best + 8 * self.ranks * self.programs

    @property
    def inbox_signs(self) -> int:
        """[64]: single words, SIGN_* of exchange.py."""
        return self.inbox_mass + 32 * self.ranks * self.programs

    @property
    def inbox_rows(self) -> int:
        """Outputs for the rows of a chunk: attention [slots, R, sources, D], then FFN."""
        return self.inbox_signs + 64

    @property
    def inbox_rows_ffn(self) -> int:
        return self.inbox_rows + self.slots * self.rows * self.inbox_layer

    @property
    def inbox_words(self) -> int:
        return self.inbox_rows_ffn + self.slots * self.rows * self.inbox_layer if self.ranks > 1 else 1

    @property
    def pushed_bytes(self) -> int:
        """Bytes that this rank stores in the others' inboxes for one token, without top-k and top-p."""
        final = self.lanes * self.hidden if self.total_lanes > 1 and self.head != "vocab_parallel" else 0
        words = 2 * self.layers * self.lanes * self.hidden + final + 4 * self.programs
        return 8 * (self.ranks - 1) * words

    @property
    def push_at_once(self) -> bool:
        """Outputs go to the other ranks as soon as they exist: every layer of a one-lane model waits for them. Otherwise a phase later."""
        return self.ranks > 1 and self.total_lanes == 1

    @property
    def push_share(self) -> int:
        """Elements of [L, D] that a program pushes."""
        return ceil_div(self.lanes * self.hidden, self.programs)

    @property
    def push_pad(self) -> int:
        return ceil_power_of_two(self.push_share)

    @property
    def candidates_pad(self) -> int:
        return ceil_power_of_two(self.ranks * self.programs)

    @property
    def ranks_pad(self) -> int:
        return ceil_power_of_two(self.ranks)

    @property
    def source_block(self) -> int:
        """Sources whose whole rows are awaited together."""
        return min(2, self.sources)

    @property
    def sources_pad(self) -> int:
        return ceil_power_of_two(self.sources)

    @property
    def group(self) -> int:
        return self.q_heads // self.kv_heads

    @property
    def qkv_rows(self) -> int:
        return (self.q_heads + 2 * self.kv_heads) * self.head_size

    @property
    def attention_width(self) -> int:
        return self.q_heads * self.head_size

    @property
    def hidden_pad(self) -> int:
        return ceil_power_of_two(self.hidden)

    @property
    def head_pad(self) -> int:
        return max(16, ceil_power_of_two(self.head_size))

    @property
    def group_pad(self) -> int:
        return max(16, ceil_power_of_two(self.group))

    @property
    def splits_pad(self) -> int:
        return ceil_power_of_two(self.max_splits)

    @property
    def combine_group(self) -> int:
        return ceil_power_of_two(self.group)

    @property
    def slice_pad(self) -> int:
        """Elements of D that a program sums over the lanes."""
        return ceil_power_of_two(ceil_div(self.hidden, self.programs))

    @property
    def vocab_slice(self) -> int:
        """Logits that a program filters."""
        return ceil_div(self.vocab, self.programs)

    @property
    def vocab_slice_pad(self) -> int:
        return ceil_power_of_two(self.vocab_slice)

    @property
    def programs_pad(self) -> int:
        return ceil_power_of_two(self.programs)

    @property
    def shared_head(self) -> bool:
        """One input [D] for the whole head, made of all lanes."""
        return self.head in ("pre_norm_lane_agg", "replicate")

    @property
    def head_lanes(self) -> int:
        return self.lanes if self.head == "vocab_parallel" else 1

    @property
    def scratch_width(self) -> int:
        """Staged inputs of one program: [L, D], or of all lanes for a head that reads them all."""
        lanes = self.total_lanes if self.head == "lane" and self.ranks > 1 else self.lanes
        return lanes * self.hidden


class Buffers(NamedTuple):
    """Device memory of the portable kernel. R rows of a chunk; A: the weight dtype. Letters as in Shape."""

    # protocol (engine/kernel/control.py, params.py)
    ring: Any
    status: Any
    stop_word: Any
    error: Any
    device: Any
    barrier: Any  # int32 [4 + L*K]: barrier counter, then `arrived`; zeroed before every launch
    ints: Any
    floats: Any
    peers: Any  # int64 [ranks]: addresses of the ranks' inboxes as this rank sees them
    inbox: Any  # int64 [inbox_words]: what the other ranks push here
    # model
    table: Any  # int64 [layers, 9]: addresses of wqkv, wo, w13, w2 (A); attention norm, FFN norm, QKV bias, q norm, k norm (float32)
    kinds: Any  # int32 [layers, 2]: reduction (0 none, 1 past, 2 present), window
    embedding: Any  # A [V, D]
    norm: Any  # float32 [1 or L, D]
    head: Any  # A
    cos: Any  # float32 [context, h/2]
    sin: Any
    k_cache: Any  # A [layers, L*K, context, h]
    v_cache: Any
    trace: Any  # int64 [profile, programs, 2]: clock at each barrier's arrival and exit
    # one row
    x: Any  # float32 [2, L, D]: lane states, written alternately
    qkv: Any  # float32 [L, (H+2K)*h]
    part: Any  # float32 [L*H, splits, head_pad]: attention of a split of the KV length, not normalised
    part_max: Any  # float32 [L*H, splits]
    part_sum: Any  # float32 [L*H, splits]
    arrived: Any  # int32 [L*K]: splits of a KV head that are done; part of `barrier`
    attended: Any  # float32 [L, H*h]: attention output
    attention_out: Any  # float32 [slots, L, D]: outputs of the last layers
    ffn_out: Any
    attention_sum: Any  # float32 [slots, D]: their sums over the lanes
    ffn_sum: Any
    gated: Any  # float32 [L, F]
    final: Any  # float32 [L, D]: lane states, or their norms, at the end of the last layer
    scratch: Any  # float32 [programs, scratch_width]: each program's own staged input
    logits: Any  # float32 [V], or [tokens, V] when every token's logits are kept
    best: Any  # float32 [2, programs]: best plain and best noisy score
    best_id: Any  # int32 [2, programs]
    mass: Any  # float32 [programs, 16]: partial counts or masses of a pivot search
    # rows of a chunk
    rows_x: Any  # float32 [R, L, D]
    rows_n: Any  # A [R, L, D]: normalised
    rows_qkv: Any  # float32 [R, L, (H+2K)*h]
    rows_q: Any  # A [R, L*H, h]: rotated
    rows_a: Any  # A [R, L, H*h]
    rows_attention_out: Any  # float32 [slots, R, L, D]
    rows_ffn_out: Any
    rows_gated: Any  # A [R, L, F]
