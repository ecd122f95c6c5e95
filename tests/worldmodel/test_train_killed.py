"""A training that is killed at any moment goes on as if nothing had been."""

import json
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tiny import in_processes, same_training, tiny_run

from worldmodel import checkpoint
from worldmodel.errors import UserError
from worldmodel.models.world import WorldModel
from worldmodel.optim import Muon
from worldmodel.train import train

ROOT = Path(__file__).parents[2]


def finish(run, to, kills, seed):
    """Start the run again and again, kill it at random moments `kills` times, then let it end: its last metrics."""
    rng, hit = random.Random(seed), 0
    for _ in range(kills):
        (to / "started").unlink(missing_ok=True)
        (process,) = in_processes(run, to)
        while not (to / "started").exists():
            time.sleep(0.01)
        process.join(rng.uniform(0.1, 0.6))
        process.kill()
        process.join()
        hit += process.exitcode == -signal.SIGKILL
    assert hit >= kills / 2  # they fell while it ran
    (process,) = in_processes(run, to)
    process.join()
    assert process.exitcode == 0 and not (to / "error.txt").exists()
    return json.loads((to / "0.json").read_text())["final"]


def check_killed(tmp_path, kills, seed, steps, **changes):
    """Steps of at least 20 ms, saved every 3."""
    runs = (
        tiny_run(tmp_path / name, {"pause": 0.02}, steps=steps, save_every=3, validate_every=7, **changes)
        for name in ("whole", "killed")
    )
    whole = train(next(runs))
    final = finish(next(runs), tmp_path / "record", kills, seed)
    assert final.keys() == whole.keys()
    assert final == pytest.approx(whole, abs=1e-6, rel=1e-6)
    assert same_training(tmp_path / "whole", tmp_path / "killed")
    assert not list((tmp_path / "killed" / "checkpoints").glob(".*"))
    WorldModel.load(tmp_path / "killed" / "model")


def test_killed_at_random_moments(tmp_path):
    check_killed(tmp_path, kills=2, seed=0, steps=30)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 5))
def test_killed_often(seed, tmp_path):
    check_killed(tmp_path, kills=8, seed=seed, steps=150, optimizer=Muon(lr=1e-2), micro=2)


@pytest.mark.parametrize("moment", ["first file", "before the rename", "after the rename", "while the old one goes"])
def test_killed_while_saving(moment, tmp_path, monkeypatch):
    """At every stage of a save there is a whole checkpoint to go on from, and nothing half written stays."""

    class Killed(BaseException):
        pass

    whole = train(tiny_run(tmp_path / "whole"))
    where = {
        "first file": (checkpoint, "write_json"),
        "before the rename": (checkpoint, "sync"),
        "after the rename": (checkpoint, "steps"),
        "while the old one goes": (shutil, "rmtree"),
    }[moment]
    original, calls = getattr(*where), []

    def stage(*args, **named):
        calls.append(args)
        saving = checkpoint.steps if moment != "after the rename" else original
        if len(saving(tmp_path / "run")) >= (3 if moment == "while the old one goes" else 2):
            if moment == "while the old one goes":
                next(args[0].glob("model.safetensors")).unlink()
            raise Killed
        return original(*args, **named)

    monkeypatch.setattr(*where, stage)
    with pytest.raises(Killed):
        train(tiny_run(tmp_path / "run"))
    monkeypatch.undo()
    assert train(tiny_run(tmp_path / "run")) == whole
    assert same_training(tmp_path / "whole", tmp_path / "run")
    assert not list((tmp_path / "run").rglob(".*.partial"))


def test_killed_before_the_first_checkpoint(tmp_path):
    whole = train(tiny_run(tmp_path / "whole"))
    (process,) = in_processes(tiny_run(tmp_path / "run", {"die_at": 2}), tmp_path / "record")
    process.join()
    assert process.exitcode == -signal.SIGKILL and not checkpoint.steps(tmp_path / "run")
    assert train(tiny_run(tmp_path / "run")) == whole


# -- several processes -------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_sigterm_on_the_command_line(tmp_path):
    """It saves and exits 0, and the same command goes on to the end of the same run."""
    config = tmp_path / "config.py"
    config.write_text(
        f"import sys; from pathlib import Path; sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        "from tiny import tiny_run\n"
        f"def run(): return tiny_run(Path({str(tmp_path)!r}) / 'run', {{'pause': 0.02}}, steps=120, save_every=1000)\n"
    )
    command = [sys.executable, "-m", "worldmodel", "train", str(config)]
    whole = train(tiny_run(tmp_path / "whole", steps=120, save_every=1000))
    process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)
    while "step 4/" not in process.stderr.readline():  # its first validation
        assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=600)
    assert process.returncode == 0, said
    assert "saved; the same command continues" in said and checkpoint.steps(tmp_path / "run")[-1].name < "step_00000120"
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert same_training(tmp_path / "whole", tmp_path / "run")
    assert f"validation/loss {whole['validation/loss']:.5f}" in done.stdout


def test_signals_are_given_back(tmp_path):
    before = [signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT)]
    train(tiny_run(tmp_path / "run", {"stop_at": 1}))
    with pytest.raises(UserError, match="loss is nan"):
        train(tiny_run(tmp_path / "run", {"nan_at": 3}))
    assert [signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT)] == before
