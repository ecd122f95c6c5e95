"""How the body moves: turn, step, slide along what is in the way; and how doors move with it."""

import numpy as np
from numpy.typing import NDArray

from worldmodel.datasets.worlds.maze.plan import PILLAR_RADIUS
from worldmodel.datasets.worlds.maze.raycast import Floats, Scene

MAX_TURN = 10.0  # degrees per frame
STRIDE = 0.12  # metres per frame at forward = 1
RADIUS = 0.3  # of the body, metres
REACH = 1.5  # metres from the middle of a door within which it opens
SLIDE = 0.125  # of a door's width per frame
PASSABLE = 0.9  # opening from which one can walk through
SKIN = 1e-9  # metres by which a body that touches a wall is thinner when it slides along


def move(scene: Scene, pose: Floats, opening: Floats, action: Floats) -> Floats:
    """The pose [N, 3] after ``action`` [N, 2] = (degrees to the left, share of a stride forward).

    The angle grows by exactly the turn; the step then goes along the new angle, first along x, then along y, each as
    far as walls and doors allow, and off the pillars.
    """
    x, y, angle = pose.T
    angle = (angle + action[:, 0]) % 360
    blocked = _blocked(scene, opening)
    step = STRIDE * action[:, 1]
    x = _advance(blocked, x, y, step * np.cos(np.radians(angle)))
    y = _advance(blocked.swapaxes(1, 2), y, x, step * np.sin(np.radians(angle)))
    x, y = _off_pillars(scene, x, y)
    return np.stack([x, y, angle], axis=1)


def settled(scene: Scene, pose: Floats) -> Floats:
    """Opening [N, D] of the doors when the body has stood at ``pose`` for long: 1 near it, 0 elsewhere."""
    return _near(scene, pose).astype(np.float64)


def slide_doors(scene: Scene, pose: Floats, opening: Floats) -> Floats:
    """Opening [N, D] one frame later."""
    return np.clip(opening + np.where(_near(scene, pose), SLIDE, -SLIDE), 0, 1)


def _near(scene: Scene, pose: Floats) -> NDArray[np.bool_]:
    x, y = (scene.door + 0.5 - pose[:, None, :2]).transpose(2, 0, 1)
    return x * x + y * y < REACH**2  # False for the NaN of absent doors


def _blocked(scene: Scene, opening: Floats) -> NDArray[np.bool_]:
    """[N, G, G] cells that nobody can enter: walls, and doors that are not open."""
    blocked = scene.wall.copy()
    row, k = np.nonzero((opening < PASSABLE) & ~np.isnan(scene.door[..., 0]))
    cell = scene.door[row, k].astype(int)
    blocked[row, cell[:, 0], cell[:, 1]] = True
    return blocked


def _advance(blocked: NDArray[np.bool_], x: Floats, y: Floats, dx: Floats) -> Floats:
    """x + dx, or as far as the square around the body gets before a blocked cell. |dx| must be below one cell."""
    row = np.arange(len(x))
    side = np.sign(dx)
    ahead = np.floor(x + dx + side * (RADIUS - SKIN)).astype(int)  # column of cells that the front side is in
    low, high = (np.floor(y + edge * (RADIUS - SKIN)).astype(int) for edge in (-1, 1))
    stopped = (blocked[row, ahead, low] | blocked[row, ahead, high]) & (side != 0)
    return np.where(stopped, np.where(side > 0, ahead - RADIUS, ahead + 1 + RADIUS), x + dx)


def _off_pillars(scene: Scene, x: Floats, y: Floats) -> tuple[Floats, Floats]:
    """Pushed straight away from the axis of a pillar until body and pillar touch; there is only one within reach."""
    if not scene.pillar.shape[1]:
        return x, y
    apart = np.stack([x, y], 1)[:, None] - scene.pillar  # [N, P, 2]
    distance = np.hypot(apart[..., 0], apart[..., 1])
    distance = np.where(np.isnan(distance), np.inf, distance)
    k = distance.argmin(1)
    row = np.arange(len(x))
    near, centre = distance[row, k], scene.pillar[row, k]
    inside = near < RADIUS + PILLAR_RADIUS
    scale = (RADIUS + PILLAR_RADIUS) / np.where(inside, near, 1)
    x = np.where(inside, centre[:, 0] + apart[row, k, 0] * scale, x)
    y = np.where(inside, centre[:, 1] + apart[row, k, 1] * scale, y)
    return x, y
