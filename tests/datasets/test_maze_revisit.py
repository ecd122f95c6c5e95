"""Revisits in the maze: poses that return, landmarks that are out of sight in between, by the maze's own raycaster."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from worldmodel.datasets.worlds import open_world
from worldmodel.datasets.worlds.base import WorldOptions
from worldmodel.datasets.worlds.maze import VectorMaze
from worldmodel.datasets.worlds.maze.away import Place, Walk, trip
from worldmodel.datasets.worlds.maze.layout import generate
from worldmodel.datasets.worlds.maze.motion import MAX_TURN, settled
from worldmodel.datasets.worlds.maze.raycast import stack
from worldmodel.datasets.worlds.maze.sight import FAR, NEAR, choose_view, showing, view_from
from worldmodel.datasets.worlds.turning import APART, HORIZONS, turned_away, wrapped
from worldmodel.evaluate.context.visits import visits

FRAMES, ROWS = 400, 6


def record(seed: int, rows: int = ROWS, frames: int = FRAMES, name: str = "maze/small"):
    """The world, exact poses [N, T, 3], actions [N, T, 2] and pictures."""
    world = open_world(name, WorldOptions(size=16, policy="revisit", rows=rows))
    assert isinstance(world, VectorMaze)
    observation, _ = world.reset(seed=seed)
    world.behaviour.reset()
    rngs = [np.random.default_rng(seed + row) for row in range(rows)]
    poses, actions, pictures = [], [], []
    for _ in range(frames):
        action = world.behaviour(observation, rngs)
        assert world.action_space.contains(action)
        poses.append(world.pose)
        actions.append(action)
        pictures.append(observation["image"].copy())
        observation, *_ = world.step(action)
    return world, np.stack(poses, 1), np.stack(actions, 1), np.stack(pictures, 1)


@pytest.fixture(scope="module")
def recorded():
    return record(300)


def test_it_comes_back_to_the_pose_and_the_landmark_is_out_of_sight_in_between(recorded):
    world, poses, _, pictures = recorded
    horizons, same = [], []
    for layout, path, seen in zip(world.layouts, poses, pictures, strict=True):
        for visit in visits(path):
            look, back = path[visit.look], path[visit.back]
            assert np.hypot(*(back - look)[:2]) <= 0.02
            assert abs(wrapped(back[2] - look[2])) <= 1
            views = [view_from(layout, mark, look[0], look[1], 0.0) for mark in layout.landmarks]
            near = [view for view in views if view is not None and abs(wrapped(view.angle - look[2])) <= 15]
            if visit.horizon not in HORIZONS or not near:
                continue  # the explorer between two visits stood still and looked around
            horizons.append(visit.horizon)
            first, last = visit.away
            hidden = [not showing(layout, view.mark, path[first : last + 1], 16).any() for view in near]
            assert any(hidden)
            assert showing(layout, near[hidden.index(True)].mark, path[[visit.look, visit.back]], 16).any(1).all()
            same.append(np.abs(seen[visit.back].astype(int) - seen[visit.look]).mean())
    assert len(horizons) >= 10
    assert len(set(horizons)) >= 4
    assert np.median(same) == 0  # the picture too is the same, but where a door in it has moved


def test_a_seed_decides_all_and_other_seeds_have_other_mazes(recorded):
    world, poses, actions, _ = recorded
    _, again, same, _ = record(300, rows=2, frames=150)
    np.testing.assert_array_equal(again, poses[:2, :150])
    np.testing.assert_array_equal(same, actions[:2, :150])
    assert all(one.landmarks != world.layouts[0].landmarks for one in world.layouts[1:])


def test_it_moves_like_somebody_who_explores(recorded):
    _, _, actions, _ = recorded
    turn, forward = actions[..., 0], actions[..., 1]
    assert abs(np.mean(turn > 1) - np.mean(turn < -1)) < 0.15
    assert np.mean(np.abs(turn) >= MAX_TURN) < 0.1
    assert np.mean(forward > 0.3) > 0.1


@pytest.mark.parametrize("name", ["maze", "maze/large", "maze/home"])
def test_every_maze_offers_it(name):
    _, poses, _, _ = record(1, rows=2, frames=250, name=name)
    assert sum(len(visits(path)) for path in poses) >= 1


@given(st.sampled_from(HORIZONS), st.integers(0, 10**6))
@settings(max_examples=100, deadline=None)
def test_turning_away_takes_exactly_its_frames_in_small_steps(frames, seed):
    turned = np.array([0.0, *turned_away(frames, np.random.default_rng(seed))])
    assert np.abs(np.diff(turned)).max() <= 9.95
    assert wrapped(turned[-1]) == 0
    away = np.abs((turned + 180) % 360 - 180) >= 90
    assert away.sum() == frames
    first = int(away.argmax())
    assert away[first : first + frames].all()
    assert np.abs(wrapped(turned[first])) >= APART - 1e-9


@pytest.mark.parametrize("seed", range(4))
def test_a_trip_is_out_of_sight_for_its_frames_and_can_be_walked(seed):
    """Walks through the plan with the maze's own motion: every pose is reached by an action of the range."""
    rng, layout = np.random.default_rng(seed), generate(seed, 2)
    view = choose_view(layout, (3.0, 3.0), None, rng)
    assert view is not None
    assert NEAR <= np.hypot(view.mark.x - view.x, view.mark.y - view.y) <= FAR
    scene, pose = stack([layout]), (view.x, view.y, view.angle)
    place, walked = Place(layout, scene, settled(scene, np.array([pose]))), 0
    for frames in (16, 32, 64, 96, 128) * 4:
        poses = trip(place, view, frames, rng)
        hidden = np.abs((np.array(poses)[:, 2] - view.angle + 180) % 360 - 180) >= 90
        first = int(hidden.argmax())
        last = len(poses) - 1 - int(hidden[::-1].argmax())
        assert last - first + 1 == frames
        assert not showing(layout, view.mark, np.array(poses[first : last + 1])).any()
        np.testing.assert_allclose(poses[-1][:2], pose[:2], atol=1e-12)
        assert abs(wrapped(poses[-1][2] - pose[2])) < 1e-9
        steps = np.diff(np.array([pose, *poses]), axis=0)
        assert np.abs((steps[:, 2] + 180) % 360 - 180).max() <= MAX_TURN + 1e-9
        assert np.hypot(steps[:, 0], steps[:, 1]).max() <= 0.12 + 1e-9
        walked += np.hypot(*(np.array(poses)[:, :2] - pose[:2]).T).max() > 0.3
    assert walked >= 1


def test_a_walk_ends_at_its_spot():
    layout, rng = generate(3, 2), np.random.default_rng(0)
    cells = np.argwhere(layout.room >= 0)
    scene = stack([layout])
    for start, end in rng.permutation(len(cells))[:12].reshape(-1, 2):
        pose = (float(cells[start][0]) + 0.5, float(cells[start][1]) + 0.5, 0.0)
        if any(abs(p.x - q[0]) + abs(p.y - q[1]) < 1 for p in layout.pillars for q in (pose, cells[end] + 0.5)):
            continue
        place = Place(layout, scene, settled(scene, np.array([pose])))
        spot = (float(cells[end][0]) + 0.5, float(cells[end][1]) + 0.5)
        walk = Walk(layout, pose, spot, rng)
        for _ in range(500):
            action = walk.next(pose, rng)
            if action is None:
                break
            pose, place = place.after(pose, action)
        assert np.hypot(pose[0] - spot[0], pose[1] - spot[1]) < 0.15
