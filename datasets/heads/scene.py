"""What happens around a person: expression, pose, light, background and occluder, per row."""

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from worldmodel.datasets.heads.parameters import Parameters, between
from worldmodel.datasets.heads.person import Face, Person
from worldmodel.errors import UserError


@dataclass(frozen=True, slots=True)
class Expression(Parameters):
    PURPOSE: ClassVar[int] = 3

    open: Tensor = between(0.0, 1.0)  # the mouth
    smile: Tensor = between(-0.7, 1.0)
    round: Tensor = between(0.0, 1.0)  # lips
    brows: Tensor = between(-1.0, 1.0)  # up
    frown: Tensor = between(0.0, 1.0)
    blink: Tensor = between(0.0, 1.0)  # 1: closed
    gaze_x: Tensor = between(-1.0, 1.0)  # to the picture's right
    gaze_y: Tensor = between(-1.0, 1.0)  # down


@dataclass(frozen=True, slots=True)
class Pose(Parameters):
    """yaw, pitch, roll: radians; a positive yaw looks to the picture's right, pitch down, roll clockwise. scale: half
    the head's height in sides of the frame. x, y: the head's centre in sides of the frame."""

    PURPOSE: ClassVar[int] = 4

    yaw: Tensor = between(-0.8, 0.8)
    pitch: Tensor = between(-0.4, 0.4)
    roll: Tensor = between(-0.5, 0.5)
    scale: Tensor = between(0.2, 0.4)
    x: Tensor = between(0.35, 0.65)
    y: Tensor = between(0.35, 0.6)


@dataclass(frozen=True, slots=True)
class Light(Parameters):
    """side, height: where the key light is, sines of its angles. warm: its colour from blue to yellow."""

    PURPOSE: ClassVar[int] = 5

    side: Tensor = between(-0.8, 0.8)
    height: Tensor = between(-0.1, 0.8)
    key: Tensor = between(0.5, 1.1)
    ambient: Tensor = between(0.25, 0.6)
    warm: Tensor = between(-1.0, 1.0)


@dataclass(frozen=True, slots=True)
class Background(Parameters):
    """pattern: which one. x, y: how far it has moved, in sides of the frame."""

    PURPOSE: ClassVar[int] = 6

    pattern: Tensor = between(0.0, 4096.0)
    contrast: Tensor = between(0.1, 0.6)
    bright: Tensor = between(0.12, 0.7)
    x: Tensor = between(-1.0, 1.0)
    y: Tensor = between(-1.0, 1.0)


@dataclass(frozen=True, slots=True)
class Occluder(Parameters):
    """kind: 0 nothing, 1 a hand, 2 a bar, 3 glasses; numbers between count as the lower one. x, y: from the head's
    centre, in half heights of the head; angle: radians clockwise. Glasses sit where they sit."""

    PURPOSE: ClassVar[int] = 7

    kind: Tensor = between(0.0, 3.999)
    x: Tensor = between(-0.9, 0.9)
    y: Tensor = between(-0.3, 1.0)
    angle: Tensor = between(-1.5, 1.5)
    size: Tensor = between(0.7, 1.2)
    tone: Tensor = between(0.0, 1.0)

    @classmethod
    def none(cls, rows: int) -> "Occluder":
        middle = cls.middle(rows)
        return replace(middle, kind=torch.zeros(rows))


@dataclass(frozen=True, slots=True)
class Scene:
    """Everything that a picture is made of, one per row. All parts have the same number of rows B."""

    person: Person
    expression: Expression
    pose: Pose
    light: Light
    background: Background
    occluder: Occluder

    def __post_init__(self) -> None:
        counts = {type(part).__name__: part.rows for part in self._parts()}
        if len(set(counts.values())) != 1:
            raise UserError(f"scene: its parts must have one number of rows, not {counts}")

    def _parts(self) -> tuple[Person, Expression, Pose, Light, Background, Occluder]:
        return self.person, self.expression, self.pose, self.light, self.background, self.occluder

    @property
    def rows(self) -> int:
        return self.person.rows

    def select(self, rows: Tensor) -> "Scene":
        """The rows of an index tensor [B'] int64, in that order."""
        return Scene(*(part.select(rows) for part in self._parts()))  # pyright: ignore[reportArgumentType]

    def swapped(self, face: Face) -> "Scene":
        """The exact swap: other faces [B] under the same expression, pose, light, background and occluder."""
        return replace(self, person=self.person.swapped(face))

    def check(self) -> None:
        """A UserError that names the first number which is out of its range."""
        for part in self._parts():
            part.check()
