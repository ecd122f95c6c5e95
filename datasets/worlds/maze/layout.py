"""The plan of a maze, drawn from a seed: rooms on a grid, corridors and doors between them."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from worldmodel.datasets.worlds.maze.furnish import paint_rooms, place_landmarks
from worldmodel.datasets.worlds.maze.plan import Cell, Door, Layout
from worldmodel.datasets.worlds.maze.signs import DOORS
from worldmodel.datasets.worlds.maze.textures import atlas

PITCH = 6  # cells from one room's place to the next


@dataclass(frozen=True, slots=True)
class _Room:
    left: int
    bottom: int
    width: int
    height: int

    def cells(self) -> list[Cell]:
        return [
            (x, y)
            for x in range(self.left, self.left + self.width)
            for y in range(self.bottom, self.bottom + self.height)
        ]


def generate(seed: int, rooms: int) -> Layout:
    """A maze of ``rooms`` x ``rooms`` rooms, every one reachable; a function of its arguments alone.

    Rooms measure 3 to 5 cells a side and have a material and colour, a floor, and one or two landmarks of their own. A
    random spanning tree of neighbours and about a third of the other pairs are joined by doors, straight or through a
    crooked grey corridor.
    """
    rng = np.random.default_rng([seed, rooms])
    places = {(i, j): _room(i, j, rng) for i in range(rooms) for j in range(rooms)}
    size = rooms * PITCH + 1
    wall = np.ones((size, size), bool)
    number = np.full((size, size), -1, np.int32)
    for k, room in enumerate(places.values()):
        for cell in room.cells():
            wall[cell], number[cell] = False, k
    doors: list[Door] = []
    for one, other in _links(rooms, rng):
        doors += _join(places[one], places[other], wall, rng)
    doors = [door for door in doors if _has_posts(door, wall)]
    face, floor, ceiling = paint_rooms(wall, number, doors, rng)
    pillars, landmarks = place_landmarks(wall, number, face, rng)
    return Layout(wall, number, face, floor, ceiling, tuple(doors), tuple(pillars), tuple(landmarks))


def _room(i: int, j: int, rng: np.random.Generator) -> _Room:
    width, height = (int(n) for n in rng.integers(3, PITCH, 2))
    left, bottom = (int(rng.integers(0, PITCH - n)) for n in (width, height))
    return _Room(i * PITCH + 1 + left, j * PITCH + 1 + bottom, width, height)


def _links(rooms: int, rng: np.random.Generator) -> list[tuple[Cell, Cell]]:
    """Pairs of neighbouring places: a random spanning tree and a third of the rest."""
    pairs = [((i, j), (i + di, j + dj)) for i in range(rooms) for j in range(rooms) for di, dj in ((1, 0), (0, 1))]
    pairs = [pair for pair in pairs if max(pair[1]) < rooms]
    group = {(i, j): (i, j) for i in range(rooms) for j in range(rooms)}
    links: list[tuple[Cell, Cell]] = []
    for k in rng.permutation(len(pairs)):
        one, other = pairs[k]
        if group[one] != group[other]:
            joined = group[other]
            group = {place: group[one] if name == joined else name for place, name in group.items()}
            links.append((one, other))
        elif rng.random() < 1 / 3:
            links.append((one, other))
    return links


def _join(one: _Room, other: _Room, wall: NDArray[np.bool_], rng: np.random.Generator) -> list[Door]:
    """Digs from ``one`` to its eastern or northern neighbour, with a door at each end (one door where they touch).

    Straight, or crooked where the gap leaves room for it. Neighbours always overlap sideways: both are at least 3 of 5.
    """
    east = other.left >= one.left + one.width
    if east:
        start, stop = one.left + one.width, other.left - 1  # first and last cell between the rooms
        sides = (range(one.bottom, one.bottom + one.height), range(other.bottom, other.bottom + other.height))
    else:
        start, stop = one.bottom + one.height, other.bottom - 1
        sides = (range(one.left, one.left + one.width), range(other.left, other.left + other.width))
    if stop - start >= 2 and rng.random() < 0.6:
        near, far = (int(rng.choice(side)) for side in sides)
        turn = int(rng.integers(start + 1, stop))
    else:
        near = far = int(rng.choice(sorted(set(sides[0]) & set(sides[1]))))
        turn = start
    path = [(along, near) for along in range(start, turn + 1)]
    path += [(turn, side) for side in range(min(near, far), max(near, far) + 1)]
    path += [(along, far) for along in range(turn, stop + 1)]
    cells = [(along, side) if east else (side, along) for along, side in path]
    for cell in cells:
        wall[cell] = False
    texture = atlas().number(f"door {rng.choice(DOORS)}")
    ends = [cells[0], cells[-1]] if stop - start >= 2 else [cells[0]]
    return [Door(cell, "x" if east else "y", texture) for cell in ends]


def _has_posts(door: Door, wall: NDArray[np.bool_]) -> bool:
    """Whether there is a wall on both sides of a door; a corridor that runs past takes it away."""
    x, y = door.cell
    dx, dy = (0, 1) if door.across == "x" else (1, 0)
    return bool(wall[x + dx, y + dy] and wall[x - dx, y - dy])
