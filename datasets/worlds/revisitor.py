"""The behaviour that collects revisits where no map is known: looks, turns away on the spot, and turns back."""

from collections.abc import Generator, Sequence

import numpy as np
from numpy.typing import NDArray

from worldmodel.datasets.worlds.base import Action, Observation
from worldmodel.datasets.worlds.explorer import Explorer
from worldmodel.datasets.worlds.turning import HORIZONS, held, turned_away, wrapped

EXPLORE = (20, 60)  # frames of exploring before the next view
LOOK = (8, 17)  # frames of a look, the second excluded
STILL = 3  # frames without any movement after which the body has come to rest
ROOM = 8.0  # clearance in the middle of the view, in the world's own unit of it, below which a wall fills it

Course = Generator[Action, Observation, Observation]


class Revisitor:
    """Explores, stops somewhere, and looks at what is there; then turns away for 4 to 128 frames, and back.

    The body rests at one place all the while, so the view that it comes back to is the one it left, to the 16 bits of
    the engine's angle. It reads ``state`` (x, y, angle in its first three entries) and ``clearance`` [beams].
    """

    name = "revisit"

    def __init__(self, explorer: Explorer, max_turn: float) -> None:
        self._explorer, self._max_turn = explorer, max_turn
        self._course: Course | None = None

    def reset(self) -> None:
        self._explorer.reset()
        self._course = None

    def __call__(self, observation: Observation, rng: np.random.Generator | Sequence[np.random.Generator]) -> Action:
        """float32 [3]; ``rng`` is the same one until the next reset."""
        assert isinstance(rng, np.random.Generator)
        if self._course is None:
            self._course = self._visits(observation, rng)
            return next(self._course)
        return self._course.send(observation)

    def _visits(self, seen: Observation, rng: np.random.Generator) -> Course:
        while True:
            for _ in range(int(rng.integers(*EXPLORE))):
                seen = yield self._explorer(seen, rng)
            seen = yield from self._come_to_rest(seen)
            if _ahead(seen) < ROOM:
                continue
            angle = float(seen["state"][2])
            trip = turned_away(int(rng.choice(HORIZONS)), rng)
            looks = [held(int(rng.integers(*LOOK)), rng) for _ in range(2)]
            for each in (*looks[0], *trip, *looks[1]):
                seen = yield self._turn(angle + each - float(seen["state"][2]))

    def _come_to_rest(self, seen: Observation) -> Course:
        still = 0
        while still < STILL:
            before = seen
            seen = yield self._turn(0.0)
            still = still + 1 if np.array_equal(before["state"][:2], seen["state"][:2]) else 0
        return seen

    def _turn(self, degrees: float) -> NDArray[np.float32]:
        return np.array([np.clip(wrapped(degrees), -self._max_turn, self._max_turn), 0, 0], np.float32)


def _ahead(seen: Observation) -> float:
    clearance = seen["clearance"]
    third = len(clearance) // 3
    return float(np.median(clearance[third:-third]))
