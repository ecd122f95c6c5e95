"""dlib's face recognition ResNet (King): 128 numbers per face; the same person is nearer than about 0.6."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from worldmodel.face.networks.layers import Conv, centred
from worldmodel.face.networks.published import load

SIZE, PADDING, WIDTH = 150, 0.25, 128
SAME = 0.6  # L2 distance below which dlib calls two faces one person's
MEAN = (122.782, 117.001, 104.298)
STAGES = (("32", 32, 3, False), ("64", 64, 3, True), ("128", 128, 2, True), ("256", 256, 2, True))


class Scale(nn.Module):
    """Per channel factor and offset: a batch norm as it is after training."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.ones(width))
        self.biases = nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weights[:, None, None] + self.biases[:, None, None]


class ScaledConv(nn.Module):
    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int = 1) -> None:
        super().__init__()
        self.conv = Conv(inputs, outputs, kernel, stride, padded=stride == 1)
        self.scale = Scale(outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.scale(self.conv(x))


class Residual(nn.Module):
    """Two convolutions beside a shortcut, which is averaged and filled with zeros where size and width change."""

    def __init__(self, inputs: int, outputs: int, down: bool) -> None:
        super().__init__()
        self.conv1 = ScaledConv(inputs, outputs, 3, 2 if down else 1)
        self.conv2 = ScaledConv(outputs, outputs, 3)
        self.down = down

    def forward(self, x: Tensor) -> Tensor:
        new = self.conv2(F.relu(self.conv1(x)))
        if self.down:
            x = F.avg_pool2d(x, 2)
            x = F.pad(x, (0, 0, 0, 0, 0, new.shape[1] - x.shape[1]))
            new = F.pad(new, (0, x.shape[3] - new.shape[3], 0, x.shape[2] - new.shape[2]))
        return F.relu(new + x)


class DlibResNet(nn.Module):
    """RGB [B, 3, 150, 150] in 0..255, aligned as dlib's chips of padding 0.25 -> [B, 128]."""

    def __init__(self) -> None:
        super().__init__()
        self.conv32_down = ScaledConv(3, 32, 7, 2)
        inputs = 32
        for name, width, blocks, down in STAGES:
            if down:
                self.add_module(f"conv{name}_down", Residual(inputs, width, True))
            for i in range(1, blocks + 1):
                self.add_module(f"conv{name}_{i}", Residual(width, width, False))
            inputs = width
        self.conv256_down_out = Residual(256, 256, True)
        self.fc = nn.Parameter(torch.zeros(WIDTH, 256))

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.conv32_down(centred(x, MEAN))), 3, 2)
        for name, module in self.named_children():
            if name != "conv32_down":
                x = module(x)
        return F.linear(x.mean((2, 3)), self.fc)


class DlibIdentity:
    """Who a face is; `network` can be differentiated, for a loss."""

    size, padding, same = SIZE, PADDING, SAME

    def __init__(self, device: str = "cpu") -> None:
        self.network = load(DlibResNet(), "face_recognition").to(device)
        self.device = device

    @torch.no_grad()
    def embed(self, chips: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Aligned chips [N, 150, 150, 3] -> [N, 128]; distances between them are L2."""
        return self.network(torch.from_numpy(chips).to(self.device).permute(0, 3, 1, 2).float()).cpu().numpy()
