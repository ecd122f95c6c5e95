"""PushT: our view of gym-pusht shows what gym-pusht shows; seeds, success and the two policies."""

import math

import numpy as np
import pytest

from worldmodel import capabilities
from worldmodel.datasets.worlds import open_world, pusht
from worldmodel.datasets.worlds.base import WorldOptions
from worldmodel.datasets.worlds.pusht import STEM, PushT
from worldmodel.errors import UserError

simulator = pytest.mark.needs("pusht")


def open_table(**options) -> PushT:
    world = open_world("pusht", WorldOptions(**{"size": 64, **options}))
    assert isinstance(world, PushT)
    return world


@simulator
def test_a_seed_decides_the_episode():
    world, other = open_table(), open_table()
    other.reset(seed=9)
    first, _ = world.reset(seed=4)
    again, _ = other.reset(seed=4)
    rngs = [np.random.default_rng(0), np.random.default_rng(0)]
    for _ in range(30):
        for name in ("image", "state"):
            np.testing.assert_array_equal(first[name], again[name])
        first, *_ = world.step(world.behaviour(first, rngs[0]))
        again, *_ = other.step(other.behaviour(again, rngs[1]))
    starts = np.stack([world.reset(seed=seed)[0]["state"] for seed in range(8)])
    assert (starts.std(0) > [50, 50, 40, 40, 0.5]).all()
    assert world.observation_space.contains(first)


@simulator
def test_pictures_and_states_are_those_of_gym_pusht():
    from gym_pusht.envs.pusht import PushTEnv

    peer = PushTEnv(obs_type="pixels", observation_width=512, observation_height=512)
    world = open_table(size=512)
    picture, info = peer.reset(seed=2)
    observation, _ = world.reset(seed=2)
    for target in ([100, 400], [250, 250], [400, 30]):
        np.testing.assert_array_equal(observation["image"], picture)
        np.testing.assert_allclose(observation["state"][:2], info["pos_agent"], rtol=1e-6)
        np.testing.assert_allclose(observation["state"][2:4], info["block_pose"][:2], rtol=1e-6)
        assert observation["state"][4] == pytest.approx(info["block_pose"][2] % (2 * math.pi), rel=1e-6)
        picture, *_, info = peer.step(np.array(target, np.float64))
        observation, *_ = world.step(np.array(target, np.float32))


@simulator
def test_the_pusher_goes_where_the_action_points():
    """y = 512 is the bottom of the picture."""
    world = open_table()
    world.reset(seed=0)
    for target in ([60, 60], [60, 450], [450, 450]):
        observation = [world.step(np.array(target, np.float32))[0] for _ in range(25)][-1]
        np.testing.assert_allclose(observation["state"][:2], target, atol=3)
        blue = np.argwhere(np.abs(observation["image"].astype(int) - [65, 105, 225]).sum(-1) < 60)  # RoyalBlue
        np.testing.assert_allclose(blue.mean(0)[::-1] + 0.5, np.array(target) / 8, atol=0.7)


@simulator
def test_success_is_the_block_on_its_goal():
    world = open_table()
    _, info = world.reset(seed=0)
    assert info["success"] is False
    block = world._env.block
    block.angle = math.pi / 4
    block.position = (256, 256)
    *_, info = world.step(np.array([30, 30], np.float32))
    assert info["success"] is True
    assert info["coverage"] > 0.99
    block.position = (300, 256)
    _, _, terminated, truncated, info = world.step(np.array([30, 30], np.float32))
    assert info["success"] is False
    assert not terminated
    assert not truncated


@simulator
def test_the_push_policy_moves_the_block_and_the_other_wanders(monkeypatch):
    monkeypatch.setattr(PushT, "_draw", lambda self: np.zeros((512, 512, 3), np.uint8))  # takes most of the time
    moved = {}
    for policy in ("push", "random"):
        world = open_table(policy=policy, size=32)
        assert world.behaviour.name == policy
        shares = []
        for seed in range(3):
            observation, _ = world.reset(seed=seed)
            world.behaviour.reset()
            rng = np.random.default_rng(seed)
            states = []
            for _ in range(150):
                action = world.behaviour(observation, rng)
                assert world.action_space.contains(action)
                states.append(observation["state"])
                observation, *_ = world.step(action)
            states = np.stack(states)
            step = np.hypot(*np.diff(states[:, :2], axis=0).T)
            assert 5 < step.mean() < 40
            assert step.max() < 110  # smooth
            shares.append(np.mean(np.hypot(*np.diff(states[:, 2:4], axis=0).T) > 1))
        moved[policy] = np.mean(shares)
    assert moved["push"] > 0.2
    assert moved["push"] > moved["random"] + 0.05


def test_the_way_around_the_block_does_not_enter_it():
    """From one side of a disc of the block's reach to the other: never closer than about half of it."""
    block, pusher, target = np.zeros(2), np.array([-150.0, 5.0]), np.array([150.0, 0.0])
    nearest = math.inf
    for _ in range(100):
        way = target - pusher
        if np.hypot(*way) < 12:
            break
        way = pusht._around(pusher, way, block)
        pusher = pusher + 15 * way / np.hypot(*way)
        nearest = min(nearest, float(np.hypot(*pusher)))
    assert np.hypot(*(target - pusher)) < 12
    assert nearest > STEM * 0.75


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("pusht/easy", WorldOptions(), "no variants"),
        ("pusht", WorldOptions(camera="side"), "one camera, top"),
        ("pusht", WorldOptions(policy="expert"), "choose push or random"),
        ("pusht", WorldOptions(depth=True), "no depth"),
        ("pusht", WorldOptions(size=600), "32 to 512 pixels, not 600"),
    ],
)
def test_what_it_does_not_offer_is_one_clear_line(name, options, message):
    with pytest.raises(UserError, match=message):
        open_world(name, options)


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setattr(capabilities, "installed", lambda package: False)
    with pytest.raises(UserError, match=r"gym-pusht is not installed: `bash setup/install\.sh all`"):
        open_world("pusht")
