"""A perceptual distance between pictures in the maps of a frozen encoder."""

import torch
from torch import Tensor
from torch.nn import functional as F

from worldmodel.encoders.frames import MapEncoder


@torch.no_grad()
def perceptual_distance(encoder: MapEncoder, first: Tensor, second: Tensor, batch: int = 32) -> Tensor:
    """A distance [N], on the CPU, of pictures [N, 3, H, W] each: |a - b|^2 of channel vectors of length 1, averaged.

    The form of Zhang et al. (1801.03924) with every weight 1: each map's channel vectors are normalised at every
    position, their squared differences summed over channels (2 - 2 cos, so 0 to 4), averaged over positions and then
    over maps. It is not "LPIPS", whose weights are fitted to human judgements; it is named after its encoder.
    """
    found = []
    for a, b in zip(first.split(batch), second.split(batch), strict=True):
        layers = zip(encoder.maps(a), encoder.maps(b), strict=True)
        found.append(torch.stack([_map_distance(x, y) for x, y in layers]).mean(0).cpu())
    return torch.cat(found)


def _map_distance(x: Tensor, y: Tensor) -> Tensor:
    x, y = (F.normalize(m, dim=1, eps=1e-8) for m in (x, y))
    return (x - y).square().sum(1).mean((1, 2))
