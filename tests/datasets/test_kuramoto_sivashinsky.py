"""The solver against closed forms, symmetries, its order of convergence and scipy; the clips made of it."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.integrate import solve_ivp

from worldmodel.datasets.pde.kuramoto_sivashinsky import KuramotoSivashinsky
from worldmodel.datasets.pde.trajectories import Trajectories
from worldmodel.errors import UserError


def start(equation):
    """A smooth field without symmetry."""
    x = 2 * np.pi * np.arange(equation.points) / equation.points
    return np.cos(x) * (1 + np.sin(x)) + 0.3 * np.sin(3 * x)


def after(equation, field, time, steps):
    return next(equation.frames(field, time, steps))


def by_scipy(equation, field, time):
    """The same right-hand side, integrated by another method (Dormand-Prince of order 8)."""
    modes = np.fft.rfft(field).astype(complex)
    found = solve_ivp(lambda _, m: equation.rate(m), (0, time), modes, method="DOP853", rtol=1e-13, atol=1e-12)
    return np.fft.irfft(found.y[:, -1], equation.points)


def test_equals_scipy():
    equation = KuramotoSivashinsky(points=32)
    assert np.abs(after(equation, start(equation), 4.0, 2000) - by_scipy(equation, start(equation), 4.0)).max() < 1e-10


def test_the_order_of_convergence_is_four():
    equation = KuramotoSivashinsky(points=16)  # few modes: no stiffness that lowers the order before it shows
    true = by_scipy(equation, start(equation), 4.0)
    found = [np.abs(after(equation, start(equation), 4.0, n) - true).max() for n in (80, 160, 320)]
    orders = np.log2(np.divide(found[:-1], found[1:]))
    assert (np.abs(orders - 4) < 0.15).all(), (found, orders)


@pytest.mark.parametrize("mode", [1, 2, 5])
def test_a_small_wave_grows_as_the_linear_equation_says(mode):
    equation = KuramotoSivashinsky(length=30.0, points=32)
    wave = np.cos(2 * np.pi * mode * np.arange(32) / 32)
    k = 2 * np.pi * mode / 30.0
    grown = after(equation, 1e-9 * wave, 3.0, 6) / 1e-9
    np.testing.assert_allclose(grown, np.exp(3 * (k**2 - k**4)) * wave, rtol=0, atol=1e-7)


@given(st.integers(0, 2**32 - 1))
def test_energy_is_made_by_slopes_and_lost_to_curvature(seed):
    """d/dt of the mean of u^2 / 2 is the mean of u_x^2 - u_xx^2: the quadratic term only moves energy."""
    equation = KuramotoSivashinsky(points=48)
    rng = np.random.default_rng(seed)
    modes = np.zeros(25, complex)
    modes[1:12] = rng.standard_normal(11) + 1j * rng.standard_normal(11)  # u^3 has no wave that the grid mistakes
    field, k = np.fft.irfft(modes, 48), equation.wavenumbers
    slope, curvature = np.fft.irfft(1j * k * modes, 48), np.fft.irfft(-(k**2) * modes, 48)
    found = (field * np.fft.irfft(equation.rate(modes), 48)).mean()
    assert abs(found - (slope**2 - curvature**2).mean()) < 1e-12


def test_symmetries():
    equation = KuramotoSivashinsky(points=32)
    field = start(equation)
    plain = after(equation, field, 5.0, 50)
    np.testing.assert_allclose(after(equation, np.roll(field, 7), 5.0, 50), np.roll(plain, 7), rtol=0, atol=1e-10)
    mirrored = -np.roll(field[::-1], 1)
    np.testing.assert_allclose(after(equation, mirrored, 5.0, 50), -np.roll(plain[::-1], 1), rtol=0, atol=1e-10)
    assert abs(plain.mean() - field.mean()) < 1e-14
    both = after(equation, np.stack((mirrored, field)), 5.0, 50)
    np.testing.assert_allclose(both[1], plain, rtol=0, atol=1e-12)


def test_frames_follow_each_other():
    equation = KuramotoSivashinsky(points=32)
    stream = equation.frames(start(equation), 1.0, 10)
    third = [next(stream) for _ in range(3)][2]
    np.testing.assert_allclose(third, after(equation, start(equation), 3.0, 30), rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: KuramotoSivashinsky(length=-1.0), "length"),
        (lambda: KuramotoSivashinsky(length=float("nan")), "length"),
        (lambda: KuramotoSivashinsky(points=33), "even"),
        (lambda: next(KuramotoSivashinsky().frames(np.zeros(32), 1.0, 1)), "32 points on a grid of 64"),
        (lambda: next(KuramotoSivashinsky().frames(np.zeros(64), 0.0, 1)), "interval"),
        (lambda: next(KuramotoSivashinsky().frames(1e200 * np.sin(np.arange(64.0)), 1.0, 1)), "too long"),
        (lambda: Trajectories(frames=3, length=4), "no clip of 4"),
        (lambda: Trajectories(batch=0), "batch"),
        (lambda: Trajectories(interval=float("nan")), "interval"),
        (lambda: next(Trajectories(batch=6).batches(world=4)), "does not divide"),
    ],
)
def test_bad_input(make, message):
    with pytest.raises(UserError, match=message), np.errstate(all="ignore"):
        make()


SMALL = Trajectories(
    equation=KuramotoSivashinsky(points=32), train=3, validation=2, frames=12, length=4, batch=6, warmup=60.0, seed=5
)


def test_clips_are_windows_of_solutions():
    clip = next(SMALL.batches(7))[0]
    assert clip.x.shape == (6, 4, 1, 1, 32) and clip.x.dtype == torch.float32
    assert clip.index.tolist() == list(range(42, 48)) and clip.control.action.shape == (6, 4, 0)
    fields = clip.x[:, :, 0, 0].double().numpy() * SMALL.scale
    again = after(SMALL.equation, fields[:, 2], SMALL.interval, SMALL.steps)
    assert np.abs(again - fields[:, 3]).max() < 1e-5  # rounding to fp32, grown over one interval


def test_a_clip_depends_on_its_index_alone():
    stream = SMALL.batches()
    first = [next(stream)[0] for _ in range(4)][3]
    assert torch.equal(next(SMALL.batches(3))[0].x, first.x)
    shares = [clip.x for rank in range(2) for clip in next(SMALL.batches(3, rank, world=2, micro=3))]
    assert torch.equal(torch.cat(shares), first.x)
    assert len({row.numpy().tobytes() for row in torch.cat([next(stream)[0].x for _ in range(4)])}) > 12


def test_sides_share_nothing_and_counts_change_nothing():
    sides = [SMALL.whole(side, 2, 12).x for side in ("train", "validation", "test")]
    assert all((sides[a] - sides[b]).abs().mean((2, 3, 4)).min() > 0.3 for a, b in ((0, 1), (0, 2), (1, 2)))
    assert torch.allclose(SMALL.whole("test", 1, 5).x, sides[2][:1, :5], atol=1e-4)
    held_out = next(SMALL.validation_batches(1))
    rows = SMALL.whole("validation", 2, 12).x.unfold(1, 4, 1).movedim(-1, 2).flatten(0, 1)  # every window
    assert all((rows == clip).flatten(1).all(1).any() for clip in held_out.x)


def test_fields_are_of_unit_size():
    x = SMALL.whole("test", 8, 40).x
    assert 0.85 < x.std() < 1.15 and x.mean(-1).abs().max() < 1e-6
