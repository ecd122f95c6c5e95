"""Procedural things before real faces, with exact masks: the occluders of the rendered heads on aligned regions."""

from dataclasses import replace

import torch
from torch import Tensor

from worldmodel import noise
from worldmodel.datasets.heads.before import occlude
from worldmodel.datasets.heads.motion import Motion
from worldmodel.datasets.heads.person import Person
from worldmodel.datasets.heads.rays import rotation
from worldmodel.face.region import PADDING

HEAD = 0.92 / (1 + 2 * PADDING)  # half the height of a head in sides of a region, about
MIDDLE = 0.5, 0.45  # of the head in a region
PEOPLE = 1 << 20  # heads that give size and light to what is before them


@torch.no_grad()
def occluders(seed: Tensor, moments: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Moving occluders before frontal heads that fill aligned regions [size, size].

    seed: [B] int64. moments: [B, T] seconds. Returns their colours [B, T, 3, S, S] in -1..1 and how much of each pixel
    they cover [B, T, 1, S, S] in 0..1.
    """
    length = moments.shape[1]
    who = (noise.uniform(seed, torch.zeros(len(seed), 1, dtype=torch.int64), 0)[:, 0].double() * PEOPLE).long()
    scene = Motion(seed, 1.0).scene(Person.number(who), moments)
    pose = scene.pose
    still = {"scale": HEAD, "x": MIDDLE[0], "y": MIDDLE[1], "roll": 0.0}
    upright = {name: torch.full_like(pose.yaw, value) for name, value in still.items()}
    pose = replace(pose, **upright, yaw=0.4 * pose.yaw, pitch=0.4 * pose.pitch)
    scene = replace(scene, pose=pose)
    line = (torch.arange(size) + 0.5) / size
    y, x = (part.flatten().expand(scene.rows, -1) for part in torch.meshgrid(line, line, indexing="ij"))
    pixel = torch.full((scene.rows, 1), 1 / (size * HEAD))
    colour, cover = occlude(scene, rotation(pose), (x - MIDDLE[0]) / HEAD, (y - MIDDLE[1]) / HEAD, pixel)
    shown = colour.clamp(0, 1).sqrt() * 2 - 1
    return (part.unflatten(-1, (size, size)).unflatten(0, (-1, length)) for part in (shown, cover[:, None]))  # pyright: ignore[reportReturnType]
