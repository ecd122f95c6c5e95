"""What every simulated world looks like from outside: a gymnasium environment with pictures, exact pose and actions."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import gymnasium
import numpy as np
from numpy.typing import NDArray

Observation = dict[str, NDArray[Any]]
"""``image`` uint8 [H, W, 3] RGB, ``state`` float32 [S] (exact pose); optional extras such as ``depth`` float32 [H, W].
A vectorised world puts a leading [N] on each of them."""

Action = NDArray[np.float32]
"""float32 [A] in the units named by the world's ``action_names``; [N, A] for a vectorised world."""


@dataclass(frozen=True, slots=True)
class WorldSpec:
    """The facts about a world that a dataset must record."""

    name: str  # as typed on the command line, e.g. "doom/freedoom"
    task: str  # one sentence, stored as the dataset's task string
    fps: int  # frames per second at which one step is one frame
    action_names: tuple[str, ...]
    state_names: tuple[str, ...]
    camera: str  # the pictures are stored as observation.images.<camera>
    height: int  # pixels
    width: int  # pixels
    more_cameras: tuple[str, ...] = ()  # their pictures, of the same size, are in the observation's "image.<camera>"


@dataclass(frozen=True, slots=True)
class WorldOptions:
    """What a user may choose when opening a world; None leaves the choice to the world.

    A world raises UserError for a choice it does not offer.
    """

    size: int = 64  # height and width of the pictures, pixels
    camera: str | None = None
    policy: str | None = None  # name of the behaviour that collects data
    depth: bool = False  # add "depth" to the observations
    rows: int | None = None  # how many copies a vectorised world steps together


class Behaviour(Protocol):
    """A policy that collects data worth training on. It may keep state between two calls of ``reset``.

    ``rng`` is one generator per episode: a single Generator for a gymnasium.Env, a sequence of N for a VectorEnv, so
    that an episode depends on its seed alone and never on the rows beside it.
    """

    name: str

    def reset(self) -> None:
        """Forgets the last episode. Called right after the world's own reset."""
        ...

    def __call__(self, observation: Observation, rng: np.random.Generator | Sequence[np.random.Generator]) -> Action:
        """The action to execute after ``observation``: float32 [A], or [N, A] for a vectorised world."""
        ...


class World(gymnasium.Env[Observation, Action]):
    """A gymnasium environment with a ``WorldSpec`` and a behaviour that explores it.

    ``reset(seed=...)`` must make the whole episode a function of the seed and the actions. ``step`` returns
    ``terminated`` or ``truncated`` when the episode can go no further; the collector then closes that episode. Success
    and similar signals go into ``info``.
    """

    facts: WorldSpec
    behaviour: Behaviour


class VectorWorld(gymnasium.vector.VectorEnv[Observation, Action, NDArray[np.bool_]]):
    """N copies of a world stepped together; ``reset(seed=[...])`` takes one seed per row.

    Rows never end by themselves: the collector decides the length. ``num_envs`` is N.
    """

    facts: WorldSpec
    behaviour: Behaviour
