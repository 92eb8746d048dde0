"""What a kernel path offers: the portable one and any faster one for a single chip stand behind this."""

from typing import Protocol

import torch

from engine.config import ModelConfig
from engine.kernel.cache import KVCache
from engine.kernel.control import Control
from engine.kernel.params import ParamBlock
from engine.weights import ModelWeights


class KernelPath(Protocol):
    """One way to run a generation on one rank's GPU. Launches are asynchronous, on the current stream."""

    name: str  # "portable", "gluon"

    @classmethod
    def supports(cls, config: ModelConfig, device: torch.device, dtype: torch.dtype) -> str | None:
        """None when this path can run the model there; otherwise the reason why not, for people."""

    def __init__(
        self, config: ModelConfig, weights: ModelWeights, cache: KVCache, control: Control, params: ParamBlock, device: torch.device
    ):
        """Packs what it needs and allocates its scratch. ``weights`` stays alive as long as the path."""

    def prefill(self, ids: torch.Tensor, start: int, n: int) -> None:
        """Fill the KV cache for positions start .. start+n-1. ``ids``: int32 [>= start+n], device; ids[p] stands at position p."""

    def launch(self, first_token: int, position: int) -> None:
        """Decode until a stop id, the stop word, an error or MAX_TOKENS of the parameter block.

        The first step processes ``first_token`` (the last prompt token) at ``position`` = P-1; the KV cache holds 0 .. P-2 when
        the launch reaches the GPU (the prefill launch precedes it on the same stream; no host round trip). Token k of the
        generation gets position P+k and ring place k. The kernel sets STATUS_FINISH, then STATUS_DONE at its end, also after an
        error (with FINISH_ERROR).
        """

    def close(self) -> None:
        """Free what the path holds."""
