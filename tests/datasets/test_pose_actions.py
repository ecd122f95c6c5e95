"""Actions beside the pose that they lead to."""

from pathlib import Path

import numpy as np
import pytest

from worldmodel.datasets.collect import collect
from worldmodel.datasets.lerobot import LeRobotRecordings
from worldmodel.datasets.pose_actions import pose_code, pose_names, with_pose
from worldmodel.errors import UserError


def test_codes_of_known_poses() -> None:
    state = np.array([[0.0, 4.0, 90.0], [2.0, 1.0, 360.0]])
    code = pose_code(state, ("x", "y", "angle"), (8.0,))
    angle = [[0, 1, -1, 0, 1, 0], [1, 0, 1, 0, 1, 0]]  # cos and sin of 90, 180 and 360 degrees; of nothing
    place = [[1, 0, -1, 0], [0, 1, np.sqrt(0.5), np.sqrt(0.5)]]  # x: 0 and a quarter of a wave; y: a half, an eighth
    np.testing.assert_allclose(code, np.concatenate((angle, place), 1), atol=1e-6)
    assert code.dtype == np.float32
    names = ("cos_1angle", "sin_1angle", "cos_2angle", "sin_2angle", "cos_4angle", "sin_4angle")
    assert pose_names((8.0,)) == (*names, "cos_x_8", "sin_x_8", "cos_y_8", "sin_y_8")


def test_columns_are_found_by_name() -> None:
    state = np.array([[5.0, 30.0, 1.0, 2.0]])
    found = pose_code(state, ("pitch", "angle", "x", "y"), (3.0, 5.0))
    np.testing.assert_array_equal(found, pose_code(state[:, [2, 3, 1]], ("x", "y", "angle"), (3.0, 5.0)))


def test_the_action_comes_first() -> None:
    actions, state = np.array([[0.5, -1]], np.float32), np.zeros((1, 3), np.float32)
    found = with_pose(actions, state, ("x", "y", "angle"), ())
    np.testing.assert_array_equal(found, [[0.5, -1, 1, 0, 1, 0, 1, 0]])


def test_a_recording_holds_the_pose_that_each_action_leads_to(tmp_path: Path) -> None:
    made = collect("maze/small", 1, tmp_path / "posed", 12, seed=3, quiet=True, pose=(16.0, 2.0))
    plain = collect("maze/small", 1, tmp_path / "plain", 13, seed=3, quiet=True)
    posed, world = LeRobotRecordings.open(made.folder), LeRobotRecordings.open(plain.folder)
    assert posed.action_names == ("turn", "forward", *pose_names((16.0, 2.0)))
    actions, before = posed.actions(0), world.actions(0)
    np.testing.assert_array_equal(actions[:, :2], before[:12])  # the world did not notice
    state = world.states(0)
    np.testing.assert_array_equal(actions[:, 2:], pose_code(state[1:13], ("x", "y", "angle"), (16.0, 2.0)))
    with pytest.raises(UserError, match="give a new folder"):  # of other actions
        collect("maze/small", 2, tmp_path / "plain", 13, seed=3, quiet=True, pose=(16.0,))


@pytest.mark.parametrize("waves", [(4.0, 4.0), (0.0,), (float("nan"),), (float("inf"),)])
def test_wavelengths(waves: tuple[float, ...]) -> None:
    with pytest.raises(UserError, match="different positive numbers"):
        pose_code(np.zeros((1, 3)), ("x", "y", "angle"), waves)


def test_a_world_without_poses(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="must have x, y and angle, it has x, y, lift"):
        pose_code(np.zeros((1, 3)), ("x", "y", "lift"), (2.0,))
