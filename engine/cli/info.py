"""python -m engine info MODEL: the configuration, its size, and what the GPUs present could do at most."""

import argparse

from engine.cli.common import add_dtype, add_model
from engine.config import ModelConfig


def add_parser(subparsers) -> argparse.ArgumentParser:
    parser = subparsers.add_parser("info", help="configuration, parameters, bytes per token, bandwidth bound")
    add_model(parser)
    add_dtype(parser)
    return parser


def run(args: argparse.Namespace) -> None:
    from engine.hardware import gpus
    from engine.loading import load_config, pick_dtype
    from engine.models import resolve

    source = resolve(args.model)
    config, cards = load_config(source), gpus()
    dtype = pick_dtype(args.dtype, config, "cuda" if cards else "cpu")
    for name, value in describe(config, str(dtype).removeprefix("torch."), dtype.itemsize, cards).items():
        print(f"{name:<18}{value}")


def describe(config: ModelConfig, dtype: str, dtype_bytes: int, cards: list) -> dict[str, str]:
    """Label -> text, in the order of printing."""
    per_token = config.bytes_per_token(dtype_bytes)
    return {
        "model": config.name,
        "architecture": config.architecture,
        "layers": f"{config.n_layers}",
        "hidden size": f"{config.hidden_size:,}",
        "heads": f"{config.n_heads} query, {config.n_kv_heads} KV, {config.head_size} wide",
        "FFN size": f"{config.ffn_size:,}",
        "vocabulary": f"{config.vocab_size:,}{', head tied to the embedding' if config.tied_head else ''}",
        "context": f"{config.context_tokens:,} tokens",
        "rotary": _rotary(config),
        "norm epsilon": f"{config.norm_eps:g}{', scales per lane' if config.lane_norms else ''}",
        "attention": _runs([f"window of {window:,}" if window else "full" for window in config.layer_windows]),
        "lanes": _lanes(config),
        "head": config.head.value if config.n_lanes > 1 else "one lane",
        "extras": ", ".join(name for name, on in (("QKV biases", config.qkv_bias), ("QK norms", config.qk_norm)) if on) or "none",
        "end of sequence": ", ".join(map(str, config.eos_ids)) or "none",
        "stored as": config.dtype,
        "parameters": f"{config.parameters:,}",
        "bytes per token": ", ".join(f"{_bytes(config.bytes_per_token(size))} in {8 * size} bits" for size in (2, 4)),
        "KV cache": f"{config.kv_bytes_per_token(dtype_bytes):,} bytes per position as {dtype}",
        **_bounds(per_token, dtype, cards),
    }


def _bytes(count: int) -> str:
    return f"{count:,} ({count / 1e9:.3f} GB)"


def _rotary(config: ModelConfig) -> str:
    scaling = config.rope_scaling
    if scaling is None:
        return f"theta {config.rope_theta:,.0f}"
    factor = "" if scaling.kind == "factors" else f" {scaling.factor:g}"
    return f"theta {config.rope_theta:,.0f}, {scaling.kind} scaling{factor}"


def _lanes(config: ModelConfig) -> str:
    if config.n_lanes == 1:
        return "1"
    reductions = _runs([reduction.value for reduction in config.layer_reductions])
    return f"{config.n_lanes}, delay {config.delay}; reductions: {reductions}"


def _runs(values: list[str]) -> str:
    """['a', 'a', 'b'] -> 'a in layers 0-1, b in layer 2'; one value alone is named once."""
    if len(set(values)) == 1:
        return f"{values[0]} in all layers"
    starts = [index for index, value in enumerate(values) if index == 0 or values[index - 1] != value]
    spans = zip(starts, [*starts[1:], len(values)], strict=True)
    return ", ".join(f"{values[a]} in layer {a}" if b == a + 1 else f"{values[a]} in layers {a}-{b - 1}" for a, b in spans)


def _bounds(per_token: int, dtype: str, cards: list) -> dict[str, str]:
    if not cards:
        return {"bandwidth bound": "none: no GPU is present, and the table has no CPUs"}
    speed = cards[0].datasheet_bytes_per_s
    name = f"{len(cards)} x {cards[0].name}" if len(cards) > 1 else cards[0].name
    if speed is None:
        return {"GPUs": name, "bandwidth bound": "none: the datasheet bandwidth of this card is not known"}
    counts = [count for count in (1, 2, 4, 8) if count <= len(cards)]
    bounds = ", ".join(f"{count * speed / per_token:,.0f} tokens/s on {count}" for count in counts)
    return {"GPUs": name, "bandwidth bound": f"{bounds} (datasheet: {speed / 1e12:g} TB/s each, weights as {dtype})"}
