"""Fill the canonical weights of a shard from any reader of parts.

A part is one matrix or vector of the whole model in canonical order, with all lanes side by side:
q, k, v, gate, up, embedding, head and the norms are cut in rows, o and down in columns.
"""

from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from engine.config import Head, ModelConfig
from engine.errors import DeviceError, ModelError
from engine.memory import host_free_bytes
from engine.request import Progress
from engine.weights import LayerWeights, ModelWeights, Shard

COLUMN_PARTS = ("o", "down")
CHUNK_BYTES = 64 << 20  # rows are read in chunks of about this size, so that the host never holds a second copy


class PartReader(Protocol):
    def read(self, part: str, layer: int | None, start: int, stop: int, out: Tensor) -> None:
        """Write rows (o, down: columns) ``start`` ... ``stop`` of a part into ``out``, converted to its type and device.

        A range never crosses a lane, and of q and k it holds whole heads. Raises ModelError.
        """


def layer_parts(config: ModelConfig) -> list[str]:
    parts = ["q", "k", "v", "o", "gate", "up", "down", "attention_norm", "ffn_norm"]
    if config.qkv_bias:
        parts += ["q_bias", "k_bias", "v_bias"]
    if config.qk_norm:
        parts += ["q_norm", "k_norm"]
    return parts


def part_shape(config: ModelConfig, part: str) -> tuple[int, ...]:
    """Shape of a part of the whole model, lanes side by side."""
    d, q, kv, f, h = config.hidden_size, config.q_size, config.kv_size, config.ffn_size, config.head_size
    layer_norms = config.n_lanes if config.lane_norms else 1
    return {
        "embedding": (config.vocab_size, d),
        "head": (config.vocab_size, config.head_inputs),
        "norm": (config.n_lanes if config.per_lane_final_norm else 1, d),
        "attention_norm": (layer_norms, d),
        "ffn_norm": (layer_norms, d),
        "q": (q, d),
        "k": (kv, d),
        "v": (kv, d),
        "o": (d, q),
        "gate": (f, d),
        "up": (f, d),
        "down": (d, f),
        "q_bias": (q,),
        "k_bias": (kv,),
        "v_bias": (kv,),
        "q_norm": (h,),
        "k_norm": (h,),
    }[part]


def assemble(config: ModelConfig, reader: PartReader, dtype: torch.dtype, device, shard: Shard, on_progress=None) -> ModelWeights:
    """Raises ModelError from the reader or when the model does not divide, DeviceError when the device has no room."""
    config.check_ranks(shard.ranks)
    if not 0 <= shard.rank < shard.ranks:
        raise ModelError(f"Rank {shard.rank} does not exist among {shard.ranks} GPUs.")
    _check_room(config, dtype, torch.device(device), shard)
    try:
        return _Assembler(config, reader, dtype, torch.device(device), shard, on_progress or (lambda progress: None)).model()
    except torch.OutOfMemoryError as error:
        raise DeviceError(f"{config.name} does not fit on {device}: {error}") from error


def _check_room(config: ModelConfig, dtype: torch.dtype, device: torch.device, shard: Shard) -> None:
    """On a CPU, which would promise the memory and then end the process; a GPU refuses by itself."""
    needed = config.parameters * dtype.itemsize // shard.ranks
    if device.type == "cpu" and needed > (free := host_free_bytes()):
        kind = str(dtype).removeprefix("torch.")
        raise DeviceError(f"{config.name}: the weights take {needed / 1e9:,.1f} GB as {kind}; {free / 1e9:,.1f} GB of memory are free.")


def check_values(path: Path, name: str, values: Tensor, dtype: torch.dtype) -> None:
    """Raises ModelError when a stored tensor holds NaN or infinity, or a number that ``dtype`` cannot hold."""
    low, high = torch.aminmax(values)  # NaN wins
    largest = max(-low.item(), high.item())
    if not largest <= torch.finfo(values.dtype).max:
        raise ModelError(f"{path}: tensor {name} holds NaN or infinity.")
    if largest > torch.finfo(dtype).max:
        raise ModelError(
            f"{path}: tensor {name} holds {largest:g}, which {str(dtype).removeprefix('torch.')} cannot hold; use bfloat16 or float32."
        )


class _Assembler:
    def __init__(self, config, reader, dtype, device, shard, report):
        self.config, self.reader, self.dtype, self.device, self.shard, self.report = config, reader, dtype, device, shard, report
        self.pieces, self.total = shard.pieces(config)

    def model(self) -> ModelWeights:
        config = self.config
        steps = config.n_layers + 2
        self.report(Progress("load", 0.0, "Embedding"))
        embedding = self._empty(*part_shape(config, "embedding"))
        self._read("embedding", None, 0, config.vocab_size, embedding)
        layers = []
        for index in range(config.n_layers):
            self.report(Progress("load", (index + 1) / steps, f"Layer {index + 1} of {config.n_layers}"))
            layers.append(self._layer(index))
        self.report(Progress("load", (steps - 1) / steps, "Head"))
        weights = ModelWeights(embedding, layers, self._norm("norm", None), self._head(embedding))
        self.report(Progress("load", 1.0, "Weights loaded"))
        return weights

    def _layer(self, index: int) -> LayerWeights:
        config, n = self.config, len(self.pieces)
        d, q, kv, f = config.hidden_size, config.q_size // self.total, config.kv_size // self.total, config.ffn_size // self.total
        layer = LayerWeights(
            wqkv=self._empty(n, q + 2 * kv, d),
            wo=self._empty(n, d, q),
            w13=self._empty(n, 2 * f, d),
            w2=self._empty(n, d, f),
            attention_norm=self._norm("attention_norm", index),
            ffn_norm=self._norm("ffn_norm", index),
        )
        self._fill_pieces(index, layer.wqkv, (("q", q), ("k", kv), ("v", kv)))
        self._fill_pieces(index, layer.wo, (("o", q),))
        self._fill_pieces(index, layer.w13, (("gate", f), ("up", f)))
        self._fill_pieces(index, layer.w2, (("down", f),))
        if config.qkv_bias:
            layer.qkv_bias = self._empty(n, q + 2 * kv)
            self._fill_pieces(index, layer.qkv_bias, (("q_bias", q), ("k_bias", kv), ("v_bias", kv)))
        if config.qk_norm:
            layer.q_norm, layer.k_norm = self._empty(config.head_size), self._empty(config.head_size)
            self._read("q_norm", index, 0, config.head_size, layer.q_norm)
            self._read("k_norm", index, 0, config.head_size, layer.k_norm)
        return layer

    def _fill_pieces(self, layer: int, out: Tensor, parts: tuple[tuple[str, int], ...]) -> None:
        """``parts``: (name, rows per piece), stacked in this order in each piece of ``out``."""
        for local, piece in enumerate(self.pieces):
            row = 0
            for part, size in parts:
                target = out[local] if part in COLUMN_PARTS else out[local, row : row + size]
                self._read(part, layer, piece * size, (piece + 1) * size, target)
                row += size

    def _norm(self, part: str, layer: int | None) -> Tensor:
        rows, d = part_shape(self.config, part)
        first, last = (self.pieces[0], self.pieces[-1] + 1) if rows > 1 else (0, 1)
        out = self._empty(last - first, d)
        for row in range(first, last):
            self._read(part, layer, row, row + 1, out[row - first : row - first + 1])
        return out

    def _head(self, embedding: Tensor) -> Tensor:
        config, rows = self.config, self.shard.vocab_rows(self.config)
        if config.tied_head:
            return embedding[rows.start : rows.stop]
        if config.head == Head.VOCAB_PARALLEL:
            size = config.vocab_size // self.total
            out = self._empty(len(self.pieces), size, config.hidden_size)
            for local, piece in enumerate(self.pieces):
                self._read("head", None, piece * size, (piece + 1) * size, out[local])
            return out
        out = self._empty(len(rows), config.head_inputs)
        self._read("head", None, rows.start, rows.stop, out)
        return out

    def _read(self, part: str, layer: int | None, start: int, stop: int, out: Tensor) -> None:
        if part in COLUMN_PARTS or out.dim() == 1:
            self.reader.read(part, layer, start, stop, out)
            return
        heads = max(1, CHUNK_BYTES // (out.shape[1] * 4) // self.config.head_size)
        chunk = heads * self.config.head_size
        for first in range(start, stop, chunk):
            last = min(first + chunk, stop)
            self.reader.read(part, layer, first, last, out[first - start : last - start])

    def _empty(self, *shape: int) -> Tensor:
        return torch.empty(shape, dtype=self.dtype, device=self.device)
