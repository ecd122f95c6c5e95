"""Samplers on a velocity field with a known flow: orders of convergence, guidance, noise, schedules, model calls."""

import itertools
import math
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
import torch
from torch import Tensor

from worldmodel import flow, noise
from worldmodel.chunk import ActionControl
from worldmodel.errors import UserError
from worldmodel.memory import FullConfig, Geometry
from worldmodel.sampler import Euler, FewStep, FirstChunks, Heun, Pipelined, draw, guided, with_steps
from worldmodel.serial import from_json, to_json
from worldmodel.state import State

SPREAD = 0.5


@dataclass
class Gaussian:
    """The exact velocity field of frames that are N(m, SPREAD^2), m given by the action (0 without one).

    x_t is N((1 - t) m, V) with V = (1 - t)^2 SPREAD^2 + t^2, so that E[noise - x | x_t] is linear in x_t, and the flow
    takes the noise e at t = 1 to m + SPREAD e at t = 0.
    """

    chunk: int = 2
    frame_shape: tuple[int, ...] = (3, 2, 2)
    calls: list[int] = field(default_factory=list)  # frames of each model call

    def prepare(self, control: ActionControl, state: State) -> Tensor:
        mean = torch.where(control.has_action[..., None], control.action, 0.0).double()
        return mean[..., None, None]

    def velocity(self, x_t: Tensor, t: Tensor, mean: Tensor) -> Tensor:
        self.calls.append(x_t.shape[1])
        t = t.double()[..., None, None, None]
        variance = (1 - t) ** 2 * SPREAD**2 + t**2
        away = x_t - (1 - t) * mean
        return ((t - (1 - t) * SPREAD**2) / variance * away - mean).to(x_t.dtype)

    def exact(self, control: ActionControl, e: Tensor) -> Tensor:
        return (self.prepare(control, None) + SPREAD * e).float()


def state(rows=3, frame=0):
    seed = noise.row_seed(1, torch.arange(rows))
    return State(None, torch.full((rows,), frame), seed, torch.ones(rows, dtype=torch.bool))


def control(rows=3, frames=2, seed=0):
    rng = torch.Generator().manual_seed(seed)
    has_action = (torch.arange(rows * frames) % 3 != 1).reshape(rows, frames)
    return ActionControl(torch.randn(rows, frames, 1, generator=rng), has_action)


def error(sampler):
    model, s, c = Gaussian(), state(), control()
    made, _ = sampler(model, c, s)
    return float((made - model.exact(c, draw(model, s, 2, 0))).square().mean().sqrt())


@pytest.mark.parametrize(("kind", "order"), [(Euler, 1), (Heun, 2)])
@pytest.mark.parametrize("shift", [1.0, 2.5])
def test_order_of_convergence(kind, order, shift):
    steps = np.array([16, 32, 64, 128])
    errors = np.array([error(kind(steps=int(n), shift=shift)) for n in steps])
    slope = -np.polyfit(np.log(steps), np.log(errors), 1)[0]
    assert abs(slope - order) < 0.12, (slope, errors)
    assert errors[-1] < (2e-2, 6e-4)[order - 1]


@pytest.mark.parametrize(
    ("sampler", "calls"),
    [
        (Euler(steps=5), 5),
        (Euler(steps=5, guidance=2.0), 5),
        (Euler(steps=1), 1),
        (Heun(steps=5), 9),
        (Heun(steps=5, guidance=0.5), 9),
        (FewStep(levels=(1.0, 0.6)), 2),
        (FewStep(levels=(1.0, 0.6), guidance=3.0), 2),
    ],
)
def test_number_of_model_calls(sampler, calls):
    model = Gaussian()
    made, pending = sampler(model, control(), state())
    assert len(model.calls) == calls and pending is None and sampler.lookahead == 0
    assert made.shape == (3, 2, 3, 2, 2) and made.dtype == torch.float32


def test_euler_by_hand():
    """Two steps, with the shift's times, written out."""
    model, s, c = Gaussian(), state(), control()
    prepared, times = model.prepare(c, s), flow.times(2, 3.0)
    assert times == (1.0, 0.75, 0.0)
    x = noise.normal(s.seed, torch.arange(2).expand(3, -1), 0, model.frame_shape)
    x = x - 0.25 * model.velocity(x, torch.ones(3, 2), prepared)
    x = x - 0.75 * model.velocity(x, torch.full((3, 2), 0.75), prepared)
    torch.testing.assert_close(Euler(steps=2, shift=3.0)(model, c, s)[0], x, rtol=0, atol=1e-6)


def test_guidance():
    model, s, c = Gaussian(), state(), control()
    x, t = draw(model, s, 2, 0), torch.full((3, 2), 0.7)
    conditional = model.velocity(x, t, model.prepare(c, s))
    unconditional = model.velocity(x, t, torch.zeros(3, 2, 1, 1, 1, dtype=torch.float64))
    assert torch.equal(guided(model, c, s, 1.0)(x, t), conditional)
    assert torch.equal(guided(model, c, s, 0.0)(x, t), unconditional)
    for g in (-1.0, 0.5, 2.0, 7.5):
        expected = unconditional + g * (conditional - unconditional)
        torch.testing.assert_close(guided(model, c, s, g)(x, t), expected, rtol=0, atol=1e-5)
    for kind in (Euler, Heun, FewStep, Pipelined):
        one = kind(guidance=1.0)
        wide = control(frames=2 * (1 + one.lookahead))
        assert torch.equal(one(model, wide, s)[0], kind()(model, wide, s)[0])
        assert not torch.equal(kind(guidance=1.5)(model, wide, s)[0], one(model, wide, s)[0])


def test_guidance_moves_the_mean_linearly():
    """The field is linear in m: guidance g makes the samples of a model whose mean is g m."""
    model, s, c = Gaussian(), state(), control()
    c = replace(c, has_action=torch.ones_like(c.has_action))
    made = Euler(steps=6, guidance=2.5)(model, c, s)[0]
    far = Euler(steps=6)(model, replace(c, action=2.5 * c.action), s)[0]
    torch.testing.assert_close(made, far, rtol=0, atol=1e-5)


def test_few_step_closed_form():
    """At t = 1 the prediction is the mean; one level on, fresh noise e2 adds a known part."""
    model, s, c = Gaussian(), state(), control()
    mean = model.prepare(c, s).float()
    one, _ = FewStep(levels=(1.0,))(model, c, s)
    torch.testing.assert_close(one, mean.expand_as(one), rtol=0, atol=1e-5)
    two, _ = FewStep(levels=(1.0, 0.5), shift=3.0)(model, c, s)
    t = 0.75  # 0.5 shifted by 3
    gain = (1 - t) * SPREAD**2 * t / ((1 - t) ** 2 * SPREAD**2 + t**2)
    torch.testing.assert_close(two, mean + gain * draw(model, s, 2, 1), rtol=0, atol=1e-5)


def test_first_chunks_choose_per_row():
    model, c = Gaussian(), control(rows=4)
    s = replace(state(rows=4), frame=torch.tensor([0, 2, 4, 6]))
    first, then = Euler(steps=7), FewStep(levels=(1.0, 0.5))
    made, pending = FirstChunks(first=first, chunks=2, then=then)(model, c, s)
    assert pending is None
    assert torch.equal(made[:2], first(model, c, s)[0][:2]) and torch.equal(made[2:], then(model, c, s)[0][2:])
    for frame, calls in ((0, 7), (100, 2)):  # both only where both are needed
        model = Gaussian()
        FirstChunks(first=first, chunks=2, then=then)(model, c, state(rows=4, frame=frame))
        assert len(model.calls) == calls


def stream(sampler, model, c, s, chunks):
    """Chunks of a stream of a model that needs no memory, and its states."""
    out = []
    for i in range(chunks):
        window = c.frames(2 * i, 2 * (i + 1 + sampler.lookahead))
        x, pending = sampler(model, window, s)
        s = replace(s, frame=s.frame + 2, pending=pending)
        out.append(x)
    return torch.cat(out, 1), s


@pytest.mark.parametrize("guidance", [1.0, 1.7])
@pytest.mark.parametrize(("n", "m", "shift"), [(1, 4, 1.0), (2, 2, 1.0), (3, 2, 2.0), (4, 1, 1.0)])
def test_pipelined_is_euler_for_a_field_without_memory(n, m, shift, guidance):
    """Every frame passes the same levels from the same noise, only in other company: the same numbers, to the bit."""
    c = control(frames=2 * (5 + n))
    pipelined = Pipelined(chunks=n, steps=n * m, shift=shift, guidance=guidance)
    euler = Euler(steps=n * m, shift=shift, guidance=guidance)
    made, _ = stream(pipelined, Gaussian(), c, state(), 5)
    expected, _ = stream(euler, Gaussian(), c, state(), 5)
    assert torch.equal(made, expected)


def test_pipelined_calls():
    """n m joint passes for the first chunk, m for every other one."""
    model, sampler = Gaussian(), Pipelined(chunks=3, steps=6)
    c, s, counts = control(frames=20), state(), []
    for i in range(4):
        model.calls.clear()
        _, pending = sampler(model, c.frames(2 * i, 2 * i + 6), s)
        s = replace(s, frame=s.frame + 2, pending=pending)
        counts.append(len(model.calls))
        assert set(model.calls) == {6}
    assert counts == [6, 2, 2, 2] and sampler.lookahead == 2
    assert s.pending.x.shape == (3, 4, 3, 2, 2)


def test_pipelined_levels_are_staggered():
    """What is left pending are the frames' states after (n - 1 - j) m levels."""
    model, s, c = Gaussian(), state(), control(frames=6)
    _, pending = Pipelined(chunks=3, steps=6)(model, c, s)
    x, times = draw(model, s, 6, 0), flow.times(6)
    mean = model.prepare(c, s)
    for j, taken in ((1, 4), (2, 2)):
        part = x[:, 2 * j : 2 * j + 2]
        for t, u in itertools.pairwise(times[: taken + 1]):
            full = torch.full((3, 2), t)
            part = flow.euler(part, model.velocity(part, full, mean[:, 2 * j : 2 * j + 2]), full, torch.full((3, 2), u))
        torch.testing.assert_close(pending.x[:, 2 * (j - 1) : 2 * j], part, rtol=0, atol=1e-6)


def test_pipelined_rows_start_on_their_own():
    """A row that is reset in mid-stream makes what a fresh stream makes; the others do not notice."""
    c, sampler = control(frames=20), Pipelined(chunks=2, steps=4)
    _, s = stream(sampler, Gaussian(), c, state(), 3)
    memory = FullConfig().empty(Geometry(layers=1, heads=1, head_dim=2, tokens=1), 3, torch.zeros(()))
    seed = torch.tensor([0, 77, 0])
    fresh = replace(s, memory=memory).reset(torch.tensor([False, True, False]), seed)
    after, _ = stream(sampler, Gaussian(), c.frames(6, 20), fresh, 4)
    others, _ = stream(sampler, Gaussian(), c.frames(6, 20), s, 4)
    assert torch.equal(after[[0, 2]], others[[0, 2]])
    alone = replace(state(rows=1), seed=torch.tensor([77]))
    expected, _ = stream(sampler, Gaussian(), c.frames(6, 20).select(torch.tensor([1])), alone, 4)
    assert torch.equal(after[1:2], expected)


def test_noise_belongs_to_the_frame():
    """The same frames whatever the slot and wherever the stream is cut; another seed is another world."""
    model, s, c = Gaussian(), state(), control()
    for sampler in (Euler(), Heun(), FewStep()):
        made, _ = sampler(model, c, s)
        order = torch.tensor([2, 0, 1])
        moved, _ = sampler(model, c.select(order), replace(s, seed=s.seed[order]))
        assert torch.equal(moved, made[order])
        assert not torch.equal(sampler(model, c, replace(s, frame=s.frame + 2))[0], made)
        assert not torch.equal(sampler(model, c, replace(s, seed=s.seed + 1))[0], made)


def test_bad_settings():
    for make, message in (
        (lambda: Euler(steps=0), r"Euler: steps must be in \[1, 1000\], not 0"),
        (lambda: Heun(steps=-1), r"Heun: steps must be in \[1, 1000\], not -1"),
        (lambda: Pipelined(steps=0), "Pipelined: steps must be in"),
        (lambda: Euler(steps=10**9), r"Euler: steps must be in \[1, 1000\], not 1000000000"),
        (lambda: Pipelined(chunks=10**9, steps=10**9), "Pipelined: steps must be in"),
        (lambda: FewStep(levels=tuple(1 - i / 2000 for i in range(1001))), "FewStep: steps must be in .* not 1001"),
        (lambda: FewStep(levels=(1.0, math.nan)), "levels must fall"),
        (lambda: Euler(guidance=math.nan), "Euler: guidance must be a finite number of at least 0, not nan"),
        (lambda: Heun(guidance=-0.5), r"Heun: guidance must be a finite number of at least 0, not -0\.5"),
        (lambda: FewStep(guidance=math.inf), "FewStep: guidance must be a finite number"),
        (lambda: Pipelined(guidance=-1.0), "Pipelined: guidance must be a finite number"),
        (lambda: Euler(shift=math.nan), "shift must be a finite number above 0, not nan"),
        (lambda: Heun(shift=math.inf), "shift must be a finite number above 0"),
        (lambda: Pipelined(chunks=3, steps=4), "4 steps do not divide among 3 chunks"),
        (lambda: Pipelined(chunks=0, steps=4), "4 steps do not divide among 0 chunks"),
        (lambda: FewStep(levels=(0.9, 0.5)), r"levels must fall from 1\.0"),
        (lambda: FewStep(levels=(1.0, 0.5, 0.5)), "levels must fall"),
        (lambda: FewStep(levels=(1.0, 0.0)), "stay above 0"),
        (lambda: FewStep(levels=()), "levels must fall"),
        (lambda: Euler(shift=0.0), "shift must be a finite number above 0"),
        (lambda: FewStep(shift=-1.0), "shift must be a finite number above 0"),
        (lambda: FirstChunks(first=Euler(), chunks=-1, then=Euler()), "chunks must not be negative"),
    ):
        with pytest.raises(UserError, match=message):
            make()


def test_with_steps():
    assert with_steps(Euler(steps=2, shift=3.0), 9) == Euler(steps=9, shift=3.0)
    assert with_steps(Pipelined(chunks=2, steps=2), 8).steps == 8
    with pytest.raises(UserError, match="FewStep: its number of steps is part of its schedule"):
        with_steps(FewStep(), 3)


def test_travels_as_json():
    kind = Euler | Heun | FewStep | FirstChunks | Pipelined
    for sampler in (
        Euler(steps=3, guidance=1.5),
        Heun(shift=2.0),
        FewStep(levels=(1.0, 0.25)),
        FirstChunks(first=Heun(steps=9), chunks=2, then=FewStep()),
        Pipelined(chunks=2, steps=6),
    ):
        assert from_json(to_json(sampler), kind, "here") == sampler


def test_draw_is_keyed_by_absolute_frame():
    model = Gaussian()
    far = replace(state(), frame=torch.tensor([0, 5, 2**40]))
    found = draw(model, far, 3, 7)
    for b, frame in enumerate(far.frame.tolist()):
        one = noise.normal(far.seed[b : b + 1], frame + torch.arange(3)[None], 7, model.frame_shape)
        assert torch.equal(found[b : b + 1], one)
    assert math.isclose(float(found.mean()), 0, abs_tol=0.4)
