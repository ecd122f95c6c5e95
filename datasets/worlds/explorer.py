"""The behaviour that collects data in first-person worlds: walks through rooms the way a curious person would."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from worldmodel.datasets.worlds.base import Action, Observation

STUCK_STEP = 0.8  # map units per frame: less than this while pushing forward counts as standing at a wall
STUCK_FRAMES = 4
WALL = 3.5  # clearance at which a wall is close, in the world's own unit of it

_MODES = ("walk", "keys", "wander", "look", "back", "strafe", "still")
_WEIGHTS = np.array([0.55, 0.20, 0.08, 0.05, 0.05, 0.05, 0.02])


@dataclass(slots=True)
class _Plan:
    """What the explorer does for the next ``frames`` frames."""

    mode: str
    frames: int
    turn: float = 0.0  # degrees per frame held in "keys", "look" and "away"
    forward: float = 0.0
    strafe: float = 0.0
    heading: float | None = None  # degrees, the direction that "walk" steers to


class Explorer:
    """Switches between seven habits every half second to two seconds.

    walk: steer towards an open direction seen in ``clearance``; keys: hold a random combination of full turn, move
    and strafe, as a player at a keyboard does; wander: Ornstein-Uhlenbeck turn and speed; look: stand and turn by 60 to
    300 degrees; back, strafe: move that way; still: nothing at all. Smooth noise on the turn of every moving habit
    keeps turn and move uncorrelated. At a wall (the pose no longer moves) it turns away.

    It reads ``state`` (x, y, angle in its first three entries) and ``clearance`` [beams], how far the view is free
    from left (+45 degrees) to right.
    """

    name = "explore"

    def __init__(self, max_turn: float, beams: int) -> None:
        self._max_turn = max_turn
        self._bearing = np.degrees(np.arctan(np.linspace(1, -1, 2 * beams + 1)[1::2]))  # [beams], positive left
        self.reset()

    def reset(self) -> None:
        self._plan: _Plan | None = None
        self._sway = 0.0  # Ornstein-Uhlenbeck turn, degrees per frame
        self._pace = 0.0  # Ornstein-Uhlenbeck speed
        self._last: NDArray[np.floating] | None = None
        self._stuck = 0

    def __call__(self, observation: Observation, rng: np.random.Generator | Sequence[np.random.Generator]) -> Action:
        assert isinstance(rng, np.random.Generator)
        state, clearance = observation["state"].astype(float), observation["clearance"].astype(float)
        self._watch_for_walls(state, clearance, rng)
        if self._plan is None or self._plan.frames <= 0:
            self._plan = self._choose(state, clearance, rng)
        self._plan.frames -= 1
        self._sway += -0.15 * self._sway + rng.normal(0, 0.7)
        self._pace += -0.1 * self._pace + rng.normal(0, 0.25)
        turn, forward, strafe = self._move(self._plan, state, clearance, rng)
        action = np.array([turn, forward, strafe])
        return np.clip(action, [-self._max_turn, -1, -1], [self._max_turn, 1, 1]).astype(np.float32)

    def _watch_for_walls(
        self, state: NDArray[np.floating], clearance: NDArray[np.floating], rng: np.random.Generator
    ) -> None:
        place = state[:2]
        plan = self._plan
        pushing = plan is not None and max(abs(plan.forward), abs(plan.strafe)) > 0.3
        moved = self._last is None or float(np.hypot(*(place - self._last))) > STUCK_STEP
        self._stuck = 0 if moved or not pushing else self._stuck + 1
        self._last = place
        ahead = clearance[len(clearance) // 2 - 3 : len(clearance) // 2 + 3].min()
        facing_wall = plan is not None and plan.forward > 0 and ahead <= WALL and rng.random() < 0.3
        if self._stuck >= STUCK_FRAMES or facing_wall:
            self._stuck = 0
            self._plan = self._turn_away(clearance, rng)

    def _turn_away(self, clearance: NDArray[np.floating], rng: np.random.Generator) -> _Plan:
        """Turns by 40 to 120 degrees, mostly to the side with more room."""
        half = len(clearance) // 2
        open_side = 1 if clearance[:half].sum() > clearance[half:].sum() else -1
        side = open_side if rng.random() < 0.8 else -open_side
        speed = rng.uniform(5, 9)
        return _Plan(
            "away", max(3, int(rng.uniform(40, 120) / speed)), turn=speed * side, forward=rng.choice([0.0, 0.3, 0.7])
        )

    def _choose(self, state: NDArray[np.floating], clearance: NDArray[np.floating], rng: np.random.Generator) -> _Plan:
        mode = str(rng.choice(_MODES, p=_WEIGHTS))
        frames = int(rng.integers(10, 40))
        side = rng.choice([-1.0, 1.0])
        match mode:
            case "walk":
                return _Plan(mode, frames, forward=rng.uniform(0.5, 1.0), heading=self._open(state, clearance, rng))
            case "keys":
                turn = self._max_turn * rng.uniform(0.3, 0.8) * rng.choice([-1, 0, 1])
                forward = float(rng.choice([-1, 0, 1], p=[0.15, 0.25, 0.6]))
                strafe = float(rng.choice([-1, 0, 1], p=[0.15, 0.7, 0.15]))
                return _Plan(mode, int(rng.integers(4, 20)), turn, forward, strafe)
            case "wander":
                return _Plan(mode, frames, forward=0.5)
            case "look":
                speed = rng.uniform(3.5, 9)
                return _Plan(mode, int(rng.uniform(60, 300) / speed), turn=side * speed)
            case "back":
                return _Plan(mode, frames // 2, forward=-rng.uniform(0.4, 1.0))
            case "strafe":
                return _Plan(mode, frames // 2, forward=rng.choice([0.0, 0.5]), strafe=side * rng.uniform(0.5, 1.0))
            case _:
                return _Plan("still", int(rng.integers(4, 16)))

    def _open(self, state: NDArray[np.floating], clearance: NDArray[np.floating], rng: np.random.Generator) -> float:
        """A heading in degrees, drawn with the squared clearance as weight."""
        beam = rng.choice(len(clearance), p=clearance**2 / np.sum(clearance**2)) if clearance.any() else 0
        return float(state[2] + self._bearing[beam])

    def _move(
        self, plan: _Plan, state: NDArray[np.floating], clearance: NDArray[np.floating], rng: np.random.Generator
    ) -> tuple[float, float, float]:
        match plan.mode:
            case "walk":
                assert plan.heading is not None
                error = (plan.heading - state[2] + 180) % 360 - 180
                return 0.3 * error + self._sway, plan.forward, 0.0
            case "wander":
                return 2 * self._sway, 0.5 + 0.5 * self._pace, 0.0
            case "look" | "away":
                return plan.turn + 0.3 * self._sway, plan.forward, 0.0
            case "back" | "strafe":
                return self._sway, plan.forward, plan.strafe
            case _:
                return plan.turn, plan.forward, plan.strafe
