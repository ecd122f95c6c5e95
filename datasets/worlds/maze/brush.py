"""What pictures are made with: colours by name, blends, and noise that tiles.

A picture is a function of (u, v) in [0, 1)^2, u to the right and v down as seen by somebody in front of it.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Field = NDArray[np.floating]  # [S, S] of a quantity, or [S, S, 3] of colours in [0, 1], over a picture; [3] one colour
Mask = NDArray[np.bool_]  # [S, S]
Picture = Callable[[Field, Field], Field]  # (u, v) -> colours

COLOURS = {
    "red": (0.80, 0.18, 0.16),
    "orange": (0.90, 0.50, 0.13),
    "yellow": (0.90, 0.80, 0.22),
    "green": (0.26, 0.62, 0.22),
    "teal": (0.12, 0.58, 0.56),
    "blue": (0.20, 0.36, 0.80),
    "purple": (0.52, 0.26, 0.66),
    "pink": (0.90, 0.50, 0.66),
    "brown": (0.50, 0.32, 0.18),
    "white": (0.88, 0.87, 0.82),
    "grey": (0.50, 0.50, 0.52),
    "black": (0.10, 0.10, 0.12),
}


def colour(name: str) -> Field:
    return np.array(COLOURS[name], np.float32)


def mix(low: Field, high: Field, weight: Field | Mask) -> Field:
    """``low`` where ``weight`` is 0, ``high`` where it is 1; colours [3] or [S, S, 3], weight [S, S]."""
    return low + (high - low) * weight[..., None].astype(np.float32)


def shade(colour: Field, brightness: Field) -> Field:
    return colour * brightness[..., None].astype(np.float32)


def noise(u: Field, v: Field, columns: int, rows: int, seed: int) -> Field:
    """Smooth tiling noise in [-1, 1] with a grid of ``columns`` x ``rows`` random values."""
    values = np.random.default_rng(seed).uniform(-1, 1, (rows, columns)).astype(np.float32)
    x, y = u * columns, v * rows
    i, j = np.floor(x).astype(int), np.floor(y).astype(int)
    a, b = _smooth(x - i), _smooth(y - j)

    def at(di: int, dj: int) -> Field:
        return values[(j + dj) % rows, (i + di) % columns]

    return (at(0, 0) * (1 - a) + at(1, 0) * a) * (1 - b) + (at(0, 1) * (1 - a) + at(1, 1) * a) * b


def _smooth(x: Field) -> Field:
    return x * x * (3 - 2 * x)


def cell(u: Field, v: Field, columns: int, rows: int, seed: int) -> Field:
    """One random number in [-1, 1] per cell of a tiling grid."""
    values = np.random.default_rng(seed).uniform(-1, 1, (rows, columns)).astype(np.float32)
    return values[np.floor(v * rows).astype(int) % rows, np.floor(u * columns).astype(int) % columns]
