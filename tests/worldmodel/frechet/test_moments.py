"""Partial statistics merge into those of the whole."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from populations import sample

from worldmodel.frechet.moments import Moments


def same(a, b, rtol=1e-12):
    assert a.count == b.count
    size = float(b.covariance.abs().max())
    torch.testing.assert_close(a.mean, b.mean, rtol=rtol, atol=rtol * size)
    torch.testing.assert_close(a.covariance, b.covariance, rtol=rtol, atol=rtol * size)


def test_moments_are_the_mean_and_the_unbiased_covariance():
    x = sample(30, 5, 0)
    found = Moments.of(x.float())
    assert found.mean.dtype == found.covariance.dtype == torch.float64
    torch.testing.assert_close(found.covariance, torch.cov(x.float().double().T), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(found.mean, x.float().double().mean(0), rtol=1e-14, atol=0)
    assert (found.count, found.dimension, found.rank) == (30, 5, 5)
    assert Moments.of(x[:4]).rank == 3
    assert Moments.of(x[:1]).covariance.abs().max() == 0


@given(st.lists(st.integers(1, 9), min_size=2, max_size=5), st.integers(1, 6), st.floats(0, 1e4))
def test_merged_parts_are_the_whole(sizes, d, offset):
    x = sample(sum(sizes), d, sum(sizes)) + offset
    parts = [Moments.of(part) for part in x.split(sizes)]
    found = parts[0]
    for part in parts[1:]:
        found = found.merge(part)
    same(found, Moments.of(x), 1e-9)


def test_merging_is_differentiable_like_the_whole():
    x = sample(9, 3, 1).requires_grad_()
    weight = sample(3, 3, 2)
    both = (Moments.of(x), Moments.of(x[:4]).merge(Moments.of(x[4:])))
    slopes = [torch.autograd.grad((m.covariance * weight).sum() + m.mean.square().sum(), x)[0] for m in both]
    torch.testing.assert_close(slopes[1], slopes[0], rtol=1e-12, atol=1e-12)


def test_other_widths_do_not_merge():
    with pytest.raises(ValueError, match="width 2 and 3"):
        Moments.of(sample(4, 2, 0)).merge(Moments.of(sample(4, 3, 0)))
