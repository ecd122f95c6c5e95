"""Tokenizers: pixels <-> latents, behind one small protocol of values.

A tokenizer works on single frames (`temporal == 1`) or on causal groups of frames (`temporal == 4`: the first latent is
the first frame alone, every further latent is the next four frames). Nothing is remembered between two calls: a
streaming decoder gives its state to the caller and gets it back, so any number of streams can share one tokenizer.

Letters: B batch, T pixel frames, K latent frames of one call, C latent channels, H W pixels, h w latent cells
(H / spatial, W / spatial).
"""

from pathlib import Path
from typing import Protocol, runtime_checkable

from torch import Tensor

from worldmodel.errors import UserError
from worldmodel.serial import read_json
from worldmodel.weights import PICKLES

DecodeState = tuple[Tensor, ...]
"""What a streaming decoder remembers: tensors whose first dimension is the batch, so rows are selected, moved and
stored like those of any other value. The first call of a stream gets None."""

CONFIG_FILE = "config.json"


@runtime_checkable
class Tokenizer(Protocol):
    """Pixels [B, T, 3, H, W] in [-1, 1] <-> latents [B, K, C, h, w], about zero mean and unit variance per channel.

    H and W must be multiples of `spatial`. With `temporal == 1`, K = T. With `temporal == r > 1` the tokenizer is
    causal and K = 1 + (T - 1) / r, so T - 1 must be a multiple of r. Anything else is a `UserError` that names both
    numbers. Tokenizers are also `torch.nn.Module`s.
    """

    channels: int
    spatial: int
    temporal: int

    def encode(self, pixels: Tensor) -> Tensor:
        """Pixels [B, T, 3, H, W] in [-1, 1] -> latents [B, K, C, h, w]. Deterministic: the mode, not a sample."""
        ...

    def decode(self, latents: Tensor) -> Tensor:
        """Latents [B, K, C, h, w] of a whole clip -> pixels [B, T, 3, H, W], clipped to [-1, 1]."""
        ...

    def decode_stream(self, latents: Tensor, state: DecodeState | None) -> tuple[Tensor, DecodeState]:
        """The next K latents of a stream -> their pixels, and the state for the next call (`None` starts a stream).

        The pieces, put together, equal `decode` of the whole clip. The state that came in stays valid.
        """
        ...

    def save(self, folder: Path) -> None:
        """Write `config.json` and the weights (safetensors) to a folder (made if needed)."""
        ...


def num_latent_frames(tokenizer: Tokenizer, num_frames: int) -> int:
    """Latent frames of a clip of `num_frames` pixel frames; `UserError` if the clip does not divide."""
    if num_frames < 1 or (num_frames - 1) % tokenizer.temporal:
        raise UserError(
            f"a clip of {num_frames} frames does not fit the tokenizer: it takes 1 + a multiple of "
            f"{tokenizer.temporal} frames"
        )
    return 1 + (num_frames - 1) // tokenizer.temporal


def check_pixels(tokenizer: Tokenizer, pixels: Tensor) -> None:
    """Raise `UserError` unless pixels [B, T, 3, H, W] fit the tokenizer's factors."""
    if pixels.ndim != 5 or pixels.shape[2] != 3:
        raise UserError(f"pixels must have the shape [B, T, 3, H, W], not {list(pixels.shape)}")
    check_size(tokenizer, pixels.shape[-2], pixels.shape[-1])
    num_latent_frames(tokenizer, pixels.shape[1])


def check_size(tokenizer: Tokenizer, height: int, width: int) -> None:
    """Raise `UserError` unless a picture of `height` x `width` pixels fits the tokenizer's spatial factor."""
    for name, size in (("height", height), ("width", width)):
        if size < tokenizer.spatial or size % tokenizer.spatial:
            raise UserError(
                f"picture {name} {size} is not a multiple of the tokenizer's spatial factor {tokenizer.spatial}"
            )


def check_latents(tokenizer: Tokenizer, latents: Tensor) -> None:
    """Raise `UserError` unless latents have the shape [B, K, C, h, w] with the tokenizer's number of channels."""
    if latents.ndim != 5 or latents.shape[2] != tokenizer.channels or latents.shape[1] < 1:
        raise UserError(
            f"latents must have the shape [B, K, C, h, w] with K >= 1 and C = {tokenizer.channels}, "
            f"not {list(latents.shape)}"
        )


def read_config(folder: Path) -> dict[str, object]:
    """The object in a folder's `config.json`; `UserError` if it is missing or not a JSON object."""
    config = read_json(folder / CONFIG_FILE)
    if not isinstance(config, dict):
        raise UserError(f"{folder / CONFIG_FILE}: must hold a JSON object, not a {type(config).__name__}")
    return config


def refuse_pickles(folder: Path) -> None:
    """Raise `UserError` if a folder without safetensors weights holds pickled ones: reading them could run code."""
    for path in sorted(folder.iterdir()):
        refuse_pickle(path)


def refuse_pickle(path: Path) -> None:
    if path.suffix in PICKLES:
        raise UserError(f"{path}: a pickle could run code when it is read; only safetensors files are loaded")
