"""The KV cache of one rank."""

from dataclasses import dataclass

import torch

from engine.config import ModelConfig


@dataclass
class KVCache:
    """Keys (rotated) and values of one sequence, contiguous, in the weight dtype.

    k, v: [n_layers, K, context, head_size], K = KV heads of this rank in lane order (lane l owns heads l*K/L ... (l+1)*K/L).
    The cache of a new generation is overwritten from position 0; nothing has to be cleared, since no position is read before
    the generation wrote it.
    """

    k: torch.Tensor
    v: torch.Tensor

    @classmethod
    def allocate(cls, config: ModelConfig, context_tokens: int, dtype: torch.dtype, device: torch.device, ranks: int = 1) -> "KVCache":
        shape = (config.n_layers, config.n_kv_heads // ranks, context_tokens, config.head_size)
        return cls(torch.zeros(shape, dtype=dtype, device=device), torch.zeros(shape, dtype=dtype, device=device))

    @property
    def context_tokens(self) -> int:
        return self.k.shape[2]
