"""Names and shapes of the tensors in Hugging Face checkpoints, for reading and for writing them."""

from dataclasses import dataclass

from engine.config import Head, ModelConfig
from engine.loading.assemble import COLUMN_PARTS, layer_parts, part_shape

LLAMA_NAMES = {
    "embedding": "model.embed_tokens.weight",
    "norm": "model.norm.weight",
    "head": "lm_head.weight",
    "q": "self_attn.q_proj.weight",
    "k": "self_attn.k_proj.weight",
    "v": "self_attn.v_proj.weight",
    "o": "self_attn.o_proj.weight",
    "q_bias": "self_attn.q_proj.bias",
    "k_bias": "self_attn.k_proj.bias",
    "v_bias": "self_attn.v_proj.bias",
    "q_norm": "self_attn.q_norm.weight",
    "k_norm": "self_attn.k_norm.weight",
    "gate": "mlp.gate_proj.weight",
    "up": "mlp.up_proj.weight",
    "down": "mlp.down_proj.weight",
    "attention_norm": "input_layernorm.weight",
    "ffn_norm": "post_attention_layernorm.weight",
}
LANEFORMER_NAMES = {
    "embedding": "model.tok_embeddings.weight",
    "q": "attention.wq.weight",
    "k": "attention.wk.weight",
    "v": "attention.wv.weight",
    "o": "attention.wo.weight",
    "gate": "feed_forward.w1.weight",
    "up": "feed_forward.w3.weight",
    "down": "feed_forward.w2.weight",
}
IGNORED_SUFFIXES = ("rotary_emb.inv_freq",)  # buffers that old checkpoints carry; recomputed from the configuration


@dataclass(frozen=True)
class StoredTensor:
    name: str
    shape: tuple[int, ...]


def halves(config: ModelConfig) -> bool:
    """Whether rotary pairs are stored as two halves (j, j + head_size / 2) of each head's rows."""
    return config.architecture != "laneformer_tp"


def per_lane(config: ModelConfig, part: str) -> bool:
    """Whether a part is stored with a leading lane dimension (norm scales apart)."""
    if config.architecture != "laneformer_tp" or part == "embedding" or part.endswith("norm"):
        return False
    return part != "head" or config.head == Head.VOCAB_PARALLEL


def stored(config: ModelConfig, part: str, layer: int | None) -> StoredTensor:
    """Where a part of the model (of one layer) is stored."""
    prefix = "" if layer is None else f"model.layers.{layer}."
    shape, lanes = part_shape(config, part), config.n_lanes
    if config.architecture != "laneformer_tp":
        return StoredTensor(prefix + LLAMA_NAMES[part], shape[1:] if part in ("norm", "attention_norm", "ffn_norm") else shape)
    if part.endswith("norm"):
        own_scales = config.per_lane_final_norm if part == "norm" else config.lane_norms
        name = prefix or "model."
        return StoredTensor(f"{name}{part}.scale", shape) if own_scales else StoredTensor(f"{name}{part}.weight", shape[1:])
    if part == "head":
        name = "lm_head.linear.weight" if config.head == Head.LANE else "lm_head.weight"
    else:
        name = prefix + LANEFORMER_NAMES[part]
    if not per_lane(config, part):
        return StoredTensor(name, shape)
    if part in COLUMN_PARTS:
        return StoredTensor(name, (lanes, shape[0], shape[1] // lanes))
    return StoredTensor(name, (lanes, shape[0] // lanes, *shape[1:]))


def all_parts(config: ModelConfig) -> list[tuple[str, int | None]]:
    """(part, layer) of everything that a checkpoint must hold, in the order of the forward pass."""
    layers = [(part, layer) for layer in range(config.n_layers) for part in layer_parts(config)]
    return [("embedding", None), *layers, ("norm", None)] + ([] if config.tied_head else [("head", None)])
