"""Attention of a chunk over sink, ring and itself, dense and quantised, and of rollouts that share a prefix."""

import torch
from torch import Tensor
from torch.nn import functional as F

from worldmodel.kernels.attention import ATTENTION, Attention, Segment
from worldmodel.kernels.prefix_attention import QKV, attend_prefix
from worldmodel.kernels.quantised import ATTEND, Look, quantise

from .work import Run, Shape, Work, type_of, work

ROLLOUTS = 8  # of one prefix


def attention(shape: Shape, name: str, device: torch.device) -> Work:
    """Three segments where they lie. `concatenation` is what a loop does without them: copy together per layer and
    step, then PyTorch's attention; `flash` is PyTorch's attention over keys that lie together already."""
    q, k, v, sink_k, sink_v, ring_k, ring_v = _tensors(shape, device)
    segments = (Segment(sink_k, sink_v), Segment(ring_k, ring_v), Segment(k, v))
    scale, keys = shape.head_dim**-0.5, shape.queries + shape.tokens * (shape.sink + shape.ring)
    together = torch.cat((sink_k, ring_k, k), 2), torch.cat((sink_v, ring_v, v), 2)

    def concatenation() -> Tensor:
        keys, values = (torch.cat([getattr(s, part) for s in segments], 2) for part in ("keys", "values"))
        return F.scaled_dot_product_attention(q, keys, values)

    others: dict[str, Run] = {
        "concatenation": concatenation,
        "flash": lambda: F.scaled_dot_product_attention(q, together[0], together[1]),
    }
    size, per_key = q.element_size(), shape.heads * shape.head_dim
    return work(
        ATTENTION, Attention(q, segments, "half", scale), name, str(shape),
        bytes=size * per_key * (2 * shape.queries + 2 * keys), flops=4.0 * per_key * shape.queries * keys,
        others=others,
    )  # fmt: skip


def quantised(shape: Shape, name: str, device: torch.device) -> Work:
    """A chunk's queries over an INT8 memory, against dense keys and values, and against making them dense first."""
    q, *_, sink_k, sink_v, ring_k, ring_v = _tensors(shape, device)
    k, v = torch.cat((sink_k, ring_k), 2), torch.cat((sink_v, ring_v), 2)
    keys, values = quantise(k, shape.tokens, "int8", True), quantise(v, shape.tokens, "int8", False)
    count = k.shape[2]
    others: dict[str, Run] = {
        "flash": lambda: F.scaled_dot_product_attention(q, k, v),
        "dequantise": lambda: F.scaled_dot_product_attention(q, keys.dense(q.dtype), values.dense(q.dtype)),
    }
    return work(
        ATTEND, Look(q, keys, values, None, shape.head_dim**-0.5), name, str(shape),
        bytes=2.0 * q.numel() * q.element_size() + keys.nbytes + values.nbytes,
        flops=4.0 * shape.width * shape.queries * count, others=others,
    )  # fmt: skip


def prefix(shape: Shape, name: str, device: torch.device) -> Work:
    """Rollouts of one prefix, which is stored and read once, against as many copies of it."""
    draw, kind = torch.Generator().manual_seed(0), type_of(device)
    tokens = (shape.tokens * (shape.sink + shape.ring), shape.queries)

    def qkv(rows: int, count: int) -> QKV:
        q, k, v = torch.randn(3, rows, shape.heads, count, shape.head_dim, generator=draw).to(device, kind).unbind(0)
        return QKV(q, k, v)

    first, rest = qkv(1, tokens[0]), qkv(ROLLOUTS, tokens[1])
    q, k, v = (torch.cat((getattr(first, part).expand(ROLLOUTS, -1, -1, -1), getattr(rest, part)), 2) for part in "qkv")
    mask = torch.ones(sum(tokens), sum(tokens), dtype=torch.bool, device=device)
    mask[: tokens[0], tokens[0] :] = False
    p, r, n = *tokens, ROLLOUTS
    arms: dict[str, Run] = {
        "shared": lambda: attend_prefix(first, rest),
        "copies": lambda: F.scaled_dot_product_attention(q, k, v, mask),
    }
    return Work(
        name, f"{n} rollouts of {r} tokens after {p}, {shape.heads} heads of {shape.head_dim}",
        4.0 * shape.width * q.element_size() * (p + n * r), 4.0 * shape.width * (p * p + n * r * (p + r)),
        arms, "shared", {},
    )  # fmt: skip


def _tensors(shape: Shape, device: torch.device) -> tuple[Tensor, ...]:
    """Queries, keys, values of the chunk; keys and values of the sink and of the ring: [1, h, N, D]."""
    draw, made = torch.Generator().manual_seed(0), list[Tensor]()
    for count, parts in ((shape.frames, 3), (shape.sink, 2), (shape.ring, 2)):
        size = (parts, 1, shape.heads, count * shape.tokens, shape.head_dim)
        made += torch.randn(size, generator=draw).to(device, type_of(device)).unbind(0)
    return tuple(made)
