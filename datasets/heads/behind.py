"""What stands behind a head: background, hair on the shoulders, neck and clothes. Letters: B rows, N places."""

import torch
from torch import Tensor
from torch.nn import functional as F

from worldmodel import noise
from worldmodel.datasets.heads.paint import hair_colour, lamp, neck_skin, skin_colour
from worldmodel.datasets.heads.person import colours
from worldmodel.datasets.heads.scene import Background, Scene

PATTERNS, TILE = 0x5041_5454, 24
CLOTH = ((0.6, 0.08, 0.07), (0.55, 0.35, 0.06), (0.08, 0.35, 0.12), (0.05, 0.2, 0.5), (0.3, 0.07, 0.35), (0.5, 0.5, 0.5))


def background(ground: Background, x: Tensor, y: Tensor) -> Tensor:
    """Linear RGB [B, 3, N] of places (x, y) [B, N] in sides of the frame: soft blobs of colour and a horizon."""
    number = ground.pattern.floor().long()
    seed = noise.row_seed(PATTERNS, number.cpu()).to(x.device)
    frames = torch.zeros(len(seed), 1, dtype=torch.int64, device=x.device)
    tile = noise.normal(seed, frames, 0, (3, TILE, TILE))[:, 0]
    coarse = F.interpolate(F.avg_pool2d(tile, 6), size=(TILE, TILE), mode="bilinear", align_corners=True)
    grey = tile.mean(1, keepdim=True)
    tile = 2.2 * coarse + 0.7 * grey
    at = torch.stack((x + ground.x[:, None], y + ground.y[:, None]), -1)
    at = (at + 1.5).remainder(4) - 2  # mirrored copies beyond the tile
    at = (at.abs() - 1)[:, None]
    shown = F.grid_sample(tile, at, padding_mode="border", align_corners=True)[:, :, 0]
    level = ground.bright[:, None, None] * (1 + ground.contrast[:, None, None] * shown)
    return level.clamp(0.01, 1) ** 2


def body(scene: Scene, colour: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Put long hair, neck and clothes on a background [B, 3, N]; x, y [B, N] from the head's centre in half heights.

    The body stands upright and turns a little with the head; nothing of it depends on the face.
    """
    hair, pose = scene.person.hair, scene.pose
    key, lamp_colour, ambient = lamp(scene.light)
    of = hair.columns()
    soft = 0.012 / pose.scale[:, None]  # about a pixel of 64
    lean = 0.35 * torch.sin(pose.roll)[:, None]
    turn = torch.sin(pose.yaw)[:, None]
    x = x + lean * y.clamp(min=0)
    long = of["length"].clamp(min=0)
    high = 0.75 + 0.75 * long
    at_x, at_y = (x + 0.12 * turn) / (of["width"] * 1.12 + of["thickness"]), (y + 0.35 - high + 0.55) / (high + 0.1)
    far = (at_x.abs() ** 2.6 + at_y.abs() ** 2.6) ** (1 / 2.6)
    strands = hair_colour(hair) * (0.42 + 0.12 * torch.sin(26 * x + 2 * of["waves"] * torch.sin(5 * y)))[:, None]
    colour = _over(colour, strands * ambient[..., None] * 1.5, ((1 - far) / (2 * soft)).clamp(0, 1) * step01(long))
    half = of["neck"] * (1 + 0.25 * ((y - 1.0) / 0.5).clamp(0, 1) ** 2)
    across = ((x + 0.1 * turn) / half).clamp(-1, 1)
    n_z = (1 - across * across).clamp(min=0.05).sqrt()
    facing = (across * key[:, :1] + n_z * key[:, 2:]).clamp(min=0)[:, None]
    under = (0.35 + 0.5 * ((y - 0.95) / 0.5).clamp(0, 1))[:, None]  # the head's shadow
    lit = facing * lamp_colour * under + ambient[..., None] * (0.4 + under) * 0.6
    inside = ((half - (x + 0.1 * turn).abs()) / soft).clamp(0, 1) * (y > 0.2)
    colour = _over(colour, neck_skin(scene) * lit, inside)
    across = x / of["shoulders"]
    rim = 1.32 + 0.55 * across**2 + 0.12 * torch.exp(-((x / of["neck"] / 0.9) ** 2))
    inside = ((y - rim) / soft).clamp(0, 1) * ((1.05 - across.abs()) / 0.05).clamp(0, 1)
    cloth = colours(CLOTH, hair.cloth) * hair.cloth_light[:, None, None]
    facing = (0.75 + across * key[:, :1] * 0.5 - 0.25 * ((y - rim) * 0.5).clamp(0, 1))[:, None]
    return _over(colour, cloth * (lamp_colour * facing + ambient[..., None]) * 0.8, inside)


def step01(share: Tensor) -> Tensor:
    """1 where there is something of a share at all, without a jump."""
    return (share * 20).clamp(0, 1)


def _over(below: Tensor, layer: Tensor, weight: Tensor) -> Tensor:
    return below + weight[:, None] * (layer - below)


__all__ = ["background", "body", "skin_colour"]
