"""Clips of exact swaps, streamed from the renderer: no files are needed.

Letters: B rows, T frames, R reference pictures, S side of the aligned regions.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from worldmodel import noise
from worldmodel.chunk import Clip
from worldmodel.datasets.heads.motion import Motion
from worldmodel.datasets.heads.person import Person
from worldmodel.datasets.heads.render import Rendered, render, seen_landmarks
from worldmodel.datasets.heads.scene import Scene
from worldmodel.errors import UserError
from worldmodel.face.alignment import fit
from worldmodel.face.generator import FaceControl
from worldmodel.face.region import PADDING, soft_mask
from worldmodel.face.swap_control import SwapControl

Side = Literal["train", "validation", "test"]
SIDES: tuple[Side, ...] = ("train", "validation", "test")
WHO, WHEN = range(2)  # draws of a clip
SPREAD = 60.0  # seconds from which a clip begins, and references are taken
CLEAR = 0.4  # of the turn of a head is left in references, whose eyes are open
CLIPS, REFERENCES = 0x434C_4950, 0x5245_4645  # salts of the seeds


@dataclass(frozen=True, kw_only=True)
class HeadSwaps:
    """Clip i is a pure function of (seed, side, i, length): the stream restarts at any step with the same bits, and any
    number of processes together see what one process sees.

    size: S, a multiple of 4. length: frames of a clip; curriculum as in `LatentClips`. batch: clips of one step over
    all processes. references: R, at other moments of another video of the new person. people: of the training side,
    numbers 0 to people - 1; held_out: of the validation and of the test side each, the numbers after them. So nobody is
    on two sides, whatever the seed, as long as `people` and `held_out` stay. fps: frames per second. occluded: share of
    videos with something before the face. Target, hair and new person are three different numbers of one side.
    """

    size: int = 64
    length: int = 8
    curriculum: tuple[tuple[int, int], ...] = ()
    batch: int = 8
    references: int = 1
    people: int = 4096
    held_out: int = 512
    fps: float = 25.0
    occluded: float = 0.5
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("length", "batch", "references"):
            if getattr(self, name) < 1:
                raise UserError(f"heads: {name} must be at least 1, not {getattr(self, name)}")
        for name in ("people", "held_out"):
            if not 3 <= getattr(self, name) <= 2**31:
                raise UserError(f"heads: {name} must be in [3, 2**31], not {getattr(self, name)}")
        if self.size < 16 or self.size % 4:
            raise UserError(f"heads: size must be a multiple of 4 from 16 on, not {self.size}")
        if not (0 < self.fps <= 1000 and 0 <= self.occluded <= 1) or not 0 <= self.seed < 2**63:
            raise UserError(
                f"heads: fps {self.fps} must be in (0, 1000], occluded {self.occluded} in [0, 1], seed {self.seed} in "
                "[0, 2**63)"
            )
        for until, length in self.curriculum:
            if until < 1 or length < 1:
                raise UserError(f"heads: curriculum: step {until} and length {length} must be at least 1")

    @property
    def split(self) -> dict[str, Any]:
        """First and last number of the people of each side."""
        return {side: [self._first(side), self._first(side) + self._count(side) - 1] for side in SIDES}

    def batches(
        self, first_step: int = 0, rank: int = 0, world: int = 1, micro: int = 1
    ) -> Iterator[list[Clip[SwapControl]]]:
        """The endless training stream from a step on: this rank's clips of each step, in `micro` micro-batches."""
        size, rest = divmod(self.batch, world * micro)
        if rest:
            raise UserError(f"a batch of {self.batch} does not divide into {world} processes x {micro} micro-batches")
        step = first_step
        while True:
            first, length = step * self.batch + rank * size * micro, self.length_at(step)
            yield [self.clips("train", torch.arange(first + m * size, first + (m + 1) * size), length)
                   for m in range(micro)]  # fmt: skip
            step += 1

    def length_at(self, step: int) -> int:
        """Frames of a clip of this step."""
        return next((length for until, length in self.curriculum if step < until), self.length)

    def validation_batches(self, count: int) -> Iterator[Clip[SwapControl]]:
        """`count` fixed batches of people that nothing was trained on."""
        for n in range(count):
            yield self.clips("validation", torch.arange(n * self.batch, (n + 1) * self.batch), self.length)

    def clips(self, side: Side, index: Tensor, length: int, first: int = 0) -> Clip[SwapControl]:
        """Clips of a side by their numbers [B] int64: frames first to first + length - 1 of each, however long a video
        is wanted."""
        seed = noise.row_seed(self.seed ^ CLIPS, index * len(SIDES) + SIDES.index(side))
        old, hair, new = self._who(side, seed)
        at = SPREAD * noise.uniform(seed, torch.zeros(len(seed), 1, dtype=torch.int64), WHEN)
        moments = at + torch.arange(first, first + length) / self.fps
        scene = Motion(seed, self.occluded).scene(Person.number(old, hair), moments)
        view = views(scene, self.size)
        frames = torch.arange(len(seed)).repeat_interleave(length)
        target = render(scene, self.size, view)
        swapped = render(scene.swapped(Person.number(new).face.select(frames)), self.size, view)
        return Clip(self._rows(swapped.picture, length), self._control(target, swapped, length, new, old, seed), index)

    def _control(
        self, target: Rendered, swapped: Rendered, length: int, new: Tensor, old: Tensor, seed: Tensor
    ) -> SwapControl:
        visible = 1 - target.occlusion
        mask = torch.from_numpy(soft_mask(self.size)) * visible
        active = torch.ones(len(seed), length, dtype=torch.bool)
        return SwapControl(
            FaceControl(
                self._rows(target.picture, length),
                self._rows(mask, length),
                self._rows(target.landmarks, length),
                active,
            ),
            self._references(new, seed),
            self._rows(swapped.face * visible, length),
            self._rows(swapped.landmarks, length),
            torch.stack((new, old), 1),
        )

    def _references(self, who: Tensor, seed: Tensor) -> Tensor:
        """Pictures [B, R, 3, S, S] of the new people with their own hair, nothing before them, nearly frontal."""
        seed = noise.row_seed(REFERENCES, seed)
        at = SPREAD * noise.uniform(seed, torch.arange(self.references).expand(len(seed), -1), WHEN)
        scene = Motion(seed, 0.0).scene(Person.number(who), at)
        pose, eyes = scene.pose, torch.zeros_like(scene.expression.blink)
        pose = replace(pose, **{name: CLEAR * getattr(pose, name) for name in ("yaw", "pitch", "roll")})
        scene = replace(scene, pose=pose, expression=replace(scene.expression, blink=eyes))
        return self._rows(render(scene, self.size, views(scene, self.size)).picture, self.references)

    def _who(self, side: Side, seed: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Numbers [B] of the old face, of the hair and of the new face: three different people of a side."""
        count, start = self._count(side), self._first(side)
        draw = noise.uniform(seed, torch.arange(3).expand(len(seed), -1), WHO).double()
        old = (draw[:, 0] * count).long()
        hair = (old + 1 + (draw[:, 1] * (count - 1)).long()) % count
        new = (draw[:, 2] * (count - 2)).long()
        low, high = torch.minimum(old, hair), torch.maximum(old, hair)
        new = new + (new >= low).long()
        new = new + (new >= high).long()
        return start + old, start + hair, start + new

    def _first(self, side: Side) -> int:
        return {"train": 0, "validation": self.people, "test": self.people + self.held_out}[side]

    def _count(self, side: Side) -> int:
        return self.people if side == "train" else self.held_out

    def _rows(self, flat: Tensor, length: int) -> Tensor:
        return flat.unflatten(0, (-1, length))


def views(scene: Scene, size: int) -> Tensor:
    """From pixels of the aligned region [size, size] of each face to pixels of its frame, [B, 2, 3] fp32.

    It is the alignment of the pipeline, fitted to the exact landmarks.
    """
    points = seen_landmarks(scene, size).double().numpy()
    return torch.from_numpy(np.stack([fit(face)[0].matrix(size, PADDING) for face in points])).float()
