"""Factorised 3-D rotary positions over (frame, row, column) of a latent grid."""

import torch
from torch import Tensor, nn

from worldmodel.kernels.rope import Pairing, rotate


class Rope3D:
    """Angles for any frame index, without a table: computed in fp64 and reduced mod 2 pi before the cast to fp32.

    The head is split as in Wan: 2 * (D // 6) dimensions each for rows and columns, the rest for time; each part has its
    own geometric frequencies theta^(-2 i / part).
    """

    def __init__(self, head_dim: int, grid: tuple[int, int], theta: float = 10000.0, pairing: Pairing = "half") -> None:
        space = 2 * (head_dim // 6)
        self.parts, self.grid, self.theta = (head_dim - 2 * space, space, space), grid, theta
        self.pairing: Pairing = pairing

    def _angles(self, positions: Tensor, part: int) -> Tensor:
        exponent = torch.arange(0, part, 2, dtype=torch.float64, device=positions.device) / max(part, 1)
        return positions.double()[..., None] * self.theta**-exponent

    def table(self, frames: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and sines for frames [B, F] int64 -> two of [B, 1, F * n, D / 2] fp32."""
        rows, columns = self.grid
        time = self._angles(frames, self.parts[0])[:, :, None, None]
        row = self._angles(torch.arange(rows, device=frames.device), self.parts[1])[:, None]
        column = self._angles(torch.arange(columns, device=frames.device), self.parts[2])[None]
        shape = (*frames.shape, rows, columns)
        angle = torch.cat([a.expand(*shape, -1) for a in (time, row, column)], -1)
        angle = torch.remainder(angle, 2 * torch.pi).flatten(1, 3)[:, None]
        return angle.cos().float(), angle.sin().float()

    def rotate(self, x: Tensor, frames: Tensor) -> Tensor:
        """x [..., B, h, F * n, D] rotated to frames [B, F]."""
        return rotate(x, self.table(frames), self.pairing)

    def shift(self, x: Tensor, frames: Tensor) -> Tensor:
        """Rotated x [..., B, h, F * n, D] moved in time by frames [B, F]; rows and columns stay."""
        return rotate(x, self.shift_table(frames), self.pairing)

    def shift_table(self, frames: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and sines of a move in time by frames [B, F] int64, two of [B, 1, F * n, D / 2] fp32."""
        time = torch.remainder(self._angles(frames, self.parts[0]), 2 * torch.pi)
        angle = nn.functional.pad(time, (0, (self.parts[1] + self.parts[2]) // 2))
        angle = angle.repeat_interleave(self.grid[0] * self.grid[1], 1)[:, None]
        return angle.cos().float(), angle.sin().float()
