"""config.json of a Hugging Face checkpoint -> ModelConfig. Reads JSON only; nothing of the checkpoint is executed.

Defaults for keys that a file lacks are those of the published configuration classes.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.config import ARCHITECTURES, MAX_LAYERS, Head, ModelConfig, Reduction, RopeScaling
from engine.errors import ModelError

DEFAULT_MAX_WINDOW_LAYERS = 28  # of qwen2 and qwen3
DEFAULT_QWEN3_HEAD_SIZE = 128
DEFAULT_WINDOW = 4096  # of mistral, qwen2 and qwen3; null is none


def read_config(folder: Path, name: str) -> ModelConfig:
    """Raises ModelError that names the file and the key."""
    path = folder / "config.json"
    reader = _Keys(path, read_json(path))
    architecture = reader.data.get("model_type")
    if architecture not in ARCHITECTURES:
        raise ModelError(f"{path}: model_type {architecture!r} is not supported. The engine runs {', '.join(ARCHITECTURES)}.")
    common = _common(reader, folder, name, architecture)
    specific = _laneformer(reader) if architecture == "laneformer_tp" else _llama_family(reader, architecture)
    return ModelConfig(**common, **specific)


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file. Raises ModelError when it is missing or no JSON object."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ModelError(f"{path} is missing.") from None
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(f"{path} cannot be read as JSON: {error}") from error
    if not isinstance(data, dict):
        raise ModelError(f"{path} must hold a JSON object.")
    return data


@dataclass(frozen=True)
class _Keys:
    """Typed access to a config.json; every error names the file, the key and the value."""

    path: Path
    data: dict[str, Any]

    def integer(self, key: str, default: int | None = None) -> int:
        return self._typed(key, default, int, "a whole number")

    def number(self, key: str, default: float | None = None) -> float:
        value = self._typed(key, default, int | float, "a number")
        try:
            return float(value)
        except OverflowError:
            self.fail(f"{key} must be a number that float64 can hold; it has {len(str(value))} digits")

    def flag(self, key: str, default: bool) -> bool:
        return self._typed(key, default, bool, "true or false")

    def integers(self, key: str) -> tuple[int, ...]:
        """A list, a single number or null -> a tuple."""
        value = self.data.get(key)
        values = [] if value is None else value if isinstance(value, list) else [value]
        if any(isinstance(entry, bool) or not isinstance(entry, int) for entry in values):
            self.fail(f"{key} must be a whole number or a list of them; got {value!r}")
        return tuple(values)

    def table(self, key: str) -> dict[str, Any]:
        value = self.data.get(key)
        if value is not None and not isinstance(value, dict):
            self.fail(f"{key} must be an object; got {value!r}")
        return value or {}

    def layers(self) -> int:
        """Checked before anything per layer is made."""
        count = self.integer("num_hidden_layers")
        if not 1 <= count <= MAX_LAYERS:
            self.fail(f"num_hidden_layers must lie between 1 and {MAX_LAYERS:,}; got {count:,}")
        return count

    def fail(self, problem: str):
        raise ModelError(f"{self.path}: {problem}.")

    def _typed(self, key: str, default, kind, what: str):
        value = self.data.get(key)
        if value is None:
            if default is None:
                self.fail(f"{key} is missing")
            return default
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            self.fail(f"{key} must be {what}; got {value!r}")
        return value


def _common(keys: _Keys, folder: Path, name: str, architecture: str) -> dict[str, Any]:
    _refuse(keys)
    hidden, heads = keys.integer("hidden_size"), keys.integer("num_attention_heads")
    if heads < 1 or (hidden % heads and keys.data.get("head_dim") is None):
        keys.fail(f"hidden_size {hidden} does not divide over num_attention_heads {heads}, and head_dim is missing")
    default_head_size = DEFAULT_QWEN3_HEAD_SIZE if architecture == "qwen3" else hidden // heads
    generation = folder / "generation_config.json"
    generation_keys = _Keys(generation, read_json(generation) if generation.is_file() else {})
    theta, scaling = _rope(keys)
    bos = keys.integers("bos_token_id")
    return dict(
        name=name,
        architecture=architecture,
        n_layers=keys.layers(),
        hidden_size=hidden,
        n_heads=heads,
        n_kv_heads=keys.integer("num_key_value_heads", heads),
        head_size=hidden // heads if architecture == "laneformer_tp" else keys.integer("head_dim", default_head_size),
        ffn_size=keys.integer("intermediate_size"),
        vocab_size=keys.integer("vocab_size"),
        context_tokens=keys.integer("max_position_embeddings"),
        rope_theta=theta,
        rope_scaling=scaling,
        tied_head=keys.flag("tie_word_embeddings", False),
        bos_id=bos[0] if bos else None,
        eos_ids=tuple(dict.fromkeys(keys.integers("eos_token_id") + generation_keys.integers("eos_token_id"))),
        dtype=keys.data.get("dtype") or keys.data.get("torch_dtype") or "float32",
    )


def _refuse(keys: _Keys) -> None:
    """What would change the result and is not built."""
    if keys.data.get("quantization_config"):
        keys.fail("quantization_config: quantised checkpoints are not supported; use float32, float16 or bfloat16 safetensors, or GGUF")
    for key in ("attention_bias", "mlp_bias"):
        if keys.data.get(key):
            keys.fail(f"{key}: biases of output and MLP projections are not supported")
    activation = keys.data.get("hidden_act", "silu")
    if activation not in ("silu", "swish"):
        keys.fail(f"hidden_act {activation!r} is not supported; only silu is")


def _rope(keys: _Keys) -> tuple[float, RopeScaling | None]:
    """Both spellings: ``rope_theta`` + ``rope_scaling``, and ``rope_parameters`` with everything inside."""
    old, new = keys.table("rope_scaling"), keys.table("rope_parameters")
    if old and new and _rope_kind(old) != _rope_kind(new):
        keys.fail(f"rope_scaling ({_rope_kind(old)}) and rope_parameters ({_rope_kind(new)}) disagree")
    for key in old.keys() & new.keys() - {"type", "rope_type"}:
        if old[key] != new[key]:
            keys.fail(f"{key} of rope_scaling ({old[key]!r}) and of rope_parameters ({new[key]!r}) disagree")
    rope = _Keys(keys.path, {**old, **new})
    theta = rope.number("rope_theta", keys.number("rope_theta", 10_000.0))
    if keys.data.get("rope_theta") not in (None, theta):
        keys.fail(f"rope_theta {keys.data['rope_theta']!r} and the rope_theta {theta!r} of the rotary setting disagree")
    if rope.number("partial_rotary_factor", keys.number("partial_rotary_factor", 1.0)) != 1.0:
        keys.fail("partial_rotary_factor: rotary embedding of a part of the head is not supported")
    kind = _rope_kind(rope.data)
    if kind == "default":
        return theta, None
    if kind == "linear":
        return theta, rope_scaling(keys.path, kind, rope.number("factor"))
    if kind == "llama3":
        original = rope.integer("original_max_position_embeddings", keys.integer("max_position_embeddings"))
        original = keys.integer("original_max_position_embeddings", original)  # counts more, as in Transformers
        factors = (rope.number(name) for name in ("factor", "low_freq_factor", "high_freq_factor"))
        return theta, rope_scaling(keys.path, kind, *factors, original)
    return keys.fail(f"rotary scaling {kind!r} is not supported; default, linear and llama3 are")


def rope_scaling(path: Path, kind: str, *values, **named) -> RopeScaling:
    """A RopeScaling whose errors name the file."""
    try:
        return RopeScaling(kind, *values, **named)
    except ModelError as error:
        raise ModelError(f"{path}: {error}") from None


def _rope_kind(table: dict[str, Any]) -> str:
    if any(isinstance(value, dict) for value in table.values()):
        return "one setting per layer type"
    return table.get("rope_type") or table.get("type") or "default"


def _llama_family(keys: _Keys, architecture: str) -> dict[str, Any]:
    layers = keys.layers()
    return dict(
        norm_eps=keys.number("rms_norm_eps", 1e-6),
        windows=_llama_windows(keys, architecture, layers),
        qkv_bias=architecture == "qwen2",
        qk_norm=architecture == "qwen3",
    )


def _llama_windows(keys: _Keys, architecture: str, layers: int) -> tuple[int | None, ...]:
    if architecture == "llama" or keys.data.get("sliding_window", DEFAULT_WINDOW) is None:
        return ()
    if architecture != "mistral" and not keys.flag("use_sliding_window", False):
        return ()
    window = keys.integer("sliding_window", DEFAULT_WINDOW)
    kinds = keys.data.get("layer_types")
    if kinds is None:
        first = 0 if architecture == "mistral" else keys.integer("max_window_layers", DEFAULT_MAX_WINDOW_LAYERS)
        return tuple(window if layer >= first else None for layer in range(layers))
    if not isinstance(kinds, list) or not all(isinstance(kind, str) for kind in kinds):
        keys.fail(f"layer_types must be a list of names; got {kinds!r}")
    unknown = set(kinds) - {"sliding_attention", "full_attention"}
    if unknown:
        keys.fail(f"layer_types: {', '.join(sorted(map(str, unknown)))} is not supported; sliding_attention and full_attention are")
    return tuple(window if kind == "sliding_attention" else None for kind in kinds)


def _laneformer(keys: _Keys) -> dict[str, Any]:
    layers, lanes = keys.layers(), keys.integer("num_lanes", 1)
    delay = keys.integer("broadcast_delay", 1)
    if delay < 0:
        keys.fail(f"broadcast_delay must be at least 0; got {delay}")
    if _rope(keys)[1]:
        keys.fail("rotary scaling is not part of laneformer_tp")
    return dict(
        norm_eps=keys.number("norm_eps", 1e-5),
        n_lanes=lanes,
        delay=delay,
        reductions=_reductions(keys, layers, delay) if lanes > 1 else (),
        windows=_lane_windows(keys, layers),
        lane_norms=not keys.flag("replicated_rmsn_scale", True),
        head=_lane_head(keys),
    )


def _reductions(keys: _Keys, layers: int, delay: int) -> tuple[Reduction, ...]:
    early = Reduction.PRESENT if keys.flag("use_early_comm", True) else Reduction.NONE
    late = Reduction.PAST if keys.flag("use_comm", True) else Reduction.NONE
    if delay == 0 and late == Reduction.PAST:
        late = Reduction.PRESENT  # own output + the others' of the same layer
    return tuple(early if layer < delay else late for layer in range(layers))


def _lane_windows(keys: _Keys, layers: int) -> tuple[int | None, ...]:
    windowed = keys.integer("sliding_window_n_layers", 0)
    full = set(keys.integers("unclamped_layers"))
    if keys.data.get("sliding_window") is None or windowed == 0:
        return ()
    window = keys.integer("sliding_window")
    layers_with_window = range(windowed) if windowed > 0 else range(layers + windowed, layers)
    return tuple(window if layer in layers_with_window and layer not in full else None for layer in range(layers))


def _lane_head(keys: _Keys) -> Head:
    kind = keys.data.get("lm_head_type", "replicate")
    if kind not in ("replicate", "lane", "vocab_parallel"):
        keys.fail(f"lm_head_type must be replicate, lane or vocab_parallel; got {kind!r}")
    if not keys.flag("pre_norm_lane_agg", False):
        return Head(kind)
    if kind != "replicate":
        keys.fail(f"pre_norm_lane_agg needs lm_head_type replicate; got {kind!r}")
    return Head.PRE_NORM_SUM
