"""The model of docs/scaling.md against the measured chains it was fitted to, and against what bounds it."""

from dataclasses import replace

import pytest

from engine.bench import benchmark
from engine.bench.report import _exchange_line
from engine.bench.scaling import H200, MI300X, predict, write_scaling_plot
from engine.engine import EngineConfig
from engine.errors import ModelError
from engine.kernel.portable.path import shape_of
from engine.request import SamplingParams
from engine.shapes import SHAPES
from engine.weights import Shard

LANEFORMER = SHAPES["laneformer-2b"]
CHAINS_US = {1: 990, 2: 505, 4: 276, 8: 185}  # measured, without attention, exchange and choice of the token


@pytest.mark.parametrize("gpus", CHAINS_US)
def test_the_fit_gives_the_measured_chains(gpus):
    predicted = predict(LANEFORMER, gpus)
    head = LANEFORMER.vocab_size * LANEFORMER.hidden_size * 2 / gpus / H200.bytes_per_us
    assert predicted.layers + head == pytest.approx(CHAINS_US[gpus], rel=0.005)


def test_one_gpu_agrees_with_the_fast_path():
    assert predict(LANEFORMER, 1).tokens_per_s == pytest.approx(996, rel=0.01)


@pytest.mark.parametrize("name", ["laneformer-2b", "llama-3.1-8b"])
@pytest.mark.parametrize("machine", [H200, MI300X])
def test_no_prediction_beats_the_read_bound_and_more_gpus_gain_less_each(name, machine):
    times = [predict(SHAPES[name], gpus, machine) for gpus in (1, 2, 4)]
    assert all(time.total > time.bound for time in times)
    shares = [time.bound / time.total for time in times]
    assert shares == sorted(shares, reverse=True)


def test_delayed_sums_cost_less_than_sums_that_are_needed_at_once():
    at_once = replace(LANEFORMER, reductions=(), delay=LANEFORMER.n_layers)
    assert predict(LANEFORMER, 8).exchange < predict(at_once, 8).exchange / 4


def test_a_number_that_does_not_divide_is_refused():
    with pytest.raises(ModelError, match="8 lanes do not divide over 3 GPUs"):
        predict(LANEFORMER, 3)


def test_the_plot_shows_bound_prediction_and_measurement(tmp_path):
    write_scaling_plot(LANEFORMER, H200, {1: 996.0}, tmp_path / "scaling.svg")
    drawing = (tmp_path / "scaling.svg").read_text()
    assert drawing.count("<polyline") == 2 and drawing.count("<circle") == 1
    assert "measured: 1: 996" in drawing


def test_the_plot_leaves_out_gpus_over_which_the_model_does_not_divide(tmp_path):
    """SmolLM2 has three KV heads."""
    write_scaling_plot(SHAPES["smollm2-135m"], H200, {}, tmp_path / "scaling.svg")
    drawing = (tmp_path / "scaling.svg").read_text()
    assert "read bound: 1: " in drawing and ", 2: " not in drawing and drawing.count('text-anchor="middle"') == 1


def test_the_report_tells_waits_as_shares_of_a_token_and_link_traffic():
    shape = shape_of(LANEFORMER, 1024, 132, 128, True, Shard(0, 2))
    assert shape.pushed_bytes == 8 * (2 * 15 * 4 * 3072 + 4 * 3072 + 2 * 2 * 132)
    exchange = {"delayed_wait_us": 5.0, "present_wait_us": 10.0, "agreement_wait_us": 2.5, "layers": 15, "pushed_bytes": shape.pushed_bytes}
    line = _exchange_line(exchange, 1000.0)
    assert "delayed 5.0 us (0.5%), present 10.0 us (1.0%), agreement 2.5 us (0.2%); 1.00 us a layer; 3.1 GB/s" in line


def test_fewer_gpus_are_measured_with_the_same_lengths_and_settings(tmp_path, monkeypatch, capsys):
    asked, speeds, drawn = [], {4: 3000.0, 2: 1700.0, 1: 990.0}, {"temperature": 0.2, "top_k": 40, "top_p": 0.95}

    def report_of(gpus, prompt_tokens=100, output_tokens=200, runs=3, sampling=None):
        speed = {"prompt_tokens": prompt_tokens, "output_tokens": output_tokens, "runs": runs, "decode_tokens_per_s": speeds[gpus]}
        return {"engine": {"gpus": gpus, "device": "NVIDIA H200"}, "speed": speed, "sampling": drawn}

    def measured(config, *lengths):
        asked.append((config.gpus, config.dtype, *lengths))
        return report_of(config.gpus, *lengths)

    monkeypatch.setattr(benchmark, "benchmark", measured)
    config = EngineConfig("random:laneformer-2b", gpus=4, dtype="float16")
    benchmark.scale(config, report_of(4), tmp_path / "scaling.svg")
    settings = ("float16", 100, 200, 3, SamplingParams(**drawn))
    assert asked == [(1, *settings), (2, *settings)]
    assert capsys.readouterr().out.splitlines()[-1] == "scaling        4 GPUs are 1.76 x 2"
    assert "measured: 1: 990, 2: 1,700, 4: 3,000" in (tmp_path / "scaling.svg").read_text()
