"""Intervals against closed forms."""

import numpy as np
import pytest

from worldmodel.evaluate.statistics import bootstrap, mean_interval, quantile_interval, r2, sign_agreement


def test_mean_interval_is_the_normal_one_for_many_values():
    values = np.random.default_rng(1).normal(3, 2, 4000)
    low, high = mean_interval(values, resamples=4000)
    half = 1.96 * values.std() / np.sqrt(4000)
    assert low == pytest.approx(values.mean() - half, abs=0.08 * half)
    assert high == pytest.approx(values.mean() + half, abs=0.08 * half)


def test_bootstrap_of_a_mean_equals_mean_interval():
    values = np.random.default_rng(2).normal(size=50)
    found = bootstrap(lambda rows: float(values[rows].mean()), 50, resamples=3000)
    assert found == pytest.approx(mean_interval(values, seed=1, resamples=3000), abs=0.04)


def test_bootstrap_repeats_and_needs_units():
    def spread(rows):
        return float(rows.std())

    assert bootstrap(spread, 9, seed=4, resamples=50) == bootstrap(spread, 9, seed=4, resamples=50)
    assert bootstrap(spread, 9, seed=4, resamples=50) != bootstrap(spread, 9, seed=5, resamples=50)
    with pytest.raises(ValueError, match="0 units"):
        bootstrap(spread, 0)


def test_bootstrap_leaves_out_draws_without_a_value():
    def undefined_for_some(rows):
        return float("nan") if (rows == rows[0]).all() else 1.0

    assert bootstrap(undefined_for_some, 2, resamples=40) == (1.0, 1.0)


def test_interval_of_one_value_is_that_value():
    assert mean_interval(np.array([7.0])) == (7.0, 7.0)


def test_quantile_interval_takes_binomial_order_statistics():
    values = np.random.default_rng(0).permutation(np.arange(1000.0))
    assert quantile_interval(values, 0.5) == (469, 531)  # 500 -+ 1.96 * sqrt(250) = 469.01 and 530.99
    assert quantile_interval(np.arange(10.0), 0.99)[1] == 9


def test_r2():
    true = np.array([1.0, 2, 3, 4])
    assert r2(true, true) == 1
    assert r2(true, np.full(4, 2.5)) == 0
    assert r2(true, true[::-1]) == pytest.approx(-3)
    assert np.isnan(r2(np.ones(3), np.ones(3)))


def test_sign_agreement_counts_clear_values_only():
    true, read = np.array([2.0, -2, 0.1, -0.1, 3]), np.array([1.0, 1, -1, 1, 0.2])
    assert sign_agreement(true, read, 1.0) == (pytest.approx(2 / 3), 3)
    assert sign_agreement(true, read, 9.0) == (0.0, 0)
