"""The benchmark: its rival computes the same model, its command writes what it measured."""

import json
from pathlib import Path

import pytest
import torch

from engine import reference
from engine.__main__ import main
from engine.bench.rival import Rival
from engine.loading import load_config, load_weights
from engine.models import resolve

GOLDEN = Path(__file__).parents[1] / "golden"


@pytest.mark.parametrize("name", ["llama/llama_tied_gqa", "llama/qwen2_bias", "llama/mistral_window"])
def test_the_rival_computes_the_same_model(name):
    source = resolve(str(GOLDEN / name))
    config = load_config(source)
    weights = load_weights(source, config, dtype=torch.float32, device="cpu")
    ids = [5, 9, 13, 2, 40, 41, 7, 100, 3, 8, 60, 61, 62, 63, 64, 65, 66, 67, 68, 69]
    expected = reference.forward(config, weights, ids).argmax(-1).tolist()
    rival = Rival(config, weights, len(ids))
    with torch.inference_mode():
        made = [rival(torch.tensor([token]), torch.tensor([position])).item() for position, token in enumerate(ids)]
    assert made == expected


def test_bench_writes_a_report_and_a_plot(tmp_path, capsys):
    files = ["--json", str(tmp_path / "report.json"), "--plot", str(tmp_path / "plot.svg")]
    lengths = ["--prompt-tokens", "4", "--output-tokens", "3", "--runs", "1"]
    assert main(["bench", "random:tiny", "--backend", "torch", "--gpus", "0", *lengths, *files]) == 0
    assert "decode" in capsys.readouterr().out
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["speed"]["output_tokens"] == 3 and report["speed"]["decode_tokens_per_s"] > 0
    assert (tmp_path / "plot.svg").read_text().startswith("<svg")


def test_bench_refuses_what_it_cannot_measure(capsys):
    assert main(["bench", "random:tiny", "--gpus", "0", "--backend", "torch", "--output-tokens", "1"]) == 1
    assert "at least 1 prompt token, 2 output tokens and 1 run; got 128, 1 and 5" in capsys.readouterr().err
    assert main(["bench", "random:tiny", "--gpus", "0", "--backend", "torch", "--prompt-tokens", "4000"]) == 1
    assert "do not fit" in capsys.readouterr().err
