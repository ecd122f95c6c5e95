"""What a paste does to colours and at its border. Letters: T frames, S side of a region.

Pictures are regions before and after it, [T, S, S, 3] in 0..255; masks [T, S, S] in 0..1.
"""

import numpy as np
from numpy.typing import NDArray

from worldmodel.face.colour import TO_OPPONENT

Floats = NDArray[np.float64]
BORDER = 0.02, 0.98  # mask values between which it is the border
LEAST = 1e-3  # levels per pixel that any picture is taken to have at the border


def border(mask: NDArray[np.float32]) -> NDArray[np.bool_]:
    """Where a soft mask is neither 0 nor 1."""
    return (mask > BORDER[0]) & (mask < BORDER[1])


def border_gradients(pictures: NDArray[np.generic], masks: NDArray[np.float32]) -> Floats:
    """How fast colours change across the mask's border, [T] in levels per pixel: the mean of |gradient . normal|.

    The normal is the mask's gradient; central differences, mean over the channels. NaN for a mask without a border.
    """
    pixels = pictures.astype(np.float64)
    down, right = np.gradient(pixels, axis=(1, 2))
    m_down, m_right = np.gradient(masks.astype(np.float64), axis=(1, 2))
    length = np.hypot(m_down, m_right)
    across = np.abs(down * m_down[..., None] + right * m_right[..., None]).mean(-1) / np.maximum(length, 1e-12)
    return _mean(across, border(masks) & (length > 1e-6))


def seam_ratios(before: Floats, after: Floats) -> Floats:
    """`border_gradients` after over before, [T]: 1 is no seam, below 1 blurred."""
    return np.maximum(after, LEAST) / np.maximum(before, LEAST)


def ring_errors(before: NDArray[np.generic], after: NDArray[np.generic], masks: NDArray[np.float32]) -> Floats:
    """Distance [T] of the mean colours on the mask's border, in levels."""
    on = border(masks)
    difference = after.astype(np.float64) - before.astype(np.float64)
    return np.linalg.norm(np.stack([_mean(difference[..., c], on) for c in range(3)], -1), axis=-1)


def colour_shifts(before: NDArray[np.generic], after: NDArray[np.generic], masks: NDArray[np.float32]) -> Floats:
    """How the face's colours differ from those of the input, [T, 4] in levels: means of brightness, blueness and
    redness (BT.601), and the standard deviation of brightness; all weighted by the mask."""
    total = masks.sum((1, 2)).astype(np.float64)
    found = []
    for pictures in (before, after):
        opponent = pictures.astype(np.float64) @ TO_OPPONENT.T
        mean = (opponent * masks[..., None]).sum((1, 2)) / total[:, None]
        apart = (opponent[..., 0] - mean[:, None, None, 0]) ** 2
        found.append(np.concatenate((mean, np.sqrt((apart * masks).sum((1, 2)) / total)[:, None]), 1))
    return found[1] - found[0]


def _mean(values: Floats, where: NDArray[np.bool_]) -> Floats:
    """Over the pixels [T, S, S] that are chosen, [T]; NaN for none."""
    count = where.sum((1, 2))
    total = np.where(where, values, 0.0).sum((1, 2))
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)
