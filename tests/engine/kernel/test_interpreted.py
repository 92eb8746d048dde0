"""Runs tests/engine/kernel/interpreted in a process of its own: Triton's interpreter must be chosen before the kernel is imported."""

import os
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parent / "interpreted"


def test_the_kernel_agrees_with_the_reference_in_the_interpreter():
    environment = os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-x", "--durations=5", str(FOLDER)]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=1200)
    print(result.stdout[-6000:], result.stderr[-3000:])
    assert result.returncode == 0, result.stdout[-6000:]
    assert " passed" in result.stdout and "skipped" not in result.stdout
