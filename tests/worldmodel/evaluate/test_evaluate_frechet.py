"""The distance against scipy's matrix root, closed forms and invariances."""

import numpy as np
import pytest
import scipy.linalg
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from worldmodel.evaluate.frechet import Gaussian, frechet, frechet_distance


def sample(n, d, seed, scale=1.0):
    rng = np.random.default_rng(seed)
    return torch.from_numpy(rng.normal(size=(n, d)) @ rng.normal(size=(d, d)) * scale + rng.normal(size=d))


def by_matrix_root(a, b):
    a, b = a.numpy(), b.numpy()
    root = scipy.linalg.sqrtm(np.cov(a.T) @ np.cov(b.T))
    return ((a.mean(0) - b.mean(0)) ** 2).sum() + np.trace(np.cov(a.T) + np.cov(b.T) - 2 * root.real)


@pytest.mark.parametrize(("n1", "n2", "d"), [(64, 80, 16), (400, 200, 50), (8, 9, 2)])
def test_equals_scipy_for_full_rank(n1, n2, d):
    a, b = sample(n1, d, 0), sample(n2, d, 1, 1.7)
    assert frechet_distance(a, b) == pytest.approx(by_matrix_root(a, b), rel=1e-6)


def test_one_dimension_has_a_closed_form():
    a, b = sample(30, 1, 3), sample(25, 1, 4, 3)
    spread = (a.std() - b.std()) ** 2
    assert frechet_distance(a, b) == pytest.approx(float((a.mean() - b.mean()) ** 2 + spread), rel=1e-12)


def test_fewer_samples_than_features_equals_the_subspace_they_lie_in():
    a, b = sample(40, 8, 5), sample(30, 8, 6)
    turn = torch.linalg.qr(sample(100, 100, 7)).Q[:8]  # 8 features embedded in 100 without changing any distance
    assert frechet_distance(a @ turn, b @ turn) == pytest.approx(by_matrix_root(a, b), rel=1e-9)


@pytest.mark.parametrize(("n", "d"), [(20, 60), (60, 20), (20, 20), (21, 20), (2, 5)])
def test_zero_for_equal_sets(n, d):
    a = sample(n, d, 8)
    assert abs(frechet_distance(a, a.clone())) <= 1e-12 * float(Gaussian.fit(a).trace)


def test_factor_reproduces_mean_and_covariance():
    for n, d in ((50, 7), (7, 50)):
        a = sample(n, d, 9)
        fitted = Gaussian.fit(a.float())
        torch.testing.assert_close(
            fitted.factor.T @ fitted.factor, torch.cov(a.float().double().T), rtol=1e-9, atol=1e-9
        )
        assert fitted.mean.dtype == torch.float64
        assert fitted.rank == min(n - 1, d)


@settings(max_examples=25, deadline=None)
@given(st.integers(2, 30), st.integers(2, 30), st.integers(1, 24), st.integers(0, 1000))
def test_symmetric_not_negative_and_shift_adds_its_square(n1, n2, d, seed):
    a, b = sample(n1, d, seed), sample(n2, d, seed + 1)
    there = frechet_distance(a, b)
    size = float(Gaussian.fit(a).trace + Gaussian.fit(b).trace)
    assert there >= -1e-9 * size
    assert frechet_distance(b, a) == pytest.approx(there, rel=1e-9, abs=1e-9 * size)
    shift = torch.zeros(d, dtype=torch.float64)
    shift[0] = 5 + float(b[:, 0].mean() - a[:, 0].mean())
    moved = frechet_distance(a + shift, b)
    assert moved - there == pytest.approx(25 - float((a.mean(0) - b.mean(0))[0] ** 2), rel=1e-6, abs=1e-9 * size + 1e-9)


def test_more_noise_is_further_away():
    a, b = sample(300, 20, 10), sample(300, 20, 10)
    rng = torch.Generator().manual_seed(0)
    distances = [
        frechet_distance(a, b + level * torch.randn(b.shape, generator=rng, dtype=b.dtype)) for level in (0, 0.5, 1, 2)
    ]
    assert distances == sorted(distances)
    assert distances[0] < 1e-9 < distances[1]


def test_gradient():
    a, b = sample(9, 4, 11).requires_grad_(), Gaussian.fit(sample(12, 4, 12))
    assert torch.autograd.gradcheck(lambda x: frechet(Gaussian.fit(x), b), a)


def test_bad_features():
    with pytest.raises(ValueError, match=r"\[1, 3\]"):
        Gaussian.fit(torch.zeros(1, 3))
    with pytest.raises(ValueError, match="not finite"):
        Gaussian.fit(torch.tensor([[1.0], [float("nan")]]))
    with pytest.raises(ValueError, match="width 3 and 4"):
        frechet_distance(torch.rand(5, 3), torch.rand(5, 4))
