"""Frechet distance between two sets of features: the squared 2-Wasserstein distance of the Gaussians fitted to them.

    FD = |m1 - m2|^2 + tr C1 + tr C2 - 2 tr (C1 C2)^(1/2)

(Dowson & Landau, 1982), with sample means m and unbiased sample covariances C (divisor N - 1), all in fp64. It is not
"FID": that name belongs to one encoder (Heusel et al., 1706.08500). The value depends on the encoder and, as the
estimate is biased upwards for few samples, on N: name both, and compare only values of the same N.

With factors C1 = A^T A and C2 = B^T B the last trace is the nuclear norm |A B^T|_*, because the non-zero eigenvalues of
C1 C2 are the squared singular values of A B^T. For N <= D the factor is the centred features over sqrt(N - 1), whose
rank is N - 1 at most; for N > D it is the triangle of their QR decomposition. So nothing of size D x D is ever rooted,
and the singular value that centring makes zero is dropped instead of adding its rounding error.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Gaussian:
    """What the distance needs of a set of features. Make it once for a reference that is compared with many sets."""

    mean: Tensor  # [D] fp64
    factor: Tensor  # [R, D] fp64, R = min(N, D); covariance = factor^T factor
    rank: int  # at most min(N - 1, D)

    @classmethod
    def fit(cls, features: Tensor) -> "Gaussian":
        """From features [N, D], N >= 2; not finite values are a ValueError."""
        if features.ndim != 2 or features.shape[0] < 2:
            raise ValueError(f"a Gaussian needs features [N >= 2, D], not {list(features.shape)}")
        if not torch.isfinite(features).all():
            raise ValueError("features hold values that are not finite")
        x = features.double()
        mean = x.mean(0)
        factor = (x - mean) / (x.shape[0] - 1) ** 0.5
        if x.shape[0] > x.shape[1]:
            factor = torch.linalg.qr(factor).R
        return cls(mean, factor, min(x.shape[0] - 1, x.shape[1]))

    @property
    def trace(self) -> Tensor:
        """Trace of the covariance."""
        return self.factor.square().sum()


def frechet(first: Gaussian, second: Gaussian) -> Tensor:
    """The distance [] between two fitted Gaussians, fp64, differentiable; 0 for equal ones (up to rounding)."""
    if first.mean.shape != second.mean.shape:
        raise ValueError(f"features of width {len(first.mean)} and {len(second.mean)} have no distance")
    singular = torch.linalg.svdvals(first.factor @ second.factor.T)  # falling
    overlap = singular[: min(first.rank, second.rank)].sum()
    return (first.mean - second.mean).square().sum() + first.trace + second.trace - 2 * overlap


def frechet_distance(first: Tensor, second: Tensor) -> float:
    """The distance between features [N1, D] and [N2, D]."""
    return float(frechet(Gaussian.fit(first), Gaussian.fit(second)))
