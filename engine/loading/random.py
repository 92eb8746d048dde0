"""Seeded random weights: every block of rows has its own seed, so a shard equals the slice of the whole model."""

import hashlib

import torch
from torch import Tensor

from engine.config import ModelConfig
from engine.loading.assemble import COLUMN_PARTS, part_shape

BLOCK_ELEMENTS = 1 << 18  # values are drawn in float32 in blocks of about this size and rounded into place
LOGIT_DEVIATION = 3.0  # about the spread of a trained model's logits: the best token stands out


class RandomReader:
    """Normal weights whose products keep the scale of their input: finite activations, logits that differ.

    Values depend on seed, part, layer and row, and on the kind of device (CPU and GPU draw different numbers).
    """

    def __init__(self, config: ModelConfig, seed: int = 0):
        self.config, self.seed = config, seed

    def read(self, part: str, layer: int | None, start: int, stop: int, out: Tensor) -> None:
        mean, deviation = self._scale(part)
        rows = out.T if part in COLUMN_PARTS else out.unsqueeze(1) if out.dim() == 1 else out
        block_rows = max(1, min(BLOCK_ELEMENTS // rows.shape[1], part_shape(self.config, part)[part in COLUMN_PARTS]))
        buffer = torch.empty(block_rows, rows.shape[1], device=out.device)
        for block in range(start // block_rows, -(-stop // block_rows)):
            generator = torch.Generator(out.device).manual_seed(self._block_seed(part, layer, block))
            buffer.normal_(mean, deviation, generator=generator)
            first, last = max(start, block * block_rows), min(stop, (block + 1) * block_rows)
            rows[first - start : last - start].copy_(buffer[first - block * block_rows : last - block * block_rows])

    def _scale(self, part: str) -> tuple[float, float]:
        if part.endswith("norm"):
            return 1.0, 0.1
        if part.endswith("bias"):
            return 0.0, 0.1
        if part == "head" or (part == "embedding" and self.config.tied_head):
            return 0.0, LOGIT_DEVIATION / self.config.head_inputs**0.5
        if part == "embedding":
            return 0.0, 1.0
        return 0.0, part_shape(self.config, part)[1] ** -0.5

    def _block_seed(self, part: str, layer: int | None, block: int) -> int:
        digest = hashlib.sha256(f"{self.seed}/{part}/{layer}/{block}".encode()).digest()
        return int.from_bytes(digest[:8], "little") >> 1
