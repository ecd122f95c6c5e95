"""Who a head is: the face, which a swap exchanges, and the rest of the person, which it keeps.

Lengths are in half heights of the head; directions u from its centre have x to the picture's right, y down and z
towards the viewer, so that a frontal face lies in the (u_x, u_y) of a unit disc. Features are places in that disc.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from worldmodel import noise
from worldmodel.datasets.heads.parameters import Parameters, between

PEOPLE = 0x4845_4144  # the seed of all people: number n is the same person everywhere


@dataclass(frozen=True, slots=True)
class Face(Parameters):
    """What a swap exchanges. Bulges are shares of the head's radius, places and widths those of the disc."""

    PURPOSE: ClassVar[int] = 1

    jaw: Tensor = between(-0.2, 0.04)  # bulge of the jaw's corners
    cheeks: Tensor = between(-0.07, 0.05)  # bulge beside the mouth
    cheekbones: Tensor = between(0.0, 0.06)
    temples: Tensor = between(-0.08, 0.02)
    chin: Tensor = between(-0.1, 0.08)  # how far down it goes
    chin_width: Tensor = between(0.15, 0.38)
    chin_forward: Tensor = between(0.0, 0.1)
    forehead: Tensor = between(-0.04, 0.05)
    brow_ridge: Tensor = between(0.0, 0.06)
    eye_x: Tensor = between(0.36, 0.47)  # from the middle of the face to that of an eye
    eye_y: Tensor = between(-0.07, 0.03)
    eye_width: Tensor = between(0.135, 0.195)  # half of it
    eye_height: Tensor = between(0.055, 0.105)  # half of it, wide awake
    eye_tilt: Tensor = between(-0.22, 0.22)  # outer corner up
    socket: Tensor = between(0.02, 0.08)  # depth
    iris: Tensor = between(0.062, 0.085)  # radius
    iris_colour: Tensor = between(0.0, 1.0)  # brown, hazel, green, blue, grey
    lashes: Tensor = between(0.2, 1.0)
    brow_gap: Tensor = between(0.15, 0.23)  # above the eye
    brow_thickness: Tensor = between(0.025, 0.07)
    brow_length: Tensor = between(0.15, 0.22)
    brow_arch: Tensor = between(0.0, 0.05)
    brow_tilt: Tensor = between(-0.25, 0.2)
    brow_dark: Tensor = between(0.5, 1.0)
    nose_length: Tensor = between(0.26, 0.4)  # of its tip below the eyes
    nose_width: Tensor = between(0.085, 0.165)
    nose_bridge: Tensor = between(0.03, 0.13)  # bulge
    nose_tip: Tensor = between(0.13, 0.28)  # bulge
    mouth_y: Tensor = between(0.53, 0.62)
    mouth_width: Tensor = between(0.2, 0.34)  # half of it
    lip_upper: Tensor = between(0.025, 0.07)  # thickness
    lip_lower: Tensor = between(0.035, 0.095)
    lip_bow: Tensor = between(0.0, 0.45)
    lip_red: Tensor = between(0.15, 1.0)
    folds: Tensor = between(0.0, 0.9)  # from the nose to the mouth's corners
    melanin: Tensor = between(0.0, 1.0)
    ruddy: Tensor = between(0.0, 1.0)
    freckles: Tensor = between(-1.2, 1.0)  # none below 0
    beard: Tensor = between(-1.2, 1.0)  # none below 0
    beard_low: Tensor = between(0.0, 1.0)  # from all over the jaw to the chin alone
    moustache: Tensor = between(-1.5, 1.0)  # none below 0
    pattern: Tensor = between(0.0, 64.0)  # where freckles are


@dataclass(frozen=True, slots=True)
class Hair(Parameters):
    """The rest of a person: skull, hair, neck and clothes."""

    PURPOSE: ClassVar[int] = 2

    width: Tensor = between(0.68, 0.78)  # of the skull, half of it
    depth: Tensor = between(0.8, 0.92)
    hairline: Tensor = between(-0.82, -0.52)  # of the forehead, in the disc
    thickness: Tensor = between(0.03, 0.17)
    temple: Tensor = between(0.15, 0.55)  # how far forward it comes
    sideburn: Tensor = between(-0.25, 0.3)
    fringe: Tensor = between(-0.3, 0.3)  # to one side or the other
    waves: Tensor = between(0.0, 1.0)
    length: Tensor = between(-0.7, 1.0)  # behind the neck; none below 0
    dark: Tensor = between(0.0, 1.0)  # from blond to black
    red: Tensor = between(0.0, 1.0)
    grey: Tensor = between(-1.5, 0.9)  # none below 0
    neck: Tensor = between(0.36, 0.5)  # half of its width
    shoulders: Tensor = between(1.1, 1.5)
    cloth: Tensor = between(0.0, 1.0)  # hue
    cloth_light: Tensor = between(0.1, 0.75)
    skin_melanin: Tensor = between(0.0, 1.0)  # of the neck
    skin_ruddy: Tensor = between(0.0, 1.0)


@dataclass(frozen=True, slots=True)
class Person:
    """People, one per row."""

    face: Face
    hair: Hair

    @classmethod
    def number(cls, face: Tensor, hair: Tensor | None = None) -> "Person":
        """The people of these numbers [B] int64, with their own hair or that of others; their necks fit their faces."""
        one = Face.draw(noise.row_seed(PEOPLE, face))
        other = face if hair is None else hair
        return cls(one, Hair.draw(noise.row_seed(PEOPLE, other))).matched()

    def matched(self) -> "Person":
        """With a neck of the face's skin."""
        columns = {name: getattr(self.hair, name) for name in self.hair.ranges()}
        return Person(self.face, Hair(**columns | {"skin_melanin": self.face.melanin, "skin_ruddy": self.face.ruddy}))

    def swapped(self, face: Face) -> "Person":
        """The same people with other faces: skull, hair, neck and clothes stay."""
        return Person(face, self.hair)

    @property
    def rows(self) -> int:
        return self.face.rows

    def select(self, rows: Tensor) -> "Person":
        return Person(self.face.select(rows), self.hair.select(rows))

    def check(self) -> None:
        self.face.check()
        self.hair.check()


def colours(table: tuple[tuple[float, float, float], ...], at: Tensor) -> Tensor:
    """Between the colours of a table, by numbers [B] in 0..1: linear RGB [B, 3, 1] in 0..1."""
    stops = torch.tensor(table, device=at.device)
    place = at.clamp(0, 1) * (len(table) - 1)
    low = place.floor().clamp(max=len(table) - 2).long()
    return torch.lerp(stops[low], stops[low + 1], (place - low)[:, None])[..., None]
