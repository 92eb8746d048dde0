"""Small models with every feature, and a portable path around them."""

import torch

from engine.config import Head, ModelConfig, Reduction
from engine.kernel.cache import KVCache
from engine.kernel.control import Control
from engine.kernel.params import ParamBlock
from engine.kernel.portable.path import PortablePath
from engine.weights import LayerWeights, ModelWeights

CPU = torch.device("cpu")
CONTEXT = 40


def lanes_config(head: Head, **changes) -> ModelConfig:
    """Two lanes, sizes that are no powers of two, one layer of each reduction, a window of 5."""
    values = dict(
        name="lanes", architecture="laneformer_tp", n_layers=3, hidden_size=36, n_heads=4, n_kv_heads=2, head_size=12, ffn_size=40,
        vocab_size=50, context_tokens=CONTEXT, norm_eps=1e-5, rope_theta=1e4, n_lanes=2, delay=1,
        reductions=(Reduction.PRESENT, Reduction.PAST, Reduction.NONE), windows=(5, None, None), head=head, lane_norms=True,
    )  # fmt: skip
    return ModelConfig(**values | changes)


def llama_config(**changes) -> ModelConfig:
    """Grouped heads (three to one), biases, QK norms, a tied head."""
    values = dict(
        name="llama", architecture="qwen3", n_layers=2, hidden_size=36, n_heads=3, n_kv_heads=1, head_size=16, ffn_size=56,
        vocab_size=50, context_tokens=CONTEXT, norm_eps=1e-6, rope_theta=1e4, tied_head=True, qkv_bias=True, qk_norm=True,
    )  # fmt: skip
    return ModelConfig(**values | changes)


def random_weights(config: ModelConfig, seed: int = 0) -> ModelWeights:
    """float32, scaled so that logits are of order one."""
    g = torch.Generator().manual_seed(seed)
    lanes, d, h = config.n_lanes, config.hidden_size, config.head_size

    def matrix(*shape):
        return torch.randn(shape, generator=g) * shape[-1] ** -0.5

    def scale(*shape):
        return 1 + 0.2 * torch.randn(shape, generator=g)

    rows = (config.heads_per_lane + 2 * config.kv_heads_per_lane) * h
    norms = lanes if config.lane_norms else 1
    layers = [
        LayerWeights(
            wqkv=matrix(lanes, rows, d),
            wo=matrix(lanes, d, config.heads_per_lane * h),
            w13=matrix(lanes, 2 * config.ffn_per_lane, d),
            w2=matrix(lanes, d, config.ffn_per_lane),
            attention_norm=scale(norms, d),
            ffn_norm=scale(norms, d),
            qkv_bias=torch.randn((lanes, rows), generator=g) if config.qkv_bias else None,
            q_norm=scale(h) if config.qk_norm else None,
            k_norm=scale(h) if config.qk_norm else None,
        )
        for _ in range(config.n_layers)
    ]
    embedding = torch.randn((config.vocab_size, d), generator=g)
    if config.tied_head:
        head = embedding
    elif config.head == Head.VOCAB_PARALLEL:
        head = matrix(lanes, config.vocab_size // lanes, d)
    else:
        head = matrix(config.vocab_size, config.head_inputs)
    final = lanes if config.per_lane_final_norm else 1
    return ModelWeights(embedding, layers, scale(final, d), head)


class Setup:
    """A path with its control words on the CPU."""

    def __init__(self, config: ModelConfig, weights: ModelWeights, rows: int | None = None, tune=None):
        self.config, self.weights = config, weights
        dtype = weights.embedding.dtype
        self.control, self.params = Control(CONTEXT, CPU), ParamBlock(CPU)
        self.cache = KVCache.allocate(config, CONTEXT, dtype, CPU)
        self.path = PortablePath(config, weights, self.cache, self.control, self.params, CPU, rows=rows, tune=tune)
