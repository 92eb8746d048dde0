"""The benchmark: its rival computes the same model, its command writes what it measured."""

import json
import re
import shutil
import subprocess
import sys
import time
import weakref
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from engine import reference
from engine.__main__ import main
from engine.bench import benchmark, rival
from engine.bench.plot import write_plot
from engine.bench.report import form_text, rival_text
from engine.bench.report import text as report_text
from engine.bench.rival import FORMS, Form, Rival, measure_rival
from engine.bench.ticking import ticking
from engine.engine import EngineConfig
from engine.loading import load_config, load_weights
from engine.models import resolve
from engine.request import SamplingParams
from engine.shapes import SHAPES
from engine.torch_backend import TorchBackend
from engine.worker import make_backend

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests/golden"
REPORT = json.loads((Path(__file__).parent / "bench_report.json").read_text())  # of one H200, with a profile
IDS = [5, 9, 13, 2, 40, 41, 7, 100, 3, 8, 60, 61, 62, 63, 64, 65, 66, 67, 68, 69]


def speed_of(name, tokens_per_s):
    return rival.FormSpeed(name, 90.0, False, tokens_per_s, tokens_per_s - 1, tokens_per_s + 1, 16)


@pytest.mark.filterwarnings("ignore:flex_attention called without")
@pytest.mark.parametrize("flex", [False, True])
@pytest.mark.parametrize("name", ["llama/llama_tied_gqa", "llama/qwen2_bias", "llama/mistral_window"])
def test_the_rival_computes_the_same_model(name, flex, monkeypatch):
    monkeypatch.setattr(rival, "BLOCK", 8)  # so that windows begin and end in different blocks
    source = resolve(str(GOLDEN / name))
    config = load_config(source)
    weights = load_weights(source, config, dtype=torch.float32, device="cpu")
    expected = reference.forward(config, weights, IDS).argmax(-1).tolist()
    model = Rival(config, weights, len(IDS))
    model.flex = flex
    with torch.inference_mode():
        made = [model(torch.tensor([token]), torch.tensor([position])).item() for position, token in enumerate(IDS)]
    assert made == expected


def test_attention_of_the_rival_reads_only_the_blocks_in_its_window():
    config = replace(SHAPES["tiny-llama"], n_layers=1, context_tokens=1000)
    weights = load_weights(resolve("random:tiny-llama"), config, dtype=torch.float32, device="cpu")
    model = Rival(config, weights, 600)
    assert model.context == 640
    assert len({cache.untyped_storage().data_ptr() for cache in model.k + model.v}) == 2  # compiled, parts of one tensor would be copied
    for position, window, blocks in (
        (0, 640, [0]),
        (127, 640, [0]),
        (300, 640, [0, 1, 2]),
        (300, 46, [1, 2]),
        (300, 45, [2]),
        (639, 129, [3, 4]),
    ):
        count, numbers = model._blocks(torch.tensor([position]), window)
        assert numbers[0, 0, 0, : count.item()].tolist() == blocks


def run_two_forms():
    """[(equal tokens, whether from the cache)] of a one-layer model, eager and compiled."""
    config = replace(SHAPES["tiny-llama"], n_layers=1)
    weights = load_weights(resolve("random:tiny-llama"), config, dtype=torch.bfloat16, device="cpu")
    speeds = list(measure_rival(config, weights, 40, 12, 1, (FORMS[0], FORMS[-1])))
    assert all(speed.decode_tokens_per_s_min <= speed.decode_tokens_per_s <= speed.decode_tokens_per_s_max for speed in speeds)
    return [(speed.equal_tokens, speed.cached) for speed in speeds]


@pytest.mark.skipif(
    not shutil.which("g++") or "AVX" not in torch.backends.cpu.get_cpu_capability(), reason="PyTorch's compiler needs g++ and AVX2 here"
)
def test_a_compiled_form_makes_the_same_tokens_and_a_second_process_reuses_the_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    assert run_two_forms() == [(12, False), (12, False)]
    code = "from tests.engine.test_bench import run_two_forms; print(run_two_forms())"
    run = subprocess.run([sys.executable, "-W", "ignore", "-c", code], cwd=ROOT, check=True, capture_output=True, text=True)
    assert run.stdout.splitlines()[-1] == "[(12, False), (12, True)]"


def test_a_form_that_pytorch_cannot_run_leaves_the_others(monkeypatch):
    config = SHAPES["tiny-llama"]
    weights = load_weights(resolve("random:tiny-llama"), config, dtype=torch.float32, device="cpu")
    forms = (FORMS[0], Form("broken", {"no.such.option": True}, whole=True), Form("eager again"))
    first, broken, again = measure_rival(config, weights, 3, 4, 1, forms)
    assert broken[0] == "broken" and "no.such.option" in broken[1]
    assert (first.name, again.name, again.equal_tokens) == ("eager", "eager again", 4)


def test_progress_is_told_while_something_compiles(capsys):
    with ticking("rival          a form: compiling", every_s=0.02):
        time.sleep(0.2)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) >= 2 and lines[0] == "rival          a form: compiling, 0 s ..."
    with pytest.raises(ValueError), ticking("x", every_s=0.02):
        raise ValueError
    time.sleep(0.05)
    assert capsys.readouterr().out == ""


def test_nothing_of_the_engine_is_left_when_its_rival_begins(monkeypatch):
    seen = []

    def make(config, report):
        backend = make_backend(config, report)
        seen.extend(map(weakref.ref, (backend, backend._model)))
        return backend

    monkeypatch.setattr(benchmark, "make_backend", make)
    benchmark.benchmark(EngineConfig("random:tiny-llama", backend="torch", gpus=0), 4, 3, 1)
    assert len(seen) == 2 and all(reference() is None for reference in seen)


def test_the_comparison_names_the_best_form_and_the_ratio(monkeypatch, capsys):
    made = [speed_of("eager", 480.0), ("compiled layer", "InductorError: no"), speed_of("compiled model", 1000.0)]
    monkeypatch.setattr(rival, "measure_rival", lambda *arguments: iter(made))
    monkeypatch.setattr("engine.loading.load_weights", lambda *arguments, **settings: None)
    report = REPORT | {"engine": REPORT["engine"] | {"gpus": 0}}
    first, _, result = (dict(known) for known in benchmark.compare(report))
    assert first["best"] == "eager" and first["ratio"] == pytest.approx(3.1191, abs=1e-4)
    assert result["best"] == "compiled model" and result["ratio"] == pytest.approx(1.4972, abs=1e-4)
    assert [form["compile_s"] for form in result["forms"]] == [90.0, 90.0]
    assert result["failed"] == {"compiled layer": "InductorError: no"}
    out = capsys.readouterr().out.splitlines()
    assert out.pop(0) == "rival          begins with 0 MB of the engine left on the GPU; loading its weights"
    assert out[0] == (
        "rival          eager: 480.0 tokens/s (from 479.0 to 481.0), ready after 90 s; its first 16 tokens equal those of the first form"
    )
    assert out[1] == "rival          compiled layer: PyTorch failed: InductorError: no"
    assert out[-1] == "best rival     PyTorch, compiled model; this engine is 1.50 x"
    assert "from the cache" in form_text(result["forms"][0] | {"cached": True})
    assert "no form of PyTorch ran" in rival_text({"best": None})


def test_the_plot_shows_the_rival_and_the_phases(tmp_path):
    forms = [speed_of("eager", 480.0).to_dict(), speed_of("compiled <model>", 1000.0).to_dict()]
    report = REPORT | {"rival": {"forms": forms, "failed": {}, "best": "compiled <model>", "ratio": 1.4972}}
    write_plot(report, tmp_path / "plot.svg")
    root = ElementTree.parse(tmp_path / "plot.svg").getroot()
    rects = [r.attrib for r in root.iter("{http://www.w3.org/2000/svg}rect")]
    widths = {
        kind: [float(r["width"]) for r in rects if r["class"] == kind and "y" in r and float(r["height"]) > 12]
        for kind in ("engine", "rival", "bound", "work", "wait")
    }
    assert widths["engine"][0] / widths["bound"][0] == pytest.approx(1497.18 / 1746.82, abs=1e-3)
    assert widths["rival"][1] / widths["engine"][0] == pytest.approx(1000 / 1497.18, abs=1e-3)
    for phase, work, wait in zip(REPORT["profile"], widths["work"], widths["wait"], strict=True):
        assert work / widths["work"][3] == pytest.approx(phase["work_us"] / REPORT["profile"][3]["work_us"], abs=1e-3)
        assert wait / widths["work"][3] == pytest.approx(phase["wait_us"] / REPORT["profile"][3]["work_us"], abs=1e-3)
    drawn = "".join(root.itertext())
    assert "engine is 1.50 x this best rival" in drawn and "176 + 43 us, 1,074 MB" in drawn and "norm, gate and up x 16" in drawn
    assert max(float(r["y"]) + float(r["height"]) for r in rects) < float(root.attrib["height"])
    assert "1,497 (1,497 to 1,498)" in drawn


@pytest.mark.parametrize(
    ("low", "high", "words"),
    [(997.8, 1009.2, "(998 to 1,009)"), (1005.8, 1006.1, "(1,005.8 to 1,006.1)"), (1006.13, 1006.14, "(1,006.13 to 1,006.14)"), (7, 7, "")],
)
def test_the_plot_tells_the_slowest_run_from_the_fastest(low, high, words, tmp_path):
    speed = REPORT["speed"] | {"decode_tokens_per_s_min": low, "decode_tokens_per_s_max": high}
    write_plot(REPORT | {"speed": speed}, tmp_path / "plot.svg")
    drawn = "".join(ElementTree.parse(tmp_path / "plot.svg").getroot().itertext())
    assert words in drawn and ("1,006 to 1,006" not in drawn) and ("7 to 7" not in drawn)


def test_the_report_in_words_holds_every_phase():
    lines = report_text(REPORT).splitlines()
    assert lines[5] == "decode         1,497.2 tokens/s (from 1,496.8 to 1,497.7)"
    assert [line.split("  ")[0] for line in lines].count("phase") == len(REPORT["profile"])


def test_bench_writes_a_report_and_a_plot(tmp_path, capsys):
    files = ["--json", str(tmp_path / "report.json"), "--plot", str(tmp_path / "plot.svg")]
    lengths = ["--prompt-tokens", "4", "--output-tokens", "3", "--runs", "1"]
    assert main(["bench", "random:tiny", "--backend", "torch", "--gpus", "0", *lengths, *files]) == 0
    assert "decode" in capsys.readouterr().out
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["speed"]["output_tokens"] == 3 and report["speed"]["decode_tokens_per_s"] > 0
    assert (tmp_path / "plot.svg").read_text().startswith("<svg")


def test_bench_draws_tokens_as_asked(tmp_path, capsys, monkeypatch):
    asked = []
    start = TorchBackend.start

    def noted(self, prompt_ids, sampling, *rest):
        asked.append(sampling)
        return start(self, prompt_ids, sampling, *rest)

    monkeypatch.setattr(TorchBackend, "start", noted)
    command = ["bench", "random:tiny", "--backend", "torch", "--gpus", "0", "--prompt-tokens", "4", "--output-tokens", "3", "--runs", "1"]
    command += ["--temperature", "0.2", "--top-k", "40", "--top-p", "0.95"]
    assert main([*command, "--json", str(tmp_path / "report.json")]) == 0
    assert "batch 1, temperature 0.2, top-k 40, top-p 0.95" in capsys.readouterr().out
    assert json.loads((tmp_path / "report.json").read_text())["sampling"] == {"temperature": 0.2, "top_k": 40, "top_p": 0.95}
    assert asked == [SamplingParams(temperature=0.2, top_k=40, top_p=0.95, seed=0, ignore_eos=True)] * 2
    assert main([*command, "--profile"]) == 1
    assert "of greedy decoding" in capsys.readouterr().err


def test_bench_refuses_what_it_cannot_measure(tmp_path, capsys):
    assert main(["bench", "random:tiny", "--gpus", "0", "--backend", "torch", "--output-tokens", "1"]) == 1
    assert "at least 1 prompt token, 2 output tokens and 1 run; got 128, 1 and 5" in capsys.readouterr().err
    assert main(["bench", "random:tiny", "--gpus", "0", "--backend", "torch", "--prompt-tokens", "4000"]) == 1
    assert "do not fit" in capsys.readouterr().err
    one = str(tmp_path / "report")
    assert main(["bench", "random:tiny", "--gpus", "0", "--backend", "torch", "--json", one, "--plot", one]) == 1
    assert "--json, --plot and --scaling need a file each" in capsys.readouterr().err


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


def test_the_page_of_reports_agrees_with_its_files():
    folder = ROOT / "docs/benchmarks"
    page = (folder / "README.md").read_text()
    reports = sorted(folder.glob("*.json"))
    assert reports
    for path in reports:
        report, (row,) = json.loads(path.read_text()), [line for line in page.splitlines() if f"]({path.name})" in line]
        speed, info = report["speed"], report["engine"]
        for figure in (
            f"{speed['decode_tokens_per_s']:,.0f} ({speed['decode_tokens_per_s_min']:,.0f} to {speed['decode_tokens_per_s_max']:,.0f})",
            f"{speed['ttft_ms']:.1f} ms",
            f"{speed['prompt_tokens']} + {speed['output_tokens']}",
            info["dtype"],
            f"{report['read_bandwidth'] / 1e12:.2f}",
            f"{report['mbu_measured']:.1%}",
        ):
            assert figure in row, (path.name, figure)
        assert not report.get("rival") or f"{report['rival']['ratio']:.2f}" in row
        for link in re.findall(r"\]\(([^)]+)\)", row):
            assert (folder / link).is_file()
