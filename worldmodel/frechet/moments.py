"""Mean, covariance and number of a population of features, in fp64; partial ones merge into the whole.

Letters: N samples, D features.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from worldmodel.errors import Diverged


@dataclass(frozen=True, slots=True)
class Moments:
    """A population as a Gaussian sees it."""

    mean: Tensor  # [D] fp64
    covariance: Tensor  # [D, D] fp64, unbiased (divisor N - 1); zeros for a single sample
    count: int  # N

    @classmethod
    def of(cls, features: Tensor) -> "Moments":
        """Of features [N, D], N >= 1, with their gradient. Diverged if one of them is not finite."""
        check_features(features)
        x = features.double()
        mean = x.mean(0)
        centred = x - mean
        return cls(mean, centred.T @ centred / max(len(x) - 1, 1), len(x))

    @property
    def dimension(self) -> int:
        return len(self.mean)

    @property
    def rank(self) -> int:
        """The highest rank that the covariance of so many samples can have."""
        return min(self.count - 1, self.dimension)

    def merge(self, other: "Moments") -> "Moments":
        """Of both populations together, exactly (the pairwise update of Chan, Golub & LeVeque, 1983)."""
        if self.dimension != other.dimension:
            raise ValueError(f"features of width {self.dimension} and {other.dimension} are not one population")
        count = self.count + other.count
        apart = other.mean - self.mean
        scatter = (self.count - 1) * self.covariance + (other.count - 1) * other.covariance
        scatter = scatter + torch.outer(apart, apart) * (self.count * other.count / count)
        return Moments(self.mean + apart * (other.count / count), scatter / (count - 1), count)

    def detach(self) -> "Moments":
        return Moments(self.mean.detach(), self.covariance.detach(), self.count)

    def to(self, device: torch.device | str) -> "Moments":
        """On a device that has fp64."""
        return Moments(self.mean.to(device), self.covariance.to(device), self.count)


def check_features(features: Tensor) -> None:
    """ValueError unless features are [N >= 1, D >= 1] floats, Diverged (which names the first row) unless finite."""
    if features.ndim != 2 or 0 in features.shape or not features.is_floating_point():
        raise ValueError(f"features must be floats [N, D], not {features.dtype} {list(features.shape)}")
    bad = (~torch.isfinite(features.detach())).any(1)
    if bad.any():
        first = int(bad.nonzero()[0])
        raise Diverged(f"features are not finite in {int(bad.sum())} of {len(features)} rows, first in row {first}")
