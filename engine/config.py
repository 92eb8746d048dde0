"""Model description: one dataclass for Laneformer and Llama-family checkpoints (a Llama is the one-lane case).

Canonical form: rotary pairs are always interleaved (2j, 2j+1). Loaders of checkpoints whose pairs are two halves permute
the rows of q and k (weights, biases, QK norms) once, so that the reference and the kernel know one style only.
"""

from dataclasses import dataclass
from enum import StrEnum


class Reduction(StrEnum):
    """How lanes exchange the outputs of a layer (source: the model's specification)."""

    PRESENT = "present"  # the sum over all lanes of this layer's outputs
    PAST = "past"  # own output + sum over the other lanes of their output `delay` layers ago
    NONE = "none"  # sqrt(lanes) * own output; with one lane: the output itself


class Head(StrEnum):
    PRE_NORM_SUM = "pre_norm_lane_agg"  # lm_head(norm(sum_l x[l]))
    REPLICATE = "replicate"  # lm_head(mean_l norm_l(x[l]))
    LANE = "lane"  # lm_head on the concatenated normalised lanes
    VOCAB_PARALLEL = "vocab_parallel"  # lane l gives logits l*V/L ... (l+1)*V/L from its own normalised state


@dataclass(frozen=True)
class RopeScaling:
    """``kind``: linear (factor only) or llama3."""

    kind: str
    factor: float
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_context_tokens: int = 8192


@dataclass(frozen=True)
class ModelConfig:
    """Everything the forward pass depends on. Sizes are of the whole model, not of a lane or rank."""

    name: str
    architecture: str  # "laneformer_tp", "llama", "mistral", "qwen2", "qwen3"
    n_layers: int
    hidden_size: int  # D
    n_heads: int
    n_kv_heads: int
    head_size: int
    ffn_size: int  # F
    vocab_size: int  # V
    context_tokens: int
    norm_eps: float
    rope_theta: float
    rope_scaling: RopeScaling | None = None
    n_lanes: int = 1  # L
    delay: int = 0  # d, in layers
    reductions: tuple[Reduction, ...] = ()  # one per layer; () means NONE everywhere
    windows: tuple[int | None, ...] = ()  # one per layer; () means full attention everywhere
    lane_norms: bool = False  # one norm scale per lane instead of one for all
    head: Head = Head.PRE_NORM_SUM
    tied_head: bool = False
    qkv_bias: bool = False
    qk_norm: bool = False
    bos_id: int | None = None
    eos_ids: tuple[int, ...] = ()
