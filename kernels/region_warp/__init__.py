"""Paste a generated patch back into a frame, on its region only."""

from dataclasses import dataclass

import torch
from torch import Tensor

from worldmodel.kernels import arguments, triton_needs
from worldmodel.kernels.arguments import FLOATS
from worldmodel.kernels.backend import Backend, Op

from . import reference, sampled

__all__ = ["REGION_WARP", "Paste", "region_warp"]


@dataclass(frozen=True, slots=True)
class Paste:
    """A call of `region_warp`."""

    frame: Tensor  # [B, H, W, C] uint8
    patch: Tensor  # [B, h, w, C]
    mask: Tensor  # [B, h, w]
    inverse: Tensor  # [B, 2, 3]
    corner: Tensor  # [B, 2] int32
    size: tuple[int, int]

    @property
    def device(self) -> torch.device:
        return self.frame.device


def _reasons(call: Paste) -> tuple[str, ...]:
    found = list(triton_needs.reasons(call.device))
    wanted = {"frame": torch.uint8, "patch": torch.float32, "mask": torch.float32, "inverse": torch.float32}
    for name, kind in (wanted | {"corner": torch.int32}).items():
        x: Tensor = getattr(call, name)
        if x.dtype != kind or x.device != call.device:
            found.append(f"{name} is {x.dtype} on {x.device}, not {kind} on {call.device}")
    found += [f"{name} is not contiguous" for name in ("inverse", "corner") if not getattr(call, name).is_contiguous()]
    return tuple(found)


def _triton(call: Paste) -> None:
    from . import ops  # noqa: F401  registers the operator

    torch.ops.worldmodel.region_warp(call.frame, call.patch, call.mask, call.inverse, call.corner, call.size)


def _no_floats(call: Paste) -> tuple[str, ...]:
    kinds = {"patch": call.patch.dtype, "mask": call.mask.dtype, "inverse": call.inverse.dtype}
    return tuple(f"{name} is {kind}, not {torch.float32}" for name, kind in kinds.items() if kind != torch.float32)


def _never(call: object) -> tuple[str, ...]:
    return ()


REGION_WARP = Op(
    "region_warp",
    (
        Backend("triton", _reasons, _triton, auto=("cuda",)),
        Backend(
            "grid_sample",
            _no_floats,
            lambda c: sampled.region_warp(c.frame, c.patch, c.mask, c.inverse, c.corner, c.size),
            auto=("cpu",),
        ),
        Backend(
            "reference",
            _never,
            lambda c: reference.region_warp(c.frame, c.patch, c.mask, c.inverse, c.corner, c.size),
        ),
    ),
)


def region_warp(
    frame: Tensor, patch: Tensor, mask: Tensor, inverse: Tensor, corner: Tensor, size: tuple[int, int]
) -> None:
    """Warp a patch into the frame, blend it through its mask and round, in place and on the region only.

    frame: [B, H, W, C] uint8; patch: [B, h, w, C] fp32 in 0..255, finite where it is seen; mask: [B, h, w] fp32 in
    0..1. inverse: [B, 2, 3] fp32 from (x, y, 1) of the frame to (x, y) of the patch, pixel centres at whole numbers.
    corner: [B, 2] int32 (x, y), size: (lines, columns) of the regions. Bilinear; pixels that the mask does not reach,
    and all outside the region, keep their bits. The patch may have any strides; nothing waits for the device.
    No gradients. ValueError names an argument that does not fit.
    """
    op = "region_warp"
    sizes = arguments.tensors(
        op, ("frame", frame, "BHWC", (torch.uint8,)), ("patch", patch, "BhwC", FLOATS), ("mask", mask, "Bhw", FLOATS),
        ("inverse", inverse, "B23", FLOATS), ("corner", corner, "B2", (torch.int32,)),
    )  # fmt: skip
    if not sizes["h"] or not sizes["w"]:
        raise ValueError(f"{op}: patch is empty, {list(patch.shape)}")
    if not isinstance(size, tuple) or len(size) != 2:
        raise ValueError(f"{op}: size is {size!r}, not (lines, columns)")
    for side in size:
        arguments.whole(op, "a side of size", side)
    if frame.is_meta:
        raise ValueError(f"{op}: frame is on {frame.device}, where there is nothing to paste into")
    arguments.written(op, frame=frame)
    arguments.without_gradients(op, patch=patch, mask=mask, inverse=inverse)
    REGION_WARP(Paste(frame, patch, mask, inverse, corner, size))
