"""Rollouts that share a prefix against copies of it: results, gradients, and what it costs."""

import pytest
import torch

from worldmodel.kernels.attention import Attention, Segment, attend
from worldmodel.kernels.prefix_attention import QKV, Cost, attend_prefix, attention_cost, prefix_cost

G, N, P, R, HEADS, KEYS, HEAD = 2, 3, 6, 4, 4, 2, 16


@pytest.fixture
def tokens():
    rng = torch.Generator().manual_seed(1)

    def draw(rows: int, length: int) -> QKV:
        shapes = ((rows, heads, length, HEAD) for heads in (HEADS, KEYS, KEYS))
        return QKV(*(torch.randn(s, generator=rng, dtype=torch.float64).requires_grad_() for s in shapes))

    return draw(G, P), draw(G * N, R), lambda *shape: torch.randn(shape, generator=rng, dtype=torch.float64)


def copies(prefix: QKV, rollouts: QKV, prefix_chunk: int, chunk: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Every rollout with a prefix of its own, under a dense mask."""
    q, k, v = (
        torch.cat((getattr(prefix, part).repeat(N, 1, 1, 1), getattr(rollouts, part)), 2).repeat_interleave(
            1 if part == "q" else HEADS // KEYS, 1
        )
        for part in ("q", "k", "v")
    )
    mask = torch.zeros(P + R, P + R, dtype=torch.bool)
    for i in range(P + R):
        for j in range(P + R):
            if i < P:
                mask[i, j] = j < P and (not prefix_chunk or j // prefix_chunk <= i // prefix_chunk)
            else:
                mask[i, j] = j < P or not chunk or (j - P) // chunk <= (i - P) // chunk
    found = attend(q, k, v, (), mask)
    return found[:, :, :P], found[:, :, P:]


@pytest.mark.parametrize(("prefix_chunk", "chunk"), [(0, 0), (3, 2), (2, 3), (1, 1)])
def test_it_equals_copies_and_so_do_all_gradients(tokens, prefix_chunk, chunk):
    prefix, rollouts, draw = tokens
    found = attend_prefix(prefix, rollouts, prefix_chunk, chunk)
    wanted = copies(prefix, rollouts, prefix_chunk, chunk)
    torch.testing.assert_close(found[0].repeat(N, 1, 1, 1), wanted[0], rtol=0, atol=1e-12)
    torch.testing.assert_close(found[1], wanted[1], rtol=0, atol=1e-12)
    weights, leaves = (draw(*found[0].shape), draw(*found[1].shape)), [
        getattr(x, part) for x in (prefix, rollouts) for part in ("q", "k", "v")
    ]  # fmt: skip
    loss = sum((x * w).sum() for x, w in zip(found, weights, strict=True))
    same = (wanted[0][:G] * weights[0]).sum() + (wanted[1] * weights[1]).sum()  # a prefix's own loss counts once
    for a, b in zip(torch.autograd.grad(loss, leaves), torch.autograd.grad(same, leaves), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-11)


def test_costs_are_those_of_one_prefix():
    def empty(rows: int, heads: int, length: int) -> torch.Tensor:
        return torch.zeros(rows, heads, length, HEAD)

    def qkv(rows: int, length: int) -> QKV:
        return QKV(*(empty(rows, heads, length) for heads in (HEADS, KEYS, KEYS)))

    n, p, r = 8, 96, 12
    shared = prefix_cost(qkv(1, p), qkv(n, r))
    whole = qkv(n, p + r)
    copied = attention_cost([Attention(whole.q, (Segment(whole.k, whole.v),), "half", 1.0)])
    assert shared == Cost(p + n * r, 2 * (p + n * r) * KEYS * HEAD, HEADS * (p**2 + n * r * (p + r)))
    assert copied == Cost(n * (p + r), 2 * n * (p + r) * KEYS * HEAD, HEADS * n * (p + r) ** 2)
    assert copied.tokens / shared.tokens == n * (p + r) / (p + n * r) == 4.5
