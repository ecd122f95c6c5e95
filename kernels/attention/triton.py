# pyright: reportCallIssue=false, reportGeneralTypeIssues=false
"""Segmented attention in Triton: forward, and a backward without atomics, so that repeats are equal bit for bit.

A program makes one tile of queries of one row and head. It goes over the segments where they lie, one after the other,
with one running softmax (FlashAttention-2, 2307.08691); for a segment that has a turn it loads its queries once more,
rotated. The backward has the same loop for the queries, and one launch per segment for keys and values, which sums over
all rows and heads that read them in fp32, always in the same order.

Letters: B rows of queries, h heads, Q queries of a head; P rows of keys, g key heads, N keys; D head size.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.runtime.interpreter import InterpretedFunction

LOG2E: tl.constexpr = tl.constexpr(1.4426950408889634)


@dataclass(frozen=True, slots=True)
class Tiles:
    """How a kernel is cut: queries and keys of a tile, warps of a program, stages of its pipeline."""

    queries: int
    keys: int
    warps: int
    stages: int


def tiles(head: int, itemsize: int, arch: int = 80) -> tuple[Tiles, Tiles, Tiles]:
    """Of the forward, the backward of the queries, and that of keys and values.

    itemsize: bytes of a number. arch: the compute capability, 89 for 8.9.
    """
    if itemsize > 2:
        # Without matrix instructions: small tiles, everything in registers. All three cut alike, as the interpreter's
        # matrix products sum in an order that depends on their shape, and a large logit must come out the same.
        size, warps = 32 if head <= 32 else 16, {16: (4, 4, 2), 32: (2, 4, 4)}.get(head, (4, 8, 8))
        forward, queries, keys = (Tiles(size, size, count, 1) for count in warps)
        return forward, queries, keys
    if head > 64:
        warps = 8 if arch // 10 == 10 else 4  # of the backward: with 4 the interleaved turn spills on 10.0
        return Tiles(64, 32, 4, 2), Tiles(64, 32, warps, 2), Tiles(16, 64, warps, 1)
    if head == 32:
        return Tiles(128, 64, 8, 2), Tiles(64, 64, 4, 2), Tiles(64, 64, 8, 1)
    return Tiles(128, 64, 8, 2), Tiles(64, 32, 4, 2), Tiles(64, 64, 4, 1)


@triton.jit
def _turned(x, cos, sin, turn, BACK: tl.constexpr, D: tl.constexpr, INTERLEAVED: tl.constexpr, ACC: tl.constexpr):
    """A tile [., D] in registers, rotated by the angles of the row that begins at `turn`, or back; in ACC."""
    M: tl.constexpr = x.shape[0]
    pair = turn + tl.arange(0, D // 2)
    c, s = tl.load(cos + pair).to(ACC)[None, :], tl.load(sin + pair).to(ACC)[None, :]
    s = -s if BACK else s
    if INTERLEAVED:
        a, b = tl.split(tl.reshape(x.to(ACC), (M, D // 2, 2)))
        y = tl.join(a * c - b * s, a * s + b * c)
    else:
        a, b = tl.split(tl.permute(tl.reshape(x.to(ACC), (M, 2, D // 2)), (0, 2, 1)))
        y = tl.permute(tl.join(a * c - b * s, a * s + b * c), (0, 2, 1))
    return tl.reshape(y, (M, D))


@triton.jit
def _keep_turned(
    x_place, here, cos, sin, turn, y_place, D: tl.constexpr, INTERLEAVED: tl.constexpr, ACC: tl.constexpr
):  # fmt: skip
    """Stores a tile of queries as a segment with a turn looks at it."""
    x = tl.load(x_place, mask=here[:, None], other=0.0)
    y = _turned(x, cos, sin, turn, False, D, INTERLEAVED, ACC)
    tl.store(y_place, y.to(x.dtype), mask=here[:, None])


@triton.jit
def forward_kernel(
    q, keys, values, valid, cos, sin, turned, out, lse,
    heads, group, queries, scale,
    q_b, q_h, q_n, out_b, out_h, out_n,
    rows, lengths, runs, chunks, k_b, k_h, k_n, v_b, v_h, v_n, valid_b, turn_b,
    D: tl.constexpr, INTERLEAVED: tl.constexpr, ACC: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """Grid (tiles of queries, B * h). lse: [B, h, Q] of the logits, in bits. turned: for every segment with a turn room
    like out, where the queries go as they look at it.
    """
    b, h = (tl.program_id(1) // heads).to(tl.int64), (tl.program_id(1) % heads).to(tl.int64)
    i, d = tl.program_id(0) * BM + tl.arange(0, BM), tl.arange(0, D)
    here = i < queries
    q_place = q + b * q_b + h * q_h + i[:, None] * q_n + d[None, :]
    out_row, out_place = b * out_b + h * out_h, i[:, None] * out_n + d[None, :]
    for s in tl.static_range(len(keys)):  # first, while registers are free
        if cos[s] is not None:
            turn, to = b % rows[s] * turn_b[s], turned[s] + out_row + out_place
            _keep_turned(q_place, here, cos[s], sin[s], turn, to, D, INTERLEAVED, ACC)
    tl.debug_barrier()  # other threads of this program will read them
    top = tl.full((BM,), float("-inf"), ACC)
    total = tl.zeros((BM,), ACC)
    acc = tl.zeros((BM, D), ACC)
    for s in tl.static_range(len(keys)):
        p = b % rows[s]
        x = tl.load(q_place if turned[s] is None else turned[s] + out_row + out_place, mask=here[:, None], other=0.0)
        k_base, v_base = keys[s] + p * k_b[s] + h // group * k_h[s], values[s] + p * v_b[s] + h // group * v_h[s]
        end = lengths[s]
        if chunks[s] is not None:
            limit = (i // chunks[s] + 1) * chunks[s]  # of the keys that a query sees
            end = tl.minimum(end, tl.max(limit, 0))
        for start in range(0, end, BN):
            j = start + tl.arange(0, BN)
            there = j < lengths[s]
            if valid[s] is not None:
                there = there & tl.load(valid[s] + p * valid_b[s] + j // runs[s], mask=there, other=0).to(tl.int1)
            k = tl.load(k_base + j[:, None] * k_n[s] + d[None, :], mask=there[:, None], other=0.0)
            # As the backward does it, to the order of the sum: a large logit that differs is another weight.
            logit = tl.dot(x, tl.trans(k), input_precision="ieee", out_dtype=ACC) * (scale * LOG2E)
            seen = there[None, :]
            if chunks[s] is not None:
                seen = seen & (j[None, :] < limit[:, None])
            logit = tl.where(seen, logit, float("-inf"))
            new = tl.maximum(top, tl.max(logit, 1))
            safe = tl.where(new == float("-inf"), 0.0, new)  # as long as nothing was there
            weight, shrink = tl.exp2(logit - safe[:, None]), tl.exp2(top - safe)
            total = total * shrink + tl.sum(weight, 1)
            v = tl.load(v_base + j[:, None] * v_n[s] + d[None, :], mask=there[:, None], other=0.0)
            acc = tl.dot(weight.to(v.dtype), v, acc * shrink[:, None], input_precision="ieee", out_dtype=ACC)
            top = new
    safe_total = tl.where(total > 0, total, 1.0)
    found = acc / safe_total[:, None]
    tl.store(out + out_row + out_place, found.to(out.dtype.element_ty), mask=here[:, None])
    tl.store(lse + tl.program_id(1).to(tl.int64) * queries + i, top + tl.log2(safe_total), mask=here)


@triton.jit
def queries_kernel(
    q, keys, values, valid, cos, sin, turned, out, grad, lse, delta, dq,
    heads, group, queries, scale,
    q_b, q_h, q_n, out_b, out_h, out_n, grad_b, grad_h, grad_n,
    rows, lengths, runs, chunks, k_b, k_h, k_n, v_b, v_h, v_n, valid_b, turn_b,
    D: tl.constexpr, INTERLEAVED: tl.constexpr, ACC: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """Grid (tiles of queries, B * h). Makes dq, in the layout of out, and delta [B, h, Q] = sum(out * grad).

    turned: room as in `forward`; the queries as `keys_kernel` will need them.
    """
    b, h = (tl.program_id(1) // heads).to(tl.int64), (tl.program_id(1) % heads).to(tl.int64)
    i, d = tl.program_id(0) * BM + tl.arange(0, BM), tl.arange(0, D)
    here = i < queries
    q_place = q + b * q_b + h * q_h + i[:, None] * q_n + d[None, :]
    out_row, out_place = b * out_b + h * out_h, i[:, None] * out_n + d[None, :]
    for s in tl.static_range(len(keys)):  # first, while registers are free
        if cos[s] is not None:
            turn, to = b % rows[s] * turn_b[s], turned[s] + out_row + out_place
            _keep_turned(q_place, here, cos[s], sin[s], turn, to, D, INTERLEAVED, ACC)
    tl.debug_barrier()  # other threads of this program will read them
    o = tl.load(out + out_row + out_place, mask=here[:, None], other=0.0)
    do = tl.load(grad + b * grad_b + h * grad_h + i[:, None] * grad_n + d[None, :], mask=here[:, None], other=0.0)
    slope = tl.sum(o.to(ACC) * do.to(ACC), 1)
    line = tl.program_id(1).to(tl.int64) * queries + i
    tl.store(delta + line, slope, mask=here)
    bits = tl.load(lse + line, mask=here, other=0.0)
    bits = tl.where(bits == float("-inf"), 0.0, bits)
    acc = tl.zeros((BM, D), ACC)
    for s in tl.static_range(len(keys)):
        p = b % rows[s]
        x = tl.load(q_place if turned[s] is None else turned[s] + out_row + out_place, mask=here[:, None], other=0.0)
        k_base, v_base = keys[s] + p * k_b[s] + h // group * k_h[s], values[s] + p * v_b[s] + h // group * v_h[s]
        if cos[s] is not None:  # the sum turns along, so that one is enough
            acc = _turned(acc, cos[s], sin[s], p * turn_b[s], False, D, INTERLEAVED, ACC)
        end = lengths[s]
        if chunks[s] is not None:
            limit = (i // chunks[s] + 1) * chunks[s]  # of the keys that a query sees
            end = tl.minimum(end, tl.max(limit, 0))
        for start in range(0, end, BN):
            j = start + tl.arange(0, BN)
            there = j < lengths[s]
            if valid[s] is not None:
                there = there & tl.load(valid[s] + p * valid_b[s] + j // runs[s], mask=there, other=0).to(tl.int1)
            k = tl.load(k_base + j[:, None] * k_n[s] + d[None, :], mask=there[:, None], other=0.0)
            v = tl.load(v_base + j[:, None] * v_n[s] + d[None, :], mask=there[:, None], other=0.0)
            logit = tl.dot(x, tl.trans(k), input_precision="ieee", out_dtype=ACC) * (scale * LOG2E)
            seen = there[None, :]
            if chunks[s] is not None:
                seen = seen & (j[None, :] < limit[:, None])
            weight = tl.exp2(tl.where(seen, logit, float("-inf")) - bits[:, None])
            dweight = tl.dot(do, tl.trans(v), input_precision="ieee", out_dtype=ACC)
            dlogit = weight * (dweight - slope[:, None])
            acc = tl.dot(dlogit.to(k.dtype), k, acc, input_precision="ieee", out_dtype=ACC)
        if cos[s] is not None:
            acc = _turned(acc, cos[s], sin[s], p * turn_b[s], True, D, INTERLEAVED, ACC)
    tl.store(dq + out_row + out_place, (acc * scale).to(dq.dtype.element_ty), mask=here[:, None])


@triton.jit
def keys_kernel(
    q, k, v, valid, grad, lse, delta, dk, dv,
    heads, group, queries, copies, scale,
    q_b, q_h, q_n, grad_b, grad_h, grad_n,
    rows, length, run, chunk, k_b, k_h, k_n, v_b, v_h, v_n, valid_b,
    D: tl.constexpr, ACC: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """Grid (tiles of keys, P * g) for one segment. q: as they look at it. dk, dv: [P, g, N, D], contiguous.

    copies: B / P.
    """
    WIDE: tl.constexpr = q.dtype.element_ty.primitive_bitwidth > 16
    key_heads = heads // group
    p, g = (tl.program_id(1) // key_heads).to(tl.int64), (tl.program_id(1) % key_heads).to(tl.int64)
    j, d = tl.program_id(0) * BN + tl.arange(0, BN), tl.arange(0, D)
    there = j < length
    if valid is not None:
        there = there & tl.load(valid + p * valid_b + j // run, mask=there, other=0).to(tl.int1)
    kt = tl.load(k + p * k_b + g * k_h + j[:, None] * k_n + d[None, :], mask=there[:, None], other=0.0)
    vt = tl.load(v + p * v_b + g * v_h + j[:, None] * v_n + d[None, :], mask=there[:, None], other=0.0)
    dk_acc, dv_acc = tl.zeros((BN, D), ACC), tl.zeros((BN, D), ACC)
    first = 0
    if chunk is not None:  # the tile of the first query that sees the first key
        first = tl.program_id(0) * BN // chunk * chunk // BM * BM
    for reader in range(copies * group):
        b, h = p + reader // group * rows, g * group + reader % group
        line = (b * heads + h) * queries
        for start in range(first, queries, BM):
            i = start + tl.arange(0, BM)
            here = i < queries
            x = tl.load(q + b * q_b + h * q_h + i[:, None] * q_n + d[None, :], mask=here[:, None], other=0.0)
            do = tl.load(
                grad + b * grad_b + h * grad_h + i[:, None] * grad_n + d[None, :], mask=here[:, None], other=0.0
            )
            bits = tl.load(lse + line + i, mask=here, other=0.0)
            bits = tl.where(bits == float("-inf"), 0.0, bits)
            slope = tl.load(delta + line + i, mask=here, other=0.0)
            if WIDE:  # as the forward sums it, wherever the order depends on which factor is transposed
                logit = tl.trans(tl.dot(x, tl.trans(kt), input_precision="ieee", out_dtype=ACC)) * (scale * LOG2E)
            else:
                logit = tl.dot(kt, tl.trans(x), input_precision="ieee", out_dtype=ACC) * (scale * LOG2E)
            seen = there[:, None] & here[None, :]
            if chunk is not None:
                seen = seen & (i[None, :] >= j[:, None] // chunk * chunk)
            weight = tl.exp2(tl.where(seen, logit, float("-inf")) - bits[None, :])
            dv_acc = tl.dot(weight.to(do.dtype), do, dv_acc, input_precision="ieee", out_dtype=ACC)
            dweight = tl.dot(vt, tl.trans(do), input_precision="ieee", out_dtype=ACC)
            dlogit = weight * (dweight - slope[None, :])
            dk_acc = tl.dot(dlogit.to(x.dtype), x, dk_acc, input_precision="ieee", out_dtype=ACC)
    row, place = tl.program_id(1).to(tl.int64) * length * D, j[:, None] * D + d[None, :]
    tl.store(dk + row + place, (dk_acc * scale).to(dk.dtype.element_ty), mask=j[:, None] < length)
    tl.store(dv + row + place, dv_acc.to(dv.dtype.element_ty), mask=j[:, None] < length)


INTERPRETED = isinstance(forward_kernel, InterpretedFunction)  # on CPU tensors, see TRITON_INTERPRET

Optional = Sequence[Tensor | None]


def forward(
    q: Tensor, keys: Sequence[Tensor], values: Sequence[Tensor], valid: Optional, cos: Optional, sin: Optional,
    chunks: Sequence[int], scale: float, interleaved: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Result [B, h, Q, D], which lies in memory as [B, Q, h, D], and the logits' log-sum-exp [B, h, Q] in bits."""
    out, lse = empty_results(q)
    tile, turned = tiles(q.shape[3], q.element_size(), _arch(q))[0], _room(out, cos)
    if q.numel():
        forward_kernel[(triton.cdiv(q.shape[2], tile.queries), q.shape[0] * q.shape[1])](
            q, tuple(keys), tuple(values), tuple(valid), tuple(cos), tuple(sin), tuple(turned), out, lse,
            q.shape[1], _group(q, keys), q.shape[2], scale, *q.stride()[:3], *out.stride()[:3],
            *_geometry(keys, values, valid, cos, chunks),
            D=q.shape[3], INTERLEAVED=interleaved, ACC=_wide(q), BM=tile.queries, BN=tile.keys,
            num_warps=tile.warps, num_stages=tile.stages,
        )  # fmt: skip
    return out, lse


def backward(
    grad: Tensor, q: Tensor, out: Tensor, lse: Tensor,
    keys: Sequence[Tensor], values: Sequence[Tensor], valid: Optional, cos: Optional, sin: Optional,
    chunks: Sequence[int], scale: float, interleaved: bool, needed: Sequence[bool],
) -> tuple[Tensor, list[Tensor], list[Tensor]]:  # fmt: skip
    """Gradients of q, of every segment's keys and values. needed: whether a segment's are; else they are empty."""
    grad = grad if grad.stride(3) == 1 else grad.contiguous()
    dq, dkeys, dvalues = empty_gradients(q, keys, values, needed)
    if not q.numel():
        return dq, [dk.zero_() for dk in dkeys], [dv.zero_() for dv in dvalues]
    (b, heads, queries, head), group, delta = q.shape, _group(q, keys), torch.empty_like(lse)
    _, tile, tile_keys = tiles(head, q.element_size(), _arch(q))
    turned = _room(out, cos)
    queries_kernel[(triton.cdiv(queries, tile.queries), b * heads)](
        q, tuple(keys), tuple(values), tuple(valid), tuple(cos), tuple(sin), tuple(turned), out, grad, lse, delta, dq,
        heads, group, queries, scale, *q.stride()[:3], *out.stride()[:3], *grad.stride()[:3],
        *_geometry(keys, values, valid, cos, chunks),
        D=head, INTERLEAVED=interleaved, ACC=_wide(q), BM=tile.queries, BN=tile.keys,
        num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip
    for k, v, mask, chunk, own, dk, dv, need in zip(
        keys, values, valid, chunks, turned, dkeys, dvalues, needed, strict=True
    ):
        if not need or not dk.numel():
            continue
        x, (*lengths, _) = q if own is None else own, (part[0] for part in _geometry([k], [v], [mask], [None], [chunk]))
        keys_kernel[(triton.cdiv(k.shape[2], tile_keys.keys), k.shape[0] * k.shape[1])](
            x, k, v, mask, grad, lse, delta, dk, dv,
            heads, group, queries, b // k.shape[0], scale, *x.stride()[:3], *grad.stride()[:3], *lengths,
            D=head, ACC=_wide(q), BM=tile_keys.queries, BN=tile_keys.keys,
            num_warps=tile_keys.warps, num_stages=tile_keys.stages,
        )  # fmt: skip
    return dq, dkeys, dvalues


def empty_results(q: Tensor) -> tuple[Tensor, Tensor]:
    """Room for what `forward` returns."""
    b, h, n, d = q.shape
    wide = torch.promote_types(q.dtype, torch.float32)
    return q.new_empty(b, n, h, d).transpose(1, 2), q.new_empty(b, h, n, dtype=wide)


def empty_gradients(
    q: Tensor, keys: Sequence[Tensor], values: Sequence[Tensor], needed: Sequence[bool]
) -> tuple[Tensor, list[Tensor], list[Tensor]]:
    """Room for what `backward` returns."""
    dkeys, dvalues = (
        [x.new_empty(x.shape if need else (0,)) for x, need in zip(part, needed, strict=True)]
        for part in (keys, values)
    )
    return empty_results(q)[0], dkeys, dvalues


def _room(out: Tensor, cos: Optional) -> list[Tensor | None]:
    """Where the queries of every segment with a turn go."""
    return [None if c is None else torch.empty_like(out) for c in cos]


def _arch(q: Tensor) -> int:
    major, minor = torch.cuda.get_device_capability(q.device) if q.is_cuda else (8, 0)
    return 10 * major + minor


def _group(q: Tensor, keys: Sequence[Tensor]) -> int:
    return q.shape[1] // keys[0].shape[1]


def _wide(q: Tensor) -> tl.dtype:
    return tl.float64 if q.dtype == torch.float64 else tl.float32


def _geometry(
    keys: Sequence[Tensor], values: Sequence[Tensor], valid: Optional, cos: Optional, chunks: Sequence[int]
) -> tuple[tuple[int | None, ...], ...]:
    """Rows, lengths, tokens of a place of the mask and of a chunk, and all strides, each of every segment."""
    strides = [tuple(x.stride(axis) for x in part) for part in (keys, values) for axis in range(3)]
    runs = tuple(1 if m is None else max(1, k.shape[2] // max(1, m.shape[1])) for k, m in zip(keys, valid, strict=True))
    return (
        tuple(k.shape[0] for k in keys), tuple(k.shape[2] for k in keys), runs,
        tuple(chunk or None for chunk in chunks), *strides,
        tuple(0 if m is None else m.stride(0) for m in valid), tuple(0 if c is None else c.stride(0) for c in cos),
    )  # fmt: skip
