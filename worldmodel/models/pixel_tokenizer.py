"""Pixels as they are, behind the tokenizer protocol: to train an autoencoder on, or a small world without one."""

import json
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor, nn

from worldmodel.models.tokenizer import CONFIG_FILE, DecodeState, check_latents, check_pixels
from worldmodel.serial import to_json


@dataclass(frozen=True, kw_only=True)
class PixelTokenizerConfig:
    """There is nothing to choose."""


class PixelTokenizer(nn.Module):
    """Pixels [B, T, 3, H, W] in [-1, 1] <-> the same as "latents"."""

    channels, spatial, temporal = 3, 1, 1

    def __init__(self, config: PixelTokenizerConfig) -> None:
        super().__init__()
        self.config = config

    def encode(self, pixels: Tensor) -> Tensor:
        check_pixels(self, pixels)
        return pixels

    def decode(self, latents: Tensor) -> Tensor:
        check_latents(self, latents)
        return latents.clamp(-1, 1)

    def decode_stream(self, latents: Tensor, state: DecodeState | None) -> tuple[Tensor, DecodeState]:
        """Frames are independent: the state is empty."""
        return self.decode(latents), ()

    def save(self, folder: Path) -> None:
        """Write `config.json`; there are no weights."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / CONFIG_FILE).write_text(json.dumps(to_json(self.config), indent=2) + "\n")
