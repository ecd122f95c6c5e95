"""Attention of a model's own tokens over a past and themselves: under a mask, or in spans of queries with own keys."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from worldmodel.kernels.rope import Pairing, rotate

from .choice import attend_segments
from .reference import Segment


@dataclass(frozen=True, slots=True)
class Moved:
    """Keys that some queries look at as if they were elsewhere in time."""

    tokens: Tensor  # [B or 1, M] int64, which of [past, current]
    table: tuple[Tensor, Tensor]  # cosines and sines of the move, broadcastable to [B, heads, M, D / 2]
    pairing: Pairing
    valid: Tensor  # [B or 1, M] bool, those that are there


@dataclass(frozen=True, slots=True)
class Span:
    """Queries [start, end) look at the keys in each of the ranges [start, end), counted over [past, current].

    moved: keys that they look at too, another set in every row.
    """

    queries: tuple[int, int]
    keys: tuple[tuple[int, int], ...]
    moved: Moved | None = None


@dataclass(frozen=True, slots=True)
class Visible:
    """Queries look at what is there of every segment of the past, at their own chunk and at those before it."""

    chunk: int  # tokens of a chunk of the current ones; 0 if they are one


Seen = Tensor | tuple[Span, ...] | Visible | None


def attend(q: Tensor, k: Tensor, v: Tensor, past: tuple[Segment, ...], seen: Seen) -> Tensor:
    """Softmax attention of the current queries over [past, current].

    q, k, v: [B, heads, Q, D] of the current tokens. past: segments of N tokens in all; B is a multiple of the rows P of
    each, and row b reads its row b mod P. seen: bool, broadcastable to [B, heads, Q, N + Q], True where a query may
    look; or spans that cover the queries in order and never touch what is not seen; None lets every query look
    everywhere, as far as these three know: they read all of every segment as it lies. `Visible` heeds the segments'
    masks and turns. Returns [B, heads, Q, D]. All but masks and moved keys go through `attend_segments`, so that the
    backend setting holds for them; those are always torch's scaled_dot_product_attention, which alone takes any mask.
    """
    if isinstance(seen, Visible):
        return attend_segments(q, [*past, Segment(k, v, chunk=seen.chunk)])
    parts = [*((s.keys, s.values) for s in past), (k, v)]
    if seen is None:
        return attend_segments(q, [Segment(*part) for part in parts])
    if isinstance(seen, tuple) and all(span.moved is None for span in seen):
        return torch.cat([attend_segments(_queries(q, span), _segments(parts, span)) for span in seen], 2)
    for keys, values in reversed(parts[:-1]):
        k, v = _behind(keys, k), _behind(values, v)
    if not isinstance(seen, tuple):
        return F.scaled_dot_product_attention(q, k, v, attn_mask=seen)
    return torch.cat([_attend_span(q, k, v, span) for span in seen], 2)


def _queries(x: Tensor, span: Span) -> Tensor:
    return x[:, :, slice(*span.queries)]


def _segments(parts: list[tuple[Tensor, Tensor]], span: Span) -> list[Segment]:
    """The ranges of a span where they lie, none across the border of past and current."""
    found, begin = [], 0
    for k, v in parts:
        for start, end in span.keys:
            here = slice(max(0, start - begin), max(0, min(end - begin, k.shape[2])))
            if here.start < here.stop:
                found.append(Segment(k[:, :, here], v[:, :, here]))
        begin += k.shape[2]
    return found


def _behind(past: Tensor, x: Tensor) -> Tensor:
    """[past, x] along the tokens, the past repeated for every group of rows that shares it."""
    if past.shape[0] == x.shape[0]:
        return torch.cat((past, x), 2)
    groups = x.unflatten(0, (-1, past.shape[0]))
    return torch.cat((past.expand(groups.shape[0], *past.shape), groups), 3).flatten(0, 1)


def _attend_span(q: Tensor, k: Tensor, v: Tensor, span: Span) -> Tensor:
    q, keys, values, m = _queries(q, span), _ranges(k, span.keys), _ranges(v, span.keys), span.moved
    if m is None:
        return F.scaled_dot_product_attention(q, keys, values)
    index = m.tokens[:, None, :, None].expand(*k.shape[:2], -1, k.shape[3])
    keys = torch.cat((rotate(k.gather(2, index), m.table, m.pairing), keys), 2)
    values = torch.cat((v.gather(2, index), values), 2)
    seen = F.pad(m.valid, (0, keys.shape[2] - m.valid.shape[1]), value=True)
    return F.scaled_dot_product_attention(q, keys, values, attn_mask=seen[:, None, None])


def _ranges(x: Tensor, ranges: tuple[tuple[int, int], ...]) -> Tensor:
    parts = [x[:, :, start:end] for start, end in ranges]
    return parts[0] if len(parts) == 1 else torch.cat(parts, 2)
