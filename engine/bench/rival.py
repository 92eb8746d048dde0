"""What a careful user would run instead: PyTorch with torch.compile, CUDA graphs and a static KV cache, on the same weights.

A model with lanes runs here as an ordinary tensor-parallel Llama of the same weights (all lanes summed at once): the same
bytes and products in fewer, larger matrices, which is the friendlier form for PyTorch. The greedy choice and the step to
the next token are inside the graph; the CPU only replays it. Speeds are comparable, texts are not.

Several forms are measured, because none is the best for every model; the best one is the rival.
"""

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from engine.bench.measure import RUNS
from engine.bench.ticking import ticking
from engine.config import Head, ModelConfig
from engine.weights import LayerWeights, ModelWeights

WARM_STEPS = 3
CHECKED_TOKENS = 16  # of each form against the first one
BLOCK = 128  # positions in a block of FlexAttention
TUNED = {"max_autotune": True, "coordinate_descent_tuning": True}  # the second also makes products of one row Triton reductions
OVERLAPPED = TUNED | {"triton.enable_pdl": True}  # a kernel starts while the one before it ends (Hopper and later)
COMBINED = OVERLAPPED | {"combo_kernels": True}  # small kernels that do not depend on each other become one

Step = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Form:
    """One way to run the rival. ``options`` of torch.compile; None: eager. ``whole``: compiled as one graph, else one layer for all.

    ``flex``: FlexAttention, which reads only the positions in use and splits them over the GPU; else scaled dot-product attention.
    """

    name: str
    options: dict | None = None
    whole: bool = False
    flex: bool = False


FORMS = (  # quick ones first
    Form("eager"),
    Form("compiled layer", TUNED),
    Form("compiled layer, Flex", TUNED, flex=True),
    Form("compiled layer, Flex, PDL", OVERLAPPED, flex=True),
    Form("compiled model", TUNED, whole=True),
    Form("compiled model, Flex, PDL, combo", COMBINED, whole=True, flex=True),
)


@dataclass(frozen=True)
class FormSpeed:
    """Decode tokens/s of one form: median and extremes over the runs.

    ``compile_s``: seconds until it could run; ``cached``: all compiled code came from the cache of an earlier process.
    ``equal_tokens``: how many of the first tokens equal those of the first form (16-bit sums in another order part at near ties).
    """

    name: str
    compile_s: float
    cached: bool
    decode_tokens_per_s: float
    decode_tokens_per_s_min: float
    decode_tokens_per_s_max: float
    equal_tokens: int

    def to_dict(self) -> dict:
        return asdict(self)


class Rival(torch.nn.Module):
    """One decode step. token, position: int64 [1]; returns the next token [1]. Takes the layers out of ``weights``.

    All layers share one function, which can be compiled once for all ("regional compilation") instead of the whole model.
    """

    def __init__(self, config: ModelConfig, weights: ModelWeights, context: int):
        super().__init__()
        self.config, self.flex = config, False
        device, dtype = weights.embedding.device, weights.embedding.dtype
        self.embedding = weights.embedding
        head = weights.head if config.head != Head.LANE else weights.head[:, : config.hidden_size].contiguous()
        self.head_weight = head.reshape(-1, config.hidden_size)
        self.layers = []
        while weights.layers:  # one by one, because layers with lanes are copied
            self.layers.append(_ordinary_layer(config, weights.layers.pop(0), dtype))
        self.norm_weight = weights.norm[0].to(dtype)
        self.context = -(-context // BLOCK) * BLOCK
        shape = (1, config.n_kv_heads, self.context, config.head_size)
        # a tensor for each layer: of one tensor for all, torch.compile copies the whole cache in every layer instead of writing in place
        self.k, self.v = ([torch.zeros(shape, device=device, dtype=dtype) for _ in self.layers] for _ in "kv")
        angles = torch.arange(self.context, device=device).float()[:, None] * config.rope_inverse_frequencies().to(device)
        self.cos, self.sin = angles.cos(), angles.sin()

    def forward(self, token: Tensor, position: Tensor) -> Tensor:
        return self.run(token, position, self.begin, self.layer, self.head)

    def run(self, token: Tensor, position: Tensor, begin: Callable, layer: Callable, head: Callable) -> Tensor:
        x, rotation, seen = begin(token, position)
        for weights, k, v, window in zip(self.layers, self.k, self.v, self.config.layer_windows, strict=True):
            x = layer(x, position, weights, k, v, rotation, window, seen[window])
        return head(x, self.norm_weight, self.head_weight)

    def begin(self, token: Tensor, position: Tensor) -> tuple:
        """x [1, D], (cos, sin) of the position, and for each window what attention reads: a mask or (count, numbers) of blocks."""
        see = self._blocks if self.flex else self._mask
        seen = {window: see(position, window or self.context) for window in set(self.config.layer_windows)}
        return self.embedding[token], (self.cos[position], self.sin[position]), seen

    def layer(self, x, position, weights, k_cache, v_cache, rotation, window, seen) -> Tensor:
        c = self.config
        attention_norm, qkv, bias, wo, ffn_norm, gate_up, w2 = weights
        heads, groups, size, eps = c.n_heads, c.n_kv_heads, c.head_size, c.norm_eps
        h = F.rms_norm(x, (c.hidden_size,), attention_norm, eps)
        q, k, v = F.linear(h, qkv, bias).split([c.q_size, c.kv_size, c.kv_size], -1)
        k_cache.index_copy_(2, position, _rotate(k.view(1, groups, 1, size), *rotation))
        v_cache.index_copy_(2, position, v.view(1, groups, 1, size))
        q = _rotate(q.view(1, heads, 1, size), *rotation)
        attend = self._flex_attention if self.flex else self._attention
        y = attend(q, k_cache, v_cache, position, window, seen)
        x = x + F.linear(y.reshape(1, heads * size), wo)
        gate, up = F.linear(F.rms_norm(x, (c.hidden_size,), ffn_norm, eps), gate_up).chunk(2, -1)
        return x + F.linear(F.silu(gate) * up, w2)

    def head(self, x: Tensor, norm: Tensor, weight: Tensor) -> Tensor:
        return F.linear(F.rms_norm(x, (self.config.hidden_size,), norm, self.config.norm_eps), weight).float().argmax(-1)

    def _mask(self, position: Tensor, window: int) -> Tensor:
        places = torch.arange(self.context, device=position.device)
        return (places <= position) & (places > position - window)

    def _blocks(self, position: Tensor, window: int) -> tuple[Tensor, Tensor]:
        first, last = (position - window + 1).clamp(min=0) // BLOCK, position // BLOCK
        numbers = first + torch.arange(self.context // BLOCK, device=position.device)
        numbers = numbers.clamp(max=self.context // BLOCK - 1)
        return (last - first + 1).int().view(1, 1, 1), numbers.int().view(1, 1, 1, -1)

    def _attention(self, q, k, v, position, window, mask) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask.view(1, 1, 1, -1), enable_gqa=True)

    def _flex_attention(self, q, k, v, position, window, blocks) -> Tensor:
        here, reach = position.view(()), window or self.context

        def sees(batch, head, row, place):
            return (place <= here) & (place > here - reach)

        sizes = {"BLOCK_SIZE": (BLOCK, BLOCK), "seq_lengths": (1, self.context)}
        mask = BlockMask.from_kv_blocks(*blocks, mask_mod=sees, compute_q_blocks=False, **sizes)
        return flex_attention(q, k, v, block_mask=mask, enable_gqa=self.config.n_heads != self.config.n_kv_heads)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
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


def _ordinary_qkv(config: ModelConfig, w: Tensor) -> Tensor:
    """[L, (H+2K)h, D] -> [q rows of all lanes, k rows, v rows; D]."""
    q, kv = config.heads_per_lane * config.head_size, config.kv_heads_per_lane * config.head_size
    return torch.cat([part.reshape(-1, config.hidden_size) for part in w.split([q, kv, kv], 1)])


def _joined(w: Tensor) -> Tensor:
    """[L, D, k] -> [D, L*k], rows contiguous."""
    return w.permute(1, 0, 2).reshape(w.shape[1], -1)


def measure_rival(
    config: ModelConfig, weights: ModelWeights, prompt_tokens: int, output_tokens: int, runs: int = RUNS, forms: tuple[Form, ...] = FORMS
) -> Iterator[FormSpeed | tuple[str, str]]:
    """The speed of each form at positions P .. P+N-1, as it comes; (name, message) of one that PyTorch could not run.

    On a GPU a step is a CUDA graph. Compiling takes seconds to minutes a form, which is told every few seconds. Empties ``weights``.
    """
    model = Rival(config, weights, prompt_tokens + output_tokens).eval()
    expected: list[int] = []
    for form in forms:
        try:
            speed, tokens = _measure(model, form, prompt_tokens, output_tokens, runs, expected)
        except Exception as error:  # of PyTorch's compiler: the other forms are still worth measuring
            yield form.name, f"{type(error).__name__}: {error}".splitlines()[0]
            continue
        expected = expected or tokens
        yield speed


@torch.inference_mode()
def _measure(
    model: Rival, form: Form, prompt_tokens: int, output_tokens: int, runs: int, expected: list[int]
) -> tuple[FormSpeed, list[int]]:
    """The speed, and the first tokens it made."""
    from torch._dynamo.utils import counters

    torch.compiler.reset()
    counters.clear()
    model.flex = form.flex
    device = model.embedding.device
    token, position = torch.tensor([1], device=device), torch.tensor([prompt_tokens], device=device)
    start = time.perf_counter()
    with ticking(f"rival          {form.name}: compiling and tuning"):
        advance = _advance(_step(model, form), token, position)
    compile_s = time.perf_counter() - start
    cached = counters["inductor"]["fxgraph_cache_hit"] > 0 and counters["inductor"]["fxgraph_cache_miss"] == 0
    tokens = _tokens(advance, token, position, prompt_tokens, min(CHECKED_TOKENS, output_tokens))
    speeds = [_speed(advance, position, prompt_tokens, output_tokens) for _ in range(runs + 1)][1:]
    equal = next((i for i, (a, b) in enumerate(zip(tokens, expected, strict=False)) if a != b), len(tokens))
    return FormSpeed(form.name, compile_s, cached, statistics.median(speeds), min(speeds), max(speeds), equal), tokens


def _step(model: Rival, form: Form) -> Step:
    if form.options is None:
        return model
    if form.whole:
        return torch.compile(model, fullgraph=True, dynamic=False, options=form.options)
    parts = [torch.compile(part, fullgraph=True, dynamic=False, options=form.options) for part in (model.begin, model.layer, model.head)]
    return lambda token, position: model.run(token, position, *parts)


def _advance(step: Step, token: Tensor, position: Tensor) -> Callable[[], None]:
    """Compiles; gives a function that puts the next token and position in place: a CUDA graph where there is a GPU."""

    def advance() -> None:
        token.copy_(step(token, position))
        position.add_(1)

    if token.device.type == "cpu":
        step(token, position)
        return advance
    side = torch.cuda.Stream(token.device)
    side.wait_stream(torch.cuda.current_stream(token.device))
    with torch.cuda.stream(side):
        for _ in range(WARM_STEPS):
            step(token, position)
    torch.cuda.current_stream(token.device).wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        advance()
    return graph.replay


def _tokens(advance: Callable[[], None], token: Tensor, position: Tensor, first: int, count: int) -> list[int]:
    token.fill_(1)
    position.fill_(first)
    made = []
    for _ in range(count):
        advance()
        made.append(token.item())
    return made


def _speed(advance: Callable[[], None], position: Tensor, first: int, count: int) -> float:
    """Tokens/s of ``count`` steps."""
    wait = torch.cuda.synchronize if position.device.type == "cuda" else lambda: None
    position.fill_(first)
    wait()
    start = time.perf_counter()
    for _ in range(count):
        advance()
    wait()
    return count / (time.perf_counter() - start)
