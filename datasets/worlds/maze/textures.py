"""All pictures of the maze as one array to look texels up in: the texture atlas, drawn once per process.

They are drawn with four samples per texel and axis and stored with all their halvings (mip levels), so that distant
walls do not flicker.
"""

from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from worldmodel.datasets.worlds.maze.brush import Field
from worldmodel.datasets.worlds.maze.materials import surfaces
from worldmodel.datasets.worlds.maze.signs import objects

TEXELS = 32  # width and height of a texture at level 0
LEVELS = 6  # 32, 16, 8, 4, 2, 1 texels
SAMPLES = 4


@dataclass(frozen=True, slots=True)
class Atlas:
    """All textures in one array. Texel (column i, row j) of texture k at level l is
    ``texels[offset[l] + (k * side + i) * side + j]`` with ``side = TEXELS >> l``.
    """

    names: tuple[str, ...]
    texels: NDArray[np.uint32]  # red in the lowest byte, then green and blue
    offset: NDArray[np.int32]  # [LEVELS]

    def number(self, name: str) -> int:
        """Index of the texture called ``name``; ValueError if there is none."""
        return self.names.index(name)

    def picture(self, name: str) -> NDArray[np.uint8]:
        """Level 0 of a texture, uint8 [TEXELS, TEXELS, 3]."""
        start = self.number(name) * TEXELS**2
        columns = self.texels[start : start + TEXELS**2].view(np.uint8).reshape(TEXELS, TEXELS, 4)
        return np.ascontiguousarray(columns[..., :3].swapaxes(0, 1))


@cache
def atlas() -> Atlas:
    """The one atlas. Names are "brick red", "panel star", "pillar wasp", "floor oak", "door red", ..."""
    drawings = surfaces() | objects()
    grid = (np.arange(TEXELS * SAMPLES, dtype=np.float32) + 0.5) / (TEXELS * SAMPLES)
    v, u = np.meshgrid(grid, grid, indexing="ij")
    level = np.stack([_halve(_halve(np.clip(draw(u, v), 0, 1))) for draw in drawings.values()])  # [K, 32, 32, 3]
    levels: list[NDArray[np.uint32]] = []
    for _ in range(LEVELS):
        levels.append(_packed(level))
        level = np.stack([_halve(picture) for picture in level])
    offset = np.cumsum([0, *[len(texels) for texels in levels[:-1]]]).astype(np.int32)
    return Atlas(tuple(drawings), np.concatenate(levels), offset)


def _halve(values: Field) -> Field:
    side = len(values) // 2
    return values.reshape(side, 2, side, 2, 3).mean((1, 3)) if side else values


def _packed(level: Field) -> NDArray[np.uint32]:
    pixels = np.zeros((*level.shape[:3], 4), np.uint8)
    pixels[..., :3] = np.rint(level * 255)
    return np.ascontiguousarray(pixels.swapaxes(1, 2)).view(np.uint32).ravel()  # columns first
