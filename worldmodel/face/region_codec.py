"""Between aligned regions of faces and what a chunk model reads and makes: latents, a condition per frame, a reference.

The condition is the target's region without the face, how much of each cell will be seen, and its landmarks: all that a
swap keeps and that its mask hides. The arrangement (noise, masked region and mask concatenated by channels, the
reference as the first frames) is our own reading of StreamingSwap, of which only an abstract is known, after inpainting
diffusion models (2112.10752) and pose-guided ones; the landmarks stand for pose and expression.

Letters: B rows, K frames of a chunk, T frames, R reference pictures, S side of a region, C h w latents, f = S / h.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from worldmodel.chunk import Chunk, ConditionControl
from worldmodel.errors import UserError
from worldmodel.face.generator import FaceControl
from worldmodel.models.dit import DiTConfig
from worldmodel.models.tokenizer import Tokenizer
from worldmodel.models.tokenizer_folder import load_tokenizer

PARTS = (range(17), (*range(17, 27), *range(36, 48)), (*range(27, 36), *range(48, 68)))
"""Landmarks of a map each: the face's outline; brows and eyes; nose and mouth."""
DOT = 1 / 64  # standard deviation of a landmark's dot, in sides of the region


def condition_channels(channels: int, spatial: int) -> int:
    """Of a tokenizer with so many latent channels and this factor f: the masked region's, the mask's, the maps'."""
    return channels + 1 + len(PARTS) * spatial**2


@dataclass(frozen=True, slots=True)
class RegionCodec:
    """A tokenizer of regions and what surrounds it. size: S. references: R pictures that a stream begins with."""

    tokenizer: Tokenizer
    size: int
    references: int

    @classmethod
    def of(cls, tokenizer: str | Path, size: int, references: int) -> "RegionCodec":
        """Around a tokenizer that `load_tokenizer` finds; nothing trains it."""
        found: Any = load_tokenizer(tokenizer)  # tokenizers are modules
        return cls(found.eval().requires_grad_(False), size, references)

    def check(self, model: DiTConfig) -> None:
        """A UserError unless a model of these sizes reads and makes such regions."""
        f, channels = self.tokenizer.spatial, self.tokenizer.channels
        if self.tokenizer.temporal != 1:
            raise UserError(
                f"swap: the tokenizer joins {self.tokenizer.temporal} pictures in a latent; a stream of faces needs "
                "one of single pictures"
            )
        if self.size % f:
            raise UserError(f"swap: regions of {self.size} pixels do not cut into the tokenizer's cells of {f}")
        side = self.size // f
        for name, needed in (
            ("channels", channels), ("size", (side, side)), ("condition", condition_channels(channels, f)),
        ):  # fmt: skip
            if getattr(model, name) != needed:
                raise UserError(
                    f"swap: model.{name} is {getattr(model, name)}, regions of {self.size} pixels through this "
                    f"tokenizer need {needed}"
                )
        if not 1 <= self.references <= model.chunk:
            raise UserError(
                f"swap: the {self.references} reference pictures must be 1 to {model.chunk}, one chunk of the model"
            )

    @property
    def network(self) -> nn.Module:
        """The tokenizer, which is a module."""
        assert isinstance(self.tokenizer, nn.Module)
        return self.tokenizer

    def to(self, device: torch.device | str) -> "RegionCodec":
        self.network.to(device)
        return self

    @torch.no_grad()
    def latents(self, regions: Tensor) -> Tensor:
        """Regions [B, T, 3, S, S] in -1..1 -> [B, T, C, h, w]."""
        return self.tokenizer.encode(regions)

    def regions(self, latents: Tensor) -> Tensor:
        """The inverse, which can be differentiated."""
        return self.tokenizer.decode(latents)

    @torch.no_grad()
    def condition(self, target: FaceControl) -> ConditionControl:
        """What the model is given of every frame of a target, [B, T, C + 1 + 3 f f, h, w]."""
        f = self.tokenizer.spatial
        around = self.latents(target.crops * (1 - target.mask))
        mask = F.avg_pool2d(target.mask.flatten(0, 1), f).unflatten(0, target.mask.shape[:2])
        maps = F.pixel_unshuffle(landmark_maps(target.landmarks, self.size), f)
        maps = maps * target.active[..., None, None, None]
        return ConditionControl(torch.cat((around, mask, maps), 2))

    def reference(self, pictures: Tensor, chunk: int) -> Chunk[ConditionControl]:
        """The chunk that a stream's memory begins with: reference regions [B, R', 3, S, S], R' any number from 1 on.

        The first R frames are used; pictures go round where there are fewer, and in the chunk's other frames, which the
        used ones look at. Their condition is empty, as that of no frame of a video.
        """
        turns = torch.arange(chunk, device=pictures.device) % min(pictures.shape[1], self.references)
        x = self.latents(pictures)[:, turns]
        channels = condition_channels(x.shape[2], self.tokenizer.spatial)
        nothing = x.new_zeros(*x.shape[:2], channels, *x.shape[3:])
        start = torch.zeros(x.shape[0], dtype=torch.int64, device=x.device)
        return Chunk(x, ConditionControl(nothing), start, torch.full_like(start, self.references))


def landmark_maps(landmarks: Tensor, size: int) -> Tensor:
    """Landmarks [B, T, 68, 2] in pixels (x, y) of a region -> [B, T, 3, size, size] in 0..1: a dot for each, one map
    for each of `PARTS`. Where dots overlap the stronger one is seen; places between pixels are kept by their shades."""
    at = torch.arange(size, device=landmarks.device, dtype=landmarks.dtype)
    x, y = (torch.exp(-0.5 * ((at - p[..., None]) / (DOT * size)) ** 2) for p in landmarks.unbind(-1))
    dots = [y[:, :, list(part), :, None] * x[:, :, list(part), None, :] for part in PARTS]
    return torch.stack([part.amax(2) for part in dots], 2)
