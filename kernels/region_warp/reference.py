"""Paste a generated patch back into a frame: inverse-affine bilinear warp, soft mask, blend, round.

Only pixels of a region are read and written; a pixel that the warped mask does not reach keeps its bits. Letters: B
rows, H W of the frame, h w of the patch, C colours. Coordinates are (x, y) of pixel centres, the first one at (0, 0).
"""

from collections.abc import Iterator

import torch
from torch import Tensor


def region_warp(
    frame: Tensor, patch: Tensor, mask: Tensor, inverse: Tensor, corner: Tensor, size: tuple[int, int]
) -> None:
    """Blend the warped patch into the frame, in place.

    frame: [B, H, W, C] uint8. patch: [B, h, w, C] fp32 in 0..255 (finite where it is seen). mask: [B, h, w] fp32 in
    0..1, how much of the patch is seen. inverse: [B, 2, 3] fp32, from (x, y, 1) of the frame to (x, y) of the patch.
    corner: [B, 2] int32, the (x, y) of each row's region; size: (lines, columns) of all regions; what of a region lies
    outside the frame is not there. Beyond its border the patch goes on as its border, the mask is 0. A pixel f becomes
    floor(f + m (p - f) + 0.5) within 0..255 where m > 0, and stays where m is 0.
    """
    for b, (x0, y0, x1, y1) in boxes(frame, corner, size):
        y, x = torch.meshgrid(
            torch.arange(y0, y1, device=frame.device, dtype=torch.float32),
            torch.arange(x0, x1, device=frame.device, dtype=torch.float32),
            indexing="ij",
        )
        m = inverse[b].float()
        u, v = m[0, 0] * x + m[0, 1] * y + m[0, 2], m[1, 0] * x + m[1, 1] * y + m[1, 2]
        region = frame[b, y0:y1, x0:x1]
        new, seen = _samples(patch[b].float(), mask[b].float(), u, v)
        old = region.float()
        blended = torch.floor(old + seen * (new - old) + 0.5).clamp(0, 255).to(torch.uint8)
        region.copy_(torch.where(seen > 0, blended, region))


def boxes(frame: Tensor, corner: Tensor, size: tuple[int, int]) -> Iterator[tuple[int, tuple[int, int, int, int]]]:
    """What of each row's region lies in the frame, (x0, y0, x1, y1); rows of which nothing does are left out."""
    height, width = frame.shape[1:3]
    for b, (x, y) in enumerate(corner.tolist()):
        x0, y0, x1, y1 = max(x, 0), max(y, 0), min(x + size[1], width), min(y + size[0], height)
        if x0 < x1 and y0 < y1:
            yield b, (x0, y0, x1, y1)


def _samples(patch: Tensor, mask: Tensor, u: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Bilinear samples of a patch [h, w, C] and its mask [h, w] at (u, v) [...]; outside, the patch's border and 0."""
    height, width = mask.shape
    both = torch.cat((patch, mask[..., None]), -1).flatten(0, 1)
    left, top = torch.floor(u), torch.floor(v)
    a, b = (u - left)[..., None], (v - top)[..., None]
    columns, rows = ([_inside(at, size), _inside(at + 1, size)] for at, size in ((left, width), (top, height)))

    def at(row: tuple[Tensor, Tensor], column: tuple[Tensor, Tensor]) -> Tensor:
        (y, in_y), (x, in_x) = row, column
        found = both.index_select(0, (y * width + x).flatten()).view(*u.shape, -1)
        found[..., -1] = torch.where(in_y & in_x, found[..., -1], 0)
        return found

    lines = []
    for row in rows:
        first, second = (at(row, column) for column in columns)
        lines.append(first + a * (second - first))
    found = lines[0] + b * (lines[1] - lines[0])
    return found[..., :-1], found[..., -1:]


def _inside(at: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Places as indices below `size`, the nearest ones for those outside, and which are not outside."""
    return at.nan_to_num().clamp(0, size - 1).long(), (at >= 0) & (at < size)
