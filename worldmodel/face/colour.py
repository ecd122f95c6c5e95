"""Colours of a new face brought to those of the target, measured on the ring where the two meet."""

from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import NDArray

# ITU-R BT.601: brightness and two differences of colour, in which each spread is matched by itself.
TO_OPPONENT = np.array(((0.299, 0.587, 0.114), (-0.168736, -0.331264, 0.5), (0.5, -0.418688, -0.081312)))
FROM_OPPONENT = np.linalg.inv(TO_OPPONENT)
LEAST, MOST = np.array((0.7, 0.2, 0.2)), np.array((1.2, 1.5, 1.5))  # gains: brightness, then colours
FLAT = np.array((2.0, 0.7, 0.7))  # spreads of the new face up to which its contrast says nothing and stays
SECONDS = 0.3  # time constant: light may change, a single odd picture should not


@dataclass(frozen=True, slots=True, eq=False)
class Match:
    """Of RGB in 0..255: factor [3, 3] applied to columns of colours, then offset [3]."""

    factor: NDArray[np.float32]
    offset: NDArray[np.float32]

    def apply(self, patch: NDArray[np.float32]) -> NDArray[np.float32]:
        """Colours of a picture [H, W, 3]."""
        return np.asarray(cv2.transform(patch, np.column_stack((self.factor, self.offset))), np.float32)

    def towards(self, other: "Match", seconds: float) -> "Match":
        """Some time later, on the way to another match."""
        share = np.float32(1 - np.exp(-max(seconds, 0.0) / SECONDS))
        factor = self.factor + share * (other.factor - self.factor)
        offset = self.offset + share * (other.offset - self.offset)
        return Match(factor.astype(np.float32), offset.astype(np.float32))


def ring(mask: NDArray[np.float32]) -> NDArray[np.bool_]:
    """Where a soft mask [S, S] is neither 0 nor 1."""
    return (mask > 0.02) & (mask < 0.98)


def match(new: NDArray[np.float32], target: NDArray[np.float32], where: NDArray[np.bool_]) -> Match:
    """The match that gives `new` [S, S, 3] the median and spread that `target` has on the pixels `where` [S, S].

    As Reinhard et al. (2001), in an opponent space, but by medians, so that hair on the ring counts little. Fewer than
    16 pixels change nothing.
    """
    if where.sum() < 16:
        return Match(np.eye(3, dtype=np.float32), np.zeros(3, np.float32))
    (a, wide_a), (b, wide_b) = (_statistics(each[where].astype(np.float64) @ TO_OPPONENT.T) for each in (new, target))
    gain = np.where(wide_a > FLAT, wide_b / np.maximum(wide_a, FLAT), 1.0).clip(LEAST, MOST)
    factor = FROM_OPPONENT @ np.diag(gain) @ TO_OPPONENT
    return Match(factor.astype(np.float32), (FROM_OPPONENT @ (b - gain * a)).astype(np.float32))


def _statistics(values: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Median and median absolute deviation [3] of colours [N, 3]."""
    middle = np.median(values, 0)
    return middle, np.median(np.abs(values - middle), 0)
