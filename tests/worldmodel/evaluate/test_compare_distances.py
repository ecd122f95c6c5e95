"""Distances above the floor against values computed one by one, and when a quotient of them means something."""

from typing import Any

import numpy as np
import pytest
import torch

from worldmodel.evaluate.compare.arms import Arm, Measured
from worldmodel.evaluate.compare.distances import quotient
from worldmodel.evaluate.compare.measure import Measurement
from worldmodel.evaluate.compare.statistics import Curves
from worldmodel.evaluate.frechet import frechet_distance, reference_of
from worldmodel.evaluate.long_rollouts import Scale
from worldmodel.evaluate.windows import left_out_distances, real_floor


def test_a_start_is_left_out_of_the_window_and_of_the_floor():
    rng = torch.Generator().manual_seed(0)
    real, windows = (torch.randn(n, 4, 10, 3, generator=rng, dtype=torch.float64) for n in (3, 2))
    reference = torch.randn(60, 3, generator=rng, dtype=torch.float64)
    nothing: Any = None
    scale = Scale(nothing, reference_of(reference), real_floor(reference_of(reference), real))
    pairs = [left_out_distances(scale.reference, window) for window in windows]
    rest: Any = [np.zeros(0)] * 7
    found = Measurement(np.array([[p[0] for p in pairs]]), np.array([[p[1] for p in pairs]]), *rest)
    curves = Measured(Arm("a", ("x",)), (found,)).curves(0, scale)

    def above_floor(window, rows):
        floors = [frechet_distance(draw[rows].flatten(0, 1), reference) for draw in real]
        return frechet_distance(window[rows].flatten(0, 1), reference) - np.mean(floors)

    for w, window in enumerate(windows):
        assert curves.values[0, w] == pytest.approx(above_floor(window, [0, 1, 2, 3]), rel=1e-9)
        assert curves.without[0, 1, w] == pytest.approx(above_floor(window, [0, 2, 3]), rel=1e-9)


def test_quotient_of_a_first_window_at_the_floor_means_nothing():
    def curve(first, spread):
        without = np.stack([[first - spread, 4.0], [first, 4.0], [first + spread, 4.0]])[None]
        return Curves(np.array([[first, 4.0]]), without)

    assert quotient(curve(2.0, 0.1)).value == pytest.approx(2)
    assert quotient(curve(0.2, 0.1)) is None  # the interval holds 0
    assert quotient(curve(0.2, 0.5)) is None  # one start left out, and it is below the floor
    assert quotient(curve(-0.5, 0.1)) is None
