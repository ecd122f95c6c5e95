"""Meta-World's arm told where its hand should be: absolute targets in metres, and shifts of the hardware.

Meta-World's own action is a clipped move relative to the last one, in which a bias is a drift. Here an action is a
target; a proportional controller moves the hand until proprioception reads it. So a miscalibrated encoder or drive
leaves the hand beside the target, as on a real robot.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import cv2
import gymnasium
import numpy as np
from numpy.typing import NDArray

from worldmodel.datasets.worlds.base import Action, Observation, WorldOptions
from worldmodel.datasets.worlds.metaworld import Expert, MetaWorld, check_task
from worldmodel.errors import UserError
from worldmodel.policies.shifts import NOMINAL, Shift, parse_shift

FAMILY = "robot"
ACTIONS = ("target_x", "target_y", "target_z", "grip")
CAMERAS = ("corner4", "corner")  # two that look across each other, so that a goal in the air has one place
GAIN = 10.0  # of the controller: moves of 1 (a centimetre per step) per metre of error, as Meta-World's scripts have
JOLT = 0.005  # metres, of the jolted expert
JOLT_STEPS = 20  # control steps over which a jolt keeps its direction
# Metres. Meta-World's script for this task brings the hand's mount to the goal, 4.5 cm above its fingers, which must
# come within 5 cm of it: the least disturbance fails it.
RAISED = {"reach": 0.04}
LINGER = 10  # control steps that a recording goes on after the task is solved


class HandRobot(MetaWorld):
    """One task of Meta-World under absolute targets.

    Action, float32 [4]: target of the hand in metres (x, y, z), and grip in [-1, 1]. Observation: `state` float32 [4],
    hand (m) and opening as proprioception reports them; `privileged`, the truth, for scripts; with `draws` also
    pictures, uint8 [size, size, 3]: `image` of the first camera and `image.NAME` of each other one. Without, `look`
    gives them when they are needed. The reward is Meta-World's, divided by 10: in [0, 1]. An episode ends `linger`
    steps after its first success, at the latest after 500.

    jolt: standard deviation in metres of a disturbance that the controller's target gets and no recording shows, so
    that demonstrations show how to come back (DART, 1703.09327). It is drawn from the episode's seed.
    """

    def __init__(
        self,
        task: str,
        *,
        shift: Shift = NOMINAL,
        cameras: tuple[str, ...] = CAMERAS,
        size: int = 64,
        draws: bool = False,
        jolt: float = 0.0,
        linger: int = 0,
    ) -> None:
        super().__init__(task, Demonstrator(task, shift, jolt), cameras[0], size, depth=False)
        name = f"{FAMILY}/{task}+{shift.name}"
        self.facts = replace(self.facts, name=name, action_names=ACTIONS, more_cameras=cameras[1:])
        self.action_space = gymnasium.spaces.Box(-np.inf, np.inf, (4,), np.float32)
        self.task, self._draws, self._jolt, self._linger = task, draws, jolt, linger
        self.cameras = cameras
        self._home = {camera: self._camera_pose(camera) for camera in cameras}
        self.become(shift)

    def become(self, shift: Shift) -> None:
        """Give the robot another shift; to be called before `reset`."""
        self.shift = shift
        self.behaviour = Demonstrator(self.task, shift, self._jolt)
        for camera, (place, axes) in self._home.items():
            if shift.camera is not None and camera == self.cameras[0]:
                place, axes = place + np.asarray(shift.camera.move), _turned(axes, np.asarray(shift.camera.turn))
            index = self._env.model.camera(camera).id
            self._env.model.cam_pos[index], self._env.model.cam_quat[index] = place, axes

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Observation, dict]:
        self._disturbance, self._left = np.zeros(3), None
        observation, info = super().reset(seed=seed)
        hold = np.append(self.shift.undrive(observation["state"][:3].astype(np.float64)), -1)
        self._waiting = deque([hold] * self.shift.delay)
        return observation, info

    def step(self, action: Action) -> tuple[Observation, float, bool, bool, dict]:
        if not np.isfinite(action).all():
            raise ValueError(f"an action must be finite, not {action}")
        self._waiting.append(np.asarray(action, np.float64))
        now = self._waiting.popleft()
        if self._jolt:
            keep = np.exp(-1 / JOLT_STEPS)
            fresh = self._jolt * np.sqrt(1 - keep**2) * self.np_random.standard_normal(3)
            self._disturbance = keep * self._disturbance + fresh
        read = self.shift.sense(self._observation["privileged"][:3])
        move = GAIN * (self.shift.drive(now[:3]) + self._disturbance - read)
        observation, reward, _, truncated, info = super().step(np.append(move, now[3]).astype(np.float32))
        if self._left is not None:
            self._left -= 1
        elif info["success"]:
            self._left = self._linger
        return observation, reward / 10, self._left == 0, truncated, info

    def look(self) -> dict[str, NDArray[np.uint8]]:
        """What every camera sees now, uint8 [size, size, 3]."""
        return {camera: self._look(camera) for camera in self.cameras}

    def render(self) -> NDArray[np.uint8]:
        return self._look(self.cameras[0])

    def _look(self, camera: str) -> NDArray[np.uint8]:
        self._camera = camera  # which `_draw` takes
        picture = cv2.resize(self._draw(), (self._size, self._size), interpolation=cv2.INTER_AREA)
        return picture.astype(np.uint8, copy=False)

    def _observe(self, full: NDArray[np.float64]) -> Observation:
        observation: Observation = {
            "state": self.shift.report(full[:4]).astype(np.float32),
            "privileged": full,
        }
        if self._draws:
            first, *others = self.look().items()
            observation["image"] = first[1]
            observation |= {f"image.{camera}": picture for camera, picture in others}
        return observation

    def _camera_pose(self, camera: str) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        index = self._env.model.camera(camera).id
        return self._env.model.cam_pos[index].copy(), self._env.model.cam_quat[index].copy()


class Demonstrator:
    """Meta-World's script for a task, as targets; on a shifted robot it compensates, so that the motion is the same."""

    def __init__(self, task: str, shift: Shift, jolt: float) -> None:
        self._shift, self._raised = shift, RAISED.get(task, 0.0)
        self.name = f"jolted:{jolt:g}" if jolt else "expert"
        self._script = Expert(self.name, task, 0.0)

    def reset(self) -> None:
        """Nothing: the script looks at the present only."""

    def __call__(self, observation: Observation, rng: np.random.Generator | Sequence[np.random.Generator]) -> Action:
        goal = observation["privileged"][-1:] + self._raised
        truth = np.append(observation["privileged"][:-1], goal)
        move = self._script({"privileged": truth}, rng).astype(np.float64)
        target = np.append(observation["privileged"][:3] + move[:3] / GAIN, move[3])
        return self._shift.command(target).astype(np.float32)


def open_robot(name: str, options: WorldOptions) -> HandRobot:
    """For recording: `robot/TASK`, or `robot/TASK+SHIFT` with a shift as `parse_shift` reads it, drawing at every step.

    Policies: `expert`, or `jolted` (`jolted:METRES`): the expert under a disturbance that the recording does not show.
    UserError for an unknown task, shift, camera or policy, and when Meta-World or EGL is missing.
    """
    variant, _, text = name.removeprefix(f"{FAMILY}/").partition("+")
    if options.depth or options.rows is not None:
        raise UserError(f"{FAMILY}/{variant}: gives no depth, and one episode at a time")
    cameras = (options.camera,) if options.camera else CAMERAS
    task, _ = check_task(variant, cameras[0], options.size)
    return HandRobot(
        task,
        shift=parse_shift(text or "nominal"),
        cameras=cameras,
        size=options.size,
        draws=True,
        jolt=_jolt(options.policy or "expert"),
        linger=LINGER,
    )


def _jolt(policy: str) -> float:
    kind, colon, number = policy.partition(":")
    if policy == "expert":
        return 0.0
    if kind != "jolted":
        raise UserError(f"{FAMILY} has no policy {policy!r}: choose expert, jolted or jolted:METRES")
    try:
        metres = float(number) if colon else JOLT
    except ValueError as error:
        raise UserError(f"policy {policy!r}: the jolt is a number of metres, as in jolted:0.03") from error
    if not 0 < metres <= 0.2:
        raise UserError(f"policy {policy!r}: the jolt must be above 0 and at most 0.2 m")
    return metres


def _turned(axes: NDArray[np.float64], degrees: NDArray[np.float64]) -> NDArray[np.float64]:
    """A camera's quaternion [4] turned about its own x, y and z axes, in this order."""
    import mujoco

    for axis, angle in enumerate(np.radians(degrees)):
        turn, made = np.zeros(4), np.zeros(4)
        mujoco.mju_axisAngle2Quat(turn, np.eye(3)[axis], angle)  # pyright: ignore[reportAttributeAccessIssue]
        mujoco.mju_mulQuat(made, axes, turn)  # pyright: ignore[reportAttributeAccessIssue]
        axes = made
    return axes
