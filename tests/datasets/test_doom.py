"""The doom world: actions against the exact pose, pictures against actions, seeds, and what its explorer collects."""

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from worldmodel.datasets.worlds import open_world
from worldmodel.datasets.worlds.base import Observation, WorldOptions
from worldmodel.datasets.worlds.doom import Doom
from worldmodel.errors import UserError

TURN_LEFT = np.array([5, 0, 0], np.float32)
STAND = np.zeros(3, np.float32)


@pytest.fixture(scope="module")
def rooms() -> Iterator[Doom]:
    world = open_world("doom", WorldOptions(size=64, depth=True))
    assert isinstance(world, Doom)
    yield world
    world.close()


@pytest.fixture(scope="module")
def freedoom() -> Iterator[Doom]:
    world = open_world("doom/freedoom")
    assert isinstance(world, Doom)
    yield world
    world.close()


def explore(world: Doom, seed: int, frames: int) -> tuple[list[Observation], NDArray[np.float32]]:
    rng = np.random.default_rng(seed)
    observation, _ = world.reset(seed=seed)
    world.behaviour.reset()
    seen, actions = [], []
    for _ in range(frames):
        action = world.behaviour(observation, rng)
        seen.append(observation)
        actions.append(action)
        observation, _, terminated, truncated, _ = world.step(action)
        assert not terminated and not truncated
    return seen, np.stack(actions)


@pytest.mark.parametrize("name", ["rooms", "freedoom"])
def test_an_episode_is_a_function_of_its_seed(name: str, request: pytest.FixtureRequest) -> None:
    world = request.getfixturevalue(name)
    first, first_actions = explore(world, 7, 60)
    other, _ = explore(world, 8, 60)
    again, again_actions = explore(world, 7, 60)
    np.testing.assert_array_equal(first_actions, again_actions)
    for one, two in zip(first, again, strict=True):
        np.testing.assert_array_equal(one["image"], two["image"])
        np.testing.assert_array_equal(one["state"], two["state"])
    assert not np.array_equal(first[0]["state"], other[0]["state"])


def test_observations_fit_their_space(rooms: Doom) -> None:
    observation, _ = rooms.reset(seed=1)
    assert set(observation) == set(rooms.observation_space.spaces)  # type: ignore[attr-defined]
    assert rooms.observation_space.contains(observation)
    assert observation["image"].shape == (64, 64, 3)
    np.testing.assert_array_equal(rooms.render(), observation["image"])


@pytest.mark.parametrize("turn", [5.0, -3.5, 10.0, 25.0])
def test_angle_grows_by_the_turn(rooms: Doom, turn: float) -> None:
    before, _ = rooms.reset(seed=2)
    after, *_ = rooms.step(np.array([turn, 0, 0], np.float32))
    grown = (after["state"][2] - before["state"][2] + 180) % 360 - 180
    assert grown == pytest.approx(min(turn, 10.0), abs=0.02)  # the engine's angles have 16 bits per tic


@pytest.mark.parametrize(("action", "bearing"), [((0, 1, 0), 0), ((0, -1, 0), 180), ((0, 0, 1), 90), ((0, 0, -1), -90)])
def test_moves_go_where_they_say(rooms: Doom, action: tuple[float, ...], bearing: float) -> None:
    before, _ = rooms.reset(seed=4)
    after, *_ = rooms.step(np.array(action, np.float32))
    moved = after["state"][:2] - before["state"][:2]
    heading = np.degrees(np.arctan2(moved[1], moved[0])) - before["state"][2]
    assert np.hypot(*moved) > 1
    assert abs((heading - bearing + 180) % 360 - 180) < 1.0


def test_the_picture_moves_right_when_turning_left(rooms: Doom) -> None:
    """A turn of 5 degrees shifts the middle of a 90-degree picture of 64 pixels by 32 tan 5 = 2.8 pixels."""
    shifts = []
    for seed in range(8):
        before, _ = rooms.reset(seed=seed)
        after, *_ = rooms.step(TURN_LEFT)
        shifts.append(_shift(before["image"].astype(float), after["image"].astype(float)))
    assert np.median(shifts) in (2, 3)
    assert sum(shift > 0 for shift in shifts) >= 7


def _shift(before: NDArray[np.floating], after: NDArray[np.floating]) -> int:
    """Pixels by which the middle of the picture went right."""
    middle = before[16:48, 20:44]
    errors = {s: np.mean((after[16:48, 20 + s : 44 + s] - middle) ** 2) for s in range(-8, 9)}
    return min(errors, key=lambda s: errors[s])


def test_the_picture_is_upright_and_has_colour(rooms: Doom) -> None:
    """Floors are brown stone, so red is the strongest channel; the depth grows towards the middle."""
    floors, depths = [], []
    for seed in range(16):
        observation, _ = rooms.reset(seed=seed)
        floors.append(observation["image"][-4:].mean((0, 1)))
        depths.append(observation["depth"].mean(1))
    red, green, blue = np.mean(floors, 0)
    assert red > green > blue
    profile = np.mean(depths, 0)
    assert profile[32] > profile[0] + 0.5 and profile[32] > profile[-1] + 0.5


@pytest.mark.parametrize("size", [64, 128])
def test_depth_is_the_distance_to_the_wall(size: int) -> None:
    """The first room's west wall is the line x = 160."""
    world = Doom(size=size, depth=True)
    try:
        world.reset(seed=0)
        for x in (190, 220, 250, 280, 310):
            world._game.send_game_command(f"warp {x} -176")
            observation = face(world, 180.0)
            assert observation["state"][0] == pytest.approx(x, abs=0.1)
            middle = observation["depth"][size // 2, size // 2]
            assert middle == pytest.approx((x - 160) / 32, abs=0.17)  # one step of the depth buffer
    finally:
        world.close()


def face(world: Doom, angle: float) -> Observation:
    observation, *_ = world.step(STAND)
    while abs(left := (angle - float(observation["state"][2]) + 180) % 360 - 180) > 0.1:
        observation, *_ = world.step(np.array([left, 0, 0], np.float32))
    return observation


def test_standing_still_keeps_pose_and_picture(rooms: Doom) -> None:
    before, _ = rooms.reset(seed=3)
    for _ in range(30):
        after, *_ = rooms.step(STAND)
        np.testing.assert_array_equal(after["state"], before["state"])


@pytest.mark.parametrize("name", ["rooms", "freedoom"])
def test_explorer_collects_identifiable_actions_in_many_places(name: str, request: pytest.FixtureRequest) -> None:
    world = request.getfixturevalue(name)
    actions, states = [], []
    for seed in range(6):
        seen, acted = explore(world, seed, 500)
        actions.append(acted)
        states.append(np.stack([o["state"] for o in seen]))
    flat = np.concatenate(actions)
    assert np.all(np.abs(flat) <= world.action_space.high)
    assert np.all(np.abs(np.corrcoef(flat.T) - np.eye(3)) < 0.2)
    assert np.all(flat.std(0) > [3, 0.3, 0.15])
    assert abs(flat[:, 0].mean()) < 1
    assert np.mean(np.all(flat == 0, 1)) > 0.005  # stands still now and then
    steps = np.concatenate([np.hypot(*np.diff(state[:, :2], axis=0).T) for state in states])
    assert np.mean(steps > 0.5) > 0.6  # but mostly moves
    cells = [[tuple(cell) for cell in (state[:, :2] // 80).astype(int)] for state in states]
    assert np.mean([len(set(visit)) for visit in cells]) > 9
    assert np.mean([_revisits(visit) for visit in cells]) > 4


def _revisits(cells: list[tuple[int, ...]]) -> int:
    """How often a place is entered again after having been left."""
    entered = [cells[0]] + [b for a, b in pairwise(cells) if a != b]
    return len(entered) - len(set(entered))


def test_freedoom_starts_in_many_places(freedoom: Doom) -> None:
    starts = {tuple(freedoom.reset(seed=seed)[0]["state"][:2].round()) for seed in range(60)}
    assert len(starts) > 15


def test_nothing_is_left_in_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    world = open_world("doom", WorldOptions(size=96))
    observation, _ = world.reset(seed=0)
    world.close()
    assert observation["image"].shape == (96, 96, 3)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("dom", WorldOptions(), "unknown world 'dom'"),
        ("doom/e1m1", WorldOptions(), "unknown world 'doom/e1m1'"),
        ("doom", WorldOptions(size=1000), "16 to 384"),
        ("doom", WorldOptions(camera="top"), "'top'"),
        ("doom", WorldOptions(policy="expert"), "'expert'"),
    ],
)
def test_bad_choices_are_named(name: str, options: WorldOptions, message: str) -> None:
    with pytest.raises(UserError, match=message):
        open_world(name, options)
