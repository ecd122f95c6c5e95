"""Reconstruction loss of the small autoencoder.

`L1 + L2 + edges + moments`: L1 keeps edges, L2 keeps colours, the edge term compares finite differences at several
scales (sharpness without an adversary), and a weak Kullback-Leibler term holds each latent channel's batch moments near
those of a unit normal. Gaussian noise on the latents makes the decoder smooth, and robust to a generator's errors.

Letters: B batch, T frames, N = B * T, C latent channels, H W pixels, h w latent cells.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from worldmodel.models.autoencoder import Autoencoder


@dataclass(frozen=True)
class ReconstructionWeights:
    """Weights of the terms, and the highest level of the latent noise (in standard deviations of the latents)."""

    l1: float = 1.0
    l2: float = 1.0
    edge: float = 1.0
    edge_scales: int = 3
    moment: float = 1e-3
    noise: float = 0.25


def reconstruction_loss(
    autoencoder: Autoencoder,
    pixels: Tensor,
    rng: torch.Generator,
    weights: ReconstructionWeights = ReconstructionWeights(),
) -> tuple[Tensor, dict[str, Tensor]]:
    """Loss of one batch.

    Args:
        autoencoder: the module (or its data-parallel wrapper, called through `forward`).
        pixels: [B, T, 3, H, W] in [-1, 1].
        rng: generator on the pixels' device: draws the latent noise and, per frame, its level in [0, weights.noise].

    Returns:
        The scalar loss and detached metrics: `l1`, `l2`, `edge`, `moment` and `psnr` (dB, of the noisy pass).
    """
    frames = pixels.flatten(0, 1)
    noise_scale, noise = _draw_noise(autoencoder, frames, rng, weights.noise)
    reconstruction, raw = autoencoder(frames, noise, noise_scale)
    terms = {
        "l1": F.l1_loss(reconstruction, frames),
        "l2": F.mse_loss(reconstruction, frames),
        "edge": edge_loss(reconstruction, frames, weights.edge_scales),
        "moment": moment_loss(raw),
    }
    loss = (
        weights.l1 * terms["l1"]
        + weights.l2 * terms["l2"]
        + weights.edge * terms["edge"]
        + weights.moment * terms["moment"]
    )
    metrics = {name: term.detach() for name, term in terms.items()}
    metrics["psnr"] = psnr(reconstruction.detach(), frames)
    return loss, metrics


def edge_loss(a: Tensor, b: Tensor, scales: int) -> Tensor:
    """Mean absolute difference of the horizontal and vertical finite differences of two batches [N, 3, H, W].

    Averaged over `scales` resolutions, each half the one before (2x2 mean pooling).
    """
    error = a - b
    total = error.new_zeros(())
    for scale in range(scales):
        if scale > 0:
            error = F.avg_pool2d(error, 2)
        total = total + error.diff(dim=-1).abs().mean() + error.diff(dim=-2).abs().mean()
    return total / scales


def moment_loss(raw: Tensor) -> Tensor:
    """KL(N(m, s^2) || N(0, 1)) of each channel's batch moments; raw latents [N, C, h, w], mean over channels, nats."""
    mean = raw.mean(dim=(0, 2, 3))
    variance = raw.var(dim=(0, 2, 3), correction=0) + 1e-8
    return 0.5 * (mean.square() + variance - 1 - variance.log()).mean()


def psnr(a: Tensor, b: Tensor) -> Tensor:
    """Peak signal to noise ratio in dB of pictures in [-1, 1] (peak to peak 2), after clipping `a`; one scalar."""
    error = (a.clamp(-1, 1) - b).square().mean()
    return 10 * torch.log10(4 / error.clamp_min(1e-10))


def _draw_noise(
    autoencoder: Autoencoder, frames: Tensor, rng: torch.Generator, highest: float
) -> tuple[Tensor, Tensor]:
    module = getattr(autoencoder, "module", autoencoder)
    height, width = frames.shape[-2] // module.spatial, frames.shape[-1] // module.spatial
    level = highest * torch.rand(len(frames), generator=rng, device=frames.device, dtype=frames.dtype)
    shape = (len(frames), module.channels, height, width)
    return level, torch.randn(shape, generator=rng, device=frames.device, dtype=frames.dtype)
