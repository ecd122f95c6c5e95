"""Training clips from real faces: self-pairs, role reversal, occlusion.

Letters: B rows, T frames, R reference pictures, S side of the aligned regions.
"""

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from worldmodel import noise
from worldmodel.chunk import Clip
from worldmodel.datasets.faces.occlusion import occluders
from worldmodel.datasets.faces.pieces import Faces, Piece, read_faces, read_index
from worldmodel.errors import UserError
from worldmodel.face.generator import FaceControl
from worldmodel.face.region import soft_mask, to_crops
from worldmodel.face.swap_control import SwapControl

TRAIN, VALIDATION = range(2)
CLIPS, SPLIT = 0x4643_4C50, 0x4643_5350  # salts of the seeds
WINDOW, REFERENCE, CHOICE = range(3)  # draws of a clip
KEPT = 64  # pieces in memory


@dataclass(frozen=True, kw_only=True)
class FaceClips:
    """Clip i is a pure function of (seed, side, i): all windows of a side's pieces are equally likely.

    The reference is another frame of the same person, outside the clip where there is one: what must come out is what
    went in (a self-pair). A share `reversed` of the clips from pieces with swapped crops shows those to the generator
    instead, and the real ones are the truth (role reversal; LivingSwap, 2512.07951). A share `occluded` gets something
    before the face, in the input and in the truth alike; masks leave it out.

    path: a folder that `worldmodel face gather` wrote. length: frames of a clip. batch: clips of one step over all
    processes. references: R. validation: expected share of people that are held out. fps: of the occluders' movement.
    """

    path: Path
    length: int = 8
    batch: int = 8
    references: int = 1
    reversed: float = 0.5
    occluded: float = 0.3
    validation: float = 0.1
    fps: float = 25.0
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("length", "batch", "references"):
            if getattr(self, name) < 1:
                raise UserError(f"faces: {name} must be at least 1, not {getattr(self, name)}")
        for name in ("reversed", "occluded"):
            if not 0 <= getattr(self, name) <= 1:
                raise UserError(f"faces: {name} must be a share in [0, 1], not {getattr(self, name)}")
        if not (0 <= self.validation < 1 and 0 < self.fps <= 1000) or not 0 <= self.seed < 2**63:
            raise UserError(
                f"faces: validation {self.validation} must be in [0, 1), fps {self.fps} in (0, 1000], seed {self.seed} "
                "in [0, 2**63)"
            )

    @property
    def curriculum(self) -> tuple[tuple[int, int], ...]:
        return ()

    @property
    def size(self) -> int:
        return self.pieces[0].size

    @cached_property
    def pieces(self) -> list[Piece]:
        return read_index(self.path)

    @cached_property
    def people(self) -> list[str]:
        """Everybody, in the order in which they are numbered."""
        return sorted({piece.person for piece in self.pieces})

    @property
    def split(self) -> dict[str, list[str]]:
        """The people of either side. A side depends on the person's number and the seed only; if chance leaves one
        empty, the nearest person changes sides."""
        drawn = noise.row_seed(self.seed ^ SPLIT, torch.arange(len(self.people)))
        place = noise.uniform(drawn, torch.zeros(len(drawn), 1, dtype=torch.int64), 0)[:, 0].tolist()
        order = sorted(range(len(place)), key=lambda n: place[n])
        held = {n for n in order if place[n] < self.validation}
        if self.validation > 0:
            if len(order) < 2:
                raise UserError(
                    f"{self.path}: one person cannot be split: give more videos, or hold nobody out with "
                    "data.validation 0 (a training needs validate 0 too)"
                )
            held = (held or {order[0]}) - ({order[-1]} if len(held) == len(order) else set())
        names = self.people
        return {
            "train": [names[n] for n in range(len(names)) if n not in held],
            "validation": [names[n] for n in sorted(held)],
        }

    def batches(
        self, first_step: int = 0, rank: int = 0, world: int = 1, micro: int = 1
    ) -> Iterator[list[Clip[SwapControl]]]:
        """The endless training stream from a step on: this rank's clips of each step, in `micro` micro-batches."""
        size, rest = divmod(self.batch, world * micro)
        if rest:
            raise UserError(f"a batch of {self.batch} does not divide into {world} processes x {micro} micro-batches")
        step = first_step
        while True:
            first = step * self.batch + rank * size * micro
            yield [self._clips(TRAIN, torch.arange(first + m * size, first + (m + 1) * size)) for m in range(micro)]
            step += 1

    def validation_batches(self, count: int) -> Iterator[Clip[SwapControl]]:
        """`count` fixed batches of people that nothing was trained on."""
        for n in range(count):
            yield self._clips(VALIDATION, torch.arange(n * self.batch, (n + 1) * self.batch))

    def _clips(self, side: int, index: Tensor) -> Clip[SwapControl]:
        own, ends = self._windows(side)
        seed = noise.row_seed(self.seed ^ CLIPS, 2 * index + side)
        rows = [self._row(own, ends, int(row_seed)) for row_seed in seed]
        x, crops, landmarks, reference, who = (torch.stack(parts) for parts in zip(*rows, strict=True))
        choice = noise.uniform(seed, torch.ones(len(seed), 1, dtype=torch.int64), CHOICE)[:, 0]
        moments = torch.arange(self.length).expand(len(seed), -1) / self.fps
        cover = torch.zeros(*x.shape[:2], 1, *x.shape[3:])
        rows_hit = (choice < self.occluded).nonzero()[:, 0]
        if len(rows_hit):
            colour, hit = occluders(seed[rows_hit], moments[rows_hit], self.size)
            cover[rows_hit] = hit
            x[rows_hit] = torch.lerp(x[rows_hit], colour, hit)
            crops[rows_hit] = torch.lerp(crops[rows_hit], colour, hit)
        mask = torch.from_numpy(soft_mask(self.size)) * (1 - cover)
        target = FaceControl(crops, mask, landmarks, torch.ones(x.shape[:2], dtype=torch.bool))
        return Clip(x, SwapControl(target, reference, mask, landmarks, who), index)

    def _row(self, own: list[Piece], ends: list[int], seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Truth [T, 3, S, S], input [T, 3, S, S], landmarks [T, 68, 2], references [R, 3, S, S], who [2]."""
        key = torch.tensor([seed])
        draw = noise.uniform(key, torch.arange(2)[None], WINDOW)[0].double()
        window = int(draw[0] * ends[-1])
        number = int(np.searchsorted(ends, window, side="right"))
        piece, first = own[number], window - (ends[number - 1] if number else 0)
        faces, span = self._read(piece), slice(first, first + self.length)
        given = faces.crops
        if faces.swapped is not None and float(noise.uniform(key, torch.zeros(1, 1).long(), CHOICE)) < self.reversed:
            given = faces.swapped
        picked = noise.uniform(key, torch.arange(self.references)[None], REFERENCE)[0].double()
        places = self._elsewhere(piece, first)
        chosen = [places[int(share * len(places))] for share in picked]
        reference = np.stack([self._read(other).crops[frame] for other, frame in chosen])
        person = self.people.index(piece.person)
        return (
            to_crops(faces.crops[span]),
            to_crops(given[span]),
            torch.from_numpy(faces.landmarks[span]),
            to_crops(reference),
            torch.tensor((person, -1 if given is faces.swapped else person)),
        )

    def _elsewhere(self, piece: Piece, first: int) -> list[tuple[Piece, int]]:
        """All frames of the same person outside a clip; if there are none, those of its piece."""
        same = [other for other in self.pieces if other.person == piece.person]
        inside = range(first, first + self.length)
        found = [(p, n) for p in same for n in range(p.frames) if p is not piece or n not in inside]
        return found or [(piece, n) for n in range(piece.frames)]

    def _windows(self, side: int) -> tuple[list[Piece], list[int]]:
        """The pieces of a side that hold a clip, and how many windows there are up to the end of each."""
        name = ("train", "validation")[side]
        people = set(self.split[name])
        own = [piece for piece in self.pieces if piece.person in people and piece.frames >= self.length]
        if not own:
            longest = max((piece.frames for piece in self.pieces if piece.person in people), default=0)
            raise UserError(
                f"{self.path}: no {name} piece has {self.length} frames; of {len(people)} people the longest has "
                f"{longest}"
            )
        return own, np.cumsum([piece.frames - self.length + 1 for piece in own]).tolist()

    def _read(self, piece: Piece) -> Faces:
        cache: OrderedDict[str, Faces] = self.__dict__.setdefault("_kept", OrderedDict())
        if piece.file not in cache:
            cache[piece.file] = read_faces(self.path, piece)
            if len(cache) > KEPT:
                cache.popitem(last=False)
        cache.move_to_end(piece.file)
        return cache[piece.file]
