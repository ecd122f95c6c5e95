"""Scores of action following against their definitions, with planted readings in place of a probe's."""

from typing import Any

import numpy as np
import pytest

from worldmodel.actions import ActionSpec
from worldmodel.errors import UserError
from worldmodel.evaluate.compare.arms import Arm, Measured
from worldmodel.evaluate.compare.following import following_of, following_verdicts, quotient
from worldmodel.evaluate.compare.reader import Reader, recordings_key
from worldmodel.evaluate.compare.statistics import Readings
from worldmodel.evaluate.following import Judged
from worldmodel.evaluate.recordings import ArrayRecordings, Recording
from worldmodel.evaluate.statistics import r2, sign_agreement

NAMES = ("turn", "forward", "strafe")
RNG = np.random.default_rng(0)
SHORT, LONG = RNG.uniform(-1, 1, (5, 7, 3)), RNG.uniform(-1, 1, (2, 4, 9, 3))


def reader() -> Reader:
    """The third action cannot be read; the second one never goes backwards."""
    spec = ActionSpec(names=NAMES, low=(-1.0, 0.0, -1.0), high=(1.0, 1.0, 1.0))
    nothing: Any = None
    judged = Judged(NAMES, SHORT, SHORT)
    return Reader(nothing, spec, nothing, SHORT, LONG, judged, judged, np.array([True, True, False]))


def noisy(true, spread, seed):
    return true + spread * np.random.default_rng(seed).normal(size=true.shape)


def test_scores_are_means_over_valid_actions_of_all_readings():
    short, long = [noisy(SHORT, s, 1) for s in (0.2, 0.4)], [noisy(LONG, s, 2) for s in (0.2, 0.4)]
    found = following_of(reader(), short, long)
    for seed in range(2):
        expected = [r2(SHORT[..., d].ravel(), short[seed][..., d].ravel()) for d in (0, 1)]
        assert found.short.values[seed] == pytest.approx(np.mean(expected))
        rest = [r2(SHORT[[0, 1, 3, 4], :, d].ravel(), short[seed][[0, 1, 3, 4], :, d].ravel()) for d in (0, 1)]
        assert found.short.without[seed, 2] == pytest.approx(np.mean(rest))
        last = [r2(LONG[1, ..., d].ravel(), long[seed][1, ..., d].ravel()) for d in (0, 1)]
        assert found.long.values[seed, 1] == pytest.approx(np.mean(last))
        assert found.sign_last is not None
        share, _ = sign_agreement(LONG[1, ..., 0], long[seed][1, ..., 0], 0.3)  # of the turns alone
        assert found.sign_last.values[seed] == pytest.approx(share)
    assert found.long.without.shape == (2, 4, 2)


def test_verdicts_compare_seed_by_seed():
    good = following_of(reader(), [SHORT] * 2, [LONG] * 2)
    bad = following_of(reader(), [noisy(SHORT, 0.3, s) for s in (1, 2)], [noisy(LONG, 0.7, s) for s in (3, 4)])
    nothing: Any = (None, None)
    arms = [Measured(Arm(name, ("x", "y")), nothing) for name in ("base", "new")]
    outcomes = [outcome for _, outcome, _ in following_verdicts(arms, [bad, good])]
    assert outcomes == [True, True] or outcomes == [True, "not shown"]
    short, last = (outcome for _, outcome, _ in following_verdicts(arms, [good, bad]))
    assert short is False
    assert last is False
    same = [outcome for _, outcome, _ in following_verdicts(arms, [bad, bad])]
    assert same == [True, False]  # as good at short horizon, not better in the last window


def test_quotient_to_a_deaf_baseline_means_nothing():
    good = Readings(np.array([0.6, 0.8]), np.ones((2, 3)))
    deaf, doubtful = (Readings(np.array([0.5, v]), np.full((2, 3), w)) for v, w in ((-0.1, 0.5), (0.5, 0.05)))
    assert quotient(good, deaf) is None
    assert quotient(good, doubtful) is None
    found = quotient(deaf.first(1), good)
    assert found is not None
    assert found.values == pytest.approx([0.5 / 0.6])


def test_action_that_never_changes_is_named():
    still = np.zeros_like(LONG)
    quiet = reader()
    quiet = Reader(
        quiet.probe, quiet.spec, quiet.last_seen, SHORT, still, quiet.real_short, quiet.real_long, quiet.valid
    )
    with pytest.raises(UserError, match="an action never changes in window 1"):
        following_of(quiet, [SHORT], [LONG])


def test_key_of_recordings_sees_pixels_actions_and_lengths():
    def recordings(value=0, action=0.0, frames=9):
        pixels, actions = np.full((frames, 4, 4, 3), value, np.uint8), np.full((frames, 1), action)
        return ArrayRecordings((Recording(pixels, actions),) * 2, ("a",))

    keys = [recordings_key(recordings(**change)) for change in ({}, {"value": 1}, {"action": 1.0}, {"frames": 10})]
    assert len(set(keys)) == 4
    assert recordings_key(recordings()) == keys[0]
