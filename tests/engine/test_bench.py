"""The benchmark: its rival computes the same model, its command writes what it measured."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from engine import reference
from engine.__main__ import main
from engine.bench.rival import Rival
from engine.loading import load_config, load_weights
from engine.models import resolve
from engine.shapes import SHAPES

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


@pytest.mark.parametrize("name", ["laneformer-2b", "llama-3.2-1b"])
def test_the_profile_of_the_fast_path_covers_a_token(name):
    """Every step takes 10 clocks: 3 until others are ready, 4 until the input is staged, 3 of work. All weights are read once."""
    pytest.importorskip("triton")
    from engine.bench.profile import _fast_phases
    from engine.kernel.gluon.plan import make_plan

    plan = make_plan(SHAPES[name], 640, 132)
    begin = 10 * torch.arange(plan.steps).view(1, -1, 1)
    if plan.common_layers == plan.layers:  # one step of lanes that is never taken lies before the head
        begin[:, -2:] -= 10 * 5
    trace = (begin + torch.tensor([0, 3, 7, 10])).expand(plan.ctas, -1, -1)
    token_us = (trace[0, -1, 3] - trace[0, 0, 0]).item()
    phases = _fast_phases(SimpleNamespace(plan=plan, trace=trace), token_us * 1000)
    assert sum(phase.bytes for phase in phases) == plan.units * plan.boxes * 8192
    assert sum(phase.work_us + phase.wait_us for phase in phases) == pytest.approx(token_us)
    assert all(time == pytest.approx(3 * phase.count) for phase in phases for time in (phase.work_us, phase.slowest_us))
