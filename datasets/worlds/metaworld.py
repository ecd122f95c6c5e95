"""Meta-World's 50 tabletop tasks of a Sawyer arm (``metaworld/push``, ``metaworld/door-open``, ...), drawn headless.

80 frames per second, one control step each. Drawn without shadows, reflections and multisampling, which software
rendering pays for dearly; instead the picture is drawn twice as large and averaged.
"""

import atexit
import difflib
import math
import os
import warnings
from collections.abc import Sequence
from typing import Any

import cv2
import gymnasium
import numpy as np
from numpy.typing import NDArray

from worldmodel import capabilities
from worldmodel.datasets.worlds.base import Action, Behaviour, Observation, World, WorldOptions, WorldSpec
from worldmodel.errors import UserError

FPS = 80
ACTIONS = ("x", "y", "z", "grip")
STATES = ("hand_x", "hand_y", "hand_z", "opening")
CAMERAS = {  # name -> whether Meta-World mounts it upside down
    "corner": True,
    "corner2": True,
    "corner3": True,
    "corner4": True,
    "topview": False,
    "behindGripper": False,
    "gripperPOV": False,
}
CAMERA = "corner4"  # the closest view of the whole table
SIGMA = 0.3  # of the noisy expert, on actions in [-1, 1]
OVERSAMPLING = 2


def open_world(variant: str, options: WorldOptions) -> "MetaWorld":
    """``metaworld/<task>`` with a task's name, with or without its ``-v3``.

    Policies: ``expert``, Meta-World's script for the task; ``noisy``, the expert with Gaussian noise of standard
    deviation 0.3 on each of the four actions, or ``noisy:SIGMA``; ``random``, smooth and aimless.

    Raises UserError for an unknown task, camera or policy, and when Meta-World or EGL is missing.
    """
    task, camera = check_task(variant, options.camera, options.size)
    behaviour = _behaviour(options.policy or "expert", task)
    return MetaWorld(task, behaviour, camera, options.size, options.depth)


def check_task(variant: str, camera: str | None, size: int) -> tuple[str, str]:
    """The names of the task and of the camera; UserErrors as those of `open_world`."""
    _require_simulator()
    from metaworld.env_dict import ALL_V3_ENVIRONMENTS

    names = [name.removesuffix("-v3") for name in ALL_V3_ENVIRONMENTS]
    task = variant.removesuffix("-v3")
    if task not in names:
        near = difflib.get_close_matches(task, names) or ["push", "pick-place", "door-open"]
        tasks = ", ".join(f"metaworld/{name}" for name in near)
        raise UserError(f"unknown world 'metaworld/{variant}': give one of its {len(names)} tasks, such as {tasks}")
    camera = camera or CAMERA
    if camera not in CAMERAS:
        raise UserError(f"metaworld has no camera {camera!r}: choose from {', '.join(CAMERAS)}")
    if not 32 <= size <= 240:
        raise UserError(f"metaworld draws pictures of 32 to 240 pixels, not {size}")
    return task, camera


class MetaWorld(World):
    """One task as a gymnasium environment.

    Action, float32 [4] in [-1, 1]: ``x``, ``y``, ``z`` move the target of the hand by at most 1 cm per frame (x to the
    robot's right, y away from it, z up); ``grip`` closes the gripper (1) or opens it (-1).

    Observation: ``image`` uint8 [size, size, 3]; ``state`` float32 [4] = position of the hand (m) and opening of the
    gripper in [0, 1]; ``privileged`` float64 [39], Meta-World's own observation with the positions of objects and goal,
    for scripted behaviours; on request ``depth`` float32 [size, size], metres along the viewing axis.

    ``info["success"]`` says whether the task is solved at this frame. Solving it does not end the episode; 500 frames
    do (truncated), and a step after that changes nothing.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": FPS}  # noqa: RUF012 (as gymnasium declares it)

    def __init__(self, task: str, behaviour: Behaviour, camera: str, size: int, depth: bool) -> None:
        import mujoco

        self.facts = WorldSpec(
            name=f"metaworld/{task}",
            task=task.replace("-", " "),
            fps=FPS,
            action_names=ACTIONS,
            state_names=STATES,
            camera=camera,
            height=size,
            width=size,
        )
        self.behaviour = behaviour
        self.render_mode = "rgb_array"
        self._camera, self._size, self._depth = camera, size, depth
        self._env = _environment(task)
        self._renderer = mujoco.Renderer(self._env.model, OVERSAMPLING * size, OVERSAMPLING * size)
        atexit.register(self._renderer.close)  # if nobody closes it: before EGL itself goes
        self.action_space = gymnasium.spaces.Box(-1, 1, (4,), np.float32)
        spaces: dict[str, gymnasium.Space[Any]] = {
            "image": gymnasium.spaces.Box(0, 255, (size, size, 3), np.uint8),
            "state": gymnasium.spaces.Box(-np.inf, np.inf, (4,), np.float32),
            "privileged": gymnasium.spaces.Box(-np.inf, np.inf, (39,), np.float64),
        }
        if depth:
            spaces["depth"] = gymnasium.spaces.Box(0, np.inf, (size, size), np.float32)
        self.observation_space = gymnasium.spaces.Dict(spaces)  # pyright: ignore[reportAttributeAccessIssue]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Observation, dict]:
        """Starts an episode with objects and goal at places drawn from ``seed``.

        Meta-World itself ignores the seed of ``reset`` and draws from a frozen task or numpy's global generator.
        """
        super().reset(seed=seed)
        self._env.seed(int(self.np_random.integers(2**31)) if seed is None else seed)
        self._env.reset()
        self._over = False
        self._observation = self._observe(self._placed())
        return self._observation, {"success": False}

    def step(self, action: Action) -> tuple[Observation, float, bool, bool, dict]:
        if self._over:
            return self._observation, 0.0, False, True, dict(self._info)
        full, reward, _, self._over, info = self._env.step(np.clip(action, -1, 1).astype(np.float32))
        self._info = {"success": bool(info["success"])}
        self._observation = self._observe(full)
        return self._observation, float(reward), False, bool(self._over), dict(self._info)

    def render(self) -> NDArray[np.uint8]:
        return self._observation["image"]

    def close(self) -> None:
        atexit.unregister(self._renderer.close)
        self._renderer.close()
        self._env.close()

    def _placed(self) -> NDArray[np.float64]:
        """Meta-World's first observation, once everything is where `reset` has put it.

        In 30 of the 50 tasks it moves goals or objects last and computes nothing from that before the first step: what
        is drawn and reported until then stands where another draw had put it, up to 20 cm away.
        """
        import mujoco

        environment = self._env
        mujoco.mj_forward(environment.model, environment.data)  # pyright: ignore[reportAttributeAccessIssue]
        environment._prev_obs = environment._get_curr_obs_combined_no_goal()
        return environment._get_obs()

    def _observe(self, full: NDArray[np.float64]) -> Observation:
        image = cv2.resize(self._draw(), (self._size, self._size), interpolation=cv2.INTER_AREA)
        observation: Observation = {"image": image, "state": full[:4].astype(np.float32), "privileged": full}
        if self._depth:
            self._renderer.enable_depth_rendering()
            observation["depth"] = self._draw()[::OVERSAMPLING, ::OVERSAMPLING].copy()  # no mean across edges
            self._renderer.disable_depth_rendering()
        return observation

    def _draw(self) -> NDArray[Any]:
        import mujoco

        flags = mujoco.mjtRndFlag  # pyright: ignore[reportAttributeAccessIssue]
        self._renderer.update_scene(self._env.data, camera=self._camera)
        self._renderer.scene.flags[flags.mjRND_SHADOW] = 0
        self._renderer.scene.flags[flags.mjRND_REFLECTION] = 0
        picture = self._renderer.render()
        return np.ascontiguousarray(picture[::-1, ::-1]) if CAMERAS[self._camera] else picture


class Expert:
    """Meta-World's scripted policy for a task, with Gaussian noise of standard deviation ``sigma`` on the action."""

    def __init__(self, name: str, task: str, sigma: float) -> None:
        from metaworld.policies import ENV_POLICY_MAP

        self.name = name
        self._script = ENV_POLICY_MAP[f"{task}-v3"]()
        self._sigma = sigma

    def reset(self) -> None:
        """Nothing: the script looks at the present only."""

    def __call__(self, observation: Observation, rng: np.random.Generator | Sequence[np.random.Generator]) -> Action:
        assert isinstance(rng, np.random.Generator)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Constant\\(s\\) may be too high")  # it is: actions are clipped
            action = np.clip(self._script.get_action(observation["privileged"]), -1, 1)
        return np.clip(action + self._sigma * rng.standard_normal(4), -1, 1).astype(np.float32)


class RandomMotion:
    """Ornstein-Uhlenbeck motion of all four actions: correlated over a quarter of a second, standard deviation 0.6."""

    name = "random"

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self._action: NDArray[np.float64] | None = None

    def __call__(self, observation: Observation, rng: np.random.Generator | Sequence[np.random.Generator]) -> Action:
        assert isinstance(rng, np.random.Generator)
        kick, keep = 0.6 * rng.standard_normal(4), math.exp(-1 / (FPS / 4))
        self._action = kick if self._action is None else keep * self._action + math.sqrt(1 - keep**2) * kick
        return np.clip(self._action, -1, 1).astype(np.float32)


def _behaviour(policy: str, task: str) -> Behaviour:
    kind, colon, sigma = policy.partition(":")
    if policy == "random":
        return RandomMotion()
    if policy == "expert":
        return Expert("expert", task, 0.0)
    if kind == "noisy":
        try:
            value = float(sigma) if colon else SIGMA
        except ValueError:
            value = math.nan
        if 0 < value <= 2:
            return Expert(f"noisy:{value:g}", task, value)
        raise UserError(f"policy {policy!r}: the noise must be a number above 0 and at most 2, as in noisy:0.3")
    raise UserError(f"metaworld has no policy {policy!r}: choose expert, noisy, noisy:SIGMA or random")


def _require_simulator() -> None:
    if not capabilities.installed("metaworld"):
        raise UserError(f"metaworld is not installed: {capabilities.SIM}")
    os.environ.update(capabilities.headless())  # MuJoCo reads it when imported
    drawing = capabilities.check("egl")
    if drawing.state != "ok":
        raise UserError(f"metaworld cannot draw, EGL {drawing.state}: {drawing.detail} ({drawing.advice})")


def _environment(task: str) -> Any:
    """Meta-World's environment with a visible goal and with places that follow its seed."""
    from metaworld.env_dict import ALL_V3_ENVIRONMENTS

    environment = ALL_V3_ENVIRONMENTS[f"{task}-v3"]()
    environment._partially_observable = False
    del environment.sawyer_observation_space  # cached from before the goal was in it
    environment._set_task_called = True
    environment._freeze_rand_vec = False
    environment.seeded_rand_vec = True
    environment.model.vis.quality.shadowsize = 0
    environment.model.vis.quality.offsamples = 0
    return environment
