"""Pairs of pictures of one face, to learn who is who: all else about the two is drawn anew, hair and clothes too.

Letters: B rows, S side of the aligned regions.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from worldmodel import noise
from worldmodel.chunk import ActionControl, Clip
from worldmodel.datasets.heads.motion import Motion
from worldmodel.datasets.heads.person import Person
from worldmodel.datasets.heads.render import render
from worldmodel.datasets.heads.swaps import HeadSwaps, Side, views
from worldmodel.errors import UserError

PAIRS, HAIR, WHEN, SHAKEN, GRAIN, BLUR = 0x5041_4952, 1, 2, 3, 4, 5
SHAKE = (0.05, 0.06, 0.03, 0.03)  # most of scale (in logarithms), angle, x and y (in sides of the region)


@dataclass(frozen=True, kw_only=True)
class HeadPairs:
    """Pair i is a pure function of (seed, side, i). people, held_out: sides as in `HeadSwaps`, of the same people.

    occluded: share of pictures with something before the face. The regions are shaken as a tracker's are, blurred and
    grainy up to `grain` (in -1..1 of a pixel) as a young generator's are.
    """

    size: int = 64
    batch: int = 64
    people: int = 4096
    held_out: int = 512
    occluded: float = 0.25
    grain: float = 0.1
    seed: int = 0

    def __post_init__(self) -> None:
        self._swaps()
        if not 0 <= self.grain <= 1:
            raise UserError(f"heads: grain must be in [0, 1], not {self.grain}")

    @property
    def split(self) -> dict[str, Any]:
        """First and last number of the people of each side."""
        return self._swaps().split

    def batches(self, first_step: int = 0, rank: int = 0, world: int = 1, micro: int = 1) -> Iterator[list[Clip]]:
        """The endless training stream from a step on; people of one step are all different where there are enough."""
        size, rest = divmod(self.batch, world * micro)
        if rest:
            raise UserError(f"a batch of {self.batch} does not divide into {world} processes x {micro} micro-batches")
        step = first_step
        while True:
            first = step * self.batch + rank * size * micro
            yield [self.clips("train", torch.arange(first + m * size, first + (m + 1) * size)) for m in range(micro)]
            step += 1

    def validation_batches(self, count: int) -> Iterator[Clip]:
        """`count` fixed batches of people that nothing was trained on."""
        for n in range(count):
            yield self.clips("validation", torch.arange(n * self.batch, (n + 1) * self.batch))

    def clips(self, side: Side, index: Tensor) -> Clip:
        """Pairs of a side by their numbers [B] int64: x [B, 2, 3, S, S] in -1..1, no control."""
        low, high = self.split[side]
        count = high - low + 1
        stride = _coprime(count)  # a walk through everybody, in an order that looks like none
        face = low + (index % count) * stride % count
        seed = noise.row_seed(self.seed ^ PAIRS, (2 * index[:, None] + torch.arange(2)).flatten())
        zero = torch.zeros(len(seed), 1, dtype=torch.int64)
        hair = low + (noise.uniform(seed, zero, HAIR)[:, 0].double() * count).long()
        scene = Motion(seed, self.occluded).scene(
            Person.number(face.repeat_interleave(2), hair), 60 * noise.uniform(seed, zero, WHEN)
        )
        pictures = render(scene, self.size, self._shaken(views(scene, self.size), seed)).picture
        x = self._worn(pictures, seed).unflatten(0, (-1, 2))
        nothing = ActionControl(torch.zeros(*x.shape[:2], 0), torch.zeros(x.shape[:2], dtype=torch.bool))
        return Clip(x, nothing, index)

    def _shaken(self, view: Tensor, seed: Tensor) -> Tensor:
        """Views [N, 2, 3] of regions that are a little off."""
        draw = 2 * noise.uniform(seed, torch.arange(4).expand(len(seed), -1), SHAKEN) - 1
        scale, angle, x, y = (draw * torch.tensor(SHAKE)).unbind(1)
        turn = torch.stack((torch.cos(angle), -torch.sin(angle), torch.sin(angle), torch.cos(angle)), 1)
        turn = (turn * scale.exp()[:, None]).unflatten(1, (2, 2))
        middle = (self.size - 1) / 2
        shift = middle + torch.stack((x, y), 1) * self.size - turn.sum(2) * middle
        joined = torch.cat((turn, shift[..., None]), 2)
        return torch.cat((_times(view[:, :, :2], joined[:, :, :2]), _moved(view, joined[:, :, 2])), 2)

    def _worn(self, pictures: Tensor, seed: Tensor) -> Tensor:
        """Half of the pictures less sharp, all grainy."""
        draw = noise.uniform(seed, torch.arange(2).expand(len(seed), -1), BLUR)
        soft = F.avg_pool2d(F.pad(pictures, (1, 1, 1, 1), mode="replicate"), 3, 1)
        pictures = torch.lerp(pictures, soft, (2 * draw[:, 0] - 1).clamp(min=0)[:, None, None, None])
        frame = torch.zeros(len(seed), 1, dtype=torch.int64)
        grain = noise.normal(seed, frame, GRAIN, tuple(pictures.shape[1:]))[:, 0]
        return (pictures + self.grain * draw[:, 1, None, None, None] * grain).clamp(-1, 1)

    def _swaps(self) -> HeadSwaps:
        return HeadSwaps(size=self.size, batch=self.batch, people=self.people, held_out=self.held_out,
                         occluded=self.occluded, seed=self.seed)  # fmt: skip


def _coprime(count: int) -> int:
    """A step with which a walk modulo `count` meets everybody before it comes back."""
    return next(n for n in range(int(0.618 * count) + 1, 2 * count + 2) if math.gcd(n, count) == 1)


def _times(a: Tensor, b: Tensor) -> Tensor:
    """Products of matrices [N, 2, 2], in sums that do not depend on N."""
    return (a[:, :, :, None] * b[:, None]).sum(2)


def _moved(view: Tensor, shift: Tensor) -> Tensor:
    """Where views [N, 2, 3] take points [N, 2]: [N, 2, 1]."""
    return (view[:, :, :2] * shift[:, None]).sum(2, keepdim=True) + view[:, :, 2:]
