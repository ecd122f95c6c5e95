"""Trajectories of the Kuramoto-Sivashinsky equation as clips: training, validation and test data that never overlap.

Trajectory i of a side is a pure function of (seed, side, i), clip j of (seed, side, j): whoever asks for them, in any
order, gets the same numbers. Letters: B rows, T frames, N grid points.
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from worldmodel import noise
from worldmodel.chunk import ActionControl, Clip
from worldmodel.errors import UserError

from .kuramoto_sivashinsky import KuramotoSivashinsky

Side = Literal["train", "validation", "test"]
SIDES: tuple[Side, ...] = ("train", "validation", "test")
START, WINDOW = range(2)  # draws of a keyed generator; its frame is the number of the side
TOGETHER = 256  # training steps whose windows are drawn at once
LONGEST_WAVE = 4  # modes 1 to this of a starting field are drawn


@dataclass(frozen=True, kw_only=True)
class Trajectories:
    """Fields [1, 1, N] at equal intervals, divided by `scale`, so that their standard deviation is near 1.

    interval: time between two frames, and `steps` the solver's steps in it. warmup: time that a random start is given
    to reach the attractor; it is not part of the data. train, validation: number of trajectories; test ones are made
    as asked for. frames: of each. length, batch: of training clips.
    """

    equation: KuramotoSivashinsky = field(default_factory=KuramotoSivashinsky)
    interval: float = 2.0
    steps: int = 20
    warmup: float = 100.0
    train: int = 256
    validation: int = 32
    frames: int = 200
    length: int = 2
    batch: int = 32
    scale: float = 1.2
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("steps", "train", "validation", "length", "batch"):
            if getattr(self, name) < 1:
                raise UserError(f"trajectories: {name} must be at least 1, not {getattr(self, name)}")
        if self.frames < self.length:
            raise UserError(f"trajectories: {self.frames} frames hold no clip of {self.length}")
        if not (self.interval > 0 and self.warmup >= 0 and self.scale > 0) or not 0 <= self.seed < 2**63:
            raise UserError(
                f"trajectories: interval {self.interval} and scale {self.scale} must be above 0, warmup {self.warmup} "
                f"not below, seed {self.seed} in [0, 2**63)"
            )

    @property
    def split(self) -> dict[str, Any]:
        """How many trajectories each side has; their draws are keyed by the side, so that no start is shared."""
        return {"train": self.train, "validation": self.validation}

    def batches(self, first_step: int = 0, rank: int = 0, world: int = 1, micro: int = 1) -> Iterator[list[Clip]]:
        """The endless training stream from a step on, this rank's share of it in `micro` micro-batches."""
        size, rest = divmod(self.batch, world * micro)
        if rest:
            raise UserError(f"a batch of {self.batch} does not divide into {world} processes x {micro} micro-batches")
        block = TOGETHER * self.batch
        for start in itertools.count(first_step * self.batch, block):
            windows = self._windows("train", start, block)
            for first in range(rank * size * micro, block, self.batch):
                yield [self._cut("train", start, windows, first + m * size, size) for m in range(micro)]

    def validation_batches(self, count: int) -> Iterator[Clip]:
        """`count` fixed batches of clips of the held-out trajectories."""
        for n in range(count):
            first = n * self.batch
            yield self._cut("validation", first, self._windows("validation", first, self.batch), 0, self.batch)

    def whole(self, side: Side, count: int, frames: int) -> Clip:
        """The first `count` trajectories of a side, from the attractor on, [count, frames, 1, 1, N] fp32."""
        made = _solve(_source(self), side, count, frames)
        return _clip(made, torch.arange(count))

    def _windows(self, side: Side, first: int, size: int) -> list[int]:
        """Where clips first to first + size - 1 of a side lie, every window of every trajectory equally likely."""
        index = torch.arange(first, first + size)
        draws = noise.uniform(noise.row_seed(self.seed, index), torch.full((size, 1), SIDES.index(side)), WINDOW)
        count = self.train if side == "train" else self.validation
        return (draws[:, 0].double() * (count * (self.frames - self.length + 1))).long().tolist()

    def _cut(self, side: Side, start: int, windows: list[int], first: int, size: int) -> Clip:
        """Clips start + first to start + first + size - 1 of a side; windows: of those from `start` on."""
        fields = _solve(_source(self), side, self.train if side == "train" else self.validation, self.frames)
        room = self.frames - self.length + 1
        cut = [fields[w // room, w % room : w % room + self.length] for w in windows[first : first + size]]
        return _clip(np.stack(cut), torch.arange(start + first, start + first + size))


def _source(data: Trajectories) -> Trajectories:
    """What the fields depend on: clips of any length and batches of any size are cut from the same ones."""
    return replace(data, length=1, batch=1)


def _start(data: Trajectories, side: Side, count: int) -> NDArray[np.float64]:
    """Random fields of long waves only, [count, N]."""
    points = data.equation.points
    waves = min(LONGEST_WAVE, points // 2 - 1)
    seeds = noise.row_seed(data.seed, torch.arange(count))
    drawn = noise.normal(seeds, torch.full((count, 1), SIDES.index(side)), START, (2, waves))[:, 0].double().numpy()
    modes = np.zeros((count, points // 2 + 1), np.complex128)
    modes[:, 1 : 1 + waves] = (drawn[:, 0] + 1j * drawn[:, 1]) * points / 4
    return np.fft.irfft(modes, points)


def _clip(fields: NDArray[np.float32], index: torch.Tensor) -> Clip:
    """fields: [B, T, N]. The clip's control is empty: no actions."""
    x = torch.from_numpy(fields)[:, :, None, None]
    nothing = torch.zeros(*x.shape[:2], 0), torch.zeros(x.shape[:2], dtype=torch.bool)
    return Clip(x, ActionControl(*nothing), index)


@cache
def _solve(data: Trajectories, side: Side, count: int, frames: int) -> NDArray[np.float32]:
    """Trajectories 0 to count - 1 of a side, scaled, [count, frames, N]. Solved in fp64, stored in fp32."""
    stream = data.equation.frames(_start(data, side, count), data.interval, data.steps)
    skip = round(data.warmup / data.interval)
    made = [next(stream) / data.scale for _ in range(skip + frames)][skip:]
    return np.stack(made, 1).astype(np.float32)
