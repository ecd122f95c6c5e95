"""The stream of a swap: track, cut out, generate a chunk, match colours, paste back. Its state is a value.

Nothing here reads or writes files. A chunk is late by its own length: K pictures are taken before the first is shown.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from fractions import Fraction

import numpy as np
import torch
from numpy.typing import NDArray

from worldmodel.errors import UserError
from worldmodel.face.alignment import Pose, apply, invert
from worldmodel.face.colour import Match, match, ring
from worldmodel.face.faces import Networks
from worldmodel.face.generator import FaceControl, Generator, State
from worldmodel.face.occlude import Occlusion
from worldmodel.face.reading import Picture
from worldmodel.face.region import PADDING, crop_region, paste, soft_mask, to_crops, to_patch
from worldmodel.face.track import Track, Tracker, Tracks

COARSE = 2  # every second pixel, both ways, is enough to measure colours


@dataclass(frozen=True, slots=True, eq=False)
class Seam:
    """Where a face was pasted: its pose and mask [S, S]."""

    pose: Pose
    mask: NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class Swapping[S: State]:
    """The state. names: the track in each row at the end of the last chunk, -1 for none; matches: colours per row."""

    generated: S
    tracks: Tracks | None = None
    names: tuple[int, ...] = ()
    matches: tuple[Match | None, ...] = ()


@dataclass(slots=True)
class Times:
    """Seconds spent per stage, and pictures."""

    seconds: dict[str, float] = field(default_factory=dict)
    pictures: int = 0

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        began = time.perf_counter()
        yield
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - began


class Swapper[S: State]:
    """Swaps all tracked faces for one reference. reference: aligned [3, S, S] in -1..1, see `reference_face`."""

    def __init__(
        self, tracker: Tracker, generator: Generator[S], reference: torch.Tensor, occlusion: Occlusion
    ) -> None:
        self.tracker, self.generator, self.reference, self.occlusion = tracker, generator, reference, occlusion
        self.rows = tracker.settings.faces
        self.mask = soft_mask(generator.size)
        self.border = ring(self.mask)
        self.times = Times()

    def begin(self) -> Swapping[S]:
        rows = self.rows
        return Swapping(self.generator.begin(self.reference, rows), None, (-1,) * rows, (None,) * rows)

    def chunk(
        self, pictures: Sequence[Picture], time_base: Fraction, state: Swapping[S]
    ) -> tuple[list[list[Seam]], Swapping[S]]:
        """Swap the faces of up to K pictures, in place. Returns where, per picture, and the next state.

        Fewer than K pictures, at the end of a stream, are continued by the last one.
        """
        return self.swap(pictures, self.track(pictures, time_base, state.tracks), state)

    def track(self, pictures: Sequence[Picture], time_base: Fraction, tracks: Tracks | None) -> list[Tracks]:
        """The tracks in each picture, after those before. Its own part of `chunk`, which may run ahead of the rest."""
        seen: list[Tracks] = []
        with self.times.stage("track"):
            for picture in pictures:
                tracks = self.tracker.step(tracks, picture.pixels, float(picture.pts * time_base))
                seen.append(tracks)
        return seen

    def swap(
        self, pictures: Sequence[Picture], seen: Sequence[Tracks], state: Swapping[S]
    ) -> tuple[list[list[Seam]], Swapping[S]]:
        """The other part of `chunk`: swap the faces that were tracked."""
        if not pictures:
            return [], state
        length = self.generator.chunk
        rows = [self._row(seen, slot) for slot in range(self.rows)]
        if not any(any(row) for row in rows):
            self.times.pictures += len(pictures)
            return [[] for _ in pictures], replace(state, tracks=seen[-1])
        with self.times.stage("crop"):
            control = self._control(pictures, rows, length)
        names, fresh = self._names(rows, state.names)
        with self.times.stage("generate"):
            generated = state.generated
            if fresh.any():
                generated = generated.reset(fresh)
            faces, generated = self.generator.generate(control, generated)
        matches = [None if new else old for new, old in zip(fresh.tolist(), state.matches, strict=True)]
        seams: list[list[Seam]] = [[] for _ in pictures]
        with self.times.stage("paste"):
            for k, picture in enumerate(pictures):
                before = seen[k - 1] if k else state.tracks
                seconds = seen[k].time - before.time if before is not None else 0.0
                for b, row in enumerate(rows):
                    if (track := row[k]) is not None:
                        matches[b], seam = self._paste(picture, track, control, faces, b, k, matches[b], seconds)
                        seams[k].append(seam)
        self.times.pictures += len(pictures)
        return seams, Swapping(generated, seen[-1], names, tuple(matches))

    def _row(self, seen: Sequence[Tracks], slot: int) -> list[Track | None]:
        """Who is shown swapped in a slot, per picture."""
        return [next((t for t in tracks.visible if t.slot == slot and t.weight > 0), None) for tracks in seen]

    def _names(self, rows: list[list[Track | None]], before: tuple[int, ...]) -> tuple[tuple[int, ...], torch.Tensor]:
        """The last track of each row, and which rows [B] it is new in."""
        last = [
            next((t.name for t in reversed(row) if t is not None), old) for row, old in zip(rows, before, strict=True)
        ]
        return tuple(last), torch.tensor([now != old for now, old in zip(last, before, strict=True)])

    def _control(self, pictures: Sequence[Picture], rows: list[list[Track | None]], length: int) -> FaceControl:
        size = self.generator.size
        crops = np.zeros((self.rows, length, size, size, 3), np.uint8)
        masks = np.zeros((self.rows, length, 1, size, size), np.float32)
        landmarks = np.zeros((self.rows, length, 68, 2), np.float32)
        active = np.zeros((self.rows, length), np.bool_)
        for b, row in enumerate(rows):
            for k in range(length):
                k_seen = min(k, len(pictures) - 1)
                if (track := row[k_seen]) is None:
                    continue
                crop = crop_region(pictures[k_seen].pixels, track.pose, size)
                crops[b, k], active[b, k] = crop, True
                masks[b, k, 0] = self.mask * self.occlusion.visible(crop)
                landmarks[b, k] = apply(invert(track.pose.matrix(size, PADDING)), track.face.landmarks)
        return FaceControl(
            to_crops(crops), torch.from_numpy(masks), torch.from_numpy(landmarks), torch.from_numpy(active)
        )

    def _paste(
        self, picture: Picture, track: Track, control: FaceControl, faces: torch.Tensor, b: int, k: int,
        before: Match | None, seconds: float,
    ) -> tuple[Match, Seam]:  # fmt: skip
        mask = control.mask[b, k, 0].numpy() * np.float32(track.weight)
        crop = control.crops[b, k]
        found = blend(picture.pixels, faces[b, k], crop, mask, self.border, track.pose, before, seconds)
        return found, Seam(track.pose, mask)


def blend(
    pixels: NDArray[np.uint8], face: torch.Tensor, crop: torch.Tensor, mask: NDArray[np.float32],
    border: NDArray[np.bool_], pose: Pose, before: Match | None, seconds: float,
) -> Match:  # fmt: skip
    """Paste a made face [3, S, S] into a picture, in place, in the colours of the target's crop [3, S, S].

    mask [S, S]: how much of it is shown; border [S, S]: where colours are compared; before: the match of the picture
    that was shown so many seconds earlier. Returns the match.
    """
    patch, coarse = to_patch(face), slice(None, None, COARSE)
    found = match(patch[coarse, coarse], to_patch(crop[:, coarse, coarse]), border[coarse, coarse])
    found = found if before is None else before.towards(found, seconds)
    paste(pixels, found.apply(patch), mask, pose)
    return found


def reference_face(picture: NDArray[np.uint8], networks: Networks, size: int, where: str) -> torch.Tensor:
    """The one face of a reference picture, aligned: [3, size, size] in -1..1.

    A UserError for a picture without a face or with several, and for a face that is tiny or turned away.
    """
    from worldmodel.face.alignment import turned_away

    faces = networks.detect(picture)
    if not faces:
        raise UserError(f"{where}: no face found in it; give a clear, frontal picture of one person")
    if len(faces) > 1:
        raise UserError(f"{where}: {len(faces)} faces in it; give a picture of one person only")
    face = faces[0]
    if face.pose.scale < 32:
        raise UserError(f"{where}: its face is {face.pose.scale:.0f} pixels wide; give one of 32 or more")
    if turned_away(face.landmarks) > 0.4:
        raise UserError(f"{where}: its face is turned to the side; give a frontal one")
    return to_crops(crop_region(picture, face.pose, size))
