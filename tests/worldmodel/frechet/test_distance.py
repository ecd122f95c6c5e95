"""The distance against scipy's matrix root and the nuclear norm, closed forms, invariances and gradients."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from populations import by_matrix_root, by_nuclear_norm, sample
from torch.autograd import gradcheck

from worldmodel.errors import Diverged, UserError
from worldmodel.frechet.distance import Frechet
from worldmodel.frechet.moments import Moments

MODES = ("mean", "diagonal", "full")


def distance(a, b, mode="full", shrinkage=0.0):
    return float(Frechet(mode=mode, shrinkage=shrinkage).to(b)(a))


def gaussian(mean, covariance, count=10**6):
    return Moments(torch.as_tensor(mean).double(), torch.as_tensor(covariance).double(), count)


@pytest.mark.parametrize(("n1", "n2", "d"), [(64, 80, 16), (400, 200, 50), (8, 9, 2), (1024, 1024, 256)])
def test_equals_scipy_for_full_rank(n1, n2, d):
    a, b = sample(n1, d, 0), sample(n2, d, 1, 1.7)
    assert distance(a, b) == pytest.approx(by_matrix_root(a, b), rel=1e-6)
    assert distance(Moments.of(a), Moments.of(b)) == pytest.approx(by_matrix_root(a, b), rel=1e-6)


@pytest.mark.parametrize(
    ("n1", "n2", "d"), [(20, 60, 40), (20, 30, 40), (30, 20, 40), (40, 200, 40), (41, 20, 40), (2, 3, 9)]
)
def test_few_samples_equal_the_nuclear_norm(n1, n2, d):
    a, b = sample(n1, d, 2), sample(n2, d, 3, 0.6)
    expected = by_nuclear_norm(a, b).item()
    assert distance(a, b) == pytest.approx(expected, rel=1e-9)
    assert distance(Moments.of(a), b) == pytest.approx(expected, rel=1e-6)  # D x D instead of N x N


@pytest.mark.parametrize(("n", "d"), [(256, 40), (600, 120), (40, 120)])
def test_deviations_over_four_orders_of_magnitude(n, d):
    """As real encoders have them: value and gradient against the nuclear norm, which never squares a singular value."""
    spread = torch.linalg.qr(sample(d, d, 20)).Q * torch.logspace(0, -4, d, dtype=torch.float64)[:, None]
    z = torch.randn(2, 600, d, generator=torch.Generator().manual_seed(0), dtype=torch.float64) @ spread
    a, b = z[0, :n].clone().requires_grad_(), 1.1 * z[1] + 0.1
    expected, found = by_nuclear_norm(a, b), Frechet().to(b)(a)
    assert found.item() == pytest.approx(expected.item(), rel=2e-6)
    slopes = [torch.autograd.grad(value, a)[0] for value in (found, expected)]
    assert (slopes[0] - slopes[1]).norm() < 3e-3 * slopes[1].norm()


def test_fewer_samples_than_features_equals_the_subspace_they_lie_in():
    a, b = sample(40, 8, 5), sample(30, 8, 6)
    turn = torch.linalg.qr(sample(100, 100, 7)).Q[:8]  # 8 features embedded in 100 without changing any distance
    assert distance(a @ turn, b @ turn) == pytest.approx(by_matrix_root(a, b), rel=1e-6)


def test_one_dimension_has_a_closed_form():
    a, b = sample(30, 1, 3), sample(25, 1, 4, 3)
    spread = (a.std() - b.std()) ** 2
    for mode in ("diagonal", "full"):
        assert distance(a, b, mode) == pytest.approx(float((a.mean() - b.mean()) ** 2 + spread), rel=1e-12)


def test_equal_covariances_leave_the_means():
    a = sample(50, 6, 8)
    shift = torch.arange(6).double()
    for mode in MODES:
        assert distance(a + shift, a, mode) == pytest.approx(55, rel=1e-10)


def test_commuting_covariances_have_a_closed_form():
    """With common eigenvectors the distance is that of the roots of the eigenvalues."""
    turn = torch.linalg.qr(sample(5, 5, 9)).Q
    one, two = torch.tensor([0.1, 1, 4, 9, 25.0]).double(), torch.tensor([3, 2, 0.5, 16, 1.0]).double()
    a, b = (gaussian(torch.zeros(5), turn @ v.diag() @ turn.T) for v in (one, two))
    assert distance(a, b) == pytest.approx(float((one.sqrt() - two.sqrt()).square().sum()), rel=1e-10)
    a, b = gaussian(torch.ones(5), one.diag()), gaussian(torch.zeros(5), two.diag())
    expected = 5 + float((one.sqrt() - two.sqrt()).square().sum())
    assert distance(a, b) == pytest.approx(expected, rel=1e-10)
    assert distance(a, b, "diagonal") == pytest.approx(expected, rel=1e-10)
    assert distance(a, b, "mean") == 5


def test_two_dimensions_have_a_closed_form():
    """tr M^1/2 = sqrt(tr M + 2 sqrt(det M)) for 2 x 2: correlated covariances that do not commute."""
    one, two = np.array([[2, 0.9], [0.9, 1]]), np.array([[1, -0.5], [-0.5, 3]])
    root = np.sqrt(np.trace(one @ two) + 2 * np.sqrt(np.linalg.det(one @ two)))
    assert distance(gaussian([0, 0], one), gaussian([3, 4], two)) == pytest.approx(25 + 7 - 2 * root, rel=1e-10)


def test_diagonal_ignores_correlation():
    a, b = sample(60, 4, 10), sample(60, 4, 11)
    expected = (a.mean(0) - b.mean(0)).square().sum() + (a.std(0) - b.std(0)).square().sum()
    assert distance(a, b, "diagonal") == pytest.approx(float(expected), rel=1e-12)
    assert distance(Moments.of(a), b, "diagonal") == pytest.approx(float(expected), rel=1e-12)


@pytest.mark.parametrize("mode", ["diagonal", "full"])
@pytest.mark.parametrize("n", [6, 40])
def test_shrinkage_is_the_distance_of_shrunk_covariances(mode, n):
    a, b = sample(n, 8, 12), sample(50, 8, 13)
    shrunk = [
        m.covariance * 0.7 + 0.3 * m.covariance.trace() / 8 * torch.eye(8).double() for m in map(Moments.of, (a, b))
    ]
    if mode == "diagonal":
        shrunk = [c.diagonal().diag() for c in shrunk]
    one, two = (gaussian(x.mean(0), c) for x, c in zip((a, b), shrunk, strict=True))
    assert distance(a, b, mode, 0.3) == pytest.approx(distance(one, two), rel=1e-9)
    assert distance(a, b, mode, 0.3) != pytest.approx(distance(a, b, mode), rel=1e-3)


counts = {"n1": st.integers(2, 30), "n2": st.integers(2, 30), "d": st.integers(1, 24), "seed": st.integers(0, 999)}


@given(**counts, mode=st.sampled_from(MODES))
def test_symmetric_not_negative_and_zero_for_the_same(n1, n2, d, seed, mode):
    a, b = sample(n1, d, seed), sample(n2, d, seed + 1)
    size = float(a.var(0).sum() + b.var(0).sum())
    there = distance(a, b, mode)
    assert there >= -1e-6 * size
    assert distance(b, a, mode) == pytest.approx(there, rel=1e-6, abs=1e-6 * size)
    assert abs(distance(a, a.clone(), mode)) <= 1e-6 * size


@given(**counts, mode=st.sampled_from(MODES))
def test_translation_of_both_changes_nothing_and_of_one_adds_its_square(n1, n2, d, seed, mode):
    a, b = sample(n1, d, seed), sample(n2, d, seed + 1)
    size = float(a.var(0).sum() + b.var(0).sum())
    shift = sample(1, d, seed + 2)
    there = distance(a, b, mode)
    assert distance(a + shift, b + shift, mode) == pytest.approx(there, rel=1e-6, abs=1e-6 * size)
    between = a.mean(0) - b.mean(0)
    expected = float((between + shift).square().sum() - between.square().sum())
    assert distance(a + shift, b, mode) - there == pytest.approx(expected, rel=1e-6, abs=1e-6 * size + 1e-9)


@given(**counts)
def test_rotation_changes_nothing_and_scale_is_squared(n1, n2, d, seed):
    a, b = sample(n1, d, seed), sample(n2, d, seed + 1)
    size = float(a.var(0).sum() + b.var(0).sum())
    turn = torch.linalg.qr(sample(d, d, seed + 2)).Q
    there = distance(a, b)
    assert distance(a @ turn, b @ turn) == pytest.approx(there, rel=1e-6, abs=1e-6 * size)
    assert distance(3 * a, 3 * b) == pytest.approx(9 * there, rel=1e-6, abs=1e-5 * size)


@pytest.mark.parametrize("shrinkage", [0.0, 0.2])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("n", "m"), [(9, 12), (4, 12), (3, 3), (9, 3), (5, 12)])
def test_gradient(mode, n, m, shrinkage):
    """Five features: by D x D, by N x N, with a reference of lower rank, and at the border."""
    to = Frechet(mode=mode, shrinkage=shrinkage).to(sample(m, 5, 12))
    a = sample(n, 5, 11).requires_grad_()
    assert gradcheck(to, a)
    assert gradcheck(lambda x: to(Moments.of(x)), a)


@pytest.mark.parametrize("mode", MODES)
def test_gradient_is_finite_where_the_root_has_none(mode):
    """Repeated rows, a constant feature, a whole population in one point."""
    few, constant, point = sample(3, 8, 13), sample(30, 8, 14), torch.ones(6, 8, dtype=torch.float64)
    few[2] = few[1]
    constant[:, 3] = 1
    for a in (few, constant, point):
        for b in (sample(20, 8, 15), few, constant, point):
            x = a.clone().requires_grad_()
            found = Frechet(mode=mode).to(b)(x)
            found.backward()
            assert torch.isfinite(found)
            assert torch.isfinite(x.grad).all()
            assert x.grad.abs().max() < 1e3


def test_descent_finds_the_reference():
    """A population of half as many samples as features goes down to the distance 0 under its gradient."""
    b = sample(12, 16, 16, 0.3)
    x = sample(8, 16, 17).requires_grad_()
    to, best = Frechet().to(b), torch.optim.LBFGS([x], max_iter=200, line_search_fn="strong_wolfe")

    def loss():
        best.zero_grad()
        value = to(x)
        value.backward()
        return value

    first = loss().item()
    best.step(loss)
    # 7 of the reference's 11 directions can be filled: what remains is the variance in the others
    rest = torch.linalg.eigvalsh(Moments.of(b).covariance)[:-7].sum()
    assert to(x).item() == pytest.approx(float(rest), rel=1e-3)
    assert first > 10 * float(rest)


def test_more_noise_is_further_away():
    a, rng = sample(300, 20, 10), torch.Generator().manual_seed(0)
    noise = [torch.randn(a.shape, generator=rng, dtype=a.dtype) for _ in range(4)]
    found = [distance(a + level * n, a) for level, n in zip((0, 0.5, 1, 2), noise, strict=True)]
    assert found == sorted(found)
    assert found[0] < 1e-6 < found[1]


def test_half_precision_features_are_summed_in_fp64():
    a = sample(4000, 3, 18).float() + 1000
    b = sample(50, 3, 19).float()
    assert Frechet().to(b)(a).dtype == torch.float64
    assert distance(a, b) == pytest.approx(by_matrix_root(a.double(), b.double()), rel=1e-9)


def test_bad_requests():
    to = Frechet().to(sample(9, 3, 0))
    with pytest.raises(Diverged, match="not finite in 2 of 4 rows, first in row 1"):
        to(torch.tensor([[1.0, 2, 3], [float("nan"), 2, 3], [1, 2, 3], [1, float("inf"), 3]]))
    with pytest.raises(ValueError, match=r"width 4 .* width 3"):
        to(torch.rand(5, 4))
    with pytest.raises(ValueError, match=r"\[N, D\]"):
        Moments.of(torch.rand(5))
    with pytest.raises(ValueError, match="int64"):
        Moments.of(torch.ones(5, 2, dtype=torch.int64))
    with pytest.raises(ValueError, match=r"\[2, 4, 3\] are not \[N, D\]"):
        to(torch.rand(2, 4, 3))
    with pytest.raises(UserError, match="population has 1 samples"):
        to(torch.rand(1, 3))
    with pytest.raises(UserError, match="reference has 1 samples"):
        Frechet().to(torch.rand(1, 3))
    with pytest.raises(UserError, match="'half' is none of"):
        Frechet(mode="half")
    with pytest.raises(UserError, match="shrinkage 1"):
        Frechet(shrinkage=1)
