"""Meta-World: seeds that apply, cameras the right way up, policies, and an end that does not raise."""

import numpy as np
import pytest

from worldmodel import capabilities
from worldmodel.datasets.worlds import metaworld, open_world
from worldmodel.datasets.worlds.base import WorldOptions
from worldmodel.datasets.worlds.metaworld import CAMERAS, MetaWorld, RandomMotion
from worldmodel.errors import UserError

simulator = pytest.mark.needs("metaworld")


def open_task(task: str = "push", **options) -> MetaWorld:
    world = open_world(f"metaworld/{task}", WorldOptions(**{"size": 32, **options}))
    assert isinstance(world, MetaWorld)
    return world


@pytest.fixture
def blind(monkeypatch):
    """No drawing, which takes most of the time."""
    monkeypatch.setattr(MetaWorld, "_draw", lambda self: np.zeros((64, 64, 3), np.uint8))


@simulator
def test_a_seed_decides_the_episode_whatever_came_before():
    world, other = open_task(policy="noisy"), open_task(policy="noisy")
    other.reset(seed=5)
    for _ in range(3):
        other.step(np.array([1, -1, 1, 1], np.float32))
    first, _ = world.reset(seed=3)
    again, _ = other.reset(seed=3)
    rngs = [np.random.default_rng(0), np.random.default_rng(0)]
    for _ in range(4):
        for name in ("image", "state", "privileged"):
            np.testing.assert_array_equal(first[name], again[name])
        first, *_ = world.step(world.behaviour(first, rngs[0]))
        again, *_ = other.step(other.behaviour(again, rngs[1]))
    world.close()
    other.close()


@simulator
@pytest.mark.parametrize("task", ["push", "door-open", "pick-place", "basketball"])
def test_other_seeds_put_the_object_elsewhere(task, blind):
    world = open_task(task)
    seen = np.stack([world.reset(seed=seed)[0]["privileged"] for seed in range(6)])
    assert len(np.unique(seen[:, 4:7].round(4), axis=0)) == 6  # the first object
    assert len(np.unique(seen[:, -3:].round(4), axis=0)) == 6  # the goal
    assert np.ptp(seen[:, :3], axis=0).max() < 1e-3  # the hand starts at one place
    world.close()


@simulator
@pytest.mark.parametrize("task", ["reach", "push", "drawer-open", "window-close"])
def test_the_first_observation_shows_where_things_are(task):
    """Where a step puts what does not move by itself; Meta-World's own reset leaves goals and objects elsewhere."""
    world = open_task(task)
    for seed in (3, 4):
        first = world.reset(seed=seed)[0]
        sites, geoms = world._env.data.site_xpos.copy(), world._env.data.geom_xpos.copy()
        after, *_ = world.step(np.array([0, 0, 0, -1], np.float32))
        np.testing.assert_allclose(world._env.data.site_xpos, sites, atol=0.01)
        np.testing.assert_allclose(world._env.data.geom_xpos, geoms, atol=0.01)
        np.testing.assert_allclose(first["privileged"][4:7], after["privileged"][4:7], atol=0.01)
        np.testing.assert_array_equal(first["privileged"][18:36], first["privileged"][:18])
        np.testing.assert_allclose(world._env.data.site("goal").xpos, first["privileged"][-3:], atol=0.01)
    world.close()


@simulator
@pytest.mark.slow
def test_seeds_apply_in_every_task(blind):
    from metaworld.env_dict import ALL_V3_ENVIRONMENTS

    assert len(ALL_V3_ENVIRONMENTS) == 50
    for name in ALL_V3_ENVIRONMENTS:
        world = open_task(name)
        one, two, again = (world.reset(seed=seed)[0]["privileged"] for seed in (1, 2, 1))
        np.testing.assert_array_equal(one, again, err_msg=name)
        assert np.abs(one - two).max() > 1e-3, name
        world.close()


@simulator
def test_cameras_are_the_right_way_up():
    """From the cameras' own axes: up in the picture is up in the world, or away from the robot when seen from above."""
    world = open_task()
    world.reset(seed=0)
    for camera, upside_down in CAMERAS.items():
        up = world._env.data.cam(camera).xmat.reshape(3, 3)[:, 1] * (-1 if upside_down else 1)
        if camera == "topview":
            assert up[1] > 0.9
        elif camera != "gripperPOV":  # mounted on the hand, sideways
            assert up[2] > 0.1, camera
    world.close()


@simulator
def test_a_camera_that_hangs_upside_down_is_turned_by_180_degrees(monkeypatch):
    world = open_task(camera="corner2")
    turned = world.reset(seed=0)[0]["image"]
    monkeypatch.setitem(CAMERAS, "corner2", False)
    raw = world.reset(seed=0)[0]["image"]
    assert np.abs(turned.astype(int) - raw).max() > 50
    assert np.abs(turned.astype(int) - raw[::-1, ::-1]).max() <= 1
    assert world.facts.camera == "corner2"
    world.close()


@simulator
def test_state_is_the_hand_and_its_opening(blind):
    """z = 1 moves the hand up by about a centimetre a frame, grip = 1 closes it."""
    world = open_task()
    before = world.reset(seed=0)[0]["state"]
    after = [world.step(np.array([0, 0, 1, 1], np.float32))[0]["state"] for _ in range(10)][-1]
    rise = after - before
    np.testing.assert_allclose(rise[:2], 0, atol=0.01)
    assert 0.05 < rise[2] <= 0.1
    assert before[3] > 0.95
    assert after[3] < 0.8
    world.close()


@simulator
def test_the_end_is_truncation_and_never_an_error(blind):
    world = open_task(policy="random")
    world.reset(seed=0)
    world._env.max_path_length = 12
    ends = [world.step(np.zeros(4, np.float32))[3] for _ in range(12)]
    assert ends == [False] * 11 + [True]
    last = world._observation
    observation, _, terminated, truncated, _ = world.step(np.ones(4, np.float32))
    assert observation is last
    assert truncated
    assert not terminated
    world.reset(seed=1)
    assert not world.step(np.zeros(4, np.float32))[3]
    world.close()


@simulator
@pytest.mark.parametrize("policy", ["expert", "noisy:0.2"])
def test_experts_succeed(policy, blind):
    solved = 0
    for seed in range(3):
        world = open_task("drawer-open", policy=policy)
        observation, info = world.reset(seed=seed)
        rng, success = np.random.default_rng(seed), info["success"]
        assert not success
        for _ in range(150):
            observation, _, _, _, info = world.step(world.behaviour(observation, rng))
            success |= info["success"]
        solved += success
        world.close()
    assert solved == 3


@simulator
def test_noise_has_the_stated_sigma(blind):
    expert, noisy = open_task("reach", policy="expert"), open_task("reach", policy="noisy:0.1")
    observation, _ = expert.reset(seed=0)
    for _ in range(60):  # near the goal, where the expert's actions are small and nothing is clipped
        observation, *_ = expert.step(expert.behaviour(observation, np.random.default_rng(0)))
    rng = np.random.default_rng(1)
    clean = expert.behaviour(observation, rng)
    assert np.abs(clean[:3]).max() < 0.5
    noise = np.stack([noisy.behaviour(observation, rng) - clean for _ in range(4000)])[:, :3]
    np.testing.assert_allclose(noise.mean(0), 0, atol=0.008)
    np.testing.assert_allclose(noise.std(0), 0.1, rtol=0.05)
    assert noisy.behaviour.name == "noisy:0.1"
    assert open_task("reach", policy="noisy").behaviour.name == "noisy:0.3"


def test_random_motion_is_smooth_and_wide():
    motion, rng = RandomMotion(), np.random.default_rng(0)
    actions = np.concatenate([[motion({}, rng) for _ in range(200)] for _ in range(20)])
    assert np.abs(actions).max() <= 1
    np.testing.assert_allclose(actions.std(0), 0.55, atol=0.08)  # 0.6 less what is clipped
    lagged = [np.corrcoef(actions[:-1, k], actions[1:, k])[0, 1] for k in range(4)]
    assert min(lagged) > 0.9
    assert np.abs(np.corrcoef(actions.T) - np.eye(4)).max() < 0.25


@simulator
def test_depth_is_in_metres():
    """Of the table seen from 1.5 m above."""
    world = open_task(camera="topview", depth=True)
    observation, _ = world.reset(seed=0)
    camera = world._env.data.cam("topview").xpos[2]
    assert observation["depth"].dtype == np.float32
    assert observation["depth"].shape == (32, 32)
    assert np.median(observation["depth"]) == pytest.approx(camera, abs=0.05)
    assert world.observation_space.contains(observation)
    world.close()


@simulator
@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("metaworld", WorldOptions(), "give one of its 50 tasks, such as metaworld/push"),
        ("metaworld/door-opn", WorldOptions(), "such as metaworld/door-open"),
        ("metaworld/push", WorldOptions(camera="side"), "no camera 'side': choose from corner"),
        ("metaworld/push", WorldOptions(policy="explore"), "no policy 'explore'"),
        ("metaworld/push", WorldOptions(policy="noisy:much"), "noise must be a number"),
        ("metaworld/push", WorldOptions(policy="noisy:nan"), "noise must be a number"),
        ("metaworld/push", WorldOptions(size=16), "32 to 240 pixels, not 16"),
    ],
)
def test_what_it_does_not_offer_is_one_clear_line(name, options, message):
    with pytest.raises(UserError, match=message):
        open_world(name, options)


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setattr(capabilities, "installed", lambda package: False)
    with pytest.raises(UserError, match=r"metaworld is not installed: `bash setup/install\.sh all`"):
        metaworld.open_world("push", WorldOptions())


def test_missing_egl_names_the_debian_package(monkeypatch):
    """With the check that `doctor` prints, made to fail as it does without the library."""
    monkeypatch.setattr(capabilities, "installed", lambda package: True)
    monkeypatch.setattr(capabilities, "probe", lambda code: capabilities.Answer(False, "no attribute 'eglQueryString'"))
    monkeypatch.setattr(capabilities, "check", lambda name: capabilities._egl())
    with pytest.raises(UserError, match=r"cannot draw, EGL broken: .* apt-get install libegl1 libgl1"):
        metaworld.open_world("push", WorldOptions())
