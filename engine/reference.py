"""The forward pass in plain torch, one function per kernel phase: the truth for every test.

Everything is computed in float32 whatever the type of the weights. Shapes: T rows (tokens of one sequence), L lanes,
D hidden, H query heads, K KV heads, h head size, V vocabulary; H, K and F below are those of a lane. All functions take
the unsharded weights.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.config import Head, ModelConfig, Reduction
from engine.errors import InvalidRequest, PromptTooLong
from engine.weights import LayerWeights, ModelWeights

CHUNK_ROWS = 512  # prompts are processed in chunks of rows, which bounds the memory of the attention scores


@dataclass
class State:
    """The KV cache of one sequence. ``k`` and ``v``: per layer [L, capacity, K, h] float32; ``length`` positions are filled."""

    k: list[Tensor]
    v: list[Tensor]
    inverse_frequencies: Tensor  # [h / 2]
    length: int = 0

    @classmethod
    def new(cls, config: ModelConfig, weights: ModelWeights, capacity: int | None = None) -> "State":
        """``capacity`` in tokens; default and maximum: the model's context."""
        capacity = min(capacity or config.context_tokens, config.context_tokens)
        device = weights.embedding.device
        shape = (config.n_lanes, capacity, config.kv_heads_per_lane, config.head_size)
        caches = [[torch.zeros(shape, device=device) for _ in range(config.n_layers)] for _ in "kv"]
        return cls(*caches, config.rope_inverse_frequencies().to(device))

    @property
    def capacity(self) -> int:
        return self.k[0].shape[1]


def forward(config: ModelConfig, weights: ModelWeights, ids: list[int]) -> Tensor:
    """[T, V] float32 logits of a prompt. Raises PromptTooLong, or InvalidRequest for an id outside the vocabulary."""
    return prefill(config, weights, State.new(config, weights, len(ids)), ids)


def prefill(config: ModelConfig, weights: ModelWeights, state: State, ids: list[int]) -> Tensor:
    """Append ``ids`` to the sequence; [T, V] float32 logits after each. The same errors as ``forward``."""
    _check_ids(config, state, ids)
    rows = torch.tensor(ids, device=weights.embedding.device)
    return torch.cat([_rows(config, weights, state, chunk) for chunk in rows.split(CHUNK_ROWS)])


def step(config: ModelConfig, weights: ModelWeights, state: State, token: int) -> Tensor:
    """Append one token; [V] float32 logits of the next."""
    return prefill(config, weights, state, [token])[0]


def _check_ids(config: ModelConfig, state: State, ids: list[int]) -> None:
    if not ids:
        raise InvalidRequest("A prompt needs at least one token.")
    for token in ids:
        if not 0 <= token < config.vocab_size:
            raise InvalidRequest(f"Token ids of {config.name} lie between 0 and {config.vocab_size - 1:,}; got {token}.")
    if state.length + len(ids) > state.capacity:
        raise PromptTooLong(state.length + len(ids), state.capacity, config.name)


@torch.inference_mode()
def _rows(config: ModelConfig, weights: ModelWeights, state: State, ids: Tensor) -> Tensor:
    positions = torch.arange(state.length, state.length + len(ids), device=ids.device)
    x = embed(config, weights, ids)
    attention_outputs: list[Tensor] = []
    mlp_outputs: list[Tensor] = []
    for index, layer in enumerate(weights.layers):
        q, k, v = qkv(config, layer, norm(x, layer.attention_norm, config.norm_eps), positions, state.inverse_frequencies)
        state.k[index][:, positions] = k
        state.v[index][:, positions] = v
        length = state.length + len(ids)
        heads = attention(q, state.k[index][:, :length], state.v[index][:, :length], positions, config.layer_windows[index])
        attention_outputs.append(output_projection(layer, heads))
        x = x + reduce_lanes(config, index, attention_outputs)
        mlp_outputs.append(mlp(layer, norm(x, layer.ffn_norm, config.norm_eps)))
        x = x + reduce_lanes(config, index, mlp_outputs)
    state.length += len(ids)
    return head(config, weights, x)


def embed(config: ModelConfig, weights: ModelWeights, ids: Tensor) -> Tensor:
    """ids [T] -> x [L, T, D]: all lanes start from the same row."""
    return weights.embedding[ids].float().expand(config.n_lanes, -1, -1)


def norm(x: Tensor, scale: Tensor, eps: float) -> Tensor:
    """RMSNorm: x [L, T, D], scale [1 or L, D] -> [L, T, D]."""
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * scale.float().unsqueeze(1)


def qkv(
    config: ModelConfig, layer: LayerWeights, n: Tensor, positions: Tensor, inverse_frequencies: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """n [L, T, D] -> q [L, T, H, h], k and v [L, T, K, h]; biases and QK norms applied, q and k rotated."""
    rows = n @ layer.wqkv.float().mT
    if layer.qkv_bias is not None:
        rows = rows + layer.qkv_bias.float().unsqueeze(1)
    q, k, v = rows.unflatten(-1, (-1, config.head_size)).split(
        [config.heads_per_lane, config.kv_heads_per_lane, config.kv_heads_per_lane], dim=2
    )
    if layer.q_norm is not None:
        q, k = _head_norm(q, layer.q_norm, config.norm_eps), _head_norm(k, layer.k_norm, config.norm_eps)
    return rotate(q, positions, inverse_frequencies), rotate(k, positions, inverse_frequencies), v


def _head_norm(x: Tensor, scale: Tensor, eps: float) -> Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * scale.float()


def rotate(x: Tensor, positions: Tensor, inverse_frequencies: Tensor) -> Tensor:
    """Rotary embedding of x [L, T, heads, h] on the pairs (2j, 2j + 1), by position * inverse_frequencies[j]."""
    angles = positions.float()[:, None, None] * inverse_frequencies  # [T, 1, h / 2]
    cos, sin = angles.cos(), angles.sin()
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1).flatten(-2)


def attention(q: Tensor, k: Tensor, v: Tensor, positions: Tensor, window: int | None) -> Tensor:
    """q [L, T, H, h] at ``positions``; k, v [L, S, K, h] of all positions so far -> [L, T, H * h].

    A query at p sees the keys at p and before; with a window only those at p - window + 1 ... p.
    """
    lanes, rows, heads, size = q.shape
    q = q.unflatten(2, (k.shape[2], -1))  # [L, T, K, H / K, h]
    scores = torch.einsum("ltkgh,lskh->lkgts", q, k) * size**-0.5
    keys = torch.arange(k.shape[1], device=q.device)
    seen = keys <= positions[:, None]
    if window is not None:
        seen &= keys > positions[:, None] - window
    weights = scores.masked_fill(~seen, float("-inf")).softmax(-1)
    return torch.einsum("lkgts,lskh->ltkgh", weights, v).reshape(lanes, rows, heads * size)


def output_projection(layer: LayerWeights, heads: Tensor) -> Tensor:
    """[L, T, H * h] -> [L, T, D]."""
    return heads @ layer.wo.float().mT


def mlp(layer: LayerWeights, n: Tensor) -> Tensor:
    """SwiGLU: n [L, T, D] -> [L, T, D]."""
    gate, up = (n @ layer.w13.float().mT).chunk(2, dim=-1)
    return (F.silu(gate) * up) @ layer.w2.float().mT


def reduce_lanes(config: ModelConfig, layer: int, outputs: list[Tensor]) -> Tensor:
    """What layer ``layer`` adds to each lane [L or 1, T, D], from the outputs of this block in the layers so far."""
    own, kind = outputs[-1], config.layer_reductions[layer]
    if kind == Reduction.PRESENT:
        return own.sum(0, keepdim=True)
    if kind == Reduction.PAST:
        past = outputs[layer - config.delay]
        return own + past.sum(0, keepdim=True) - past
    return own * config.n_lanes**0.5


def head(config: ModelConfig, weights: ModelWeights, x: Tensor) -> Tensor:
    """Final norm and head: x [L, T, D] -> [T, V]."""
    matrix = weights.head.float()
    if config.head == Head.PRE_NORM_SUM:
        return norm(x.sum(0, keepdim=True), weights.norm, config.norm_eps)[0] @ matrix.mT
    n = norm(x, weights.norm, config.norm_eps)
    if config.head == Head.REPLICATE:
        return n.mean(0) @ matrix.mT
    if config.head == Head.LANE:
        return n.transpose(0, 1).flatten(1) @ matrix.mT
    return (n @ matrix.mT).transpose(0, 1).flatten(1)
