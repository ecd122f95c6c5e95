"""The quickstart runs from nothing to a report, as a newcomer runs it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.slow
def test_quickstart(tmp_path):
    out = tmp_path / "quickstart"
    command = [sys.executable, str(ROOT / "demos" / "quickstart.py"), str(out)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert (out / "run" / "model" / "model.safetensors").is_file()
    assert (out / "rollout.mp4").stat().st_size > 1000
    latency = json.loads((out / "latency" / "latency.json").read_text())["metrics"]
    drift = json.loads((out / "drift" / "drift.json").read_text())["metrics"]
    assert latency["frames_per_second"]["value"] > 0
    assert {"fd_first_window", "fd_last_window", "psnr_h1", "psnr_copy_h1"} <= drift.keys()
