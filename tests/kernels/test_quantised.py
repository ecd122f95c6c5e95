"""A memory in one byte a number: bounds of its error against fp64, what smoothing is worth, parts of an attention."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from worldmodel.kernels.quantised import attend, merge, quantise


def draw(seed, *shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def bound(y, kind):
    """How far a number may be off, of a token's numbers y, fp64."""
    most = y.abs().amax(-1, keepdim=True)
    if kind == "int8":
        return most / 254
    return torch.maximum(y.abs() / 16, most / 448 / 1024)


@pytest.mark.parametrize("kind", ["int8", "fp8"])
@pytest.mark.parametrize("smooth", [True, False])
@given(st.integers(0, 2**31), st.floats(-5, 5), st.floats(0, 20))
def test_error_is_within_its_bound(kind, smooth, seed, exponent, mean):
    x = (draw(seed, 1, 2, 12, 8) + mean) * 10**exponent
    made = quantise(x, 4, kind, smooth)
    y = x.double()
    if smooth:
        y = y - x.double().unflatten(2, (3, 4)).mean(3).repeat_interleave(4, 2)
    rounding = 4 * torch.finfo(torch.float32).eps * x.abs().max()
    error = (made.dense(torch.float64) - x.double()).abs()
    assert (error <= bound(y, kind) * (1 + 1e-5) + rounding).all()
    assert error.max() >= 0.02 * bound(y, kind).max()  # codes are used to the full


def test_bytes():
    """Of 64-dimensional heads: 64 + 4 a token instead of 128, and the means of pages."""
    x = draw(0, 1, 2, 32, 64)
    assert quantise(x, 16, "int8", False).nbytes == 2 * 32 * (64 + 4)
    assert quantise(x, 16, "fp8", True).nbytes == 2 * 32 * (64 + 4) + 2 * 2 * 64 * 4


def test_pages_are_frozen_and_apart():
    """A page's codes do not depend on the pages beside it."""
    x = draw(1, 1, 1, 8, 16)
    whole, half = quantise(x, 4, "int8", True), quantise(x[:, :, 4:], 4, "int8", True)
    assert torch.equal(whole.codes[:, :, 4:], half.codes) and torch.equal(whole.scale[:, :, 4:], half.scale)
    with pytest.raises(ValueError, match="7 tokens do not make pages of 4"):
        quantise(x[:, :, :7], 4, "int8", True)


def test_zeros_stay_zeros():
    for kind in ("int8", "fp8"):
        assert not quantise(torch.zeros(1, 1, 4, 8), 2, kind, True).dense().any()


def softmax(q, k, v, scale):
    return (q.double() @ k.double().mT * scale).softmax(-1) @ v.double()


def test_smoothing_pays_and_common_means_would_not_cancel():
    """Keys with a large mean for every page: with the mean apart the attention is several times closer."""
    q, v = draw(2, 1, 2, 9, 32), draw(3, 1, 2, 32, 32)
    k = draw(4, 1, 2, 32, 32) + 6 * draw(5, 1, 2, 4, 32).repeat_interleave(8, 2)
    values, right = quantise(v, 8, "int8", False), softmax(q, k, v, 32**-0.5)
    errors = []
    for smooth in (True, False):
        keys = quantise(k, 8, "int8", smooth)
        found, _ = attend(q, keys, values, None, 32**-0.5)
        errors.append(float((found - right).abs().max()))
    assert errors[0] < 0.05 and errors[1] > 2 * errors[0]
    keys = quantise(k, 8, "int8", True)
    assert keys.mean is not None
    without, _ = attend(q, type(keys)(keys.codes, keys.scale, None, keys.page), values, None, 32**-0.5)
    assert float((without - right).abs().max()) > 0.5  # q . mean must be added back to every page's logits


def test_parts_merge_to_the_whole():
    q, k, v = draw(6, 2, 4, 5, 16), draw(7, 1, 2, 12, 16), draw(8, 1, 2, 12, 16)
    keys, values = quantise(k, 4, "int8", True), quantise(v, 4, "int8", False)
    whole = attend(q, keys, values, None, 0.25)
    parts = [
        torch.tensor([[a, b, c]]) for a, b, c in ((True, False, False), (False, True, True), (False, False, False))
    ]
    found = merge([attend(q, keys, values, part, 0.25) for part in parts])
    for a, b in zip(found, whole, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-6)
    nothing, lse = merge([attend(q, keys, values, parts[2], 0.25)])
    assert not nothing.any() and (lse == -torch.inf).all()
    dense = softmax(q, keys.dense().repeat_interleave(2, 1), values.dense().repeat_interleave(2, 1), 0.25)
    torch.testing.assert_close(whole[0].double(), dense, rtol=0, atol=1e-6)
