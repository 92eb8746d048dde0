"""The description of a model in a GGUF file of the ``llama`` architecture. Imports no torch."""

from pathlib import Path
from typing import Any

from engine.config import ModelConfig, RopeScaling
from engine.errors import ModelError
from engine.gguf_file import GgufFile
from engine.loading.hf_config import rope_scaling

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
    keys = Keys(path, file.metadata)
    architecture = keys.text("general.architecture")
    if architecture != "llama":
        raise ModelError(f"{path}: architecture {architecture!r} is not supported. Of GGUF files the engine runs llama.")
    if keys.integer("llama.expert_count", 0):
        raise ModelError(f"{path}: llama.expert_count: mixtures of experts are not supported.")
    parts = keys.integer("split.count", 1)
    if parts > 1:
        raise ModelError(
            f"{path}: is one of {parts} files that a model was split into; join them (llama-gguf-split --merge) and give the one file."
        )
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
        qkv_bias=tensor_name("q_bias", 0) in file.tensors,
        bos_id=special["bos"] if special["bos"] >= 0 else None,
        eos_ids=tuple(dict.fromkeys(special[kind] for kind in ("eos", "eot", "eom") if special[kind] >= 0)),
        dtype={"F32": "float32", "BF16": "bfloat16"}.get(embedding.kind.name, "float16"),
    )


class Keys:
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


def tensor_name(part: str, layer: int | None) -> str:
    return NAMES[part] if layer is None else f"blk.{layer}.{NAMES[part]}"


def _rope_scaling(file: GgufFile, keys: Keys) -> RopeScaling | None:
    """Without a type a factor is a linear one, as in llama.cpp; it also counts beside the factors per pair."""
    kind = keys.text("llama.rope.scaling.type", "linear")
    if kind not in ("none", "linear"):
        raise ModelError(f"{file.path}: rotary scaling {kind!r} is not supported; linear and {ROPE_FACTORS} are.")
    factor = keys.number("llama.rope.scaling.factor", keys.number("llama.rope.scale_linear", 1.0))
    factor = factor if kind == "linear" else 1.0
    factors = file.tensors.get(ROPE_FACTORS)
    if factors is not None:
        if len(factors.shape) != 1 or factors.kind.name != "F32":
            raise ModelError(f"{file.path}: tensor {ROPE_FACTORS} must be a vector of F32.")
        return rope_scaling(file.path, "factors", factors=tuple((factor * file.rows(factors, 0, 1)[0]).tolist()))
    return rope_scaling(file.path, "linear", factor) if factor != 1.0 else None
