"""Tiny random checkpoints in the published Laneformer layout, and their logits by the letter of the specification.

Nothing here uses the engine: names, shapes and loops are written from the specification alone, in float64, token by
token, lane by lane and head by head.
"""

import json
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file

BASE = {
    "model_type": "laneformer_tp",
    "hidden_size": 16,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 64,
    "vocab_size": 32,
    "rope_theta": 1000.0,
    "norm_eps": 1e-5,
    "num_lanes": 2,
    "broadcast_delay": 2,
    "use_comm": True,
    "use_early_comm": True,
    "lm_head_type": "replicate",
    "pre_norm_lane_agg": False,
    "replicated_rmsn_scale": True,
    "tie_word_embeddings": False,
    "sliding_window": 4,
    "sliding_window_n_layers": 2,
    "unclamped_layers": [],
    "bos_token_id": 1,
    "eos_token_id": 2,
    "torch_dtype": "float32",
}


def tensor_shapes(config: dict) -> dict[str, tuple[int, ...]]:
    d, f, vocab, lanes = config["hidden_size"], config["intermediate_size"], config["vocab_size"], config["num_lanes"]
    heads, kv = config["num_attention_heads"], config["num_key_value_heads"]
    h = d // heads
    shapes = {"model.tok_embeddings.weight": (vocab, d)}
    for i in range(config["num_hidden_layers"]):
        layer = f"model.layers.{i}."
        shapes[layer + "attention.wq.weight"] = (lanes, heads * h // lanes, d)
        shapes[layer + "attention.wk.weight"] = (lanes, kv * h // lanes, d)
        shapes[layer + "attention.wv.weight"] = (lanes, kv * h // lanes, d)
        shapes[layer + "attention.wo.weight"] = (lanes, d, heads * h // lanes)
        shapes[layer + "feed_forward.w1.weight"] = (lanes, f // lanes, d)
        shapes[layer + "feed_forward.w3.weight"] = (lanes, f // lanes, d)
        shapes[layer + "feed_forward.w2.weight"] = (lanes, d, f // lanes)
        for norm in ("attention_norm", "ffn_norm"):
            if config["replicated_rmsn_scale"]:
                shapes[f"{layer}{norm}.weight"] = (d,)
            else:
                shapes[f"{layer}{norm}.scale"] = (lanes, d)
    if config["replicated_rmsn_scale"] or config["pre_norm_lane_agg"]:
        shapes["model.norm.weight"] = (d,)
    else:
        shapes["model.norm.scale"] = (lanes, d)
    if config["lm_head_type"] == "lane":
        shapes["lm_head.linear.weight"] = (vocab, lanes * d)
    elif config["lm_head_type"] == "vocab_parallel":
        shapes["lm_head.weight"] = (lanes, vocab // lanes, d)
    elif not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (vocab, d)
    return shapes


def random_tensors(config: dict, seed: int = 0) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        name: torch.randn(shape, generator=generator) * 0.3 + (1.0 if "norm" in name else 0.0)
        for name, shape in tensor_shapes(config).items()
    }


def write_checkpoint(folder: Path, config: dict, tensors: dict[str, torch.Tensor]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def logits(config: dict, tensors: dict[str, torch.Tensor], ids: list[int]) -> np.ndarray:
    """[T, V] float64."""
    w = {name: tensor.double().numpy() for name, tensor in tensors.items()}
    lanes, layers = config["num_lanes"], config["num_hidden_layers"]
    streams = np.stack([np.stack([w["model.tok_embeddings.weight"][token]] * lanes) for token in ids])  # [T, L, D]
    attention_outputs, mlp_outputs = [], []
    for i in range(layers):
        prefix = f"model.layers.{i}."
        n = _norm(config, w, prefix + "attention_norm", streams)
        attention_outputs.append(_attention(config, w, prefix + "attention.", i, n))
        streams = streams + _reduced(config, i, attention_outputs)
        n = _norm(config, w, prefix + "ffn_norm", streams)
        mlp_outputs.append(_mlp(w, prefix + "feed_forward.", n))
        streams = streams + _reduced(config, i, mlp_outputs)
    return _head(config, w, streams)


def _norm(config: dict, w: dict, name: str, x: np.ndarray) -> np.ndarray:
    scale = w[name + ".weight"] if name + ".weight" in w else w[name + ".scale"]
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + config["norm_eps"]) * scale


def _rotated(vector: np.ndarray, position: int, theta: float) -> np.ndarray:
    out = np.empty_like(vector)
    for j in range(len(vector) // 2):
        angle = position * theta ** (-2 * j / len(vector))
        a, b = vector[2 * j], vector[2 * j + 1]
        out[2 * j] = a * np.cos(angle) - b * np.sin(angle)
        out[2 * j + 1] = a * np.sin(angle) + b * np.cos(angle)
    return out


def _window(config: dict, layer: int) -> int | None:
    count, layers = config["sliding_window_n_layers"], config["num_hidden_layers"]
    windowed = layer < count or (count < 0 and layer >= layers + count)
    return config["sliding_window"] if windowed and layer not in config["unclamped_layers"] else None


def _attention(config: dict, w: dict, prefix: str, layer: int, n: np.ndarray) -> np.ndarray:
    lanes = config["num_lanes"]
    h = config["hidden_size"] // config["num_attention_heads"]
    group = config["num_attention_heads"] // config["num_key_value_heads"]
    window, theta = _window(config, layer), config["rope_theta"]
    out = np.zeros_like(n)
    for lane in range(lanes):
        q, k, v = (n[:, lane] @ w[f"{prefix}w{x}.weight"][lane].T for x in "qkv")
        joined = np.zeros((len(n), q.shape[1]))
        for head in range(q.shape[1] // h):
            own, shared = slice(head * h, (head + 1) * h), slice(head // group * h, (head // group + 1) * h)
            for t in range(len(n)):
                first = 0 if window is None else max(0, t - window + 1)
                keys = range(first, t + 1)
                query = _rotated(q[t, own], t, theta)
                scores = np.array([query @ _rotated(k[s, shared], s, theta) for s in keys]) * h**-0.5
                p = np.exp(scores - scores.max())
                joined[t, own] = (p / p.sum()) @ v[first : t + 1, shared]
        out[:, lane] = joined @ w[prefix + "wo.weight"][lane].T
    return out


def _mlp(w: dict, prefix: str, n: np.ndarray) -> np.ndarray:
    out = np.zeros_like(n)
    for lane in range(n.shape[1]):
        gate = n[:, lane] @ w[prefix + "w1.weight"][lane].T
        up = n[:, lane] @ w[prefix + "w3.weight"][lane].T
        out[:, lane] = (gate / (1 + np.exp(-gate)) * up) @ w[prefix + "w2.weight"][lane].T
    return out


def _reduced(config: dict, layer: int, outputs: list[np.ndarray]) -> np.ndarray:
    own, lanes, delay = outputs[-1], config["num_lanes"], config["broadcast_delay"]
    if layer < delay and config["use_early_comm"]:
        return np.repeat(own.sum(1, keepdims=True), lanes, axis=1)
    if layer >= delay and config["use_comm"]:
        result = own.copy()
        for lane in range(lanes):
            for other in range(lanes):
                if other != lane:
                    result[:, lane] += outputs[layer - delay][:, other]
        return result
    return own * np.sqrt(lanes)


def _head(config: dict, w: dict, x: np.ndarray) -> np.ndarray:
    kind = config["lm_head_type"]
    if config["pre_norm_lane_agg"]:
        n = _norm(config, w, "model.norm", x.sum(1, keepdims=True))[:, 0]
    else:
        n = _norm(config, w, "model.norm", x)
        if kind == "lane":
            return n.reshape(len(n), -1) @ w["lm_head.linear.weight"].T
        if kind == "vocab_parallel":
            return np.concatenate([n[:, lane] @ w["lm_head.weight"][lane].T for lane in range(config["num_lanes"])], axis=1)
        n = n.mean(1)
    matrix = w["model.tok_embeddings.weight"] if config["tie_word_embeddings"] else w["lm_head.weight"]
    return n @ matrix.T
