"""What stands behind a head: background, hair on the shoulders, neck and clothes. Letters: B rows, N places."""

import torch
from torch import Tensor
from torch.nn import functional as F

from worldmodel import noise
from worldmodel.datasets.heads.paint import bell, hair_colour, lamp, skin_colour
from worldmodel.datasets.heads.person import colours
from worldmodel.datasets.heads.scene import Background, Scene

PATTERNS, TILE = 0x5041_5454, 24
CLOTH = (
    (0.6, 0.08, 0.07),
    (0.55, 0.35, 0.06),
    (0.08, 0.35, 0.12),
    (0.05, 0.2, 0.5),
    (0.3, 0.07, 0.35),
    (0.5, 0.5, 0.5),
)


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
    return level.clamp_(0.01, 1).square_()


def body(scene: Scene, colour: Tensor, x: Tensor, y: Tensor, pixel: Tensor) -> Tensor:
    """Put long hair, neck and clothes on a background [B, 3, N]; x, y [B, N] from the head's centre in half heights.

    pixel: its size in the same, [B, 1]. The body stands upright and turns a little with the head; nothing of it depends
    on the face.
    """
    hair, pose = scene.person.hair, scene.pose
    key, lamp_colour, ambient = lamp(scene.light)
    of = hair
    lean = 0.35 * torch.sin(pose.roll)[:, None]
    turn = torch.sin(pose.yaw)[:, None]
    x = x + lean * y.clamp(min=0)
    long = of["length"].clamp(min=0)
    high = 0.75 + 0.75 * long
    at_x, at_y = (x + 0.12 * turn) / (of["width"] * 1.12 + of["thickness"]), (y + 0.35 - high + 0.55) / (high + 0.1)
    far = torch.addcmul(at_y.square().pow_(torch.where(at_y < 0, 1.0, 2.0)), at_x, at_x).sqrt_()
    strands = hair_colour(hair) * (0.42 + 0.12 * torch.sin(26 * x + 2 * of["waves"] * torch.sin(5 * y)))[:, None]
    colour = _over(
        colour, strands * ambient[..., None] * 1.5, ((1 - far) / (2 * pixel)).clamp_(0, 1) * (20 * long).clamp(max=1)
    )
    half = of["neck"] * (1 + 0.25 * ((y - 1) * 2).clamp_(0, 1).square_())
    across = ((x + 0.1 * turn) / half).clamp(-1, 1)
    n_z = (1 - across * across).clamp(min=0.05).sqrt()
    facing = (across * key[:, :1] + n_z * key[:, 2:]).clamp(min=0)[:, None]
    under = (0.35 + 0.5 * ((y - 0.95) / 0.5).clamp(0, 1))[:, None]  # the head's shadow
    lit = facing * lamp_colour * under + ambient[..., None] * (0.4 + under) * 0.6
    inside = ((half - (x + 0.1 * turn).abs()) / pixel).clamp_(0, 1) * (y > 0.2)
    colour = _over(colour, skin_colour(hair.skin_melanin, hair.skin_ruddy) * lit, inside)
    across = x / of["shoulders"]
    rim = 1.32 + 0.55 * across.square() + 0.12 * bell((x / (0.9 * of["neck"])).square_())
    inside = ((y - rim) / pixel).clamp_(0, 1) * ((1.05 - across.abs()) / 0.05).clamp(0, 1)
    cloth = colours(CLOTH, hair.cloth) * hair.cloth_light[:, None, None]
    facing = (0.75 + across * key[:, :1] * 0.5 - 0.25 * ((y - rim) * 0.5).clamp(0, 1))[:, None]
    return _over(colour, cloth * (lamp_colour * facing + ambient[..., None]) * 0.8, inside)


def _over(below: Tensor, layer: Tensor, weight: Tensor) -> Tensor:
    return below.addcmul_(weight[:, None], layer - below)
