"""68 landmarks and 7 expressions from an upright square around a face: blocks whose inputs are sums of all before."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from worldmodel.face.networks.inference import seeing
from worldmodel.face.networks.layers import Conv, Linear, SeparableConv, centred, channels_last
from worldmodel.face.networks.published import load

SIZE = 112
MEAN = (122.782, 117.001, 104.298)
EXPRESSIONS = ("neutral", "happy", "sad", "angry", "fearful", "disgusted", "surprised")


class DenseBlock(nn.Module):
    """Four convolutions; the first halves the size, each next one sees the sum of all before."""

    def __init__(self, inputs: int, outputs: int, first: bool) -> None:
        super().__init__()
        self.conv0 = Conv(inputs, outputs, 3, 2) if first else SeparableConv(inputs, outputs, 2)
        self.conv1, self.conv2, self.conv3 = (SeparableConv(outputs, outputs) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        total = F.relu(self.conv0(x))
        x = total
        for conv in (self.conv1, self.conv2, self.conv3):
            total = total + conv(x)
            x = F.relu(total)
        return x


class FaceFeatures(nn.Module):
    """RGB [B, 3, 112, 112] in 0..255 -> [B, outputs]."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        for i, (inputs, width) in enumerate(((3, 32), (32, 64), (64, 128), (128, 256))):
            self.add_module(f"dense{i}", DenseBlock(inputs, width, first=i == 0))
        self.fc = Linear(256, outputs)

    def forward(self, x: Tensor) -> Tensor:
        x = centred(x, MEAN)
        for i in range(4):
            x = self.get_submodule(f"dense{i}")(x)
        return self.fc(x.mean((2, 3)))


class Landmarks68:
    """The 68 points of the iBUG scheme: jaw 0-16, brows 17-26, nose 27-35, eyes 36-47, mouth 48-67."""

    size = SIZE

    def __init__(self, device: str = "cpu") -> None:
        self.network = channels_last(load(FaceFeatures(136), "face_landmark_68")).to(device)
        self._see = seeing(self.network, SIZE, device)

    def points(self, crops: NDArray[np.uint8]) -> NDArray[np.float64]:
        """Crops [N, 112, 112, 3] of upright faces -> [N, 68, 2] places in pixels of the crop."""
        return self._see(crops).reshape(-1, 68, 2).astype(np.float64) * SIZE - 0.5


class Expression:
    """How likely each of EXPRESSIONS is."""

    def __init__(self, device: str = "cpu") -> None:
        self.network = load(FaceFeatures(len(EXPRESSIONS)), "face_expression").to(device)
        self.device = device

    @torch.no_grad()
    def probabilities(self, crops: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Crops [N, 112, 112, 3] of upright faces -> [N, 7]."""
        x = torch.from_numpy(crops).to(self.device).permute(0, 3, 1, 2).float()
        return self.network(x).softmax(-1).cpu().numpy()
