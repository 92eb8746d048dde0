"""Forward passes with a KV cache in plain torch, for the torch backend.

Letters: T rows (new tokens), S positions so far, D hidden, H query heads, K KV heads, G = H/K, h head size, V vocabulary.
Activations, the KV cache and all sums are float32; weights are used in the type they are stored in.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from engine import reference
from engine.config import ModelConfig
from engine.weights import LayerWeights, ModelWeights


class LaneModel:
    """Models with lanes: the reference's own forward pass."""

    def __init__(self, config: ModelConfig, weights: ModelWeights, context_tokens: int):
        self._config, self._weights = config, weights
        self.n_heads = config.n_heads
        self._state = reference.State.new(config, weights, context_tokens)

    @property
    def length(self) -> int:
        return self._state.length

    def reset(self) -> None:
        """Forget the sequence."""
        self._state.length = 0

    def forward(self, ids: list[int], *, all_rows: bool = False) -> Tensor:
        """Append ``ids``; float32 logits [T, V] of all of them, or [1, V] of the last."""
        logits = reference.prefill(self._config, self._weights, self._state, ids)
        return logits if all_rows else logits[-1:]


class OneLaneModel:
    """Llama-family models. The same interface as LaneModel. Takes the layers out of ``weights``.

    With one lane every way of exchange (sum, delayed sum, none) adds the lane's own output, and every head is
    ``head(norm(x))``.
    """

    def __init__(self, config: ModelConfig, weights: ModelWeights, context_tokens: int):
        self._config = config
        self.n_heads = config.n_heads
        self._embedding = weights.embedding
        self._layers = []
        while weights.layers:  # taken out one by one, because packing copies
            self._layers.append(_Layer(config, weights.layers.pop(0)))
        self._norm = weights.norm[0].float()
        head = weights.head
        self._head = Matrix(head[0] if head.dim() == 3 else head, pack=not config.tied_head)  # a tied head would be kept twice
        device = weights.embedding.device
        shape = (config.n_layers, config.n_kv_heads, context_tokens, config.head_size)
        self._k, self._v = (torch.empty(shape, device=device) for _ in "kv")
        angles = torch.arange(context_tokens, device=device)[:, None] * config.rope_inverse_frequencies().to(device)
        self._rotation = torch.polar(torch.ones_like(angles), angles)  # [context, h / 2] complex
        self.length = 0

    def reset(self) -> None:
        self.length = 0

    @torch.inference_mode()
    def forward(self, ids: list[int], *, all_rows: bool = False) -> Tensor:
        start, end = self.length, self.length + len(ids)
        x = self._embedding[torch.tensor(ids, device=self._embedding.device)].float()  # [T, D]
        rotation = self._rotation[start:end, None]  # [T, 1, h / 2]
        for index, layer in enumerate(self._layers):
            window = self._config.layer_windows[index]
            x = layer(x, self._k[index], self._v[index], start, end, rotation, window)
        self.length = end
        if not all_rows:
            x = x[-1:]
        return self._head(_normed(x, self._norm, self._config.norm_eps))


class Matrix:
    """y = x W^T for x [T, columns] float32, W [rows, columns] -> y [T, rows] float32.

    On a CPU float16 weights are held in FBGEMM's layout (x86): its products widen them in registers, for one row and for many.
    ``any_range``: x may be too large for 16 bits and is scaled first, by a power of two.
    """

    def __init__(self, weight: Tensor, any_range: bool = False, pack: bool = True):
        self._on_cpu = weight.device.type == "cpu"
        if pack and self._on_cpu and weight.dtype == torch.float16 and torch.backends.quantized.engine in ("x86", "fbgemm"):
            self._packed, self._weight = torch.ops.quantized.linear_prepack_fp16(weight.float(), None), None
        else:
            self._packed, self._weight = None, weight
        self._any_range = any_range and weight.dtype == torch.float16

    def __call__(self, x: Tensor) -> Tensor:
        if self._packed is not None:
            return torch.ops.quantized.linear_dynamic_fp16(x, self._packed)
        if self._on_cpu and len(x) > 1:  # CPUs without 16-bit arithmetic multiply matrices fast in float32 only
            return F.linear(x, self._weight.float())
        if self._any_range:
            scale = torch.exp2(torch.ceil(torch.log2(x.abs().amax(-1, keepdim=True).clamp(min=1.0))))
            return self._multiply(x / scale) * scale
        return self._multiply(x)

    def _multiply(self, x: Tensor) -> Tensor:
        x = x.to(self._weight.dtype)
        if self._on_cpu:  # torch.mv streams 16-bit weights and sums in float32
            return torch.mv(self._weight, x[0]).float()[None]
        return F.linear(x, self._weight).float()


class _Layer:
    def __init__(self, config: ModelConfig, layer: LayerWeights):
        self._eps = config.norm_eps
        self._sizes = (config.n_heads, config.n_kv_heads, config.head_size)
        self._wqkv, self._wo, self._w13 = Matrix(layer.wqkv[0]), Matrix(layer.wo[0]), Matrix(layer.w13[0])
        self._w2 = Matrix(layer.w2[0], any_range=True)
        self._attention_norm, self._ffn_norm = layer.attention_norm[0].float(), layer.ffn_norm[0].float()
        self._bias = None if layer.qkv_bias is None else layer.qkv_bias[0].float()
        self._qk_norms = None
        if layer.q_norm is not None:  # one scale per head: query heads, then key heads
            scales = [layer.q_norm.float().expand(config.n_heads, -1), layer.k_norm.float().expand(config.n_kv_heads, -1)]
            self._qk_norms = torch.cat(scales)

    def __call__(self, x: Tensor, k: Tensor, v: Tensor, start: int, end: int, rotation: Tensor, window: int | None) -> Tensor:
        """x [T, D] at positions start ... end - 1; k, v [K, context, h] are filled there -> [T, D]."""
        heads, kv_heads, head_size = self._sizes
        rows = self._wqkv(_normed(x, self._attention_norm, self._eps))
        if self._bias is not None:
            rows = rows + self._bias
        rows = rows.view(-1, heads + 2 * kv_heads, head_size)
        qk, v_new = rows[:, : heads + kv_heads], rows[:, heads + kv_heads :]
        if self._qk_norms is not None:
            qk = F.rms_norm(qk, (head_size,), None, self._eps) * self._qk_norms
        pairs = torch.view_as_complex(qk.unflatten(-1, (-1, 2)).contiguous())
        qk = torch.view_as_real(pairs * rotation).flatten(-2)  # [T, H + K, h]
        k[:, start:end] = qk[:, heads:].transpose(0, 1)
        v[:, start:end] = v_new.transpose(0, 1)
        x = x + self._wo(_attention(qk[:, :heads], k, v, start, end, window))
        gate, up = self._w13(_normed(x, self._ffn_norm, self._eps)).chunk(2, dim=-1)
        return x + self._w2(F.silu(gate) * up)


def _normed(x: Tensor, scale: Tensor, eps: float) -> Tensor:
    """RMSNorm of rows x [T, D]. One row on a CPU takes a third of the time by a dot product."""
    if len(x) == 1 and x.device.type == "cpu":
        return (x * (torch.dot(x[0], x[0]).item() / x.shape[1] + eps) ** -0.5).mul_(scale)
    return F.rms_norm(x, (x.shape[1],), scale, eps)


def _attention(q: Tensor, k: Tensor, v: Tensor, start: int, end: int, window: int | None) -> Tensor:
    """q [T, H, h] at positions start ... end - 1, k and v [K, context, h] -> [T, H * h]."""
    rows, heads, size = q.shape
    first = max(0, start - window + 1) if window is not None else 0
    k, v = k[:, first:end], v[:, first:end]  # [K, S, h]
    groups = heads // k.shape[0]
    q = q.transpose(0, 1).reshape(k.shape[0], groups * rows, size)  # rows of a KV head: g * T + t
    scores = torch.bmm(q, k.transpose(1, 2)) * size**-0.5  # [K, G * T, S]
    if rows > 1:
        queries = torch.arange(start, end, device=q.device)[:, None]
        keys = torch.arange(first, end, device=q.device)
        hidden = keys > queries
        if window is not None:
            hidden |= keys <= queries - window
        scores.view(k.shape[0], groups, rows, -1).masked_fill_(hidden, float("-inf"))
    mixed = torch.bmm(scores.softmax(-1), v)  # [K, G * T, h]
    return mixed.view(heads, rows, size).transpose(0, 1).reshape(rows, heads * size)
