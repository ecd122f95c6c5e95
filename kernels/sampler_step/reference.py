"""One step of a sampler on the straight path between data and noise: Euler, or to the data and back with fresh noise.

Flow time runs from 0 (data) to 1 (noise): x_t = (1 - t) x + t noise, v = noise - x (Liu et al., 2209.03003). Letters: B
rows, K frames, one flow time per frame. Computed in fp32, or fp64 where x is that, and rounded once.
"""

import torch
from torch import Tensor

from worldmodel.kernels.noise import normal


def euler(x: Tensor, v: Tensor, t: Tensor, s: Tensor) -> Tensor:
    """x + (s - t) v: from flow time t to s. x, v: [B, K, ...]; t, s: [B, K]."""
    wide, t, s = _wide(x, t, s)
    return (wide + (s - t) * v.to(wide.dtype)).to(x.dtype)


def renoise(x: Tensor, v: Tensor, t: Tensor, s: Tensor, seed: Tensor, frame: Tensor, step: int) -> Tensor:
    """(1 - s) (x - t v) + s noise: the data predicted at flow time t, with fresh noise up to flow time s.

    x, v: [B, K, ...]; t, s: [B, K]. The noise is that of kernels/noise: seed [B] int64, frame [B, K] int64 absolute,
    step the number of the draw.
    """
    wide, t, s = _wide(x, t, s)
    fresh = normal(seed, frame, step, tuple(x.shape[2:])).to(wide.dtype)
    clean = wide - t * v.to(wide.dtype)
    return ((1 - s) * clean + s * fresh).to(x.dtype)


def _wide(x: Tensor, t: Tensor, s: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    shape = (*t.shape, *(1,) * (x.ndim - t.ndim))
    return wide, t.to(wide.dtype).view(shape), s.to(wide.dtype).view(shape)
