"""GGUF files of the ``llama`` architecture. Rotary pairs are interleaved there already."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from engine.config import ModelConfig, RopeScaling
from engine.errors import ModelError
from engine.gguf_file import GgufFile, GgufTensor
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
    file = GgufFile(path)
    keys = _Keys(path, file.metadata)
    architecture = keys.text("general.architecture")
    if architecture != "llama":
        raise ModelError(f"{path}: architecture {architecture!r} is not supported. Of GGUF files the engine runs llama.")
    if keys.integer("llama.expert_count", 0):
        raise ModelError(f"{path}: llama.expert_count: mixtures of experts are not supported.")
    embedding = file.tensors.get(NAMES["embedding"])
    if embedding is None:
        raise ModelError(f"{path}: tensor {NAMES['embedding']} is missing.")
    hidden, heads = keys.integer("llama.embedding_length"), keys.integer("llama.attention.head_count")
    head_size = keys.integer("llama.attention.key_length", hidden // max(heads, 1))
    rotated = keys.integer("llama.rope.dimension_count", head_size)
    if rotated != head_size:
        raise ModelError(f"{path}: llama.rope.dimension_count {rotated} differs from the head size {head_size}.")
    special = {kind: keys.integer(f"tokenizer.ggml.{kind}_token_id", -1) for kind in ("bos", "eos", "eot", "eom")}
    return ModelConfig(
        name=name,
        architecture="llama",
        n_layers=keys.integer("llama.block_count"),
        hidden_size=hidden,
        n_heads=heads,
        n_kv_heads=keys.integer("llama.attention.head_count_kv", heads),
        head_size=head_size,
        ffn_size=keys.integer("llama.feed_forward_length"),
        vocab_size=embedding.shape[0],
        context_tokens=keys.integer("llama.context_length"),
        norm_eps=keys.number("llama.attention.layer_norm_rms_epsilon"),
        rope_theta=keys.number("llama.rope.freq_base", 10_000.0),
        rope_scaling=_rope_scaling(file, keys),
        tied_head=NAMES["head"] not in file.tensors,
        qkv_bias=_name("q_bias", 0) in file.tensors,
        bos_id=special["bos"] if special["bos"] >= 0 else None,
        eos_ids=tuple(dict.fromkeys(special[kind] for kind in ("eos", "eot", "eom") if special[kind] >= 0)),
        dtype={"F32": "float32", "BF16": "bfloat16"}.get(embedding.kind.name, "float16"),
    )


class GgufReader:
    """PartReader of a .gguf file. Checks the names, shapes and types of all tensors when made; raises ModelError."""

    def __init__(self, path: Path, config: ModelConfig):
        self.path, self.config = path, config
        self.file = GgufFile(path)
        self._check()

    def read(self, part: str, layer: int | None, start: int, stop: int, out: Tensor) -> None:
        tensor = self.file.tensors[_name(part, layer)]
        vector = len(tensor.shape) == 1
        if vector and out.dim() == 2:  # one norm scale for all lanes
            out, start, stop = out[0], 0, tensor.shape[0]
        target = out[None] if vector else out
        columns = slice(start, stop) if vector or part in COLUMN_PARTS else slice(None)
        first, last = (0, 1) if vector else (0, tensor.shape[0]) if part in COLUMN_PARTS else (start, stop)
        chunk = max(1, CHUNK_VALUES // tensor.shape[-1])
        for row in range(first, last, chunk):
            end = min(row + chunk, last)
            target[row - first : end - first].copy_(self._values(tensor, row, end)[:, columns])

    def _values(self, tensor: GgufTensor, first: int, last: int) -> Tensor:
        values = torch.from_numpy(self.file.rows(tensor, first, last))
        if not torch.isfinite(values).all():
            raise ModelError(f"{self.path}: tensor {tensor.name} holds NaN or infinity.")
        return values

    def _check(self) -> None:
        config, path, tensors = self.config, self.path, self.file.tensors
        parts = [("embedding", None), ("norm", None)] + ([] if config.tied_head else [("head", None)])
        parts += [(part, layer) for layer in range(config.n_layers) for part in layer_parts(config)]
        expected = {_name(part, layer): part_shape(config, part)[1 if part.endswith("norm") else 0 :] for part, layer in parts}
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


class _Keys:
    """Typed access to the metadata; every error names the file, the key and the value."""

    def __init__(self, path: Path, metadata: dict[str, Any]):
        self.path, self.metadata = path, metadata

    def integer(self, key: str, default: int | None = None) -> int:
        return self._typed(key, default, int, "a whole number")

    def number(self, key: str, default: float | None = None) -> float:
        return self._typed(key, default, int | float, "a number")

    def text(self, key: str, default: str | None = None) -> str:
        return self._typed(key, default, str, "text")

    def _typed(self, key: str, default, kind, what: str):
        value = self.metadata.get(key, default)
        if value is None:
            raise ModelError(f"{self.path}: {key} is missing.")
        if not isinstance(value, kind) or isinstance(value, bool):
            raise ModelError(f"{self.path}: {key} must be {what}; got {value!r}.")
        return value


def _name(part: str, layer: int | None) -> str:
    return NAMES[part] if layer is None else f"blk.{layer}.{NAMES[part]}"


def _rope_scaling(file: GgufFile, keys: _Keys) -> RopeScaling | None:
    factors, kind = file.tensors.get(ROPE_FACTORS), keys.text("llama.rope.scaling.type", "none")
    if factors is not None:
        if len(factors.shape) != 1 or factors.kind.name != "F32":
            raise ModelError(f"{file.path}: tensor {ROPE_FACTORS} must be a vector of F32.")
        return RopeScaling("factors", factors=tuple(file.rows(factors, 0, 1)[0].tolist()))
    if kind == "linear":
        return RopeScaling("linear", keys.number("llama.rope.scaling.factor"))
    if kind != "none":
        raise ModelError(f"{file.path}: rotary scaling {kind!r} is not supported; linear and {ROPE_FACTORS} are.")
    return None
