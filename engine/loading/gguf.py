"""GGUF files of the ``llama`` architecture. Rotary pairs are interleaved there already."""

from pathlib import Path

import torch
from torch import Tensor

from engine.config import ModelConfig
from engine.errors import ModelError
from engine.gguf_file import GgufFile
from engine.loading.assemble import COLUMN_PARTS, check_values, layer_parts, part_shape
from engine.loading.gguf_config import ROPE_FACTORS, tensor_name

STORED_TYPES = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS")
CHUNK_VALUES = 1 << 20  # rows are dequantised in chunks of about this many values


class GgufReader:
    """PartReader of a .gguf file. Checks the names, shapes and types of all tensors when made; raises ModelError."""

    def __init__(self, path: Path, config: ModelConfig):
        self.path, self.config = path, config
        self.file = GgufFile(path)
        self._check()

    def read(self, part: str, layer: int | None, start: int, stop: int, out: Tensor) -> None:
        tensor = self.file.tensors[tensor_name(part, layer)]
        vector = len(tensor.shape) == 1
        if vector and out.dim() == 2:  # one norm scale for all lanes
            out, start, stop = out[0], 0, tensor.shape[0]
        target = out[None] if vector else out
        columns = slice(start, stop) if vector or part in COLUMN_PARTS else slice(None)
        first, last = (0, 1) if vector else (0, tensor.shape[0]) if part in COLUMN_PARTS else (start, stop)
        chunk = max(1, CHUNK_VALUES // tensor.shape[-1])
        for row in range(first, last, chunk):
            end = min(row + chunk, last)
            values = torch.from_numpy(self.file.rows(tensor, row, end))
            check_values(self.path, tensor.name, values, out.dtype)
            target[row - first : end - first].copy_(values[:, columns])

    def _check(self) -> None:
        config, path, tensors = self.config, self.path, self.file.tensors
        parts = [("embedding", None), ("norm", None)] + ([] if config.tied_head else [("head", None)])
        parts += [(part, layer) for layer in range(config.n_layers) for part in layer_parts(config)]
        expected = {tensor_name(part, layer): part_shape(config, part)[1 if part.endswith("norm") else 0 :] for part, layer in parts}
        for name, shape in expected.items():
            if name not in tensors:
                raise ModelError(f"{path}: tensor {name} is missing; it should have shape {list(shape)}.")
            if tensors[name].shape != shape:
                raise ModelError(f"{path}: tensor {name} has shape {list(tensors[name].shape)}; the metadata asks for {list(shape)}.")
        for name, tensor in tensors.items():
            if name not in expected and name != ROPE_FACTORS:
                raise ModelError(f"{path}: tensor {name} is not part of this model; it has shape {list(tensor.shape)}.")
            if tensor.kind.name not in STORED_TYPES:
                raise ModelError(f"{path}: tensor {name} has type {tensor.kind.name}; {', '.join(STORED_TYPES)} are read.")
