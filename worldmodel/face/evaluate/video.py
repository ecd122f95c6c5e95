"""Stretches of real videos, through the pipeline of `worldmodel swap`: tracked, cut out, swapped and pasted back.

Letters: K frames of a round, S side of a generator's regions, M side of those that are measured.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import islice
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from worldmodel.errors import UserError
from worldmodel.face.alignment import Pose
from worldmodel.face.evaluate.case import Pixels, Round, Shown
from worldmodel.face.evaluate.methods import Method, chunks_of
from worldmodel.face.faces import Networks
from worldmodel.face.occlude import SkinColour
from worldmodel.face.pipeline import Seam, Swapper, Swapping, reference_face
from worldmodel.face.reading import Picture, open_source, read_image
from worldmodel.face.region import PADDING, crop_region
from worldmodel.face.track import Tracker, Tracking, Tracks

MEASURED = 192  # M
PICTURES = 16  # of a round, about


@dataclass(frozen=True, slots=True, eq=False)
class VideoRounds:
    """frames: of the stretch, from frame `start` on. reference: the picture of who comes in."""

    networks: Networks
    target: Path
    start: int
    frames: int
    reference: Path
    every: int = 8  # pictures between detections

    def __call__(self, methods: Sequence[Method]) -> Iterator[Round]:
        source = open_source(str(self.target))
        try:
            pictures = (event for event in source if isinstance(event, Picture))
            yield from self._rounds(
                methods, islice(pictures, self.start, self.start + self.frames), source.info.time_base
            )
        finally:
            source.close()

    def _rounds(self, methods: Sequence[Method], pictures: Iterator[Picture], time_base: Fraction) -> Iterator[Round]:
        tracker = _Shared(self.networks, Tracking(every=self.every, faces=1))
        face, streams = read_image(self.reference), list[list[_Stream | None]]()
        for method in methods:
            some = list[_Stream | None]()
            for generator in method.streams:
                if generator is None:
                    some.append(None)
                    continue
                reference = reference_face(face, self.networks, generator.size, str(self.reference))
                swapper = Swapper(tracker, generator, reference, SkinColour())
                some.append(_Stream(swapper, swapper.begin()))
            streams.append(some)
        step, first, done = chunks_of(methods), None, 0
        together = max(1, PICTURES // step) * step
        while group := list(islice(pictures, together)):
            first = group[0].pts if first is None else first
            found = [[_swapped(stream, group, time_base) for stream in some] for some in streams]
            tracker.forget()
            yield _round(group, found, [float((p.pts - first) * time_base) / 60 for p in group])
            done += len(group)
        if done < self.frames:
            raise UserError(
                f"{self.target}: only {done} pictures could be read from {self.start} on, {self.frames} are wanted"
            )


@dataclass(slots=True, eq=False)
class _Stream:
    swapper: Swapper[Any]
    state: Swapping[Any]


class _Shared(Tracker):
    """A tracker whose streams all see the same pictures: each is looked at once."""

    def __init__(self, networks: Networks, settings: Tracking) -> None:
        super().__init__(networks, settings)
        self._seen: dict[float, Tracks] = {}

    def step(self, tracks: Tracks | None, picture: NDArray[np.uint8], time: float) -> Tracks:
        if time not in self._seen:
            self._seen[time] = super().step(tracks, picture, time)
        return self._seen[time]

    def forget(self) -> None:
        self._seen.clear()


@dataclass(frozen=True, slots=True, eq=False)
class _Swapped:
    """What a stream made of some pictures: their pixels, and where each was swapped (None: nowhere)."""

    pixels: list[Pixels]
    seams: list[Seam | None]
    seconds: tuple[float, ...] = ()
    chunk: int = 0


def _swapped(stream: _Stream | None, pictures: Sequence[Picture], time_base: Fraction) -> _Swapped:
    """Swap copies of pictures, chunk after chunk. An end of the scale leaves them as they are."""
    copies = [Picture(picture.pixels.copy(), picture.pts) for picture in pictures]
    if stream is None:
        return _Swapped([copy.pixels for copy in copies], [])
    swapper, seams, times = stream.swapper, list[Seam | None](), list[float]()
    chunk = swapper.generator.chunk
    for first in range(0, len(copies), chunk):
        began = swapper.times.seconds.get("generate", 0.0)
        found, stream.state = swapper.chunk(copies[first : first + chunk], time_base, stream.state)
        seams += [each[0] if each else None for each in found]
        if (took := swapper.times.seconds.get("generate", 0.0) - began) > 0:
            times.append(took)
    return _Swapped([copy.pixels for copy in copies], seams, tuple(times), chunk)


def _round(pictures: Sequence[Picture], found: list[list[_Swapped]], minutes: list[float]) -> Round:
    """The regions of the pictures in which there was a face: they are the same for all streams."""
    seams = next(each.seams for some in found for each in some if each.seams)
    at = [k for k, seam in enumerate(seams) if seam is not None]
    there = [seam for seam in seams if seam is not None]
    before = [pictures[k].pixels for k in at]
    shown = [
        [
            Shown(
                regions(swapped.pixels, at, there),
                np.array([exact(old, swapped.pixels[k], s) for k, old, s in zip(at, before, there, strict=True)]),
                None,
                swapped.seconds,
                swapped.chunk,
            )
            for swapped in some
        ]
        for some in found
    ]
    masks = [cv2.resize(seam.mask, (MEASURED, MEASURED), interpolation=cv2.INTER_LINEAR) for seam in there]
    return Round(
        regions([picture.pixels for picture in pictures], at, there),
        np.stack(masks).astype(np.float32) if masks else np.zeros((0, MEASURED, MEASURED), np.float32),
        np.array(minutes)[np.array(at, np.int64)],
        tuple(seam.pose.matrix(MEASURED, PADDING) for seam in there),
        shown,
        len(pictures),
    )


def regions(pictures: Sequence[Pixels], at: Sequence[int], seams: Sequence[Seam]) -> Pixels:
    """The aligned regions [K, M, M, 3] of some pictures."""
    found = [crop_region(pictures[k], seam.pose, MEASURED) for k, seam in zip(at, seams, strict=True)]
    return np.stack(found) if found else np.zeros((0, MEASURED, MEASURED, 3), np.uint8)


def exact(before: Pixels, after: Pixels, seam: Seam) -> float:
    """Share of the pixels of a picture which the mask does not reach that kept their bits; NaN if it reaches all."""
    hidden = ~reached(seam.mask, seam.pose, before.shape[0], before.shape[1])
    return float((before == after).all(-1)[hidden].mean()) if hidden.any() else float("nan")


def reached(mask: NDArray[np.float32], pose: Pose, height: int, width: int) -> NDArray[np.bool_]:
    """The pixels [height, width] of a picture that a mask [S, S] at a pose may touch, and one more around them."""
    shown = np.ascontiguousarray(mask > 0).astype(np.uint8) * 255
    place = pose.matrix(mask.shape[0], PADDING)
    warped = cv2.warpAffine(shown, place, (width, height), flags=cv2.INTER_LINEAR)
    return cv2.dilate(warped, np.ones((3, 3), np.uint8)) > 0


def reference_region(picture: Path, networks: Networks) -> Pixels:
    """The face of a reference picture as it is measured, [1, M, M, 3]; UserErrors as `reference_face`."""
    found = reference_face(read_image(picture), networks, MEASURED, str(picture))
    return ((found.movedim(0, -1) + 1) * 127.5).round().byte().numpy()[None]
