# pyright: reportCallIssue=false, reportArgumentType=false, reportReturnType=false, reportGeneralTypeIssues=false
# pyright: reportUnboundVariable=false
# Types of kernels are those of the language that Triton compiles.
"""RMSNorm of queries and keys with their rotation in one pass, forward and backward, and into a memory's slots.

A program has T tokens with all their heads, so that it reads their angles once: tiles are [T, H, P] of pairs, with H
and P the next powers of two above the heads and D / 2. The gradient of the weight is summed in order into a row of its
own by every program, and then over these rows: nothing is atomic, equal inputs give equal bits.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

TILE = 4096  # elements of a tile
SPLITS = 512  # programs of a backward pass; constant, so that sums do not depend on the device


@triton.jit
def _pairs(pointer, place, here, half, PAIRED: tl.constexpr, ACC: tl.constexpr, P: tl.constexpr):
    """Both members of every pair of heads that begin at pointer + place [T, H, 1]. PAIRED: neighbours make a pair."""
    if PAIRED:
        column = tl.arange(0, 2 * P)[None, None, :]
        x = tl.load(pointer + place + column, mask=here & (column < 2 * half), other=0.0).to(ACC)
        a, b = tl.split(tl.reshape(x, (x.shape[0], x.shape[1], P, 2)))
    else:
        column = tl.arange(0, P)[None, None, :]
        inside = here & (column < half)
        a = tl.load(pointer + place + column, mask=inside, other=0.0).to(ACC)
        b = tl.load(pointer + place + half + column, mask=inside, other=0.0).to(ACC)
    return a, b


@triton.jit
def _put(pointer, place, here, half, a, b, PAIRED: tl.constexpr, P: tl.constexpr):
    if PAIRED:
        column = tl.arange(0, 2 * P)[None, None, :]
        x = tl.reshape(tl.join(a, b), (a.shape[0], a.shape[1], 2 * P))
        tl.store(pointer + place + column, x, mask=here & (column < 2 * half))
    else:
        column = tl.arange(0, P)[None, None, :]
        inside = here & (column < half)
        tl.store(pointer + place + column, a, mask=inside)
        tl.store(pointer + place + half + column, b, mask=inside)


@triton.jit
def _table(pointer, place, here, half, ACC: tl.constexpr, P: tl.constexpr):
    """[T, 1, P] of cosines or sines of tokens at place [T, 1, 1]."""
    pair = tl.arange(0, P)[None, None, :]
    return tl.load(pointer + place + pair, mask=here & (pair < half), other=0.0).to(ACC)


@triton.jit
def _deviation(a, b, heads, half, eps, ACROSS: tl.constexpr):
    """Reciprocal root mean square, [T, H], or [T, 1] across heads."""
    square = tl.sum(a * a + b * b, 2)
    if ACROSS:
        mean = tl.sum(square, 1)[:, None] / (2 * half * heads)
    else:
        mean = square / (2 * half)
    return 1 / tl.sqrt(mean + eps)


@triton.jit
def _norm_rope(
    x_pointer, weight_pointer, cos_pointer, sin_pointer, y_pointer, deviation_pointer,
    program, tokens, heads, half, eps, x_b, x_n, x_h, table_b,
    NORM: tl.constexpr, ROTATE: tl.constexpr, PAIRED: tl.constexpr, ACROSS: tl.constexpr, ACC: tl.constexpr,
    T: tl.constexpr, H: tl.constexpr, P: tl.constexpr,
):  # fmt: skip
    tiles = tl.cdiv(tokens, T)
    row = (program // tiles).to(tl.int64)
    token = ((program % tiles) * T + tl.arange(0, T)).to(tl.int64)[:, None, None]
    head = tl.arange(0, H)[None, :, None]
    there = token < tokens
    here = there & (head < heads)
    made = row * tokens + token
    a, b = _pairs(x_pointer, row * x_b + token * x_n + head * x_h, here, half, PAIRED, ACC, P)
    if NORM:
        deviation = _deviation(a, b, heads, half, eps, ACROSS)[:, :, None]
        weight_a, weight_b = _pairs(weight_pointer, head * (2 * half * ACROSS), head < heads, half, PAIRED, ACC, P)
        a, b = a * deviation * weight_a, b * deviation * weight_b
        if ACROSS:
            tl.store(deviation_pointer + made, deviation, mask=there)
        else:
            tl.store(deviation_pointer + made * heads + head, deviation, mask=here)
    if ROTATE:
        cos = _table(cos_pointer, row * table_b + token * half, there, half, ACC, P)
        sin = _table(sin_pointer, row * table_b + token * half, there, half, ACC, P)
        a, b = a * cos - b * sin, a * sin + b * cos
    _put(y_pointer, (made * heads + head) * (2 * half), here, half, a, b, PAIRED, P)


@triton.jit
def qk_norm_rope_kernel(
    q_pointer, k_pointer, q_weight_pointer, k_weight_pointer, cos_pointer, sin_pointer,
    q_made_pointer, k_made_pointer, q_deviation_pointer, k_deviation_pointer,
    tokens, q_heads, k_heads, half, eps, q_b, q_n, q_h, k_b, k_n, k_h, table_b,
    NORM: tl.constexpr, ROTATE: tl.constexpr, PAIRED: tl.constexpr, ACROSS: tl.constexpr, ACC: tl.constexpr,
    T: tl.constexpr, H: tl.constexpr, P: tl.constexpr,
):  # fmt: skip
    """Grid (rows * tiles of tokens, 2): queries, then keys. The results are contiguous [B, N, h, D]."""
    if tl.program_id(1) == 0:
        _norm_rope(
            q_pointer, q_weight_pointer, cos_pointer, sin_pointer, q_made_pointer, q_deviation_pointer,
            tl.program_id(0), tokens, q_heads, half, eps, q_b, q_n, q_h, table_b,
            NORM, ROTATE, PAIRED, ACROSS, ACC, T, H, P,
        )  # fmt: skip
    else:
        _norm_rope(
            k_pointer, k_weight_pointer, cos_pointer, sin_pointer, k_made_pointer, k_deviation_pointer,
            tl.program_id(0), tokens, k_heads, half, eps, k_b, k_n, k_h, table_b,
            NORM, ROTATE, PAIRED, ACROSS, ACC, T, H, P,
        )  # fmt: skip


@triton.jit
def norm_rope_backward_kernel(
    grad_pointer, x_pointer, weight_pointer, cos_pointer, sin_pointer, deviation_pointer, dx_pointer, sums_pointer,
    tokens, heads, half, splits, tiles, grad_b, grad_n, grad_h, x_b, x_n, x_h, table_b,
    NORM: tl.constexpr, ROTATE: tl.constexpr, PAIRED: tl.constexpr, ACROSS: tl.constexpr, ACC: tl.constexpr,
    T: tl.constexpr, H: tl.constexpr, P: tl.constexpr,
):  # fmt: skip
    """Grid (rows * splits): a program takes `tiles` tiles of tokens, one after another. sums: [B, splits, h, D]."""
    row = (tl.program_id(0) // splits).to(tl.int64)
    first = (tl.program_id(0) % splits) * tiles * T
    head = tl.arange(0, H)[None, :, None]
    if NORM:
        weight_a, weight_b = _pairs(weight_pointer, head * (2 * half * ACROSS), head < heads, half, PAIRED, ACC, P)
        sum_a, sum_b = tl.zeros([1, H, P], ACC), tl.zeros([1, H, P], ACC)
    for tile in range(tiles):
        token = (first + tile * T + tl.arange(0, T)).to(tl.int64)[:, None, None]
        there = token < tokens
        here = there & (head < heads)
        ga, gb = _pairs(grad_pointer, row * grad_b + token * grad_n + head * grad_h, here, half, PAIRED, ACC, P)
        if ROTATE:
            cos = _table(cos_pointer, row * table_b + token * half, there, half, ACC, P)
            sin = _table(sin_pointer, row * table_b + token * half, there, half, ACC, P)
            ga, gb = ga * cos + gb * sin, gb * cos - ga * sin
        made = row * tokens + token
        if NORM:
            if ACROSS:
                deviation = tl.load(deviation_pointer + made, mask=there, other=0.0)
            else:
                deviation = tl.load(deviation_pointer + made * heads + head, mask=here, other=0.0)
            a, b = _pairs(x_pointer, row * x_b + token * x_n + head * x_h, here, half, PAIRED, ACC, P)
            a, b = a * deviation, b * deviation
            sum_a += tl.sum(ga * a, 0)[None]
            sum_b += tl.sum(gb * b, 0)[None]
            ga, gb = ga * weight_a, gb * weight_b
            product = tl.sum(ga * a + gb * b, 2)
            if ACROSS:
                mean = tl.sum(product, 1)[:, None, None] / (2 * half * heads)
            else:
                mean = product[:, :, None] / (2 * half)
            ga, gb = deviation * (ga - a * mean), deviation * (gb - b * mean)
        _put(dx_pointer, (made * heads + head) * (2 * half), here, half, ga, gb, PAIRED, P)
    if NORM:
        place = (tl.program_id(0).to(tl.int64) * heads + head) * (2 * half)
        _put(sums_pointer, place, head < heads, half, sum_a, sum_b, PAIRED, P)


@triton.jit
def write_ring_kernel(
    k_pointer, v_pointer, weight_pointer, cos_pointer, sin_pointer, keys_pointer, values_pointer,
    slot_pointer, keep_pointer,
    rows, frames, tokens, heads, half, eps, k_l, k_b, k_n, k_h, v_l, v_b, v_n, v_h, table_b,
    keys_l, keys_b, keys_h, keys_s, keys_n, values_l, values_b, values_h, values_s, values_n,
    NORM: tl.constexpr, PAIRED: tl.constexpr, ACROSS: tl.constexpr, ACC: tl.constexpr,
    T: tl.constexpr, H: tl.constexpr, P: tl.constexpr,
):  # fmt: skip
    """Grid (layers * rows * frames * tiles of a frame's tokens). tokens: of one frame. slot, keep: contiguous."""
    tiles = tl.cdiv(tokens, T)
    group = tl.program_id(0) // tiles
    layer, told = (group // (rows * frames)).to(tl.int64), group % (rows * frames)
    row, frame = (told // frames).to(tl.int64), told % frames
    if tl.load(keep_pointer + told):
        slot = tl.load(slot_pointer + told)
        token = ((tl.program_id(0) % tiles) * T + tl.arange(0, T)).to(tl.int64)[:, None, None]
        place = frame * tokens + token  # in the chunk
        head = tl.arange(0, H)[None, :, None]
        there = token < tokens
        here = there & (head < heads)
        a, b = _pairs(k_pointer, layer * k_l + row * k_b + place * k_n + head * k_h, here, half, PAIRED, ACC, P)
        if NORM:
            deviation = _deviation(a, b, heads, half, eps, ACROSS)[:, :, None]
            across = head * (2 * half * ACROSS)
            of_layer = layer * (2 * half * (heads if ACROSS else 1))
            weight_a, weight_b = _pairs(weight_pointer, of_layer + across, head < heads, half, PAIRED, ACC, P)
            a, b = a * deviation * weight_a, b * deviation * weight_b
        cos = _table(cos_pointer, row * table_b + place * half, there, half, ACC, P)
        sin = _table(sin_pointer, row * table_b + place * half, there, half, ACC, P)
        to = layer * keys_l + row * keys_b + head * keys_h + slot * keys_s + token * keys_n
        _put(keys_pointer, to, here, half, a * cos - b * sin, a * sin + b * cos, PAIRED, P)
        a, b = _pairs(v_pointer, layer * v_l + row * v_b + place * v_n + head * v_h, here, half, PAIRED, ACC, P)
        to = layer * values_l + row * values_b + head * values_h + slot * values_s + token * values_n
        _put(values_pointer, to, here, half, a, b, PAIRED, P)


def tile(heads: int, head_dim: int) -> tuple[int, int, int, int]:
    """T, H, P and warps for tokens of so many heads."""
    h, p = triton.next_power_of_2(heads), triton.next_power_of_2(head_dim // 2)
    t = max(1, min(16, TILE // (2 * h * p)))
    return t, h, p, max(1, min(8, t * h * p // 512))


def accumulator(x: Tensor) -> tl.dtype:
    return tl.float64 if x.dtype == torch.float64 else tl.float32


def qk_norm_rope(
    q: Tensor, k: Tensor, q_weight: Tensor | None, k_weight: Tensor | None, cos: Tensor | None, sin: Tensor | None,
    eps: float, paired: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Queries, keys, and of each the reciprocal root mean squares as `deviations` makes room for them."""
    made = [torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in (q, k)]
    tokens, heads, head_dim = q.shape[1:]
    one = across(q_weight, head_dim) or across(k_weight, head_dim)  # with one head they are the same
    roots = deviations(q, k, q_weight, k_weight)
    t, h, p, warps = tile(max(heads, k.shape[2]), head_dim)
    if q.numel():
        qk_norm_rope_kernel[(q.shape[0] * triton.cdiv(tokens, t), 2)](
            q, k, _or(q_weight, q), _or(k_weight, k), _or(cos, q), _or(sin, q), *made, *roots,
            tokens, heads, k.shape[2], head_dim // 2, eps, *q.stride()[:3], *k.stride()[:3], row_stride(cos),
            NORM=q_weight is not None, ROTATE=cos is not None, PAIRED=paired, ACROSS=one,
            ACC=accumulator(q), T=t, H=h, P=p, num_warps=warps,
        )  # fmt: skip
    return made[0], made[1], *roots


def deviations(q: Tensor, k: Tensor, q_weight: Tensor | None, k_weight: Tensor | None) -> tuple[Tensor, Tensor]:
    """Room for those of queries and keys: [B, N, h] each, [B, N, 1] across heads, [0] without a norm."""
    kind = torch.float64 if q.dtype == torch.float64 else torch.float32
    if q_weight is None:
        return q.new_empty(0, dtype=kind), q.new_empty(0, dtype=kind)
    one = across(q_weight, q.shape[3]) or across(k_weight, q.shape[3])
    first, second = (x.new_empty(*x.shape[:2], 1 if one else x.shape[2], dtype=kind) for x in (q, k))
    return first, second


def norm_rope_backward(
    grad: Tensor, x: Tensor, weight: Tensor | None, cos: Tensor | None, sin: Tensor | None, deviation: Tensor,
    paired: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Gradients of queries or keys, in their type, and of their weight, in that of the sums; [0] without a norm."""
    batch, tokens, heads, head_dim = x.shape
    dx = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if not x.numel():
        return dx, deviation.new_zeros(0 if weight is None else weight.shape)
    t, h, p, warps = tile(heads, head_dim)
    tiles = triton.cdiv(tokens, t)
    each = triton.cdiv(tiles, max(1, SPLITS // batch))
    splits = triton.cdiv(tiles, each)
    sums = deviation.new_empty(0) if weight is None else deviation.new_empty(batch, splits, heads, head_dim)
    norm_rope_backward_kernel[(batch * splits,)](
        grad, x, _or(weight, x), _or(cos, x), _or(sin, x), deviation, dx, sums,
        tokens, heads, head_dim // 2, splits, each, *grad.stride()[:3], *x.stride()[:3], row_stride(cos),
        NORM=weight is not None, ROTATE=cos is not None, PAIRED=paired, ACROSS=across(weight, head_dim),
        ACC=accumulator(x), T=t, H=h, P=p, num_warps=warps,
    )  # fmt: skip
    if weight is None:
        return dx, sums
    return dx, sums.sum((0, 1)).flatten() if across(weight, head_dim) else sums.sum((0, 1, 2))


def write_ring(
    k: Tensor, v: Tensor, weight: Tensor | None, cos: Tensor, sin: Tensor, eps: float, paired: bool,
    keys: Tensor, values: Tensor, slot: Tensor, keep: Tensor,
) -> None:  # fmt: skip
    """As the reference."""
    rows, frames = slot.shape
    layers, _, _, heads, head_dim = k.shape
    tokens = keys.shape[4]
    t, h, p, warps = tile(heads, head_dim)
    if k.numel():
        write_ring_kernel[(layers * rows * frames * triton.cdiv(tokens, t),)](
            k, v, _or(weight, k), cos, sin, keys, values, slot, keep, rows, frames, tokens, heads, head_dim // 2, eps,
            *k.stride()[:4], *v.stride()[:4], row_stride(cos), *keys.stride()[:5], *values.stride()[:5],
            NORM=weight is not None, PAIRED=paired, ACROSS=weight is not None and weight.shape[1] != head_dim,
            ACC=accumulator(k), T=t, H=h, P=p, num_warps=warps,
        )  # fmt: skip


def across(weight: Tensor | None, head_dim: int) -> bool:
    """Whether a norm's weight is that of all heads of a token together."""
    return weight is not None and weight.shape[0] != head_dim


def row_stride(table: Tensor | None) -> int:
    """Elements from one row's cosines to the next one's; 0 where all rows share them."""
    return 0 if table is None or table.shape[0] == 1 else table.stride(0)


def _or(x: Tensor | None, other: Tensor) -> Tensor:
    """A pointer for what a kernel does not read."""
    return other if x is None else x
