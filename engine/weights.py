"""The canonical weights that loaders fill and backends read.

Letters: L lanes of this shard, D hidden, F FFN, V vocabulary, H query heads, K KV heads, h head size. Every matrix is
[.., rows = outputs, columns = inputs]. q and k rows are stored with interleaved rotary pairs.
"""

from dataclasses import dataclass

from torch import Tensor


@dataclass
class LayerWeights:
    wqkv: Tensor  # [L, (H + 2K)/L * h, D]: q rows, then k rows, then v rows of the lane
    wo: Tensor  # [L, D, H/L * h]
    w13: Tensor  # [L, 2F/L, D]: gate rows, then up rows
    w2: Tensor  # [L, D, F/L]
    attention_norm: Tensor  # [1 or L, D]
    ffn_norm: Tensor  # [1 or L, D]
    qkv_bias: Tensor | None = None  # [L, (H + 2K)/L * h]
    q_norm: Tensor | None = None  # [h], interleaved like the rows
    k_norm: Tensor | None = None  # [h]


@dataclass
class ModelWeights:
    embedding: Tensor  # [V, D]
    layers: list[LayerWeights]
    norm: Tensor  # [1 or L, D]
    head: Tensor  # [V, D]; LANE: [V, L*D]; VOCAB_PARALLEL: [L, V/L, D]; tied: the embedding tensor itself
