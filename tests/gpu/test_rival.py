"""The rival on a real GPU: every form runs in a CUDA graph and makes the same tokens; nothing of the engine lies beside it."""

import pytest
import torch

from engine.bench.benchmark import benchmark, compare
from engine.bench.rival import FORMS
from engine.engine import EngineConfig

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")]


@pytest.mark.parametrize("model", ["random:tiny", "random:tiny-llama"])
def test_every_form_runs_and_agrees(model):
    report = benchmark(EngineConfig(model, backend="monokernel", dtype="float16"), 100, 64, 2, with_rival=True)
    *_, result = compare(report)
    assert result["failed"] == {} and [form["name"] for form in result["forms"]] == [form.name for form in FORMS]
    assert result["memory_before"] < 32e6
    assert all(form["equal_tokens"] >= 4 for form in result["forms"])
    assert result["ratio"] == pytest.approx(report["speed"]["decode_tokens_per_s"] / max(f["decode_tokens_per_s"] for f in result["forms"]))
