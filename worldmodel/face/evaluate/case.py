"""What is swapped to measure it, and what comes of it, round after round.

Letters: K frames of a round, R reference pictures, S side of a region.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from worldmodel.face.alignment import Matrix
from worldmodel.face.evaluate.methods import Method

Pixels = NDArray[np.uint8]


@dataclass(frozen=True, slots=True, eq=False)
class Shown:
    """What a stream made of a round. made: before colours were matched, where the truth is known; seconds: that each
    chunk took; chunk: frames of each."""

    regions: Pixels  # [K, S, S, 3], as they are shown
    background: NDArray[np.float64]  # [K], share of the pixels beyond the mask that kept their bits
    made: Tensor | None = None  # [K, 3, S, S] fp32 in -1..1
    seconds: tuple[float, ...] = ()
    chunk: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Truth:
    """What should have been made, where it is known."""

    regions: Tensor  # [K, 3, S, S] fp32 in -1..1
    landmarks: NDArray[np.float64]  # [K, 68, 2], exact, in pixels of the region


@dataclass(frozen=True, slots=True, eq=False)
class Round:
    """Some frames of a video, swapped by all streams: `shown[m][i]` by stream i of method m. Frames without a swapped
    face are left out; `frames` counts them too."""

    before: Pixels  # [K, S, S, 3], the input's regions
    masks: NDArray[np.float32]  # [K, S, S], how much of each pixel is shown of what was made
    minutes: NDArray[np.float64]  # [K], when
    places: tuple[Matrix, ...]  # K, from pixels of the region to those of the video
    shown: list[list[Shown]]
    frames: int
    truth: Truth | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Case:
    """A video. who: name of the new person, whom several videos may share. reference: regions of that person
    [R, S, S, 3]. frames: how many there are. rounds: swaps it by some methods, from the first frame on."""

    name: str
    who: str
    reference: Pixels
    frames: int
    rounds: Callable[[Sequence[Method]], Iterator[Round]] = field(repr=False)
