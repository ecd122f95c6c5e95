"""Meta-World's arm under absolute targets: where the hand goes, shifted and not; what scripts record on it."""

import numpy as np
import pytest

from worldmodel.datasets.worlds.base import WorldOptions
from worldmodel.errors import UserError
from worldmodel.policies.robot import ACTIONS, HandRobot, open_robot
from worldmodel.policies.shifts import NOMINAL, Shift, parse_shift

pytestmark = pytest.mark.needs("metaworld")
DELTA = np.array([0.03, -0.02, 0.04])
OFFSET = "0.03,-0.02,0.04"


@pytest.fixture(scope="module")
def robot():
    opened = open_robot("robot/reach", WorldOptions(size=32))
    opened.close()
    made = HandRobot("reach", size=32)
    yield made
    made.close()


def settle(robot: HandRobot, shift: Shift, target: np.ndarray, steps: int = 120) -> dict:
    robot.become(shift)
    observation, _ = robot.reset(seed=3)
    for _ in range(steps):
        observation, *_ = robot.step(np.append(target, -1).astype(np.float32))
    return observation


def demonstrate(robot: HandRobot, shift: Shift, steps: int = 40) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Actions, states and true hands of the script's episode with seed 5."""
    robot.become(shift)
    observation, _ = robot.reset(seed=5)
    actions, states, hands = [], [], []
    for _ in range(steps):
        actions.append(robot.behaviour(observation, np.random.default_rng(0)))
        states.append(observation["state"])
        hands.append(observation["privileged"][:3])
        observation, *_ = robot.step(actions[-1])
    return np.stack(actions), np.stack(states), np.stack(hands)


@pytest.mark.parametrize(
    ("text", "reached", "read"),
    [
        ("nominal", 0, 0),
        (f"actuation-bias:{OFFSET}", DELTA, DELTA),
        (f"encoder-offset:{OFFSET}", DELTA, 0),
        ("gain:1.2", 0.2 * np.array([0.1, 0.05, 0]), 0.2 * np.array([0.1, 0.05, 0])),
    ],
)
def test_the_hand_settles_at_its_target_or_beside_it(robot, text, reached, read):
    target = np.array([0.1, 0.65, 0.2])
    seen = settle(robot, parse_shift(text), target)
    np.testing.assert_allclose(seen["privileged"][:3], target + reached, atol=2e-3)
    np.testing.assert_allclose(seen["state"][:3], target + read, atol=2e-3)


@pytest.mark.parametrize("text", [f"actuation-bias:{OFFSET}", f"encoder-offset:{OFFSET}", "gain:0.8"])
def test_a_compensating_demonstration_is_the_compensated_recording(robot, text):
    """Collection on a shifted robot and rewriting for training are one thing: the same motion, the same numbers."""
    shift = parse_shift(text)
    actions, states, hands = demonstrate(robot, NOMINAL)
    shifted_actions, shifted_states, shifted_hands = demonstrate(robot, shift)
    np.testing.assert_allclose(shifted_hands, hands, atol=1e-5)
    wanted_actions, wanted_states = shift.compensate(actions, states)
    np.testing.assert_allclose(shifted_actions, wanted_actions, atol=1e-5)
    np.testing.assert_allclose(shifted_states, wanted_states, atol=1e-5)
    assert np.abs(shifted_actions - actions).max() > 0.01


def test_latency_executes_every_action_late(robot):
    def motion(delay: int) -> np.ndarray:
        robot.become(parse_shift(f"latency:{delay}"))
        robot.reset(seed=0)
        target = np.array([0.1, 0.65, 0.2, -1], np.float32)
        return np.stack([robot.step(target)[0]["privileged"][:3] for _ in range(20)])

    prompt, late = motion(0), motion(4)
    assert np.abs(late[:4] - late[0]).max() < 2e-3
    np.testing.assert_allclose(late[4:], prompt[:-4], atol=4e-3)  # it moves by a centimetre a step


def test_a_shifted_camera_sees_another_picture_and_stands_back_afterwards(robot):
    views, others = {}, {}
    for text in ("nominal", "camera-pose:0.1,0,0", "camera-pose:0,0,0,0,0,90", "nominal+nominal"):
        robot.become(parse_shift(text))
        robot.reset(seed=0)
        views[text], others[text] = (picture.astype(int) for picture in robot.look().values())
    assert all((others[text] == others["nominal"]).all() for text in others)
    nominal = views["nominal"]
    assert np.abs(views["camera-pose:0.1,0,0"] - nominal).mean() > 3
    turned = views["camera-pose:0,0,0,0,0,90"]  # about the viewing axis: the square picture turns the other way
    errors = [np.abs(np.rot90(turned, quarters) - nominal).mean() for quarters in (1, 3)]
    assert min(errors) < 2 < 10 < max(errors)
    np.testing.assert_array_equal(views["nominal+nominal"], nominal)


def test_episodes_depend_on_their_seed_and_not_on_what_came_before():
    """All of an episode, through contacts, jolts included: on an old robot and on a new one."""
    old, new = (HandRobot("push", size=32, jolt=0.01) for _ in range(2))
    demonstrate(old, parse_shift("actuation-bias:0.05,0,0"), 70)
    one, two = demonstrate(old, NOMINAL, 70), demonstrate(new, NOMINAL, 70)
    for a, b in zip(one, two, strict=True):
        np.testing.assert_array_equal(a, b)
    old.close()
    new.close()


def test_the_script_succeeds_and_the_episode_ends_after_lingering():
    robot = HandRobot("reach", size=32, linger=5)
    observation, _ = robot.reset(seed=0)
    solved, ended = [], False
    for _ in range(80):
        observation, reward, ended, _, info = robot.step(robot.behaviour(observation, np.random.default_rng(0)))
        solved.append(info["success"])
        assert 0 <= reward <= 1
        if ended:
            break
    assert ended and solved.index(True) == len(solved) - 6
    robot.close()


def test_recording_names_and_draws():
    world = open_robot(f"robot/button-press-v3+encoder-offset:{OFFSET}", WorldOptions(size=32, policy="jolted:0.01"))
    observation, _ = world.reset(seed=0)
    np.testing.assert_array_equal(observation["image"], world.look()["corner4"])
    np.testing.assert_array_equal(observation["image.corner"], world.look()["corner"])
    assert observation["image"].shape == observation["image.corner"].shape == (32, 32, 3)
    assert (world.facts.camera, world.facts.more_cameras) == ("corner4", ("corner",))
    assert world.facts.name == f"robot/button-press+encoder-offset:{OFFSET}"
    assert world.facts.action_names == ACTIONS
    assert world.facts.task == "button press"
    assert world.behaviour.name == "jolted:0.01"
    world.close()


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("robot/fly", {}, "unknown world 'metaworld/fly'"),
        ("robot/reach+bias:1", {}, "no shift 'bias'"),
        ("robot/reach", {"policy": "noisy"}, "robot has no policy 'noisy'"),
        ("robot/reach", {"policy": "jolted:1"}, "at most 0.2 m"),
        ("robot/reach", {"policy": "jolted:x"}, "number of metres"),
        ("robot/reach", {"camera": "attic"}, "no camera 'attic'"),
        ("robot/reach", {"depth": True}, "gives no depth"),
    ],
)
def test_what_cannot_be_opened_is_told(name, options, said):
    with pytest.raises(UserError, match=said):
        open_robot(name, WorldOptions(**options))
