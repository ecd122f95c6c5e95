"""Tokenizers around the pretrained autoencoders of diffusers.

`FrameTokenizer` wraps the per-frame `AutoencoderKL` and `AutoencoderTiny`, `WanTokenizer` the causal video autoencoder
`AutoencoderKLWan` (Wan, 2503.20314: the first latent is one frame, each further latent four). Latents are brought to
about zero mean and unit variance by the statistics in each model's own configuration.

Letters: B batch, T pixel frames, K latent frames, C latent channels, H W pixels, h w latent cells.
"""

from pathlib import Path
from typing import Any

import torch
from diffusers import AutoencoderKL, AutoencoderKLWan, AutoencoderTiny
from diffusers.models.autoencoders.autoencoder_kl_wan import WanResample, patchify, unpatchify
from huggingface_hub import snapshot_download
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError
from safetensors import SafetensorError
from torch import Tensor, nn

from worldmodel.errors import UserError
from worldmodel.models.tokenizer import (
    CONFIG_FILE,
    DecodeState,
    check_latents,
    check_pixels,
    check_size,
    read_config,
    refuse_pickles,
)

WEIGHTS_STEM = "diffusion_pytorch_model"


class FrameTokenizer(nn.Module):
    """`AutoencoderKL` or `AutoencoderTiny`: each frame by itself. The wrapped model is frozen."""

    temporal = 1
    latent_mean: Tensor  # [C, 1, 1]
    latent_std: Tensor  # [C, 1, 1]

    def __init__(self, vae: AutoencoderKL | AutoencoderTiny) -> None:
        super().__init__()
        config: Any = vae.config
        self.vae = vae.eval().requires_grad_(False)
        self.channels: int = config.latent_channels
        stages = config.num_encoder_blocks if isinstance(vae, AutoencoderTiny) else config.block_out_channels
        self.spatial: int = 2 ** (len(stages) - 1)
        mean, std = _frame_statistics(config, self.channels)
        self.register_buffer("latent_mean", mean[:, None, None], persistent=False)
        self.register_buffer("latent_std", std[:, None, None], persistent=False)

    def encode(self, pixels: Tensor) -> Tensor:
        """Pixels [B, T, 3, H, W] in [-1, 1] -> normalised latents [B, T, C, h, w] (the posterior's mode)."""
        check_pixels(self, pixels)
        encoded: Any = self.vae.encode(pixels.flatten(0, 1).to(self.vae.dtype))
        raw = encoded.latents if isinstance(self.vae, AutoencoderTiny) else encoded.latent_dist.mode()
        return ((raw - self.latent_mean) / self.latent_std).to(pixels.dtype).unflatten(0, pixels.shape[:2])

    def decode(self, latents: Tensor) -> Tensor:
        """Normalised latents [B, T, C, h, w] -> pixels [B, T, 3, H, W], clipped to [-1, 1]."""
        check_latents(self, latents)
        raw: Any = (latents.flatten(0, 1) * self.latent_std + self.latent_mean).to(self.vae.dtype)
        decoded: Any = self.vae.decode(raw)
        return decoded.sample.clamp(-1, 1).to(latents.dtype).unflatten(0, latents.shape[:2])

    def decode_stream(self, latents: Tensor, state: DecodeState | None) -> tuple[Tensor, DecodeState]:
        """Frames are independent: the state is empty."""
        return self.decode(latents), ()

    def save(self, folder: Path) -> None:
        """Write a diffusers folder: `config.json` and safetensors weights."""
        self.vae.save_pretrained(folder, safe_serialization=True)


class WanTokenizer(nn.Module):
    """`AutoencoderKLWan` as a streaming tokenizer. The wrapped model is frozen, and holds no state between calls.

    diffusers runs the causal convolutions on a list of the last frames that each of them saw, and keeps that list on
    the module. Here the list is the caller's: `decode_stream` and `encode_stream` take it and return the next one, so
    streams can be interleaved, copied and stored. Every entry is a tensor with the batch first.
    """

    temporal = 4
    latent_mean: Tensor  # [C, 1, 1, 1]
    latent_std: Tensor  # [C, 1, 1, 1]

    def __init__(self, vae: AutoencoderKLWan) -> None:
        super().__init__()
        config: Any = vae.config
        downsamplings = sum(config.temperal_downsample)
        if 2**downsamplings != self.temporal:
            raise UserError(f"AutoencoderKLWan with a temporal factor of {2**downsamplings}: only 4 is supported")
        self.vae = vae.eval().requires_grad_(False)
        self.channels: int = config.z_dim
        self.patch: int = config.patch_size or 1
        self.spatial: int = 2 ** (len(config.dim_mult) - 1) * self.patch
        mean, std = _channel_statistics(config, self.channels)
        self.register_buffer("latent_mean", mean[:, None, None, None], persistent=False)
        self.register_buffer("latent_std", std[:, None, None, None], persistent=False)

    def encode(self, pixels: Tensor) -> Tensor:
        """Pixels [B, 1 + 4 n, 3, H, W] in [-1, 1] -> normalised latents [B, 1 + n, C, h, w] (the posterior's mode)."""
        check_pixels(self, pixels)
        return self.encode_stream(pixels, None)[0]

    def encode_stream(self, pixels: Tensor, state: DecodeState | None) -> tuple[Tensor, DecodeState]:
        """The next frames of a stream -> their latents and the next state.

        The first call (`state` None) takes 1 + 4 n frames, later ones 4 n; n more latents come out (1 + n at first).
        """
        check_size(self, pixels.shape[-2], pixels.shape[-1])
        lead = 1 if state is None else 0
        if pixels.shape[1] <= 0 or (pixels.shape[1] - lead) % self.temporal:
            raise UserError(f"{pixels.shape[1]} frames: a stream starts with 1 + a multiple of 4, then multiples of 4")
        x = patchify(pixels.transpose(1, 2).to(self.vae.dtype), self.patch)
        sizes = [1] * lead + [self.temporal] * ((x.shape[2] - lead) // self.temporal)
        outputs, carried = [], state or ()
        for group in x.split(sizes, dim=2):
            cache = self._cache("encoder", carried)
            outputs.append(self.vae.encoder(group, feat_cache=cache, feat_idx=[0]))
            carried = _to_state(cache)
        moments = self.vae.quant_conv(torch.cat(outputs, dim=2))
        raw = moments[:, : self.channels]
        return ((raw - self.latent_mean) / self.latent_std).to(pixels.dtype).transpose(1, 2), carried

    def decode(self, latents: Tensor) -> Tensor:
        """Normalised latents [B, K, C, h, w] of a whole clip -> pixels [B, 1 + 4 (K - 1), 3, H, W] in [-1, 1]."""
        return self.decode_stream(latents, None)[0]

    def decode_stream(self, latents: Tensor, state: DecodeState | None) -> tuple[Tensor, DecodeState]:
        """The next K latents -> 4 K frames (4 K - 3 for the first call, whose `state` is None) and the next state."""
        check_latents(self, latents)
        raw = (latents.transpose(1, 2) * self.latent_std + self.latent_mean).to(self.vae.dtype)
        x = self.vae.post_quant_conv(raw)
        outputs, carried = [], state or ()
        for index, latent in enumerate(x.split(1, dim=2)):
            begins = state is None and index == 0
            cache = self._cache("decoder", carried)
            outputs.append(self.vae.decoder(latent, feat_cache=cache, feat_idx=[0], first_chunk=begins))
            if begins:
                self._fill_skipped_convolutions(cache, latent)
            carried = _to_state(cache)
        pixels = unpatchify(torch.cat(outputs, dim=2), self.patch).clamp(-1, 1)
        return pixels.to(latents.dtype).transpose(1, 2), carried

    def save(self, folder: Path) -> None:
        """Write a diffusers folder: `config.json` and safetensors weights."""
        self.vae.save_pretrained(folder, safe_serialization=True)

    def _cache(self, part: str, state: DecodeState) -> list[Tensor | str | None]:
        """The list that diffusers' forward reads and fills: one entry per causal convolution, in the order they run."""
        return [*state, *[None] * (self.vae._cached_conv_counts[part] - len(state))]

    def _fill_skipped_convolutions(self, cache: list[Tensor | str | None], latent: Tensor) -> None:
        """Make tensors of the marks that the first latent leaves at the upsamplings in time (it passes them unchanged).

        The next latent finds two frames of zeros there, which is the padding that a mark stands for.
        """
        marks = [index for index, entry in enumerate(cache) if isinstance(entry, str)]
        batch, _, _, height, width = latent.shape
        for level, block in enumerate(self.vae.decoder.up_blocks):
            for module in block.modules():
                if isinstance(module, WanResample) and module.mode == "upsample3d":
                    cache[marks.pop(0)] = latent.new_zeros(batch, module.dim, 2, height * 2**level, width * 2**level)


def load_diffusers(folder: Path) -> FrameTokenizer | WanTokenizer:
    """Load a folder that diffusers wrote; the class is the `_class_name` of its `config.json`.

    Raises:
        UserError: the class is another one, or weights are pickled, missing, broken or of another model.
    """
    path = folder / CONFIG_FILE
    name = read_config(folder).get("_class_name")
    classes: dict[Any, Any] = {cls.__name__: cls for cls in (AutoencoderKLWan, AutoencoderKL, AutoencoderTiny)}
    if name not in classes:
        raise UserError(f'{path}: "_class_name" is {name!r}, but a tokenizer is one of {", ".join(classes)}')
    _check_weight_files(folder)
    try:
        vae, info = classes[name].from_pretrained(
            folder, use_safetensors=True, local_files_only=True, torch_dtype=torch.float32, output_loading_info=True
        )
    except (OSError, SafetensorError, ValueError, TypeError, RuntimeError, KeyError) as error:
        raise UserError(f"{folder}: cannot be loaded as {name}: {' '.join(str(error).split())}") from error
    for problem in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        for key in info[problem]:
            raise UserError(f"{folder}: the weights do not fit {name}: {problem.replace('_keys', '')} tensor {key}")
    return WanTokenizer(vae) if isinstance(vae, AutoencoderKLWan) else FrameTokenizer(vae)


def download(name: str, subfolder: str | None) -> Path:
    """Fetch the configuration and the safetensors weights of a hub model; returns the local folder.

    Raises `UserError` if the name is not one of the hub's, or it cannot be reached and is not in the local cache.
    """
    if name.count("/") != 1 or name.startswith(("/", ".", "~")):
        raise UserError(f'{name}: no such folder (and not a hub name "owner/model")')
    inside = f"{subfolder}/" if subfolder else ""
    patterns = [f"{inside}{CONFIG_FILE}"] + [
        f"{inside}{WEIGHTS_STEM}{end}" for end in (".safetensors", "-*-of-*.safetensors", ".safetensors.index.json")
    ]
    try:
        root = Path(snapshot_download(name, allow_patterns=patterns))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError) as error:
        reason = " ".join(str(error).split())
        raise UserError(f"{name}: no such folder, and not available from the hub: {reason}") from error
    return root / subfolder if subfolder else root


def _check_weight_files(folder: Path) -> None:
    if not any(folder.glob(f"{WEIGHTS_STEM}*.safetensors")):
        refuse_pickles(folder)
        raise UserError(f"{folder / WEIGHTS_STEM}.safetensors: no such file")


def _frame_statistics(config: Any, channels: int) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation [C] of raw latents: normalised = (raw - shift) * scaling_factor in diffusers."""
    if config.get("latents_mean") is not None and config.get("latents_std") is not None:
        mean, std = _channel_statistics(config, channels)
        return mean, std / config.scaling_factor
    shift = config.get("shift_factor") or 0.0
    return torch.full((channels,), float(shift)), torch.full((channels,), 1.0 / config.scaling_factor)


def _channel_statistics(config: Any, channels: int) -> tuple[Tensor, Tensor]:
    mean, std = torch.tensor(config.latents_mean), torch.tensor(config.latents_std)
    for name, values in (("latents_mean", mean), ("latents_std", std)):
        if values.shape != (channels,) or not values.isfinite().all():
            raise UserError(f"{name} must hold {channels} finite numbers, one per latent channel: {values.tolist()}")
    if not (std > 0).all():
        raise UserError(f"latents_std must be positive: {std.tolist()}")
    return mean, std


def _to_state(cache: list[Tensor | str | None]) -> DecodeState:
    """The filled entries (diffusers' count includes shortcut convolutions of one frame, which keep nothing)."""
    return tuple(entry for entry in cache if isinstance(entry, Tensor))
