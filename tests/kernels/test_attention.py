"""Spans of queries and keys against the dense mask that they stand for, in fp64, with gradients."""

import pytest
import torch

from worldmodel.kernels.attention import Segment, Span, attend

PAST, NOW = 5, 12
SPANS = (Span((0, 4), ((0, 9),)), Span((4, 5), ((2, 5), (9, 10))), Span((5, 12), ((0, 1), (3, 4), (10, 17))))


def dense(spans: tuple[Span, ...], keys: int) -> torch.Tensor:
    mask = torch.zeros(spans[-1].queries[1], keys, dtype=torch.bool)
    for span in spans:
        for start, end in span.keys:
            mask[slice(*span.queries), start:end] = True
    return mask


@pytest.mark.parametrize("past", [False, True])
def test_spans_equal_their_mask(past):
    draw = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, 3, NOW, 8, generator=draw, dtype=torch.float64, requires_grad=True) for _ in range(3))
    kept = tuple(torch.randn(2, 3, PAST, 8, generator=draw, dtype=torch.float64, requires_grad=True) for _ in range(2))
    memory = (Segment(*kept),) if past else ()
    spans = SPANS if past else tuple(Span(s.queries, ((0, s.queries[1]),)) for s in SPANS)
    inputs = (q, k, v, *(kept if past else ()))
    found = attend(q, k, v, memory, spans)
    wanted = attend(q, k, v, memory, dense(spans, NOW + (PAST if past else 0)))
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-12)
    weight = torch.randn(found.shape, generator=draw, dtype=torch.float64)
    for a, b in zip(*(torch.autograd.grad((y * weight).sum(), inputs) for y in (found, wanted)), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12)
