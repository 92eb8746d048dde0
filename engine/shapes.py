"""Named shapes for ``random:NAME``: speed and memory can be measured where the weights cannot be had.

The sizes are those of the published models. Laneformer 2B: rotary base, norm epsilon and head arrangement live in its
checkpoint; here they are the published configuration's defaults.
"""

from engine.config import Head, ModelConfig, Reduction, RopeScaling


def _lane_shape(name: str, *, n_layers: int, windowed_layers: int, window: int, delay: int, **sizes) -> ModelConfig:
    return ModelConfig(
        name=name,
        architecture="laneformer_tp",
        n_layers=n_layers,
        delay=delay,
        reductions=(Reduction.PRESENT,) * delay + (Reduction.PAST,) * (n_layers - delay),
        windows=(window,) * windowed_layers + (None,) * (n_layers - windowed_layers),
        head=Head.REPLICATE,
        norm_eps=1e-5,
        rope_theta=10_000.0,
        **sizes,
    )


def _llama_shape(name: str, **sizes) -> ModelConfig:
    return ModelConfig(name=name, **{"architecture": "llama", "norm_eps": 1e-5, "rope_theta": 500_000.0, "dtype": "bfloat16"} | sizes)


def _llama3_scaling(factor: float) -> RopeScaling:
    return RopeScaling("llama3", factor, low_freq_factor=1.0, high_freq_factor=4.0, original_context_tokens=8192)


_ALL = (
    _lane_shape(
        "random:laneformer-2b",
        n_layers=15,
        windowed_layers=10,
        window=512,
        delay=2,
        n_lanes=8,
        hidden_size=3072,
        n_heads=32,
        n_kv_heads=16,
        head_size=96,
        ffn_size=12288,
        vocab_size=32000,
        context_tokens=4096,
    ),
    _lane_shape(
        "random:tiny",
        n_layers=5,
        windowed_layers=3,
        window=16,
        delay=2,
        n_lanes=8,
        hidden_size=256,
        n_heads=16,
        n_kv_heads=8,
        head_size=16,
        ffn_size=512,
        vocab_size=512,
        context_tokens=256,
    ),
    _llama_shape(
        "random:tiny-llama",
        n_layers=3,
        hidden_size=128,
        n_heads=8,
        n_kv_heads=4,
        head_size=16,
        ffn_size=384,
        vocab_size=512,
        context_tokens=256,
        rope_theta=10_000.0,
        tied_head=True,
    ),
    _llama_shape(
        "random:smollm2-135m",
        n_layers=30,
        hidden_size=576,
        n_heads=9,
        n_kv_heads=3,
        head_size=64,
        ffn_size=1536,
        vocab_size=49152,
        context_tokens=8192,
        rope_theta=100_000.0,
        tied_head=True,
    ),
    _llama_shape(
        "random:llama-3.2-1b",
        n_layers=16,
        hidden_size=2048,
        n_heads=32,
        n_kv_heads=8,
        head_size=64,
        ffn_size=8192,
        vocab_size=128256,
        context_tokens=131072,
        rope_scaling=_llama3_scaling(32.0),
        tied_head=True,
    ),
    _llama_shape(
        "random:llama-3.2-3b",
        n_layers=28,
        hidden_size=3072,
        n_heads=24,
        n_kv_heads=8,
        head_size=128,
        ffn_size=8192,
        vocab_size=128256,
        context_tokens=131072,
        rope_scaling=_llama3_scaling(32.0),
        tied_head=True,
    ),
    _llama_shape(
        "random:llama-3.1-8b",
        n_layers=32,
        hidden_size=4096,
        n_heads=32,
        n_kv_heads=8,
        head_size=128,
        ffn_size=14336,
        vocab_size=128256,
        context_tokens=131072,
        rope_scaling=_llama3_scaling(8.0),
    ),
    _llama_shape(
        "random:llama-3.1-70b",
        n_layers=80,
        hidden_size=8192,
        n_heads=64,
        n_kv_heads=8,
        head_size=128,
        ffn_size=28672,
        vocab_size=128256,
        context_tokens=131072,
        rope_scaling=_llama3_scaling(8.0),
    ),
    _llama_shape(
        "random:qwen2.5-coder-7b",
        architecture="qwen2",
        n_layers=28,
        hidden_size=3584,
        n_heads=28,
        n_kv_heads=4,
        head_size=128,
        ffn_size=18944,
        vocab_size=152064,
        context_tokens=32768,
        norm_eps=1e-6,
        rope_theta=1_000_000.0,
        qkv_bias=True,
    ),
)

SHAPES: dict[str, ModelConfig] = {config.name.removeprefix("random:"): config for config in _ALL}
