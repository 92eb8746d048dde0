"""python -m engine generate, as people use it."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from engine.__main__ import main

ROOT = Path(__file__).parents[2]
FOLDER = str(ROOT / "tests/golden/llama/llama_tied_gqa")  # no tokenizer
ARGUMENTS = ["generate", FOLDER, "--ids", "1,2,3", "--max-tokens", "5", "--gpus", "0"]


def test_token_ids_are_printed_where_there_is_no_tokenizer(capsys):
    assert main(ARGUMENTS) == 0
    shown = capsys.readouterr()
    assert shown.out == "240 233 133 133 133 \n"
    assert f"{FOLDER} has no tokenizer: neither tokenizer.json nor tokenizer.model is there. Token ids are printed.\n" in shown.err


def test_stop_strings_need_a_tokenizer(capsys):
    assert main([*ARGUMENTS, "--stop", "x"]) == 1
    shown = capsys.readouterr()
    assert f"error: Stop strings need a tokenizer. {FOLDER} has no tokenizer" in shown.err and shown.out == ""


def started(*arguments: str, **options) -> subprocess.Popen:
    """A command in a process of its own, with buffered output as in a shell."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"} | options.pop("env", {})
    command = [sys.executable, "-m", "engine", *arguments]
    return subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.PIPE, **options)


def test_ctrl_c_while_the_model_loads_ends_without_a_word():
    process = started("generate", "random:smollm2-135m", "--ids", "1", "--gpus", "0", stdout=subprocess.PIPE, start_new_session=True)
    shown = process.stderr.read(1)  # the first sign of progress
    os.killpg(process.pid, signal.SIGINT)
    errors = process.communicate(timeout=120)[1]
    assert process.returncode == 130
    assert b"Traceback" not in shown + errors and b"error" not in shown + errors


def test_a_reader_that_has_enough_is_no_error():
    read, write = os.pipe()
    os.close(read)
    process = started("info", "random:tiny", stdout=write)
    os.close(write)
    assert process.communicate(timeout=120)[1] == b"" and process.returncode == 141


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="Linux has a device that is always full")
def test_a_full_disk_is_said_in_one_line():
    with open("/dev/full", "w") as full:
        process = started("info", "random:tiny", stdout=full)
        assert process.communicate(timeout=120)[1] == b"error: [Errno 28] No space left on device\n" and process.returncode == 1


def test_a_terminal_that_cannot_show_a_name_shows_its_escapes(tmp_path):
    folder = tmp_path / "modèle"
    folder.symlink_to(FOLDER)
    process = started("info", str(folder), stdout=subprocess.PIPE, env={"PYTHONIOENCODING": "ascii"})
    output, errors = process.communicate(timeout=120)
    assert b"mod\\xe8le" in output and process.returncode == 0 and errors == b""
