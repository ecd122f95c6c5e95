"""What is measured while methods stream a video side by side: numbers of every frame, kept; pictures, but a few, not.

All streams see a piece before the next is taken, so that their times are of the same minutes. Letters: T frames, K
frames of a piece, S side of a region.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from worldmodel.face.alignment import Pose
from worldmodel.face.colour import Match, ring
from worldmodel.face.evaluate.case import Case, Piece
from worldmodel.face.evaluate.fidelity import psnr
from worldmodel.face.evaluate.ground import Ground, Pixels, grounds
from worldmodel.face.evaluate.judge import Judge
from worldmodel.face.evaluate.methods import Method
from worldmodel.face.evaluate.seam import border_gradients, colour_shifts, ring_errors, seam_ratios
from worldmodel.face.evaluate.warping import warping_errors
from worldmodel.face.generator import Generator
from worldmodel.face.pipeline import blend
from worldmodel.face.region import PADDING, soft_mask
from worldmodel.pixels import to_uint8

Read = Callable[[Pixels], NDArray[np.float64]]  # regions [K, S, S, 3] -> 68 landmarks [K, 68, 2] in pixels


@dataclass(slots=True, eq=False)
class Series:
    """Numbers of the frames of one stream of one video, by name: arrays whose first axis is time, in parts. seconds:
    that each chunk took."""

    parts: dict[str, list[NDArray[Any]]] = field(default_factory=dict)
    seconds: list[float] = field(default_factory=list)

    def add(self, **values: NDArray[Any]) -> None:
        for name, value in values.items():
            self.parts.setdefault(name, []).append(value)

    def __getitem__(self, name: str) -> NDArray[Any]:
        return np.concatenate(self.parts[name])

    def __contains__(self, name: str) -> bool:
        return name in self.parts


@dataclass(frozen=True, slots=True, eq=False)
class Measured:
    """A video with what was measured: series[m][i] of stream i of method m, `common` of input and truth. shown: the
    frames that were asked for, [n, S, S, 3] each: of the first stream of every method, of "input" and of "truth"."""

    case: Case
    series: list[list[Series]]
    common: Series
    shown: dict[str, Pixels]


@dataclass(slots=True, eq=False)
class Stream:
    """One generator on one video; None is an end of the scale."""

    method: Method
    generator: Generator[Any] | None
    state: Any = None
    match: Match | None = None
    last: Pixels | None = None  # shown, [1, S, S, 3]
    series: Series = field(default_factory=Series)

    def make(self, piece: Piece) -> torch.Tensor:
        """Faces [K, 3, S, S], chunk after chunk, with their times."""
        if self.generator is None:
            return self.method.given(piece)
        made, chunk = [], self.generator.chunk
        for first in range(0, piece.target.length, chunk):
            control = piece.target.frames(first, first + chunk)
            began = time.perf_counter()
            faces, self.state = self.generator.generate(control, self.state)
            made.append(faces[0].cpu())
            self.series.seconds.append(time.perf_counter() - began)
        return torch.cat(made)

    def show(self, made: torch.Tensor, piece: Piece, seconds: float) -> Pixels:
        """Made faces in the colours of the input and pasted into it, as in the stream: [K, S, S, 3]."""
        shown, size = to_uint8(piece.target.crops[0]), made.shape[-1]
        pose, border = whole(size), ring(soft_mask(size))
        for k in range(len(shown)):
            crop, mask = piece.target.crops[0, k], piece.target.mask[0, k, 0].numpy()
            self.match = blend(shown[k], made[k], crop, mask, border, pose, self.match, seconds)
        return shown

    def measure(self, ground: Ground, fps: float, judge: Judge, read: Read | None) -> Pixels:
        """Swap a piece and add the numbers of its frames. Returns what is shown."""
        piece = ground.piece
        made = self.make(piece)
        shown = self.show(made, piece, 1 / fps)
        marks = None if read is None else read(shown)
        video = shown if self.last is None else np.concatenate((self.last, shown))
        mask, hidden = ground.mask, ground.mask == 0
        changed = (shown != ground.before).any(-1)
        self.series.add(
            embedding=judge.embed(shown, marks),
            made_embedding=judge.embed(to_uint8(made), marks),
            psnr=psnr(made, piece.truth, piece.target.mask[0]).numpy(),
            psnr_region=psnr(made, piece.truth).numpy(),
            seam=seam_ratios(ground.gradients, border_gradients(shown, mask)),
            ring=ring_errors(ground.before, shown, mask),
            colour=colour_shifts(ground.before, shown, mask),
            warping=warping_errors(video, ground.flows, ground.masks),
            background=1 - (changed & hidden).sum((1, 2)) / np.maximum(hidden.sum((1, 2)), 1),
        )
        if marks is not None:
            self.series.add(landmarks=marks)
        self.last = shown[-1:]
        return shown


def whole(size: int) -> Pose:
    """The pose of a face in its own region [size, size]."""
    return Pose(size / (1 + 2 * PADDING), 0.0, (size - 1) / 2, (size - 1) / 2)


def stream_case(
    case: Case, methods: Sequence[Method], judge: Judge, read: Read | None, watch: Sequence[int] = (),
    advance: Callable[[int], None] = lambda frames: None,
) -> Measured:  # fmt: skip
    """Run all methods on a video. watch: numbers of the frames that are kept to be looked at. advance: is told how many
    frames were done."""
    streams = [[Stream(method, model) for model in method.models or (None,)] for method in methods]
    for stream in (each for some in streams for each in some):
        if stream.generator is not None:
            pictures = case.reference if stream.method.trained else case.reference[0]
            stream.state = stream.generator.begin(pictures, 1)
    common, shown, first = Series(), dict[str, list[Pixels]](), 0
    for ground in grounds(case):
        chosen = [n - first for n in watch if first <= n < first + len(ground.before)]
        truth = to_uint8(ground.piece.truth)
        marks = None if read is None else read(truth)
        common.add(truth_embedding=judge.embed(truth, marks))
        if read is not None and marks is not None:
            landmarks = read(ground.before)
            common.add(truth_landmarks=marks, exact_landmarks=ground.piece.landmarks, input_landmarks=landmarks)
        seen = {"input": ground.before, "truth": truth}
        for some in streams:
            made = [stream.measure(ground, case.fps, judge, read) for stream in some]
            seen.setdefault(some[0].method.name, made[0])
        for name, frames in seen.items():
            shown.setdefault(name, []).append(frames[chosen])
        first += len(ground.before)
        advance(len(ground.before))
    series = [[stream.series for stream in some] for some in streams]
    return Measured(case, series, common, {name: np.concatenate(frames) for name, frames in shown.items()})
