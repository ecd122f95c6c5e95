"""Tokenizers: pixels <-> latents, behind one small protocol of values.

A tokenizer works on single frames (`temporal == 1`) or on causal groups of frames (`temporal == 4`: the first latent is
the first frame alone, every further latent is the next four frames). Nothing is remembered between two calls: a
streaming decoder gives its state to the caller and gets it back, so any number of streams can share one tokenizer.

Letters: B batch, T pixel frames, K latent frames of one call, C latent channels, H W pixels, h w latent cells
(H / spatial, W / spatial).
"""

import json
from pathlib import Path
from typing import Protocol, runtime_checkable

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from worldmodel.errors import UserError

DecodeState = tuple[Tensor, ...]
"""What a streaming decoder remembers: tensors whose first dimension is the batch, so rows are selected, moved and
stored like those of any other value. The first call of a stream gets None."""

CONFIG_FILE = "config.json"
WEIGHTS_FILE = "model.safetensors"
PICKLE_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")


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

    def save(self, folder: str | Path) -> None:
        """Write `config.json` and the weights (safetensors) to a folder that `load_tokenizer` reads."""
        ...


def load_tokenizer(name: str | Path, subfolder: str | None = None) -> Tokenizer:
    """Load any tokenizer from a folder, or a diffusers one from the hub.

    The folder's `config.json` says what it holds: `"kind": "autoencoder"` is ours, a diffusers `_class_name` is one of
    `AutoencoderKLWan`, `AutoencoderKL` and `AutoencoderTiny`. Weights are read from safetensors files only.

    Args:
        name: a local folder, or a hub name "owner/model" if there is no such folder.
        subfolder: where the autoencoder lies inside it ("vae" in a diffusers pipeline).

    Raises:
        UserError: no such folder or hub model, no or broken `config.json`, an unknown kind, pickled, missing, truncated
            or unfitting weights; the message names the file.
    """
    from worldmodel.models.autoencoder import Autoencoder  # imports this file

    folder = Path(name)
    if folder.is_file():
        refuse_pickle(folder)
        raise UserError(f"{folder}: a tokenizer is a folder with {CONFIG_FILE}, this is a file")
    if not folder.is_dir():
        # diffusers takes seconds to import: worlds with our own autoencoder do without it
        from worldmodel.models.diffusers_tokenizer import download

        folder = download(str(name), subfolder)
    elif subfolder is not None:
        folder = folder / subfolder
    config = read_config(folder)
    if config.get("kind") == Autoencoder.kind:
        return Autoencoder.load(folder)
    if "_class_name" in config:
        from worldmodel.models.diffusers_tokenizer import load_diffusers

        return load_diffusers(folder)
    raise UserError(
        f'{folder / CONFIG_FILE}: not a tokenizer: it has neither "kind": "{Autoencoder.kind}" nor a diffusers '
        f'"_class_name"'
    )


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
    if latents.ndim != 5 or latents.shape[2] != tokenizer.channels:
        raise UserError(
            f"latents must have the shape [B, K, C, h, w] with C = {tokenizer.channels}, not {list(latents.shape)}"
        )


def read_config(folder: Path) -> dict[str, object]:
    """The object in a folder's `config.json`; `UserError` if it is missing or not a JSON object."""
    path = folder / CONFIG_FILE
    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder")
    if not path.is_file():
        raise UserError(f"{path}: no such file, so this folder is not a tokenizer")
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: not valid JSON: {error}") from error
    if not isinstance(config, dict):
        raise UserError(f"{path}: must hold a JSON object, not a {type(config).__name__}")
    return config


def write_config(folder: Path, config: dict[str, object]) -> None:
    """Write a folder's `config.json`."""
    (folder / CONFIG_FILE).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def read_weights(module: nn.Module, path: Path) -> None:
    """Fill a module from a safetensors file; `UserError` unless every name and shape fits exactly."""
    if not path.is_file():
        for other in sorted(path.parent.iterdir()):
            refuse_pickle(other)
        raise UserError(f"{path}: no such file")
    try:
        weights = load_file(path)
    except SafetensorError as error:
        raise UserError(f"{path}: not a whole safetensors file: {error}") from error
    wanted = module.state_dict()
    for key in sorted(wanted.keys() ^ weights.keys()):
        raise UserError(f"{path}: {'lacks' if key in wanted else 'has the unknown'} tensor {key}")
    for key, value in weights.items():
        if value.shape != wanted[key].shape:
            raise UserError(f"{path}: {key} has shape {list(value.shape)}, expected {list(wanted[key].shape)}")
    module.load_state_dict(weights)


def write_weights(module: nn.Module, path: Path) -> None:
    """Write a module's parameters and buffers to a safetensors file."""
    save_file({key: value.detach().contiguous() for key, value in module.state_dict().items()}, path)


def refuse_pickle(path: Path) -> None:
    """Raise `UserError` if a file's name says that it is a pickle: reading one can run any code."""
    if path.suffix in PICKLE_SUFFIXES:
        raise UserError(f"{path}: a pickle can run code when it is read: only safetensors weights are accepted")
