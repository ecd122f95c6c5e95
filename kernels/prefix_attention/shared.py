"""N rollouts of one prefix: its tokens are projected once, its keys and values are stored and read as one.

The shared-prefix attention of DualKV (2605.15422), exact: N copies of [prefix, rollout] give the same results and
gradients. What the rollouts want of the prefix's keys and values is summed over them inside the kernel, in fp32, one
after the other in the order of rows, so that a repeat is equal bit for bit.

Letters: G groups of rollouts, N rollouts of each, P tokens of the prefix, R of a rollout, h heads, g key heads, D head
size. Rollout n of group i is row n * G + i.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from torch import Tensor

from worldmodel.kernels import arguments
from worldmodel.kernels.arguments import FLOATS
from worldmodel.kernels.attention import Attention, Segment, attend_segments
from worldmodel.kernels.rope import Pairing


@dataclass(frozen=True, slots=True)
class QKV:
    """Queries [B, h, T, D], keys and values [B, g, T, D] of some tokens, rotated to their own places."""

    q: Tensor
    k: Tensor
    v: Tensor


@dataclass(frozen=True, slots=True)
class Cost:
    """What an attention takes, of one layer; sums of several add up."""

    tokens: int  # that are projected to queries, keys and values
    numbers: int  # of keys and values that are stored; times the size of one: bytes
    products: int  # of a query and a key, over all heads; those that a mask inside a chunked segment saves are in it

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(self.tokens + other.tokens, self.numbers + other.numbers, self.products + other.products)


def attend_prefix(
    prefix: QKV, rollouts: QKV, prefix_chunk: int = 0, chunk: int = 0, scale: float | None = None
) -> tuple[Tensor, Tensor]:
    """Attention of G prefixes among themselves and of G * N rollouts over their prefix and themselves.

    prefix: of G rows and P tokens. rollouts: of G * N rows and R tokens. prefix_chunk, chunk: tokens of a chunk in
    either, which see their own chunk and those before; 0 if all see all. Returns [G, h, P, D] and [G * N, h, R, D].
    ValueError names an argument that does not fit.
    """
    _check(prefix, rollouts, prefix_chunk, chunk, scale)
    return tuple(attend_segments(*call) for call in _calls(prefix, rollouts, prefix_chunk, chunk, scale))  # pyright: ignore[reportReturnType]


def _check(prefix: QKV, rollouts: QKV, prefix_chunk: int, chunk: int, scale: float | None) -> None:
    op = "attend_prefix"
    for name, x in (("prefix", prefix), ("rollouts", rollouts)):
        if not isinstance(x, QKV):
            raise ValueError(f"{op}: {name} is of type {type(x).__name__}, not QKV")
    p, r = prefix, rollouts
    sizes = arguments.tensors(
        op, ("prefix.q", p.q, "GhPD", FLOATS), ("prefix.k", p.k, "GgPD", FLOATS), ("prefix.v", p.v, "GgPD", FLOATS),
        ("rollouts.q", r.q, "BhRD", FLOATS), ("rollouts.k", r.k, "BgRD", FLOATS), ("rollouts.v", r.v, "BgRD", FLOATS),
    )  # fmt: skip
    groups, rows = sizes["G"], sizes["B"]
    if rows % groups if groups else rows:
        raise ValueError(f"{op}: rollouts have {rows} rows, no multiple of the {groups} of prefix")
    if sizes["h"] % sizes["g"] if sizes["g"] else sizes["h"]:
        raise ValueError(f"{op}: prefix.q has {sizes['h']} heads, no multiple of the {sizes['g']} of prefix.k")
    arguments.whole(op, "prefix_chunk", prefix_chunk)
    arguments.whole(op, "chunk", chunk)
    if scale is not None:
        arguments.number(op, "scale", scale)


def _calls(
    prefix: QKV, rollouts: QKV, prefix_chunk: int, chunk: int, scale: float | None
) -> tuple[tuple[Tensor, tuple[Segment, ...], Pairing, float | None], ...]:
    own = Segment(prefix.k, prefix.v, chunk=prefix_chunk)
    both = (Segment(prefix.k, prefix.v), Segment(rollouts.k, rollouts.v, chunk=chunk))
    return (prefix.q, (own,), "half", scale), (rollouts.q, both, "half", scale)


def attention_cost(calls: Iterable[Attention]) -> Cost:
    """Of calls of attention; keys and values that several of them read are stored once."""
    calls = list(calls)
    stored = {(x.data_ptr(), x.shape): x.numel() for c in calls for s in c.segments for x in (s.keys, s.values)}
    tokens = sum(c.q.shape[0] * c.q.shape[2] for c in calls)
    products = sum(c.q.shape[0] * c.q.shape[1] * c.q.shape[2] * sum(s.keys.shape[2] for s in c.segments) for c in calls)
    return Cost(tokens, sum(stored.values()), products)


def prefix_cost(prefix: QKV, rollouts: QKV) -> Cost:
    """Of `attend_prefix`, from the calls that it makes: for G = 1 tokens P + N R, products h (P^2 + N R (P + R))."""
    made = _calls(prefix, rollouts, 0, 0, 1.0)
    return attention_cost(Attention(q, segments, pairing, 1.0) for q, segments, pairing, _ in made)
