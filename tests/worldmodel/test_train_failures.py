"""A training that cannot go on ends with one line of advice, and the last good checkpoint stays."""

import math
import re
import resource
import shutil
import signal
import subprocess
from dataclasses import replace

import pytest
import torch
from tiny import FROM_CLEAN, same_training, tiny_run

from worldmodel import checkpoint
from worldmodel import train as training
from worldmodel.errors import Diverged, UserError
from worldmodel.models.world import WorldModel
from worldmodel.objectives.flow_matching import FlowMatchingObjective
from worldmodel.train import train


def test_nan_ends_with_advice(tmp_path):
    whole = train(tiny_run(tmp_path / "whole"))
    with pytest.raises(UserError) as error:
        train(tiny_run(tmp_path / "run", {"nan_at": 6}))
    said = str(error.value)
    assert "the loss is nan" in said and "at step 6" in said and "lower the learning rate (now 0.01)" in said
    assert said.endswith(f"the last good checkpoint is {tmp_path}/run/checkpoints/step_00000006") and "\n" not in said
    assert train(tiny_run(tmp_path / "run")) == whole  # the checkpoint is whole
    with pytest.raises(UserError, match="no checkpoint was written yet"):
        train(tiny_run(tmp_path / "early", {"nan_at": 0}))


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_validation_that_is_not_finite_ends_with_the_same_advice(value, tmp_path, monkeypatch):
    """Nothing is written of that step, and the run can go on from the one before."""
    whole = train(tiny_run(tmp_path / "whole"))
    original, seen = training.validate, []

    def validate(*args):
        seen.append(original(*args))
        return seen[-1] | ({"validation/more": value} if len(seen) == 2 else {})

    monkeypatch.setattr(training, "validate", validate)
    advice = (
        rf"the validation/more is {value} at step 8: lower the learning rate \(now 0\.01\), or clip_grad .*0000006$"
    )
    with pytest.raises(UserError, match=advice):
        train(tiny_run(tmp_path / "run"))
    files = [*(tmp_path / "run").rglob("*.json")]
    assert len(files) >= 3 and not any(re.search("NaN|Infinity", file.read_text()) for file in files)
    assert WorldModel.load(tmp_path / "run" / "model").card["step"] == 6
    monkeypatch.undo()
    assert train(tiny_run(tmp_path / "run")) == whole


def test_an_objective_that_gives_up_says_where_to_go_on_from(tmp_path, monkeypatch):
    original, calls = FlowMatchingObjective.updates, []

    def updates(self, clips):
        calls.append(clips)
        if len(calls) == 5:
            raise Diverged("4 steps in a row were skipped")
        return original(self, clips)

    monkeypatch.setattr(FlowMatchingObjective, "updates", updates)
    with pytest.raises(UserError, match=r"^4 steps .* skipped; the last good checkpoint is .*/step_00000004$"):
        train(tiny_run(tmp_path / "run", save_every=2))


def test_a_metric_that_is_not_finite_ends_with_the_same_advice(tmp_path, monkeypatch):
    original = FlowMatchingObjective.updates

    def updates(self, clips):
        for update in original(self, clips):
            yield replace(update, metrics={"distance": torch.tensor(torch.inf)})

    monkeypatch.setattr(FlowMatchingObjective, "updates", updates)
    with pytest.raises(UserError, match=r"the distance is inf at step 0: lower .*; no checkpoint was written yet"):
        train(tiny_run(tmp_path / "run"))


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
        RuntimeError("[enforce fail at alloc_cpu.cpp:117] . DefaultCPUAllocator: can't allocate memory: you tried"),
        MemoryError("Unable to allocate 3 GiB"),
    ],
    ids=lambda e: type(e).__name__,
)
def test_out_of_memory_ends_with_advice(error, tmp_path, monkeypatch):
    original, calls = training.apply, []

    def apply(*args):
        calls.append(args)
        if len(calls) == 5:
            raise error
        return original(*args)

    monkeypatch.setattr(training, "apply", apply)
    advice = r"out of memory: turn on checkpointing \(now False\), .*, or raise micro \(now 1\) .*step_00000004"
    with pytest.raises(UserError, match=advice):
        train(tiny_run(tmp_path / "run"))
    monkeypatch.setattr(training, "apply", lambda *a: (_ for _ in ()).throw(RuntimeError("something else")))
    with pytest.raises(RuntimeError, match="something else"):
        train(tiny_run(tmp_path / "run"))


def limited(limit, run, to):
    """In a child: no file may grow beyond `limit` bytes, as on a disk that is nearly full."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    try:
        train(run)
    except UserError as error:
        with (to / "error.txt").open("w") as file:
            file.write(str(error))


def test_a_file_that_cannot_grow(tmp_path):
    """The operating system refuses to write the optimizer's file: one line, and the older checkpoint survives."""
    train(tiny_run(tmp_path / "run", {"stop_at": 2}))
    (older,) = checkpoint.steps(tmp_path / "run")
    size = (older / "model.optimizer.safetensors").stat().st_size
    assert size > max(p.stat().st_size for p in older.iterdir() if "optimizer" not in p.name)
    child = FROM_CLEAN.Process(target=limited, args=(size - 1, tiny_run(tmp_path / "run"), tmp_path))
    child.start()
    child.join()
    said = (tmp_path / "error.txt").read_text()
    assert "step_00000004: could not be written" in said and "File too large" in said and "\n" not in said
    assert said.endswith(f"the last good checkpoint is {older}")
    assert [p.name for p in (tmp_path / "run" / "checkpoints").iterdir()] == [older.name]
    assert train(tiny_run(tmp_path / "run")) == train(tiny_run(tmp_path / "whole"))


@pytest.mark.needs("mount")
def test_a_full_disk(tmp_path):
    """A real one: a file system of four megabytes."""
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(disk)], check=True)
    try:
        train(tiny_run(disk / "run", {"stop_at": 2}))
        (older,) = checkpoint.steps(disk / "run")
        filler = disk / "filler"
        filler.write_bytes(bytes(shutil.disk_usage(disk).free - 40_000))
        with pytest.raises(UserError, match=r"No space left on device.*the last good checkpoint is .*step_00000003"):
            train(tiny_run(disk / "run"))
        assert [p.name for p in (disk / "run" / "checkpoints").iterdir()] == [older.name]
        WorldModel.load(disk / "run" / "model")
        filler.unlink()
        assert train(tiny_run(disk / "run")) == train(tiny_run(tmp_path / "whole"))
        assert same_training(tmp_path / "whole", disk / "run")
    finally:
        subprocess.run(["umount", "--lazy", str(disk)], check=True)
