"""Curves of an arm against distances computed one by one, and against `evaluate drift`."""

from typing import Any

import numpy as np
import panorama
import pytest
import torch
from test_compare import SIZES, WORLDS

from worldmodel.encoders.frames import open_encoder
from worldmodel.evaluate.compare_arms import Arm, Measured
from worldmodel.evaluate.compare_bench import prepare
from worldmodel.evaluate.compare_measure import Measurement, measure, model_key
from worldmodel.evaluate.frechet import frechet_distance, reference_of
from worldmodel.evaluate.long_rollouts import Scale, drift_of, roll_long, scale_of
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


def test_distances_are_those_of_evaluate_drift():
    """The comparison keeps single frames of a rollout, `evaluate drift` all of them: the windows are the same."""
    world, recordings = WORLDS["n0"], panorama.recordings(6, 70, seed=3)
    bench = prepare(world, recordings, SIZES)
    judge = open_encoder("autoencoder", world.tokenizer)
    scale = scale_of(judge, bench.course.reference, bench.course.real_windows)
    found = measure(world, bench, (scale,), None, lambda frames: None)
    long = roll_long(
        world, recordings, SIZES.rollouts, SIZES.context, SIZES.frames, SIZES.window, SIZES.reference, SIZES.seeds
    )
    drift = drift_of(judge, long, SIZES.windows)
    assert bench.starts == drift.starts
    assert found.raw[0] == pytest.approx([each.raw for each in drift.distances], rel=1e-9)
    assert scale.floor.value == pytest.approx(drift.distances[0].floor, rel=1e-9)
    assert (found.sheet[:, -1] == long.made[:, -1]).all()
    assert (found.film == long.made).all()


def test_key_of_a_model_sees_weights_and_sampler():
    other = panorama.with_sampler(WORLDS["e0"], panorama.Euler(steps=2))
    keys = [model_key(world) for world in (WORLDS["e0"], WORLDS["e1"], other)]
    assert len(set(keys)) == 3
    assert model_key(WORLDS["e0"]) == keys[0]
