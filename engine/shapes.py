"""Named shapes for ``random:NAME``: speed and memory can be measured where the weights cannot be had.

The sizes are those of the published models. Laneformer 2B: rotary base, norm epsilon and head arrangement live in its
checkpoint; here they are the published configuration's defaults.
"""

from engine.config import Head, ModelConfig, Reduction, RopeScaling

SIZES = ("n_layers", "hidden_size", "n_heads", "n_kv_heads", "head_size", "ffn_size", "vocab_size", "context_tokens")

# Lanes: name, sizes, lanes, delay, leading layers with a window, window
LANES = (
    ("laneformer-2b", (15, 3072, 32, 16, 96, 12288, 32000, 4096), 8, 2, 10, 512),
    ("tiny", (5, 256, 16, 8, 16, 512, 512, 256), 8, 2, 3, 16),
)


def _llama3(factor: float) -> RopeScaling:
    return RopeScaling("llama3", factor, low_freq_factor=1.0, high_freq_factor=4.0, original_context_tokens=8192)


# One lane: name, sizes, what differs from Llama 3
LLAMAS = (
    ("tiny-llama", (3, 128, 8, 4, 16, 384, 512, 256), {"rope_theta": 10_000.0, "tied_head": True}),
    ("smollm2-135m", (30, 576, 9, 3, 64, 1536, 49152, 8192), {"rope_theta": 100_000.0, "tied_head": True}),
    ("llama-3.2-1b", (16, 2048, 32, 8, 64, 8192, 128256, 131072), {"rope_scaling": _llama3(32.0), "tied_head": True}),
    ("llama-3.2-3b", (28, 3072, 24, 8, 128, 8192, 128256, 131072), {"rope_scaling": _llama3(32.0), "tied_head": True}),
    ("llama-3.1-8b", (32, 4096, 32, 8, 128, 14336, 128256, 131072), {"rope_scaling": _llama3(8.0)}),
    ("llama-3.1-70b", (80, 8192, 64, 8, 128, 28672, 128256, 131072), {"rope_scaling": _llama3(8.0)}),
    (
        "qwen2.5-coder-7b",
        (28, 3584, 28, 4, 128, 18944, 152064, 32768),
        {"architecture": "qwen2", "norm_eps": 1e-6, "rope_theta": 1_000_000.0, "qkv_bias": True},
    ),
)


def _lanes(name: str, sizes: tuple[int, ...], lanes: int, delay: int, windowed: int, window: int) -> ModelConfig:
    layers = sizes[0]
    return ModelConfig(
        name=f"random:{name}",
        architecture="laneformer_tp",
        **dict(zip(SIZES, sizes, strict=True)),
        n_lanes=lanes,
        delay=delay,
        reductions=(Reduction.PRESENT,) * delay + (Reduction.PAST,) * (layers - delay),
        windows=(window,) * windowed + (None,) * (layers - windowed),
        head=Head.REPLICATE,
        norm_eps=1e-5,
        rope_theta=10_000.0,
    )


def _llama(name: str, sizes: tuple[int, ...], other: dict) -> ModelConfig:
    common = {"architecture": "llama", "norm_eps": 1e-5, "rope_theta": 500_000.0, "dtype": "bfloat16"}
    return ModelConfig(name=f"random:{name}", **dict(zip(SIZES, sizes, strict=True)), **common | other)


SHAPES: dict[str, ModelConfig] = {row[0]: _lanes(*row) for row in LANES} | {row[0]: _llama(*row) for row in LLAMAS}
