"""Away from a view and exactly back, as poses to go through: planned ahead, so that the landmark stays out of sight."""

import math
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from worldmodel.datasets.worlds.maze.motion import MAX_TURN, STRIDE, move, slide_doors
from worldmodel.datasets.worlds.maze.paths import clear, route
from worldmodel.datasets.worlds.maze.plan import Layout
from worldmodel.datasets.worlds.maze.raycast import Floats, Scene
from worldmodel.datasets.worlds.maze.sight import View, showing
from worldmodel.datasets.worlds.turning import SPEED, leaving, returning, turned_away, wrapped

Pose = tuple[float, float, float]  # x, y (metres), angle (degrees)
Move = tuple[float, float]  # turn (degrees), forward (share of a stride)

SHORTEST_WALK = 16  # frames out of sight from which on one may walk
TRIES = 5  # destinations that are tried
WALKED = 0.4  # metres that a walk must lead away


class Walk:
    """Steers along a route to a spot, with smooth noise on turn and pace (Ornstein-Uhlenbeck), like `explore`."""

    def __init__(self, layout: Layout, pose: Pose, spot: tuple[float, float], rng: np.random.Generator) -> None:
        cells = route(layout, (int(pose[0]), int(pose[1])), (int(spot[0]), int(spot[1])))
        self._layout, self._speed = layout, float(rng.uniform(0.5, 0.9))
        self._way = [*((i + 0.5, j + 0.5) for i, j in cells[:-1]), spot]
        self._aim: tuple[float, float] | None = None
        self._sway = self._pace = 0.0

    def aim(self, x: float, y: float) -> tuple[float, float] | None:
        """Where to go in a straight line now; None at the end."""
        if self._aim is not None and math.hypot(self._aim[0] - x, self._aim[1] - y) > (0.35 if self._way else 0.12):
            return self._aim
        self._aim = None
        for k in range(min(len(self._way), 6), 0, -1):
            if k == 1 or clear(self._layout, x, y, *self._way[k - 1]):
                self._aim, self._way = self._way[k - 1], self._way[k:]
                break
        return self._aim

    def next(self, pose: Pose, rng: np.random.Generator) -> Move | None:
        """The next move; None at the end."""
        x, y, angle = pose
        aim = self.aim(x, y)
        if aim is None:
            return None
        push_turn, push_pace = rng.standard_normal(2)
        self._sway += -0.15 * self._sway + 0.7 * push_turn
        self._pace += -0.1 * self._pace + 0.12 * push_pace
        error = wrapped(math.degrees(math.atan2(aim[1] - y, aim[0] - x)) - angle)
        distance = math.hypot(aim[0] - x, aim[1] - y)
        steady = min(1.0, distance / 0.5)  # close by, noise would turn it in circles
        speed = min(self._speed + 0.5 * self._pace, 0.5 * distance / STRIDE) if abs(error) < 50 else 0.0
        turn = 0.3 * error + steady * self._sway
        return min(max(turn, -MAX_TURN), MAX_TURN), min(max(speed, 0.0), 1.0)


@dataclass(frozen=True, slots=True)
class Place:
    """A row of its own of a maze, with its doors as they are: to try out what a move would do."""

    layout: Layout
    scene: Scene  # of one row
    opening: Floats  # [1, D]

    def after(self, pose: Pose, action: Move) -> tuple[Pose, "Place"]:
        """Where a move leads; one that something is in the way of becomes its turn alone, so that it can be undone."""
        start, turn, forward = np.array([pose]), np.float64(np.float32(action[0])), np.float64(np.float32(action[1]))
        angle = (pose[2] + turn) % 360
        free = (
            pose[0] + STRIDE * forward * math.cos(math.radians(angle)),
            pose[1] + STRIDE * forward * math.sin(math.radians(angle)),
        )
        moved = move(self.scene, start, self.opening, np.array([[turn, forward]]))[0]
        if math.hypot(moved[0] - free[0], moved[1] - free[1]) > 1e-9:
            moved = np.array([pose[0], pose[1], angle])
        opening = slide_doors(self.scene, moved[None], self.opening)
        return (float(moved[0]), float(moved[1]), float(moved[2])), Place(self.layout, self.scene, opening)


def trip(place: Place, view: View, frames: int, rng: np.random.Generator) -> list[Pose]:
    """Poses from a view away and back to it; its landmark is out of sight in `frames` of them, one after another.

    At least the first and the last of those are turned away from the view on its spot. In half of the trips long
    enough one walks, within the room or through a door, and comes back the same way backwards.
    """
    if frames >= SHORTEST_WALK and rng.random() < 0.5:
        for _ in range(TRIES):
            walked = _walk(place, view, frames, rng)
            if walked is not None:
                return walked
    return [(view.x, view.y, (view.angle + turned) % 360) for turned in turned_away(frames, rng)]


def _walk(place: Place, view: View, frames: int, rng: np.random.Generator) -> list[Pose] | None:
    """Turn away, walk for half of the frames, and undo all of it; None if the way leads into sight or nowhere."""
    spot = _destination(place.layout, view, rng)
    walk = Walk(place.layout, (view.x, view.y, view.angle), spot, rng)
    aim = walk.aim(view.x, view.y)
    bearing = 0.0 if aim is None else wrapped(math.degrees(math.atan2(aim[1] - view.y, aim[0] - view.x)) - view.angle)
    speed, side = float(rng.uniform(*SPEED)), math.copysign(1.0, bearing)
    turned = leaving(speed)
    if abs(bearing) < turned[-1]:
        return None
    poses = _rehearse(place, walk, (view.x, view.y, (view.angle + side * turned[-1]) % 360), frames // 2, rng)
    both = np.array([*poses, *reversed(_undone(poses))])  # each pose, and the one on the way back before it
    seen = np.any(showing(place.layout, view.mark, both), axis=1).reshape(2, -1).any(0)
    hidden = int(seen.argmax()) if seen.any() else len(poses)
    poses = poses[:hidden]
    if hidden < 0.6 * (frames // 2) or max(math.hypot(x - view.x, y - view.y) for x, y, _ in poses) < WALKED:
        return None
    there = [(view.x, view.y, (view.angle + side * each) % 360) for each in turned[:-1]]
    back = [(view.x, view.y, (view.angle + side * each) % 360) for each in returning(turned[-1], speed)]
    return [*there, *poses, *[poses[-1]] * (frames - 2 * hidden), *_undone(poses), *back]


def _destination(layout: Layout, view: View, rng: np.random.Generator) -> tuple[float, float]:
    """The middle of a cell near the view: of its room, or, twice as often, behind one of its doors."""
    cells = np.argwhere(layout.room == view.mark.room)
    low, high = cells.min(0) - 1, cells.max(0) + 1  # with the walls around
    doors = [d.cell for d in layout.doors if (low <= d.cell).all() and (d.cell <= high).all()]
    if doors and rng.random() < 2 / 3:
        x, y = doors[rng.integers(len(doors))]
        near = np.argwhere(~layout.wall & (layout.room != view.mark.room))
        near = near[np.abs(near - (x, y)).sum(1) <= 3]
        cells = near if len(near) else cells
    x, y = cells[rng.integers(len(cells))] + 0.5
    return float(x), float(y)


def _rehearse(place: Place, walk: Walk, pose: Pose, frames: int, rng: np.random.Generator) -> list[Pose]:
    """`frames` poses, the given one first: along the walk, then looking around at its end."""
    poses, turn, left = [pose], 0.0, 0
    while len(poses) < frames:
        action = walk.next(pose, rng)
        if action is None:
            if left == 0:
                left = int(rng.integers(4, 24))
                turn = float(rng.choice((-1, 0, 1))) * float(rng.uniform(*SPEED))
            left -= 1
            action = (turn, 0.0)
        pose, place = place.after(pose, action)
        poses.append(pose)
    return poses


def _undone(poses: list[Pose]) -> list[Pose]:
    """The poses of the way back to the first one, as many as there are: each turns first, then steps backwards.

    A move turns and then steps along the new direction; undone, the step comes before the turn, and so the way back
    goes through each place with the direction of the next.
    """
    backwards = [(x, y, angle) for (x, y, _), (_, _, angle) in pairwise(poses)]
    return [*reversed(backwards), poses[0]]
