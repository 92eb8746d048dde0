"""Whole models through the kernel: logits of prefill and decode, tokens, ends, errors."""

import json
import shutil
import threading
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from engine import memory, reference
from engine.config import Head
from engine.errors import DeviceError, NumericalError
from engine.kernel.backend import MonokernelBackend
from engine.request import SamplingParams
from tests.engine.kernel.interpreted.models import Setup, lanes_config, llama_config, random_weights

GOLDEN = Path(__file__).parents[3] / "golden"
PROMPT = 7  # more than one chunk of ROWS, and past the window of 5
ROWS = 4
MODELS = {
    "replicate": lanes_config(Head.REPLICATE),
    "vocab_parallel": lanes_config(Head.VOCAB_PARALLEL, lane_norms=False),
    "lane": lanes_config(Head.LANE),
    "pre_norm_lane_agg": lanes_config(Head.PRE_NORM_SUM),
    "llama": llama_config(),
}


@pytest.mark.parametrize("name", MODELS)
def test_prefill_and_decode_logits_equal_the_reference(name):
    config = MODELS[name]
    weights = random_weights(config)
    ids = torch.randint(0, config.vocab_size, (PROMPT,), generator=torch.Generator().manual_seed(1))
    expected = reference.forward(config, weights, ids.tolist())
    setup = Setup(config, weights, rows=ROWS)
    prefilled = setup.path.prefill_logits(ids.int())
    setup.control.raise_for_error()
    torch.testing.assert_close(prefilled, expected, atol=2e-5, rtol=0)

    setup.control.reset()
    setup.params.write(SamplingParams(), 0, frozenset(), PROMPT)
    decoded = setup.path.decode_logits(ids.int())
    torch.testing.assert_close(decoded, expected, atol=2e-5, rtol=0)
    assert setup.control.poll() == expected.argmax(-1).tolist()
    assert setup.control.finish_reason == "length"


def test_float16_weights_are_accumulated_in_float32():
    """bfloat16 is tested on the GPU: the interpreter has no products of it."""
    config = llama_config(n_layers=1, qk_norm=False)
    weights = random_weights(config)
    for holder in (weights, *weights.layers):
        for name, value in vars(holder).items():
            if isinstance(value, torch.Tensor):
                setattr(holder, name, value.half())
    ids = list(range(3, 8))
    expected = reference.forward(config, weights, ids)
    setup = Setup(config, weights)
    error = (setup.path.prefill_logits(torch.tensor(ids).int()) - expected).norm() / expected.norm()
    assert error < 2e-3


@pytest.mark.parametrize("name", ["laneformer/dtp4_delay1", "llama/llama_tied_gqa"])
def test_golden_checkpoints_through_the_backend(name):
    """The token after each short prompt; tests/gpu continues all golden checkpoints for 40 tokens."""
    backend = MonokernelBackend(str(GOLDEN / name), dtype="float32", context_tokens=64)
    golden = load_file(GOLDEN / name / "expected.safetensors")
    for length in (1, 5):
        run = backend.start(golden["input_ids"][:length].tolist(), SamplingParams(), frozenset(), 1)
        tokens = []
        while run.finish_reason is None:
            tokens += run.poll(1.0)
        run.close()
        assert [token.id for token in tokens] == [int(golden["logits"][length - 1].argmax())]
        assert run.finish_reason == "length" and run.prefill_done == length


def test_a_huge_context_is_cut_to_the_memory(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(memory, "SHARE", 1e-5)
    folder = shutil.copytree(GOLDEN / "llama/llama_tied_gqa", tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 10**15}))
    backend = MonokernelBackend(str(folder), dtype="float32")
    assert 1 <= backend.info.context_tokens == backend.cache.context_tokens < 10**5
    assert "of the model's 1,000,000,000,000,000 tokens" in capsys.readouterr().err
    golden = load_file(GOLDEN / "llama/llama_tied_gqa/expected.safetensors")
    run = backend.start(golden["input_ids"][:2].tolist(), SamplingParams(), frozenset(), 1)
    while not (tokens := run.poll(1.0)):
        pass
    assert tokens[0].id == int(golden["logits"][1].argmax())
    backend.close()
    with pytest.raises(DeviceError, match=r"a context of 1,000,000,000 tokens takes [\d,.]+ GB; 0% of the free memory"):
        MonokernelBackend(str(folder), dtype="float32", context_tokens=10**9)


@pytest.fixture(scope="module")
def small():
    config = llama_config(n_layers=1, tied_head=False)
    return Setup(config, random_weights(config))


def generate(setup: Setup, max_tokens: int, stop_ids=frozenset(), prompt=(1, 2, 3), **options) -> list[int]:
    setup.control.reset()
    setup.params.write(SamplingParams(), 0, stop_ids, max_tokens, **options)
    ids = torch.tensor(prompt, dtype=torch.int32)
    setup.path.generate(ids, 0, len(prompt) - 1, prompt[-1])
    return setup.control.poll()


def test_the_kernel_stops_at_each_stop_id_and_keeps_it(small):
    free = generate(small, 6)
    assert small.control.finish_reason == "length" and len(free) == 6
    end = next(i for i in range(1, 6) if free[i] not in free[:i])  # the first token that is new
    others = {token for token in range(50) if token not in free[: end + 1]}
    stopped = generate(small, 6, frozenset({free[end], *sorted(others)[:40]}))
    assert stopped == free[: end + 1]
    assert small.control.finish_reason == "stop"
    assert small.control.ring[end + 1 :].eq(0).all()  # nothing is written after the end


def test_prefill_and_launch_equal_one_launch(small):
    expected = generate(small, 4, prompt=(7, 8, 9, 10))
    small.control.reset()
    small.params.write(SamplingParams(), 0, frozenset(), 4)
    small.path.prefill(torch.tensor([7, 8, 9, 10], dtype=torch.int32), 0, 3)
    small.path.launch(10, 3)
    assert small.control.poll() == expected


def test_a_request_leaves_nothing_behind(small):
    first = generate(small, 4, prompt=(4, 5))
    generate(small, 3, prompt=tuple(range(20, 45)))
    for tensor in (*small.path.buffers, small.cache.k, small.cache.v):
        if tensor.is_floating_point() and tensor is not small.weights.embedding and tensor.numel() in scratch_sizes(small):
            tensor.fill_(float("nan"))
    assert generate(small, 4, prompt=(4, 5)) == first


def scratch_sizes(setup: Setup) -> set[int]:
    """Sizes of the buffers that one launch writes before it reads them."""
    b = setup.path.buffers
    names = "x qkv part part_max part_sum attended attention_out ffn_out gated final scratch logits best mass rows_qkv rows_q".split()
    return {getattr(b, name).numel() for name in names} - {b.embedding.numel(), b.cos.numel(), b.norm.numel(), b.floats.numel()}


def test_the_stop_word_ends_a_generation_within_a_token(small):
    small.control.reset()
    small.params.write(SamplingParams(), 0, frozenset(), 30)
    ids = torch.tensor([1, 2], dtype=torch.int32)
    thread = threading.Thread(target=small.path.generate, args=(ids, 0, 1, 2))
    thread.start()
    while small.control.count < 2:
        pass
    small.control.stop()
    at_stop = small.control.count
    thread.join()
    assert small.control.finish_reason == "cancelled"
    assert small.control.count <= at_stop + 2  # the token under way, and one that began before the word was read


@pytest.mark.parametrize("place", ["first weight", "last weight"])
def test_nan_in_the_hidden_state_ends_with_an_error(place):
    config = llama_config(n_layers=2)
    weights = random_weights(config)
    weights.layers[0].wo.view(-1)[0 if place == "first weight" else -1] = float("nan")
    setup = Setup(config, weights)
    assert generate(setup, 5) == []
    with pytest.raises(NumericalError, match="hidden state.*lane reduction and norm, layer 0, position 0"):
        setup.control.raise_for_error()
    assert setup.control.done and setup.control.finish_reason is None


@pytest.mark.parametrize("index", [0, 25, 49])
def test_nan_in_the_logits_ends_with_an_error(index):
    config = lanes_config(Head.REPLICATE, n_layers=1, reductions=(), windows=(), delay=0, n_lanes=1, lane_norms=False)
    weights = random_weights(config)
    weights.head[index, 3] = float("inf")
    setup = Setup(config, weights)
    assert generate(setup, 5) == []
    with pytest.raises(NumericalError, match="logits"):
        setup.control.raise_for_error()


def test_a_wait_beyond_its_limit_names_its_place(small):
    assert generate(small, 5, prompt=(1,), spin_limit=0) == []
    with pytest.raises(DeviceError, match=r"waited longer than its limit \(norm and QKV, layer 0, position 0, GPU 0, program 0\)"):
        small.control.raise_for_error()


def test_the_context_is_fitted_when_the_weights_are_there(monkeypatch):
    """On a GPU the room for the KV cache is what the weights leave."""
    fit = MonokernelBackend._fit_context

    def fit_beside_weights(self, *args):
        assert self.weights.nbytes > 0
        return fit(self, *args)

    monkeypatch.setattr(MonokernelBackend, "_fit_context", fit_beside_weights)
    MonokernelBackend(str(GOLDEN / "llama/llama_tied_gqa"), dtype="float32", context_tokens=64, kernel="portable").close()
