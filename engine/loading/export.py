"""Write a model as a checkpoint folder in the published layout: config.json and sharded safetensors."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from engine.config import Head, ModelConfig, Reduction
from engine.errors import EngineError, ModelError
from engine.loading.assemble import COLUMN_PARTS, PartReader, part_shape
from engine.loading.hf_config import read_config
from engine.loading.hf_layout import all_parts, halves, per_lane, stored
from engine.loading.safetensors import INDEX, SINGLE

ARCHITECTURE_CLASSES = {
    "laneformer_tp": "LaneformerTPForCausalLM",
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}


def export(config: ModelConfig, reader: PartReader, folder: Path, dtype: torch.dtype, file_bytes: int = 1 << 30) -> int:
    """Write ``folder`` in files of about ``file_bytes``; the bytes of all tensors. Holds one file in memory.

    Raises ModelError when the folder has files already, or when config.json has no way to say what the model is; EngineError
    when a file cannot be written.
    """
    if folder.exists() and not folder.is_dir():
        raise ModelError(f"{folder} is a file; give a new or empty folder.")
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        raise ModelError(f"{folder} is not empty.")
    _write_config(config, folder, dtype)
    groups = _groups(config, dtype, file_bytes)
    names = [SINGLE] if len(groups) == 1 else [f"model-{i + 1:05}-of-{len(groups):05}.safetensors" for i in range(len(groups))]
    weight_map, total = {}, 0
    for name, group in zip(names, groups, strict=True):
        tensors = {stored(config, *part).name: _tensor(config, reader, *part, dtype) for part in group}
        weight_map |= dict.fromkeys(tensors, name)
        total += sum(tensor.nbytes for tensor in tensors.values())
        try:
            save_file(tensors, folder / name, metadata={"format": "pt"})
        except SafetensorError as error:  # also of the system, such as a full disk
            raise EngineError(f"{folder / name} cannot be written: {error}") from error
    if len(groups) > 1:
        _write_json(folder / INDEX, {"metadata": {"total_size": total}, "weight_map": weight_map})
    return total


def _write_config(config: ModelConfig, folder: Path, dtype: torch.dtype) -> None:
    """Write config.json and read it back: a model that the published keys cannot describe is refused."""
    path = folder / "config.json"
    _write_json(path, hf_config(config, dtype))
    if read_config(folder, config.name) != replace(config, dtype=str(dtype).removeprefix("torch.")):
        path.unlink()
        raise ModelError(f"{config.name}: the keys of config.json cannot describe this model.")


def hf_config(config: ModelConfig, dtype: torch.dtype) -> dict[str, Any]:
    """The keys of config.json that describe a model."""
    settings: dict[str, Any] = {
        "model_type": config.architecture,
        "architectures": [ARCHITECTURE_CLASSES[config.architecture]],
        "hidden_size": config.hidden_size,
        "num_hidden_layers": config.n_layers,
        "num_attention_heads": config.n_heads,
        "num_key_value_heads": config.n_kv_heads,
        "intermediate_size": config.ffn_size,
        "max_position_embeddings": config.context_tokens,
        "vocab_size": config.vocab_size,
        "bos_token_id": config.bos_id,
        "eos_token_id": list(config.eos_ids) or None,
        "tie_word_embeddings": config.tied_head,
        "rope_theta": config.rope_theta,
        "torch_dtype": str(dtype).removeprefix("torch."),
    }
    return settings | (_lane_settings(config) if config.architecture == "laneformer_tp" else _llama_settings(config))


def _llama_settings(config: ModelConfig) -> dict[str, Any]:
    settings = {"head_dim": config.head_size, "rms_norm_eps": config.norm_eps, "hidden_act": "silu", "rope_scaling": None}
    scaling = config.rope_scaling
    if scaling:
        settings["rope_scaling"] = {"rope_type": scaling.kind, "factor": scaling.factor}
    if scaling and scaling.kind == "llama3":
        settings["rope_scaling"] |= {
            "low_freq_factor": scaling.low_freq_factor,
            "high_freq_factor": scaling.high_freq_factor,
            "original_max_position_embeddings": scaling.original_context_tokens,
        }
    windows = [window for window in config.layer_windows if window]
    if windows:
        kinds = ["sliding_attention" if window else "full_attention" for window in config.layer_windows]
        settings |= {"sliding_window": windows[0], "use_sliding_window": True, "layer_types": kinds}
    return settings


def _lane_settings(config: ModelConfig) -> dict[str, Any]:
    kinds = config.layer_reductions
    late = kinds[config.delay :]
    windowed = [layer for layer, window in enumerate(config.layer_windows) if window]
    last = windowed[-1] + 1 if windowed else 0
    return {
        "norm_eps": config.norm_eps,
        "num_lanes": config.n_lanes,
        "broadcast_delay": config.delay,
        "use_comm": not late or late[0] != Reduction.NONE,
        "use_early_comm": config.delay == 0 or kinds[0] == Reduction.PRESENT,
        "lm_head_type": "replicate" if config.head == Head.PRE_NORM_SUM else config.head.value,
        "pre_norm_lane_agg": config.head == Head.PRE_NORM_SUM,
        "replicated_rmsn_scale": not config.lane_norms,
        "sliding_window": config.layer_windows[windowed[0]] if windowed else None,
        "sliding_window_n_layers": last,
        "unclamped_layers": [layer for layer in range(last) if layer not in windowed],
    }


def _groups(config: ModelConfig, dtype: torch.dtype, file_bytes: int) -> list[list[tuple[str, int | None]]]:
    """The parts of each file."""
    groups: list[list[tuple[str, int | None]]] = [[]]
    room = file_bytes
    for part in all_parts(config):
        size = torch.Size(part_shape(config, part[0])).numel() * dtype.itemsize
        if groups[-1] and size > room:
            groups.append([])
            room = file_bytes
        groups[-1].append(part)
        room -= size
    return groups


def _tensor(config: ModelConfig, reader: PartReader, part: str, layer: int | None, dtype: torch.dtype) -> Tensor:
    """A part in its stored form."""
    out = torch.empty(stored(config, part, layer).shape, dtype=dtype)
    if per_lane(config, part):
        size = out.shape[2] if part in COLUMN_PARTS else out.shape[1]
        for lane in range(config.n_lanes):
            reader.read(part, layer, lane * size, (lane + 1) * size, out[lane])
        return out
    rows, *columns = part_shape(config, part)
    reader.read(part, layer, 0, columns[0] if part in COLUMN_PARTS else rows, out.view(rows, *columns))
    if halves(config) and part in ("q", "k", "q_bias", "k_bias", "q_norm", "k_norm"):
        pairs = out.unflatten(0, (-1, config.head_size // 2, 2))
        return pairs.transpose(1, 2).reshape(out.shape).contiguous()
    return out


def _write_json(path: Path, data: dict[str, Any]) -> None:
    path.write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")
