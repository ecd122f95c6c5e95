"""Frozen encoders of pictures: features for Frechet distances, maps for a perceptual distance.

Pictures are [N, 3, H, W], uint8 in 0..255 or float in [-1, 1]. Features of float pictures carry gradient to them; the
encoders' own weights are frozen. The name of a metric or of a loss says which encoder made it.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from worldmodel.encoders.lite0 import Lite0
from worldmodel.errors import Diverged, UserError, out_of_memory
from worldmodel.models.autoencoder import Autoencoder
from worldmodel.models.tokenizer import Tokenizer
from worldmodel.serial import read_json


class Encoder(Protocol):
    """`name` is a short word for metric names."""

    @property
    def name(self) -> str: ...

    @property
    def size(self) -> int | None:
        """Pictures are scaled to `size` x `size` before they are encoded; None: they are taken as they are."""
        ...

    def features(self, pixels: Tensor) -> Tensor:
        """Pictures [N, 3, H, W] -> features [N, D] fp32."""
        ...


class MapEncoder(Encoder, Protocol):
    """An encoder that also shows its intermediate maps."""

    def maps(self, pixels: Tensor) -> list[Tensor]:
        """Pictures [N, 3, H, W] -> maps [N, c, h, w], from fine to coarse."""
        ...


def unit(pixels: Tensor) -> Tensor:
    """Either kind of picture as float in [-1, 1]."""
    if pixels.ndim != 4 or pixels.shape[1] != 3:
        raise ValueError(f"pictures must be [N, 3, H, W], not {list(pixels.shape)}")
    if pixels.dtype == torch.uint8:
        return pixels.float() / 127.5 - 1
    if not pixels.is_floating_point():
        raise ValueError(f"pictures must be uint8 or float, not {pixels.dtype}")
    return pixels.float()


def _resized(pixels: Tensor, size: int) -> Tensor:
    if pixels.shape[-2:] == (size, size):
        return pixels
    return F.interpolate(pixels, (size, size), mode="bilinear", antialias=True, align_corners=False)


def deviation(maps: Tensor) -> Tensor:
    """Standard deviation [N, c] of maps [N, c, h, w] over space, as sqrt(variance + 1e-12).

    The plain root has an infinite slope where a map is constant; this one is off by 1e-6 there and by less elsewhere.
    """
    return (maps.var((-2, -1), correction=0) + 1e-12).sqrt()


class Lite0Encoder:
    """EfficientNet-Lite0 trained on ImageNet: 1280 pooled features.

    Pictures are scaled bilinearly to `size` x `size` (128 by default: a quarter of the cost of the 224 it was trained
    at, and small worlds gain nothing from more) and given to it as (value - 127) / 128.
    """

    name = "lite0"
    stages = (0, 1, 2, 4, 6)  # the last map at each of the strides 2, 4, 8, 16 and 32

    def __init__(self, size: int = 128, device: torch.device | str = "cpu") -> None:
        self.size, self.device, self.net = size, device, Lite0.pretrained().to(device)

    def _input(self, pixels: Tensor) -> Tensor:
        x = (_resized(unit(pixels.to(self.device)), self.size) * 127.5 + 0.5) / 128
        return x.contiguous(memory_format=torch.channels_last)

    def features(self, pixels: Tensor) -> Tensor:
        return self.net.features(self._input(pixels))

    def maps(self, pixels: Tensor) -> list[Tensor]:
        found = self.net.maps(self._input(pixels))
        return [found[stage] for stage in self.stages]


class AutoencoderFeatures:
    """What the world model's own tokenizer sees in single frames: 5 C features.

    The mean of each latent channel over the four quarters of the picture, and its standard deviation over the picture.
    Few enough for a full-rank covariance from a few hundred frames; blind to whatever the tokenizer is blind to.
    """

    name, size = "autoencoder", None

    def __init__(self, tokenizer: Tokenizer, device: torch.device | str = "cpu") -> None:
        self.tokenizer, self.device = tokenizer, device

    def features(self, pixels: Tensor) -> Tensor:
        latents = self.tokenizer.encode(unit(pixels.to(self.device))[:, None])[:, 0]
        quarters = F.adaptive_avg_pool2d(latents, 2).flatten(1)
        return torch.cat((quarters, deviation(latents)), 1).float()


class AutoencoderHidden:
    """The last hidden map of our autoencoder's encoder: mean and standard deviation of each channel over the picture.

    It has 2 x `widths[-1]` features (256 for the default sizes): more structure than the latents, at the price of the
    encoder alone. The tokenizer must be an `Autoencoder`, else a UserError.
    """

    name, size = "autoencoder_hidden", None

    def __init__(self, tokenizer: Tokenizer, device: torch.device | str = "cpu") -> None:
        if not isinstance(tokenizer, Autoencoder):
            raise UserError(
                f"the encoder {self.name} needs an Autoencoder, the tokenizer is {type(tokenizer).__name__}"
            )
        self.tokenizer, self.device = tokenizer, device

    def features(self, pixels: Tensor) -> Tensor:
        hidden = self.tokenizer.encode_hidden(unit(pixels.to(self.device)))
        return torch.cat((hidden.mean((2, 3)), deviation(hidden)), 1).float()


class LocalEncoder:
    """Any network by local path.

    A TorchScript file (.pt, .ts) is called with pictures [N, 3, size, size] normalised by ImageNet's mean and deviation
    and must return [N, D]. A folder in the layout of transformers (config.json, safetensors weights; DINOv2, for
    instance) gives its pooled output.
    """

    MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)

    def __init__(self, path: Path, size: int = 224, device: torch.device | str = "cpu") -> None:
        self.name, self.size, self.path, self.device = encoder_name(str(path)), size, path, device
        self.net, self.pooled = _transformers(path, device) if path.is_dir() else (_torchscript(path, device), False)
        for parameter in self.net.parameters():
            parameter.requires_grad_(False)
        self.dimension = 0
        with torch.no_grad():  # before anything costs time: two grey pictures, to see whether it takes this size at all
            self.dimension = self.features(torch.zeros(2, 3, size, size)).shape[1]

    def features(self, pixels: Tensor) -> Tensor:
        x = (_resized(unit(pixels.to(self.device)), self.size) + 1) / 2
        x = (x - x.new_tensor(self.MEAN)[:, None, None]) / x.new_tensor(self.DEVIATION)[:, None, None]
        x = x.contiguous(memory_format=torch.channels_last)
        out = self._run(x)
        if not isinstance(out, Tensor) or out.ndim != 2 or len(out) != len(pixels) or not out.shape[1]:
            raise UserError(f"{self.path}: an encoder must return features [N, D], this one does not")
        if self.dimension and out.shape[1] != self.dimension:
            raise UserError(
                f"{self.path}: an encoder's features are of one number; this one gives {out.shape[1]} for {len(out)} "
                f"pictures, {self.dimension} for two"
            )
        return out.float()

    def _run(self, x: Tensor) -> Any:
        """What the network gives for its input; what goes wrong in a file of anyone's is told in one line."""
        try:
            return self.net(x).pooler_output if self.pooled else self.net(x)
        except Exception as error:
            if out_of_memory(error):
                raise
            reason = (str(error).strip().splitlines() or [type(error).__name__])[-1]
            raise UserError(f"{self.path}: the encoder cannot take pictures of {list(x.shape)} ({reason})") from error


def _torchscript(path: Path, device: torch.device | str) -> nn.Module:
    """Frozen, with normalisations folded into the convolutions before them; MobileNetV2 takes half as long on a CPU."""
    if not path.is_file():
        raise UserError(
            f"{path}: no such encoder; give lite0, autoencoder, autoencoder_hidden, a TorchScript file or a folder"
        )
    try:
        net = torch.jit.load(str(path), map_location=device).eval().to(memory_format=torch.channels_last)
        return torch.jit.freeze(net)
    except RuntimeError as error:
        raise UserError(f"{path}: not a TorchScript file ({str(error).splitlines()[0]})") from error


def _transformers(path: Path, device: torch.device | str) -> tuple[nn.Module, bool]:
    config = read_json(path / "config.json")
    if not isinstance(config, dict) or "model_type" not in config:
        raise UserError(f"{path}: an encoder's folder needs a config.json of transformers with a model_type")
    from transformers import AutoModel  # takes seconds to import

    try:
        net = AutoModel.from_pretrained(path, local_files_only=True, use_safetensors=True, trust_remote_code=False)
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: {str(error).splitlines()[0]}") from error
    return net.eval().to(device), True


def encoder_name(choice: str) -> str:
    """What the encoder of that choice is called in the names of metrics."""
    return Path(choice).stem.replace("-", "_")


def check_encoders(what: str, choices: Sequence[str]) -> None:
    """A UserError unless the choices are different encoders, of different names: metrics and losses go by these."""
    named: dict[str, str] = {}
    for choice in choices:
        name = encoder_name(choice)
        if not name:
            raise UserError(f"{what}: '{choice}' names no encoder")
        if name in named:
            pair = choice if choice == named[name] else f"{named[name]} and {choice}"
            raise UserError(f"{what}: encoders {tuple(choices)} name one twice ('{name}': {pair})")
        named[name] = choice


def open_encoder(choice: str, tokenizer: Tokenizer, device: torch.device | str = "cpu") -> Encoder:
    """lite0; autoencoder or autoencoder_hidden (the model's own tokenizer); the path of a TorchScript file or of a
    transformers folder.

    device: where the encoder runs; the tokenizer must be there already.
    """
    match choice:
        case "lite0":
            return Lite0Encoder(device=device)
        case "autoencoder":
            return AutoencoderFeatures(tokenizer, device)
        case "autoencoder_hidden":
            return AutoencoderHidden(tokenizer, device)
        case _:
            return LocalEncoder(Path(choice), device=device)


@torch.no_grad()
def features_of(encoder: Encoder, pixels: Tensor, batch: int = 32) -> Tensor:
    """Features [N, D] fp64, on the CPU, of any number of pictures [N, 3, H, W], a few at a time.

    Diverged, with the encoder's name, if they are not finite.
    """
    found = torch.cat([encoder.features(piece).cpu().double() for piece in pixels.split(batch)])
    bad = int((~torch.isfinite(found)).any(1).sum())
    if bad:
        raise Diverged(f"encoder {encoder.name}: features of {bad} of {len(found)} pictures are not finite")
    return found
