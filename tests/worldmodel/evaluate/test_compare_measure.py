"""What is measured of a model against `evaluate drift`, and what its name depends on."""

import panorama
import pytest
from known_worlds import SIZES, WORLDS

from worldmodel.encoders.frames import open_encoder
from worldmodel.evaluate.compare.bench import prepare
from worldmodel.evaluate.compare.measure import measure, model_key
from worldmodel.evaluate.long_rollouts import drift_of, roll_long, scale_of


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
