"""Rotary position embedding (Su et al., 2104.09864) with both pairings found in pretrained models, over (frame, row,
column) of a latent grid."""

from typing import Literal, get_args

import torch
from torch import Tensor
from torch.nn import functional as F

from worldmodel.kernels import arguments

Pairing = Literal["interleaved", "half"]
PAIRINGS: tuple[Pairing, ...] = get_args(Pairing)
Table = tuple[Tensor, Tensor]  # cosines and sines


def rope_table(frames: Tensor, grid: tuple[int, int], head_dim: int, theta: float = 10000.0) -> Table:
    """Cosines and sines of tokens in frames [B, F] int64 of rows and columns `grid`, two of [B, F * n, D / 2] fp32.

    The head is split as in Wan: 2 * (D // 6) dimensions each for rows and columns, the rest for time; each part has its
    own geometric frequencies theta^(-2 i / part). Angles are int64 positions times fp64 frequencies, reduced mod 2 pi
    before anything is rounded to fp32, so that frame 100,000 is as exact as frame 0. ValueError for other frames, no
    rows or columns, and heads that do not make pairs.
    """
    _check("rope_table", frames, head_dim)
    for side in grid:
        arguments.whole("rope_table", "a side of grid", side, 1)
    space, (rows, columns) = _space(head_dim), grid
    time = _angles(frames, head_dim - 2 * space, theta)[:, :, None, None]
    row = _angles(torch.arange(rows, device=frames.device), space, theta)[:, None]
    column = _angles(torch.arange(columns, device=frames.device), space, theta)[None]
    shape = (*frames.shape, rows, columns, -1)
    return _table(torch.cat([a.expand(shape) for a in (time, row, column)], -1).flatten(1, 3))


def move_table(frames: Tensor, head_dim: int, theta: float = 10000.0) -> Table:
    """Cosines and sines of a move in time by frames [B, F] int64, whatever the row and column: [B, F, D / 2] fp32.
    ValueError as `rope_table`."""
    _check("move_table", frames, head_dim)
    space = _space(head_dim)
    return _table(F.pad(_angles(frames, head_dim - 2 * space, theta), (0, space)))


def _check(op: str, frames: Tensor, head_dim: int) -> None:
    arguments.tensors(op, ("frames", frames, "BF", arguments.LONG))
    arguments.whole(op, "head_dim", head_dim, 2)
    if head_dim % 2:
        raise ValueError(f"{op}: head_dim is {head_dim}, which does not make pairs")


def _space(head_dim: int) -> int:
    """Dimensions of a head for rows, and as many for columns."""
    return 2 * (head_dim // 6)


def _angles(positions: Tensor, part: int, theta: float) -> Tensor:
    exponent = torch.arange(0, part, 2, dtype=torch.float64, device=positions.device) / max(part, 1)
    return positions.double()[..., None] * theta**-exponent


def _table(angle: Tensor) -> Table:
    angle = torch.remainder(angle, 2 * torch.pi)
    return angle.cos().float(), angle.sin().float()


def rotate(x: Tensor, table: tuple[Tensor, Tensor], pairing: Pairing) -> Tensor:
    """Rotate the pairs of the last axis.

    x: [..., N, D]. table: cosines and sines, broadcastable to [..., N, D / 2]. pairing: "interleaved" rotates
    (x[2i], x[2i + 1]) as Wan does, "half" rotates (x[i], x[i + D / 2]) as Llama does. Returns the shape and type of x.
    ValueError for another pairing.
    """
    arguments.one_of("rotate", "pairing", pairing, PAIRINGS)
    cos, sin = table
    if pairing == "interleaved":
        a, b = x.unflatten(-1, (-1, 2)).unbind(-1)
        return torch.stack((a * cos - b * sin, a * sin + b * cos), -1).flatten(-2).to(x.dtype)
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, a * sin + b * cos), -1).to(x.dtype)
