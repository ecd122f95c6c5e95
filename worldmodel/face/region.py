"""The face region: cut out aligned, seen through a soft mask of constant width, pasted back on its pixels only."""

import math

import cv2
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from worldmodel.face.alignment import Matrix, Pose, invert
from worldmodel.kernels.region_warp import region_warp

PADDING = 0.4  # of regions around the mean face: brows, cheeks and chin, and a ring beyond the mask
CENTRE, RADII, EDGE = (0.495, 0.535), (0.28, 0.33), 0.05  # of the mask, in sides of the region
POWER = 2.5  # of the mask's superellipse: between an ellipse and a rectangle


def warp(picture: NDArray[np.uint8], matrix: Matrix, size: int) -> NDArray[np.uint8]:
    """A crop [size, size, 3] whose pixel p shows the picture at matrix(p), where the inverse of `matrix` is given.

    matrix: from the crop's pixels to the picture's. Bilinear; beyond the border the picture goes on as its border.
    Regions that are larger than the crop are averaged down.
    """
    factor = max(1, math.ceil(float(np.hypot(*matrix[:, 0])) - 0.5))
    fine = matrix if factor == 1 else _finer(matrix, factor)
    flags = cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP
    side = size * factor
    crop = cv2.warpAffine(picture, fine, (side, side), flags=flags, borderMode=cv2.BORDER_REPLICATE)
    return np.asarray(crop if factor == 1 else cv2.resize(crop, (size, size), interpolation=cv2.INTER_AREA), np.uint8)


def _finer(matrix: Matrix, factor: int) -> Matrix:
    """The matrix of a crop with `factor` times the pixels, whose blocks are the pixels of the first."""
    shift = (1 / factor - 1) / 2  # place of the first fine pixel in the coarse grid
    return np.concatenate((matrix[:, :2] / factor, (matrix[:, :2].sum(1) * shift + matrix[:, 2])[:, None]), 1)


def crop_region(picture: NDArray[np.uint8], pose: Pose, size: int) -> NDArray[np.uint8]:
    """The aligned region [size, size, 3] of a face."""
    return warp(picture, pose.matrix(size, PADDING), size)


def soft_mask(size: int) -> NDArray[np.float32]:
    """[size, size] in 0..1: how much of a region is seen. A superellipse with a smooth edge of constant width.

    It is fixed in aligned space, so that its border does not flicker with the landmarks.
    """
    at = (np.arange(size) + 0.5) / size
    x, y = (at[None, :] - CENTRE[0]) / RADII[0], (at[:, None] - CENTRE[1]) / RADII[1]
    radius = (np.abs(x) ** POWER + np.abs(y) ** POWER) ** (1 / POWER)
    inside = (1 - radius) * min(RADII) / EDGE  # 0 at the border, 1 an edge's width inside
    step = np.clip(inside, 0, 1)
    return (step * step * (3 - 2 * step)).astype(np.float32)


def paste(picture: NDArray[np.uint8], patch: NDArray[np.float32], mask: NDArray[np.float32], pose: Pose) -> None:
    """Blend an aligned patch [S, S, 3] (0..255) through its mask [S, S] into the picture, in place.

    Pixels that the mask does not reach keep their bits.
    """
    size = mask.shape[0]
    rows, columns = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
    if not len(rows):
        return
    forward = pose.matrix(size, PADDING)
    reach = np.array([(x, y) for x in (columns[0] - 1, columns[-1] + 1) for y in (rows[0] - 1, rows[-1] + 1)])
    place = reach @ forward[:, :2].T + forward[:, 2]
    limit = np.array(picture.shape[1::-1])
    low = np.clip(np.floor(place.min(0)), 0, limit).astype(int)
    high = np.clip(np.ceil(place.max(0)) + 1, 0, limit).astype(int)
    if (high <= low).any():
        return
    region_warp(
        torch.from_numpy(picture)[None],
        torch.from_numpy(patch)[None],
        torch.from_numpy(mask)[None],
        torch.from_numpy(invert(forward)).float()[None],
        torch.from_numpy(low).to(torch.int32)[None],
        (int(high[1] - low[1]), int(high[0] - low[0])),
    )


def to_crops(crops: NDArray[np.uint8]) -> Tensor:
    """uint8 [..., S, S, 3] -> fp32 [..., 3, S, S] in -1..1, as models see it."""
    return torch.from_numpy(crops).movedim(-1, -3).float() / 127.5 - 1


def to_patch(crop: Tensor) -> NDArray[np.float32]:
    """fp32 [3, S, S] in -1..1 -> [S, S, 3] in 0..255, not rounded."""
    return crop.clamp(-1, 1).add_(1).mul_(127.5).movedim(0, -1).contiguous().cpu().numpy()
