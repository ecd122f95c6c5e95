"""Where parallel rays meet a head, and the landmarks: the camera is orthographic. Letters: B rows, N rays."""

from dataclasses import dataclass

import torch
from torch import Tensor

from worldmodel.datasets.heads.scene import Pose
from worldmodel.datasets.heads.shape import RADIUS, Shape

STEPS = 7
BEHIND = 0.4  # sine of the angle behind the middle of an ellipsoid up to which bulges are looked for


@dataclass(frozen=True, slots=True)
class Hits:
    """Where rays end, in the frame of the head; those that just miss it end where they come nearest."""

    cover: Tensor  # [B, N] in 0..1: 1 for a hit, and falling to 0 over a pixel beside the head
    direction: tuple[Tensor, Tensor, Tensor]  # [B, N] each, u
    normal: tuple[Tensor, Tensor, Tensor]  # [B, N] each, unit
    hair: Tensor  # [B, N] in 0..1
    open: Tensor  # [B, N] in 0..1


def rotation(pose: Pose) -> Tensor:
    """From the frame of the head to that of the picture, [B, 3, 3]: pitch first, then yaw, then roll."""
    cos, sin = (torch.stack((part(pose.pitch), part(pose.yaw), part(pose.roll))) for part in (torch.cos, torch.sin))
    one, zero = torch.ones_like(cos[0]), torch.zeros_like(cos[0])

    def matrix(*rows: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        return torch.stack([torch.stack(row, -1) for row in rows], -2)

    pitch = matrix((one, zero, zero), (zero, cos[0], sin[0]), (zero, -sin[0], cos[0]))
    yaw = matrix((cos[1], zero, sin[1]), (zero, one, zero), (-sin[1], zero, cos[1]))
    roll = matrix((cos[2], -sin[2], zero), (sin[2], cos[2], zero), (zero, zero, one))
    return roll @ (yaw @ pitch)


def places(pose: Pose, points: Tensor) -> Tensor:
    """Where points [B, n, 3] of the head are seen, [B, n, 2] in sides of the frame, (0, 0) its upper left corner."""
    seen = (rotation(pose)[:, None, :2] * points[:, :, None]).sum(-1) * pose.scale[:, None, None]
    return seen + torch.stack((pose.x, pose.y), -1)[:, None]


def meet(shape: Shape, turned: Tensor, x: Tensor, y: Tensor, pixel: Tensor) -> Hits:
    """First hits of the rays through (x, y) [B, N], from the head's centre in half heights of the head.

    turned: `rotation`, [B, 3, 3]. pixel: the distance of neighbouring rays, [B, 1].

    In coordinates where the ellipsoid is a unit sphere a ray is q = a + t e, and |q| is convex along it, so that
    Newton's steps from outside stop before a sphere's surface; bulges shorten them.
    """
    e = turned[:, 2, :, None] / shape.radii  # [B, 3, 1], towards the viewer
    a = [(turned[:, 0, i, None] * x + turned[:, 1, i, None] * y) / shape.radii[:, i] for i in range(3)]
    ee = (e * e).sum(1)
    ae = a[0] * e[:, 0] + a[1] * e[:, 1] + a[2] * e[:, 2]
    aa = a[0] * a[0] + a[1] * a[1] + a[2] * a[2]
    inside = ae * ae - ee * (aa - shape.largest**2)
    t = (inside.clamp(min=0).sqrt_() - ae) / ee
    unit = ee.sqrt()
    least, most, behind = 0.45 * unit, 8 * unit, -BEHIND * unit
    q, length, gap, nearest, moved = a, aa, aa, torch.full_like(aa, 9.0), None
    before = gap
    for step in range(STEPS + 1):
        q = [torch.addcmul(a[i], t, e[:, i]) for i in range(3)]
        length = torch.addcmul(q[0] * q[0], q[1], q[1]).addcmul_(q[2], q[2]).sqrt_()
        near = (length + q[2]).clamp_(min=1e-3).reciprocal_()
        gap = length - shape.at(q[0] * near, q[1] * near, slice(RADIUS, RADIUS + 1))[:, 0]
        nearest = torch.minimum(nearest, gap)
        if step < STEPS:
            slope = torch.addcmul(ae, t, ee).div_(length)
            steep = slope.maximum(least)
            if moved is not None:  # where the radius grows along the ray, as the last step has shown
                grown = torch.where(moved.abs() > 1e-5, (before - gap) / moved, 0.0)
                steep = steep.maximum(grown.clamp_(max=most))
            moved = torch.where(slope > behind, (0.9 * gap).div_(steep), 0.0)
            t, before = t - moved, gap
    beside = nearest - 0.02
    return _surface(shape, q, length, (1 - beside * (0.8 / pixel)).clamp_(0, 1))


def _surface(shape: Shape, q: list[Tensor], length: Tensor, cover: Tensor) -> Hits:
    """Direction, normal and what the map says where the points q of the unit sphere's frame are."""
    u = [part / length for part in q]
    near = 1 / (1 + u[2]).clamp(min=1e-3)
    s_x, s_y = u[0] * near, u[1] * near
    slope_x, slope_y, hair, light = shape.at(s_x, s_y, slice(1, 5)).unbind(1)
    hair = hair.clamp(0, 1)  # bilinear weights may sum to a little more than 1
    # The gradient of |q| - R(s(q)): ds_x / dq = (x / |q| - s_x (u + z / 1)) / (1 + u_z) / |q| up to the radius.
    scale = near / length
    slope_x, slope_y = slope_x * scale, slope_y * scale
    along = slope_x * s_x + slope_y * s_y
    n = [
        (u[0] - slope_x + along * u[0]) / shape.radii[:, 0],
        (u[1] - slope_y + along * u[1]) / shape.radii[:, 1],
        (u[2] + along * (u[2] + 1)) / shape.radii[:, 2],
    ]
    norm = torch.rsqrt((n[0] * n[0] + n[1] * n[1] + n[2] * n[2]).clamp(min=1e-12))
    return Hits(cover, (u[0], u[1], u[2]), (n[0] * norm, n[1] * norm, n[2] * norm), hair, light)
