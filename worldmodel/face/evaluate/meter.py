"""What is measured while methods swap a video side by side: numbers of every frame, kept; pictures, but a few, not.

Letters: T frames, K frames of a round, S side of a region.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from worldmodel.face.alignment import Matrix, apply
from worldmodel.face.evaluate.case import Case, Pixels, Round, Shown, Truth
from worldmodel.face.evaluate.fidelity import psnr
from worldmodel.face.evaluate.judge import Judge
from worldmodel.face.evaluate.methods import Method
from worldmodel.face.evaluate.seam import border_gradients, colour_shifts, ring_errors, seam_ratios
from worldmodel.face.evaluate.warping import Flows, flows_of, warping_errors
from worldmodel.pixels import to_uint8

Read = Callable[[Pixels], NDArray[np.float64]]  # regions [K, S, S, 3] -> 68 landmarks [K, 68, 2] in pixels


@dataclass(slots=True, eq=False)
class Series:
    """Numbers of the frames of one stream of one video, by name: arrays whose first axis is time, in parts. seconds:
    that each chunk took; chunk: frames of each."""

    parts: dict[str, list[NDArray[Any]]] = field(default_factory=dict)
    seconds: list[float] = field(default_factory=list)
    chunk: int = 0

    def add(self, **values: NDArray[Any]) -> None:
        for name, value in values.items():
            self.parts.setdefault(name, []).append(value)

    def __getitem__(self, name: str) -> NDArray[Any]:
        return np.concatenate(self.parts[name])

    def __contains__(self, name: str) -> bool:
        return name in self.parts


@dataclass(frozen=True, slots=True, eq=False)
class Measured:
    """A video with what was measured: series[m][i] of stream i of method m, `common` of the input and of what was aimed
    at. pictures: frames that were asked for, [n, S, S, 3] each: of the first stream of every method, of "input" and of
    "truth" where it is known. frames: of the video, with and without a swapped face."""

    case: Case
    series: list[list[Series]]
    common: Series
    pictures: dict[str, Pixels]
    frames: int

    @property
    def minutes(self) -> NDArray[np.float64]:
        """When the T frames with a swapped face were."""
        return self.common["minutes"] if "minutes" in self.common else np.zeros(0)


@dataclass(frozen=True, slots=True, eq=False)
class _Ground:
    """What the streams of a round are compared with. flows, masks: with the last frame of the round before, if any, so
    that changes from round to round are not lost."""

    round: Round
    gradients: NDArray[np.float64]  # [K], of the input
    flows: Flows
    masks: NDArray[np.float32]


def measure_case(
    case: Case, methods: Sequence[Method], judge: Judge, read: Read | None, watch: Sequence[int] = (),
    advance: Callable[[int], None] = lambda frames: None,
) -> Measured:  # fmt: skip
    """Swap a video by all methods. watch: which of the frames with a swapped face are kept to be looked at. advance: is
    told how many frames were done."""
    series = [[Series() for _ in method.streams] for method in methods]
    last: list[list[Pixels | None]] = [[None for _ in method.streams] for method in methods]
    common, pictures, frames = Series(), dict[str, list[Pixels]](), 0
    before: tuple[Pixels, NDArray[np.float32]] | None = None
    done = 0
    for round_ in case.rounds(methods):
        if len(round_.before):
            ground = _ground(round_, before)
            chosen = [n - done for n in watch if done <= n < done + len(round_.before)]
            seen = {"input": round_.before}
            _add_common(common, round_, judge, read)
            if round_.truth is not None:
                seen["truth"] = to_uint8(round_.truth.regions)
            for m, method in enumerate(methods):
                for i, shown in enumerate(round_.shown[m]):
                    _add(series[m][i], shown, ground, last[m][i], judge, read)
                    last[m][i] = shown.regions[-1:]
                seen.setdefault(method.name, round_.shown[m][0].regions)
            for name, each in seen.items():
                pictures.setdefault(name, []).append(each[chosen])
            before = round_.before[-1:], round_.masks[-1:]
            done += len(round_.before)
        frames += round_.frames
        advance(round_.frames)
    return Measured(case, series, common, {name: np.concatenate(some) for name, some in pictures.items()}, frames)


def _ground(round_: Round, before: tuple[Pixels, NDArray[np.float32]] | None) -> _Ground:
    video, masks = round_.before, round_.masks
    gradients = border_gradients(video, masks)
    if before is not None:
        video, masks = np.concatenate((before[0], video)), np.concatenate((before[1], masks))
    return _Ground(round_, gradients, flows_of(video), masks)


def _add_common(common: Series, round_: Round, judge: Judge, read: Read | None) -> None:
    """Of the input, and of what is aimed at: the truth, where it is known, for pose and expression else the input."""
    common.add(minutes=round_.minutes)
    landmarks = None if read is None else read(round_.before)
    if landmarks is not None:
        common.add(input_landmarks=_placed(landmarks, round_.places))
    if round_.truth is not None:
        truth = to_uint8(round_.truth.regions)
        landmarks = None if read is None else read(truth)
        common.add(truth_embedding=judge.embed(truth, landmarks))
        common.add(exact_landmarks=_placed(round_.truth.landmarks, round_.places))
    if landmarks is not None:
        common.add(aim_landmarks=_placed(landmarks, round_.places))


def _add(series: Series, shown: Shown, ground: _Ground, last: Pixels | None, judge: Judge, read: Read | None) -> None:
    """The numbers of a stream's round."""
    round_, regions = ground.round, shown.regions
    landmarks = None if read is None else read(regions)
    video = regions if last is None else np.concatenate((last, regions))
    series.add(
        embedding=judge.embed(regions, landmarks),
        seam=seam_ratios(ground.gradients, border_gradients(regions, round_.masks)),
        ring=ring_errors(round_.before, regions, round_.masks),
        colour=colour_shifts(round_.before, regions, round_.masks),
        warping=warping_errors(video, ground.flows, ground.masks),
        background=shown.background,
    )
    if landmarks is not None:
        series.add(landmarks=_placed(landmarks, round_.places))
    if round_.truth is not None and shown.made is not None:
        _add_made(series, shown, round_, round_.truth, judge, landmarks)
    series.seconds += shown.seconds
    series.chunk = shown.chunk


def _add_made(
    series: Series, shown: Shown, round_: Round, truth: Truth, judge: Judge, landmarks: NDArray[np.float64] | None
) -> None:
    assert shown.made is not None
    mask = truth.regions.new_tensor(round_.masks)[:, None]
    series.add(
        made_embedding=judge.embed(to_uint8(shown.made), landmarks),
        psnr=psnr(shown.made, truth.regions, mask).numpy(),
        psnr_region=psnr(shown.made, truth.regions).numpy(),
    )


def _placed(landmarks: NDArray[np.float64], places: tuple[Matrix, ...]) -> NDArray[np.float64]:
    """Landmarks [K, 68, 2] of regions, in pixels of the video."""
    return np.stack([apply(place, each) for place, each in zip(places, landmarks, strict=True)])
