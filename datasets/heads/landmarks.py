"""The 68 landmarks of iBUG on a procedural face, where its features are painted."""

import math

import torch
from torch import Tensor

from worldmodel.datasets.heads.paint import brow_line, eye_lines, mouth_lines
from worldmodel.datasets.heads.person import Face
from worldmodel.datasets.heads.scene import Expression
from worldmodel.datasets.heads.shape import Shape


def landmarks(face: Face, expression: Expression, shape: Shape) -> Tensor:
    """[B, 68, 3] in the frame of the head, half heights of it."""
    f, e = face, expression
    rows, device = face.rows, face.jaw.device

    def line(*values: float) -> Tensor:
        return torch.tensor(values, device=device).expand(rows, -1)

    angle = torch.linspace(-1, 1, 17, device=device) * math.radians(82)
    jaw_x, jaw_y = 0.97 * torch.sin(angle).expand(rows, -1), 0.06 + 0.88 * torch.cos(angle).expand(rows, -1)
    jaw_y = torch.minimum(jaw_y, 0.985 * (1 - jaw_x * jaw_x).sqrt())

    along = line(-0.95, -0.5, 0.0, 0.45, 0.9)  # from the inner to the outer end
    brow_x = f["eye_x"] + along * f["brow_length"]
    brow_y, _ = brow_line(face, expression, brow_x)

    tip = f["eye_y"] + f["nose_length"]
    bridge_y = torch.lerp(f["eye_y"] - 0.02, tip - 0.01, line(0.0, 1 / 3, 2 / 3, 1.0))
    base_x = line(-1.0, -0.5, 0.0, 0.5, 1.0) * f["nose_width"] * 0.9
    base_y = tip + 0.075 + 0.02 * line(-1.0, 0.3, 1.0, 0.3, -1.0)

    across = line(-1.0, -0.4, 0.4, 1.0)
    out = f["eye_x"] + across * f["eye_width"]
    lids = eye_lines(face, expression, out, torch.zeros_like(out))
    level = f["eye_y"] - f["eye_tilt"] * across * f["eye_width"]
    upper, lower = level + lids.upper, level + lids.lower
    # Corner, upper lid, corner, lower lid; the picture's left eye begins at its outer corner, the right at its inner.
    right_x = torch.cat((out[:, [0, 1, 2, 3]], out[:, [2, 1]]), 1)
    right_y = torch.cat((upper[:, [0, 1, 2, 3]], lower[:, [2, 1]]), 1)
    left_x = -torch.cat((out[:, [3, 2, 1, 0]], out[:, [1, 2]]), 1)
    left_y = torch.cat((upper[:, [3, 2, 1, 0]], lower[:, [1, 2]]), 1)

    half = f["mouth_width"] * (1 + 0.2 * e["smile"].clamp(min=0)) * (1 - 0.35 * e["round"])
    outer = mouth_lines(face, expression, (outer_x := half * line(-1.0, -0.62, -0.28, 0.0, 0.28, 0.62, 1.0)))
    below = mouth_lines(face, expression, (below_x := half * line(0.62, 0.28, 0.0, -0.28, -0.62)))
    inner = mouth_lines(face, expression, (inner_x := half * line(-0.85, -0.3, 0.0, 0.3, 0.85)))
    under = mouth_lines(face, expression, (under_x := half * line(0.3, 0.0, -0.3)))

    x = (jaw_x, -brow_x.flip(1), brow_x, torch.zeros_like(bridge_y), base_x, left_x, right_x,
         outer_x, below_x, inner_x, under_x)  # fmt: skip
    y = (jaw_y, brow_y.flip(1), brow_y, bridge_y, base_y, left_y, right_y,
         outer.upper, below.lower, inner.top, under.bottom)  # fmt: skip
    return shape.lift(torch.cat(x, 1), torch.cat(y, 1))
