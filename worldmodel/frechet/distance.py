"""Frechet distance of two populations of features: the squared 2-Wasserstein distance of Gaussians fitted to them.

    full      |m - m_r|^2 + tr S + tr S_r - 2 tr (S_r^1/2 S S_r^1/2)^1/2        (Dowson & Landau, 1982)
    diagonal  |m - m_r|^2 + sum_d (s_d - s_r,d)^2, the same for the diagonals of S and S_r
    mean      |m - m_r|^2

m are sample means and S unbiased sample covariances, all in fp64. The distance is differentiable with respect to the
first population, as in FD-loss (2604.28190). It is not "FID", which belongs to one encoder (Heusel et al., 1706.08500).
The value depends on the encoder and, as the estimate is biased upwards for few samples, on N: name both.

S_r^1/2 is made once, by `eigh`. The last trace sums the roots of the eigenvalues of the symmetrised product. No more
than min(N - 1, N_r - 1, D) of them can be above zero, and only that many are rooted, so what centring makes zero adds
nothing. Those are clamped from below by `eps` times the largest one: the slope of the root is infinite at 0, and an
eigenvalue below that is rounding. A clamped one has no gradient, and its root is off by at most sqrt(eps) of the
largest root. eps is small, as the errors of all D roots add up: with 1e-14 features whose deviations span four orders
of magnitude are off by 3e-5, with 1e-17 by 5e-7; and the gradient with respect to features stays bounded, as the slope
of a root meets a row that is as small as the root. In the diagonal mode each variance is clamped by `eps` times the
reference's.

Fewer samples than features (N <= D): the same eigenvalues are those of the N x N Gram matrix A S_r A^T, where A is the
centred features over sqrt(N - 1); with S_r = B^T B their roots are the singular values of A B^T, so the trace is its
nuclear norm. That form is exact and is taken by itself. `shrinkage` is the alternative: both covariances are
moved towards multiples of the identity, which are of full rank.

Letters: N samples, D features, index r for the reference.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

from worldmodel.errors import UserError
from worldmodel.frechet.moments import Moments, check_features

Mode = Literal["mean", "diagonal", "full"]


@dataclass(frozen=True, kw_only=True)
class Frechet:
    """Which distance. shrinkage l in [0, 1): S -> (1 - l) S + l (tr S / D) I, on both sides. eps: see the module."""

    mode: Mode = "full"
    shrinkage: float = 0.0
    eps: float = 1e-17

    def __post_init__(self) -> None:
        if self.mode not in ("mean", "diagonal", "full"):
            raise UserError(f"frechet: mode {self.mode!r} is none of mean, diagonal, full")
        if not 0 <= self.shrinkage < 1 or not 0 < self.eps < 1e-3:
            raise UserError(f"frechet: shrinkage {self.shrinkage} must be in [0, 1) and eps {self.eps} in (0, 1e-3)")

    def to(self, reference: Moments | Tensor) -> "DistanceTo":
        """The distance to a fixed reference: its moments, or its features [N_r >= 2, D]. Make it once."""
        return DistanceTo(self, reference if isinstance(reference, Moments) else Moments.of(reference))


class DistanceTo:
    """The distance of populations to a reference that does not change."""

    def __init__(self, cfg: Frechet, reference: Moments) -> None:
        _check_count(reference.count, "the reference")
        self.cfg, self.reference = cfg, reference.detach()
        covariance = _shrunk(self.reference.covariance, cfg.shrinkage)
        self._variance, self._covariance = covariance.diagonal(), covariance  # [D], [D, D]

    @property
    def dimension(self) -> int:
        return self.reference.dimension

    def __call__(self, population: Tensor | Moments) -> Tensor:
        """The distance [] of features [N >= 2, D] or their moments: fp64, on the reference's device, differentiable.

        Features that are not finite are Diverged; 0 for equal populations, up to rounding.
        """
        if isinstance(population, Tensor) and population.ndim != 2:
            raise ValueError(f"features {list(population.shape)} are not [N, D]: one row per sample")
        count, width = (population.count, population.dimension) if isinstance(population, Moments) else population.shape
        if width != self.dimension:
            raise ValueError(f"features of width {width} have no distance to a reference of width {self.dimension}")
        _check_count(count, "the population")
        device = self.reference.mean.device
        if isinstance(population, Moments):
            return self._of_moments(population.to(device))
        check_features(population)
        x = population.to(device).double()
        if self.cfg.mode != "full":
            return self._by_variance(x.mean(0), x.var(0))
        if count <= width and not self.cfg.shrinkage:
            return self._by_gram(x)
        return self._of_moments(Moments.of(x))

    def _of_moments(self, population: Moments) -> Tensor:
        if self.cfg.mode != "full":
            return self._by_variance(population.mean, population.covariance.diagonal())
        covariance = _shrunk(population.covariance, self.cfg.shrinkage)
        overlap = self._sum_of_roots(self._root @ covariance @ self._root, population.count - 1)
        return self._combined(population.mean, covariance.trace(), overlap)

    def _by_gram(self, x: Tensor) -> Tensor:
        mean = x.mean(0)
        factor = (x - mean) / (len(x) - 1) ** 0.5
        overlap = self._sum_of_roots(factor @ self._covariance @ factor.T, len(x) - 1)
        return self._combined(mean, factor.square().sum(), overlap)

    def _by_variance(self, mean: Tensor, variance: Tensor) -> Tensor:
        if self.cfg.mode == "mean":
            return (mean - self.reference.mean).square().sum()
        lam = self.cfg.shrinkage
        variance = (1 - lam) * variance + lam * variance.mean()
        floor = (self.cfg.eps * self._variance).clamp_min(torch.finfo(variance.dtype).tiny)
        overlap = (torch.maximum(variance, floor).sqrt() * self._variance.sqrt()).sum()
        return self._combined(mean, variance.sum(), overlap)

    def _combined(self, mean: Tensor, trace: Tensor, overlap: Tensor) -> Tensor:
        return (mean - self.reference.mean).square().sum() + trace + self._variance.sum() - 2 * overlap

    def _sum_of_roots(self, product: Tensor, rank: int) -> Tensor:
        """Of the eigenvalues of a symmetric product; rank: at most so many of them are not 0 (without shrinkage)."""
        eigenvalues = torch.linalg.eigvalsh((product + product.T) / 2)  # rising
        if not self.cfg.shrinkage:
            eigenvalues = eigenvalues[-min(rank, self.reference.rank, len(eigenvalues)) :]
        floor = max(self.cfg.eps * float(eigenvalues.detach().max()), torch.finfo(eigenvalues.dtype).tiny)
        return eigenvalues.clamp_min(floor).sqrt().sum()

    @cached_property
    def _root(self) -> Tensor:
        """S_r^1/2 [D, D], made when it is first needed: few samples never do."""
        values, vectors = torch.linalg.eigh(self._covariance)
        return (vectors * values.clamp_min(0).sqrt()) @ vectors.T


def _shrunk(covariance: Tensor, share: float) -> Tensor:
    if not share:
        return covariance
    identity = torch.eye(len(covariance), dtype=covariance.dtype, device=covariance.device)
    return (1 - share) * covariance + share * covariance.trace() / len(covariance) * identity


def _check_count(count: int, what: str) -> None:
    if count < 2:
        raise UserError(f"frechet: {what} has {count} samples, a distance needs at least 2")
