"""Joint Rec-ID: reconstruction and identity in one loss of a swap, balanced by the noise level.

    L(t) = w_rec(t) |v_hat - v|^2 + lambda w_id(t) (1 - cos(E(decode(x0_hat)), E(reference)))

A swap changes who is seen and leaves most pixels as they are, so that flow matching alone hardly feels it. The loss is
StreamingSwap's, of which only an abstract is known: the formula, its gate and the variants are our own reading of it.

Letters: B rows, K frames, R reference pictures, S side of a region, D width of an embedding.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .base import check_number

Variant = Literal["noise_gated", "additive", "reweighted"]


@dataclass(frozen=True, kw_only=True)
class JointRecId:
    """Configuration.

    embedder: folder of the recogniser E (`FaceEmbedder`), never the one that a swap is measured with. weight: lambda.

    variant: `noise_gated` (our own reading of the abstract): w_rec = 1, w_id = `gate(t)`, as a recogniser has never
    seen what a model predicts from noise. `additive`: w_rec = w_id = 1 at every noise level, as losses of swaps without
    a flow have it (SimSwap, 2106.06340). `reweighted`: w_rec = 1 / (max(cos, 0) + delta), w_id = 0: frames that do
    not look like the reference count more in flow matching, and no gradient goes through E (interpretation of
    DreamID-V, 2601.01425; that a negative cosine counts as 0 is ours, the weight would change its sign).

    power: how fast the gate closes. delta: keeps the weight below 1 / delta.
    """

    embedder: Path
    variant: Variant = "noise_gated"
    weight: float = 0.1
    power: float = 1.0
    delta: float = 0.25

    def __post_init__(self) -> None:
        check_number("Joint Rec-ID: weight", self.weight, 0, 1e6)
        check_number("Joint Rec-ID: power", self.power, 1e-3, 100)
        check_number("Joint Rec-ID: delta", self.delta, 1e-3, 100)

    def __call__(self, reconstruction: Tensor, cosine: Tensor, t: Tensor) -> Tensor:
        """The loss of every frame [B, K], from its velocity error, its cosine and its flow time."""
        match self.variant:
            case "noise_gated":
                return reconstruction + self.weight * gate(t, self.power) * (1 - cosine)
            case "additive":
                return reconstruction + self.weight * (1 - cosine)
            case "reweighted":
                return reconstruction / (cosine.detach().clamp_min(0) + self.delta)

    @property
    def differentiates(self) -> bool:
        """Whether gradients go through the recogniser."""
        return self.variant != "reweighted"


def gate(t: Tensor, power: float) -> Tensor:
    """w_id(t) = ((1 - t)^2 / ((1 - t)^2 + t^2))^power: the share of the data in the power of x_t, for data of unit
    variance. 1 at the data, 1/2^power in the middle, 0 at noise, with slope 0 at both ends for power >= 1 (ours)."""
    signal, noise = (1 - t).square(), t.square()
    return (signal / (signal + noise)) ** power


class Likeness:
    """How much faces look like their reference, to a frozen recogniser E: regions [N, 3, S, S] in -1..1 -> [N, D]."""

    def __init__(self, embedder: nn.Module) -> None:
        self.embedder = embedder

    @torch.no_grad()
    def references(self, pictures: Tensor) -> Tensor:
        """Unit vectors [B, D] of people, of all their pictures [B, R, 3, S, S]: the direction of the mean."""
        found = F.normalize(self.embedder(pictures.flatten(0, 1)), dim=-1).unflatten(0, pictures.shape[:2])
        return F.normalize(found.mean(1), dim=-1)

    def __call__(self, regions: Tensor, references: Tensor) -> Tensor:
        """Cosines [B, K] of regions [B, K, 3, S, S] with references [B, D]."""
        found = self.embedder(regions.flatten(0, 1)).unflatten(0, regions.shape[:2])
        return F.cosine_similarity(found, references[:, None].to(found.dtype), dim=-1)
