"""What is swapped to measure it. Letters: K frames of a piece, R reference pictures, S side of a region."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from worldmodel.face.generator import FaceControl


@dataclass(frozen=True, slots=True, eq=False)
class Piece:
    """Some frames of a video of aligned regions, which are its frames too. K is a multiple of every method's chunk.

    truth: what should have been made; landmarks: its exact ones. Everything on the CPU.
    """

    target: FaceControl  # [1, K]
    truth: Tensor  # [K, 3, S, S] fp32 in -1..1
    landmarks: NDArray[np.float64]  # [K, 68, 2]


@dataclass(frozen=True, slots=True, eq=False)
class Case:
    """A video. who: number of the new person, whom several videos may share. reference: [R, 3, S, S] in -1..1. pieces:
    a new iteration over the video, always of the same frames."""

    name: str
    who: int
    reference: Tensor
    fps: float
    frames: int
    pieces: Callable[[], Iterator[Piece]]
