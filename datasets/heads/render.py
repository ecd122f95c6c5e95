"""Pictures of heads with their exact ground truth.

Letters: B rows, S side of a picture in pixels.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from worldmodel.datasets.heads.before import occlude
from worldmodel.datasets.heads.behind import background, body
from worldmodel.datasets.heads.landmarks import landmarks
from worldmodel.datasets.heads.paint import paint, shade
from worldmodel.datasets.heads.rays import meet, places, rotation
from worldmodel.datasets.heads.scene import Scene
from worldmodel.datasets.heads.shape import shape_of
from worldmodel.errors import UserError

TOGETHER = 1 << 15  # samples that are worked on at once: their numbers stay in a core's cache


@dataclass(frozen=True, slots=True)
class Rendered:
    """Coverages are shares of each pixel in 0..1. head: hair, skin and ears, whether or not something is before them;
    face: skin of it; occlusion: what is before it. landmarks: the 68 of iBUG in pixels, centres of pixels at whole
    numbers, whether or not they can be seen.
    """

    picture: Tensor  # [B, 3, S, S] fp32 in -1..1, sRGB
    head: Tensor  # [B, 1, S, S]
    face: Tensor  # [B, 1, S, S]
    occlusion: Tensor  # [B, 1, S, S]
    landmarks: Tensor  # [B, 68, 2]


@torch.no_grad()
def render(scene: Scene, size: int, view: Tensor | None = None, samples: int = 1) -> Rendered:
    """Draw B scenes.

    size: S, a multiple of 4. view: [B, 2, 3], from pixels of the picture to pixels of an S x S picture of the frame:
    what an aligned crop shows is drawn as exactly as the frame. samples: per side of a pixel. Row i does not depend on
    the other rows.
    """
    if size < 4 or size % 4 or not 1 <= samples <= 8:
        raise UserError(f"render: size {size} must be a multiple of 4, samples {samples} in [1, 8]")
    if view is not None and view.shape != (scene.rows, 2, 3):
        raise UserError(f"render: view must be [{scene.rows}, 2, 3], not {list(view.shape)}")
    together = max(1, TOGETHER // (size * samples) ** 2)
    parts = []
    for rows in torch.arange(scene.rows).split(together):
        some = None if view is None else view[rows]
        parts.append(_draw(scene.select(rows), size, some, samples))
    joined = (torch.cat([getattr(part, name) for part in parts]) for name in Rendered.__slots__)
    return Rendered(*joined)


@torch.no_grad()
def seen_landmarks(scene: Scene, size: int) -> Tensor:
    """The 68 landmarks of each frame [B, 68, 2] in its pixels, without drawing it."""
    shape = shape_of(scene.person.face, scene.person.hair, scene.expression)
    return places(scene.pose, landmarks(scene.person.face, scene.expression, shape)) * size - 0.5


def _draw(scene: Scene, size: int, view: Tensor | None, samples: int) -> Rendered:
    pose, person = scene.pose, scene.person
    frame_x, frame_y = _samples(size, view, samples, scene.rows)
    scale = pose.scale[:, None]
    x, y = (frame_x - pose.x[:, None]) / scale, (frame_y - pose.y[:, None]) / scale
    turned = rotation(pose)
    pixel = _pixel(size, view, samples, scene.rows) / scale
    shape = shape_of(person.face, person.hair, scene.expression)
    hits = meet(shape, turned, x, y, pixel)
    colour = body(scene, background(scene.background, frame_x, frame_y), x, y, pixel)
    lit = shade(paint(scene, hits, pixel), hits, scene.light, turned)
    colour = torch.where(hits.cover[:, None] > 0, colour + hits.cover[:, None] * (lit - colour), colour)
    before, cover = occlude(scene, turned, x, y, pixel)
    colour = torch.lerp(colour, before, cover[:, None])  # exact where nothing of it is left
    masks = torch.stack((hits.cover, hits.cover * (1 - hits.hair), cover), 1)
    side = size * samples
    layers = _mean(torch.cat((colour, masks), 1).unflatten(2, (side, side)), samples)
    picture = layers[:, :3].clamp(0, 1).sqrt() * 2 - 1
    points = places(pose, landmarks(person.face, scene.expression, shape)) * size - 0.5
    if view is not None:
        points = _invert(view, points)
    return Rendered(picture, layers[:, 3:4], layers[:, 4:5], layers[:, 5:6], points)


def _samples(size: int, view: Tensor | None, samples: int, rows: int) -> tuple[Tensor, Tensor]:
    """Places of all samples in sides of the frame, [B, N] each."""
    line = (torch.arange(size * samples) + 0.5) / samples - 0.5  # in pixels
    y, x = (part.flatten() for part in torch.meshgrid(line, line, indexing="ij"))
    if view is None:
        return ((x + 0.5) / size).expand(rows, -1), ((y + 0.5) / size).expand(rows, -1)
    x, y = (view[:, i, :1] * x + view[:, i, 1:2] * y + view[:, i, 2:] for i in range(2))
    return (x + 0.5) / size, (y + 0.5) / size


def _pixel(size: int, view: Tensor | None, samples: int, rows: int) -> Tensor:
    """The distance of samples in sides of the frame, [B, 1]."""
    if view is None:
        return torch.full((rows, 1), 1 / (size * samples))
    return torch.linalg.det(view[:, :, :2]).abs().sqrt()[:, None] / (size * samples)


def _mean(layers: Tensor, samples: int) -> Tensor:
    """Means of blocks of samples [B, C, S * samples, S * samples] -> [B, C, S, S]."""
    shifts = [(i, j) for i in range(samples) for j in range(samples)]
    return sum((layers[..., i::samples, j::samples] for i, j in shifts), torch.zeros(())) / len(shifts)


def _invert(view: Tensor, points: Tensor) -> Tensor:
    """Points [B, n, 2] of the frame as pixels of the view."""
    moved = (points - view[:, None, :, 2]).double()
    return torch.linalg.solve(view[:, None, :, :2].double(), moved[..., None])[..., 0].float()
