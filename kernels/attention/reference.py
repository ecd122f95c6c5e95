"""Attention over what is remembered and the current tokens: the definition that fast versions are tested against."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F


@dataclass(frozen=True, slots=True)
class Span:
    """Queries [start, end) look at the keys in each of the ranges [start, end), counted over [past, current]."""

    queries: tuple[int, int]
    keys: tuple[tuple[int, int], ...]


Seen = Tensor | tuple[Span, ...] | None


def attend(q: Tensor, k: Tensor, v: Tensor, past: tuple[Tensor, Tensor] | None, seen: Seen) -> Tensor:
    """Softmax attention of the current queries over [past, current].

    q, k, v: [B, heads, Q, D] of the current tokens. past: keys and values [B, heads, N, D] or None. seen: bool,
    broadcastable to [B, heads, Q, N + Q], True where a query may look; or spans that cover the queries in order, which
    never touch what is not seen (a dense mask costs a CPU two to three times as much for the chunks of a clip); None
    lets every query look everywhere. Returns [B, heads, Q, D].
    """
    if past is not None:
        k, v = torch.cat((past[0], k), 2), torch.cat((past[1], v), 2)
    if not isinstance(seen, tuple):
        return F.scaled_dot_product_attention(q, k, v, attn_mask=seen)
    return torch.cat([_attend_span(q, k, v, span) for span in seen], 2)


def _attend_span(q: Tensor, k: Tensor, v: Tensor, span: Span) -> Tensor:
    start, end = span.queries
    return F.scaled_dot_product_attention(q[:, :, start:end], _ranges(k, span.keys), _ranges(v, span.keys))


def _ranges(x: Tensor, ranges: tuple[tuple[int, int], ...]) -> Tensor:
    parts = [x[:, :, start:end] for start, end in ranges]
    return parts[0] if len(parts) == 1 else torch.cat(parts, 2)
