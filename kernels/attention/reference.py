"""Attention over what is remembered and the current tokens: the definition that fast versions are tested against.

Letters: B rows of queries, h heads, Q queries; P rows of keys, g key heads, N keys of a segment; D head size.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from worldmodel.kernels.rope import Pairing, rotate


@dataclass(frozen=True, slots=True)
class Segment:
    """Keys and values where they lie: a sink, a ring, slow frames, the current chunk. Nothing is copied together.

    B is a multiple of P, and row b of the queries reads row b mod P. h is a multiple of g, and head i reads key head
    i * g // h. valid: M divides N, and place m says whether the keys m N / M to (m + 1) N / M - 1 are there; what is
    not there may hold anything, NaN too, and has no influence. turn: by how much the queries of a row are rotated
    before they look at this segment, which moves the whole segment in time for that row and leaves its keys as they
    were written. chunk: of a segment that the queries made themselves: query i sees key j if j // chunk <= i // chunk,
    both ways inside a chunk and back between chunks. Neither a mask nor a turn has a gradient.
    """

    keys: Tensor  # [P, g, N, D]
    values: Tensor  # [P, g, N, D]
    valid: Tensor | None = None  # [P, M] bool; None if all are there
    turn: tuple[Tensor, Tensor] | None = None  # cosines and sines, [P, D / 2] each; None for no rotation
    chunk: int = 0  # tokens of a chunk; 0 if every query sees every key


def sees(queries: int, keys: int, chunk: int, device: torch.device) -> Tensor:
    """Which keys of a segment that is cut into chunks the queries see, [queries, keys] bool."""
    return torch.arange(keys, device=device) // chunk <= torch.arange(queries, device=device)[:, None] // chunk


def attend_segments(q: Tensor, segments: Sequence[Segment], pairing: Pairing, scale: float) -> Tensor:
    """softmax(scale * q . k) v over all keys of all segments, for q [B, h, Q, D]; computed in fp32 or wider.

    Returns [B, h, Q, D] in the type of q; zeros for a query that sees no key at all.
    """
    wide = torch.promote_types(q.dtype, torch.float32)
    logits, seen, values = [], [], []
    for s in segments:
        turned = q.to(wide)
        if s.turn is not None:
            cos, sin = (_to_rows(t, q)[:, None, None].to(wide) for t in s.turn)
            turned = rotate(turned, (cos, sin), pairing)
        there = torch.ones(q.shape[0], s.keys.shape[2], dtype=torch.bool, device=q.device)
        if s.valid is not None:
            there = _to_rows(s.valid, q).repeat_interleave(s.keys.shape[2] // max(1, s.valid.shape[1]), 1)
        gone, look = ~there[:, None, :, None], there[:, None, None]
        if s.chunk:
            look = look & sees(q.shape[2], s.keys.shape[2], s.chunk, q.device)
        keys, held = (_to_heads(_to_rows(x.to(wide), q), q).masked_fill(gone, 0) for x in (s.keys, s.values))
        logits.append(turned @ keys.mT * scale)
        seen.append(look.expand(-1, 1, q.shape[2], -1))
        values.append(held)
    mask = torch.cat(seen, 3)
    logit = torch.cat(logits, 3).masked_fill(~mask, -torch.inf)
    if not logit.shape[3]:
        return torch.zeros_like(q)
    top = logit.detach().amax(3, keepdim=True)
    weight = (logit - top.masked_fill(top == -torch.inf, 0)).exp()
    total = weight.sum(3, keepdim=True)
    return (weight / total.masked_fill(total == 0, 1) @ torch.cat(values, 2)).to(q.dtype)


def _to_rows(x: Tensor, q: Tensor) -> Tensor:
    """x [P, ...] as row b of q reads it."""
    return x.repeat(q.shape[0] // max(1, x.shape[0]), *(1,) * (x.ndim - 1))


def _to_heads(x: Tensor, q: Tensor) -> Tensor:
    """x [B, g, N, D] as head i of q reads it."""
    return x.repeat_interleave(q.shape[1] // x.shape[1], 1)
