"""Fourier neural operator in one dimension (Li et al., 2010.08895): a one-step model of periodic fields.

Each layer multiplies the lowest Fourier modes by learned complex matrices and adds a pointwise linear map; the network
predicts the change of the field. It commutes with shifts along the interval, as the equations of the playground do.

Letters: B rows, C channels of the field, N grid points, D width, m modes kept.
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from worldmodel.errors import UserError

from .one_step import OneStep


@dataclass(frozen=True, kw_only=True)
class FNOConfig:
    """points: N. modes: Fourier modes that a layer mixes, the mean among them. hidden: width of the last, pointwise
    layer."""

    points: int
    channels: int = 1
    width: int = 32
    modes: int = 16
    depth: int = 4
    hidden: int = 64

    def __post_init__(self) -> None:
        for name in ("points", "channels", "width", "modes", "depth", "hidden"):
            if getattr(self, name) < 1:
                raise UserError(f"FNO: {name} must be at least 1, not {getattr(self, name)}")
        if self.modes > self.points // 2 + 1:
            raise UserError(f"FNO: a grid of {self.points} points has {self.points // 2 + 1} modes, not {self.modes}")

    def build(self) -> "FNO":
        """A new operator with random weights (drawn from torch's global generator)."""
        return FNO(self)


class SpectralMix(nn.Module):
    """The lowest Fourier modes of x [B, N, D], each mixed across channels by its own complex matrix.

    Few modes of a small grid: two products with the matrices of the transform are faster than an FFT and complex ones.
    """

    to_modes: Tensor  # [2 m, N], cosines, then minus sines
    to_grid: Tensor  # [N, 2 m], its inverse on fields of no other modes

    def __init__(self, points: int, width: int, modes: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(2, modes, width, width) / (2 * width) ** 0.5)  # real, imaginary part
        angle = 2 * math.pi / points * torch.outer(torch.arange(modes), torch.arange(points)).double()
        count = torch.full((modes, 1), 2.0, dtype=torch.float64)  # a mode stands for its conjugate too,
        count[0] = 1
        count[points // 2 :] = 1 + points % 2  # but the mean and the highest of an even grid have none
        forward, scale = torch.cat((angle.cos(), -angle.sin())), count.repeat(2, 1) / points
        self.register_buffer("to_modes", forward.to(self.weight.dtype), persistent=False)
        self.register_buffer("to_grid", (forward * scale).T.to(self.weight.dtype).contiguous(), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        batch, _, width = x.shape
        real, imaginary = self.weight
        matrix = torch.cat((torch.cat((real, imaginary), 2), torch.cat((-imaginary, real), 2)), 1)  # [m, 2 D, 2 D]
        kept = (self.to_modes @ x).reshape(batch, 2, -1, width).permute(2, 0, 1, 3).flatten(2)  # [m, B, 2 D]
        mixed = torch.bmm(kept, matrix).reshape(-1, batch, 2, width).permute(1, 2, 0, 3)
        return self.to_grid @ mixed.reshape(batch, -1, width)


class FNO(OneStep):
    """Fields [B, C, 1, N] to fields [B, C, 1, N], one interval of time later."""

    def __init__(self, cfg: FNOConfig) -> None:
        super().__init__()
        self.cfg = cfg
        self.lift = nn.Linear(cfg.channels, cfg.width)
        self.mix = nn.ModuleList(SpectralMix(cfg.points, cfg.width, cfg.modes) for _ in range(cfg.depth))
        self.pointwise = nn.ModuleList(nn.Linear(cfg.width, cfg.width) for _ in range(cfg.depth))
        self.project = nn.Sequential(
            nn.Linear(cfg.width, cfg.hidden), nn.GELU("tanh"), nn.Linear(cfg.hidden, cfg.channels)
        )

    @property
    def frame_shape(self) -> tuple[int, ...]:
        return (self.cfg.channels, 1, self.cfg.points)

    def forward(self, last: Tensor) -> Tensor:
        x = self.lift(last[:, :, 0].mT)
        for mix, pointwise in zip(self.mix, self.pointwise, strict=True):
            x = F.gelu(mix(x) + pointwise(x), approximate="tanh")
        return last + self.project(x).mT[:, :, None]
