"""Every phase of the kernel alone, on random inputs, against the reference: one layer of decode, one of prefill, the head.

A layer runs once for each case; each test then takes what a phase wrote and computes it from what the phase read.
"""

from dataclasses import dataclass, replace

import pytest
import torch
import triton
import triton.language as tl

from engine import reference, sampling
from engine.config import Head, ModelConfig, Reduction
from engine.kernel.portable.kernel import decode_head, decode_layer, prefill_head, prefill_layer
from engine.kernel.portable.path import KINDS
from engine.request import SamplingParams
from engine.weights import ModelWeights
from tests.engine.kernel.interpreted.models import CONTEXT, Setup, lanes_config, llama_config, random_weights

POSITION = 37  # of the decoded row: three blocks of keys for full attention, one for a window of 5
START, ROWS, CHUNK = 9, 5, 8  # of the prefilled chunk; positions before START are in the cache
TOKENS = [7, 11, 3, 29, 13]  # of the chunk; the decoded row is the first
TOLERANCE = {torch.float32: 2e-5, torch.float16: 4e-3}

PRESENT, PAST, NONE = Reduction.PRESENT, Reduction.PAST, Reduction.NONE
CASES = {
    "embedding, window": (lanes_config(Head.REPLICATE), 0),
    "present": (lanes_config(Head.REPLICATE, n_layers=4, reductions=(PRESENT,) * 4, windows=(None,) * 4), 2),
    "past": (lanes_config(Head.REPLICATE, n_layers=4, reductions=(PRESENT, PAST, PAST, PAST), windows=(5,) * 4, lane_norms=False), 2),
    "past after two": (
        lanes_config(
            Head.REPLICATE, n_layers=6, delay=2, reductions=(PRESENT,) * 2 + (PAST,) * 4, windows=(), n_lanes=4, n_heads=8, n_kv_heads=4
        ),
        3,
    ),
    "none": (lanes_config(Head.REPLICATE, n_layers=4, reductions=(NONE,) * 4, windows=(None, None, 5, None)), 2),
    "one lane, biases, QK norms": (llama_config(n_layers=3), 1),
    "head size 64, window": (llama_config(n_layers=3, head_size=64, qk_norm=False, windows=(20,) * 3), 1),
    "head size 96": (llama_config(n_layers=3, head_size=96, n_heads=2, qk_norm=False), 1),
    "head size 128, float16": (llama_config(n_layers=3, head_size=128, n_heads=2, qk_norm=False, dtype="float16"), 1),
}


@triton.jit
def _decode_layer(B, C: tl.constexpr, layer, kind_before, token, position):
    zero = tl.full([], 0, tl.int32)
    decode_layer(B, C, zero, layer, kind_before, token, zero, position)


@triton.jit
def _prefill_layer(B, C: tl.constexpr, layer, ids, start, rows):
    zero = tl.full([], 0, tl.int32)
    prefill_layer(B, C, zero, layer, ids, start, rows, zero)


@triton.jit
def _decode_head(B, C: tl.constexpr, kind, position):
    zero = tl.full([], 0, tl.int32)
    seed = tl.load(B.ints + 2).to(tl.uint32, bitcast=True).to(tl.uint64)
    decode_head(B, C, zero, kind, B.logits, tl.load(B.floats), seed, zero, position)


@triton.jit
def _prefill_head(B, C: tl.constexpr, start, rows, all_logits):
    zero = tl.full([], 0, tl.int32)
    prefill_head(B, C, zero, start, rows, all_logits)


@dataclass
class Layer:
    """What a layer was given and what it left. Rows: one (decode) or a chunk (prefill); everything [L, rows, ...] float32."""

    config: ModelConfig
    weights: ModelWeights
    layer: int
    setup: Setup
    rows: int
    positions: torch.Tensor
    x: torch.Tensor  # before the layer, with the outputs of the layer before still to be added
    attention_outputs: list  # of every layer before, then of this one
    ffn_outputs: list

    @property
    def own(self):
        return self.weights.layers[self.layer]

    @property
    def decoding(self) -> bool:
        return self.rows == 1

    @property
    def shape(self):
        return self.setup.path.shape

    def heard(self, name: str, *sizes: int) -> torch.Tensor:
        """A buffer [rows, L, ...] as [L, rows, ...] float32."""
        buffer = getattr(self.setup.path.buffers, name)
        return buffer.flatten()[: self.rows * self.shape.lanes * sizes[0]].view(self.rows, self.shape.lanes, *sizes).transpose(0, 1).float()

    def history(self, decode_name: str, rows_name: str) -> torch.Tensor:
        """A history buffer [slots, R, L, D]."""
        buffer = getattr(self.setup.path.buffers, decode_name if self.decoding else rows_name)
        return buffer.view(self.shape.slots, 1 if self.decoding else CHUNK, self.shape.lanes, self.shape.hidden)

    def output(self, decode_name: str, rows_name: str) -> torch.Tensor:
        """What this layer wrote into a history buffer."""
        return self.history(decode_name, rows_name)[self.layer % self.shape.slots, : self.rows].transpose(0, 1)

    # --- the reference -------------------------------------------------------------------------------------------------

    def state_before_attention(self) -> torch.Tensor:
        if self.layer == 0:
            return reference.embed(self.config, self.weights, torch.tensor(TOKENS[: self.rows]))
        return self.x + reference.reduce_lanes(self.config, self.layer - 1, self.ffn_outputs[:-1])

    def qkv(self):
        n = reference.norm(self.state_before_attention(), self.own.attention_norm, self.config.norm_eps)
        if not self.decoding:
            n = n.to(self.weights.embedding.dtype).float()
        return n, reference.qkv(self.config, self.own, n, self.positions, self.config.rope_inverse_frequencies())

    def state_before_ffn(self) -> torch.Tensor:
        return self.state_before_attention() + reference.reduce_lanes(self.config, self.layer, self.attention_outputs)

    def close(self, got: torch.Tensor, expected: torch.Tensor) -> None:
        atol = TOLERANCE[self.weights.embedding.dtype]
        torch.testing.assert_close(got, expected.expand_as(got).float(), atol=atol * max(1.0, expected.abs().max().item()), rtol=0)


def halved(weights: ModelWeights) -> ModelWeights:
    for holder in (weights, *weights.layers):
        for name, value in vars(holder).items():
            if isinstance(value, torch.Tensor):
                setattr(holder, name, value.half())
    return weights


def run(config: ModelConfig, layer: int, decoding: bool) -> Layer:
    g = torch.Generator().manual_seed(layer)
    weights = random_weights(config)
    if config.dtype == "float16":
        weights = halved(weights)
    setup = Setup(config, weights, rows=CHUNK, tune=lambda shape: replace(shape, block_t=16, max_splits=4))
    b, shape = setup.path.buffers, setup.path.shape
    rows = 1 if decoding else ROWS
    positions = torch.tensor([POSITION]) if decoding else torch.arange(START, START + ROWS)
    x = torch.randn(shape.lanes, rows, shape.hidden, generator=g)
    outputs = [[torch.randn(x.shape, generator=g) for _ in range(layer)] for _ in "af"]
    case = Layer(config, weights, layer, setup, rows, positions, x, *outputs)
    setup.cache.k.normal_(generator=g)
    setup.cache.v.normal_(generator=g)
    for names, past in zip((("attention_out", "rows_attention_out"), ("ffn_out", "rows_ffn_out")), outputs, strict=True):
        history = case.history(*names)
        for index in range(max(0, layer - shape.slots), layer):
            history[index % shape.slots, :rows] = past[index].transpose(0, 1)
            getattr(b, names[0].replace("out", "sum"))[index % shape.slots] = past[index].sum(0)[0]  # made when it was new
    if decoding:
        b.x[0] = x[:, 0].flatten()
        _decode_layer[(1,)](b, shape, layer, KINDS[config.layer_reductions[max(0, layer - 1)]], TOKENS[0], POSITION)
    else:
        b.rows_x[:rows] = x.transpose(0, 1).flatten(1)
        ids = torch.zeros(CONTEXT, dtype=torch.int32)
        ids[START : START + ROWS] = torch.tensor(TOKENS)
        _prefill_layer[(1,)](b, shape, layer, ids, START, ROWS)
    setup.control.raise_for_error()
    case.attention_outputs.append(case.output("attention_out", "rows_attention_out"))
    case.ffn_outputs.append(case.output("ffn_out", "rows_ffn_out"))
    return case


@pytest.fixture(scope="module", params=CASES)
def name(request):
    return request.param


@pytest.fixture(scope="module", params=["decode", "prefill"])
def case(request, name):
    return run(*CASES[name], request.param == "decode")


def test_lane_reduction_norm_and_qkv(case):
    n, _ = case.qkv()
    expected = n @ case.own.wqkv.float().mT
    if case.own.qkv_bias is not None:
        expected = expected + case.own.qkv_bias.float().unsqueeze(1)
    case.close(case.heard("qkv" if case.decoding else "rows_qkv", case.shape.qkv_rows), expected)


def test_rotary_and_append(case):
    _, (_, k, v) = case.qkv()
    for cache, expected in ((case.setup.cache.k, k), (case.setup.cache.v, v)):
        written = cache[case.layer].unflatten(0, (case.shape.lanes, -1))[:, :, case.positions]  # [L, K, rows, h]
        case.close(written.float(), expected.transpose(1, 2))


def test_attention(case):
    _, (q, _, _) = case.qkv()
    end = case.positions[-1] + 1
    k, v = (
        t[case.layer].unflatten(0, (case.shape.lanes, -1))[:, :, :end].transpose(1, 2).float()
        for t in (case.setup.cache.k, case.setup.cache.v)
    )
    expected = reference.attention(q, k, v, case.positions, case.config.layer_windows[case.layer])
    case.close(case.heard("attended" if case.decoding else "rows_a", case.shape.attention_width), expected)


def test_output_projection(case):
    heads = case.heard("attended" if case.decoding else "rows_a", case.shape.attention_width)
    case.close(case.attention_outputs[-1], reference.output_projection(case.own, heads))


def test_lane_reduction_and_state_before_the_ffn(case):
    got = case.setup.path.buffers.x[0].view(case.shape.lanes, 1, -1) if case.decoding else case.heard("rows_x", case.shape.hidden)
    case.close(got, case.state_before_ffn())


def test_norm_gate_up_and_silu(case):
    n = reference.norm(case.state_before_ffn(), case.own.ffn_norm, case.config.norm_eps)
    if not case.decoding:
        case.close(case.heard("rows_n", case.shape.hidden), n)
        n = n.to(case.weights.embedding.dtype).float()
    gate, up = (n @ case.own.w13.float().mT).chunk(2, dim=-1)
    case.close(case.heard("gated" if case.decoding else "rows_gated", case.shape.ffn), torch.nn.functional.silu(gate) * up)


def test_down_projection(case):
    gated = case.heard("gated" if case.decoding else "rows_gated", case.shape.ffn)
    case.close(case.ffn_outputs[-1], gated @ case.own.w2.float().mT)


def test_sums_for_later_layers(case):
    """Sums over the lanes of the outputs that the next layer takes as past."""
    delay, last = case.shape.delay, case.config.n_layers - case.shape.delay
    for outputs, sums, of in (
        (case.ffn_outputs, case.setup.path.buffers.ffn_sum, case.layer - delay),
        (case.attention_outputs, case.setup.path.buffers.attention_sum, case.layer - delay + 1),
    ):
        if case.decoding and delay and 0 <= of < last:
            case.close(sums[of % case.shape.slots], outputs[of].sum(0)[0])


HEADS = {head.value: lanes_config(head, lane_norms=head != Head.VOCAB_PARALLEL) for head in Head} | {
    "past": lanes_config(Head.REPLICATE, reductions=(PRESENT, PAST, PAST)),
    "present": lanes_config(Head.REPLICATE, reductions=(PRESENT, PRESENT, PRESENT)),
    "one lane": llama_config(n_layers=3),
}


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("name", HEADS)
def test_final_norm_head_and_candidates(name, temperature):
    config, g = HEADS[name], torch.Generator().manual_seed(5)
    weights = random_weights(config)
    setup = Setup(config, weights, rows=CHUNK)
    b, shape = setup.path.buffers, setup.path.shape
    x = torch.randn(shape.lanes, ROWS, shape.hidden, generator=g)
    outputs = [torch.randn(x.shape, generator=g) for _ in range(config.n_layers)]
    history = b.rows_ffn_out.view(shape.slots, CHUNK, shape.lanes, shape.hidden)
    for index in range(config.n_layers - shape.slots, config.n_layers):
        b.ffn_out[index % shape.slots] = outputs[index][:, 0].flatten()
        b.ffn_sum[index % shape.slots] = outputs[index][:, 0].sum(0)
        history[index % shape.slots, :ROWS] = outputs[index].transpose(0, 1)
    expected = reference.head(config, weights, x + reference.reduce_lanes(config, config.n_layers - 1, outputs))

    b.x[0] = x[:, 0].flatten()
    params = SamplingParams(temperature=temperature, seed=99)
    setup.params.write(params, params.seed, frozenset(), 1)
    _decode_head[(1,)](b, shape, KINDS[config.layer_reductions[-1]], POSITION)
    setup.control.raise_for_error()
    torch.testing.assert_close(b.logits, expected[0], atol=3e-5, rtol=0)
    assert b.best_id[0, 0] == expected[0].argmax() and b.best[0, 0] == b.logits.max()
    assert b.best_id[1, 0] == sampling.sample(expected[0], params, params.seed, POSITION + 1)

    b.barrier.zero_()
    b.rows_x[:ROWS] = x.transpose(0, 1).flatten(1)
    logits = torch.zeros(CONTEXT + CHUNK, config.vocab_size)
    _prefill_head[(1,)](b, shape, START, ROWS, logits)
    setup.control.raise_for_error()
    torch.testing.assert_close(logits[START : START + ROWS], expected, atol=3e-5, rtol=0)
    assert logits[:START].eq(0).all()
