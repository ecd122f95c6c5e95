"""The raycaster: pictures [N, H, W, 3] of N mazes from N poses, all at once.

Geometry in float64 and in closed form: a ray is intersected with every grid line, door and pillar, and the nearest hit
counts; nothing is accumulated step by step, and no number depends on the other rows.

A camera at height 0.5 m looks level along ``forward``; the ray of column c is ``forward + slope(c) * right`` with
``slope(c) = (c + 0.5 - W / 2) / focal``. Its length parameter is therefore the depth along the viewing axis, from
which wall heights follow without fish-eye: a wall at depth d covers ``focal / d`` pixels.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from worldmodel.datasets.worlds.maze.plan import EAST, NORTH, PILLAR_RADIUS, SOUTH, WEST, Ints, Layout

FOV = 75.0  # degrees, horizontally and vertically
LIGHT = (1.0, 0.8, 0.94, 0.74)  # of faces that look east, north, west, south
DOOR_LIGHT = 0.9

Floats = NDArray[np.floating]  # double precision throughout


@dataclass(slots=True)
class Scene:
    """N layouts of G x G cells side by side, with room for D doors and P pillars each."""

    wall: NDArray[np.bool_]  # [N, G, G]
    face: Ints  # [N, G, G, 4]
    floor: Ints  # [N, G, G]
    ceiling: Ints  # [N, G, G]
    door: Floats  # [N, D, 2] lower left corner of the door's cell; NaN where there is no door
    door_across_x: NDArray[np.bool_]  # [N, D]
    door_texture: Ints  # [N, D]
    pillar: Floats  # [N, P, 2] axis; NaN where there is no pillar
    pillar_texture: Ints  # [N, P]


@dataclass(frozen=True, slots=True)
class Hits:
    """What each column of the picture looks at."""

    depth: Floats  # [N, W] metres along the viewing axis
    u: Floats  # [N, W] in [0, 1), from left to right on the texture
    texture: Ints  # [N, W]
    light: Floats  # [N, W] in [0, 1]
    slant: Floats  # [N, W] in (0, 1], cosine between the ray and the surface's normal


def stack(layouts: Sequence[Layout]) -> Scene:
    """Layouts of one size as arrays."""
    rows, doors = len(layouts), max(len(layout.doors) for layout in layouts)
    pillars = max(len(layout.pillars) for layout in layouts)
    scene = Scene(
        wall=np.stack([layout.wall for layout in layouts]),
        face=np.stack([layout.face for layout in layouts]),
        floor=np.stack([layout.floor for layout in layouts]),
        ceiling=np.stack([layout.ceiling for layout in layouts]),
        door=np.full((rows, doors, 2), np.nan),
        door_across_x=np.zeros((rows, doors), bool),
        door_texture=np.zeros((rows, doors), np.int32),
        pillar=np.full((rows, pillars, 2), np.nan),
        pillar_texture=np.zeros((rows, pillars), np.int32),
    )
    for row, layout in enumerate(layouts):
        for k, door in enumerate(layout.doors):
            scene.door[row, k] = door.cell
            scene.door_across_x[row, k] = door.across == "x"
            scene.door_texture[row, k] = door.texture
        for k, pillar in enumerate(layout.pillars):
            scene.pillar[row, k] = pillar.x, pillar.y
            scene.pillar_texture[row, k] = pillar.texture
    return scene


def slopes(size: int) -> Floats:
    """[size] tangent of the angle to the right of each column's ray, and of the angle downwards of each row's."""
    return (np.arange(size) + 0.5 - size / 2) / focal(size)


def focal(size: int) -> float:
    """Focal length in pixels."""
    return size / 2 / math.tan(math.radians(FOV / 2))


def rays(angle: Floats, size: int) -> tuple[Floats, Floats]:
    """Directions (x, y), each [N, W], for headings [N] in degrees; the part along the heading has length 1."""
    cos, sin = np.cos(np.radians(angle))[:, None], np.sin(np.radians(angle))[:, None]
    slope = slopes(size)
    return cos + slope * sin, sin - slope * cos


def cast(scene: Scene, pose: Floats, opening: Floats, size: int) -> Hits:
    """The nearest surface in every column. ``pose`` [N, 3]: x, y, angle; ``opening`` [N, D] of the doors, 1 = open."""
    dx, dy = rays(pose[:, 2], size)
    x, y = pose[:, 0, None], pose[:, 1, None]
    with np.errstate(divide="ignore", invalid="ignore"):
        hits = _cast_walls(scene, x, y, dx, dy)
        hits = _nearer(hits, _cast_doors(scene, x, y, dx, dy, opening))
        return _nearer(hits, _cast_pillars(scene, x, y, dx, dy))


def _nearer(one: Hits, other: Hits | None) -> Hits:
    if other is None:
        return one
    swap = other.depth < one.depth
    return Hits(
        *(np.where(swap, getattr(other, f), getattr(one, f)) for f in ("depth", "u", "texture", "light", "slant"))
    )


def _cast_walls(scene: Scene, x: Floats, y: Floats, dx: Floats, dy: Floats) -> Hits:
    depth_x, cell_x = _cross(scene.wall, x, y, dx, dy)
    depth_y, cell_y = _cross(scene.wall.swapaxes(1, 2), y, x, dy, dx)
    sideways = depth_x <= depth_y  # the face looks east or west
    depth = np.where(sideways, depth_x, depth_y)
    side = np.where(sideways, np.where(dx > 0, WEST, EAST), np.where(dy > 0, SOUTH, NORTH))
    along = np.where(sideways, y + depth * dy, x + depth * dx)
    i = np.where(sideways, cell_x, np.floor(along).astype(np.int64))
    j = np.where(sideways, np.floor(along).astype(np.int64), cell_y)
    row = np.arange(len(x))[:, None]
    along -= np.floor(along)
    return Hits(
        depth=depth,
        u=_reversed_where((side == WEST) | (side == NORTH), along),
        texture=scene.face[row, i, j, side],
        light=np.array(LIGHT)[side],
        slant=np.abs(np.where(sideways, dx, dy)) / np.hypot(dx, dy),
    )


def _reversed_where(condition: NDArray[np.bool_], u: Floats) -> Floats:
    return np.where(condition, np.minimum(1 - u, np.nextafter(1, 0)), u)


def _cross(wall: NDArray[np.bool_], x: Floats, y: Floats, dx: Floats, dy: Floats) -> tuple[Floats, NDArray[np.integer]]:
    """Depth of the first wall entered through a grid line of constant x, and the column of cells behind that line.

    ``wall`` [N, G, G] of any strides; x, y [N, 1]; dx, dy [N, W]. Depth is infinite where there is none.
    """
    rows, size = wall.shape[:2]
    line = np.arange(1, size, dtype=np.int32)
    depth = (line - x[..., None]) / dx[..., None]  # [N, W, G - 1]
    j = np.floor(y[..., None] + depth * dy[..., None])
    inside = (depth > 0) & (j >= 0) & (j < size)
    i = line - np.where(dx > 0, 0, 1)[..., None]
    cell = (np.arange(rows)[:, None, None] * size + i) * size + np.where(inside, j, 0).astype(np.int64)
    hit = inside & np.ascontiguousarray(wall).take(cell)
    depth = np.where(hit, depth, np.inf)
    nearest = depth.argmin(-1)[..., None]
    return np.take_along_axis(depth, nearest, -1)[..., 0], np.take_along_axis(i, nearest, -1)[..., 0]


def _cast_doors(scene: Scene, x: Floats, y: Floats, dx: Floats, dy: Floats, opening: Floats) -> Hits | None:
    """The leaf of a door across x stands at x = left + 0.5 and covers y from bottom + opening to bottom + 1."""
    if not scene.door.shape[1]:
        return None
    across_x = scene.door_across_x[:, None]  # [N, 1, D]
    left, bottom = scene.door[:, None, :, 0], scene.door[:, None, :, 1]
    x, y, dx, dy = x[..., None], y[..., None], dx[..., None], dy[..., None]
    depth = np.where(across_x, (left + 0.5 - x) / dx, (bottom + 0.5 - y) / dy)  # [N, W, D]
    along = np.where(across_x, y + depth * dy - bottom, x + depth * dx - left)
    hit = (depth > 0) & (along >= opening[:, None]) & (along < 1)
    nearest = np.where(hit, depth, np.inf)
    k = nearest.argmin(-1)[..., None]
    pick = lambda values: np.take_along_axis(np.broadcast_to(values, depth.shape), k, -1)[..., 0]  # noqa: E731
    forwards = np.where(across_x, dx > 0, dy < 0)  # the viewer sees x or y grow from right to left
    u = along - opening[:, None]
    return Hits(
        depth=pick(nearest),
        u=pick(_reversed_where(forwards, u)),
        texture=pick(scene.door_texture[:, None]),
        light=np.full(pick(depth).shape, DOOR_LIGHT),
        slant=pick(np.abs(np.where(across_x, dx, dy)) / np.hypot(dx, dy)),
    )


def _cast_pillars(scene: Scene, x: Floats, y: Floats, dx: Floats, dy: Floats) -> Hits | None:
    """First root of |o + depth * d - c|^2 = r^2. The texture goes round three times."""
    if not scene.pillar.shape[1]:
        return None
    x, y, dx, dy = x[..., None], y[..., None], dx[..., None], dy[..., None]
    ox, oy = x - scene.pillar[:, None, :, 0], y - scene.pillar[:, None, :, 1]
    a, b = dx * dx + dy * dy, ox * dx + oy * dy
    root = np.sqrt(b * b - a * (ox * ox + oy * oy - PILLAR_RADIUS**2))  # NaN where the ray passes by
    depth = (-b - root) / a
    depth = np.where(depth > 0, depth, np.inf)
    k = depth.argmin(-1)[..., None]
    pick = lambda values: np.take_along_axis(np.broadcast_to(values, depth.shape), k, -1)[..., 0]  # noqa: E731
    nx, ny = pick(ox + depth * dx) / PILLAR_RADIUS, pick(oy + depth * dy) / PILLAR_RADIUS  # outward normal
    slant = np.clip(-(nx * pick(dx) + ny * pick(dy)) / np.sqrt(pick(a)), 0.02, 1)
    turns = np.arctan2(ny, nx) / (2 * np.pi) * 3
    return Hits(
        depth=pick(depth),
        u=np.nan_to_num(turns - np.floor(turns)),
        texture=pick(scene.pillar_texture[:, None]),
        light=np.nan_to_num(0.5 + 0.5 * slant),
        slant=np.nan_to_num(slant, nan=1.0),
    )
