"""The monokernel on a real GPU. ``make test-gpu``; MONOKERNEL_PATH chooses the kernel (auto, portable, gluon).

These tests need nothing of the web side: ``pytest --noconftest tests/gpu`` runs them where Django is not installed.
"""

import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from engine import reference
from engine.errors import DeviceError, NumericalError
from engine.kernel.backend import MonokernelBackend
from engine.request import SamplingParams

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")]

GOLDEN = Path(__file__).parents[1] / "golden"
CHECKPOINTS = sorted(str(path.parent.relative_to(GOLDEN)) for path in GOLDEN.glob("*/*/config.json"))
NONE = frozenset()


def prompt(count: int, vocab: int, seed: int = 0) -> list[int]:
    return torch.randint(0, vocab, (count,), generator=torch.Generator().manual_seed(seed)).tolist()


def generate(backend: MonokernelBackend, ids: list[int], max_tokens: int, sampling=SamplingParams(), stop_ids=NONE) -> list[int]:  # noqa: B008
    run = backend.start(ids, sampling, stop_ids, max_tokens)
    tokens: list[int] = []
    while run.finish_reason is None:
        tokens += [token.id for token in run.poll(1.0)]
    run.close()
    backend.last_finish = run.finish_reason
    return tokens


def compare(logits: torch.Tensor, expected: torch.Tensor) -> tuple[float, float, float]:
    """(relative error, mean KL divergence, top-1 agreement) of logits [T, V]."""
    error = ((logits - expected).norm() / expected.norm()).item()
    kl = torch.nn.functional.kl_div(logits.log_softmax(-1), expected.log_softmax(-1), log_target=True, reduction="batchmean")
    return error, kl.item(), (logits.argmax(-1) == expected.argmax(-1)).float().mean().item()


@pytest.fixture(scope="module")
def laneformer():
    backend = MonokernelBackend("random:laneformer-2b", dtype="float16", measure_bandwidth=False)
    yield backend
    backend.close()


@pytest.fixture(scope="module")
def tiny():
    backend = MonokernelBackend("random:tiny", dtype="float16", measure_bandwidth=False)
    yield backend
    backend.close()


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_golden_checkpoints(name):
    backend = MonokernelBackend(str(GOLDEN / name), dtype="float16", measure_bandwidth=False)
    golden = load_file(GOLDEN / name / "expected.safetensors")
    ids = golden["input_ids"].tolist()
    for logits in (backend.logits(ids), backend.logits(ids, decode=True)):
        assert compare(logits, golden["logits"])[0] < 4e-3
    greedy = golden["greedy"].tolist()
    made = generate(backend, greedy[:20], 40)
    differs = next((i for i, (a, b) in enumerate(zip(made, greedy[20:], strict=True)) if a != b), None)
    if differs is not None:  # float16 may only change a pick that was close
        assert golden["greedy_margin"][differs] < 5e-3
    backend.close()


def test_logits_of_a_thousand_positions(laneformer):
    ids = prompt(1000, laneformer.config.vocab_size)
    expected = reference.forward(laneformer.config, laneformer.weights, ids).cpu()
    for name, logits, count in (("prefill", laneformer.logits(ids), 1000), ("decode", laneformer.logits(ids[:600], decode=True), 600)):
        error, kl, top1 = compare(logits, expected[:count])
        print(f"{name}: relative error {error:.2e}, KL {kl:.2e}, top-1 {top1:.4f} over {count} positions")
        assert error < 2e-3 and kl < 1e-4 and top1 > 0.99


def test_bfloat16_logits():
    backend = MonokernelBackend("random:llama-3.2-1b", dtype="bfloat16", context_tokens=1024, measure_bandwidth=False)
    ids = prompt(600, backend.config.vocab_size)
    expected = reference.forward(backend.config, backend.weights, ids).cpu()
    error, kl, top1 = compare(backend.logits(ids), expected)
    print(f"relative error {error:.2e}, KL {kl:.2e}, top-1 {top1:.4f}")
    assert error < 2e-2 and kl < 2e-3 and top1 > 0.95
    backend.close()


@pytest.mark.parametrize("length", [511, 512, 513])
def test_decode_continues_prefill_at_the_window(laneformer, length):
    """The token made after a prompt is the same whether its last tokens were prefilled or decoded."""
    ids = prompt(length, laneformer.config.vocab_size, seed=length)
    whole = generate(laneformer, ids, 4)
    last = laneformer.logits([*ids, *whole[:3]])[-4:]
    chosen = last.gather(1, torch.tensor(whole)[:, None])[:, 0]
    assert (last.max(-1).values - chosen).max() < 0.02  # float16 may only change a pick that was close


@pytest.mark.parametrize("length", [4094, 4095])
def test_the_context_can_be_filled_to_its_end(laneformer, length):
    ids = prompt(length, laneformer.config.vocab_size)
    assert len(generate(laneformer, ids, 4096 - length)) == 4096 - length
    assert laneformer.last_finish == "length"


def test_a_thousand_repeats_are_equal(laneformer):
    ids = prompt(6, laneformer.config.vocab_size)
    first = generate(laneformer, ids, 8)
    assert all(generate(laneformer, ids, 8) == first for _ in range(999))


def test_requests_leave_nothing_behind(laneformer):
    a, b = prompt(40, laneformer.config.vocab_size, 1), prompt(300, laneformer.config.vocab_size, 2)
    first = generate(laneformer, a, 30)
    generate(laneformer, b, 30)
    buffers = laneformer.portable.buffers
    for name in (
        "x",
        "qkv",
        "part",
        "attended",
        "attention_out",
        "ffn_out",
        "gated",
        "scratch",
        "logits",
        "rows_x",
        "rows_n",
        "rows_gated",
    ):
        getattr(buffers, name).fill_(float("nan"))
    laneformer.cache.k.fill_(float("nan"))
    laneformer.cache.v.fill_(float("nan"))
    assert generate(laneformer, a, 30) == first


def test_stop_within_a_token_and_stop_ids(laneformer):
    ids = prompt(10, laneformer.config.vocab_size)
    free = generate(laneformer, ids, 40)
    assert generate(laneformer, ids, 40, stop_ids=frozenset({free[20]})) == free[: free.index(free[20]) + 1]
    assert laneformer.last_finish == "stop"
    run = laneformer.start(ids, SamplingParams(), NONE, 3000)
    while laneformer.control.count < 20:
        pass
    run.stop()
    seen = laneformer.control.count
    while run.finish_reason is None:
        run.poll(1.0)
    assert run.finish_reason == "cancelled"
    assert laneformer.control.count <= seen + 3  # the token under way, one begun before the word arrived, one of the host's delay


def test_nan_ends_with_an_error_and_the_next_request_is_fine(laneformer):
    ids = prompt(10, laneformer.config.vocab_size)
    expected = generate(laneformer, ids, 5)
    weights = laneformer.weights.layers[3].wo.view(-1)
    for index in (0, weights.numel() // 2, weights.numel() - 1):
        kept = weights[index].clone()
        weights[index] = float("nan")
        with pytest.raises(NumericalError):
            generate(laneformer, ids, 5)
        weights[index] = kept
    assert generate(laneformer, ids, 5) == expected


def test_a_wait_beyond_its_limit_ends_with_an_error(tiny):
    run = tiny.start(prompt(5, 512), SamplingParams(), NONE, 50, spin_limit=0)
    with pytest.raises(DeviceError):
        while run.finish_reason is None:
            run.poll(1.0)
    assert len(generate(tiny, prompt(5, 512), 5)) == 5


def test_soak_of_ten_thousand_tokens(laneformer):
    ids = prompt(20, laneformer.config.vocab_size)
    made = [generate(laneformer, ids, 2500) for _ in range(4)]
    assert all(tokens == made[0] and len(tokens) == 2500 for tokens in made)


@pytest.mark.parametrize(
    "params",
    [dict(temperature=1.0), dict(temperature=0.8, top_k=20), dict(temperature=1.2, top_p=0.7), dict(temperature=1.0, min_p=0.05)],
    ids=str,
)
def test_sampling_draws_the_right_distribution(tiny, params):
    """Chi-square of 2,000 seeds against the softmax over what the filters keep."""
    from engine.sampling import filter_logits

    ids, draws = prompt(5, 512), 2000
    logits = tiny.logits(ids, decode=True)[-1] / params["temperature"]
    kept = filter_logits(logits, params.get("top_k", 0), params.get("top_p", 1.0), params.get("min_p", 0.0))
    expected = logits.masked_fill(~kept, -math.inf).softmax(0) * draws
    counts = torch.zeros(512)
    for seed in range(draws):
        counts[generate(tiny, ids, 1, SamplingParams(**params, seed=seed))[0]] += 1
    assert counts[expected == 0].sum() == 0
    often = expected >= 5
    observed = torch.cat([counts[often], counts[~often].sum()[None]])
    wanted = torch.cat([expected[often], expected[~often].sum()[None]]).clamp(min=1e-9)
    chi_square = ((observed - wanted).square() / wanted)[wanted > 1].sum().item()
    freedom = int((wanted > 1).sum()) - 1
    assert chi_square < freedom + 5 * math.sqrt(2 * freedom) + 5
