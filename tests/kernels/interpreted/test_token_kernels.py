"""Modulation, residual, QK-norm with RoPE: derivatives in fp64, several tiles in one program, nothing to do."""

import pytest
import torch

from worldmodel.kernels.modulate import GATED_RESIDUAL, MODULATE, Modulation, Residual
from worldmodel.kernels.modulate import reference as adaln
from worldmodel.kernels.modulate import triton as adaln_kernels
from worldmodel.kernels.qk_norm_rope import QK_NORM_ROPE, Tokens
from worldmodel.kernels.qk_norm_rope import reference as rope
from worldmodel.kernels.qk_norm_rope import triton as rope_kernels
from worldmodel.kernels.rope import rope_table


def leaves(rng, *shapes, dtype=torch.float64):
    return [torch.randn(shape, generator=rng, dtype=dtype).requires_grad_() for shape in shapes]


def modulate(x, shift, scale, norm="layer"):
    return MODULATE(Modulation(x, shift, scale, 1e-6, norm), "triton")


def residual(x, y, gate):
    return GATED_RESIDUAL(Residual(x, y, gate), "triton")


def norm_rope(q, k, q_weight, k_weight, pairing="half"):
    table = rope_table(torch.tensor([[100_000, 7]]), (1, q.shape[1] // 2), q.shape[3])
    return QK_NORM_ROPE(Tokens(q, k, q_weight, k_weight, table, 1e-6, pairing), "triton")


@pytest.mark.parametrize("norm", ["layer", "rms"])
def test_derivatives_of_modulation(rng, norm):
    inputs = leaves(rng, (1, 2, 2, 3), (1, 2, 3), (1, 2, 3))
    assert torch.autograd.gradcheck(lambda *x: modulate(*x, norm), inputs, fast_mode=True)


def test_derivatives_of_gated_residual(rng):
    assert torch.autograd.gradcheck(residual, leaves(rng, (1, 2, 2, 3), (1, 2, 2, 3), (1, 2, 3)), fast_mode=True)


@pytest.mark.parametrize(("pairing", "weight"), [("half", 4), ("interleaved", 8)])
def test_derivatives_of_norm_and_rotation(rng, pairing, weight):
    inputs = leaves(rng, (1, 4, 2, 4), (1, 4, 2, 4), (weight,), (weight,))
    assert torch.autograd.gradcheck(lambda *x: norm_rope(*x, pairing), inputs, fast_mode=True)


@pytest.mark.parametrize(("heads", "groups"), [(1, 2), (2, 1)])
def test_all_heads_together_where_queries_or_keys_have_one(rng, heads, groups):
    """One head is normalised alone and across heads alike; the other tensor's heads are not."""
    q, k, q_weight, k_weight = leaves(rng, (1, 4, heads, 4), (1, 4, groups, 4), (4 * heads,), (4 * groups,))
    weights = [torch.randn(x.shape, generator=rng, dtype=torch.float64) for x in (q, k)]
    inputs, table = (q, k, q_weight, k_weight), rope_table(torch.tensor([[100_000, 7]]), (1, 2), 4)

    def reference(q, k, a, b):
        return tuple(rope.norm_rope(x, w, table, 1e-6, "half") for x, w in ((q, a), (k, b)))

    torch.testing.assert_close(norm_rope(*inputs), reference(*inputs), rtol=0, atol=1e-12)
    wanted = gradients(reference, inputs, weights)
    torch.testing.assert_close(gradients(norm_rope, inputs, weights), wanted, rtol=0, atol=1e-12)


def gradients(function, inputs, weights):
    made = function(*inputs)
    return torch.autograd.grad(made if isinstance(made, tuple) else (made,), inputs, weights)


def test_programs_that_take_several_tiles(rng, monkeypatch):
    """Sums over tokens in two stages: 41 tokens are three tiles, of which one program takes two."""
    monkeypatch.setattr(adaln_kernels, "SPLITS", 2)
    monkeypatch.setattr(rope_kernels, "SPLITS", 2)
    x, shift, scale = leaves(rng, (1, 1, 41, 9), (1, 1, 9), (1, 1, 9))
    weight = torch.randn(1, 1, 41, 9, generator=rng, dtype=torch.float64)
    found = gradients(modulate, (x, shift, scale), (weight,))
    wanted = gradients(lambda *a: adaln.modulate(*a, 1e-6), (x, shift, scale), (weight,))
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-12)
    again = gradients(modulate, (x, shift, scale), (weight,))
    assert all(torch.equal(a, b) for a, b in zip(found, again, strict=True))

    found = gradients(residual, (x, x.detach().clone().requires_grad_(), shift), (weight,))
    torch.testing.assert_close(found[2], (weight * x).sum(2), rtol=0, atol=1e-12)

    q, k, q_weight, k_weight = leaves(rng, (1, 42, 2, 4), (1, 42, 2, 4), (8,), (8,))
    weights = torch.randn(2, 1, 42, 2, 4, generator=rng, dtype=torch.float64).unbind(0)
    table = rope_table(torch.tensor([[100_000, 7]]), (1, 21), 4)
    wanted = gradients(
        lambda q, k, a, b: tuple(rope.norm_rope(x, w, table, 1e-6, "half") for x, w in ((q, a), (k, b))),
        (q, k, q_weight, k_weight), weights,
    )  # fmt: skip
    found = gradients(norm_rope, (q, k, q_weight, k_weight), weights)
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-12)


@pytest.mark.parametrize("shape", [(0, 1, 2, 3), (1, 0, 2, 3), (2, 1, 0, 3)])
def test_nothing_to_do(rng, shape):
    """No rows, no frames, no tokens: empty results, and modulations that nothing depends on."""
    x, shift, scale = leaves(rng, shape, (*shape[:2], 3), (*shape[:2], 3))
    for function in (modulate, lambda x, a, b: residual(x, x, a) + residual(x, x, b)):
        y = function(x, shift, scale)
        found = torch.autograd.grad(y.sum(), (x, shift, scale))
        assert y.shape == shape and all(not g.any() for g in found)
    q = torch.randn(shape, generator=rng)
    made = QK_NORM_ROPE(Tokens(q, q, torch.ones(3), torch.ones(3), None, 1e-6, "half"), "reference")
    assert made[0].shape == shape


def test_compiled_in_one_graph(rng):
    """torch.compile sees operators with gradients, not what is in them."""
    x, shift, scale, gate = leaves(rng, (1, 2, 3, 8), (1, 2, 8), (1, 2, 8), (1, 2, 8), dtype=torch.float32)

    def block(x, shift, scale, gate):
        return residual(x, modulate(x, shift, scale), gate)

    compiled = torch.compile(block, fullgraph=True, backend="aot_eager")
    weight = (torch.randn(x.shape, generator=rng),)
    inputs = (x, shift, scale, gate)
    assert torch.equal(compiled(*inputs), block(*inputs))
    for a, b in zip(gradients(compiled, inputs, weight), gradients(block, inputs, weight), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-6)
