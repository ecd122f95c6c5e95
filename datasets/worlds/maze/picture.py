"""From hits to pixels: textured walls between a textured floor and ceiling, darker with distance."""

import math

import numpy as np
from numpy.typing import NDArray

from worldmodel.datasets.worlds.maze.raycast import Floats, Hits, Scene, focal, rays, slopes
from worldmodel.datasets.worlds.maze.textures import LEVELS, TEXELS, atlas

FOG = 6.0  # metres over which the light falls to 1/e of the way down to GLOOM
GLOOM = 0.35
SHIFT = TEXELS.bit_length() - 1  # TEXELS = 1 << SHIFT

Pixels = NDArray[np.int32]


class Painter:
    """Paints square pictures of one even size; holds nothing but tables that follow from it."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._slope = slopes(size).astype(np.float32)[:, None]  # [H, 1] downwards
        depth = 0.5 / slopes(size)[size // 2 :]  # of the floor, [H / 2] rows from the horizon down
        self.plane_depth = np.concatenate([depth[::-1], depth]).astype(np.float32)[:, None]  # [H, 1]
        self._plane_light = _fog(self.plane_depth)
        # A row covers depth / focal metres sideways and depth^2 / (focal / 2) lengthwise: the geometric mean counts.
        self._plane_level = _level(math.sqrt(2) * depth**1.5 / focal(size))[:, None]  # [H / 2, 1]

    def paint(self, scene: Scene, pose: Floats, hits: Hits) -> NDArray[np.uint8]:
        """Pictures uint8 [N, size, size, 3]."""
        v = self._slope * hits.depth[:, None].astype(np.float32)  # [N, H, W] down the wall, -0.5 its top
        on_wall = np.abs(v) < 0.5
        v += 0.5
        index = self._plane_index(scene, pose)
        np.copyto(index, _wall_index(hits, v, self.size), where=on_wall)
        wall_light = _fog(hits.depth)[:, None] * hits.light[:, None]
        light = np.where(on_wall, (wall_light * 256).astype(np.uint32), (self._plane_light * 256).astype(np.uint32))
        return _lit(atlas().texels.take(index), light)

    def depth(self, hits: Hits) -> NDArray[np.float32]:
        """Metres along the viewing axis, float32 [N, size, size]."""
        wall = hits.depth[:, None].astype(np.float32)
        return np.minimum(wall, self.plane_depth)

    def _plane_index(self, scene: Scene, pose: Floats) -> Pixels:
        """Texel of the ceiling (upper half) and the floor at every pixel, [N, H, W]; behind walls it is arbitrary."""
        rows, cells = scene.wall.shape[:2]
        half = self.size // 2
        depth = self.plane_depth[half:]
        position = []
        for start, direction in zip(pose[:, :2].T, rays(pose[:, 2], self.size), strict=True):
            metres = start.astype(np.float32)[:, None, None] + depth * direction[:, None].astype(np.float32)
            texel = (metres * np.float32(TEXELS)).astype(np.int32)
            position.append(np.clip(texel, 0, cells * TEXELS - 1, out=texel))
        x, y = position  # [N, H / 2, W] in texels of level 0
        cell = (np.arange(rows, dtype=np.int32)[:, None, None] * cells + (x >> SHIFT)) * cells + (y >> SHIFT)
        level, shift = self._plane_level, SHIFT - self._plane_level
        within = (((x & (TEXELS - 1)) >> level) << shift) + ((y & (TEXELS - 1)) >> level) + atlas().offset[level]
        index = np.empty((rows, self.size, self.size), np.int32)
        np.add(scene.ceiling.take(cell) << (2 * shift), within, out=index[:, half - 1 :: -1])
        np.add(scene.floor.take(cell) << (2 * shift), within, out=index[:, half:])
        return index


def _wall_index(hits: Hits, v: NDArray[np.float32], size: int) -> Pixels:
    """Texel of the wall in every column, v = 0 at its top and 1 at its bottom; arbitrary above and below."""
    level = _level(hits.depth / focal(size) / np.sqrt(hits.slant))
    side = TEXELS >> level  # [N, W]
    column = np.minimum((hits.u * side).astype(np.int32), side - 1)
    start = atlas().offset[level] + (hits.texture * side + column) * side
    return (v * side[:, None].astype(np.float32)).astype(np.int32) + start[:, None].astype(np.int32)


def _level(metres_per_pixel: Floats) -> NDArray[np.int32]:
    """The mip level with about one texel per pixel."""
    return np.clip(np.rint(np.log2(metres_per_pixel * TEXELS)), 0, LEVELS - 1).astype(np.int32)


def _fog(depth: NDArray[np.floating]) -> NDArray[np.floating]:
    return GLOOM + (1 - GLOOM) * np.exp(-depth / FOG)


def _lit(texels: NDArray[np.uint32], light: NDArray[np.uint32]) -> NDArray[np.uint8]:
    """Colours times light / 256: red and blue in one product, green in another."""
    outer = (texels & 0xFF00FF) * light >> 8 & 0xFF00FF
    middle = (texels & 0x00FF00) * light >> 8 & 0x00FF00
    pixels = (outer | middle).astype("<u4", copy=False)
    return np.ascontiguousarray(pixels.view(np.uint8).reshape(*pixels.shape, 4)[..., :3])
