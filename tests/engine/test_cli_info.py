"""python -m engine info, logits and export, as other programs use them."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from engine.__main__ import main
from engine.cli.info import describe
from engine.hardware import Gpu, datasheet_bytes_per_s
from engine.shapes import SHAPES

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests/golden"


def test_info_shows_size_bytes_and_that_a_cpu_has_no_bound(capsys):
    assert main(["info", "random:laneformer-2b", "--dtype", "float16"]) == 0
    lines = {line[:18].strip(): line[18:] for line in capsys.readouterr().out.splitlines()}
    assert lines["parameters"] == "2,320,069,632"
    assert lines["bytes per token"].startswith("4,443,537,408 (4.444 GB) in 16 bits")
    assert lines["attention"] == "window of 512 in layers 0-9, full in layers 10-14"
    assert lines["lanes"] == "8, delay 2; reductions: present in layers 0-1, past in layers 2-14"
    if not torch.cuda.is_available():
        assert lines["bandwidth bound"] == "none: no GPU is present, and the table has no CPUs"


def test_info_bounds_by_the_datasheet():
    cards = [Gpu("NVIDIA H200", 140 << 30, datasheet_bytes_per_s("NVIDIA H200"))] * 2
    text = describe(SHAPES["laneformer-2b"], "float16", 2, cards)
    assert text["GPUs"] == "2 x NVIDIA H200"
    assert text["bandwidth bound"] == "1,080 tokens/s on 1, 2,160 tokens/s on 2 (datasheet: 4.8 TB/s each, weights as float16)"
    unknown = describe(SHAPES["tiny-llama"], "bfloat16", 2, [Gpu("Some Card", 1 << 30, None)])
    assert unknown["bandwidth bound"] == "none: the datasheet bandwidth of this card is not known"


@pytest.mark.parametrize(
    ("name", "speed"),
    [
        ("NVIDIA H100 80GB HBM3", 3.35e12),
        ("NVIDIA H100 PCIe", 2.0e12),
        ("AMD Instinct MI300X OAM", 5.3e12),
        ("NVIDIA L4", 0.3e12),
        ("TITAN", None),
    ],
)
def test_datasheet_names(name, speed):
    assert datasheet_bytes_per_s(name) == speed


@pytest.mark.parametrize("shape", SHAPES)
def test_info_knows_every_named_shape(shape, capsys):
    assert main(["info", f"random:{shape}"]) == 0
    assert f"{SHAPES[shape].parameters:,}" in capsys.readouterr().out


def test_logits_are_written_for_other_programs(tmp_path):
    """In a fresh process: this command is what other implementations compare themselves with."""
    folder, out = GOLDEN / "laneformer/dtp8", tmp_path / "logits.safetensors"
    expected = load_file(folder / "expected.safetensors")
    ids = ",".join(map(str, expected["input_ids"].tolist()))
    command = [
        sys.executable,
        "-m",
        "engine",
        "logits",
        str(folder),
        "--ids",
        ids,
        "--out",
        str(out),
        "--backend",
        "torch",
        "--dtype",
        "float32",
    ]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    written = load_file(out)
    assert list(written) == ["logits"] and written["logits"].dtype == torch.float32
    assert (written["logits"] - expected["logits"]).abs().max() <= 1e-4


def test_logits_go_through_a_link_to_its_file(tmp_path):
    target, link = tmp_path / "target", tmp_path / "link"
    link.symlink_to(target)
    assert main(["logits", "random:tiny", "--ids", "1,2,3", "--out", str(link), "--backend", "torch"]) == 0
    assert link.is_symlink() and load_file(target)["logits"].shape == (3, 512)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="Linux has a device that is always full")
def test_logits_for_a_full_disk_are_an_error_and_the_device_stays_one(tmp_path, capsys):
    link = tmp_path / "link"  # the test must not be able to replace the device itself
    link.symlink_to("/dev/full")
    assert main(["logits", "random:tiny", "--ids", "1", "--out", str(link), "--backend", "torch"]) == 1
    assert capsys.readouterr().err == f"error: {link} cannot be written: No space left on device.\n"
    assert link.is_symlink() and Path("/dev/full").is_char_device()


def test_export_then_logits(tmp_path, capsys):
    assert main(["export", "random:tiny", "--out", str(tmp_path / "tiny")]) == 0
    assert "6,428,160 bytes of float16 tensors" in capsys.readouterr().out
    for model, name in ((str(tmp_path / "tiny"), "a"), ("random:tiny", "b")):
        arguments = ["logits", model, "--ids", "1,2,3", "--out", str(tmp_path / name), "--backend", "torch", "--dtype", "float16"]
        assert main(arguments) == 0
    if not torch.cuda.is_available():  # the random numbers of a GPU are others than those of the export
        assert torch.equal(load_file(tmp_path / "a")["logits"], load_file(tmp_path / "b")["logits"])


def test_an_export_that_finds_no_room_is_one_line(tmp_path):
    limited = "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000)); "
    code = limited + "from engine.__main__ import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", code, "export", "random:tiny", "--out", str(tmp_path / "tiny")]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 1 and run.stderr.count("\n") == 1
    assert run.stderr.startswith(f"error: {tmp_path}/tiny/model.safetensors cannot be written: ") and "File too large" in run.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["info", "nope"], "error: There is no model 'nope'. Give a checkpoint folder"),
        (["info", "random:nope"], "There is no shape 'nope' for random weights; known shapes: laneformer-2b,"),
        (["logits", "random:tiny", "--ids", "1,x", "--out", "o"], "such as 1,2,3; got '1,x'"),
        (["logits", "random:tiny", "--ids", "512", "--out", "o"], "Token ids of random:tiny lie between 0 and 511; got 512."),
        (["logits", "random:tiny", "--ids", "1", "--out", "/no/such/folder/o"], "The folder /no/such/folder does not exist."),
        (["logits", "random:tiny", "--ids", "1", "--out", "/tmp"], "/tmp is a folder; give the name of a file."),
        (["bench", "random:tiny", "--json", "/no/such/folder/o"], "The folder /no/such/folder does not exist."),
        (["bench", "random:tiny", "--plot", "/tmp"], "/tmp is a folder; give the name of a file."),
        (["bench", "random:tiny", "--scaling", "/tmp"], "/tmp is a folder; give the name of a file."),
        (["bench", "random:tiny", "--backend", "torch", "--gpus", "2"], "gpus=2: the torch backend uses at most one GPU."),
        (
            ["bench", "random:tiny", "--gpus", "0", "--compare", "--output-tokens", "2", "--runs", "1"],
            "--compare needs the monokernel on one GPU",
        ),
        (["export", "random:tiny", "--out", str(GOLDEN)], "is not empty"),
        (["export", "random:tiny", "--out", "/dev/null/x"], "Not a directory: '/dev/null/x'"),
    ],
    ids=lambda value: " ".join(value)[:30] if isinstance(value, list) else "",
)
def test_mistakes_are_one_line(arguments, message, capsys):
    if arguments[0] == "logits":
        arguments = [*arguments, "--backend", "torch"]
    assert main(arguments) == 1
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("num_hidden_layers", 10**8, "num_hidden_layers must lie between 1 and 1,024; got 100,000,000."),
        ("vocab_size", 10**400, "vocab_size must be at most 2,147,483,647; got 10,000,"),
        ("hidden_size", 10**15, "hidden_size must be at most 2,147,483,647; got 1,000,000,000,000,000."),
    ],
)
def test_a_configuration_with_a_monstrous_number_is_refused_in_one_line(key, value, message, tmp_path, capsys):
    config = json.loads((GOLDEN / "llama/llama_tied_gqa/config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {key: value}))
    out = str(tmp_path / "o")
    for arguments in (
        ["info"],
        ["logits", "--ids", "1", "--backend", "torch", "--out", out],
        ["bench", "--gpus", "0"],
        ["export", "--out", out],
    ):
        assert main([arguments[0], str(tmp_path), *arguments[1:]]) == 1
        error = capsys.readouterr().err
        assert message in error and error.count("\n") == 1


def test_models_and_configurations_need_no_torch():
    code = (
        "import sys, engine.models, engine.loading\n"
        "engine.loading.load_config(engine.models.resolve('smollm2-135m-instruct'))\n"
        "print('torch' in sys.modules)"
    )
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True, text=True)
    assert run.stdout.strip() == "False"
