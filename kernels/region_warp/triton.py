# pyright: reportCallIssue=false
"""Warp, mask, blend and round in one pass over the region; nothing else of the frame is read or written."""

import triton
import triton.language as tl
from torch import Tensor

BLOCK = 256  # pixels of a program, of one line


@triton.jit
def _at(pointer, x, y, height, width, stride_y, stride_x, here, ZERO: tl.constexpr):
    """Values of an image at whole coordinates given as floats; outside, its border or zero."""
    column = tl.minimum(tl.maximum(x, 0.0), (width - 1).to(tl.float32)).to(tl.int32)
    line = tl.minimum(tl.maximum(y, 0.0), (height - 1).to(tl.float32)).to(tl.int32)
    if ZERO:
        here = here & (x >= 0) & (x < width) & (y >= 0) & (y < height)
    return tl.load(pointer + line * stride_y + column * stride_x, mask=here, other=0.0).to(tl.float32)


@triton.jit
def _sample(pointer, u, v, height, width, stride_y, stride_x, here, ZERO: tl.constexpr):
    left, top = tl.floor(u), tl.floor(v)
    a, b = u - left, v - top
    nw = _at(pointer, left, top, height, width, stride_y, stride_x, here, ZERO)
    ne = _at(pointer, left + 1, top, height, width, stride_y, stride_x, here, ZERO)
    sw = _at(pointer, left, top + 1, height, width, stride_y, stride_x, here, ZERO)
    se = _at(pointer, left + 1, top + 1, height, width, stride_y, stride_x, here, ZERO)
    above, below = nw + a * (ne - nw), sw + a * (se - sw)
    return above + b * (below - above)


@triton.jit
def region_warp_kernel(
    frame_pointer, patch_pointer, mask_pointer, inverse_pointer, corner_pointer,
    height, width, columns, patch_height, patch_width,
    frame_b, frame_y, frame_x, frame_c, patch_b, patch_y, patch_x, patch_c, mask_b, mask_y, mask_x,
    COLOURS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Grid (tiles of a line, lines, rows)."""
    b = tl.program_id(2).to(tl.int64)
    across = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(corner_pointer + b * 2) + across
    y = tl.load(corner_pointer + b * 2 + 1) + tl.program_id(1)
    here = (across < columns) & (x >= 0) & (x < width) & (y >= 0) & (y < height)
    m = inverse_pointer + b * 6
    right, down = x.to(tl.float32), y.to(tl.float32)
    u = tl.load(m) * right + tl.load(m + 1) * down + tl.load(m + 2)
    v = tl.load(m + 3) * right + tl.load(m + 4) * down + tl.load(m + 5)
    seen = _sample(mask_pointer + b * mask_b, u, v, patch_height, patch_width, mask_y, mask_x, here, True)
    here = here & (seen > 0)
    for colour in tl.static_range(COLOURS):
        place = frame_pointer + b * frame_b + y.to(tl.int64) * frame_y + x * frame_x + colour * frame_c
        old = tl.load(place, mask=here, other=0).to(tl.float32)
        source = patch_pointer + b * patch_b + colour * patch_c
        new = _sample(source, u, v, patch_height, patch_width, patch_y, patch_x, here, False)
        blended = tl.floor(old + seen * (new - old) + 0.5)
        tl.store(place, tl.minimum(tl.maximum(blended, 0.0), 255.0).to(tl.uint8), mask=here)


def region_warp(frame: Tensor, patch: Tensor, mask: Tensor, inverse: Tensor, corner: Tensor, size: list[int]) -> None:
    """As the reference."""
    (batch, height, width, colours), (lines, columns) = frame.shape, size
    if batch and lines and columns and colours:
        region_warp_kernel[(triton.cdiv(columns, BLOCK), lines, batch)](
            frame, patch, mask, inverse, corner, height, width, columns, *patch.shape[1:3],
            *frame.stride(), *patch.stride(), *mask.stride(), COLOURS=colours, BLOCK=BLOCK, num_warps=4,
        )  # fmt: skip
