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
from engine.weights import ModelWeights

WARM_STEPS = 3
RUNS = 5


class Rival(torch.nn.Module):
    """One decode step. token, position: int64 [1]; returns the next token [1]."""

    def __init__(self, config: ModelConfig, weights: ModelWeights, context: int):
        super().__init__()
        self.config = config
        device, dtype = weights.embedding.device, weights.embedding.dtype
        self.embedding = weights.embedding
        self.head = weights.head if config.head != Head.LANE else weights.head[:, : config.hidden_size].contiguous()
        self.head = self.head.reshape(-1, config.hidden_size)
        self.qkv = [_ordinary_qkv(config, layer.wqkv) for layer in weights.layers]
        self.bias = [None if layer.qkv_bias is None else layer.qkv_bias.reshape(-1) for layer in weights.layers]
        self.wo = [_joined(layer.wo) for layer in weights.layers]
        self.gate_up = [layer.w13.reshape(-1, config.hidden_size) for layer in weights.layers]
        self.w2 = [_joined(layer.w2) for layer in weights.layers]
        self.norms = [(layer.attention_norm[0].to(dtype), layer.ffn_norm[0].to(dtype)) for layer in weights.layers]
        self.norm = weights.norm[0].to(dtype)
        shape = (config.n_layers, 1, config.n_kv_heads, context, config.head_size)
        self.k, self.v = (torch.zeros(shape, device=device, dtype=dtype) for _ in "kv")
        angles = torch.arange(context, device=device).float()[:, None] * config.rope_inverse_frequencies().to(device)
        self.cos, self.sin = angles.cos(), angles.sin()
        q, t = torch.arange(context, device=device)[:, None], torch.arange(context, device=device)[None]
        self.masks = {w: (t <= q) & (t > q - (w or context)) for w in set(config.layer_windows)}

    def _rotate(self, x, position):
        cos, sin = self.cos[position], self.sin[position]
        even, odd = x[..., 0::2].float(), x[..., 1::2].float()
        return torch.stack((even * cos - odd * sin, even * sin + odd * cos), -1).flatten(-2).to(x.dtype)

    def forward(self, token, position):
        c = self.config
        heads, size, eps = c.n_heads, c.head_size, c.norm_eps
        x = self.embedding[token]
        for i in range(c.n_layers):
            h = F.rms_norm(x, (c.hidden_size,), self.norms[i][0], eps)
            q, k, v = F.linear(h, self.qkv[i], self.bias[i]).split([c.q_size, c.kv_size, c.kv_size], -1)
            q = self._rotate(q.view(1, heads, 1, size), position)
            k = self._rotate(k.view(1, c.n_kv_heads, 1, size), position)
            self.k[i].index_copy_(2, position, k)
            self.v[i].index_copy_(2, position, v.view(1, c.n_kv_heads, 1, size))
            mask = self.masks[c.layer_windows[i]][position][None, None]
            y = F.scaled_dot_product_attention(q, self.k[i], self.v[i], attn_mask=mask, enable_gqa=True)
            x = x + F.linear(y.reshape(1, heads * size), self.wo[i])
            gate, up = F.linear(F.rms_norm(x, (c.hidden_size,), self.norms[i][1], eps), self.gate_up[i]).chunk(2, -1)
            x = x + F.linear(F.silu(gate) * up, self.w2[i])
        logits = F.linear(F.rms_norm(x, (c.hidden_size,), self.norm, eps), self.head).float()
        return logits.argmax(-1)


def _ordinary_qkv(config: ModelConfig, w: torch.Tensor) -> torch.Tensor:
    """[L, (H+2K)h, D] -> [q rows of all lanes, k rows, v rows; D]."""
    q, kv = config.heads_per_lane * config.head_size, config.kv_heads_per_lane * config.head_size
    return torch.cat([part.reshape(-1, config.hidden_size) for part in w.split([q, kv, kv], 1)])


def _joined(w: torch.Tensor) -> torch.Tensor:
    """[L, D, k] -> [D, L*k], rows contiguous."""
    return w.permute(1, 0, 2).reshape(w.shape[1], -1)


def measure_rival(config: ModelConfig, weights: ModelWeights, prompt_tokens: int, output_tokens: int) -> dict[str, float]:
    """Decode tokens/s of the rival at positions P .. P+N-1: ``eager`` and ``compile``, each in a CUDA graph, median of 5 runs."""
    import torch._inductor.config as inductor

    inductor.coordinate_descent_tuning = True
    context = prompt_tokens + output_tokens
    model = Rival(config, weights, context).eval()
    compiled = torch.compile(model, mode="max-autotune-no-cudagraphs", fullgraph=True)
    return {name: _graph_speed(step, model, prompt_tokens, output_tokens) for name, step in (("eager", model), ("compile", compiled))}


@torch.inference_mode()
def _graph_speed(step, model: Rival, prompt_tokens: int, output_tokens: int) -> float:
    device = model.embedding.device
    token, position = torch.tensor([1], device=device), torch.tensor([prompt_tokens], device=device)
    side = torch.cuda.Stream(device)
    side.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(side):
        for _ in range(WARM_STEPS):
            step(token, position)
    torch.cuda.current_stream(device).wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        token.copy_(step(token, position))
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
