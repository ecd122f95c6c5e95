"""Frechet Forcing: its terms and their gradients, its reference, what it skips, and an exact resume in the loop."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny import close, in_processes, same_training, small_clip, small_dit, tensors_in, tiny_run
from torch import Tensor

from worldmodel import checkpoint, flow, noise
from worldmodel.differentiable import Gradients
from worldmodel.errors import UserError
from worldmodel.frechet.distance import Frechet
from worldmodel.frechet.features import LatentStatistics
from worldmodel.frechet.loss import centred
from worldmodel.frechet.population import Queue
from worldmodel.memory import WindowConfig
from worldmodel.models.dit import DiT
from worldmodel.models.world import StreamConfig
from worldmodel.objectives import frechet_forcing
from worldmodel.objectives.frechet_forcing import LEVEL, NOISE, FrechetForcing, FrechetForcingObjective
from worldmodel.objectives.own_rollouts import OwnRollouts
from worldmodel.optim import AdamW
from worldmodel.run import Run
from worldmodel.sampler import Euler
from worldmodel.train import train

STREAM = StreamConfig(memory=WindowConfig(ring=4), sampler=Euler(steps=2))
STATISTICS = LatentStatistics(channels=2, height=4, width=6, patches=1)


class Pooled:
    """A cheap stand-in for an encoder behind a decoder: means of each channel's rows."""

    source = replace(STATISTICS.source, encoder="pooled", dimension=8)

    def __call__(self, latents: Tensor) -> Tensor:
        return latents.mean(-1).flatten(2)


def config(**changes) -> FrechetForcing:
    start = {
        "rollouts": OwnRollouts(lengths=((0, 3),)),
        "frechet": Frechet(mode="diagonal"),
        "population": Queue(capacity=24),
        "reference": 6,
        "encoders": ("pooled",),
        "patches": 1,
    }
    return FrechetForcing(**(start | changes))


def objective(cfg: FrechetForcing, seed: int = 0) -> tuple[DiT, FrechetForcingObjective]:
    model = small_dit(seed)
    maps = ({"context": STATISTICS} if cfg.context else {}) | ({"pooled": Pooled()} if cfg.reality else {})
    return model, FrechetForcingObjective(cfg, model, maps, STREAM, 7)


def clips(step: int, micro: int = 1):
    """Micro-batches of a step; [prefix 2 | 3 chunks | last 2 | anchored 2] are 12 frames."""
    return [replace(small_clip(small_dit(), 2, 12, seed=10 * step + i)) for i in range(micro)]


def endless(first: int = 1000):
    while True:
        yield clips(first)
        first += 1


def backward(model: DiT, o: FrechetForcingObjective, batch) -> tuple[list[Tensor], dict[str, Tensor]]:
    model.zero_grad(set_to_none=True)
    (update,) = o.updates(batch)
    losses = list(map(_backpropagated, update.losses))
    assert len(losses) == update.count and update.role == "model"
    return [p.grad.clone() if p.grad is not None else torch.zeros_like(p) for p in model.parameters()], update.metrics


def _backpropagated(loss: Tensor) -> Tensor:
    loss.backward()
    return loss.detach()


def same(found: list[Tensor], wanted: list[Tensor], tolerance: float) -> None:
    scale = max(float(w.abs().max()) for w in wanted)
    assert scale > 1e-4
    for a, b in zip(found, wanted, strict=True):
        assert float((a - b).abs().max()) <= tolerance * scale


def test_the_first_population_holds_rollouts_of_every_lead():
    """Leads of 0 to 2 chunks; ten rollouts fill the queue, and each draws its own."""
    rollouts = OwnRollouts(lead=2, lengths=((0, 1),))
    _, o = objective(config(rollouts=rollouts, population=Queue(capacity=40)))
    leads, first = [], o.rollouts.first

    def watched(clip, step, chunks):
        made = first(clip, step, chunks)
        leads.append(made.context.x.shape[1] // 2 - 1)
        return made

    o.rollouts.first = watched
    o.begin(endless())
    assert set(leads) == {0, 1, 2}


@pytest.mark.parametrize("memory", ["none", "replay"])
def test_the_gradient_is_that_of_the_terms(memory):
    """Both distances and the anchor, written out in one graph, over two micro-batches."""
    cfg = config(rollouts=OwnRollouts(lengths=((0, 3),), gradients=Gradients(memory=memory)), drop=0.0)
    model, o = objective(cfg)
    o.begin(endless())
    assert o.loss is not None and o.loss.ready
    batch = clips(0, micro=2)
    queues = {n: t.population.features.roll(-t.population.place, 0).clone() for n, t in o.loss.terms.items()}
    found, metrics = backward(model, o, batch)
    if memory == "replay":
        assert max(float(g.abs().max()) for g in found) > 1e-3
        return

    model.zero_grad(set_to_none=True)
    _, other = objective(cfg)
    other.roles, other.rollouts.model.model, other.rollouts.model.inner = {"model": model}, model, model
    raw: dict[str, list[float]] = {"context": [], "pooled": []}
    for clip in batch:
        made = other.rollouts.first(clip, 0, 3)
        seen = torch.cat([take.seen for take in made.takes], 1)
        x = seen.clone().requires_grad_()
        total = torch.zeros((), dtype=torch.float64)
        truth = STATISTICS(clip.x)
        features = {"context": centred(STATISTICS(x), truth).flatten(0, 1), "pooled": Pooled()(x).flatten(0, 1)}
        for name, term in o.loss.terms.items():
            own = features[name]
            live = torch.cat((queues[name][len(own) :], own.detach() + (own - own.detach()) * (24 / len(own))))
            fd = term.distance(live)
            raw[name].append(float(fd))
            total = total + 0.3 * fd / (fd.detach() + term.c)
        (pulled,) = torch.autograd.grad(total / 2, x)
        for loss in other.rollouts.again(made, list(pulled.split(2, 1))):
            loss.backward()
        made = other.rollouts.first(clip, 0, 3)
        (other.anchored(clip, made) / 2).backward()
    wanted = [p.grad.clone() if p.grad is not None else torch.zeros_like(p) for p in model.parameters()]
    same(found, wanted, 1e-4)
    for name, values in raw.items():
        assert float(metrics[f"frechet/{name}"]) == pytest.approx(sum(values) / 2, rel=1e-5)


def test_the_anchor_is_flow_matching_on_the_real_next_chunk():
    """With the history [real | generated | real]; real frames alone would give another loss."""
    model, o = objective(config(context=0.0, reality=0.0, drop=0.0))
    (clip,) = clips(0)
    made = o.rollouts.first(clip, 0, 3)
    history = torch.cat((clip.x[:, :2], made.x, clip.x[:, 8:10]), 1)
    loss = o.anchored(clip, made)
    frames = torch.arange(10, 12).expand(2, -1)
    t = torch.sigmoid(noise.normal(made.seed, frames[:, :1], LEVEL, ())).expand(-1, 2)
    eps = noise.normal(made.seed, frames, NOISE, (2, 4, 6))
    x_t = flow.interpolate(clip.x[:, 10:], eps, t)
    v = model.clip(x_t, t, clip.control, (history, torch.zeros(2, 10)), STREAM.memory)
    close(loss, (v - flow.velocity(clip.x[:, 10:], eps)).square().mean(), 1e-5)
    wrong = model.clip(x_t, t, clip.control, (clip.x[:, :10], torch.zeros(2, 10)), STREAM.memory)
    assert abs(float((wrong - flow.velocity(clip.x[:, 10:], eps)).square().mean() - loss)) > 1e-4


@pytest.mark.parametrize(
    ("weights", "terms", "count"),
    [
        ({}, "context pooled", 4),
        ({"anchor": 0.0}, "context pooled", 3),
        ({"context": 0.0}, "pooled", 4),
        ({"reality": 0.0}, "context", 4),
        ({"reality": 0.0, "context": 0.0}, "", 1),
    ],
    ids=str,
)
def test_each_term_can_be_removed(weights, terms, count):
    _, o = objective(config(**weights))
    o.begin(endless())
    (update,) = o.updates(clips(0))
    assert update.count == count == len(list(update.losses))
    found = {name.removeprefix("frechet/") for name in update.metrics if name.startswith("frechet")}
    assert found == set(terms.split())


def test_the_reference_is_real_and_centred():
    _, o = objective(config())
    o.begin(endless())
    x = torch.cat([clips(1000 + i)[0].x for i in range(3)])  # 3 x 2 clips
    residuals = centred(STATISTICS(x), STATISTICS(x)).flatten(0, 1).double()
    reference = o.loss.terms["context"].distance.reference
    close(reference.mean, residuals.mean(0), 1e-6)
    close(reference.covariance, residuals.T.cov(), 1e-6)
    assert reference.count == 6 * 12 and float(reference.mean.abs().max()) < 1e-6
    pixels = Pooled()(x).flatten(0, 1).double()
    close(o.loss.terms["pooled"].distance.reference.mean, pixels.mean(0), 1e-6)


def test_resume_is_exact():
    def steps(o, model, first, last):
        found = []
        for step in range(first, last):
            model.zero_grad(set_to_none=True)
            (update,) = o.updates(clips(step))
            found.append(sum(float(_backpropagated(loss)) for loss in update.losses))
        return found

    model, whole = objective(config())
    whole.begin(endless())
    before = steps(whole, model, 0, 3)
    state = {k: v.clone() if isinstance(v, Tensor) else v for k, v in whole.state_dict().items()}
    after = steps(whole, model, 3, 6)
    other, resumed = objective(config())
    resumed.load_state_dict(state)
    assert steps(resumed, other, 3, 6) == after != before


def test_a_step_that_is_not_finite_is_skipped_and_counted():
    model, o = objective(config(patience=3))
    o.begin(endless())
    queue = o.loss.terms["pooled"].population.features.clone()
    with torch.no_grad():
        model.patch_out.bias.fill_(float("nan"))
    for skipped in (1, 2):
        (nothing,) = o.updates(clips(skipped))
        assert (nothing.count, float(nothing.metrics["skipped"])) == (0, skipped) and o.in_a_row == skipped
    assert torch.equal(o.loss.terms["pooled"].population.features, queue)
    with pytest.raises(UserError, match=r"3 steps in a row were skipped, the last because .*not finite"):
        list(o.updates(clips(3)))
    with torch.no_grad():
        model.patch_out.bias.fill_(0.0)
    (update,) = o.updates(clips(4))
    assert o.in_a_row == 0 and float(update.metrics["skipped"]) == 3


def test_all_ranks_skip_a_step_of_which_one_has_a_bad_gradient(monkeypatch):
    _, o = objective(config())
    o.begin(endless())
    monkeypatch.setattr(frechet_forcing, "on_all_ranks", lambda fine, device: not fine)  # another rank's is bad
    (nothing,) = o.updates(clips(0))
    assert (nothing.count, o.skipped) == (0, 1)


class Blind(Pooled):
    """Sees nothing in real clips."""

    def __call__(self, latents: Tensor) -> Tensor:
        return super().__call__(latents) * torch.nan


def test_what_cannot_go_well_ends_before_the_first_step():
    _, o = objective(config())
    o.maps["pooled"] = Blind()
    with pytest.raises(UserError, match="Frechet forcing: pooled of real clips: features are not finite in"):
        o.begin(endless())
    _, o = objective(config(rollouts=OwnRollouts(lengths=((0, 3), (500, 4))), population=Queue(capacity=14)))
    with pytest.raises(UserError, match=r"rollouts of 4 chunks, from step 500 on: context: .* of 16 samples is more"):
        o.begin(endless())
    with pytest.raises(UserError, match="no encoder can be called 'context'"):
        config(encoders=("folder/context.pt",))


def test_a_reference_of_another_encoder_under_the_same_name_is_refused():
    _, o = objective(config())
    o.begin(endless())
    state = o.state_dict()
    _, same = objective(config())
    same.load_state_dict(state)
    _, other = objective(config())

    class Mirrored(Pooled):
        def __call__(self, latents: Tensor) -> Tensor:
            return super().__call__(latents.flip(-2))

    other.maps["pooled"] = Mirrored()
    with pytest.raises(UserError, match="Frechet forcing: pooled is another feature map now"):
        other.load_state_dict(state)
    other.load_state_dict({key: value for key, value in state.items() if not key.endswith(".mark")})  # an older one


def test_bad_configurations_and_checkpoints():
    with pytest.raises(UserError, match="anchor, context and reality are all 0"):
        config(anchor=0, context=0, reality=0)
    for name in ("anchor", "context", "reality", "mean", "std", "drop"):
        for value in (float("nan"), float("inf"), -11.0):
            with pytest.raises(UserError, match=rf"Frechet forcing: {name} must be in \["):
                config(**{name: value})
    with pytest.raises(UserError, match="name one twice"):
        config(encoders=("lite0", "lite0"))
    with pytest.raises(UserError, match="reality needs an encoder"):
        config(encoders=())
    with pytest.raises(UserError, match=r"patience must be in \[1, 1e\+09\], not 0"):
        config(patience=0)
    model, o = objective(config())
    o.begin(endless())
    with pytest.raises(
        UserError, match="3 chunks of rollout, 1 last ones and the anchored one need clips of 12 frames"
    ):
        list(o.updates([small_clip(model, 2, 10)]))
    with pytest.raises(UserError, match="1 chunks of prefix and 3 generated ones of 2 frames need clips of 8 frames"):
        list(o.updates([small_clip(model, 2, 6)]))
    state = o.state_dict()
    _, narrow = objective(config(reality=0.0))
    with pytest.raises(UserError, match=r"the checkpoint holds .*pooled"):
        narrow.load_state_dict(state)
    _, wide = objective(config())
    wide.maps["context"] = LatentStatistics(channels=2, height=4, width=6, patches=2)
    with pytest.raises(UserError, match="reference 'context' has 6 features, the encoder now 12"):
        wide.load_state_dict(state)
    _, other = objective(config())
    with pytest.raises(UserError, match=r"covariance of 'pooled' is \[3, 3\], its mean has 8 features"):
        other.load_state_dict(state | {"reference.pooled.covariance": torch.eye(3)})
    state.pop("reference.pooled.mean")
    with pytest.raises(UserError, match=r"the checkpoint has no .*pooled\.mean"):
        other.load_state_dict(state)


def forcing_run(out: Path, **changes: Any) -> Run:
    cfg = FrechetForcing(
        rollouts=OwnRollouts(lengths=((0, 2),)), reality=0.0, population=Queue(capacity=40), reference=10
    )
    return tiny_run(out, {"length": 10}, objective=cfg, optimizer=AdamW(lr=1e-3), **changes)


@pytest.mark.slow
def test_two_processes_are_one(tmp_path):
    """The same reference, queue, distances and weights up to rounding."""
    for count in (1, 2):
        for process in in_processes(forcing_run(tmp_path / str(count) / "run"), tmp_path / f"to{count}", count):
            process.join(240)
    one, two = (json.loads((tmp_path / f"to{n}" / "0.json").read_text()) for n in (1, 2))
    assert (one["world"], two["world"]) == ([1], [2])
    for a, b in zip(one["steps"], two["steps"], strict=True):
        assert a["loss"] == pytest.approx(b["loss"], rel=1e-4)
        assert a["frechet/context"] == pytest.approx(b["frechet/context"], rel=1e-4)
    found, wanted = tensors_in(tmp_path / "2" / "run"), tensors_in(tmp_path / "1" / "run")
    for name in ("objective.safetensors/population.context.features", "objective.safetensors/reference.context.mean"):
        close(found[name], wanted[name], 1e-3 if "population" in name else 1e-5)
    assert int(found["objective.safetensors/reference.context.count"]) == 12 * 10  # three steps of four clips


@pytest.mark.slow
def test_a_killed_run_goes_on_exactly(tmp_path):
    whole, killed = tmp_path / "whole" / "run", tmp_path / "killed" / "run"
    train(forcing_run(whole))
    for process in in_processes(replace_data(forcing_run(killed), die_at=7), tmp_path / "to"):
        process.join(240)
    assert checkpoint.steps(killed)[-1].name == "step_00000006"
    train(forcing_run(killed))
    assert same_training(whole, killed)


def replace_data(run: Run, **changes: Any) -> Run:
    return replace(run, data=replace(run.data, **changes))
