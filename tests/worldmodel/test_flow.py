"""Every identity of the path's conventions: t = 0 is data, t = 1 is noise, v = noise - x."""

import itertools
import math

import pytest
import torch
from diffusers.models.embeddings import get_timestep_embedding
from hypothesis import given, settings
from hypothesis import strategies as st

from worldmodel import flow

AMOUNT = st.floats(0.1, 20)


@pytest.fixture(params=[torch.float32, torch.float64])
def point(request):
    rng = torch.Generator().manual_seed(0)
    x, noise = torch.randn(2, 3, 4, 2, 2, 2, generator=rng, dtype=request.param)
    return x, noise, torch.rand(3, 4, generator=rng).to(request.param)


def close(a, b):
    assert a.dtype == b.dtype
    torch.testing.assert_close(a, b, rtol=0, atol=2e-6 if a.dtype == torch.float32 else 1e-14)


def test_ends_of_the_path(point):
    x, noise, t = point
    assert torch.equal(flow.interpolate(x, noise, torch.zeros_like(t)), x)
    assert torch.equal(flow.interpolate(x, noise, torch.ones_like(t)), noise)
    close(flow.interpolate(x, noise, torch.full_like(t, 0.25)), 0.75 * x + 0.25 * noise)


def test_identities(point):
    x, noise, t = point
    x_t, v = flow.interpolate(x, noise, t), flow.velocity(x, noise)
    close(v, noise - x)
    close(flow.clean(x_t, v, t), x)
    close(flow.towards(x, x_t, t), v)
    close(flow.noise_of(x_t, v, t), noise)
    s = t * 0.3
    close(flow.euler(x_t, v, t, s), flow.interpolate(x, noise, s))  # the path is straight
    close(flow.euler(x_t, v, t, torch.zeros_like(t)), x)
    close(flow.euler(x_t, v, t, torch.ones_like(t)), noise)


def test_what_is_expected_is_the_regression_of_the_data() -> None:
    """The slope of x on x_t over many draws of unit variance; the data itself and nothing at the ends."""
    rng = torch.Generator().manual_seed(1)
    x, noise = torch.randn(2, 1, 400_000, generator=rng, dtype=torch.float64)
    for value in (0.0, 0.3, 0.5, 0.8, 1.0):
        t = torch.full((1,), value, dtype=torch.float64)
        x_t = flow.interpolate(x, noise, t)
        slope = (x * x_t).mean() / x_t.square().mean()
        torch.testing.assert_close(flow.expected(x_t, t), slope * x_t, rtol=0, atol=0.02)
    assert torch.equal(flow.expected(x, torch.zeros(1, dtype=torch.float64)), x)
    assert not flow.expected(noise, torch.ones(1, dtype=torch.float64)).any()


def test_velocity_is_the_time_derivative(point):
    x, noise, t = (p.double() for p in point)
    h = 1e-4
    slope = (flow.interpolate(x, noise, t + h) - flow.interpolate(x, noise, t - h)) / (2 * h)
    torch.testing.assert_close(slope, flow.velocity(x, noise), rtol=0, atol=1e-10)


def test_time_is_per_frame():
    x, noise = torch.zeros(2, 3, 1, 1, 1), torch.ones(2, 3, 1, 1, 1)
    t = torch.tensor([[0.0, 0.25, 1.0], [0.5, 0.75, 0.125]])
    assert torch.equal(flow.interpolate(x, noise, t)[..., 0, 0, 0], t)


@given(st.floats(0, 1, allow_subnormal=False), AMOUNT, AMOUNT)  # a subnormal number has fewer digits than the test asks
@settings(deadline=None)
def test_shift(t, a, b):
    time = torch.tensor(t, dtype=torch.float64)
    shifted = float(flow.shift(time, a))
    assert math.isclose(shifted, a * t / (1 + (a - 1) * t), rel_tol=1e-12)
    assert 0 <= shifted <= 1 + 1e-15
    assert math.isclose(float(flow.shift(flow.shift(time, a), b)), float(flow.shift(time, a * b)), rel_tol=1e-9)
    assert math.isclose(float(flow.shift(flow.shift(time, a), 1 / a)), t, rel_tol=1e-9, abs_tol=1e-12)
    if 0 < t < 1 - 1e-6 and shifted < 1 - 1e-9:  # odds of noise against data are multiplied
        assert math.isclose(shifted / (1 - shifted), a * t / (1 - t), rel_tol=1e-6)


@given(st.integers(1, 60), AMOUNT)
@settings(deadline=None)
def test_times(steps, amount):
    times = flow.times(steps, amount)
    assert len(times) == steps + 1 and times[0] == 1.0 and times[-1] == 0.0
    assert all(a > b for a, b in itertools.pairwise(times))
    for i, time in enumerate(times):
        even = 1 - i / steps
        assert math.isclose(time, amount * even / (1 + (amount - 1) * even), rel_tol=1e-9, abs_tol=1e-12)


def test_times_values_and_errors():
    assert flow.times(4) == (1.0, 0.75, 0.5, 0.25, 0.0)
    assert flow.times(2, 3.0) == (1.0, 0.75, 0.0)
    with pytest.raises(ValueError, match="at least one step, not 0"):
        flow.times(0)


@pytest.mark.parametrize("width", [2, 64, 256])
def test_embed_time_equals_diffusers(width):
    t = torch.cat((torch.tensor([0.0, 1.0, 0.5]), torch.rand(200, generator=torch.Generator().manual_seed(1))))
    theirs = get_timestep_embedding(1000 * t, width, flip_sin_to_cos=True, downscale_freq_shift=0)
    assert torch.equal(flow.embed_time(t, width), theirs)
    assert torch.equal(flow.embed_time(t.reshape(7, 29), width), theirs.reshape(7, 29, width))


def test_embed_time_closed_form():
    e = flow.embed_time(torch.tensor([0.5]), 4)[0]
    expected = [math.cos(500), math.cos(5), math.sin(500), math.sin(5)]
    torch.testing.assert_close(e, torch.tensor(expected), rtol=0, atol=3e-5)
    assert torch.equal(flow.embed_time(torch.tensor([0.5]), 4, scale=10)[0, 0], torch.tensor(5.0).cos())


def test_schedules_are_those_of_linspace_to_the_last_bit():
    for steps in (1, 2, 3, 4, 15, 98, 150, 1000):
        wanted = torch.linspace(1, 0, steps + 1, dtype=torch.float64)
        assert flow.times(steps) == tuple(wanted.tolist())
        assert flow.times(steps, 3.0)[1:-1] == tuple(flow.shift(wanted[1:-1], 3.0).tolist())
