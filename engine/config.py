"""Model description: one dataclass for Laneformer and Llama-family checkpoints (a Llama is the one-lane case).

Canonical form: rotary pairs are always interleaved (2j, 2j+1). Loaders of checkpoints whose pairs are two halves permute
the rows of q and k (weights, biases, QK norms) once, so that the reference and the kernel know one style only.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from engine.errors import ModelError

if TYPE_CHECKING:
    from torch import Tensor

ARCHITECTURES = ("laneformer_tp", "llama", "mistral", "qwen2", "qwen3")
MAX_LAYERS = 1024  # everything per layer is a list of this length
MAX_WINDOW = 1 << 30  # kernels count positions in int32
MAX_SIZE = (1 << 31) - 1  # of everything else but the context, of which as much is used as fits the memory


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
    """``kind``: linear (factor only), llama3, or factors (one divisor per rotary pair, as GGUF files store them)."""

    kind: str
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_context_tokens: int = 8192
    factors: tuple[float, ...] = ()

    def __post_init__(self):
        if self.kind not in ("linear", "llama3", "factors"):
            raise ModelError(f"Rotary scaling must be linear, llama3 or factors; got {self.kind!r}.")
        if self.kind != "factors" and not 1.0 <= self.factor <= sys.float_info.max:
            raise ModelError(f"The factor of the {self.kind} rotary scaling must be a finite number of at least 1; got {self.factor!r}.")
        if self.kind == "llama3" and not 0 < self.low_freq_factor < self.high_freq_factor <= sys.float_info.max:
            raise ModelError(
                f"llama3 rotary scaling needs 0 < low_freq_factor < high_freq_factor, both finite; got {self.low_freq_factor!r} and "
                f"{self.high_freq_factor!r}."
            )
        wrong = next((factor for factor in self.factors if not 0 < factor <= sys.float_info.max), None)
        if wrong is not None:
            raise ModelError(f"Rotary factors must be finite numbers above 0; got {wrong!r}.")
        if self.kind == "llama3" and not 1 <= self.original_context_tokens <= MAX_WINDOW:
            raise ModelError(
                f"original_max_position_embeddings must lie between 1 and {MAX_WINDOW:,}; got {self.original_context_tokens:,}."
            )


@dataclass(frozen=True)
class ModelConfig:
    """Everything the forward pass depends on. Sizes are of the whole model, not of a lane or rank.

    Checks itself when made; raises ModelError that names the values which do not fit.
    """

    name: str
    architecture: str  # one of ARCHITECTURES
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
    dtype: str = "float16"  # of the weights as they are stored: "float32", "float16" or "bfloat16"

    def __post_init__(self):
        self._check_sizes()
        self._check_layers()
        self._check_head()
        for token in (self.bos_id, *self.eos_ids):
            if token is not None and not 0 <= token < self.vocab_size:
                self._fail(f"special token {token} lies outside the vocabulary of {self.vocab_size:,}")

    # --- derived sizes -----------------------------------------------------------------------------------------------

    @property
    def heads_per_lane(self) -> int:
        return self.n_heads // self.n_lanes

    @property
    def kv_heads_per_lane(self) -> int:
        return self.n_kv_heads // self.n_lanes

    @property
    def heads_per_kv_head(self) -> int:
        return self.n_heads // self.n_kv_heads

    @property
    def ffn_per_lane(self) -> int:
        return self.ffn_size // self.n_lanes

    @property
    def q_size(self) -> int:
        """Query rows of the whole model: n_heads * head_size (not always D)."""
        return self.n_heads * self.head_size

    @property
    def kv_size(self) -> int:
        return self.n_kv_heads * self.head_size

    @property
    def layer_reductions(self) -> tuple[Reduction, ...]:
        """One per layer, with the default filled in."""
        return self.reductions or (Reduction.NONE,) * self.n_layers

    @property
    def layer_windows(self) -> tuple[int | None, ...]:
        """One per layer: how many keys a query sees, itself included; None: all before it."""
        return self.windows or (None,) * self.n_layers

    @property
    def per_lane_final_norm(self) -> bool:
        return self.lane_norms and self.head != Head.PRE_NORM_SUM

    @property
    def head_inputs(self) -> int:
        return self.hidden_size * (self.n_lanes if self.head == Head.LANE else 1)

    @property
    def parameters(self) -> int:
        d, h, norms = self.hidden_size, self.head_size, self.n_lanes if self.lane_norms else 1
        layer = d * (2 * self.q_size + 2 * self.kv_size) + 3 * d * self.ffn_size + 2 * norms * d
        if self.qkv_bias:
            layer += self.q_size + 2 * self.kv_size
        if self.qk_norm:
            layer += 2 * h
        final_norm = d * (self.n_lanes if self.per_lane_final_norm else 1)
        head = 0 if self.tied_head else self.vocab_size * self.head_inputs
        return self.vocab_size * d + self.n_layers * layer + final_norm + head

    def bytes_per_token(self, dtype_bytes: int) -> int:
        """Weight bytes read for one decoded token: every matrix and norm once, one row of the embedding."""
        embedding = self.vocab_size * self.hidden_size
        read = self.parameters + self.hidden_size if self.tied_head else self.parameters - embedding + self.hidden_size
        return read * dtype_bytes

    def kv_bytes_per_token(self, dtype_bytes: int) -> int:
        """Bytes that one position adds to the KV cache of all layers."""
        return 2 * self.kv_size * self.n_layers * dtype_bytes

    def rope_inverse_frequencies(self) -> Tensor:
        """[head_size / 2] float32: radians per position of each rotary pair, scaling included.

        llama3 (Llama 3.1 and later): wavelengths above original / low_freq_factor are divided by ``factor``, those below
        original / high_freq_factor are kept, those between are blended linearly in original / wavelength.
        """
        import torch

        exponents = torch.arange(0, self.head_size, 2, dtype=torch.int64).float() / self.head_size
        frequencies = 1.0 / (self.rope_theta**exponents)
        scaling = self.rope_scaling
        if scaling is None:
            return frequencies
        if scaling.kind == "linear":
            return frequencies / scaling.factor
        if scaling.kind == "factors":
            return frequencies / torch.tensor(scaling.factors, dtype=torch.float32)
        low, high, original = scaling.low_freq_factor, scaling.high_freq_factor, scaling.original_context_tokens
        wavelengths = 2 * math.pi / frequencies
        kept = ((original / wavelengths - low) / (high - low)).clamp(0.0, 1.0)
        blended = (1 - kept) * frequencies / scaling.factor + kept * frequencies
        return torch.where(kept == 0, frequencies / scaling.factor, torch.where(kept == 1, frequencies, blended))

    def check_ranks(self, ranks: int) -> None:
        """Raises ModelError unless the model divides over ``ranks`` GPUs: by lanes, or by heads when there is one lane."""
        if ranks < 1:
            self._fail(f"the number of GPUs must be at least 1; got {ranks}")
        units = {"lanes": self.n_lanes}
        if self.n_lanes == 1:
            units = {"query heads": self.n_heads, "KV heads": self.n_kv_heads, "FFN columns": self.ffn_size}
        units["vocabulary rows"] = self.vocab_size
        for what, count in units.items():
            if count % ranks:
                self._fail(f"{count:,} {what} do not divide over {ranks} GPUs")

    # --- checks ------------------------------------------------------------------------------------------------------

    def _fail(self, problem: str) -> None:
        raise ModelError(f"{self.name}: {problem}.")

    def _check_sizes(self) -> None:
        if self.architecture not in ARCHITECTURES:
            self._fail(f"architecture must be one of {', '.join(ARCHITECTURES)}; got {self.architecture!r}")
        sizes = "n_layers hidden_size n_heads n_kv_heads head_size ffn_size vocab_size context_tokens n_lanes"
        for size in sizes.split():
            value = getattr(self, size)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                self._fail(f"{size} must be a whole number of at least 1; got {value!r}")
            limit = {"n_layers": MAX_LAYERS, "context_tokens": math.inf}.get(size, MAX_SIZE)
            if value > limit:
                self._fail(f"{size} must be at most {limit:,}; got {value:,}")
        if self.head_size % 2:
            self._fail(f"head_size must be even, because rotary embedding turns pairs; got {self.head_size}")
        if self.n_heads % self.n_kv_heads:
            self._fail(f"{self.n_heads} query heads do not divide over {self.n_kv_heads} KV heads")
        for size in ("n_heads", "n_kv_heads", "ffn_size"):
            if getattr(self, size) % self.n_lanes:
                self._fail(f"{size} {getattr(self, size):,} does not divide over {self.n_lanes} lanes")
        for name, low in (("norm_eps", 0.0), ("rope_theta", 1.0)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not low < value <= sys.float_info.max:
                self._fail(f"{name} must be a finite number greater than {low:g}; got {value!r}")
        if self.dtype not in ("float32", "float16", "bfloat16"):
            self._fail(f"dtype must be float32, float16 or bfloat16; got {self.dtype!r}")

    def _check_layers(self) -> None:
        for name in ("reductions", "windows"):
            values = getattr(self, name)
            if values and len(values) != self.n_layers:
                self._fail(f"{name} needs one entry per layer ({self.n_layers}); got {len(values)}")
        for layer, window in enumerate(self.windows):
            if window is not None and not 1 <= window <= MAX_WINDOW:
                self._fail(f"the attention window of layer {layer} must lie between 1 and {MAX_WINDOW:,}; got {window:,}")
        past = [layer for layer, kind in enumerate(self.reductions) if kind == Reduction.PAST]
        if past and not 1 <= self.delay <= past[0]:
            self._fail(f"layer {past[0]} takes lane outputs from {self.delay} layers ago; the delay must lie between 1 and {past[0]}")
        scaling = self.rope_scaling
        if scaling and scaling.kind == "factors" and len(scaling.factors) != self.head_size // 2:
            self._fail(f"rotary factors: {len(scaling.factors)} given, {self.head_size // 2} needed (head_size / 2)")

    def _check_head(self) -> None:
        if self.head == Head.VOCAB_PARALLEL and self.vocab_size % self.n_lanes:
            self._fail(f"a vocab_parallel head needs a vocabulary that divides over the lanes; got {self.vocab_size:,} over {self.n_lanes}")
        if self.tied_head and self.head in (Head.LANE, Head.VOCAB_PARALLEL):
            self._fail(f"a {self.head} head cannot share the embedding; tie_word_embeddings must be false")
