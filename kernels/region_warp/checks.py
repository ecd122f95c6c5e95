"""What `kernels check` proves of pasting a patch into a frame."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from worldmodel.kernels.check.declare import Case, Configuration, OpCheck, OpChecks, padded

from . import REGION_WARP, Paste, reference, triton

Size = tuple[int, int]


def _draw(frame: Size, patch: Size, angle: float, rng: torch.Generator) -> tuple[Tensor, ...]:
    """Two rows: turned and scaled about the middle of the frame, and moved by whole pixels and a half."""
    pixels = torch.randint(0, 256, (2, *frame, 3), generator=rng, dtype=torch.uint8)
    new = padded(torch.rand(2, *patch, 3, generator=rng) * 300 - 20)  # beyond what a pixel holds, too
    mask = padded((torch.rand(2, *patch, generator=rng) * 1.5 - 0.25).clamp(0, 1))
    zoom, c, s = patch[0] / frame[0] * 1.3, math.cos(angle), math.sin(angle)
    x, y = frame[1] / 2, frame[0] / 2
    turned = [zoom * c, -zoom * s, patch[1] / 2 - zoom * (c * x - s * y)]
    turned += [zoom * s, zoom * c, patch[0] / 2 - zoom * (s * x + c * y)]
    inverse = torch.tensor([turned, [1.0, 0.0, -2.0, 0.0, 1.0, -1.5]]).view(2, 2, 3)
    return pixels, new, mask, inverse


def _case(frame: Size, patch: Size, corner: tuple[Size, Size], size: Size, angle: float, quick: bool) -> Case:
    corners = torch.tensor(corner, dtype=torch.int32)

    def ours(pixels: Tensor, new: Tensor, mask: Tensor, inverse: Tensor) -> Tensor:
        out = padded(pixels)
        REGION_WARP(Paste(out, new, mask, inverse, corners, size), "triton")
        return out

    def right(pixels: Tensor, new: Tensor, mask: Tensor, inverse: Tensor) -> Tensor:
        out = pixels.clone()
        reference.region_warp(out, new, mask, inverse, corners, size)
        return out

    name = f"{patch[0]} x {patch[1]} into {size[0]} x {size[1]} of {frame[0]} x {frame[1]}, {angle:g} rad"
    return Case(name, lambda rng, dtype: _draw(frame, patch, angle, rng), ours, right, exact=True, quick=quick)


def cases() -> Sequence[Case]:
    return (
        _case((1, 1), (1, 1), ((0, 0), (0, 0)), (1, 1), 0.0, True),
        _case((9, 41), (5, 7), ((2, 1), (-3, -2)), (6, 33), 0.3, True),  # the second begins outside the frame
        _case((13, 203), (64, 64), ((0, 0), (190, 10)), (20, 300), -1.2, False),  # larger than what is there
        _case((40, 300), (31, 17), ((20, 5), (300, 40)), (16, 256), 2.9, False),  # the second is all outside
    )


def configurations() -> Sequence[Configuration]:
    signature = {}
    for a in triton.region_warp_kernel.arg_names:
        kind = "*fp32" if a.endswith("_pointer") else "i32"
        kind = {"frame_pointer": "*u8", "corner_pointer": "*i32"}.get(a, kind)
        signature[a] = "constexpr" if a in ("COLOURS", "BLOCK") else kind
    constants = {"COLOURS": 3, "BLOCK": triton.BLOCK}
    return (Configuration("region warp", triton.region_warp_kernel, signature, constants),)


def opchecks() -> Sequence[OpCheck]:
    from . import ops  # noqa: F401  registers the operator

    def arguments(rng: torch.Generator) -> tuple[Any, ...]:
        pixels, new, mask, inverse = _draw((4, 6), (3, 3), 0.1, rng)
        return pixels, new.contiguous(), mask.contiguous(), inverse, torch.zeros(2, 2, dtype=torch.int32), [3, 5]

    return (OpCheck(torch.ops.worldmodel.region_warp.default, arguments),)


CHECKS = OpChecks("region_warp", cases, configurations, opchecks)
