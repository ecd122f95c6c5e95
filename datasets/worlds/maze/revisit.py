"""The behaviour that collects revisits: sees a landmark, turns away, comes back to the very same pose.

It records what memory is needed for. `worldmodel evaluate context` finds the visits in the recorded poses.
"""

import math
from collections.abc import Generator, Sequence

import numpy as np

from worldmodel.datasets.worlds.base import Action, Observation
from worldmodel.datasets.worlds.maze.away import Move, Place, Pose, Walk, trip
from worldmodel.datasets.worlds.maze.explore import HasLayouts, Walker
from worldmodel.datasets.worlds.maze.motion import MAX_TURN, STRIDE, settled, slide_doors
from worldmodel.datasets.worlds.maze.plan import Layout
from worldmodel.datasets.worlds.maze.raycast import stack
from worldmodel.datasets.worlds.maze.sight import choose_view, view_from
from worldmodel.datasets.worlds.turning import HORIZONS, SPEED, held, returning, wrapped

LOOK = (8, 17)  # frames of a look, the second excluded
EXPLORE = (0, 25)  # frames of exploring before the next landmark
PATIENCE = 25  # frames without progress after which another landmark is chosen

Course = Generator[Move, Pose, Pose]


class Revisitor:
    """One visit after another, each row by itself.

    Explores for a second or so, walks to a spot from which a landmark is in good view, looks at it for 8 to 16 frames,
    turns away and stays away for 4, 8, 16, 32, 64, 96 or 128 frames in which nothing of the landmark is seen, turning
    and walking, some times through a door; comes back to the same pose within 2 cm and 1 degree and looks again.

    It knows the map, as `explore` does, and x, y, angle from ``state``.
    """

    name = "revisit"

    def __init__(self, world: HasLayouts) -> None:
        self._world = world
        self._courses: list[Course] = []

    def reset(self) -> None:
        self._courses = []

    def __call__(self, observation: Observation, rng: np.random.Generator | Sequence[np.random.Generator]) -> Action:
        """float32 [N, 2]; ``rng`` is one generator per row, the same ones until the next reset."""
        assert isinstance(rng, Sequence)
        poses: list[Pose] = [(x, y, angle) for x, y, angle in observation["state"].tolist()]
        if self._courses:
            moves = [course.send(pose) for course, pose in zip(self._courses, poses, strict=True)]
        else:
            rows = zip(self._world.layouts, poses, rng, strict=True)
            self._courses = [_Visitor(layout, pose, generator).course(pose) for layout, pose, generator in rows]
            moves = [next(course) for course in self._courses]
        return np.clip(np.array(moves, np.float32), (-MAX_TURN, -1), (MAX_TURN, 1)).astype(np.float32)


class _Visitor:
    """One row. Its courses yield moves, are sent the pose after each, and return the last one."""

    def __init__(self, layout: Layout, pose: Pose, rng: np.random.Generator) -> None:
        self._rng = rng
        scene = stack([layout])
        self._place = Place(layout, scene, settled(scene, np.array([pose])))
        self._walker = Walker(layout)

    def course(self, pose: Pose) -> Course:
        """Visits without end."""
        last = None
        while True:
            pose = yield from self._explore(pose, int(self._rng.integers(*EXPLORE)))
            spot = choose_view(self._place.layout, (pose[0], pose[1]), last, self._rng)
            if spot is None:
                continue
            pose = yield from self._walk(pose, (spot.x, spot.y))
            aside = wrapped(spot.angle - math.degrees(math.atan2(spot.mark.y - spot.y, spot.mark.x - spot.x)))
            view = view_from(self._place.layout, spot.mark, pose[0], pose[1], aside)
            if view is None:
                continue
            pose = yield from self._turn_to(pose, view.angle)
            pose = yield from self._hold(pose, view.angle)
            frames = int(self._rng.choice(HORIZONS))
            for target in trip(self._place, view, frames, self._rng):
                pose = yield from self._do(_towards(pose, target))
            pose = yield from self._hold(pose, view.angle)
            last = view.mark

    def _do(self, action: Move) -> Course:
        pose = yield action
        opening = slide_doors(self._place.scene, np.array([pose]), self._place.opening)
        self._place = Place(self._place.layout, self._place.scene, opening)
        return pose

    def _explore(self, pose: Pose, frames: int) -> Course:
        for _ in range(frames):
            pose = yield from self._do(self._walker.act(*pose, self._rng))
        return pose

    def _walk(self, pose: Pose, spot: tuple[float, float]) -> Course:
        walk, waited = Walk(self._place.layout, pose, spot, self._rng), 0
        while waited < PATIENCE and (action := walk.next(pose, self._rng)) is not None:
            before, pose = pose, (yield from self._do(action))
            waited = 0 if math.hypot(pose[0] - before[0], pose[1] - before[1]) > 0.01 else waited + 1
        return pose

    def _turn_to(self, pose: Pose, angle: float) -> Course:
        left = wrapped(angle - pose[2])
        for each in returning(abs(left), float(self._rng.uniform(*SPEED))):
            pose = yield from self._do((wrapped(angle - math.copysign(each, left) - pose[2]), 0.0))
        return pose

    def _hold(self, pose: Pose, angle: float) -> Course:
        for each in held(int(self._rng.integers(*LOOK)), self._rng):
            pose = yield from self._do((wrapped(angle + each - pose[2]), 0.0))
        return pose


def _towards(pose: Pose, target: Pose) -> Move:
    """The move that leads closest to a pose ahead or behind: the whole turn, and the step along the new direction."""
    x, y, angle = target
    along = (x - pose[0]) * math.cos(math.radians(angle)) + (y - pose[1]) * math.sin(math.radians(angle))
    return wrapped(angle - pose[2]), along / STRIDE
