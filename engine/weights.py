"""The canonical weights that loaders fill and backends read.

Letters: L lanes of this shard, D hidden, F FFN, V vocabulary, H query heads, K KV heads, h head size. Every matrix is
[.., rows = outputs, columns = inputs]. q and k rows are stored with interleaved rotary pairs.

A shard of a model with lanes owns n_lanes / ranks whole lanes. A model with one lane is cut by heads and FFN columns into
one piece per rank, and the shard's leading dimension is 1. The head is cut by vocabulary rows, the embedding is whole.
"""

from collections.abc import Iterator
from dataclasses import dataclass, fields

from torch import Tensor

from engine.config import ModelConfig


@dataclass(frozen=True)
class Shard:
    """The part of a model that one of ``ranks`` GPUs owns."""

    rank: int = 0
    ranks: int = 1

    def pieces(self, config: ModelConfig) -> tuple[range, int]:
        """The pieces of this rank and the number of pieces of the whole: lanes, or one per rank for a one-lane model.

        Piece p of P owns rows p*R/P ... (p+1)*R/P of a matrix that is cut in R rows.
        """
        total = config.n_lanes if config.n_lanes > 1 else self.ranks
        return range(self.rank * total // self.ranks, (self.rank + 1) * total // self.ranks), total

    def vocab_rows(self, config: ModelConfig) -> range:
        """The token ids whose logits this rank computes."""
        return range(self.rank * config.vocab_size // self.ranks, (self.rank + 1) * config.vocab_size // self.ranks)


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
    head: Tensor  # [V, D]; LANE: [V, L*D]; VOCAB_PARALLEL: [L, V/L, D]; tied: the embedding itself (or rows of it)

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """(name, tensor) of everything held, a tied head not repeated."""
        yield "embedding", self.embedding
        for index, layer in enumerate(self.layers):
            for field in fields(layer):
                tensor = getattr(layer, field.name)
                if tensor is not None:
                    yield f"layers.{index}.{field.name}", tensor
        yield "norm", self.norm
        if self.head.untyped_storage().data_ptr() != self.embedding.untyped_storage().data_ptr():
            yield "head", self.head

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for _, tensor in self.tensors())
