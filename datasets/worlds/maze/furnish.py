"""Makes the places of a maze look different: materials and colours of rooms, and their landmarks."""

import numpy as np
from numpy.typing import NDArray

from worldmodel.datasets.worlds.maze.materials import CEILINGS, FLOORS, MATERIALS, ROOM_COLOURS
from worldmodel.datasets.worlds.maze.plan import STEPS, Door, Ints, Landmark, Pillar
from worldmodel.datasets.worlds.maze.signs import PILLARS, SIGNS
from worldmodel.datasets.worlds.maze.textures import atlas


def paint_rooms(
    wall: NDArray[np.bool_], room: Ints, doors: list[Door], rng: np.random.Generator
) -> tuple[Ints, Ints, Ints]:
    """Textures of faces [G, G, 4], floors and ceilings [G, G]; what nobody can see stays 0."""
    number, rooms = atlas().number, int(room.max()) + 1
    colours, materials = rng.permutation(ROOM_COLOURS), rng.permutation(list(MATERIALS))
    laps = [divmod(k, len(colours)) for k in range(rooms)]
    walls = [number(f"{materials[(k + lap) % len(materials)]} {colours[k]}") for lap, k in laps]
    floors = [number(f"floor {name}") for name in rng.choice(FLOORS, rooms)]
    ceilings = [number(f"ceiling {name}") for name in rng.choice(CEILINGS, rooms)]

    def per_cell(of_room: list[int], elsewhere: str) -> Ints:
        return np.array([*of_room, number(elsewhere)], np.int32)[room]  # room -1 takes the last

    seen = per_cell(walls, "corridor")  # what the walls around a cell look like from inside it
    for door in doors:
        seen[door.cell] = number("frame")
    face = np.zeros((*wall.shape, 4), np.int32)
    for side, (dx, dy) in enumerate(STEPS):
        neighbour_open = ~np.roll(wall, (-dx, -dy), (0, 1))
        face[..., side] = np.where(wall & neighbour_open, np.roll(seen, (-dx, -dy), (0, 1)), 0)
    return face, per_cell(floors, "floor slabs"), per_cell(ceilings, "ceiling dark")


def place_landmarks(
    wall: NDArray[np.bool_], room: Ints, face: Ints, rng: np.random.Generator
) -> tuple[list[Pillar], list[Landmark]]:
    """One landmark in every room and a second one in half of them, no two alike. Paints panels into ``face``.

    Pillars stand where all eight cells around are open, so that one can walk around them.
    """
    signs = [f"panel {name}" for name in rng.permutation(list(SIGNS))]
    posts = [f"pillar {name}" for name in rng.permutation(list(PILLARS))]
    rooms = range(room.max() + 1)
    pillars: list[Pillar] = []
    landmarks: list[Landmark] = []
    for k in [*rooms, *(k for k in rooms if rng.random() < 0.5)]:
        cells = [(int(x), int(y)) for x, y in np.argwhere(room == k)]
        has_pillar = any(mark.room == k and mark.facing is None for mark in landmarks)
        if posts and not has_pillar and (rng.random() < 0.3 or not signs):
            inside = [(x, y) for x, y in cells if not wall[x - 1 : x + 2, y - 1 : y + 2].any()]
            x, y = inside[rng.integers(len(inside))]
            name = posts.pop()
            pillars.append(Pillar(x + 0.5, y + 0.5, atlas().number(name)))
            landmarks.append(Landmark(name, k, x + 0.5, y + 0.5, None))
        elif signs:
            looking = [(x, y, side) for x, y in cells for side in range(4)]  # from a cell towards one of its sides
            places = [(x + STEPS[side][0], y + STEPS[side][1], (side + 2) % 4) for x, y, side in looking]
            panels = [atlas().number(f"panel {name}") for name in SIGNS]
            free = [place for place in places if wall[place[:2]] and face[place] not in panels]
            x, y, side = free[rng.integers(len(free))]
            name = signs.pop()
            face[x, y, side] = atlas().number(name)
            dx, dy = STEPS[side]
            landmarks.append(Landmark(name, k, x + 0.5 + dx / 2, y + 0.5 + dy / 2, 90.0 * side))
    return pillars, landmarks
