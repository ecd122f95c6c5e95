"""Effective context of curves whose half-life is known, and the bootstrap around it."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from worldmodel.evaluate.context.forgetting import effective_context, forgetting, horizons_of

FRAMES = np.array([8.0, 16, 32, 64, 96, 128])


def found(curve) -> tuple[float, bool]:
    value, at_least = effective_context(FRAMES, np.array(curve, float))
    return float(value), bool(at_least)


@given(st.floats(9, 127), st.floats(0.1, 2))
@settings(deadline=None)
def test_a_straight_line_crosses_half_where_it_must(half, first):
    """From `first` at 8 frames to half of it at `half`, on a line: interpolation is exact."""
    curve = first * (1 - 0.5 * (FRAMES - 8) / (half - 8))
    assert found(curve) == (pytest.approx(half, rel=1e-9), False)


@pytest.mark.parametrize("half_life", [6.0, 20.0, 50.0, 100.0])
def test_exponential_forgetting_has_its_half_life(half_life):
    """After the shortest horizon, half is lost one half-life later; straight lines bend it a little."""
    fine = np.arange(8.0, 129)
    value, at_least = effective_context(fine, 0.9 * 0.5 ** ((fine - 8) / half_life))
    assert (float(value), bool(at_least)) == (pytest.approx(8 + half_life, abs=0.02), False)
    assert found(0.9 * 0.5 ** ((FRAMES - 8) / half_life))[0] == pytest.approx(8 + half_life, rel=0.09)


def test_what_is_never_lost_is_a_lower_bound():
    assert found([1, 0.9, 0.9, 0.8, 0.7, 0.51]) == (128, True)
    assert found([1, 0.9, 0.9, 0.8, 0.7, 0.5]) == (128, True)
    assert found([1, 0.9, 0.9, 0.8, 0.7, 0.49]) == (pytest.approx(96 + 32 * 0.2 / 0.21), False)


def test_nothing_remembered_is_no_context():
    assert found([0, 0.9, 0.9, 0.8, 0.7, 0.6]) == (0, False)
    assert found([-0.1, -0.2, -0.3, -0.3, -0.3, -0.3]) == (0, False)


def test_the_first_crossing_counts():
    assert found([1, 0.25, 1, 1, 1, 1]) == (pytest.approx(8 + 8 * 0.5 / 0.75), False)
    value, at_least = effective_context(FRAMES, np.array([[1, 1, 0, 0, 0, 0], [1.0] * 6]))
    np.testing.assert_allclose(value, [24, 128])
    assert at_least.tolist() == [False, True]
    assert effective_context(np.array([8.0]), np.array([0.7])) == (8, True)


def test_visits_go_to_the_nearest_horizon():
    horizons = horizons_of([8, 9, 10, 16, 18, 19, 120, 128, 130, 50], (128, 8, 16))
    assert horizons.named == (8, 16, 128)
    assert [rows.tolist() for rows in horizons.members] == [[0, 1], [3, 4], [6, 7, 8]]
    np.testing.assert_allclose(horizons.frames, [8.5, 17, 126])
    assert horizons_of([8, 8, 16], (8, 16)).named == (8,)
    assert horizons_of([], (8, 16)).members == ()


def test_bootstrap_covers_the_truth_and_pairs_visits():
    """Noise of a known size: the interval of a score is that of a mean; two equal arms differ by nothing."""
    rng = np.random.default_rng(0)
    frames = np.repeat([8, 16, 32, 64], 50)
    horizons = horizons_of(frames.tolist(), (8, 16, 32, 64))
    truth = np.repeat([1.0, 0.8, 0.4, 0.1], 50)
    scores = truth + 0.2 * rng.standard_normal((3, 200))
    made = forgetting(horizons, scores)
    first = made.score(0).estimate(50)
    assert first.over_starts is not None
    low, high = first.over_starts
    # seeds have their own noise: the mean of three is known to 0.2 / sqrt(150)
    assert (high - low) / (2 * 1.96) == pytest.approx(0.2 / np.sqrt(150), rel=0.25)
    assert low < 1 < high
    assert first.per_seed == pytest.approx(scores[:, :50].mean(1).tolist())
    value = made.effective.estimate(200)
    assert value.over_starts is not None
    assert value.over_starts[0] < 28 < value.over_starts[1]  # 16 + 16 * 0.3 / 0.4
    assert not made.at_least.any()
    same = made.effective.minus(forgetting(horizons, scores.copy()).effective).estimate(200)
    assert (same.value, same.over_starts, same.over_seeds) == (0, (0, 0), (0, 0))
    longer = forgetting(horizons, np.concatenate((scores[:2, :100], scores[:2, 100:] + 0.3), 1))
    apart = longer.effective.minus(made.effective).estimate(200)
    assert len(apart.per_seed) == 2
    assert apart.over_starts is not None
    assert apart.over_starts[0] > 0
    np.testing.assert_allclose(made.curves.mean(0), made.band() @ np.array([0.5, 0.5]), atol=0.02)


def test_a_common_level_does_not_flatter_who_had_nothing_to_lose():
    strong, weak = [1, 0.9, 0.6, 0.4, 0.2, 0.1], [0.2, 0.19, 0.18, 0.17, 0.16, 0.15]
    assert found(strong)[0] < found(weak)[0]
    value, at_least = effective_context(FRAMES, np.array([strong, weak]), 0.5)
    np.testing.assert_allclose(value, [48, 0])
    assert not at_least.any()
    value, at_least = effective_context(FRAMES, np.array([strong, weak]), 0.1)
    np.testing.assert_allclose(value, [128, 128])
    assert at_least.all()
