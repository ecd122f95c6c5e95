"""A training over several processes is the one of a single process."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tiny import close, in_processes, tensors_in, tiny_run

from worldmodel import checkpoint
from worldmodel.models.world import WorldModel
from worldmodel.optim import Muon
from worldmodel.train import train

ROOT = Path(__file__).parents[2]


def records(to):
    return [json.loads(p.read_text()) for p in sorted(to.glob("*.json"))]


def together(run, to, count):
    processes = in_processes(run, to, count)
    for process in processes:
        process.join()
    assert [p.exitcode for p in processes] == [0] * count, (to / "error.txt").read_text()
    return records(to)


def check_split(one, two, one_at, two_at, count):
    """The first step's gradients to 1e-5 relative, every loss to 1e-4, the number of processes exactly."""
    assert [r["world"] for r in two] == [[count]] * count and one[0]["world"] == [1]
    for rank in range(count):
        expected, found = (
            checkpoint.read_tensors(at / f"gradients{i}.safetensors") for at, i in ((one_at, 0), (two_at, rank))
        )
        assert expected.keys() == found.keys()
        for name, grad in expected.items():
            assert (found[name] - grad).norm() <= 1e-5 * grad.norm() + 1e-9, name
    assert len(one[0]["steps"]) == 20
    for step in range(20):
        for r in two:
            assert r["steps"][step]["loss"] == pytest.approx(one[0]["steps"][step]["loss"], abs=1e-4)
    assert all(r["final"] == two[0]["final"] for r in two)
    assert two[0]["final"] == pytest.approx(one[0]["final"], abs=1e-4)


def test_two_processes_are_one(tmp_path):
    """With averages, Muon and micro-batches; what two processes saved, one can finish, and the other way round."""
    changes = {"steps": 20, "save_every": 8, "optimizer": Muon(lr=1e-2), "seed": 3}
    one = together(tiny_run(tmp_path / "one", **changes), tmp_path / "r1", 1)
    two = together(tiny_run(tmp_path / "two", **changes), tmp_path / "r2", 2)
    check_split(one, two, tmp_path / "r1", tmp_path / "r2", 2)
    a, b = tensors_in(tmp_path / "one"), tensors_in(tmp_path / "two")
    assert a.keys() == b.keys()
    for name, tensor in a.items():
        close(b[name], tensor, 1e-4)
    WorldModel.load(tmp_path / "two" / "model")
    newest = checkpoint.steps(tmp_path / "two")[-1]
    shutil.rmtree(newest)
    shutil.copytree(tmp_path / "two", tmp_path / "half")
    again = together(tiny_run(tmp_path / "two", **changes), tmp_path / "r3", 2)
    assert again[0]["final"] == two[0]["final"] and len(again[0]["steps"]) == 4
    alone = train(tiny_run(tmp_path / "half", **changes))
    assert alone == pytest.approx(two[0]["final"], abs=1e-4)


@pytest.mark.slow
def test_torchrun(tmp_path):
    """The way that people start it."""
    runner = tmp_path / "runner.py"
    runner.write_text(
        f"import sys; from pathlib import Path; sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        "from tiny import record, tiny_run\n"
        f"here = Path({str(tmp_path)!r})\n"
        "record(tiny_run(here / sys.argv[1], steps=20), here / f'r{sys.argv[1]}')\n"
    )
    tiny_run(tmp_path / "x")  # writes the tokenizer once
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    for count in (1, 2):
        command = [*launch, "--nproc_per_node", str(count), str(runner), str(count)]
        done = subprocess.run(command, cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True)
        assert done.returncode == 0, done.stderr.decode()
    check_split(records(tmp_path / "r1"), records(tmp_path / "r2"), tmp_path / "r1", tmp_path / "r2", 2)


# -- what goes wrong ---------------------------------------------------------------------------------------------------
