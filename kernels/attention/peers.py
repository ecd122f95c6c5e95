"""Segmented attention by libraries: they take one tensor of keys, so what lies apart is copied together first.

A turn of the queries is done to the keys instead, the other way, which gives the same products.
"""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from worldmodel.kernels.rope import Pairing, rotate

from .reference import Segment, sees


def together(q: Tensor, segments: Sequence[Segment], pairing: Pairing) -> tuple[Tensor, Tensor, Tensor | None]:
    """Keys and values [B, g, N, D] of all segments as the queries q [B, h, Q, D] see them, and which of them each sees,
    [B, 1, 1 or Q, N], or None for all. What is not there is zero."""
    keys, values, masks = [], [], []
    masked, chunked = any(s.valid is not None for s in segments), any(s.chunk for s in segments)
    for s in segments:
        k, v = s.keys, s.values
        if s.turn is not None:
            cos, sin = (t[:, None, None] for t in s.turn)
            k = rotate(k, (cos, -sin), pairing)
        if s.valid is not None:
            gone = ~_tokens(s)[:, None, :, None]
            k, v = k.masked_fill(gone, 0), v.masked_fill(gone, 0)  # a mask does not stop NaN
        if masked or chunked:
            there = _to_rows(_tokens(s), q)[:, None, None]
            if s.chunk:
                there = there & sees(q.shape[2], k.shape[2], s.chunk, q.device)
            masks.append(there.expand(-1, 1, q.shape[2], -1) if chunked else there)
        keys.append(_to_rows(k, q))
        values.append(_to_rows(v, q))
    if len(segments) == 1:
        return keys[0], values[0], masks[0] if masks else None
    return torch.cat(keys, 2), torch.cat(values, 2), torch.cat(masks, 3) if masks else None


def _tokens(s: Segment) -> Tensor:
    """Which keys of a segment are there, [P, N] bool."""
    if s.valid is None:
        return torch.ones(s.keys.shape[0], s.keys.shape[2], dtype=torch.bool, device=s.keys.device)
    return s.valid.repeat_interleave(s.keys.shape[2] // max(1, s.valid.shape[1]), 1)


def _to_rows(x: Tensor, q: Tensor) -> Tensor:
    """x [P, ...] as the rows of q read it, without a copy where that is possible."""
    if x.shape[0] == q.shape[0]:
        return x
    if x.shape[0] == 1:
        return x.expand(q.shape[0], *x.shape[1:])
    return x.repeat(q.shape[0] // x.shape[0], *(1,) * (x.ndim - 1))


def _emptied(found: Tensor, there: Tensor | None) -> Tensor:
    """Zeros for the queries that see nothing."""
    return found if there is None else found.masked_fill(~there.any(3, keepdim=True), 0)


def _or_all(there: Tensor) -> Tensor:
    """The mask, with everything for a query that sees nothing, whose result would be NaN."""
    return there | ~there.any(3, keepdim=True)


def sdpa(q: Tensor, segments: Sequence[Segment], pairing: Pairing, scale: float) -> Tensor:
    """torch's scaled_dot_product_attention."""
    keys, values, there = together(q, segments, pairing)
    if not keys.shape[2]:
        return torch.zeros_like(q)
    mask = None if there is None else _or_all(there)
    found = F.scaled_dot_product_attention(q, keys, values, mask, scale=scale, enable_gqa=keys.shape[1] != q.shape[1])
    return _emptied(found, there)


def flex(q: Tensor, segments: Sequence[Segment], pairing: Pairing, scale: float) -> Tensor:
    """torch's FlexAttention; compiled on CUDA, where it is slow otherwise."""
    from torch.nn.attention.flex_attention import flex_attention

    keys, values, there = together(q, segments, pairing)
    mask = None if there is None else _or_all(there).expand(-1, 1, q.shape[2], -1)

    def score(logit: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return logit if mask is None else torch.where(mask[b, 0, i, j], logit, -torch.inf)

    run: Any = _compiled_flex() if q.is_cuda and not torch.compiler.is_compiling() else flex_attention
    found = run(
        q, keys, values, score_mod=None if mask is None else score, scale=scale, enable_gqa=keys.shape[1] != q.shape[1]
    )
    return _emptied(found, there)


@cache
def _compiled_flex() -> Callable[..., Any]:
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention, dynamic=False)


def xformers(q: Tensor, segments: Sequence[Segment], pairing: Pairing, scale: float) -> Tensor:
    """xformers' memory_efficient_attention, which takes [B, N, heads, D] and one key head for every head."""
    from xformers.ops import memory_efficient_attention

    keys, values, there = together(q, segments, pairing)
    group, bias = q.shape[1] // keys.shape[1], None
    if there is not None:
        length = keys.shape[2]
        room = q.new_zeros(*there.shape[:3], -(-length // 8) * 8)  # its kernels want rows of 16 bytes
        bias = room[..., :length].masked_fill_(~_or_all(there), -torch.inf)
        bias = bias.expand(-1, q.shape[1], q.shape[2], -1)
    keys, values = (x.repeat_interleave(group, 1).transpose(1, 2) for x in (keys, values))
    found = memory_efficient_attention(q.transpose(1, 2), keys, values, bias, scale=scale).transpose(1, 2)
    return _emptied(found, there)
