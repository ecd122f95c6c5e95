"""PushT: a round pusher moves a T-shaped block over a table towards a green T; 10 frames per second."""

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

FPS = 10
TABLE = 512  # width and height of the table, in its own units
STEM = 120.0  # longest distance from the block's origin to its rim
SPEED = 28.0  # units per frame of a brisk push


def open_world(variant: str, options: WorldOptions) -> "PushT":
    """``pusht``. Policies: ``push``, which goes around the block and pushes it about, ``random``, which ignores it.

    Raises UserError for a variant, camera, policy or size that it does not offer, and when gym-pusht is missing.
    """
    if variant:
        raise UserError(f"unknown world 'pusht/{variant}': pusht has no variants")
    if options.camera not in (None, "top"):
        raise UserError(f"pusht has one camera, top, not {options.camera!r}")
    if options.depth:
        raise UserError("pusht is flat: it has no depth")
    if not 32 <= options.size <= TABLE:
        raise UserError(f"pusht draws pictures of 32 to {TABLE} pixels, not {options.size}")
    behaviours: dict[str, type[Behaviour]] = {"push": Pusher, "random": RandomMotion}
    policy = options.policy or "push"
    if policy not in behaviours:
        raise UserError(f"pusht has no policy {policy!r}: choose {' or '.join(behaviours)}")
    if not capabilities.installed("gym_pusht"):
        raise UserError(f"gym-pusht is not installed: {capabilities.SIM}")
    return PushT(behaviours[policy](), options.size)


class PushT(World):
    """gym-pusht as an environment of this project.

    Coordinates in table units: x from 0 (left) to 512 (right), y from 0 (top of the picture) to 512 (bottom).

    Action, float32 [2]: ``x``, ``y`` in [0, 512], where the pusher is drawn to by a spring and damper during the frame.

    Observation: ``image`` uint8 [size, size, 3]; ``state`` float32 [5] = position of the pusher, position of the
    block's origin (middle of the edge of its bar), the block's angle in radians in [0, 2 pi), clockwise in the picture.

    ``info["success"]`` says whether the block covers 95 % of the goal, ``info["coverage"]`` how much it covers. The
    episode never ends by itself.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": FPS}  # noqa: RUF012 (as gymnasium declares it)

    def __init__(self, behaviour: Behaviour, size: int) -> None:
        os.environ.update(capabilities.headless())  # pygame reads it when imported
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "pkg_resources is deprecated")  # said by pygame
            from gym_pusht.envs.pusht import PushTEnv

        self.facts = WorldSpec(
            name="pusht",
            task="push the T-shaped block onto the T-shaped target",
            fps=FPS,
            action_names=("x", "y"),
            state_names=("pusher_x", "pusher_y", "block_x", "block_y", "block_angle"),
            camera="top",
            height=size,
            width=size,
        )
        self.behaviour = behaviour
        self.render_mode = "rgb_array"
        self._size = size
        self._env = PushTEnv(obs_type="state", render_mode="rgb_array")
        self.action_space = gymnasium.spaces.Box(0, TABLE, (2,), np.float32)
        spaces: dict[str, gymnasium.Space[Any]] = {
            "image": gymnasium.spaces.Box(0, 255, (size, size, 3), np.uint8),
            "state": gymnasium.spaces.Box(-np.inf, np.inf, (5,), np.float32),
        }
        self.observation_space = gymnasium.spaces.Dict(spaces)  # pyright: ignore[reportAttributeAccessIssue]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Observation, dict]:
        """Starts an episode with pusher and block at places drawn from ``seed``."""
        super().reset(seed=seed)
        state, _ = self._env.reset(seed=int(self.np_random.integers(2**31)) if seed is None else seed)
        self._observation = self._observe(np.asarray(state))
        return self._observation, {"success": False}

    def step(self, action: Action) -> tuple[Observation, float, bool, bool, dict]:
        target = np.clip(np.asarray(action, np.float64), 0, TABLE)
        state, reward, _, _, info = self._env.step(target)
        self._observation = self._observe(np.asarray(state))
        facts = {"success": bool(info["is_success"]), "coverage": float(info["coverage"])}
        return self._observation, float(reward), False, False, facts

    def render(self) -> NDArray[np.uint8]:
        return self._observation["image"]

    def close(self) -> None:
        self._env.close()

    def _observe(self, state: NDArray[np.float64]) -> Observation:
        image = cv2.resize(self._draw(), (self._size, self._size), interpolation=cv2.INTER_AREA)
        return {"image": image, "state": state.astype(np.float32)}

    def _draw(self) -> NDArray[np.uint8]:
        """The table at its own size, uint8 [512, 512, 3]."""
        import pygame

        pixels = pygame.image.tobytes(self._env._draw(), "RGB")
        return np.frombuffer(pixels, np.uint8).reshape(TABLE, TABLE, 3)


class Pusher:
    """Goes to a random spot beside the block without touching it, then pushes through the block; over and over.

    A script for varied contact, not an expert: the block is pushed and turned in random directions, away from the rim
    of the table where it has got there.
    """

    name = "push"

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self._target: NDArray[np.float64] | None = None
        self._pushing = False
        self._frames = 0
        self._speed = SPEED

    def __call__(self, observation: Observation, rng: np.random.Generator | Sequence[np.random.Generator]) -> Action:
        assert isinstance(rng, np.random.Generator)
        state = observation["state"].astype(np.float64)
        pusher, block = state[:2], _middle(state)
        self._frames -= 1
        if self._target is None or self._frames <= 0 or np.hypot(*(self._target - pusher)) < 12:
            self._plan(pusher, block, rng)
        assert self._target is not None
        way = self._target - pusher
        if not self._pushing:
            way = _around(pusher, way, block)
        stride = way * min(1.0, self._speed / max(1e-9, float(np.hypot(*way))))
        goal = pusher + 1.6 * stride + rng.normal(0, 2.0, 2)  # the spring lags behind
        return np.clip(goal, 20, TABLE - 20).astype(np.float32)

    def _plan(self, pusher: NDArray[np.float64], block: NDArray[np.float64], rng: np.random.Generator) -> None:
        """Alternates between going to a spot beside the block and a push from there through its middle, or nearly."""
        self._pushing = self._target is not None and not self._pushing
        self._speed = SPEED * rng.uniform(0.5, 1.2)
        if self._pushing:
            through = block + rng.normal(0, 25, 2) - pusher
            self._target = pusher + through * (1 + rng.uniform(0.2, 1.0))
            self._frames = int(rng.integers(8, 25))
        else:
            from_centre = block - TABLE / 2
            at_rim = np.hypot(*from_centre) > 110
            here = from_centre if at_rim else pusher - block  # push it back in, else from somewhere on this side
            angle = math.atan2(here[1], here[0]) + (1.0 if at_rim else 2.0) * rng.uniform(-1, 1)
            self._speed *= 1.5
            self._target = block + 115 * np.array([math.cos(angle), math.sin(angle)])
            self._frames = 40
        self._target = np.clip(self._target, 25, TABLE - 25)


class RandomMotion:
    """Smooth curves over the whole table: the pusher is drawn to a point that wanders between random places."""

    name = "random"

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self._place: NDArray[np.float64] | None = None
        self._frames = 0

    def __call__(self, observation: Observation, rng: np.random.Generator | Sequence[np.random.Generator]) -> Action:
        assert isinstance(rng, np.random.Generator)
        if self._frames <= 0:
            self._place, self._frames = rng.uniform(30, TABLE - 30, 2), int(rng.integers(6, 20))
        assert self._place is not None
        self._frames -= 1
        pusher = observation["state"][:2].astype(np.float64)
        way = self._place - pusher
        return (pusher + way * min(1.0, 1.6 * SPEED / max(1e-9, float(np.hypot(*way))))).astype(np.float32)


def _middle(state: NDArray[np.float64]) -> NDArray[np.float64]:
    """Roughly the centre of mass of the block: 45 units from its origin along its stem."""
    x, y, angle = state[2:5]
    return np.array([x - 45 * math.sin(angle), y + 45 * math.cos(angle)])


def _around(pusher: NDArray[np.float64], way: NDArray[np.float64], block: NDArray[np.float64]) -> NDArray[np.float64]:
    """``way`` bent sideways where it would run into the block."""
    away = pusher - block
    distance = float(np.hypot(*away))
    heading_in = float(way @ away) < 0
    if distance > STEM or not heading_in:
        return way
    outward = away / max(distance, 1e-9)
    tangent = np.array([-outward[1], outward[0]])
    tangent *= 1.0 if float(way @ tangent) >= 0 else -1.0
    length = float(np.hypot(*way))
    return length * (tangent + outward * (STEM - distance) / 40)
