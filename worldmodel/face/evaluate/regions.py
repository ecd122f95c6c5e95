"""Videos of aligned regions whose exact swap is known: the regions are the frames.

Letters: K frames of a piece, R reference pictures, S side of a region.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from worldmodel.face.alignment import Pose
from worldmodel.face.colour import Match, ring
from worldmodel.face.evaluate.case import Pixels, Round, Shown, Truth
from worldmodel.face.evaluate.methods import TRUTH, Method
from worldmodel.face.generator import FaceControl, Generator
from worldmodel.face.pipeline import blend
from worldmodel.face.region import PADDING, soft_mask
from worldmodel.pixels import to_uint8


@dataclass(frozen=True, slots=True, eq=False)
class Piece:
    """Some frames of a video, on the CPU. K is a multiple of every method's chunk."""

    target: FaceControl  # [1, K]
    truth: Truth


@dataclass(frozen=True, slots=True, eq=False)
class RegionRounds:
    """reference: [R, 3, S, S] in -1..1; baselines get the first picture. pieces: a new iteration over the video."""

    reference: Tensor
    fps: float
    pieces: Callable[[], Iterator[Piece]]

    def __call__(self, methods: Sequence[Method]) -> Iterator[Round]:
        streams = [[_Stream(method, each) for each in method.streams] for method in methods]
        for stream in (each for some in streams for each in some):
            if stream.generator is not None:
                pictures = self.reference if stream.method.trained else self.reference[0]
                stream.state = stream.generator.begin(pictures, 1)
        first, place = 0, whole(self.reference.shape[-1]).matrix(self.reference.shape[-1], PADDING)
        for piece in self.pieces():
            before, masks = to_uint8(piece.target.crops[0]), piece.target.mask[0, :, 0].numpy()
            frames = len(before)
            yield Round(
                before,
                masks,
                np.arange(first, first + frames) / self.fps / 60,
                (place,) * frames,
                [[stream.swap(piece, before, 1 / self.fps) for stream in some] for some in streams],
                frames,
                piece.truth,
            )
            first += frames


@dataclass(slots=True, eq=False)
class _Stream:
    """One generator on one video; None is an end of the scale."""

    method: Method
    generator: Generator[Any] | None
    state: Any = None
    match: Match | None = None

    def swap(self, piece: Piece, before: Pixels, seconds: float) -> Shown:
        """Make the faces of a piece, and paste them into it in its colours, as in the stream."""
        made, times = self._make(piece)
        shown, size = before.copy(), made.shape[-1]
        pose, border = whole(size), ring(soft_mask(size))
        for k in range(len(shown)):
            crop, mask = piece.target.crops[0, k], piece.target.mask[0, k, 0].numpy()
            self.match = blend(shown[k], made[k], crop, mask, border, pose, self.match, seconds)
        hidden = piece.target.mask[0, :, 0].numpy() == 0
        kept = [(after[h] == old[h]).all(-1) for after, old, h in zip(shown, before, hidden, strict=True)]
        exact = np.array([each.mean() if len(each) else np.nan for each in kept])
        return Shown(shown, exact, made, times, 0 if self.generator is None else self.generator.chunk)

    def _make(self, piece: Piece) -> tuple[Tensor, tuple[float, ...]]:
        """Faces [K, 3, S, S], chunk after chunk, and the seconds that each took."""
        if self.generator is None:
            return (piece.truth.regions if self.method.name == TRUTH else piece.target.crops[0]), ()
        made, times, chunk = [], [], self.generator.chunk
        for first in range(0, piece.target.length, chunk):
            control = piece.target.frames(first, first + chunk)
            began = time.perf_counter()
            faces, self.state = self.generator.generate(control, self.state)
            made.append(faces[0].cpu())
            times.append(time.perf_counter() - began)
        return torch.cat(made), tuple(times)


def whole(size: int) -> Pose:
    """The pose of a face in its own region [size, size]: its matrix is the identity."""
    return Pose(size / (1 + 2 * PADDING), 0.0, (size - 1) / 2, (size - 1) / 2)
