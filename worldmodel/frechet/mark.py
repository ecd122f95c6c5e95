"""By what a feature map is known beside its name: a path may come to hold another encoder, of the same size.

Letters: D features.
"""

import torch
from torch import Tensor

from worldmodel import noise
from worldmodel.errors import UserError
from worldmodel.frechet.features import FeatureMap

TOLERANCE = 0.01  # of the largest feature: another machine rounds otherwise, another network is far off


@torch.no_grad()
def mark_of(phi: FeatureMap, frame_shape: tuple[int, ...], frames: int, device: torch.device) -> Tensor:
    """Features [D] fp32, on the CPU, of so many latent frames of fixed noise; what is not finite counts as 0."""
    seed, places = torch.zeros(1, dtype=torch.int64), torch.arange(frames)[None]
    fixed = noise.normal(seed, places, 0, frame_shape)
    return torch.nan_to_num(phi(fixed.to(device))[0, 0].cpu().float())


def check_mark(name: str, own: Tensor, stored: Tensor) -> None:
    """A UserError if a stored mark is not that of the feature map now."""
    if stored.shape != own.shape or not float((stored - own).abs().max()) <= TOLERANCE * float(own.abs().max()):
        raise UserError(
            f"{name} is another feature map now than the one that made the checkpoint's reference: another encoder or "
            "tokenizer lies in its place; put the first back, or choose another out folder"
        )
