"""What all streams of a video are compared with, piece after piece.

Letters: K frames of a piece, S side of a region.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from worldmodel.face.evaluate.case import Case, Piece
from worldmodel.face.evaluate.seam import border_gradients
from worldmodel.face.evaluate.warping import Flows, flows_of
from worldmodel.pixels import to_uint8

Pixels = NDArray[np.uint8]


@dataclass(frozen=True, slots=True, eq=False)
class Ground:
    """A piece with what is known of its input. video, masks: with the last frame of the piece before it in front, if
    there was one (kept = 1, else 0), so that changes between frames are not lost at its border."""

    piece: Piece
    video: Pixels  # [kept + K, S, S, 3]
    masks: NDArray[np.float32]  # [kept + K, S, S]
    kept: int
    gradients: NDArray[np.float64]  # [K], across the mask's border
    flows: Flows  # of `video`

    @property
    def before(self) -> Pixels:
        """The input's frames [K, S, S, 3]."""
        return self.video[self.kept :]

    @property
    def mask(self) -> NDArray[np.float32]:
        return self.masks[self.kept :]


def grounds(case: Case) -> Iterator[Ground]:
    """The pieces of a video."""
    last: tuple[Pixels, NDArray[np.float32]] | None = None
    for piece in case.pieces():
        before, mask = to_uint8(piece.target.crops[0]), piece.target.mask[0, :, 0].numpy()
        video, masks = before, mask
        if last is not None:
            video, masks = np.concatenate((last[0], before)), np.concatenate((last[1], mask))
        yield Ground(piece, video, masks, len(video) - len(before), border_gradients(before, mask), flows_of(video))
        last = before[-1:], mask[-1:]
