"""The surface of a head: an ellipsoid whose radius varies with the direction, kept as a map of all directions.

A direction u from the centre has the place s = (u_x, u_y) / (1 + u_z) in the map: a stereographic projection, which
keeps the shape of what is small. Letters: B rows, G side of the map, N places.
"""

from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor
from torch.nn import functional as F

from worldmodel.datasets.heads.person import Face, Hair
from worldmodel.datasets.heads.scene import Expression

GRID = 96  # G
REACH = 1.25  # the map shows |s_x|, |s_y| up to this; what lies further back goes on as its border
RADIUS, SLOPE_X, SLOPE_Y, HAIR, OPEN = range(5)  # channels of the map
AROUND = 5  # places of the map that a hollow is compared with
JAW_DROP = 0.13  # of the lower lip in the disc, at full opening


@dataclass(frozen=True, slots=True)
class Shape:
    """map: radius over the ellipsoid's, its derivatives by s, how much of a place is hair (0..1), and how open to light
    it is (0..1). radii: half axes of the ellipsoid."""

    map: Tensor  # [B, 5, G, G]
    radii: Tensor  # [B, 3, 1]

    @property
    def largest(self) -> Tensor:
        """The largest radius of each row, [B, 1]."""
        return self.map[:, RADIUS].amax((1, 2))[:, None]

    def at(self, s_x: Tensor, s_y: Tensor, channels: slice) -> Tensor:
        """Channels of the map at places [B, N], bilinearly: [B, C, N]."""
        grid = torch.stack((s_x, s_y), -1)[:, None] * (1 / REACH)
        return F.grid_sample(self.map[:, channels], grid, padding_mode="border", align_corners=True)[:, :, 0]

    def lift(self, x: Tensor, y: Tensor) -> Tensor:
        """The points [B, N, 3] of the surface in the directions of places (x, y) [B, N] of the frontal disc."""
        z = (1 - x * x - y * y).clamp(min=1e-4).sqrt()
        radius = self.at(x / (1 + z), y / (1 + z), slice(RADIUS, RADIUS + 1))[:, 0]
        return torch.stack((x, y, z), -1) * radius[..., None] * self.radii.transpose(1, 2)


def shape_of(face: Face, hair: Hair, expression: Expression) -> Shape:
    """The surfaces of B heads."""
    device = face.jaw.device
    x, y, z = (part.to(device) for part in _directions(False))
    covered, thick = _hair(hair, x, y, z)
    half = _bulges(face, expression, *(part.to(device) for part in _directions(True))).unflatten(1, (GRID, -1))
    bulge = torch.cat((half.flip(2), half), 2).flatten(1)  # faces are symmetric
    radius = (1 + torch.maximum(bulge, bulge + (hair.thickness[:, None] - bulge) * thick)).unflatten(1, (GRID, GRID))
    step = 2 * REACH / (GRID - 1)
    wide = F.pad(radius[:, None], (AROUND,) * 4, mode="replicate")[:, 0]

    def shifted(right: int, down: int) -> Tensor:
        return wide[:, AROUND + down : AROUND + down + GRID, AROUND + right : AROUND + right + GRID]

    slope_x = (shifted(1, 0) - shifted(-1, 0)) / (2 * step)
    slope_y = (shifted(0, 1) - shifted(0, -1)) / (2 * step)
    around = (shifted(AROUND, 0) + shifted(-AROUND, 0) + shifted(0, AROUND) + shifted(0, -AROUND)) / 4
    open_to_light = (1 - 5 * (around - radius).clamp_(min=0)).clamp_(min=0.35)
    layers = torch.stack((radius, slope_x, slope_y, covered.unflatten(1, (GRID, GRID)), open_to_light), 1)
    radii = torch.stack((hair.width, torch.ones_like(hair.width), hair.depth), 1)[..., None]
    return Shape(layers, radii)


@cache
def _directions(half: bool) -> tuple[Tensor, Tensor, Tensor]:
    """x, y, z of the directions of the map's places, or of its right half's, [G * G] or [G * G / 2] each."""
    line = torch.linspace(-REACH, REACH, GRID)
    line = (line - line.flip(0)) / 2  # exactly symmetric
    y, x = torch.meshgrid(line, line[GRID // 2 :] if half else line, indexing="ij")
    x, y = x.flatten(), y.flatten()
    square = x * x + y * y
    return 2 * x / (1 + square), 2 * y / (1 + square), (1 - square) / (1 + square)


def _smooth(share: Tensor) -> Tensor:
    share = share.clamp_(0, 1)
    return share * share * (3 - 2 * share)


def _hair(hair: Hair, x: Tensor, y: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
    """How much of each direction is hair, and how thick it is over its most, [B, G * G] in 0..1 each."""
    side = _smooth((hair["temple"] + 0.15 - z) / 0.3)  # 0 in front, 1 from the temples back
    back = ((0.02 - z) / 0.2).clamp(0, 1)
    front = hair["hairline"] + hair["fringe"] * (0.6 * x) + 0.18 * x * x + 0.03 * hair["waves"] * torch.sin(14 * x)
    line = front + side * (hair["sideburn"] - front)
    above = line + back * (0.75 - line) - y
    return (above / 0.05 + 0.5).clamp(0, 1), _smooth(above / 0.3 + 0.25)


def _bulges(face: Face, expression: Expression, x: Tensor, y: Tensor, z: Tensor) -> Tensor:
    """What a face adds to the radius in each direction, [B, n]; x is the distance from the middle of the face."""
    f, e = face, expression
    tip = f["eye_y"] + f["nose_length"]
    bridge = (f["eye_y"] + tip) / 2 - 0.03
    lower = f["mouth_y"] + 0.05 + JAW_DROP * e["open"]
    smile = e["smile"].clamp(min=0)
    total = torch.zeros(len(tip), len(x), device=x.device)

    def bump(height: Tensor, at_x: Tensor | float, at_y: Tensor | float, wide: Tensor | float,
             high: Tensor | float) -> None:  # fmt: skip
        """(1 - d^2 / 4)^4 with the distance d in widths: nearly a Gaussian, and nothing from two widths on."""
        far = (x - at_x) * (0.5 / wide)
        down = (y - at_y) * (0.5 / high)
        near = (far * far + down * down).neg_().add_(1).clamp_(min=0)
        total.addcmul_(height, near.square_().square_())

    even = torch.ones_like(tip)
    bump(f["jaw"] - 0.03 * e["open"], 0.66, 0.62, 0.3, 0.3)
    bump(f["cheeks"] - 0.04 * e["open"] - 0.03 * e["round"], 0.5, 0.42, 0.26, 0.24)
    bump(f["cheekbones"], 0.56, 0.15, 0.2, 0.15)
    bump(f["temples"], 0.88, -0.3, 0.25, 0.3)
    bump(f["chin"] + 0.1 * e["open"], 0.0, 0.98, f["chin_width"] * 1.4, 0.22)
    bump(f["chin_forward"], 0.0, 0.84 + 0.08 * e["open"], f["chin_width"], 0.12)
    bump(f["forehead"], 0.0, -0.5, 0.6, 0.3)
    bump(f["brow_ridge"], f["eye_x"] - 0.06, f["eye_y"] - 0.15, 0.2, 0.075)
    bump(-f["socket"], f["eye_x"] - 0.02, f["eye_y"], 0.17, 0.12)
    bump(0.03 * even, f["eye_x"], f["eye_y"] + 0.01, 0.085, 0.065)
    bump(f["nose_bridge"], 0.0, bridge, 0.085, f["nose_length"] * 0.75)
    bump(f["nose_tip"], 0.0, tip - 0.01, f["nose_width"] * 0.85, 0.1 * even)
    bump(f["nose_tip"] * 0.45, 0.0, tip - 0.14, 0.075, 0.12)
    bump(0.06 * even, f["nose_width"] * 0.85, tip + 0.02, 0.05, 0.055)
    bump(-0.035 * even, 0.0, tip + 0.12, 0.1, 0.05)
    bump(0.035 * even, 0.0, f["mouth_y"] - 0.02, f["mouth_width"] * 0.85, 0.055)
    bump(0.03 + 0.3 * f["lip_lower"], 0.0, lower, f["mouth_width"] * 0.65, 0.05)
    bump(-0.04 * even, 0.0, lower + 0.1, 0.2, 0.05)
    bump(0.05 * smile, 0.4, 0.27, 0.15, 0.12)
    total *= (3 * z + 0.6).clamp(0, 1)  # nothing of it behind
    ear = (1 - ((y - 0.1) / 0.4) ** 2 - ((z + 0.12) / 0.26) ** 2).clamp(min=0) ** 4
    return total + 0.16 * ear
