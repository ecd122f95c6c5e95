"""Training: a step is a function of (weights, optimizer, step) alone, whatever stops and resumes the run."""

import math

import numpy as np
import pytest
import torch
from tiny import TinyData, close, same_training, tensors_in, tiny_run

from worldmodel import checkpoint
from worldmodel import train as training
from worldmodel.errors import UserError
from worldmodel.generate import Diverged
from worldmodel.models.autoencoder import AutoencoderConfig
from worldmodel.models.tokenizer_folder import load_tokenizer
from worldmodel.models.world import WorldModel
from worldmodel.objectives.flow_matching import FlowMatching
from worldmodel.objectives.reconstruction import Reconstruction
from worldmodel.optim import AdamW, Muon, Schedule
from worldmodel.train import train

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


def test_a_refused_run_leaves_nothing_behind_that_looks_like_a_run(tmp_path):
    with pytest.raises(UserError, match="nowhere"):
        train(tiny_run(tmp_path / "run", init=tmp_path / "nowhere"))
    assert [path.name for path in (tmp_path / "run").iterdir()] == [".lock"]


# -- killed ------------------------------------------------------------------------------------------------------------


def test_tiny_data_is_a_function_of_the_step(tmp_path):
    """What the tests above stand on: the same clips for any start, number of processes and micro-batches."""
    data = TinyData(folder=tmp_path)
    whole = next(data.batches(5, 0, 1, 1))[0]
    later = data.batches(4, 0, 1, 1)
    next(later)
    assert torch.equal(next(later)[0].x, whole.x)
    parts = [clip for rank in range(2) for clip in next(data.batches(5, rank, 2, 2))]
    assert torch.equal(torch.cat([c.x for c in parts]), whole.x) and len(parts) == 4
