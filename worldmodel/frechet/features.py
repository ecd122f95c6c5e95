"""Feature maps phi of latents: what a Frechet distance compares. Frozen, and differentiable down to the latents.

Letters: B rows, T latent frames, C H W latent channels and cells, D features, F pixel frames.
"""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from worldmodel.encoders.frames import Encoder, deviation
from worldmodel.errors import UserError
from worldmodel.frechet.bank import Source
from worldmodel.models.tokenizer import DecodeState, Tokenizer


class FeatureMap(Protocol):
    """phi. Its source names it, in losses, metrics and banks."""

    @property
    def source(self) -> Source: ...

    def __call__(self, latents: Tensor) -> Tensor:
        """Latents [B, T, C, H, W] -> features [B, T or F, D] fp32, one row per latent or per pixel frame."""
        ...


@dataclass(frozen=True, kw_only=True)
class LatentStatistics:
    """Statistics of each frame's latents: D = C (2 + patches^2).

    Mean and standard deviation of every channel over space, and its mean in each of patches x patches regions. Cheap,
    and low order: noise of the right moments meets them, so they belong beside a perceptual encoder (card of Frechet
    Forcing: its abstract names latent statistics; these are our reading).
    """

    channels: int
    height: int
    width: int
    patches: int = 2

    def __post_init__(self) -> None:
        if not 1 <= self.patches <= min(self.height, self.width):
            size = f"{self.height} x {self.width}"
            raise UserError(f"latent statistics: {self.patches} x {self.patches} patches do not fit {size} cells")

    @property
    def source(self) -> Source:
        dimension = self.channels * (2 + self.patches**2)
        return Source("latent_statistics", (self.height, self.width), dimension)

    def __call__(self, latents: Tensor) -> Tensor:
        """Latents [B, T, C, H, W] -> [B, T, D]: C means, C deviations, C x patches x patches regional means."""
        expected = (self.channels, self.height, self.width)
        if latents.ndim != 5 or tuple(latents.shape[2:]) != expected:
            raise ValueError(f"latents must be [B, T, {', '.join(map(str, expected))}], not {list(latents.shape)}")
        x = latents.flatten(0, 1).float()
        regions = F.adaptive_avg_pool2d(x, self.patches).flatten(1)
        return torch.cat((x.mean((2, 3)), deviation(x), regions), 1).unflatten(0, latents.shape[:2])


class DecodedFeatures:
    """An encoder of pictures behind the tokenizer's decoder: features of the frames that a viewer would see.

    Real latents go through the same decoder, so that what the tokenizer loses is no distance. Freezes the tokenizer's
    weights; the encoder's are frozen already.
    """

    def __init__(self, encoder: Encoder, tokenizer: Tokenizer, height: int, width: int, stride: int = 1) -> None:
        """height, width: cells of the latents. stride: one of so many frames is encoded, row b's from frame b % stride
        on, so that a batch sees them all.
        """
        if stride < 1:
            raise UserError(f"decoded features: stride {stride} must be at least 1")
        self.encoder, self.tokenizer, self.height, self.width = encoder, tokenizer, height, width
        self.stride = stride
        if isinstance(tokenizer, nn.Module):
            tokenizer.requires_grad_(False)
        seen = (height * tokenizer.spatial, width * tokenizer.spatial)
        with torch.enable_grad():  # one grey picture, for the number of its features
            found = encoder.features(torch.zeros(1, 3, *seen, requires_grad=True))
        if not found.requires_grad:
            raise UserError(f"encoder {encoder.name}: its features carry no gradient to the pictures, none can train")
        self.source = Source(encoder.name, (encoder.size or seen[0], encoder.size or seen[1]), found.shape[1])

    def __call__(self, latents: Tensor) -> Tensor:
        """Latents [B, T, C, H, W] of whole clips -> features [B, F // stride, D] of their pixel frames."""
        return self.of_pixels(self.tokenizer.decode(latents))

    def stream(self, latents: Tensor, state: DecodeState | None) -> tuple[Tensor, DecodeState]:
        """The next latents of a stream [B, K, C, H, W] -> features [B, F // stride, D], and the decoder's next
        state.

        Chunk after chunk gives the features of the whole clip with the memory of one chunk.
        """
        pixels, state = self.tokenizer.decode_stream(latents, state)
        return self.of_pixels(pixels), state

    def of_pixels(self, pixels: Tensor) -> Tensor:
        """Pixels [B, F, 3, h, w] in [-1, 1] -> features [B, F // stride, D]."""
        if pixels.shape[1] < self.stride:
            raise UserError(f"decoded features: a stride of {self.stride} leaves nothing of {pixels.shape[1]} frames")
        rows = torch.arange(pixels.shape[0], device=pixels.device)[:, None]
        frames = torch.arange(pixels.shape[1] // self.stride, device=pixels.device) * self.stride + rows % self.stride
        seen = pixels[rows, frames]
        features = self.encoder.features(seen.flatten(0, 1))
        if features.shape[1] != self.source.dimension:
            raise UserError(
                f"encoder {self.source.encoder}: gives {features.shape[1]} features for {len(features)} pictures, "
                f"{self.source.dimension} for one"
            )
        return features.unflatten(0, seen.shape[:2])
