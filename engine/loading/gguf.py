"""GGUF files of the ``llama`` architecture. Rotary pairs are interleaved there already."""

import mmap
from pathlib import Path

import numpy as np
import torch
from gguf import GGMLQuantizationType, GGUFReader, quants
from torch import Tensor

from engine.config import ModelConfig, RopeScaling
from engine.errors import ModelError
from engine.loading.assemble import COLUMN_PARTS, layer_parts, part_shape

STORED_TYPES = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q4_K", "Q6_K")
CHUNK_VALUES = 4 << 20  # rows are dequantised in chunks of about this many values
ROPE_FACTORS = "rope_freqs.weight"
NAMES = {
    "embedding": "token_embd.weight",
    "norm": "output_norm.weight",
    "head": "output.weight",
    "q": "attn_q.weight",
    "k": "attn_k.weight",
    "v": "attn_v.weight",
    "o": "attn_output.weight",
    "q_bias": "attn_q.bias",
    "k_bias": "attn_k.bias",
    "v_bias": "attn_v.bias",
    "gate": "ffn_gate.weight",
    "up": "ffn_up.weight",
    "down": "ffn_down.weight",
    "attention_norm": "attn_norm.weight",
    "ffn_norm": "ffn_norm.weight",
}


def read_config(path: Path, name: str) -> ModelConfig:
    """Raises ModelError that names the file and the key."""
    file = _open(path)
    architecture = _field(path, file, "general.architecture")
    if architecture != "llama":
        raise ModelError(f"{path}: architecture {architecture!r} is not supported. Of GGUF files the engine runs llama.")

    def value(key: str, default=None):
        return _field(path, file, f"llama.{key}", default)

    if value("expert_count", 0):
        raise ModelError(f"{path}: llama.expert_count: mixtures of experts are not supported.")
    tensors = {tensor.name: tensor for tensor in file.tensors}
    if "token_embd.weight" not in tensors:
        raise ModelError(f"{path}: tensor token_embd.weight is missing.")
    hidden, heads = value("embedding_length"), value("attention.head_count")
    head_size = value("attention.key_length", hidden // heads)
    if value("rope.dimension_count", head_size) != head_size:
        raise ModelError(f"{path}: llama.rope.dimension_count {value('rope.dimension_count')} differs from the head size {head_size}.")
    bos = _field(path, file, "tokenizer.ggml.bos_token_id", -1)
    eos = [_field(path, file, f"tokenizer.ggml.{kind}_token_id", -1) for kind in ("eos", "eot", "eom")]
    return ModelConfig(
        name=name,
        architecture="llama",
        n_layers=value("block_count"),
        hidden_size=hidden,
        n_heads=heads,
        n_kv_heads=value("attention.head_count_kv", heads),
        head_size=head_size,
        ffn_size=value("feed_forward_length"),
        vocab_size=int(tensors["token_embd.weight"].shape[1]),
        context_tokens=value("context_length"),
        norm_eps=value("attention.layer_norm_rms_epsilon"),
        rope_theta=value("rope.freq_base", 10_000.0),
        rope_scaling=_rope_scaling(path, value, tensors.get(ROPE_FACTORS)),
        tied_head="output.weight" not in tensors,
        qkv_bias="blk.0.attn_q.bias" in tensors,
        bos_id=bos if bos >= 0 else None,
        eos_ids=tuple(dict.fromkeys(token for token in eos if token >= 0)),
        dtype={"F32": "float32", "BF16": "bfloat16"}.get(tensors["token_embd.weight"].tensor_type.name, "float16"),
    )


class GgufReader:
    """PartReader of a .gguf file. Checks the names, shapes and types of all tensors when made; raises ModelError."""

    def __init__(self, path: Path, config: ModelConfig):
        self.path, self.config = path, config
        self.file = _open(path)
        self.tensors = {tensor.name: tensor for tensor in self.file.tensors}
        self._check()

    def read(self, part: str, layer: int | None, start: int, stop: int, out: Tensor) -> None:
        tensor = self.tensors[_name(part, layer)]
        data = tensor.data if tensor.data.ndim > 1 else tensor.data[None]  # [rows, columns or bytes of them]
        target = out if out.dim() > 1 else out[None]
        columns = slice(start, stop) if part in COLUMN_PARTS or out.dim() == 1 else slice(None)
        first, last = (0, len(data)) if part in COLUMN_PARTS or tensor.data.ndim == 1 else (start, stop)
        chunk = max(1, CHUNK_VALUES // int(tensor.shape[0]))
        for row in range(first, last, chunk):
            rows = slice(row, min(row + chunk, last))
            values = torch.from_numpy(quants.dequantize(np.asarray(data[rows]), tensor.tensor_type).copy())[:, columns]
            if not torch.isfinite(values).all():
                raise ModelError(f"{self.path}: tensor {tensor.name} holds NaN or infinity.")
            target[rows.start - first : rows.stop - first].copy_(values)
        self.file.data._mmap.madvise(mmap.MADV_DONTNEED)  # read pages must not count as memory of the process

    def _check(self) -> None:
        config, path = self.config, self.path
        expected = {_name(part, None): part_shape(config, part) for part in ("embedding", "norm", "head")}
        if config.tied_head:
            del expected["output.weight"]
        for layer in range(config.n_layers):
            expected |= {_name(part, layer): part_shape(config, part) for part in layer_parts(config)}
        for name, shape in expected.items():
            shape = shape[1:] if name.endswith("norm.weight") else shape
            if name not in self.tensors:
                raise ModelError(f"{path}: tensor {name} is missing; it should have shape {list(shape)}.")
            found = tuple(int(size) for size in reversed(self.tensors[name].shape))
            if found != shape:
                raise ModelError(f"{path}: tensor {name} has shape {list(found)}; the metadata asks for {list(shape)}.")
        for name, tensor in self.tensors.items():
            if name not in expected and name != ROPE_FACTORS:
                found = [int(size) for size in reversed(tensor.shape)]
                raise ModelError(f"{path}: tensor {name} is not part of this model; it has shape {found}.")
            if tensor.tensor_type.name not in STORED_TYPES:
                raise ModelError(f"{path}: tensor {name} has type {tensor.tensor_type.name}; {', '.join(STORED_TYPES)} are read.")


def _open(path: Path) -> GGUFReader:
    try:
        return GGUFReader(path)
    except (OSError, ValueError, IndexError, KeyError) as error:
        raise ModelError(f"{path} is truncated or no GGUF file: {error}") from error


def _name(part: str, layer: int | None) -> str:
    return NAMES[part] if layer is None else f"blk.{layer}.{NAMES[part]}"


def _field(path: Path, file: GGUFReader, key: str, default=None):
    field = file.get_field(key)
    if field is not None:
        return field.contents()
    if default is None:
        raise ModelError(f"{path}: {key} is missing.")
    return default


def _rope_scaling(path: Path, value, factors) -> RopeScaling | None:
    kind = value("rope.scaling.type", "none")
    if factors is not None:
        if factors.tensor_type != GGMLQuantizationType.F32:
            raise ModelError(f"{path}: tensor {ROPE_FACTORS} must be F32; got {factors.tensor_type.name}.")
        return RopeScaling("factors", factors=tuple(float(factor) for factor in factors.data))
    if kind == "linear":
        return RopeScaling("linear", value("rope.scaling.factor"))
    if kind != "none":
        raise ModelError(f"{path}: rotary scaling {kind!r} is not supported; linear and {ROPE_FACTORS} are.")
    return None
