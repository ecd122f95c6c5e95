"""The maze as a gymnasium environment: N of them stepped together (``VectorMaze``), or one (``Maze``)."""

from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from worldmodel.datasets.worlds.base import Action, Observation, VectorWorld, World, WorldSpec
from worldmodel.datasets.worlds.maze.explore import Explorer, OneExplorer
from worldmodel.datasets.worlds.maze.layout import generate
from worldmodel.datasets.worlds.maze.motion import MAX_TURN, move, settled, slide_doors
from worldmodel.datasets.worlds.maze.picture import Painter
from worldmodel.datasets.worlds.maze.plan import Landmark, Layout
from worldmodel.datasets.worlds.maze.raycast import Floats, cast, stack

FPS = 24
ACTIONS = ("turn", "forward")
STATES = ("x", "y", "angle")


class VectorMaze(VectorWorld):
    """``rows`` mazes of ``rooms`` x ``rooms`` rooms; row i depends on its own seed and actions alone, bit for bit.

    Action, float32 [N, 2]: ``turn`` degrees per frame in [-10, 10], positive to the LEFT (counter-clockwise: the angle
    of the pose grows by exactly ``turn``, then the step goes along the new angle); ``forward`` in [-1, 1], of 0.12 m
    per frame. Walls, closed doors and pillars stop a body of 0.3 m radius, which slides along them. Doors open for
    whoever comes within 1.5 m and close again behind.

    Observation: ``image`` uint8 [N, size, size, 3]; ``state`` float32 [N, 3] = x, y (metres), angle (degrees in
    [0, 360), 0 = +x, counter-clockwise); on request ``depth`` float32 [N, size, size], metres along the viewing axis.
    The field of view is 75 degrees both ways.

    A seed decides the maze and the place to start from; with ``layout_seed`` the maze is always the same one.
    """

    metadata = {  # noqa: RUF012 (as gymnasium declares it)
        "render_modes": ["rgb_array"],
        "render_fps": FPS,
        "autoreset_mode": gymnasium.vector.AutoresetMode.DISABLED,
    }

    def __init__(
        self,
        rows: int,
        rooms: int = 3,
        size: int = 64,
        depth: bool = False,
        layout_seed: int | None = None,
        name: str = "maze",
    ) -> None:
        self.facts = WorldSpec(
            name=name,
            task="explore the maze",
            fps=FPS,
            action_names=ACTIONS,
            state_names=STATES,
            camera="first_person",
            height=size,
            width=size,
        )
        self.render_mode = "rgb_array"
        self.num_envs = rows
        self._rooms, self._depth, self._layout_seed = rooms, depth, layout_seed
        self._painter = Painter(size)
        self._top = np.array([MAX_TURN, 1.0], np.float32)
        self.single_action_space = gymnasium.spaces.Box(-self._top, self._top, dtype=np.float32)
        self.single_observation_space = _observation_space(size, depth)  # pyright: ignore[reportAttributeAccessIssue]
        self.action_space = gymnasium.vector.utils.batch_space(self.single_action_space, rows)
        self.observation_space = gymnasium.vector.utils.batch_space(self.single_observation_space, rows)
        self.layouts: list[Layout] = []
        self.explorer = self.behaviour = Explorer(self)

    @property
    def landmarks(self) -> list[tuple[Landmark, ...]]:
        """Of every row: what exists only once in its maze, and where."""
        return [layout.landmarks for layout in self.layouts]

    @property
    def pose(self) -> Floats:
        """[N, 3] x, y, angle in double precision, a copy."""
        return self._pose.copy()

    def reset(
        self, *, seed: int | Sequence[int] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """New episodes. One seed per row; a single one stands for seed, seed + 1, ..."""
        if seed is None:
            seed = [int(s) for s in self.np_random.integers(2**31, size=self.num_envs)]
        seeds = list(range(seed, seed + self.num_envs)) if isinstance(seed, int) else [int(s) for s in seed]
        if len(seeds) != self.num_envs:
            raise ValueError(f"{len(seeds)} seeds for {self.num_envs} rows")
        fixed = self._layout_seed
        self.layouts = [generate(seed if fixed is None else fixed, self._rooms) for seed in seeds]
        self._scene = stack(self.layouts)
        return self.place(
            np.array([_start(layout, seed) for layout, seed in zip(self.layouts, seeds, strict=True)])
        ), {}

    def place(self, pose: Floats) -> Observation:
        """Puts every row at ``pose`` [N, 3] (x, y, angle) in its maze, doors at rest, and shows what is seen there.

        The place must be free: the walls of the cell that holds it are not looked at.
        """
        self._pose = np.array(pose, np.float64)
        self._pose[:, 2] %= 360
        self._opening = settled(self._scene, self._pose)
        return self._observe()

    def step(self, actions: Action) -> tuple[Observation, NDArray[Any], NDArray[Any], NDArray[Any], dict[str, Any]]:
        """One frame of all rows; actions outside their range are clipped. Rows never end."""
        actions = np.clip(np.asarray(actions, np.float32), -self._top, self._top)
        self._pose = move(self._scene, self._pose, self._opening, actions.astype(np.float64))
        self._opening = slide_doors(self._scene, self._pose, self._opening)
        never = np.zeros(self.num_envs, bool)
        return self._observe(), np.zeros(self.num_envs), never, never.copy(), {}

    def render(self) -> tuple[NDArray[np.uint8], ...]:
        return tuple(self._image)

    def _observe(self) -> Observation:
        hits = cast(self._scene, self._pose, self._opening, self._painter.size)
        self._image = self._painter.paint(self._scene, self._pose, hits)
        state = self._pose.astype(np.float32)
        state[:, 2] %= 360  # rounding up to 360 is 0
        observation: Observation = {"image": self._image, "state": state}
        if self._depth:
            observation["depth"] = self._painter.depth(hits)
        return observation


class Maze(World):
    """One maze; see ``VectorMaze``, of which this is a single row without the leading [N]."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": FPS}  # noqa: RUF012 (as gymnasium declares it)

    def __init__(
        self,
        rooms: int = 3,
        size: int = 64,
        depth: bool = False,
        layout_seed: int | None = None,
        name: str = "maze",
    ) -> None:
        self._row = VectorMaze(1, rooms, size, depth, layout_seed, name)
        self.facts = self._row.facts
        self.render_mode = "rgb_array"
        self.action_space = self._row.single_action_space
        self.observation_space = self._row.single_observation_space
        self.behaviour = OneExplorer(self._row.explorer)

    @property
    def landmarks(self) -> tuple[Landmark, ...]:
        """What exists only once in the maze, and where."""
        return self._row.landmarks[0]

    @property
    def layout(self) -> Layout:
        return self._row.layouts[0]

    @property
    def pose(self) -> Floats:
        """[3] x, y, angle in double precision."""
        return self._row.pose[0]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Observation, dict]:
        super().reset(seed=seed)
        observation, info = self._row.reset(seed=int(self.np_random.integers(2**31)) if seed is None else seed)
        return _first(observation), info

    def place(self, pose: Floats) -> Observation:
        """Puts the body at ``pose`` [3], as ``VectorMaze.place``."""
        return _first(self._row.place(np.asarray(pose)[None]))

    def step(self, action: Action) -> tuple[Observation, float, bool, bool, dict]:
        observation, *_ = self._row.step(np.asarray(action)[None])
        return _first(observation), 0.0, False, False, {}

    def render(self) -> NDArray[np.uint8]:
        return self._row.render()[0]


def _first(observation: Observation) -> Observation:
    return {name: values[0] for name, values in observation.items()}


def _observation_space(size: int, depth: bool) -> gymnasium.spaces.Dict:
    spaces: dict[str, gymnasium.Space[Any]] = {
        "image": gymnasium.spaces.Box(0, 255, (size, size, 3), np.uint8),
        "state": gymnasium.spaces.Box(0, 360, (3,), np.float32),
    }
    if depth:
        spaces["depth"] = gymnasium.spaces.Box(0, np.inf, (size, size), np.float32)
    return gymnasium.spaces.Dict(spaces)


def _start(layout: Layout, seed: int) -> tuple[float, float, float]:
    """A random place in a random room, away from its pillar, and a random angle."""
    rng = np.random.default_rng([seed, 1])
    cells = np.argwhere(layout.room == rng.integers(layout.room.max() + 1))
    pillars = {(int(pillar.x), int(pillar.y)) for pillar in layout.pillars}
    free = [cell for cell in cells if (cell[0], cell[1]) not in pillars]
    x, y = free[rng.integers(len(free))] + rng.uniform(0.3, 0.7, 2)
    return float(x), float(y), float(rng.uniform(0, 360))
