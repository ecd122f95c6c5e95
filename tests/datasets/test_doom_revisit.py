"""Revisits in doom: the body rests, the view comes back pixel for pixel."""

import numpy as np

from worldmodel.datasets.worlds import open_world
from worldmodel.datasets.worlds.base import WorldOptions
from worldmodel.datasets.worlds.doom import Doom
from worldmodel.datasets.worlds.turning import HORIZONS
from worldmodel.evaluate.context.visits import visits


def test_it_turns_away_and_comes_back_to_the_same_picture() -> None:
    world = open_world("doom", WorldOptions(size=32, policy="revisit"))
    assert isinstance(world, Doom)
    found = []
    for seed in (1, 3):
        rng, (observation, _) = np.random.default_rng(seed), world.reset(seed=seed)
        world.behaviour.reset()
        poses, pictures, actions = [], [], []
        for _ in range(420):
            action = world.behaviour(observation, rng)
            poses.append(observation["state"][:3].astype(float))
            pictures.append(observation["image"].astype(int))
            actions.append(action)
            assert world.action_space.contains(action)
            observation, *_ = world.step(action)
        path = np.stack(poses)
        for visit in visits(path):
            if visit.horizon not in HORIZONS:
                continue  # the explorer between two visits stood still and looked around
            found.append(visit.horizon)
            np.testing.assert_array_equal(path[visit.back, :2], path[visit.look, :2])
            assert abs((path[visit.back, 2] - path[visit.look, 2] + 180) % 360 - 180) <= 0.05
            stay = slice(visit.look, visit.back)
            assert (path[stay, :2] == path[visit.look, :2]).all()
            assert not np.any(np.stack(actions)[stay, 1:])
            away = np.abs(pictures[visit.away[0]] - pictures[visit.look]).mean()
            assert np.abs(pictures[visit.back] - pictures[visit.look]).mean() < 0.15 * away
    world.close()
    assert len(found) >= 4
