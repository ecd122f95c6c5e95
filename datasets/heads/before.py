"""What is before a head: a hand, a bar or glasses, as colour and exact coverage. Letters: B rows, N places."""

import torch
from torch import Tensor

from worldmodel.datasets.heads.paint import bell, lamp, skin_colour
from worldmodel.datasets.heads.person import colours
from worldmodel.datasets.heads.scene import Scene

FINGERS = ((-0.24, -0.62, 0.075), (-0.085, -0.74, 0.08), (0.075, -0.72, 0.08), (0.225, -0.58, 0.07))  # tips, radius
THUMB = ((0.24, 0.12), (0.46, -0.18), 0.085)
PAINTS = ((0.02, 0.02, 0.025), (0.4, 0.05, 0.05), (0.06, 0.16, 0.4), (0.5, 0.42, 0.1), (0.55, 0.55, 0.55))
LENS, LENS_AT, FRAME = (0.215, 0.175), (0.36, 0.0), 0.032  # of glasses: half sizes, middle, thickness
SHELL = 1.13  # the ellipsoid on which glasses sit, over the skull's


def occlude(scene: Scene, turned: Tensor, x: Tensor, y: Tensor, pixel: Tensor) -> tuple[Tensor, Tensor]:
    """Colour [B, 3, N] and coverage [B, N] in 0..1; x, y [B, N] from the head's centre in half heights of the head.

    turned: from the head's frame to the picture's, [B, 3, 3]. pixel: its size in
    half heights, [B, 1]. Nothing of it depends on the face.
    """
    colour, cover = torch.zeros(len(x), 3, x.shape[1], device=x.device), torch.zeros_like(x)
    kinds = scene.occluder.kind.floor()
    for kind, draw in ((1, _hand), (2, _bar), (3, _glasses)):
        rows = (kinds == kind).nonzero()[:, 0]
        if len(rows):
            some = scene.select(rows)
            made, depth = draw(some, turned[rows], x[rows], y[rows])
            colour[rows], cover[rows] = made, (depth / pixel[rows] + 0.5).clamp_(0, 1)
    return colour, cover


def _local(scene: Scene, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Coordinates of the occluder, in its own size."""
    of = scene.occluder
    x, y = x - of["x"], y - of["y"]
    cos, sin = torch.cos(of["angle"]), torch.sin(of["angle"])
    return (cos * x + sin * y) / of["size"], (cos * y - sin * x) / of["size"]


def _capsule(x: Tensor, y: Tensor, a: tuple[float, float], b: tuple[float, float], radius: float) -> Tensor:
    """Depth below the rim of a capsule around the segment from a to b, above 0 inside."""
    along = ((x - a[0]) * (b[0] - a[0]) + (y - a[1]) * (b[1] - a[1])) / ((b[0] - a[0]) ** 2 + (b[1] - a[1]) ** 2)
    along = along.clamp(0, 1)
    return radius - torch.hypot(x - a[0] - along * (b[0] - a[0]), y - a[1] - along * (b[1] - a[1]))


def _hand(scene: Scene, turned: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    x, y = _local(scene, x, y)
    palm = 0.3 - torch.addcmul((x / 1.05).square_().square_(), (y - 0.02).square(), (y - 0.02).square()).sqrt_().sqrt_()
    parts = [palm, _capsule(x, y, (0.0, 0.2), (0.05, 1.6), 0.22), _capsule(x, y, *THUMB)]
    parts += [_capsule(x, y, (0.75 * tip[0], -0.15), tip[:2], tip[2]) for tip in FINGERS]
    depth, second = parts[0], torch.full_like(x, -1.0)
    for part in parts[1:]:
        second = torch.maximum(second, torch.minimum(depth, part))
        depth = torch.maximum(depth, part)
    _, lamp_colour, ambient = lamp(scene.light)
    round_ = (depth / 0.09).clamp(0, 1)
    # Dark lines where two fingers meet: the second deepest part is nearly as deep as the first.
    line = bell(((depth - second) * 50).square_()) * (second > -0.01) * (y < -0.2)
    tilt = 0.8 - 0.5 * scene.light.side[:, None] * (x / 0.4).clamp(-1, 1) * (1 - round_)
    lit = (
        lamp_colour * (0.45 + 0.55 * round_ * tilt)[:, None] * 0.85 + ambient[..., None] * (0.5 + 0.5 * round_)[:, None]
    )
    skin = skin_colour(scene.occluder.tone, scene.occluder.tone * 0 + 0.4)
    return skin * lit * (1 - 0.45 * line)[:, None], depth * scene.occluder["size"]


def _bar(scene: Scene, turned: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    x, y = _local(scene, x, y)
    depth = torch.minimum(0.13 - x.abs(), y + 0.45)
    _, lamp_colour, ambient = lamp(scene.light)
    round_ = (1 - (x / 0.13) ** 2).clamp(0.05, 1).sqrt()
    stripe = 0.75 + 0.25 * torch.tanh(8 * torch.sin(14 * y))
    paint = colours(PAINTS, scene.occluder.tone)
    lit = lamp_colour * (0.9 * round_ * stripe)[:, None] + ambient[..., None] * stripe[:, None]
    return paint * lit + 0.12 * bell((1 - round_).mul_(9))[:, None] * lamp_colour, depth * scene.occluder["size"]


def _glasses(scene: Scene, turned: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Rims, bridge and bows on an ellipsoid around the skull, where rays meet it."""
    hair = scene.person.hair
    radii = torch.stack((hair.width, torch.ones_like(hair.width), hair.depth), 1)[..., None] * SHELL
    e = turned[:, 2, :, None] / radii
    a = [(turned[:, 0, i, None] * x + turned[:, 1, i, None] * y) / radii[:, i] for i in range(3)]
    ee, ae = (e * e).sum(1), a[0] * e[:, 0] + a[1] * e[:, 1] + a[2] * e[:, 2]
    inside = ae * ae - ee * (a[0] * a[0] + a[1] * a[1] + a[2] * a[2] - 1)
    t = (inside.clamp(min=0).sqrt() - ae) / ee
    u = [a[i] + t * e[:, i] for i in range(3)]
    side, size = u[0].abs(), scene.occluder.size[:, None]
    wide, high = LENS[0] * (0.7 + 0.3 * size), LENS[1] * (0.6 + 0.4 * size)
    across, down = ((side - LENS_AT[0]) / wide).square_(), ((u[1] - LENS_AT[1]) / high).square_()
    lens = 1 - torch.addcmul(across * across, down, down).sqrt_().sqrt_()
    rim = FRAME / 2 - (lens * high).abs()
    bridge = torch.minimum(FRAME / 2 - (u[1] + 0.05).abs(), LENS_AT[0] - wide - side + 0.01)
    bow = torch.minimum(FRAME / 2 - (u[1] + 0.04).abs(), side - LENS_AT[0] - wide)
    depth = torch.maximum(torch.maximum(rim, bridge), bow)
    depth = torch.where((inside > 0) & (u[2] > -0.1), depth, -1.0)
    _, lamp_colour, ambient = lamp(scene.light)
    paint = colours(PAINTS, scene.occluder.tone) * (0.6 * lamp_colour + ambient[..., None])
    return paint.expand(-1, -1, x.shape[1]), depth
