"""Our small per-frame autoencoder for worlds of 64x64 to 128x128 pixels.

A plain convolutional network without normalisation layers: every output pixel depends on a bounded neighbourhood and
not on statistics of the whole picture, so that an error of the generator in one corner stays there. The first and the
last layer work on 2x2 pixel patches (sub-pixel convolution, Shi et al., 1609.05158), which is what makes it fast on one
CPU core. Trained by `worldmodel.objectives.autoencoder`.

Letters: B batch, T frames, N = B * T, C latent channels, H W pixels, h w latent cells (H / spatial, W / spatial).
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from worldmodel.errors import UserError
from worldmodel.folders import replaced
from worldmodel.models.tokenizer import (
    CONFIG_FILE,
    DecodeState,
    check_latents,
    check_pixels,
    read_config,
    refuse_pickles,
)
from worldmodel.serial import from_json, to_json, write_json
from worldmodel.weights import build_with, read_tensors, write_tensors

WEIGHTS_FILE = "model.safetensors"


@dataclass(frozen=True)
class AutoencoderConfig:
    """Sizes of the small autoencoder.

    `widths[i]` feature channels and `blocks[i]` residual blocks are used at 1 / 2**(i + 1) of the picture's height and
    width; so the spatial factor is `2 ** len(widths)` (8 by default). The encoder and the decoder mirror each other.
    """

    channels: int = 8
    widths: tuple[int, ...] = (32, 64, 128)
    blocks: tuple[int, ...] = (1, 1, 2)

    def __post_init__(self) -> None:
        if not self.widths or len(self.widths) != len(self.blocks):
            raise UserError(
                f"autoencoder: widths {self.widths} and blocks {self.blocks} must have the same length >= 1"
            )
        if self.channels < 1 or min(self.widths) < 1 or min(self.blocks) < 0:
            raise UserError(f"autoencoder: channels and widths must be positive and blocks not negative: {self}")

    def build(self) -> "Autoencoder":
        """A new autoencoder with random weights (drawn from torch's global generator)."""
        return Autoencoder(self)


class Autoencoder(nn.Module):
    """Frames [B, T, 3, H, W] in [-1, 1] <-> latents [B, T, C, h, w] of zero mean and unit variance per channel.

    The network itself speaks raw latents; `encode` and `decode` apply the statistics of the training data, which are
    buffers of the weights (`set_latent_statistics`; zero and one before that).
    """

    temporal = 1
    latent_mean: Tensor  # [C]
    latent_std: Tensor  # [C]

    def __init__(self, config: AutoencoderConfig) -> None:
        super().__init__()
        self.config = config
        self.channels = config.channels
        self.spatial = 2 ** len(config.widths)
        self.encoder = _encoder(config)
        self.decoder = _decoder(config)
        self.register_buffer("latent_mean", torch.zeros(config.channels))
        self.register_buffer("latent_std", torch.ones(config.channels))
        self.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue] (torch's stubs forget it)

    def forward(self, frames: Tensor, noise: Tensor, noise_scale: Tensor) -> tuple[Tensor, Tensor]:
        """The training pass: encode, disturb, decode.

        Args:
            frames: [N, 3, H, W] in [-1, 1].
            noise: [N, C, h, w], unit normal.
            noise_scale: [N], the noise's level in units of each channel's standard deviation over this batch.

        Returns:
            Reconstruction [N, 3, H, W] (not clipped) and raw latents [N, C, h, w] (undisturbed).
        """
        raw = self.encode_raw(frames)
        spread = raw.std(dim=(0, 2, 3), correction=0)[None, :, None, None]
        return self.decode_raw(raw + noise_scale[:, None, None, None] * spread * noise), raw

    def encode_raw(self, frames: Tensor) -> Tensor:
        """Frames [N, 3, H, W] in [-1, 1] -> latents [N, C, h, w] before normalisation."""
        return self.encoder(frames.contiguous(memory_format=torch.channels_last))

    def encode_hidden(self, frames: Tensor) -> Tensor:
        """Frames [N, 3, H, W] in [-1, 1] -> what the last convolution turns into latents, [N, widths[-1], h, w]."""
        return self.encoder[:-1](frames.contiguous(memory_format=torch.channels_last))

    def decode_raw(self, raw: Tensor) -> Tensor:
        """Latents [N, C, h, w] before normalisation -> frames [N, 3, H, W], not clipped."""
        return self.decoder(raw.contiguous(memory_format=torch.channels_last))

    def encode(self, pixels: Tensor) -> Tensor:
        """Pixels [B, T, 3, H, W] in [-1, 1] -> latents [B, T, C, h, w]; `UserError` if H or W does not divide."""
        check_pixels(self, pixels)
        raw = self.encode_raw(pixels.flatten(0, 1))
        latents = (raw - self.latent_mean[:, None, None]) / self.latent_std[:, None, None]
        return latents.contiguous().unflatten(0, pixels.shape[:2])

    def decode(self, latents: Tensor) -> Tensor:
        """Latents [B, T, C, h, w] -> pixels [B, T, 3, H, W], clipped to [-1, 1]."""
        check_latents(self, latents)
        raw = latents.flatten(0, 1) * self.latent_std[:, None, None] + self.latent_mean[:, None, None]
        return self.decode_raw(raw).clamp(-1, 1).contiguous().unflatten(0, latents.shape[:2])

    def decode_stream(self, latents: Tensor, state: DecodeState | None) -> tuple[Tensor, DecodeState]:
        """Frames are independent: the state is empty."""
        return self.decode(latents), ()

    def save(self, folder: Path) -> None:
        """Write `config.json` and `model.safetensors` to a folder (made if needed); older ones go as a whole."""
        with replaced(folder, (CONFIG_FILE, WEIGHTS_FILE)) as beside:
            write_json(to_json(self.config), beside / CONFIG_FILE)
            write_tensors(self.state_dict(), beside / WEIGHTS_FILE)

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Read what `save` wrote; `UserError` that names the file if anything is missing or does not fit."""
        config: AutoencoderConfig = from_json(read_config(folder), AutoencoderConfig, str(folder / CONFIG_FILE))
        weights = folder / WEIGHTS_FILE
        if not weights.is_file():
            refuse_pickles(folder)
        return build_with(lambda: cls(config), read_tensors(weights), str(weights))

    @torch.no_grad()
    def measure_latents(self, batches: Iterable[Tensor]) -> None:
        """Store the statistics of the raw latents of frames [N, 3, H, W] in [-1, 1], a batch at a time."""
        raw = torch.cat([self.encode_raw(frames) for frames in batches])
        self.set_latent_statistics(raw.mean((0, 2, 3)), raw.std((0, 2, 3)))

    @torch.no_grad()
    def set_latent_statistics(self, mean: Tensor, std: Tensor) -> None:
        """Store the mean and the standard deviation [C] of the raw latents of the training data.

        Raises `ValueError` if a value is not finite or a deviation is not positive (a dead channel).
        """
        if not (mean.isfinite().all() and std.isfinite().all() and (std > 0).all()):
            raise ValueError(
                f"latent statistics must be finite, std positive: mean {mean.tolist()}, std {std.tolist()}"
            )
        self.latent_mean.copy_(mean)
        self.latent_std.copy_(std)


def _encoder(config: AutoencoderConfig) -> nn.Sequential:
    widths = config.widths
    layers: list[nn.Module] = [nn.PixelUnshuffle(2), nn.Conv2d(12, widths[0], 3, padding=1)]
    for level, width in enumerate(widths):
        layers += [_ResidualBlock(width) for _ in range(config.blocks[level])]
        if level + 1 < len(widths):
            layers.append(nn.Conv2d(width, widths[level + 1], 3, stride=2, padding=1))
    return nn.Sequential(*layers, nn.SiLU(), nn.Conv2d(widths[-1], config.channels, 3, padding=1))


def _decoder(config: AutoencoderConfig) -> nn.Sequential:
    widths = config.widths
    layers: list[nn.Module] = [nn.Conv2d(config.channels, widths[-1], 3, padding=1)]
    for level in reversed(range(len(widths))):
        layers += [_ResidualBlock(widths[level]) for _ in range(config.blocks[level])]
        if level > 0:
            layers.append(_Upsample(widths[level], widths[level - 1]))
    return nn.Sequential(*layers, nn.SiLU(), nn.Conv2d(widths[0], 12, 3, padding=1), nn.PixelShuffle(2))


class _ResidualBlock(nn.Module):
    """x + conv(silu(conv(silu(x)))); the second convolution starts at zero, so that the block starts as identity."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(width, width, 3, padding=1)
        self.second = nn.Conv2d(width, width, 3, padding=1)
        for parameter in self.second.parameters():
            nn.init.zeros_(parameter)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.second(F.silu(self.first(F.silu(x))))


class _Upsample(nn.Module):
    """Twice the height and width: nearest neighbour, then a 3x3 convolution (no checkerboard)."""

    def __init__(self, width_in: int, width_out: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(width_in, width_out, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(F.interpolate(x, scale_factor=2.0, mode="nearest"))
