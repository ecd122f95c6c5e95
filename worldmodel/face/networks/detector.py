"""Tiny face detector: a YOLO v2 (Redmon & Farhadi, 1612.08242) of separable convolutions, 5 anchors on a 32nd grid."""

import cv2
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from worldmodel.face.networks.inference import seeing
from worldmodel.face.networks.layers import Conv, SeparableConv, centred, channels_last, same
from worldmodel.face.networks.published import load

WIDTHS = (3, 16, 32, 64, 128, 256, 512)
ANCHORS = ((1.603231, 2.094468), (6.041143, 7.080126), (2.882459, 3.518061), (4.266906, 5.178857), (9.041765, 10.66308))
MEAN = (117.001, 114.697, 97.404)
OVERLAP = 0.4


class TinyFaceDetector(nn.Module):
    """RGB [B, 3, S, S] in 0..255, S a multiple of 32 -> [B, S/32, S/32, 5, 5]: x, y, log width, log height, logit."""

    def __init__(self) -> None:
        super().__init__()
        self.conv0 = Conv(WIDTHS[0], WIDTHS[1], 3, padded=False)
        for i in range(1, 6):
            self.add_module(f"conv{i}", SeparableConv(WIDTHS[i], WIDTHS[i + 1]))
        self.conv8 = Conv(WIDTHS[-1], 25, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = F.leaky_relu(self.conv0(centred(x, MEAN)), 0.1)
        for i in range(1, 6):
            x = F.max_pool2d(same(x, 2, 2), 2)
            x = F.leaky_relu(self.get_submodule(f"conv{i}")(x), 0.1)
        x = F.max_pool2d(F.pad(x, (0, 1, 0, 1), value=-torch.inf), 2, 1)
        x = self.conv8(x)
        return x.permute(0, 2, 3, 1).unflatten(-1, (5, 5))


def decode(grid: Tensor) -> tuple[Tensor, Tensor]:
    """Boxes [N, 4] (left, top, right, bottom) as fractions of the input's side, and scores [N], of a picture's grid."""
    cells = grid.shape[0]
    row, column = torch.meshgrid(torch.arange(cells), torch.arange(cells), indexing="ij")
    corner = torch.stack((column, row), -1)[:, :, None]
    centre = (corner + grid[..., :2].sigmoid()) / cells
    half = grid[..., 2:4].exp() * grid.new_tensor(ANCHORS) / cells / 2
    return torch.cat((centre - half, centre + half), -1).reshape(-1, 4), grid[..., 4].sigmoid().reshape(-1)


class TinyDetector:
    """Boxes of the faces in a picture.

    size: side of the square that the picture is shrunk into, a multiple of 32. 224 finds faces from a tenth of the
    picture's longer side up; larger sizes find smaller faces and miss large ones. least: smallest score, in 0..1.
    """

    def __init__(self, size: int = 224, least: float = 0.5, device: str = "cpu") -> None:
        network = load(TinyFaceDetector(), "tiny_face_detector")
        self.network = channels_last(network).to(device)
        self.size, self.least = size, least
        self._see = seeing(self.network, size, device)

    def detect(self, picture: NDArray[np.uint8]) -> NDArray[np.float32]:
        """[N, 5]: left, top, right, bottom in pixels and score, the best first."""
        height, width = picture.shape[:2]
        scale = self.size / max(height, width)
        small = cv2.resize(
            picture, (max(1, round(width * scale)), max(1, round(height * scale))), interpolation=cv2.INTER_AREA
        )
        square = np.zeros((self.size, self.size, 3), np.uint8)
        square[: small.shape[0], : small.shape[1]] = small
        boxes, scores = decode(torch.from_numpy(self._see(square[None])[0]))
        boxes, scores = boxes[scores >= self.least] * max(height, width) - 0.5, scores[scores >= self.least]
        kept = best(boxes.numpy(), scores.numpy())
        return torch.cat((boxes, scores[:, None]), 1).numpy()[kept]


def best(boxes: NDArray[np.float32], scores: NDArray[np.float32]) -> NDArray[np.intp]:
    """Which boxes [N, 4] overlap with no better one by more than OVERLAP, the best first."""
    sides = np.concatenate((boxes[:, :2], boxes[:, 2:] - boxes[:, :2]), 1).astype(np.float64)
    return np.asarray(cv2.dnn.NMSBoxes(sides.tolist(), scores.tolist(), 0.0, OVERLAP), np.intp).reshape(-1)
