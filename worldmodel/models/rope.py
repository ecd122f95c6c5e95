"""Factorised 3-D rotary positions over (frame, row, column) of a latent grid."""

from torch import Tensor

from worldmodel.kernels.rope import Pairing, Table, move_table, rope_table, rotate


class Rope3D:
    """A model's rotation for any frame index: kernels/rope has the angles and how a head is split among the axes."""

    def __init__(self, head_dim: int, grid: tuple[int, int], theta: float = 10000.0, pairing: Pairing = "half") -> None:
        self.head_dim, self.grid, self.theta = head_dim, grid, theta
        self.pairing: Pairing = pairing

    def table(self, frames: Tensor) -> Table:
        """Cosines and sines for frames [B, F] int64 -> two of [B, 1, F * n, D / 2] fp32."""
        cos, sin = rope_table(frames, self.grid, self.head_dim, self.theta)
        return cos[:, None], sin[:, None]

    def rotate(self, x: Tensor, frames: Tensor) -> Tensor:
        """x [..., B, h, F * n, D] rotated to frames [B, F]."""
        return rotate(x, self.table(frames), self.pairing)

    def shift(self, x: Tensor, frames: Tensor) -> Tensor:
        """Rotated x [..., B, h, F * n, D] moved in time by frames [B, F]; rows and columns stay."""
        return rotate(x, self.shift_table(frames), self.pairing)

    def shift_table(self, frames: Tensor) -> Table:
        """Cosines and sines of a move in time by frames [B, F] int64, two of [B, 1, F * n, D / 2] fp32."""
        tokens = self.grid[0] * self.grid[1]
        cos, sin = move_table(frames, self.head_dim, self.theta)
        return cos.repeat_interleave(tokens, 1)[:, None], sin.repeat_interleave(tokens, 1)[:, None]
