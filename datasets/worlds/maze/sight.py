"""Where the landmarks of a maze are seen from."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from worldmodel.datasets.worlds.maze.paths import clear
from worldmodel.datasets.worlds.maze.plan import Landmark, Layout
from worldmodel.datasets.worlds.maze.raycast import Floats, cast, stack
from worldmodel.datasets.worlds.maze.textures import atlas
from worldmodel.datasets.worlds.turning import wrapped

NEAR, FAR = 0.8, 3.0  # metres from which a landmark is in good view
ASIDE = 12.0  # degrees from the middle of the picture
SLANT = 50.0  # degrees from straight in front of a panel
COLUMNS = 64  # of the pictures that are cast to find out what is seen
AT_HAND = 0.75  # share of views that are of the nearest landmark
TRIES = 40  # places that are tried for a view of one landmark


def showing(layout: Layout, mark: Landmark, poses: Floats, columns: int = COLUMNS) -> NDArray[np.bool_]:
    """Which columns of a picture from each pose [M, 3] show a landmark, [M, columns]; open doors hide nothing."""
    scene = stack([layout] * len(poses))
    hits = cast(scene, poses, np.ones(scene.door.shape[:2]), columns)
    return hits.texture == atlas().number(mark.name)


@dataclass(frozen=True, slots=True)
class View:
    """A place in the room of a landmark, and the direction in degrees to look at it."""

    mark: Landmark
    x: float
    y: float
    angle: float


def view_from(layout: Layout, mark: Landmark, x: float, y: float, aside: float) -> View | None:
    """The view of a landmark `aside` degrees off the middle; None where the landmark is not in good view.

    Good: in the same room, NEAR to FAR, a panel at most SLANT from its front, its middle hidden by nothing.
    """
    towards = math.degrees(math.atan2(mark.y - y, mark.x - x))
    near = NEAR <= math.hypot(mark.x - x, mark.y - y) <= FAR and layout.room[int(x), int(y)] == mark.room
    in_front = mark.facing is None or abs(wrapped(towards + 180 - mark.facing)) <= SLANT
    if not near or not in_front:
        return None
    middle = showing(layout, mark, np.array([[x, y, towards]]))[0, COLUMNS // 2 - 1 : COLUMNS // 2 + 1]
    return View(mark, x, y, (towards + aside) % 360) if middle.all() else None


def choose_view(
    layout: Layout, here: tuple[float, float], last: Landmark | None, rng: np.random.Generator
) -> View | None:
    """A random place with a landmark in good view, another one than the last; None if none was found.

    Mostly the nearest landmark, so that little time goes into walking.
    """
    others = [mark for mark in layout.landmarks if mark != last]
    marks = [others[k] for k in rng.permutation(len(others))]
    if rng.random() < AT_HAND:
        marks.sort(key=lambda mark: math.hypot(mark.x - here[0], mark.y - here[1]))
    for mark in marks:
        cells = np.argwhere(layout.room == mark.room)
        for _ in range(TRIES):
            x, y = (float(each) for each in cells[rng.integers(len(cells))] + rng.uniform(0, 1, 2))
            view = view_from(layout, mark, x, y, float(rng.uniform(-ASIDE, ASIDE)))
            if view is not None and clear(layout, x, y, x, y):
                return view
    return None
