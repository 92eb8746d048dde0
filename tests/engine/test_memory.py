"""The context that fits the memory: what is chosen, what is said, what is refused."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from engine import memory, torch_backend
from engine.errors import DeviceError
from engine.loading import assemble
from engine.memory import _group_free_bytes, fit_context, host_free_bytes
from engine.shapes import SHAPES
from engine.torch_backend import TorchBackend

GOLDEN = Path(__file__).parent.parent / "golden"
LLAMA = SHAPES["llama-3.2-1b"]  # 131,072 tokens


def test_the_models_own_context_where_it_fits(capsys):
    assert fit_context(LLAMA, None, 1000, 300_000_000) == 131_072
    assert fit_context(LLAMA, 5_000, 1000, 300_000_000) == 5_000
    assert fit_context(LLAMA, 10**9, 1000, 300_000_000) == 131_072
    assert capsys.readouterr().err == ""


def test_what_fits_is_chosen_and_said(capsys):
    assert fit_context(replace(LLAMA, context_tokens=10**15), None, 1000, 20_000_000) == 10_000
    assert capsys.readouterr().err == (
        "engine: random:llama-3.2-1b: a context of 10,000 of the model's 1,000,000,000,000,000 tokens: "
        "50% of the free memory, 0.0 GB, holds 10,000.\n"
    )
    assert fit_context(LLAMA, None, 1000, 20_000_000, quiet=True) == 10_000
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(("asked", "free"), [(10_001, 20_000_000), (None, 1_999)])
def test_what_does_not_fit_is_refused_with_both_numbers(asked, free):
    message = r"a context of 10,001 tokens takes 0.0 GB; .* holds 10,000" if asked else r"a context of 131,072 tokens .* holds 0"
    with pytest.raises(DeviceError, match=message):
        fit_context(LLAMA, asked, 1000, free)


def test_the_limit_of_a_control_group_counts(tmp_path):
    membership, folder = tmp_path / "cgroup", tmp_path / "root/box"
    membership.write_text("0::/box\n")
    folder.mkdir(parents=True)
    assert _group_free_bytes(membership, tmp_path / "root") == float("inf")
    (folder / "memory.max").write_text("max\n")
    (folder / "memory.current").write_text("700\n")
    (folder / "memory.stat").write_text("anon 300\ninactive_file 250\n")
    assert _group_free_bytes(membership, tmp_path / "root") == float("inf")
    (folder / "memory.max").write_text("1000\n")
    assert _group_free_bytes(membership, tmp_path / "root") == 550
    assert 0 < host_free_bytes() < 1 << 50


@pytest.mark.parametrize("name", ["llama/llama_tied_gqa", "laneformer/dtp8"])
def test_a_checkpoint_that_claims_a_huge_context_runs(name, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(memory, "SHARE", 1e-3)  # enough for thousands of these tiny rows
    folder = shutil.copytree(GOLDEN / name, tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 10**15}))
    whole = TorchBackend(str(GOLDEN / name), gpus=0)
    backend = TorchBackend(str(folder), gpus=0)
    assert whole.info.context_tokens < backend.info.context_tokens < 10**12
    assert f"a context of {backend.info.context_tokens:,} of the model's 1,000,000,000,000,000 tokens" in capsys.readouterr().err
    assert torch.equal(backend.logits([1, 2, 3]), whole.logits([1, 2, 3]))


def test_chunks_of_a_prompt_shrink_where_their_scores_would_not_fit(monkeypatch):
    backend = TorchBackend(str(GOLDEN / "llama/llama_tied_gqa"), gpus=0)
    prompt = list(range(40))
    whole = backend.logits(prompt)
    monkeypatch.setattr(torch_backend, "SCORE_BYTES", 4 * backend._model.n_heads * (torch_backend.PREFILL_ROWS + 20) * 3)
    backend._model.reset()
    assert torch_backend.chunk_rows(backend._model) == 3
    assert (backend.logits(prompt) - whole).abs().max() < 1e-4
    assert torch_backend.chunk_rows(backend._model) == 2


def test_weights_that_do_not_fit_are_refused_before_they_are_read(monkeypatch):
    monkeypatch.setattr(assemble, "host_free_bytes", lambda: 16_000_000_000)
    with pytest.raises(DeviceError, match=r"random:llama-3.1-70b: the weights take 141.1 GB as float16; 16.0 GB of memory are free."):
        TorchBackend("random:llama-3.1-70b", gpus=0)
