"""How near a made face is to the true one. Letters: T frames, S side of a region."""

import torch
from torch import Tensor

from worldmodel.evaluate.metrics import EXACT


def psnr(made: Tensor, truth: Tensor, mask: Tensor | None = None) -> Tensor:
    """Peak signal-to-noise ratio [T] in dB of regions [T, 3, S, S] in -1..1; made is clipped to that.

    mask: [T, 1, S, S] weights of the squared errors; where it is 0 everywhere the ratio is NaN. Equal pictures count as
    100 dB.
    """
    error = ((made.clamp(-1, 1) - truth).double() / 2).square()
    weight = torch.ones_like(error) if mask is None else mask.double().expand_as(error)
    total = weight.sum((1, 2, 3))
    mean = (error * weight).sum((1, 2, 3)) / total
    return -10 * torch.log10(mean.clamp_min(EXACT))
