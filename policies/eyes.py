"""From pictures to the places of learned features: small trained convolutions, or trained ones on frozen features.

Letters: B pictures, H W pixels, P keypoints, C channels of the frozen features.
"""

import torch
from torch import Tensor, nn

from worldmodel.encoders.lite0 import STAGES, Lite0

SHARPNESS = 10.0  # of the softmax over places: at 1 it starts out flat, and a goal of two pixels is not found in time
KEPT, FINER = 3, 8  # stages of the frozen network that are used, and by how much their maps are smaller than pictures
WIDTH = STAGES[KEPT - 1][3]


class Keypoints(nn.Module):
    """Pictures or their features [B, C, H, W] to where P learned features are, [B, 2 * P] in [-1, 1]: all x, then all
    y (spatial softmax, Levine et al., 1504.00702). features: makes a map of each from them."""

    def __init__(self, features: nn.Sequential) -> None:
        super().__init__()
        self.features = features

    def forward(self, pictures: Tensor) -> Tensor:
        maps = SHARPNESS * self.features(pictures)
        rows, columns = maps.shape[2:]
        weight = maps.flatten(2).softmax(-1).unflatten(-1, (rows, columns))
        x = weight.sum(2) @ torch.linspace(-1, 1, columns, device=maps.device, dtype=maps.dtype)
        y = weight.sum(3) @ torch.linspace(-1, 1, rows, device=maps.device, dtype=maps.dtype)
        return torch.cat((x, y), -1)


def trained_eye(channels: tuple[int, ...], keypoints: int) -> Keypoints:
    """For pictures [B, 3, H, W] in [-1, 1]; each of the convolutions but the last halves them."""
    layers: list[nn.Module] = []
    last = 3
    for number, width in enumerate(channels):
        stride = 2 if number + 1 < len(channels) else 1
        layers += [nn.Conv2d(last, width, 5 if number == 0 else 3, stride, 2 if number == 0 else 1)]
        layers += [nn.GroupNorm(width // 8, width), nn.SiLU()]
        last = width
    return Keypoints(nn.Sequential(*layers, nn.Conv2d(last, keypoints, 1)))


def eye_on_frozen(width: int, keypoints: int) -> Keypoints:
    """For the maps of `FrozenFeatures`; `width`: channels between both convolutions."""
    first = (nn.Conv2d(WIDTH, width, 3, 1, 1), nn.GroupNorm(width // 8, width), nn.SiLU())
    return Keypoints(nn.Sequential(*first, nn.Conv2d(width, keypoints, 1)))


class FrozenFeatures(nn.Module):
    """The first stages of EfficientNet-Lite0: pictures [B, 3, H, W] in [-1, 1] to maps [B, 40, H / 8, W / 8].

    It is never trained. Its weights are random until `load_imagenet`, and part of what is saved.
    """

    def __init__(self) -> None:
        super().__init__()
        whole = Lite0()
        self.stem, self.blocks = whole.stem, whole.blocks[: whole.ends[KEPT - 1] + 1]
        self.eval().requires_grad_(False)

    def load_imagenet(self) -> None:
        """ImageNet's weights. UserError if the package that carries them is not installed."""
        whole = Lite0.pretrained().state_dict()
        self.load_state_dict({name: whole[name] for name in self.state_dict()})

    def train(self, mode: bool = True) -> "FrozenFeatures":
        """It stays as it is: its averages are not to be moved by what is seen here."""
        return super().train(False)

    @torch.no_grad()
    def forward(self, pictures: Tensor) -> Tensor:
        x = self.stem((127.5 * pictures + 0.5) / 128)  # (value - 127) / 128 of 0 to 255
        for block in self.blocks:
            x = block(x)
        return x
