"""What a maze is made of. Coordinates: x to the east, y to the north, in metres; a cell is 1 m wide, walls 1 m high.

Arrays are indexed [x, y]. Angles are in degrees, 0 = east, counter-clockwise.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

EAST, NORTH, WEST, SOUTH = range(4)
STEPS = ((1, 0), (0, 1), (-1, 0), (0, -1))  # to the neighbour cell on each side
PILLAR_RADIUS = 0.22

Cell = tuple[int, int]
Ints = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Door:
    """A leaf in the middle of a cell that slides aside, towards +y or +x."""

    cell: Cell
    across: Literal["x", "y"]  # the way through it: "x" leads east and west, the leaf stands at x + 0.5
    texture: int


@dataclass(frozen=True, slots=True)
class Pillar:
    """A round pillar from floor to ceiling."""

    x: float
    y: float
    texture: int


@dataclass(frozen=True, slots=True)
class Landmark:
    """Something that exists once in the maze."""

    name: str  # "panel star", "pillar wasp"
    room: int
    x: float  # metres: middle of the panel on the wall, or axis of the pillar
    y: float
    facing: float | None  # degrees, the direction a panel looks to; None for a pillar, seen from everywhere


@dataclass(frozen=True, slots=True)
class Layout:
    """One maze of G x G cells; the outermost cells are walls."""

    wall: NDArray[np.bool_]  # [G, G]
    room: Ints  # [G, G] number of the room that a cell belongs to, -1 in corridors, doors and walls
    face: Ints  # [G, G, 4] texture of a wall cell on its east, north, west and south side
    floor: Ints  # [G, G] texture
    ceiling: Ints  # [G, G] texture
    doors: tuple[Door, ...]
    pillars: tuple[Pillar, ...]
    landmarks: tuple[Landmark, ...]

    @property
    def size(self) -> int:
        return len(self.wall)
