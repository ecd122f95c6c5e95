"""Intervals over seeds against scipy; the jackknife against its definition and closed forms; pairing; bars."""

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from worldmodel.evaluate.compare.show import cell, metrics_of
from worldmodel.evaluate.compare.statistics import (
    Curves,
    Estimate,
    Readings,
    at_most_zero,
    below_zero,
    combined,
    estimate,
    jackknife_interval,
    slope_weights,
    t_interval,
)
from worldmodel.evaluate.statistics import student_quantile


@pytest.mark.parametrize("degrees", [1, 2, 3, 4, 7, 11, 30, 399])
@pytest.mark.parametrize("p", [0.5, 0.9, 0.975, 0.999])
def test_student_quantile_equals_scipy(p, degrees):
    assert student_quantile(p, degrees) == pytest.approx(scipy.stats.t.ppf(p, degrees), rel=1e-10, abs=1e-12)


def test_student_quantile_needs_degrees():
    with pytest.raises(ValueError, match="0 degrees"):
        student_quantile(0.9, 0)


def test_interval_over_seeds_equals_scipy():
    values = np.array([3.1, 2.2, 5.0])
    expected = scipy.stats.t.interval(0.95, 2, values.mean(), scipy.stats.sem(values))
    assert t_interval(values) == pytest.approx(expected, rel=1e-10)


def left_out(values, statistic):
    return np.array([statistic(np.delete(values, i)) for i in range(len(values))])


def test_jackknife_of_a_mean_is_the_t_interval():
    """For a mean the pseudo-values are the values (Efron & Tibshirani, chapter 11)."""
    values = np.random.default_rng(0).normal(size=9)
    assert jackknife_interval(values.mean(), left_out(values, np.mean)) == pytest.approx(t_interval(values), rel=1e-9)


def test_jackknife_equals_its_pseudo_values():
    values = np.random.default_rng(1).normal(size=12) ** 2

    def statistic(x):
        return float(np.log(x.var() + x.mean() ** 2))

    theta, without = statistic(values), left_out(values, statistic)
    pseudo = 12 * theta - 11 * without
    error = pseudo.std(ddof=1) / np.sqrt(12)
    low, high = jackknife_interval(theta, without)
    assert (high - low) / 2 == pytest.approx(scipy.stats.t.ppf(0.975, 11) * error, rel=1e-9)
    assert (high + low) / 2 == pytest.approx(theta)


def test_slope_is_the_least_squares_line():
    frames, values = np.array([4.0, 20, 36, 90]), np.array([[3.0, 4, 9, 7], [0, 0, 1, 2]])
    expected = [1000 * np.polyfit(frames, row, 1)[0] for row in values]
    found = Curves(values, values[:, None]).slope(frames)
    assert found.values == pytest.approx(expected)
    assert found.without[:, 0] == pytest.approx(expected)
    assert slope_weights(frames).sum() == pytest.approx(0, abs=1e-9)


numbers = st.floats(-10, 10, allow_nan=False)


@settings(max_examples=50, deadline=None)
@given(st.lists(numbers, min_size=2, max_size=6), numbers, st.floats(0.1, 5))
def test_intervals_move_and_scale_with_their_values(values, shift, scale):
    x = np.array(values)
    for interval in (t_interval, lambda v: jackknife_interval(float(v.mean()), left_out(v, np.mean))):
        low, high = interval(x)
        moved = interval(scale * x + shift)
        assert moved == pytest.approx((scale * low + shift, scale * high + shift), abs=1e-6)


def readings(rng, seeds=3, starts=8, mean=0.0):
    """The mean over starts of numbers with a seed's part, a start's part and noise, and its left-out values."""
    x = mean + rng.normal(size=(seeds, 1)) + 2 * rng.normal(size=(1, starts)) + 0.1 * rng.normal(size=(seeds, starts))
    without = np.stack([np.delete(x, b, 1).mean(1) for b in range(starts)], 1)
    return x, Readings(x.mean(1), without)


def test_pairing_cancels_what_both_arms_share():
    """The second arm is the first plus 1 everywhere: the difference is 1 without any doubt, each arm has plenty."""
    x, base = readings(np.random.default_rng(2))
    other = Readings(base.values + 1, base.without + 1)
    found = estimate(combined(np.subtract, other, base))
    assert found.value == pytest.approx(1)
    assert found.over_seeds == pytest.approx((1, 1))
    assert found.over_starts == pytest.approx((1, 1))
    alone = estimate(base)
    assert alone.over_starts[1] - alone.over_starts[0] > 1
    assert alone.over_seeds == pytest.approx(t_interval(x.mean(1)))
    assert alone.over_starts == pytest.approx(t_interval(x.mean(0)))  # a start is left out of all seeds at once


def test_pairs_are_the_first_seeds_of_both():
    many, few = Readings(np.array([1.0, 2, 3]), np.ones((3, 4))), Readings(np.array([5.0, 5]), np.ones((2, 4)))
    assert combined(np.subtract, few, many).values.tolist() == [4, 3]
    assert combined(np.subtract, many, few).without.shape == (2, 4)


def test_one_seed_or_one_start_has_no_interval():
    found = estimate(Readings(np.array([2.0]), np.zeros((1, 0))))
    assert (found.over_seeds, found.over_starts, found.intervals) == (None, None, ())
    one = estimate(Readings(np.array([2.0]), np.array([[1.0, 3.0]])))
    assert one.over_seeds is None
    assert one.over_starts == jackknife_interval(2.0, np.array([1.0, 3.0]))
    assert list(metrics_of("a/x", one, "m")) == ["a/x", "a/x/seed0"]
    assert metrics_of("a/x", one, "m")["a/x"].n == 2
    assert cell(one).endswith("]*")


def test_band_and_whiskers():
    rng = np.random.default_rng(3)
    values, without = rng.normal(size=(3, 4)), rng.normal(size=(3, 5, 4))
    band = Curves(values, without).band()
    assert band is not None
    low, high = band
    assert (low[1], high[1]) == pytest.approx(t_interval(values[:, 1]))
    whiskers = Curves(values, without).whiskers()
    assert whiskers is not None
    low, high = whiskers
    assert (low[2], high[2]) == pytest.approx(jackknife_interval(values[:, 2].mean(), without[:, :, 2].mean(0)))
    assert Curves(values[:1], without[:1]).band() is None
    assert Curves(values, without[:, :0]).whiskers() is None


def test_bars():
    def found(value, *intervals):
        return Estimate(value, *(intervals + (None, None))[:2], (value,), 3)

    assert at_most_zero(found(-0.1, (-1, 1), (-1, 1))) is True
    assert at_most_zero(found(0.5, (-1, 2), (-1, 2))) == "not shown"
    assert at_most_zero(found(0.5, (-1, 2), (0.1, 0.9))) is False
    assert at_most_zero(found(0.5)) is False
    assert below_zero(found(-1, (-2, -0.1), (-1.5, -0.5))) is True
    assert below_zero(found(-1, (-2, 0.1), (-1.5, -0.5))) == "not shown"
    assert below_zero(found(-1)) == "not shown"
    assert below_zero(found(0.1, (-2, 2))) is False
