"""Forward passes with a KV cache in plain torch, for the torch backend.

Letters: T rows (new tokens), S positions so far, D hidden, H query heads, K KV heads, G = H/K, h head size, V vocabulary.
Activations, the KV cache and all sums are float32; weights are used in the type they are stored in.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from engine import reference
from engine.config import ModelConfig
from engine.weights import LayerWeights, ModelWeights

HALF_MAX = 32768.0  # values up to here are safe in float16


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
    """Llama-family models. The same interface as LaneModel.

    With one lane every way of exchange (sum, delayed sum, none) adds the lane's own output, and every head is
    ``head(norm(x))``.
    """

    def __init__(self, config: ModelConfig, weights: ModelWeights, context_tokens: int):
        self._config = config
        self.n_heads = config.n_heads
        self._embedding = weights.embedding
        self._layers = [_Layer(config, layer) for layer in weights.layers]
        self._norm = weights.norm[0].float()
        head = weights.head
        self._head = Matrix(head[0] if head.dim() == 3 else head)
        device = weights.embedding.device
        shape = (config.n_layers, config.n_kv_heads, context_tokens, config.head_size)
        self._k, self._v = (torch.empty(shape, device=device) for _ in "kv")
        angles = torch.arange(context_tokens, device=device)[:, None] * config.rope_inverse_frequencies().to(device)
        self._rotation = torch.polar(torch.ones_like(angles), angles)  # [context, h / 2] complex
        self._on_cpu = device.type == "cpu"
        self.length = 0

    def reset(self) -> None:
        self.length = 0

    @torch.inference_mode()
    def forward(self, ids: list[int], *, all_rows: bool = False) -> Tensor:
        if len(ids) == 1 and self._on_cpu:
            return self._step(ids[0])
        start, end = self.length, self.length + len(ids)
        x = self._embedding[torch.tensor(ids, device=self._embedding.device)].float()  # [T, D]
        rotation = self._rotation[start:end, None]  # [T, 1, h / 2]
        for index, layer in enumerate(self._layers):
            window = self._config.layer_windows[index]
            x = layer(x, self._k[index], self._v[index], start, end, rotation, window)
        self.length = end
        if not all_rows:
            x = x[-1:]
        return self._head(F.rms_norm(x, (x.shape[-1],), self._norm, self._config.norm_eps))

    def _step(self, token: int) -> Tensor:
        """One token on a CPU, where the number of operations counts: float32 logits [1, V]."""
        position = self.length
        x = self._embedding[token].to(torch.float32, copy=True)  # [D]
        for index, layer in enumerate(self._layers):
            window = self._config.layer_windows[index]
            layer.step(x, self._k[index], self._v[index], position, self._rotation[position], window)
        self.length += 1
        return self._head.row(_normed(x, self._norm, self._config.norm_eps)).float()[None]


class Matrix:
    """y = x W^T for x [T, columns] float32, W [rows, columns] in its own type -> y [T, rows] float32.

    ``any_range``: x may be too large for 16 bits and is scaled first, by a power of two.
    """

    def __init__(self, weight: Tensor, any_range: bool = False):
        self._weight = weight
        self._widen = weight.device.type == "cpu" and weight.dtype != torch.float32
        self._any_range = any_range and weight.dtype == torch.float16

    def __call__(self, x: Tensor) -> Tensor:
        if self._widen and len(x) > 1:  # CPUs without 16-bit arithmetic multiply matrices fast in float32 only
            return F.linear(x, self._weight.float())
        if self._any_range:
            scale = torch.exp2(torch.ceil(torch.log2(x.abs().amax(-1, keepdim=True).clamp(min=1.0))))
            return self._multiply(x / scale) * scale
        return self._multiply(x)

    def row(self, x: Tensor) -> Tensor:
        """x [columns] float32 -> [rows] in the weight's type."""
        if self._any_range:
            bound = math.sqrt(torch.dot(x, x).item())  # no element is larger
            if bound > HALF_MAX:
                scale = 2.0 ** math.ceil(math.log2(bound / HALF_MAX))
                return torch.mv(self._weight, x.div(scale).to(self._weight.dtype)).float() * scale
        return torch.mv(self._weight, x.to(self._weight.dtype))

    def _multiply(self, x: Tensor) -> Tensor:
        x = x.to(self._weight.dtype)
        if self._widen:  # torch.mv streams the weights in 16 bits and sums in float32
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
        size = (x.shape[-1],)
        heads, kv_heads, head_size = self._sizes
        rows = self._wqkv(F.rms_norm(x, size, self._attention_norm, self._eps))
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
        gate, up = self._w13(F.rms_norm(x, size, self._ffn_norm, self._eps)).chunk(2, dim=-1)
        return x + self._w2(F.silu(gate) * up)

    def step(self, x: Tensor, k: Tensor, v: Tensor, position: int, rotation: Tensor, window: int | None) -> None:
        """The same for one row x [D], changed in place."""
        heads, kv_heads, head_size = self._sizes
        rows = self._wqkv.row(_normed(x, self._attention_norm, self._eps)).float()
        if self._bias is not None:
            rows += self._bias
        rows = rows.view(-1, head_size)  # [H + 2K, h]
        qk = rows[: heads + kv_heads]
        if self._qk_norms is not None:
            qk = F.rms_norm(qk, (head_size,), None, self._eps) * self._qk_norms
        qk = torch.view_as_real(torch.view_as_complex(qk.view(-1, head_size // 2, 2)) * rotation).view(-1, head_size)
        k[:, position] = qk[heads:]
        v[:, position] = rows[heads + kv_heads :]
        first = max(0, position + 1 - window) if window is not None else 0
        q = qk[:heads].view(kv_heads, -1, head_size)
        scores = torch.bmm(q, k[:, first : position + 1].transpose(1, 2)).mul_(head_size**-0.5)  # [K, G, S]
        x += self._wo.row(torch.bmm(scores.softmax(-1), v[:, first : position + 1]).view(-1))
        gate, up = self._w13.row(_normed(x, self._ffn_norm, self._eps)).float().chunk(2)
        x += self._w2.row(F.silu(gate, inplace=True).mul_(up))


def _normed(x: Tensor, scale: Tensor, eps: float) -> Tensor:
    """RMSNorm of one row x [D]; fewer operations than F.rms_norm needs on a CPU."""
    return (x * (torch.dot(x, x).item() / len(x) + eps) ** -0.5).mul_(scale)


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
