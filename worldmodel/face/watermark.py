"""An invisible mark in the brightness of every picture: that it was swapped, and a 16-bit number.

Spread spectrum (Cox et al., 1997) on pairs of neighbouring blocks: one is made a little brighter, the other darker, by
a pattern that is the same in all pictures, so that many pictures are evidence together. The difference within a pair is
free of the local brightness, and large blocks survive H.264. Smooth and dark places, where steps are seen best, get one
level of 255, others two; in a clear sky one sees it if one looks for it. It does not survive cropping, scaling or
turning, and who knows this file can remove it: it finds careless copies, it proves nothing.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

BLOCK = 8  # pixels
STRENGTH = 2  # levels of 255, where DARK and SMOOTH do not say 1
DARK = 64  # levels of grey
SMOOTH = 4  # levels: mean absolute Laplacian of a block
BITS = 16
SEED = 20260201  # of the pattern
SURE = 5.0  # standard deviations beyond which the mark is said to be there
OUTLIER = 3.0  # levels to which a pair's difference is clipped: what is larger is an edge of the picture, not a mark


@dataclass(frozen=True, slots=True)
class Found:
    """certainty: standard deviations above a picture without the mark. number: 0..65535, meaningful if `there`."""

    certainty: float
    number: int

    @property
    def there(self) -> bool:
        return self.certainty > SURE


class Watermark:
    """The mark for pictures of one size, which must hold 16 pairs of blocks or more per bit."""

    def __init__(self, height: int, width: int, number: int) -> None:
        field = np.kron(_signs(height, width, number), np.ones((BLOCK, BLOCK), np.int8))
        full = np.zeros((height, width), np.int8)
        full[: field.shape[0], : field.shape[1]] = field
        self._brighter, self._darker = (np.where(full == sign, 255, 0).astype(np.uint8) for sign in (1, -1))

    def draw(self, picture: NDArray[np.uint8]) -> None:
        """Mark a picture [H, W, 3] in place."""
        levels = _strength(cv2.cvtColor(picture, cv2.COLOR_RGB2GRAY))
        brighter, darker = (
            cv2.cvtColor(cv2.bitwise_and(levels, where), cv2.COLOR_GRAY2RGB) for where in (self._brighter, self._darker)
        )
        cv2.add(picture, brighter, dst=picture)
        cv2.subtract(picture, darker, dst=picture)


def _strength(grey: Any) -> Any:
    """1 or STRENGTH per pixel of a grey picture [H, W]."""
    height, width = grey.shape
    edges = cv2.convertScaleAbs(cv2.Laplacian(grey, cv2.CV_16S))
    blocks = cv2.resize(edges, (max(1, width // BLOCK), max(1, height // BLOCK)), interpolation=cv2.INTER_AREA)
    busy = cv2.threshold(blocks, SMOOTH, STRENGTH - 1, cv2.THRESH_BINARY)[1]
    bright = cv2.threshold(grey, DARK, STRENGTH - 1, cv2.THRESH_BINARY)[1]
    both = cv2.bitwise_and(cv2.resize(busy, (width, height), interpolation=cv2.INTER_NEAREST), bright)
    return both + np.uint8(1)


def find(pictures: Iterable[NDArray[np.uint8]]) -> Found:
    """Look for the mark in pictures [H, W, 3] of one size; 30 or more, not all alike, are good evidence."""
    total: NDArray[np.float64] | None = None
    count = 0
    for picture in pictures:
        rows, columns = picture.shape[0] // BLOCK, picture.shape[1] // (2 * BLOCK)
        grey = cv2.cvtColor(picture, cv2.COLOR_RGB2GRAY)[: rows * BLOCK, : columns * 2 * BLOCK]
        means = grey.reshape(rows, BLOCK, columns, 2, BLOCK).mean((1, 4))
        difference = means[..., 0] - means[..., 1]
        total = difference if total is None else total + difference
        count += 1
    if total is None:
        return Found(0.0, 0)
    seen = (total / count).clip(-OUTLIER, OUTLIER).ravel()
    kind, sign = _pairs(len(seen))
    if (known := kind == BITS).sum() < 16:  # too small a picture to tell
        return Found(0.0, 0)
    spread = max(float(np.sqrt(np.mean(seen**2))), 1e-6)
    certainty = float((seen * sign)[known].sum() / (spread * np.sqrt(known.sum())))
    bits = [(seen * sign)[kind == bit].sum() > 0 for bit in range(BITS)]
    return Found(certainty, sum(int(on) << bit for bit, on in enumerate(bits)))


def _pairs(count: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Which bit each pair carries (BITS: none, it tells that the mark is there), and its sign: both [count]."""
    rng = np.random.default_rng(SEED)
    kind = np.minimum(rng.permutation(count) * (BITS + 8) // max(count, 1), BITS)  # a third tells of the mark
    return kind, 2 * rng.integers(0, 2, count) - 1


def _signs(height: int, width: int, number: int) -> NDArray[np.int8]:
    """+1 or -1 per block: [rows, 2 * columns of pairs]."""
    rows, columns = height // BLOCK, width // (2 * BLOCK)
    kind, sign = _pairs(rows * columns)
    bits = np.array([1 if number >> bit & 1 else -1 for bit in range(BITS)] + [1])
    pairs = (sign * bits[kind]).reshape(rows, columns)
    return np.stack((pairs, -pairs), -1).reshape(rows, 2 * columns).astype(np.int8)
