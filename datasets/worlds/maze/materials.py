"""Walls, floors and ceilings as pictures that tile."""

from collections.abc import Callable

import numpy as np

from worldmodel.datasets.worlds.maze.brush import COLOURS, Field, Picture, cell, colour, mix, noise, shade

Draw = Callable[[Field, Field, tuple[Field, Field]], Field]  # (u, v, (light tone, dark tone)) -> colours

ROOM_COLOURS = tuple(name for name in COLOURS if name not in ("grey", "black"))
FLOORS = ("oak", "tiles", "marble", "red carpet", "green carpet", "blue carpet", "purple carpet", "yellow carpet")
CEILINGS = ("plaster", "beams")


def surfaces() -> dict[str, Picture]:
    """Everything here by name: "brick red" ..., "corridor", "frame", "floor oak" ..., "ceiling plaster" ..."""
    return _rooms() | _corridor() | _floors()


def _brick(u: Field, v: Field, tones: tuple[Field, Field]) -> Field:
    row = np.floor(v * 6)
    shifted = (u + 0.25 * (row % 2)) % 1
    x, y = shifted * 2 % 1, v * 6 % 1
    mortar = (x < 0.06) | (x > 0.94) | (y < 0.12) | (y > 0.88)
    brick = shade(tones[0], 0.95 + 0.16 * cell(shifted, v, 2, 6, 1) + 0.05 * noise(u, v, 16, 16, 2))
    return mix(brick, 0.4 * tones[1] + 0.25, mortar)


def _planks(u: Field, v: Field, tones: tuple[Field, Field]) -> Field:
    grain = 0.1 * noise(u, v, 24, 4, 3) + 0.16 * cell(u, v, 4, 1, 4)
    return shade(tones[0], (0.92 + grain) * np.where(u * 4 % 1 < 0.08, 0.45, 1.0))


def _blocks(u: Field, v: Field, tones: tuple[Field, Field]) -> Field:
    shifted = (u + 0.25 * np.floor(v * 3 % 2)) % 1
    x, y = shifted * 2 % 1, v * 3 % 1
    edge = np.minimum(np.minimum(x, 1 - x) * 1.5, np.minimum(y, 1 - y))
    light = 0.9 + 0.2 * cell(shifted, v, 2, 3, 5) + 0.1 * noise(u, v, 8, 8, 6) + 0.12 * ((y < 0.2) & (edge > 0.05))
    return shade(tones[0], light * np.where(edge < 0.06, 0.45, 1.0))


def _checks(u: Field, v: Field, tones: tuple[Field, Field]) -> Field:
    return mix(tones[0], tones[1], (np.floor(u * 4) + np.floor(v * 4)) % 2)


def _stripes(u: Field, v: Field, tones: tuple[Field, Field]) -> Field:
    return mix(tones[0], tones[1], (u * 4 % 1 < 0.5) & (v < 0.9) & (v > 0.06))


def _dots(u: Field, v: Field, tones: tuple[Field, Field]) -> Field:
    x, y = (u * 4 + 0.5 * (np.floor(v * 4) % 2)) % 1 - 0.5, v * 4 % 1 - 0.5
    return mix(tones[0], 0.35 * tones[0] + 0.62, x * x + y * y < 0.09)


def _diamonds(u: Field, v: Field, tones: tuple[Field, Field]) -> Field:
    across = np.abs(u * 2 % 1 - 0.5) + np.abs(v * 2 % 1 - 0.5)
    return mix(mix(tones[0], tones[1], across < 0.5), 0.3 * tones[0] + 0.6, np.abs(across - 0.5) < 0.045)


def _plates(u: Field, v: Field, tones: tuple[Field, Field]) -> Field:
    x, y = u * 2 % 1, v * 2 % 1
    corner_x, corner_y = np.abs(np.abs(x - 0.53) - 0.34), np.abs(np.abs(y - 0.53) - 0.34)
    steel = shade(0.6 * tones[0] + 0.18, 1.0 + 0.12 * (0.5 - y) + 0.04 * noise(u, v, 2, 32, 7))
    seamed = mix(steel, 0.4 * tones[1], (x < 0.06) | (y < 0.06))
    return mix(seamed, tones[0] * 0.5 + 0.5, corner_x**2 + corner_y**2 < 0.005)


def _waves(u: Field, v: Field, tones: tuple[Field, Field]) -> Field:
    return mix(tones[0], tones[1], (v * 5 + 0.35 * np.sin(4 * np.pi * u)) % 1 < 0.45)


def _wainscot(u: Field, v: Field, tones: tuple[Field, Field]) -> Field:
    wood = shade(colour("brown"), 0.95 + 0.1 * noise(u, v, 16, 4, 8) - 0.45 * (u * 4 % 1 < 0.1))
    wall = shade(tones[0], 1.05 + 0.05 * noise(u, v, 8, 8, 9))
    return mix(mix(wall, wood, v >= 0.66), 0.75 * colour("white"), (v > 0.58) & (v < 0.66))


MATERIALS: dict[str, Draw] = {
    "brick": _brick,
    "planks": _planks,
    "blocks": _blocks,
    "checks": _checks,
    "stripes": _stripes,
    "dots": _dots,
    "diamonds": _diamonds,
    "plates": _plates,
    "waves": _waves,
    "wainscot": _wainscot,
}


def _rooms() -> dict[str, Picture]:
    def bind(draw: Draw, name: str) -> Picture:
        tones = (colour(name), 0.55 * colour(name))
        return lambda u, v: draw(u, v, tones)

    return {f"{kind} {name}": bind(draw, name) for kind, draw in MATERIALS.items() for name in ROOM_COLOURS}


def _corridor() -> dict[str, Picture]:
    tones = (colour("grey"), 0.5 * colour("grey"))

    def frame(u: Field, v: Field) -> Field:
        edge = (np.abs(u - 0.5) > 0.42) | (v < 0.08)
        return mix(shade(0.42 * colour("grey"), 1 + 0.1 * noise(u, v, 16, 16, 10)), 0.85 * colour("yellow"), edge)

    return {"corridor": lambda u, v: _blocks(u, v, tones), "frame": frame}


# Floors and ceilings: low contrast, since they are seen at grazing angles.


def _floors() -> dict[str, Picture]:
    oak, tile = np.array([0.56, 0.42, 0.27], np.float32), np.array([0.62, 0.62, 0.60], np.float32)

    def boards(u: Field, v: Field) -> Field:
        shifted = (v + 0.37 * np.floor(u * 4)) % 1
        return shade(oak, 0.95 + 0.14 * cell(u, shifted, 4, 2, 11) - 0.3 * (u * 4 % 1 < 0.07))

    def tiles(u: Field, v: Field) -> Field:
        joint = (u * 2 % 1 < 0.06) | (v * 2 % 1 < 0.06)
        return shade(tile, 0.97 + 0.08 * cell(u, v, 2, 2, 12) - 0.35 * joint)

    def carpet(name: str) -> Picture:
        wool = 0.55 * colour(name) + 0.08
        return lambda u, v: shade(wool, 1.0 + 0.12 * noise(u, v, 32, 32, 13) + 0.1 * noise(u, v, 4, 4, 14))

    def marble(u: Field, v: Field) -> Field:
        squares = (np.floor(u * 2) + np.floor(v * 2)) % 2
        return shade(mix(0.75 * colour("white"), 0.35 * colour("white"), squares), 1 + 0.05 * noise(u, v, 8, 8, 15))

    def slabs(u: Field, v: Field) -> Field:
        return shade(0.75 * colour("grey"), 0.95 + 0.1 * noise(u, v, 6, 6, 16) - 0.25 * ((u < 0.04) | (v < 0.04)))

    def ceiling(u: Field, v: Field) -> Field:
        return shade(0.62 * colour("white"), 1.0 - 0.14 * ((u * 2 % 1 < 0.05) | (v * 2 % 1 < 0.05)))

    def beams(u: Field, v: Field) -> Field:
        return mix(0.55 * colour("white"), 0.62 * oak, u < 0.3)

    def dark(u: Field, v: Field) -> Field:
        return shade(0.42 * colour("grey"), 1.0 + 0.08 * noise(u, v, 8, 8, 17))

    carpets = {f"floor {name} carpet": carpet(name) for name in ("red", "green", "blue", "purple", "yellow")}
    floors = {"floor oak": boards, "floor tiles": tiles, "floor marble": marble, "floor slabs": slabs}
    return floors | carpets | {"ceiling plaster": ceiling, "ceiling beams": beams, "ceiling dark": dark}
