"""HERO's gradient identity, its choice of references and its history; pushforward and plain rollout supervision."""

import itertools
import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from test_one_step import fields, small_fno
from tiny import close, same_training, small_clip, small_dit, tensors_in, tiny_run

from worldmodel import noise
from worldmodel import train as training
from worldmodel.errors import UserError
from worldmodel.memory import FullConfig, WindowConfig
from worldmodel.memory.last_frame import LastFrameConfig
from worldmodel.models.one_step import Apply
from worldmodel.models.world import StreamConfig
from worldmodel.objectives.flow_matching import FlowMatching
from worldmodel.objectives.frechet_forcing import FrechetForcing
from worldmodel.objectives.hero import (
    PERTURBATION,
    REFERENCES,
    Hero,
    energy_drift,
    error_growth,
    relative_loss,
    reweighting,
    spectral_discrepancy,
    strongest,
)
from worldmodel.objectives.own_rollouts import OwnRollouts
from worldmodel.objectives.pushforward import Pushforward
from worldmodel.objectives.unrolled import Deployment, RolloutError, Unroll, frame_errors
from worldmodel.optim import Schedule
from worldmodel.rollout import join, replay, rollout, start
from worldmodel.sampler import Euler, Pipelined

STREAM = Deployment(sampler=Apply(), memory=LastFrameConfig())
UNROLL = Unroll(stream=STREAM)
CLIP = fields(4, 4)


def exact(clip=CLIP):
    return replace(clip, x=clip.x.double())


def gradients(model, loss):
    return torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(model.parameters()), retain_graph=True)])


def moved(model, amount=0.02):
    """The weights after a step in some direction."""
    with torch.no_grad():
        for p in model.parameters():
            p.add_(amount * torch.randn_like(p))
    return model


def run(objective, clips):
    """One update without an optimizer: losses, gradients, metrics."""
    model = objective.roles["model"]
    model.zero_grad()
    losses, metrics = [], {}
    for update in objective.updates(clips):
        for loss in update.losses:
            loss.backward()
            losses.append(loss.detach())
        assert len(losses) == update.count
        metrics = update.metrics
    return torch.stack(losses), torch.cat([p.grad.flatten() for p in model.parameters()]), metrics


# -- the loss ----------------------------------------------------------------------------------------------------------


def test_the_gradient_of_every_sample_is_the_ground_truths_reweighted():
    model = small_fno().double()
    cfg = Hero(weight=1.7, margin=0.05, tau=0.3, perturbation=0.1)
    objective = cfg.build(model, STREAM, 3)
    moved(model)  # away from the lagged copy
    error = frame_errors(UNROLL(model, exact(), 3), exact().x[:, 1:]).mean(1)
    chosen, reference = objective.reference(UNROLL(model, exact(), 3).detach(), exact())
    assert len(chosen.unique()) > 1 and not reference.requires_grad
    loss = relative_loss(error, reference, 1.7, 0.05 * reference, 0.3 * reference)
    for b, (e, r) in enumerate(zip(error.tolist(), reference.tolist(), strict=True)):
        factor = 1 + 1.7 / (1 + math.exp(-(e - r + 0.05 * r) / (0.3 * r)))
        plain = gradients(model, error[b])
        assert (gradients(model, loss[b]) - factor * plain).abs().max() <= 1e-10 * plain.abs().max()
        assert factor != pytest.approx(1 + 1.7 / 2, abs=1e-3)


def test_the_gradient_of_an_update_is_the_weighted_mean():
    model = small_fno().double()
    objective = Hero(perturbation=0.2, tau=0.2).build(model, STREAM, 3)
    objective.count = 1  # no refresh
    moved(model)
    losses, found, metrics = run(objective, [exact().select(torch.arange(2)), exact().select(torch.arange(2, 4))])
    made = UNROLL(model, exact(), 3)
    error = frame_errors(made, exact().x[:, 1:]).mean(1)
    chosen, reference = objective.reference(made.detach(), exact())
    factor = 1 + torch.sigmoid((error - reference) / (0.2 * reference)).detach()
    expected = gradients(model, (factor * error).mean())
    assert (found - expected).abs().max() <= 1e-10 * expected.abs().max()
    gap = torch.nn.functional.softplus((error - reference) / (0.2 * reference))
    close(losses.sum(), (error + 0.2 * reference * gap).mean(), 1e-12)
    close(metrics["error"], error.mean(), 1e-12)
    close(metrics["reweighting"], factor.mean(), 1e-12)
    shares = [float(metrics[f"reference_{name}"]) for name in REFERENCES]
    assert shares == [float((chosen == r).float().mean()) for r in range(3)]


@given(st.floats(-50, 50), st.floats(0, 5), st.floats(0.01, 10), st.floats(-1, 1))
def test_identity_and_bounds_of_the_closed_form(gap, weight, tau, margin):
    error = torch.tensor([60.0 + gap], dtype=torch.float64, requires_grad=True)
    reference = torch.tensor([60.0], dtype=torch.float64, requires_grad=True)
    loss = relative_loss(error, reference, weight, margin, tau)
    slope, other = torch.autograd.grad(loss.sum(), (error, reference), allow_unused=True)
    factor = float(reweighting(error, reference, weight, margin, tau))
    assert other is None and float(slope) == pytest.approx(factor, rel=1e-10, abs=1e-10)
    assert 1 <= factor <= 1 + weight
    z = (float(error.detach()) - 60 + margin) / tau
    softplus = max(z, 0) + math.log1p(math.exp(-abs(z)))
    assert float(loss.detach()) == pytest.approx(float(error.detach()) + weight * tau * softplus, rel=1e-12)


def test_weight_0_is_absolute_supervision():
    one, two = small_fno(), small_fno()
    hero = run(Hero(weight=0.0).build(one, STREAM, 3), [CLIP])
    plain = run(RolloutError().build(two, STREAM, 3), [CLIP])
    close(hero[0], plain[0], 1e-6)
    close(hero[1], plain[1], 1e-5)


# -- references --------------------------------------------------------------------------------------------------------


def test_the_lowest_error_wins_and_mean_ranks_break_ties():
    errors = torch.tensor([[1.0, 1.0, 1.005, math.nan], [2.0, 1.02, 1.0, 3.0], [0.5, 1.005, 1.0, math.inf]])
    breakers = torch.zeros(3, 3, 4)
    breakers[:, 0, 1], breakers[:, 2, 1] = torch.tensor([1.0, 1.0, 0.0]), torch.tensor([0.0, 0.0, 9.0])  # ranks 2 : 1
    breakers[:, 1, 1] = -5  # best of all, but its error is no tie
    breakers[:, 1, 2], breakers[:, 2, 2] = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([1.0, 2.0, 3.0])  # equal
    breakers[:, 0, 2] = 4
    assert strongest(errors, breakers, 0.01).tolist() == [2, 2, 1, 1]
    assert strongest(errors, breakers, 0.0).tolist() == [2, 0, 1, 1]


def test_signals_by_their_definitions():
    true, made = torch.randn(2, 3, 2, 4, 6), torch.randn(2, 3, 2, 4, 6)
    power = [torch.fft.fft2(x).abs().square() for x in (made, true)]
    half = [p[..., :4] for p in power]  # of a real field
    expected = (half[0] - half[1]).abs().sum((2, 3, 4)) / half[1].sum((2, 3, 4))
    close(spectral_discrepancy(made, true), expected.mean(1), 1e-5)
    energy = [x.square().mean((2, 3, 4)) for x in (made, true)]
    close(energy_drift(made, true), ((energy[0] - energy[1]).abs() / energy[1]).mean(1), 1e-6)
    errors = (made - true).square().mean((2, 3, 4))
    close(error_growth(made, true), errors[:, 2] / errors[:, 0], 1e-6)
    assert spectral_discrepancy(true.roll(2, -1), true).max() < 1e-5  # where a wave is does not count
    assert spectral_discrepancy(true, true).max() == energy_drift(true, true).max() == 0


def test_each_reference_is_what_its_name_says():
    model = small_fno()
    objective = Hero(perturbation=0.5).build(model, STREAM, 3)
    before = UNROLL(model, CLIP, 3).detach()
    moved(model)
    current = UNROLL(model, CLIP, 3).detach()
    eps = noise.normal(noise.row_seed(3, CLIP.index), torch.zeros(4, 1, dtype=torch.int64), PERTURBATION, (2, 1, 12))
    shaken = replace(CLIP, x=torch.cat((CLIP.x[:, :1] + 0.5 * eps, CLIP.x[:, 1:]), 1))
    assert torch.equal(objective.perturbed(CLIP).x, shaken.x)
    for name, trajectory in zip(REFERENCES, (before, current, UNROLL(model, shaken, 3).detach()), strict=True):
        target = replace(CLIP, x=torch.cat((CLIP.x[:, :1], trajectory), 1))  # a truth that this reference hits
        chosen, error = objective.reference(current, target)
        assert [REFERENCES[r] for r in chosen] == [name] * 4 and error.max() == 0


def test_the_present_weights_own_trajectory_bounds_the_reference():
    model = small_fno()
    objective = Hero().build(model, STREAM, 3)
    moved(model)
    made = UNROLL(model, CLIP, 3).detach()
    _, reference = objective.reference(made, CLIP)
    assert (reference <= frame_errors(made, CLIP.x[:, 1:]).mean(1) * 1.01).all()


# -- history -----------------------------------------------------------------------------------------------------------


def train(objective, steps, first=0):
    optimizer = torch.optim.SGD(objective.roles["model"].parameters(), lr=0.05)
    for n in range(first, first + steps):
        for update in objective.updates([fields(4, 4, seed=n)]):
            for loss in update.losses:
                loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    return {name: p.detach().clone() for name, p in objective.roles["model"].state_dict().items()}


def test_lagged_weights_are_refreshed_when_due():
    objective = Hero(refresh=3).build(small_fno(), STREAM, 3)
    weights = [small_fno().state_dict()["lift.weight"].clone()]
    for n in range(7):
        weights.append(train(objective, 1, n)["lift.weight"])
        assert torch.equal(objective.lagged.state_dict()["lift.weight"], weights[3 * (n // 3)])
    assert not any(p.requires_grad for p in objective.lagged.parameters())


def test_a_resumed_objective_goes_on_as_if_nothing_had_been():
    cfg = Hero(refresh=3, weight=3.0)
    whole = train(cfg.build(small_fno(), STREAM, 3), 8)
    objective = cfg.build(small_fno(), STREAM, 3)
    weights, state = train(objective, 5), objective.state_dict()
    train(objective, 3, 5)  # what follows does not change what was saved
    other = small_fno(seed=9)
    other.load_state_dict(weights)
    resumed = cfg.build(other, STREAM, 3)
    resumed.load_state_dict(state)
    assert all(torch.equal(value, whole[name]) for name, value in train(resumed, 3, 5).items())
    with pytest.raises(UserError, match=r"'lift\.weight' is missing"):
        resumed.load_state_dict({name: value for name, value in state.items() if name != "lagged.lift.weight"})


@pytest.mark.parametrize("bad", [{"tau": 0.0}, {"weight": -1.0}, {"refresh": 0}, {"margin": math.nan}, {"tie": -0.1}])
def test_bad_configurations(bad):
    with pytest.raises(UserError, match=next(iter(bad))):
        Hero(**bad)


# -- pushforward, rollout supervision, world models --------------------------------------------------------------------


def test_pushforward_differentiates_its_last_step_alone():
    model = small_fno()
    objective = Pushforward().build(model, STREAM, 3)
    seen = set()
    for n in range(8):
        clip = replace(CLIP, index=CLIP.index + n)
        count = objective.chunks(n, clip)
        seen.add(count)
        with torch.no_grad():
            x = clip.x[:, 0]
            for _ in range(count - 1):
                x = model(x)
        expected = (model(x) - clip.x[:, count]).square().mean()
        losses, found, _ = run(objective, [clip])
        close(losses[0], expected.detach(), 1e-6)
        close(found, gradients(model, expected), 1e-5)
    assert seen == {1, 2, 3}


def test_rollout_error_differentiates_all_of_it():
    model = small_fno()
    x, expected = CLIP.x[:, 0], 0
    for n in range(1, 4):
        x = model(x)
        expected = expected + (x - CLIP.x[:, n]).square().mean() / 3
    objective = RolloutError().build(model, STREAM, 3)
    losses, found, _ = run(objective, [CLIP])
    close(losses[0], expected.detach(), 1e-6)
    close(found, gradients(model, expected), 1e-5)
    close(objective.validate(CLIP)["loss"], expected.detach(), 1e-6)


@pytest.mark.parametrize("kind", [Hero, Pushforward, RolloutError])
def test_video_world_models_train_with_the_same_objectives(kind):
    model = small_dit()
    clip = small_clip(model)
    stream = StreamConfig(sampler=Euler(steps=2), memory=FullConfig())
    objective = kind().build(model, stream, 3)
    losses, found, _ = run(objective, [clip])
    assert torch.isfinite(losses).all() and torch.isfinite(found).all() and found.abs().max() > 1e-4
    objective = kind().build(model, stream, 3)
    assert torch.equal(run(objective, [clip])[1], found)  # all noise is keyed
    assert objective.validate(clip)["loss"] > 0


def test_a_rollout_in_training_is_the_streams():
    """Sampler, memory, guidance and context time: what a user of the stream would see, seed by seed."""
    model, clip = small_dit(), small_clip(small_dit(), frames=10)
    stream = StreamConfig(sampler=Euler(steps=3, guidance=1.5), memory=WindowConfig(ring=4), context_time=0.1)
    with torch.no_grad():
        made = Unroll(stream=stream, prefix=2)(model, clip, 5)
        state = start(model, stream.memory, noise.row_seed(5, clip.index), clip.frames(0, 4), 0.1)
        expected = join(rollout(model, replay(clip.control.frames(4, 10), 2), stream.sampler, state, 0.1))
    assert torch.equal(made, expected)
    for other in (replace(stream, context_time=0.0), replace(stream, memory=WindowConfig(ring=2))):
        with torch.no_grad():
            assert not torch.equal(Unroll(stream=other, prefix=2)(model, clip, 5), made)


def test_a_wrapped_model_gets_the_gradients_of_the_bare_one():
    class Wrapper(torch.nn.Module):
        def __init__(self, module):
            super().__init__()
            self.module, self.calls = module, 0

        def forward(self, *args):
            self.calls += 1
            return self.module(*args)

    stream = StreamConfig(sampler=Euler(steps=2), memory=WindowConfig(ring=4))
    for cfg in (Hero(weight=2.0), Pushforward()):
        bare, wrapped = small_dit(), Wrapper(small_dit())
        one, two = (run(cfg.build(model, stream, 3), [small_clip(bare)]) for model in (bare, wrapped))
        assert torch.equal(one[1], two[1]) and wrapped.calls > 4


@pytest.mark.parametrize(("prefix", "frames"), [(1, 7), (1, 2), (4, 8)])
def test_clips_that_do_not_fit_are_told(prefix, frames):
    model, stream = small_dit(), StreamConfig(sampler=Euler(steps=1), memory=FullConfig())
    with pytest.raises(UserError, match=f"{frames} frames, of which {2 * prefix} are given"):
        Unroll(stream=stream, prefix=prefix)(model, small_clip(model, frames=frames), 0)


def test_what_cannot_be_unrolled_is_told():
    model, stream = small_dit(), StreamConfig(sampler=Pipelined(chunks=2, steps=2), memory=FullConfig())
    for objective in (Hero().build(model, stream, 3), Pushforward().build(model, stream, 3)):
        with pytest.raises(UserError, match=r"Pipelined.* looks ahead"):
            run(objective, [small_clip(model)])
    for kind in (Hero, Pushforward, RolloutError):
        with pytest.raises(UserError, match="prefix must be in"):
            kind(prefix=0)


# -- in a run ----------------------------------------------------------------------------------------------------------


def test_a_step_reports_its_time_per_chunk(monkeypatch, tmp_path):
    """Seconds of the whole step over the chunks of its rollouts: in the log, not among metrics, which resume alike."""
    logged, clock = [], itertools.count()
    monkeypatch.setattr(training.time, "perf_counter", lambda: 3.0 * next(clock))  # every step takes 3 s
    monkeypatch.setattr(training.Accelerator, "log", lambda self, values, step: logged.append(dict(values)))
    forcing = FrechetForcing(rollouts=OwnRollouts(lengths=((0, 1), (1, 3))), context=0.0, reality=0.0)
    for name, objective, chunks in (("forcing", forcing, [1, 3]), ("hero", Hero(), [5, 5]), ("plain", None, [])):
        logged.clear()
        changes = {"steps": 2, "validate": 0, "objective": objective or FlowMatching()}
        metrics = training.train(tiny_run(tmp_path / name, {"length": 12}, **changes))
        assert [v["seconds_per_chunk"] for v in logged if "seconds_per_chunk" in v] == [3 / n for n in chunks]
        assert len(logged) == 2 and "seconds_per_chunk" not in metrics


@pytest.mark.parametrize("objective", [Hero(refresh=2, weight=2.0), Pushforward()])
def test_a_run_trains_a_world_model_with_it_and_resumes(objective, tmp_path):
    """The first loss is that of the objective itself; what was stopped and went on is the same as what was not."""
    changes = {
        "objective": objective, "schedule": Schedule(shape="constant", warmup=0), "validate_every": 0, "validate": 1,
        "micro": 2, "steps": 4,
    }  # fmt: skip
    metrics = training.train(tiny_run(tmp_path / "whole", **changes))
    assert metrics["validation/loss"] > 0
    parts = tiny_run(tmp_path / "parts", **changes | {"steps": 1})
    found = training.train(parts)
    torch.manual_seed(parts.seed)
    built = objective.build(parts.model.build(), parts.stream, parts.seed)
    losses, _, _ = run(built, next(parts.data.batches(0, 0, 1, 2)))
    assert found["model/loss"] == pytest.approx(float(losses.sum()), rel=1e-5)
    training.train(replace(parts, steps=4))
    assert same_training(tmp_path / "parts", tmp_path / "whole")
    if isinstance(objective, Hero):
        assert any(name.startswith("objective.safetensors/lagged.") for name in tensors_in(tmp_path / "parts"))
    other = replace(parts, steps=6, stream=replace(parts.stream, sampler=Euler(steps=2)))
    with pytest.raises(UserError, match=r"stream\.sampler\.steps was 1"):
        training.train(other)
    with pytest.raises(UserError, match="needs clips of 8 latent frames"):
        training.train(replace(parts, out=tmp_path / "long", objective=replace(objective, prefix=3)))
