"""Smooth movement: everything about a scene that moves, as a function of time in closed form.

A moment is a pure function of (the row's seed, seconds): frame 15000 of a long video costs no more than frame 0. Every
number is a sum of three sines around a middle of its own, within its range. Letters: B rows, T moments.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from worldmodel import noise
from worldmodel.datasets.heads.parameters import Parameters
from worldmodel.datasets.heads.person import Person
from worldmodel.datasets.heads.scene import Background, Expression, Light, Occluder, Pose, Scene

WAVES = 3
MIDDLE, FIRST_WAVE, OTHERS = range(3)  # draws of a class of parameters, after its PURPOSE
KINDS = 3  # of occluders


@dataclass(frozen=True, slots=True)
class Motion:
    """How B videos move. occluded: share of the videos in which something comes before the face."""

    seed: Tensor  # [B] int64
    occluded: float = 0.5

    def scene(self, person: Person, seconds: Tensor) -> Scene:
        """B people at moments [B, T] seconds: B * T rows, the T moments of a person after each other."""
        rows = torch.arange(person.rows).repeat_interleave(seconds.shape[1])
        return Scene(
            person.select(rows),
            self._expression(seconds),
            _wander(Pose, self.seed, seconds, 0.3, 0.35),
            _wander(Light, self.seed, seconds, 0.12, 0.1),
            self._background(seconds),
            self._occluder(seconds),
        )

    def _expression(self, seconds: Tensor) -> Expression:
        wandering = _wander(Expression, self.seed, seconds, 0.38, 0.5)
        draw = _draws(self.seed, Expression.PURPOSE, OTHERS, 6)[:, :, None]
        talking = (torch.sin(seconds * (2 + 3 * draw[:, 0]) + 6.3 * draw[:, 1]) + 0.3).clamp(0, 1)
        syllables = 0.5 + 0.5 * torch.sin(seconds * (14 + 10 * draw[:, 2]) + 6.3 * draw[:, 3])
        period = 2.2 + 3 * draw[:, 4]
        since = (seconds + period * draw[:, 5]).remainder(period)
        blink = (1.6 - (since - 0.2).abs() / 0.1).clamp(0, 1)
        return replace(
            wandering,
            open=(talking * syllables * 0.75).flatten(),
            round=wandering.round**2 * 0.6,
            frown=wandering.frown**2,
            blink=torch.maximum((blink * blink * (3 - 2 * blink)).flatten(), 0.15 * wandering.blink),
        )

    def _background(self, seconds: Tensor) -> Background:
        """Its pattern and colours stay, it moves behind a camera in the hand."""
        moving = _wander(Background, self.seed, seconds, 0.12, 0.15)
        still = Background.draw(self.seed)
        rows = torch.arange(len(self.seed)).repeat_interleave(seconds.shape[1])
        return replace(still.select(rows), x=moving.x, y=moving.y)

    def _occluder(self, seconds: Tensor) -> Occluder:
        draw = _draws(self.seed, Occluder.PURPOSE, OTHERS, 2)
        kind = 1 + (draw[:, 1] * KINDS).floor()
        kind = torch.where(draw[:, 0] < self.occluded, kind, 0.0)
        moving = _wander(Occluder, self.seed, seconds, 0.3, 0.25)
        still = Occluder.draw(self.seed)
        rows = torch.arange(len(self.seed)).repeat_interleave(seconds.shape[1])
        return replace(moving, kind=kind[rows], size=still.size[rows], tone=still.tone[rows])


def _draws(seed: Tensor, purpose: int, which: int, count: int) -> Tensor:
    """Uniform numbers [B, count]; no other draws of a scene have the same key."""
    return noise.uniform(seed, torch.arange(count).expand(len(seed), -1), 16 + 8 * purpose + which)


def _wander[P: Parameters](cls: type[P], seed: Tensor, seconds: Tensor, reach: float, rate: float) -> P:
    """Parameters at moments [B, T], within `reach` of their middles (in shares of their ranges), `rate` times a second
    or slower; B * T rows."""
    count = len(cls.ranges())
    middle = reach + (1 - 2 * reach) * _draws(seed, cls.PURPOSE, MIDDLE, count)
    drawn = _draws(seed, cls.PURPOSE, FIRST_WAVE, 3 * WAVES * count).unflatten(1, (3, WAVES, count))
    weight = 0.2 + drawn[:, 0]
    weight = weight / weight.sum(1, keepdim=True)
    speed = 2 * torch.pi * rate * (0.15 + 0.85 * drawn[:, 1])
    angle = seconds[:, :, None, None] * speed[:, None] + 2 * torch.pi * drawn[:, None, 2]
    shares = middle[:, None] + reach * (weight[:, None] * torch.sin(angle)).sum(2)
    return cls.of_shares(shares.flatten(0, 1))
