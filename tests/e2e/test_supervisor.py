"""`make run` as people meet it: what it prints, what it leaves behind, what it says when it cannot start."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from playground.supervisor import supervisor
from playground.supervisor.embedded_redis import free_port
from tests.e2e.conftest import ROOT, SYNTHETIC, Product

pytestmark = pytest.mark.e2e


def all_gone(processes: list[psutil.Process], seconds: float = 10.0) -> bool:
    _, alive = psutil.wait_procs(processes, timeout=seconds)
    return not [p for p in alive if p.status() != psutil.STATUS_ZOMBIE]


def test_no_process_outlives_the_supervisor():
    """SIGTERM ends running answers in order and stores them; SIGKILL takes everything along. (SIGINT: ``product``'s end.)"""
    product = Product(ENGINE_BACKEND=SYNTHETIC).start()
    try:
        cookies = product.visit()
        with product.socket(cookies) as client:
            accepted = client.generate("Go on", max_tokens=80_000)
            client.receive("delta")
            processes, started = product.processes(), time.monotonic()
            assert product.stop(signal.SIGTERM) == 0
        assert not (product.folder / "redis" / "url").exists()
        assert time.monotonic() - started < 10
        assert len(processes) >= 5, "supervisor, Redis, worker, engine, web server"
        assert all_gone(processes)

        generation = product.start().get(f"/api/generations/{accepted['generation_id']}", cookies)
        assert generation["state"] == "interrupted" and generation["text"]
        processes = product.processes()
        assert product.stop(signal.SIGKILL) == -signal.SIGKILL
        assert all_gone(processes)
    finally:
        product.remove()


def manage(*arguments: str, **env: str) -> subprocess.CompletedProcess:
    """`python manage.py` beside a playground, with nothing in the environment that says where its Redis is."""
    clean = {k: v for k, v in os.environ.items() if k not in ("REDIS_URL", "DATABASE_URL", "MODELS")}
    command = [sys.executable, "manage.py", *arguments]
    return subprocess.run(command, cwd=ROOT, env=clean | {"ENGINE_POOL": "cpu"} | env, capture_output=True, text=True, timeout=60)


def test_commands_find_the_embedded_redis_of_a_running_playground(synthetic: Product):
    code = "from playground import streams; print(len(streams.workers()), 'worker')"
    done = manage("shell", "--no-imports", "-c", code, DATA_DIR=str(synthetic.folder))
    assert (done.returncode, done.stdout.strip()) == (0, "1 worker"), done
    assert (synthetic.folder / "redis" / "url").stat().st_mode & 0o077 == 0, "it holds the password"


def test_commands_say_what_they_miss_in_one_line(tmp_path):
    nobody = {"DATA_DIR": str(tmp_path), "REDIS_URL": f"redis://:secret@127.0.0.1:{free_port()}/0"}
    done = manage("shell", "--no-imports", "-c", "from playground import streams; streams.workers()", **nobody)
    assert done.returncode == 1 and len(done.stderr.strip().splitlines()) == 1, done.stderr
    assert "does not answer. Start the playground (make run), or set REDIS_URL" in done.stderr and "secret" not in done.stderr
    done = manage("rollup_usage", DATA_DIR=str(tmp_path))
    assert done.returncode == 1 and "has no tables yet. Start the playground once (make run)" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    done = manage("rollup_usage", DATA_DIR=str(tmp_path), LOG_LEVEL="LOUD")
    assert done.returncode == 1 and done.stderr.startswith("error: LOG_LEVEL: ") and len(done.stderr.splitlines()) == 1


def refusal(folder: Path, **env: str) -> str:
    """The one line with which it refuses to start."""
    command = [sys.executable, "-m", "playground.supervisor"]
    env = os.environ | {"DATA_DIR": str(folder), "REDIS_URL": "", "ENGINE_POOL": "cpu"} | env
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1, done
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1, done.stderr
    return lines[0]


def test_a_taken_port_is_named_when_asked_for_and_passed_over_otherwise(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert refusal(tmp_path, PORT=str(port)).startswith(f"error: Port {port} is taken.")
    first = supervisor.listen("127.0.0.1", None)
    second = supervisor.listen("127.0.0.1", None)
    assert second.getsockname()[1] > first.getsockname()[1] >= supervisor.FIRST_PORT
    first.close(), second.close()


def test_a_second_playground_on_the_same_data_is_refused(tmp_path):
    with supervisor.lock(tmp_path):
        assert "already runs" in refusal(tmp_path)


def test_a_missing_or_broken_model_is_one_line(tmp_path):
    assert "no-such-model" in refusal(tmp_path, MODELS="no-such-model")
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF" + bytes(100))
    assert "broken.gguf" in refusal(tmp_path, MODELS=str(broken))


def test_a_database_that_does_not_answer_is_one_line(tmp_path):
    assert "database" in refusal(tmp_path, DATABASE_URL="sqlite:////nowhere/x.sqlite3")


def test_a_setting_of_the_wrong_kind_is_one_line(tmp_path):
    assert refusal(tmp_path, PORT="http").startswith("error: PORT: Input should be a valid integer")
    assert refusal(tmp_path, PORT="99999") == "error: PORT: Input should be less than or equal to 65535; got '99999'."
    for name, wrong in (
        ("LOG_LEVEL", "LOUD"),
        ("REDIS_URL", "foo"),
        ("DATABASE_URL", "foo"),
        ("CONTEXT_TOKENS", "-5"),
        ("CORS_ORIGINS", "a.b"),
    ):
        assert refusal(tmp_path, **{name: wrong}).startswith(f"error: {name}: ")


def test_progress_never_goes_back(capsys):
    progress = supervisor.Progress()
    for fraction, detail in (
        (0.0, "Starting"),
        (0.5, "Layer 2 of 4"),
        (0.55, "Layer 3 of 4"),
        (1.0, "Weights loaded"),
        (0.0, "Warming up"),
    ):
        progress.show(fraction, detail)
    assert capsys.readouterr().out == "    0%  Starting\n   50%  Layer 2 of 4\n  100%  Weights loaded\n"


def test_a_full_disk_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setattr(supervisor.shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10**9, 10**9, 5_000_000))
    with pytest.raises(supervisor.CannotStart, match="has 5 MB free; 200 MB are needed"):
        supervisor.check_disk(tmp_path)


def test_a_python_too_old_is_one_line(tmp_path):
    shutil.copy(ROOT / "Makefile", tmp_path)
    old = tmp_path / "python3.9"
    old.write_text("#!/bin/sh\n[ \"$1\" = --version ] && echo 'Python 3.9.2' && exit 0\nexit 1\n")
    old.chmod(0o755)
    done = subprocess.run(["make", "run", f"PYTHON={old}"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode != 0
    assert "error: Python 3.11 or newer is needed; Python 3.9.2 was found." in done.stderr
