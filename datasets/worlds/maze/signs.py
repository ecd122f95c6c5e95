"""Landmarks and doors as pictures: bold signs in a frame, banded pillars, panelled doors."""

from collections.abc import Callable

import numpy as np

from worldmodel.datasets.worlds.maze.brush import Field, Mask, Picture, colour, mix, noise, shade

Shape = Callable[[Field, Field], Mask]  # (x, y) in [-1, 1], x to the right and y up -> inside

DOORS = ("red", "blue", "green", "brown")


def objects() -> dict[str, Picture]:
    """Everything here by name: "panel star" ..., "pillar wasp" ..., "door red" ..."""
    return _panels() | _pillars() | _doors()


def _star(x: Field, y: Field) -> Mask:
    angle, radius = np.arctan2(x, y), np.hypot(x, y)
    fold = np.abs((angle / (2 * np.pi) * 5 + 0.5) % 1 - 0.5) * 2
    return radius < 0.42 + 0.55 * (1 - fold) ** 1.6


def _heart(x: Field, y: Field) -> Mask:
    a, b = 1.25 * x, 1.25 * y + 0.15
    return (a * a + b * b - 0.75) ** 3 < a * a * b**3 * 1.6


def _plus(x: Field, y: Field) -> Mask:
    return (np.minimum(np.abs(x), np.abs(y)) < 0.27) & (np.maximum(np.abs(x), np.abs(y)) < 0.85)


def _disc(x: Field, y: Field) -> Mask:
    return np.hypot(x, y) < 0.75


def _ring(x: Field, y: Field) -> Mask:
    return np.abs(np.hypot(x, y) - 0.6) < 0.2


def _triangle(x: Field, y: Field) -> Mask:
    return (y > -0.65) & (np.abs(x) * 1.75 + y < 0.85)


def _square(x: Field, y: Field) -> Mask:
    return np.maximum(np.abs(x), np.abs(y)) < 0.62


def _rhombus(x: Field, y: Field) -> Mask:
    return np.abs(x) * 1.3 + np.abs(y) < 0.88


def _moon(x: Field, y: Field) -> Mask:
    return (np.hypot(x, y) < 0.8) & (np.hypot(x - 0.38, y - 0.12) > 0.62)


def _saltire(x: Field, y: Field) -> Mask:
    return (np.abs(np.abs(x) - np.abs(y)) < 0.3) & (np.maximum(np.abs(x), np.abs(y)) < 0.78)


def _hourglass(x: Field, y: Field) -> Mask:
    return (np.abs(x) < np.abs(y) * 0.85 + 0.06) & (np.abs(y) < 0.78)


def _arrow(x: Field, y: Field) -> Mask:
    head = (y > 0) & (np.abs(x) + y < 0.85)
    return head | ((np.abs(x) < 0.26) & (y <= 0) & (y > -0.8))


def _bars(x: Field, y: Field) -> Mask:
    return (np.abs(y) < 0.8) & (np.abs(np.abs(x) - 0.45) < 0.24)


def _tree(x: Field, y: Field) -> Mask:
    crown = np.hypot(x, y - 0.25) < 0.58
    return crown | ((np.abs(x) < 0.14) & (y < 0) & (y > -0.82))


def _house(x: Field, y: Field) -> Mask:
    roof = (y >= 0.05) & (np.abs(x) + y < 0.85)
    door = (np.abs(x) < 0.18) & (y < -0.2)
    return roof | ((np.abs(x) < 0.6) & (y < 0.05) & (y > -0.75) & ~door)


def _eye(x: Field, y: Field) -> Mask:
    return (np.abs(y) < 0.62 - 0.72 * x * x) & ~((np.hypot(x, y) < 0.42) & (np.hypot(x, y) > 0.2))


SIGNS: dict[str, tuple[Shape, str, str]] = {
    "star": (_star, "yellow", "blue"),
    "heart": (_heart, "red", "white"),
    "plus": (_plus, "white", "green"),
    "disc": (_disc, "orange", "black"),
    "ring": (_ring, "white", "purple"),
    "triangle": (_triangle, "yellow", "red"),
    "square": (_square, "blue", "yellow"),
    "rhombus": (_rhombus, "pink", "black"),
    "moon": (_moon, "white", "black"),
    "saltire": (_saltire, "white", "red"),
    "hourglass": (_hourglass, "black", "orange"),
    "arrow": (_arrow, "green", "white"),
    "bars": (_bars, "purple", "yellow"),
    "tree": (_tree, "green", "pink"),
    "house": (_house, "red", "teal"),
    "eye": (_eye, "teal", "white"),
}

PILLARS = {  # name -> (colour, second colour, turns of the spiral)
    "barber": ("red", "white", 2),
    "wasp": ("yellow", "black", 0),
    "mint": ("green", "white", 2),
    "ocean": ("blue", "teal", 0),
    "candy": ("pink", "purple", 2),
    "ember": ("orange", "black", 2),
}


def _panels() -> dict[str, Picture]:
    def bind(shape: Shape, sign: str, ground: str) -> Picture:
        def draw(u: Field, v: Field) -> Field:
            edge = np.maximum(np.abs(u - 0.5), np.abs(v - 0.5))
            board = mix(colour(ground), colour(sign), shape((u - 0.5) / 0.4, (0.5 - v) / 0.4))
            return mix(mix(board, 0.25 * colour("brown"), edge > 0.42), 0.9 * colour("white"), edge > 0.46)

        return draw

    return {f"panel {name}": bind(*design) for name, design in SIGNS.items()}


def _pillars() -> dict[str, Picture]:
    def bind(first: str, second: str, turns: int) -> Picture:
        def draw(u: Field, v: Field) -> Field:
            bands = mix(colour(first), colour(second), (v * 4 + turns * u) % 1 < 0.5)
            return mix(bands, 0.8 * colour("grey"), (v < 0.07) | (v > 0.93))

        return draw

    return {f"pillar {name}": bind(*design) for name, design in PILLARS.items()}


def _doors() -> dict[str, Picture]:
    def bind(name: str) -> Picture:
        def draw(u: Field, v: Field) -> Field:
            wood = shade(colour(name), 0.85 + 0.08 * noise(u, v, 20, 3, 18))
            x, y = np.abs(u - 0.5), v * 2 % 1
            groove = (np.abs(x - 0.3) < 0.025) & (y > 0.13) & (y < 0.87) | (x < 0.3) & (
                np.abs(np.abs(y - 0.5) - 0.36) < 0.03
            )
            knob = np.hypot(u - 0.88, v - 0.52) < 0.045
            leaf = mix(mix(wood, 0.4 * colour(name), groove), colour("yellow"), knob)
            return mix(leaf, 0.35 * colour(name), (x > 0.47) | (v < 0.03))

        return draw

    return {f"door {name}": bind(name) for name in DOORS}
