"""The tests in interpreted/ run Triton's kernels on CPU, in a process of their own: Triton looks for its
interpreter when a kernel is defined, and the other tests must find it without one."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent / "interpreted"


@pytest.mark.slow
@pytest.mark.needs("triton")
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", sorted(path.name for path in HERE.glob("test_*.py")))
def test_in_the_interpreter(name):
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-m", "", str(HERE / name)]
    done = subprocess.run(command, env=os.environ | {"TRITON_INTERPRET": "1"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert "passed" in done.stdout and "skipped" not in done.stdout
