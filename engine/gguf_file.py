"""Reading GGUF files: metadata as plain Python values, tensors by rows. Format: ggml's docs/gguf.md.

The ``gguf`` package knows block sizes and dequantisation; its own reader wraps every token of the vocabulary in NumPy
arrays, which takes seconds, so the header is read here.
"""

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, quants

from engine.errors import ModelError

SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
STRING, ARRAY = 8, 9
DEFAULT_ALIGNMENT = 32
MAX_DIMENSIONS = 4
MAX_NAME = 64  # of a tensor, as the format has it


@dataclass(frozen=True)
class GgufTensor:
    """``shape``: [rows, columns] or [columns]; ``offset`` in bytes from the start of the file; ``row_bytes`` of one row."""

    name: str
    shape: tuple[int, ...]
    kind: GGMLQuantizationType
    offset: int
    row_bytes: int


class GgufFile:
    """The header of a .gguf file. Raises ModelError when the file is missing, truncated or malformed."""

    def __init__(self, path: Path):
        self.path = path
        try:
            with path.open("rb") as file:
                self._read_header(_Header(file, path.stat().st_size))
        except OSError as error:
            raise ModelError(f"{path} cannot be read: {error.strerror}.") from error
        except (ValueError, struct.error) as error:
            raise ModelError(f"{path} is truncated or no GGUF file: {error}.") from error

    def rows(self, tensor: GgufTensor, first: int, last: int) -> np.ndarray:
        """Rows ``first`` ... ``last`` of a tensor as float32 [rows, columns]; a vector is one row."""
        raw = np.empty((last - first, tensor.row_bytes), dtype=np.uint8)
        with self.path.open("rb") as file:
            file.seek(tensor.offset + first * tensor.row_bytes)
            if file.readinto(raw) != raw.nbytes:
                raise ModelError(f"{self.path} is truncated inside tensor {tensor.name}.")
        return quants.dequantize(raw, tensor.kind)

    def _read_header(self, header: "_Header") -> None:
        if header.bytes(4) != b"GGUF":
            raise ValueError("it does not begin with GGUF")
        version = header.scalar("I")
        if version not in (2, 3):
            raise ValueError(f"version {version}; versions 2 and 3 are read")
        tensor_count, key_count = header.scalar("Q"), header.scalar("Q")
        self.metadata: dict[str, Any] = {}
        for _ in range(key_count):
            key = header.string()
            self.metadata[key] = header.value(header.scalar("I"))
        infos = [self._tensor_info(header) for _ in range(tensor_count)]
        alignment = self.metadata.get("general.alignment", DEFAULT_ALIGNMENT)
        if not isinstance(alignment, int) or alignment < 1:
            raise ValueError(f"alignment {alignment!r}")
        start = -(-header.file.tell() // alignment) * alignment
        self.tensors = {info[0]: self._tensor(header, start, *info) for info in infos}

    @staticmethod
    def _tensor_info(header: "_Header") -> tuple[str, tuple[int, ...], int, int]:
        name, dimensions = header.string(), header.scalar("I")
        if len(name) > MAX_NAME or not name.isprintable():
            raise ValueError(f"the name of a tensor, {name[:MAX_NAME]!r}, is no text of at most {MAX_NAME} characters")
        if not 1 <= dimensions <= MAX_DIMENSIONS:
            raise ValueError(f"tensor {name} has {dimensions} dimensions")
        shape = tuple(header.scalar("Q") for _ in range(dimensions))[::-1]
        return name, shape, header.scalar("I"), header.scalar("Q")

    @staticmethod
    def _tensor(header: "_Header", start: int, name: str, shape: tuple[int, ...], kind_id: int, offset: int) -> GgufTensor:
        kind = GGMLQuantizationType(kind_id)
        block, block_bytes = GGML_QUANT_SIZES[kind]
        if shape[-1] % block:
            raise ValueError(f"rows of tensor {name} have {shape[-1]} values, no multiple of {kind.name}'s block of {block}")
        row_bytes = shape[-1] // block * block_bytes
        rows = int(np.prod(shape[:-1], dtype=object)) if len(shape) > 1 else 1
        if start + offset + rows * row_bytes > header.size:
            raise ValueError(f"tensor {name} ends beyond the end of the file")
        return GgufTensor(name, shape, kind, start + offset, row_bytes)


class _Header:
    """Little-endian values from a file, never beyond its end."""

    def __init__(self, file: BinaryIO, size: int):
        self.file, self.size = file, size

    def bytes(self, count: int) -> bytes:
        if count > self.size - self.file.tell():
            raise ValueError("the header ends beyond the end of the file")
        return self.file.read(count)

    def scalar(self, code: str):
        return struct.unpack("<" + code, self.bytes(struct.calcsize(code)))[0]

    def string(self) -> str:
        return self.bytes(self.scalar("Q")).decode("utf-8", "replace")

    def value(self, kind: int):
        if kind == STRING:
            return self.string()
        if kind == ARRAY:
            return self._array(self.scalar("I"), self.scalar("Q"))
        if kind not in SCALARS:
            raise ValueError(f"metadata of unknown type {kind}")
        return self.scalar(SCALARS[kind])

    def _array(self, kind: int, count: int) -> list:
        if kind in SCALARS:
            code = SCALARS[kind]
            data = self.bytes(count * struct.calcsize(code))
            return list(struct.unpack(f"<{count}{code}", data))
        if kind != STRING:
            raise ValueError(f"metadata holds a list of type {kind}")
        return [self.string() for _ in range(count)]
