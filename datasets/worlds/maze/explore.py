"""The behaviour that collects data in the maze: walks from room to room, looks around, returns, plays with keys."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from worldmodel.datasets.worlds.base import Action, Observation
from worldmodel.datasets.worlds.maze.motion import MAX_TURN
from worldmodel.datasets.worlds.maze.paths import clear, route
from worldmodel.datasets.worlds.maze.plan import Cell, Layout

HABITS = ("walk", "keys", "look", "back", "wander", "still")
WEIGHTS = np.cumsum([0.60, 0.18, 0.09, 0.05, 0.06, 0.02])
REVISIT = 0.4  # share of walks that go to a room seen before
STUCK_FRAMES = 8


class HasLayouts(Protocol):
    layouts: list[Layout]


class Explorer:
    """Switches between habits every half second to a few seconds, each row by itself.

    walk: goes to a random spot of a random room, in two of five cases one where it has been, and keeps that goal until
    it is there; keys: holds a random combination of turn and move as a player at a keyboard does; look: stands, turns
    by 60 to 270 degrees and half of the times back again; back: backwards; wander: a smooth random turn and speed;
    still. Smooth noise (Ornstein-Uhlenbeck) on every moving habit keeps turn and move uncorrelated.

    It knows the map: it reads the layouts of the world when reset, and x, y, angle from ``state``.
    """

    name = "explore"

    def __init__(self, world: HasLayouts) -> None:
        self._world = world
        self._walkers: list[Walker] = []

    def reset(self) -> None:
        self._walkers = [Walker(layout) for layout in self._world.layouts]

    def __call__(self, observation: Observation, rng: np.random.Generator | Sequence[np.random.Generator]) -> Action:
        """float32 [N, 2]; ``rng`` is one generator per row."""
        assert isinstance(rng, Sequence)
        poses = observation["state"].tolist()
        rows = zip(self._walkers, poses, rng, strict=True)
        return np.array([walker.act(x, y, angle, generator) for walker, (x, y, angle), generator in rows], np.float32)


class OneExplorer:
    """The same for a world without rows."""

    name = Explorer.name

    def __init__(self, rows: Explorer) -> None:
        self._rows = rows

    def reset(self) -> None:
        self._rows.reset()

    def __call__(self, observation: Observation, rng: np.random.Generator | Sequence[np.random.Generator]) -> Action:
        assert isinstance(rng, np.random.Generator)
        return self._rows({"state": observation["state"][None]}, [rng])[0]


@dataclass(slots=True)
class _Plan:
    """What to do for the next ``frames`` frames."""

    habit: str
    frames: int
    turn: float = 0.0
    forward: float = 0.0


@dataclass(slots=True)
class Walker:
    """One body and what it is about to do."""

    layout: Layout
    plan: _Plan = field(default_factory=lambda: _Plan("still", 0))
    afterwards: _Plan | None = None  # the way back of a look
    goal: Cell | None = None  # of the walk
    route: list[Cell] = field(default_factory=list)  # cells still to go
    waypoint: tuple[float, float] | None = None
    seen: set[int] = field(default_factory=set)  # rooms visited
    sway: float = 0.0  # Ornstein-Uhlenbeck, degrees per frame
    pace: float = 0.0  # Ornstein-Uhlenbeck, share of full speed
    last: tuple[float, float] = (math.inf, math.inf)
    stuck: int = 0

    def act(self, x: float, y: float, angle: float, rng: np.random.Generator) -> tuple[float, float]:
        """Turn and forward."""
        room = int(self.layout.room[int(x), int(y)])
        if room >= 0:
            self.seen.add(room)
        self._notice_walls(x, y, rng)
        if self.plan.frames <= 0:
            self._decide(x, y, rng)
        self.plan.frames -= 1
        push_turn, push_pace = rng.standard_normal(2)
        self.sway += -0.15 * self.sway + 0.7 * push_turn
        self.pace += -0.1 * self.pace + 0.12 * push_pace
        turn, forward = self._move(x, y, angle)
        return min(max(turn, -MAX_TURN), MAX_TURN), min(max(forward, -1.0), 1.0)

    def _notice_walls(self, x: float, y: float, rng: np.random.Generator) -> None:
        """Turns away after a while without progress."""
        moved = math.hypot(x - self.last[0], y - self.last[1]) > 0.02
        self.stuck = 0 if moved or abs(self.plan.forward) < 0.3 else self.stuck + 1
        self.last = x, y
        if self.stuck >= STUCK_FRAMES:
            self.stuck = 0
            self.goal = None
            speed = rng.uniform(4, 9)
            self.plan = _Plan("look", int(rng.uniform(60, 180) / speed), turn=speed * float(rng.choice((-1, 1))))

    def _decide(self, x: float, y: float, rng: np.random.Generator) -> None:
        if self.afterwards:
            self.plan, self.afterwards = self.afterwards, None
            return
        habit = HABITS[int(np.searchsorted(WEIGHTS, rng.random() * WEIGHTS[-1]))]
        frames = int(rng.integers(10, 40))
        match habit:
            case "walk":
                self.plan = _Plan(habit, 2 * frames, forward=rng.uniform(0.5, 1.0))
                self.goal = self.goal or self._destination(rng)
                self.route, self.waypoint = route(self.layout, (int(x), int(y)), self.goal), None
            case "keys":
                turn = MAX_TURN * rng.uniform(0.3, 0.8) * float(rng.choice((-1, 0, 1)))
                self.plan = _Plan(habit, int(rng.integers(4, 20)), turn, float(rng.choice((-1, 0, 1, 1, 1))))
            case "look":
                speed, side = rng.uniform(4, 9), float(rng.choice((-1, 1)))
                self.plan = _Plan(habit, int(rng.uniform(60, 270) / speed), turn=speed * side)
                if rng.random() < 0.5:
                    self.afterwards = _Plan(habit, self.plan.frames, turn=-speed * side)
            case "back":
                self.plan = _Plan(habit, frames // 2, forward=-rng.uniform(0.4, 1.0))
            case "wander":
                self.plan = _Plan(habit, frames, forward=0.5)
            case _:
                self.plan = _Plan(habit, int(rng.integers(4, 16)))

    def _destination(self, rng: np.random.Generator) -> Cell:
        known = sorted(self.seen)
        rooms = int(self.layout.room.max()) + 1
        room = known[rng.integers(len(known))] if known and rng.random() < REVISIT else int(rng.integers(rooms))
        cells = np.argwhere(self.layout.room == room)
        x, y = cells[rng.integers(len(cells))]
        return int(x), int(y)

    def _move(self, x: float, y: float, angle: float) -> tuple[float, float]:
        match self.plan.habit:
            case "walk":
                self._advance_on_route(x, y)
                if self.waypoint is None:
                    self.plan.frames, self.goal = 0, None  # there
                    return self.sway, 0.0
                to = math.degrees(math.atan2(self.waypoint[1] - y, self.waypoint[0] - x))
                error = (to - angle + 180) % 360 - 180
                slow = 1.0 if abs(error) < 50 else 0.25
                return 0.3 * error + self.sway, slow * self.plan.forward + 0.5 * self.pace
            case "wander":
                return 2 * self.sway, self.plan.forward + self.pace
            case "back":
                return self.sway, self.plan.forward
            case "look":
                return self.plan.turn + 0.3 * self.sway, 0.0
            case _:
                return self.plan.turn, self.plan.forward

    def _advance_on_route(self, x: float, y: float) -> None:
        """Sets the waypoint: the furthest of the next cells on the route that a straight line reaches."""
        if self.waypoint and math.hypot(self.waypoint[0] - x, self.waypoint[1] - y) > 0.35:
            return
        self.waypoint = None
        for k in range(min(len(self.route), 6), 0, -1):
            i, j = self.route[k - 1]
            if k == 1 or clear(self.layout, x, y, i + 0.5, j + 0.5):
                self.waypoint, self.route = (i + 0.5, j + 0.5), self.route[k:]
                return
