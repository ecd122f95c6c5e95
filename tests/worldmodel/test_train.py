"""Training: a step is a function of (weights, optimizer, step) alone, whatever stops, kills or splits the run."""

import json
import math
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from accelerate.state import AcceleratorState
from tiny import FROM_CLEAN, TinyData, close, in_processes, same_training, tensors_in, tiny_run

from worldmodel import checkpoint
from worldmodel import train as training
from worldmodel.errors import UserError
from worldmodel.generate import Diverged
from worldmodel.memory import LactConfig, SlowFastConfig, WindowConfig
from worldmodel.models.autoencoder import AutoencoderConfig
from worldmodel.models.dit import DiTConfig
from worldmodel.models.fast_layer import FastConfig
from worldmodel.models.lora import LoraConfig
from worldmodel.models.tokenizer_folder import load_tokenizer
from worldmodel.models.world import StreamConfig, WorldModel
from worldmodel.objectives.flow_matching import FlowMatching, FlowMatchingObjective
from worldmodel.objectives.frechet_forcing import FrechetForcing
from worldmodel.objectives.own_rollouts import OwnRollouts
from worldmodel.objectives.reconstruction import Reconstruction
from worldmodel.optim import AdamW, Muon, Schedule
from worldmodel.rollout import join, replay, rollout, start
from worldmodel.sampler import Euler
from worldmodel.train import train

ROOT = Path(__file__).parents[2]
PIXELS = {
    "data": {"pixels": True, "length": 2},
    "model": AutoencoderConfig(channels=2, widths=(4,), blocks=(1,)),
    "objective": Reconstruction(),
}
STYLES = {
    "adamw": {},
    "muon": {"optimizer": Muon(lr=1e-2)},
    "muon without averages": {"optimizer": Muon(lr=1e-2), "ema": 0.0},
    "micro-batches": {"micro": 2, "optimizer": Muon(lr=1e-2)},
    "curriculum": {"data": {"curriculum": ((3, 4), (6, 6)), "length": 8}},
    "independent": {"objective": FlowMatching(chunk_noise="independent", drop=0.5)},
    "monotone": {"objective": FlowMatching(chunk_noise="monotone"), "schedule": Schedule(shape="constant")},
    "nothing held out": {"validate": 0},
    "autoencoder": PIXELS,
}


def halves(out, data=None, stop_at=4, **changes):
    """A run of 8 steps that is stopped by SIGTERM after the step `stop_at` and started again."""
    data = data or {}
    first = train(tiny_run(out, {**data, "stop_at": stop_at}, **changes))
    stopped = checkpoint.read_state(checkpoint.steps(out)[-1])["step"]
    assert stopped == stop_at + 1 or ("pixels" in data and 0 < stopped <= stop_at)  # its statistics read ahead
    assert "validation/loss" in first or changes.get("validate") == 0
    return train(tiny_run(out, data, **changes))


@pytest.mark.parametrize("style", STYLES)
def test_stopped_and_resumed_is_the_same_run(style, tmp_path):
    """Bit for bit: weights, averages, optimizer, metrics."""
    whole = train(tiny_run(tmp_path / "whole", **STYLES[style]))
    assert halves(tmp_path / "halves", **STYLES[style]) == whole
    assert same_training(tmp_path / "whole", tmp_path / "halves")
    assert all(math.isfinite(value) for value in whole.values())


def test_another_step_is_another_run(tmp_path):
    """The comparison above can fail: one step more or another seed changes the bits."""
    train(tiny_run(tmp_path / "a"))
    train(tiny_run(tmp_path / "b", seed=1))
    assert not same_training(tmp_path / "a", tmp_path / "b")
    ends = [train(tiny_run(tmp_path / str(lr), optimizer=AdamW(lr=lr)))["model/loss"] for lr in (1e-2, 1.1e-2)]
    assert ends[0] != ends[1]


def test_a_finished_run_stays_finished(tmp_path):
    done = train(tiny_run(tmp_path / "run"))
    before = {p: p.stat().st_mtime_ns for p in (tmp_path / "run" / "checkpoints").rglob("*")}
    assert train(tiny_run(tmp_path / "run")) == done
    assert {p: p.stat().st_mtime_ns for p in (tmp_path / "run" / "checkpoints").rglob("*")} == before
    further = train(tiny_run(tmp_path / "run", steps=10))
    assert checkpoint.steps(tmp_path / "run")[-1].name == "step_00000010" and further != done


def test_fewer_steps_than_done_are_said(tmp_path, capsys):
    train(tiny_run(tmp_path / "run", steps=3))
    capsys.readouterr()
    train(tiny_run(tmp_path / "run", steps=2))
    assert "run is at step 3 already, steps is 2: nothing to do" in capsys.readouterr().err
    assert checkpoint.steps(tmp_path / "run")[-1].name == "step_00000003"


def test_a_model_that_cannot_be_written_names_the_checkpoint(tmp_path, monkeypatch):
    train(tiny_run(tmp_path / "run", steps=3))
    before = WorldModel.load(tmp_path / "run" / "model")
    monkeypatch.setattr(WorldModel, "_write", lambda *a: (_ for _ in ()).throw(OSError(28, "No space left")))
    with pytest.raises(
        UserError, match=r"run/model: could not be written \(No space left\); the last good .*step_00000003"
    ):
        train(tiny_run(tmp_path / "run", steps=5))
    after = WorldModel.load(tmp_path / "run" / "model")
    assert after.card == before.card and after.card["step"] == 3


def test_a_sample_that_diverges_does_not_end_the_training(tmp_path, monkeypatch, capsys):
    def look(*args):
        raise Diverged("the latents are not finite from frame 4 on")

    monkeypatch.setattr("worldmodel.artifact.Template.look", look)
    train(tiny_run(tmp_path / "run", steps=4, sample_every=2))
    assert "step 2: no sample, the latents are not finite from frame 4 on" in capsys.readouterr().err
    assert checkpoint.steps(tmp_path / "run")[-1].name == "step_00000004"


def test_micro_batches_are_one_batch(tmp_path):
    one = train(tiny_run(tmp_path / "one"))
    for micro in (2, 4):
        many = train(tiny_run(tmp_path / f"m{micro}", micro=micro))
        assert one == pytest.approx(many, abs=1e-6, rel=1e-6)
        a, b = tensors_in(tmp_path / "one"), tensors_in(tmp_path / f"m{micro}")
        for name in (n for n in a if n.startswith(("model.safetensors", "model.ema"))):
            close(b[name], a[name], 1e-5)


def test_what_a_step_does(tmp_path, monkeypatch):
    """One AdamW step from known weights, in closed form: schedule, clipping, mean over the batch, no decay of 1-D."""
    gradients = []

    def clip(self, parameters, limit):
        parameters = list(parameters)
        gradients.append([p.grad.clone() for p in parameters])
        return torch.nn.utils.clip_grad_norm_(parameters, limit)

    monkeypatch.setattr("accelerate.Accelerator.clip_grad_norm_", clip)
    lr, decay = 1e-2, 0.1
    run = tiny_run(tmp_path / "run", steps=1, optimizer=AdamW(lr=lr, weight_decay=decay), clip_grad=0.01, ema=0.5)
    metrics = train(run)
    torch.manual_seed(run.seed)
    model = run.model.build()
    objective = run.objective.build(model, run.model, run.seed)
    (clips,) = next(run.data.batches(0, 0, 1, 1))
    loss = objective.loss(clips)
    loss.backward()
    norm = torch.stack([p.grad.norm() for p in model.parameters()]).norm()
    assert metrics["model/loss"] == pytest.approx(loss.item(), rel=1e-6)
    assert metrics["model/grad_norm"] == pytest.approx(norm.item(), rel=1e-5)
    assert norm > 0.01  # so that clipping does something
    rate = lr / 3  # the first of three warm-up steps
    assert metrics["model/learning_rate"] == pytest.approx(rate)
    after = tensors_in(tmp_path / "run")
    for (name, p), grad in zip(model.named_parameters(), gradients[0], strict=True):
        close(grad, p.grad, 1e-6)
        assert p.grad is not None
        g = p.grad * 0.01 / norm
        step = rate * g / (g.abs() + 1e-8)  # Adam's first step
        expected = p.detach() * (1 - rate * decay * (p.ndim >= 2)) - step
        moved = g.abs() > 1e-6  # where rounding cannot turn the sign
        close(torch.where(moved, after[f"model.safetensors/{name}"], 0), torch.where(moved, expected, 0), 1e-6)
        mean = 0.1 * p.detach() + 0.9 * after[f"model.safetensors/{name}"]  # warm-up decay 1 / 10
        close(after[f"model.ema.safetensors/{name}"], mean, 1e-6)


def test_learning_rate_follows_the_schedule(tmp_path, monkeypatch):
    rates, step = [], torch.optim.AdamW.step
    monkeypatch.setattr(
        torch.optim.AdamW, "step", lambda self, *a: rates.append([g["lr"] for g in self.param_groups]) or step(self, *a)
    )
    run = tiny_run(tmp_path / "run", schedule=Schedule(warmup=2, floor=0.1), optimizer=AdamW(lr=3e-3))
    halves(tmp_path / "run", schedule=run.schedule, optimizer=run.optimizer, stop_at=5)
    used = [r for r in rates if r[0] > 0]  # reading an optimizer state makes one step at rate 0
    assert [r[0] for r in used] == pytest.approx([3e-3 * run.schedule(s, 8) for s in range(8)], rel=1e-12)
    assert all(len(set(r)) == 1 for r in used)


def test_validation_uses_the_averaged_weights(tmp_path):
    run = tiny_run(tmp_path / "run")
    metrics = train(run)
    stored = tensors_in(tmp_path / "run")
    for kind, equal in (("model.ema", True), ("model", False)):
        model = run.model.build()
        prefix = f"{kind}.safetensors/"
        names = {n: stored[prefix + n] for n, _ in model.named_parameters()}
        model.load_state_dict(names)
        objective = run.objective.build(model, run.model, run.seed)
        losses = [float(objective.validate(clip)["loss"]) for clip in run.data.validation_batches(run.validate)]
        assert (metrics["validation/loss"] == pytest.approx(np.mean(losses), rel=1e-6)) == equal
    made = WorldModel.load(tmp_path / "run" / "model")
    for name, p in made.dit.named_parameters():
        assert torch.equal(p, stored[f"model.ema.safetensors/{name}"])
    assert made.card["weights"] == "averaged" and made.card["step"] == 8
    assert made.actions == run.data.action_spec and made.fps == 10.0


def test_validation_is_the_same_for_every_noise(tmp_path):
    """It compares runs: the same teacher-forced loss whatever the training noise."""
    run = tiny_run(tmp_path / "run")
    model = run.model.build()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.1)
    clip = next(run.data.validation_batches(1))
    kinds = [FlowMatching(), FlowMatching(chunk_noise="independent", drop=0.9), FlowMatching(context_noise=0.9)]
    losses = {float(kind.build(model, run.model, 0).validate(clip)["loss"]) for kind in kinds}
    assert len(losses) == 1


def test_the_last_two_and_the_best_are_kept(tmp_path, monkeypatch):
    """Steps 3, 6, 9, 12 are validated, even steps are saved; a new best is always saved."""
    losses = iter([5.0, 2.0, 1.0, 3.0, 4.0])
    monkeypatch.setattr(training, "validate", lambda *args: {"validation/loss": next(losses)})
    train(tiny_run(tmp_path / "run", steps=14, save_every=2, validate_every=3))
    assert [p.name for p in checkpoint.steps(tmp_path / "run")] == [f"step_{n:08d}" for n in (9, 12, 14)]
    assert checkpoint.read_state(checkpoint.steps(tmp_path / "run")[-1])["best"] == [1.0, 9]


def test_samples_and_logs(tmp_path):
    train(tiny_run(tmp_path / "run", sample_every=5))
    videos = sorted(p.name for p in (tmp_path / "run" / "samples").iterdir())
    assert videos == ["step_00000005.mp4", "step_00000008.mp4"]
    assert any((tmp_path / "run" / "tensorboard").rglob("events*"))
    train(tiny_run(tmp_path / "ae" / "run", **PIXELS))
    assert load_tokenizer(tmp_path / "ae" / "run" / "model").channels == 2


# -- killed ------------------------------------------------------------------------------------------------------------


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


@pytest.mark.parametrize(
    ("data", "changes", "message"),
    [
        (
            {"held_out": ("0/1",)},
            {},
            r"data\.split\.validation was \['0/3'\], this run's is \['0/1'\]; choose another out",
        ),
        ({"low": -3.0}, {}, r"data\.action_spec\.low was \[-2\.0, -2\.0, -2\.0\], this run's is \[-3\.0"),
        ({"batch": 8}, {}, "data.batch was 4, this run's is 8;"),
        ({"length": 8}, {}, "data.length was 6, this run's is 8;"),
        ({"curriculum": ((1, 4),)}, {}, r"data\.curriculum was \[\], this run's is \[\[1, 4\]\];"),
        ({}, {"seed": 1}, "seed was 0, this run's is 1;"),
        ({}, {"micro": 2}, "micro was 1, this run's is 2;"),
        (
            {},
            {"model": DiTConfig(channels=2, size=(4, 6), chunk=2, dim=16, heads=1, actions=3)},
            "model.depth was 1, thi",
        ),
        ({}, {"ema": 0.5}, "ema was 0.9, this run's is 0.5;"),
        ({}, {"ema": 0.0}, "ema was 0.9, this run's is 0.0;"),
        ({}, {"precision": "bf16"}, "precision was fp32, this run's is bf16;"),
        ({}, {"clip_grad": 0.5}, "clip_grad was 1.0, this run's is 0.5;"),
        ({}, {"clip_grad": math.inf}, "clip_grad was 1.0, this run's is inf;"),
        ({"weights": (1.0, 2.0)}, {}, r"data\.weights was \[\], this run's is \[1\.0, 2\.0\];"),
        ({}, {"objective": FlowMatching(context_noise=0.3)}, r"objective\.context_noise was 0\.2, this run's is 0\.3;"),
        ({}, {"optimizer": Muon()}, r"optimizer\.type was AdamW, this run's is Muon;"),
    ],
    ids=lambda value: value[:20] if isinstance(value, str) else "",
)
def test_another_run_does_not_resume(data, changes, message, tmp_path):
    train(tiny_run(tmp_path / "run", steps=2, validate=0))
    before = tensors_in(tmp_path / "run")
    AcceleratorState._reset_state()  # accelerate keeps one precision per process
    with pytest.raises(UserError, match=message) as error:
        train(tiny_run(tmp_path / "run", data, **changes))
    AcceleratorState._reset_state()
    assert "step_00000002/state.json: " in str(error.value) and "\n" not in str(error.value)
    after = tensors_in(tmp_path / "run")
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_the_stream_is_part_of_what_rolls_out(tmp_path):
    """An objective that trains on rollouts makes them with it, and a memory shorter than the clips limits what chunks
    see; else it is how the model is deployed, and may change."""
    streams = {ring: StreamConfig(memory=WindowConfig(ring=ring), sampler=Euler(steps=1)) for ring in (4, 6, 8)}
    forcing = FrechetForcing(rollouts=OwnRollouts(lengths=((0, 1),)), context=0.0, reality=0.0, anchor=1.0)

    def go(name, steps, objective, ring):
        train(tiny_run(tmp_path / name, {"length": 8}, steps=steps, objective=objective, stream=streams[ring]))

    go("plain", 1, FlowMatching(), 6)
    go("plain", 2, FlowMatching(), 8)
    assert WorldModel.load(tmp_path / "plain" / "model").stream == streams[8]
    for name, objective in (("short", FlowMatching()), ("rolls", forcing)):
        go(name, 1, objective, 4)
        found = r"\.ring was 4, this run's is 6" if name == "rolls" else r" was WindowConfig, this run's is one that"
        with pytest.raises(UserError, match=rf"stream\.memory{found}.*; choose another out folder"):
            go(name, 2, objective, 6)
        go(name, 2, objective, 4)


@pytest.mark.parametrize("memory", [SlowFastConfig(sink=0, slow=2, fast=2, every=2), LactConfig(ring=2)], ids=str)
def test_a_memory_is_trained_and_deployed(memory, tmp_path):
    """On clips longer than it, stopped and resumed to the same bits; the world that is saved streams with it."""
    fast = FastConfig(groups=1, momentum=True) if isinstance(memory, LactConfig) else None
    model = replace(tiny_run(tmp_path / "whole").model, fast=fast)
    changes = {"model": model, "stream": StreamConfig(memory=memory, sampler=Euler(steps=1)), "steps": 4}
    changes |= {"objective": FlowMatching(drift=0.5, errors=16)}
    train(tiny_run(tmp_path / "whole", {"length": 12}, **changes))
    train(tiny_run(tmp_path / "run", {"length": 12, "stop_at": 2}, **changes))
    train(tiny_run(tmp_path / "run", {"length": 12}, **changes))
    assert same_training(tmp_path / "whole", tmp_path / "run")
    world = WorldModel.find(tmp_path / "run")
    assert world.stream.memory == memory and world.dit.cfg.fast == fast
    clip = next(TinyData(folder=tmp_path, length=12).batches(0, 0, 1, 1))[0]
    state = start(world.dit, memory, torch.arange(4), clip.frames(0, 2))
    with torch.no_grad():
        made = join(rollout(world.dit, replay(clip.control.frames(2, 12), 2), world.stream.sampler, state))
    assert made.shape[1] == 10 and made.isfinite().all()


def test_adapters_go_on_upon_the_same_weights(tmp_path):
    """Wherever they lie; where all weights are trained, `init` is but a start and may be another one."""
    for seed in (0, 1):
        train(tiny_run(tmp_path / f"base{seed}", seed=seed, steps=3, ema=0.0))
    adapted = {"lora": LoraConfig(rank=2), "init": str(tmp_path / "base0")}
    whole = train(tiny_run(tmp_path / "whole", **adapted))
    train(tiny_run(tmp_path / "run", {"stop_at": 3}, **adapted))
    other = adapted | {"init": str(tmp_path / "base1")}
    before = tensors_in(tmp_path / "run")
    with pytest.raises(
        UserError, match=r"state\.json: init was .*/base0 \(frozen weights [0-9a-f]{8}\), this"
    ) as error:
        train(tiny_run(tmp_path / "run", **other))
    assert re.search(r"this run's is \S*/base1 \(frozen weights [0-9a-f]{8}\); choose another", str(error.value))
    assert all(torch.equal(before[name], tensor) for name, tensor in tensors_in(tmp_path / "run").items())
    shutil.copytree(tmp_path / "base0" / "model", tmp_path / "moved")
    assert train(tiny_run(tmp_path / "run", **adapted | {"init": str(tmp_path / "moved")})) == whole
    assert same_training(tmp_path / "whole", tmp_path / "run")

    whole = train(tiny_run(tmp_path / "all", init=str(tmp_path / "base0")))
    train(tiny_run(tmp_path / "part", {"stop_at": 3}, init=str(tmp_path / "base0")))
    assert train(tiny_run(tmp_path / "part", init=str(tmp_path / "base1"))) == whole


def test_a_checkpoint_names_its_run(tmp_path):
    train(tiny_run(tmp_path / "run", steps=2, validate=0))
    state = checkpoint.steps(tmp_path / "run")[-1] / "state.json"
    whole = json.loads(state.read_text())
    for name in (None, "model", "seed", "data.split", "micro", "objective", "lora"):
        run = {key: value for key, value in whole["run"].items() if name not in (None, key)}
        state.write_text(json.dumps(whole | {"run": run}))
        with pytest.raises(UserError, match=rf"state\.json: key 'run' does not hold '{name or 'model'}'"):
            train(tiny_run(tmp_path / "run", steps=3))
    state.write_text(json.dumps(whole | {"objective": {"step": "a"}}))
    with pytest.raises(UserError, match=r"state\.json: key 'objective' holds \['step'\], this .* is \[\]"):
        train(tiny_run(tmp_path / "run", steps=3))


def test_what_may_change_on_resume(tmp_path):
    """How far and how fast, and what is written meanwhile; a checkpoint of format 1 knew four of the names."""
    train(tiny_run(tmp_path / "run", steps=2, validate=0))
    rates = {"optimizer": AdamW(lr=1e-3), "schedule": Schedule(warmup=1, floor=0.1)}
    train(tiny_run(tmp_path / "run", steps=3, validate=0, checkpointing=True, log_every=2, save_every=1, **rates))
    state = checkpoint.steps(tmp_path / "run")[-1] / "state.json"
    data = json.loads(state.read_text())
    del data["run"]["objective"]["std"]  # of a version without that field, whose default it is
    state.write_text(json.dumps(data))
    train(tiny_run(tmp_path / "run", steps=4))
    state = checkpoint.steps(tmp_path / "run")[-1] / "state.json"
    data = json.loads(state.read_text())
    run = data.pop("run")
    names = {"model": run["model"], "actions": run["data.action_spec"], "split": run["data.split"], "seed": run["seed"]}
    state.write_text(json.dumps({**data, **names, "format": 1}))
    with pytest.raises(UserError, match="seed was 0, this run's is 2;"):
        train(tiny_run(tmp_path / "run", steps=5, seed=2))
    train(tiny_run(tmp_path / "run", steps=5))
    assert checkpoint.read_state(checkpoint.steps(tmp_path / "run")[-1])["run"]["data.batch"] == 4
    with pytest.raises(UserError, match=r"state\.json: model: unknown key 'deep'"):
        state = checkpoint.steps(tmp_path / "run")[-1] / "state.json"
        data = json.loads(state.read_text())
        data["run"]["model"]["deep"] = 3
        state.write_text(json.dumps(data))
        train(tiny_run(tmp_path / "run", steps=6))


def test_parts_that_do_not_fit(tmp_path):
    model = {"channels": 2, "size": (4, 6), "chunk": 2, "dim": 16, "depth": 1, "heads": 1, "actions": 3}
    for changes, message in (
        ({"actions": 2}, r"model\.actions is 2, the data's actions have size 3"),
        ({"channels": 4}, r"model\.channels and model\.size are \(4, 4, 6\), the latents are \(2, 4, 6\)"),
        ({"chunk": 4}, r"clips of 6 frames do not cut into chunks of model\.chunk = 4"),
    ):
        with pytest.raises(UserError, match=message):
            train(tiny_run(tmp_path / "run", model=DiTConfig(**(model | changes))))
    short = StreamConfig(memory=WindowConfig(ring=1))
    with pytest.raises(UserError, match=r"stream\.memory: .* a ring of 1 frames does not hold one chunk of 2"):
        train(tiny_run(tmp_path / "run", stream=short))
    with pytest.raises(UserError, match="clips of 6 frames must be chunks of 2, more than the 3 that are only context"):
        train(tiny_run(tmp_path / "run", objective=FlowMatching(context=3)))
    autoencoder = AutoencoderConfig(channels=2, widths=(4,), blocks=(0,))
    with pytest.raises(UserError, match=r"learns from RGB pictures, the data's frames are \(2, 4, 6\)"):
        train(tiny_run(tmp_path / "run", model=autoencoder, objective=Reconstruction()))
    with pytest.raises(UserError, match="objective FlowMatching does not train a AutoencoderConfig"):
        train(tiny_run(tmp_path / "run", model=autoencoder))
    (tmp_path / "file").write_text("x")
    with pytest.raises(UserError, match="file/run: cannot be made"):
        train(replace(tiny_run(tmp_path / "run"), out=tmp_path / "file" / "run"))
    assert not checkpoint.steps(tmp_path / "run")


def test_tiny_data_is_a_function_of_the_step(tmp_path):
    """What the tests above stand on: the same clips for any start, number of processes and micro-batches."""
    data = TinyData(folder=tmp_path)
    whole = next(data.batches(5, 0, 1, 1))[0]
    later = data.batches(4, 0, 1, 1)
    next(later)
    assert torch.equal(next(later)[0].x, whole.x)
    parts = [clip for rank in range(2) for clip in next(data.batches(5, rank, 2, 2))]
    assert torch.equal(torch.cat([c.x for c in parts]), whole.x) and len(parts) == 4
