"""Populations of features, and the distance by scipy's matrix root. Shared by the tests beside it."""

import numpy as np
import scipy.linalg
import torch


def sample(n, d, seed, scale=1.0):
    """Correlated features [n, d] fp64 about a mean that is not 0."""
    rng = np.random.default_rng(seed)
    return torch.from_numpy(rng.normal(size=(n, d)) @ rng.normal(size=(d, d)) * scale + rng.normal(size=d))


def by_matrix_root(a, b):
    a, b = a.numpy(), b.numpy()
    one, two = np.atleast_2d(np.cov(a.T)), np.atleast_2d(np.cov(b.T))
    root = scipy.linalg.sqrtm(one @ two)
    return ((a.mean(0) - b.mean(0)) ** 2).sum() + np.trace(one + two - 2 * root.real)


def by_nuclear_norm(a, b):
    """The same for any rank: tr (C1 C2)^1/2 = |A B^T|_* / sqrt((n - 1) (m - 1)) of centred features A and B."""
    x, y = a - a.mean(0), b - b.mean(0)
    overlap = torch.linalg.matrix_norm(x @ y.T, "nuc") / ((len(a) - 1) * (len(b) - 1)) ** 0.5
    spread = x.square().sum() / (len(a) - 1) + y.square().sum() / (len(b) - 1)
    return (a.mean(0) - b.mean(0)).square().sum() + spread - 2 * overlap
