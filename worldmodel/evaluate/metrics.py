"""How far a picture is from the true one: PSNR and SSIM, on float pictures in [0, 1]. Letters: H W pixels."""

import torch
from torch import Tensor
from torch.nn import functional as F

EXACT = 1e-10  # mean squared error below this counts as this: equal pictures have 100 dB


def to_unit(frames: Tensor) -> Tensor:
    """uint8 [..., H, W, 3] -> fp64 [..., 3, H, W] in [0, 1]."""
    return frames.movedim(-1, -3).double() / 255


def psnr(first: Tensor, second: Tensor) -> Tensor:
    """Peak signal-to-noise ratio [...] in dB of pictures [..., 3, H, W]: -10 log10 of the mean squared error.

    Averages are means of frames' dB, not dB of mean errors. Equal pictures count as 100 dB.
    """
    error = (first - second).square().mean((-3, -2, -1))
    return -10 * torch.log10(error.clamp_min(EXACT))


def ssim(first: Tensor, second: Tensor, window: int = 11, sigma: float = 1.5) -> Tensor:
    """Structural similarity [...] of pictures [..., C, H, W], as Wang et al. (2004) define it, averaged over channels.

    Gaussian window of 11 x 11 pixels with sigma 1.5, K1 = 0.01, K2 = 0.03, dynamic range 1, only positions where the
    whole window fits; population (not sample) variances. Pictures must be at least 11 pixels high and wide.
    """
    if min(first.shape[-2:]) < window:
        raise ValueError(f"SSIM needs pictures of at least {window} x {window} pixels, not {list(first.shape[-2:])}")
    x, y = first.flatten(0, -3)[:, None], second.flatten(0, -3)[:, None]
    place = torch.arange(window, dtype=x.dtype, device=x.device) - (window - 1) / 2
    bell = torch.exp(-place.square() / (2 * sigma**2))
    bell = bell / bell.sum()

    def blur(z: Tensor) -> Tensor:
        return F.conv2d(F.conv2d(z, bell[None, None, :, None]), bell[None, None, None, :])

    mean_x, mean_y = blur(x), blur(y)
    var_x, var_y = blur(x * x) - mean_x.square(), blur(y * y) - mean_y.square()
    covariance = blur(x * y) - mean_x * mean_y
    c1, c2 = 0.01**2, 0.03**2
    value = (2 * mean_x * mean_y + c1) * (2 * covariance + c2)
    value = value / ((mean_x.square() + mean_y.square() + c1) * (var_x + var_y + c2))
    return value.mean((-3, -2, -1)).unflatten(0, first.shape[:-2]).mean(-1)
