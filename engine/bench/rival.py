"""What a careful user would run instead: PyTorch with torch.compile, CUDA graphs and a static KV cache, on the same weights.

A model with lanes runs here as an ordinary tensor-parallel Llama of the same weights (all lanes summed at once): the same
bytes and products in fewer, larger matrices, which is the friendlier form for PyTorch. The greedy choice and the step to
the next token are inside the graph; the CPU only replays it. Speeds are comparable, texts are not.
"""

import statistics
import time

import torch
import torch.nn.functional as F

from engine.config import Head, ModelConfig
from engine.weights import LayerWeights, ModelWeights

WARM_STEPS = 3
RUNS = 5


class Rival(torch.nn.Module):
    """One decode step. token, position: int64 [1]; returns the next token [1].

    All layers share one function, which can be compiled once for all ("regional compilation") instead of the whole model.
    """

    def __init__(self, config: ModelConfig, weights: ModelWeights, context: int):
        super().__init__()
        self.config = config
        device, dtype = weights.embedding.device, weights.embedding.dtype
        self.embedding = weights.embedding
        head = weights.head if config.head != Head.LANE else weights.head[:, : config.hidden_size].contiguous()
        self.head_weight = head.reshape(-1, config.hidden_size)
        self.layers = [_ordinary_layer(config, layer, dtype) for layer in weights.layers]
        self.norm_weight = weights.norm[0].to(dtype)
        shape = (config.n_layers, 1, config.n_kv_heads, context, config.head_size)
        self.k, self.v = (torch.zeros(shape, device=device, dtype=dtype) for _ in "kv")
        angles = torch.arange(context, device=device).float()[:, None] * config.rope_inverse_frequencies().to(device)
        self.angles = (angles.cos(), angles.sin())
        q, t = torch.arange(context, device=device)[:, None], torch.arange(context, device=device)[None]
        self.masks = {w: (t <= q) & (t > q - (w or context)) for w in set(config.layer_windows)}

    def compile_parts(self, **options) -> None:
        self.layer = torch.compile(self.layer, fullgraph=True, **options)
        self.head = torch.compile(self.head, fullgraph=True, **options)

    def forward(self, token, position):
        x = self.embedding[token]
        for weights, k, v, window in zip(self.layers, self.k, self.v, self.config.layer_windows, strict=True):
            x = self.layer(x, position, weights, k, v, self.angles, self.masks[window])
        return self.head(x, self.norm_weight, self.head_weight)

    def layer(self, x, position, weights, k_cache, v_cache, angles, mask):
        c = self.config
        attention_norm, qkv, bias, wo, ffn_norm, gate_up, w2 = weights
        heads, groups, size, eps = c.n_heads, c.n_kv_heads, c.head_size, c.norm_eps
        h = F.rms_norm(x, (c.hidden_size,), attention_norm, eps)
        q, k, v = F.linear(h, qkv, bias).split([c.q_size, c.kv_size, c.kv_size], -1)
        cos, sin = angles[0][position], angles[1][position]
        k_cache.index_copy_(2, position, _rotate(k.view(1, groups, 1, size), cos, sin))
        v_cache.index_copy_(2, position, v.view(1, groups, 1, size))
        q = _rotate(q.view(1, heads, 1, size), cos, sin)
        y = F.scaled_dot_product_attention(q, k_cache, v_cache, attn_mask=mask[position][None, None], enable_gqa=True)
        x = x + F.linear(y.reshape(1, heads * size), wo)
        gate, up = F.linear(F.rms_norm(x, (c.hidden_size,), ffn_norm, eps), gate_up).chunk(2, -1)
        return x + F.linear(F.silu(gate) * up, w2)

    def head(self, x, norm, weight):
        return F.linear(F.rms_norm(x, (self.config.hidden_size,), norm, self.config.norm_eps), weight).float().argmax(-1)


def _rotate(x, cos, sin):
    even, odd = x[..., 0::2].float(), x[..., 1::2].float()
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), -1).flatten(-2).to(x.dtype)


def _ordinary_layer(config: ModelConfig, layer: LayerWeights, dtype: torch.dtype) -> tuple:
    """The weights of a layer with all lanes as one: attention norm, QKV, its bias, O, FFN norm, gate and up, down."""
    return (
        layer.attention_norm[0].to(dtype),
        _ordinary_qkv(config, layer.wqkv),
        None if layer.qkv_bias is None else layer.qkv_bias.reshape(-1),
        _joined(layer.wo),
        layer.ffn_norm[0].to(dtype),
        layer.w13.reshape(-1, config.hidden_size),
        _joined(layer.w2),
    )


def _ordinary_qkv(config: ModelConfig, w: torch.Tensor) -> torch.Tensor:
    """[L, (H+2K)h, D] -> [q rows of all lanes, k rows, v rows; D]."""
    q, kv = config.heads_per_lane * config.head_size, config.kv_heads_per_lane * config.head_size
    return torch.cat([part.reshape(-1, config.hidden_size) for part in w.split([q, kv, kv], 1)])


def _joined(w: torch.Tensor) -> torch.Tensor:
    """[L, D, k] -> [D, L*k], rows contiguous."""
    return w.permute(1, 0, 2).reshape(w.shape[1], -1)


def measure_rival(config: ModelConfig, weights: ModelWeights, prompt_tokens: int, output_tokens: int) -> dict[str, float]:
    """Decode tokens/s of the rival at positions P .. P+N-1: eager, compiled as a whole (which takes a minute or two) and compiled layer by
    layer, each in a CUDA graph, median of 5 runs."""
    import torch._inductor.config as inductor

    inductor.coordinate_descent_tuning = True
    mode = {"mode": "max-autotune-no-cudagraphs"}
    model = Rival(config, weights, prompt_tokens + output_tokens).eval()
    whole = torch.compile(model, fullgraph=True, **mode)
    speeds = {name: _graph_speed(step, prompt_tokens, output_tokens) for name, step in (("eager", model), ("compile", whole))}
    model.compile_parts(**mode)
    return speeds | {"compile, layer by layer": _graph_speed(model, prompt_tokens, output_tokens)}


@torch.inference_mode()
def _graph_speed(model: Rival, prompt_tokens: int, output_tokens: int) -> float:
    device = model.embedding.device
    token, position = torch.tensor([1], device=device), torch.tensor([prompt_tokens], device=device)
    side = torch.cuda.Stream(device)
    side.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(side):
        for _ in range(WARM_STEPS):
            model(token, position)
    torch.cuda.current_stream(device).wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        token.copy_(model(token, position))
        position.add_(1)
    speeds = []
    for _ in range(RUNS + 1):
        position.fill_(prompt_tokens)
        torch.cuda.synchronize(device)
        start = time.perf_counter()
        for _ in range(output_tokens):
            graph.replay()
        torch.cuda.synchronize(device)
        speeds.append(output_tokens / (time.perf_counter() - start))
    return statistics.median(speeds[1:])
