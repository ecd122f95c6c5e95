"""Actions merged over the frames that a new rate leaves out or repeats."""

from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from worldmodel.datasets.merge_actions import Merge, merge_actions
from worldmodel.datasets.video import VideoFile

POWERS = 2.0 ** np.arange(10)  # every sum tells which rows are in it


def even(count: int, fps: int) -> VideoFile:
    return VideoFile(Path("a.mp4"), 8, 8, 0, np.arange(count) * (600 // fps), Fraction(1, 600), Fraction(fps), "pyav")


def merged(values: np.ndarray, video: VideoFile, fps: int, how: Merge) -> list[float]:
    return merge_actions(values[:, None], video.pts, video.resampled(Fraction(fps)), how)[:, 0].tolist()


@pytest.mark.parametrize(
    ("rates", "how", "expected"),
    [
        # kept 0 2 4 6 8: whole pairs
        ((30, 15), "sum", [3, 12, 48, 192, 768]),
        ((30, 15), "mean", [1.5, 6, 24, 96, 384]),
        ((30, 15), "last", [2, 8, 32, 128, 512]),
        # kept 0 1 2 4 5 6 7 9, nearest to 0 1.25 2.5 3.75 5 6.25 7.5 8.75
        ((30, 24), "sum", [1, 2, 12, 16, 32, 64, 384, 512]),
        ((30, 24), "mean", [1, 2, 6, 16, 32, 64, 192, 512]),
        ((30, 24), "last", [1, 2, 8, 16, 32, 64, 256, 512]),
        # kept 0 1 2 2 3 4 5 6 6 7 8 9, nearest to 0 0.8 1.6 2.4 3.2 4 4.8 5.6 6.4 7.2 8 8.8
        ((24, 30), "sum", [1, 2, 2, 2, 8, 16, 32, 32, 32, 128, 256, 512]),
        ((24, 30), "mean", [1, 2, 4, 4, 8, 16, 32, 64, 64, 128, 256, 512]),
        ((24, 30), "last", [1, 2, 4, 4, 8, 16, 32, 64, 64, 128, 256, 512]),
        ((30, 30), "sum", POWERS.tolist()),
        ((30, 30), "mean", POWERS.tolist()),
        ((30, 30), "last", POWERS.tolist()),
    ],
)
def test_even_rates(rates, how, expected):
    assert merged(POWERS, even(10, rates[0]), rates[1], how) == expected


def test_a_repeated_frame_before_one_that_is_left_out_shares_both_rows_by_time():
    """Rows of 10 and 30 ticks lead from frame 0 to 2; the copies take 20 ticks each: the cut is 1/3 into row 1."""
    pts, kept, values = np.array([0, 10, 40]), np.array([0, 0, 2]), np.array([[3.0], [9.0], [5.0]])
    np.testing.assert_allclose(merge_actions(values, pts, kept, "sum")[:, 0], [3 + 3, 6, 5], rtol=1e-8)
    np.testing.assert_allclose(merge_actions(values, pts, kept, "mean")[:, 0], [(30 + 90) / 20, 9, 5], rtol=1e-8)
    assert merge_actions(values, pts, kept, "last")[:, 0].tolist() == [9, 9, 5]
    even_pts = np.array([0, 20, 40])  # the cut is the border of the rows
    for how in ("sum", "mean", "last"):
        assert merge_actions(values, even_pts, kept, how)[:, 0].tolist() == [3, 9, 5]


def test_a_cut_at_the_border_of_two_rows_is_there_in_spite_of_rounding():
    """50 rows over 22 copies: half of them end where row 25 begins, at 50 / 22 * 11 = 25 + 4e-15."""
    pts = np.arange(51)
    last = merge_actions(pts[:, None], pts, np.array([0] * 22 + [50]), "last")[:, 0]
    assert last[10] == 24 and last[11] == 27 and last[21] == 49


@given(
    steps=st.lists(st.integers(0, 90), max_size=60),
    fps=st.fractions(min_value=Fraction(1, 2), max_value=200, max_denominator=50),
    seed=st.integers(0, 9),
)
def test_any_times(steps, fps, seed):
    """Totals stay; up to any kept frame the total is that of the rows before it; means are over time."""
    pts = np.cumsum([0, *steps])
    video = VideoFile(Path("a.mp4"), 8, 8, 0, pts, Fraction(1, 1000), Fraction(30), "pyav")
    kept = video.resampled(fps)
    values = np.random.default_rng(seed).normal(size=(len(pts), 2))
    total = merge_actions(values, pts, kept, "sum")
    assert total.shape == (len(kept), 2)
    np.testing.assert_allclose(total.sum(0), values.sum(0), atol=1e-9)
    for k in np.flatnonzero(np.diff(kept)) + 1:  # where another frame begins
        np.testing.assert_allclose(total[:k].sum(0), values[: kept[k]].sum(0), atol=1e-9)
    mean, last = merge_actions(values, pts, kept, "mean"), merge_actions(values, pts, kept, "last")
    time = np.maximum(np.append(np.diff(pts), pts[-1] / max(len(pts) - 1, 1)), 1)
    ends = np.append(kept[1:], len(pts))
    for k in np.flatnonzero(ends > kept):  # frames that are kept once, and last copies
        assert last[k].tolist() == values[ends[k] - 1].tolist()
        if (kept == kept[k]).sum() == 1:
            rows = slice(kept[k], ends[k])
            np.testing.assert_allclose(mean[k], np.average(values[rows], axis=0, weights=time[rows]), atol=1e-9)
    same = np.full((len(pts), 1), 0.7)
    np.testing.assert_allclose(merge_actions(same, pts, kept, "mean"), 0.7, rtol=1e-12)
