# pyright: reportCallIssue=false, reportArgumentType=false, reportReturnType=false, reportGeneralTypeIssues=false
# Types of kernels are those of the language that Triton compiles.
"""AdaLN modulation and gated residual in one pass each, forward and backward.

A program has a tile of ROWS tokens of one frame and BLOCK columns, so that it reads the frame's modulation once. The
gradients of the modulation are sums over a frame's tokens: every program sums its tokens in order into a row of its
own, and a second sum over these rows follows. Nothing is atomic, so that equal inputs give equal bits.

Widths above WIDEST do not fit into a tile: their statistics are taken in passes over blocks of columns (WIDE).
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

WIDEST = 8192
TILE = 4096  # elements of a tile, where the width allows
SPLITS = 1024  # programs of a backward pass; constant, so that sums do not depend on the device


@triton.jit
def _tile(pointer, row, column, mask, ACC: tl.constexpr):
    return tl.load(pointer + row[:, None] + column[None, :], mask=mask, other=0.0).to(ACC)


@triton.jit
def _frame(pointer, column, width, ACC: tl.constexpr):
    return tl.load(pointer + column, mask=column < width, other=0.0).to(ACC)[None, :]


@triton.jit
def _statistics(x, inside, width, eps, RMS: tl.constexpr):
    """Mean and reciprocal deviation of every row of a tile that holds whole rows."""
    mean = tl.sum(x, 1) / width
    if RMS:
        mean = mean * 0
    deviation = tl.where(inside, x - mean[:, None], 0.0)
    return mean, 1 / tl.sqrt(tl.sum(deviation * deviation, 1) / width + eps)


@triton.jit
def _wide_statistics(pointer, row, here, width, eps, RMS: tl.constexpr, ACC: tl.constexpr, BLOCK: tl.constexpr):
    """The same for rows longer than a tile."""
    mean = tl.sum(tl.zeros_like(row)[:, None].to(ACC), 1)
    if not RMS:
        for start in range(0, width, BLOCK):
            column = start + tl.arange(0, BLOCK)
            mean += tl.sum(_tile(pointer, row, column, here[:, None] & (column < width)[None, :], ACC), 1)
        mean = mean / width
    square = mean * 0
    for start in range(0, width, BLOCK):
        column = start + tl.arange(0, BLOCK)
        inside = here[:, None] & (column < width)[None, :]
        deviation = tl.where(inside, _tile(pointer, row, column, inside, ACC) - mean[:, None], 0.0)
        square += tl.sum(deviation * deviation, 1)
    return mean, 1 / tl.sqrt(square / width + eps)


@triton.jit
def modulate_kernel(
    x_pointer, shift_pointer, scale_pointer, y_pointer, mean_pointer, deviation_pointer,
    frames, tokens, width, eps,
    x_b, x_f, x_n, shift_b, shift_f, scale_b, scale_f,
    RMS: tl.constexpr, WIDE: tl.constexpr, ACC: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Grid (rows * frames * tiles of tokens, blocks of columns); y and the statistics are contiguous."""
    tiles = tl.cdiv(tokens, ROWS)
    group = (tl.program_id(0) // tiles).to(tl.int64)
    b, f = group // frames, group % frames
    token = (tl.program_id(0) % tiles) * ROWS + tl.arange(0, ROWS)
    here = token < tokens
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = here[:, None] & (column < width)[None, :]
    row = b * x_b + f * x_f + token.to(tl.int64) * x_n

    x = _tile(x_pointer, row, column, inside, ACC)
    if WIDE:
        mean, deviation = _wide_statistics(x_pointer, row, here, width, eps, RMS, ACC, BLOCK)
    else:
        mean, deviation = _statistics(x, inside, width, eps, RMS)
    scale = _frame(scale_pointer + b * scale_b + f * scale_f, column, width, ACC)
    shift = _frame(shift_pointer + b * shift_b + f * shift_f, column, width, ACC)
    y = (x - mean[:, None]) * deviation[:, None] * (1 + scale) + shift

    made = group * tokens + token
    tl.store(y_pointer + (made * width)[:, None] + column[None, :], y, mask=inside)
    if tl.program_id(1) == 0:
        tl.store(mean_pointer + made, mean, mask=here)
        tl.store(deviation_pointer + made, deviation, mask=here)


@triton.jit
def modulate_backward_kernel(
    grad_pointer, x_pointer, scale_pointer, mean_pointer, deviation_pointer,
    dx_pointer, shift_sums_pointer, scale_sums_pointer,
    frames, tokens, width, splits, tiles,
    grad_b, grad_f, grad_n, x_b, x_f, x_n, scale_b, scale_f,
    RMS: tl.constexpr, WIDE: tl.constexpr, ACC: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Grid (rows * frames * splits, blocks of columns): a program takes `tiles` tiles of tokens, one after another."""
    group = (tl.program_id(0) // splits).to(tl.int64)
    b, f = group // frames, group % frames
    first = (tl.program_id(0) % splits) * tiles * ROWS
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    scale_pointer += b * scale_b + f * scale_f
    scale = _frame(scale_pointer, column, width, ACC)
    shift_sum, scale_sum = tl.zeros([BLOCK], ACC), tl.zeros([BLOCK], ACC)

    for tile in range(tiles):
        token = first + tile * ROWS + tl.arange(0, ROWS)
        here = token < tokens
        inside = here[:, None] & (column < width)[None, :]
        x_row = b * x_b + f * x_f + token.to(tl.int64) * x_n
        grad_row = b * grad_b + f * grad_f + token.to(tl.int64) * grad_n
        made = group * tokens + token
        mean = tl.load(mean_pointer + made, mask=here, other=0.0)[:, None]
        deviation = tl.load(deviation_pointer + made, mask=here, other=0.0)[:, None]
        grad = _tile(grad_pointer, grad_row, column, inside, ACC)
        normed = tl.where(inside, (_tile(x_pointer, x_row, column, inside, ACC) - mean) * deviation, 0.0)
        inner = grad * (1 + scale)  # the gradient of what was normalised
        if WIDE:
            sum_inner, sum_product = deviation * 0, deviation * 0
            for start in range(0, width, BLOCK):
                other = start + tl.arange(0, BLOCK)
                there = here[:, None] & (other < width)[None, :]
                part = _tile(grad_pointer, grad_row, other, there, ACC) * (1 + _frame(scale_pointer, other, width, ACC))
                sum_inner += tl.sum(part, 1)[:, None]
                part *= (_tile(x_pointer, x_row, other, there, ACC) - mean) * deviation
                sum_product += tl.sum(part, 1)[:, None]
        else:
            sum_inner, sum_product = tl.sum(inner, 1)[:, None], tl.sum(inner * normed, 1)[:, None]
        if RMS:
            sum_inner = sum_inner * 0
        dx = deviation * (inner - sum_inner / width - normed * (sum_product / width))
        tl.store(dx_pointer + (made * width)[:, None] + column[None, :], dx, mask=inside)
        shift_sum += tl.sum(grad, 0)
        scale_sum += tl.sum(grad * normed, 0)

    place = tl.program_id(0).to(tl.int64) * width + column
    tl.store(shift_sums_pointer + place, shift_sum, mask=column < width)
    tl.store(scale_sums_pointer + place, scale_sum, mask=column < width)


@triton.jit
def gated_residual_kernel(
    x_pointer, y_pointer, gate_pointer, out_pointer,
    frames, tokens, width,
    x_b, x_f, x_n, y_b, y_f, y_n, gate_b, gate_f,
    ACC: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Grid (rows * frames * tiles of tokens, blocks of columns); the result is contiguous."""
    count = tl.cdiv(tokens, ROWS)
    group = (tl.program_id(0) // count).to(tl.int64)
    b, f = group // frames, group % frames
    token = (tl.program_id(0) % count) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = (token < tokens)[:, None] & (column < width)[None, :]
    far = token.to(tl.int64)
    x = _tile(x_pointer, b * x_b + f * x_f + far * x_n, column, inside, ACC)
    y = _tile(y_pointer, b * y_b + f * y_f + far * y_n, column, inside, ACC)
    out = x + _frame(gate_pointer + b * gate_b + f * gate_f, column, width, ACC) * y
    tl.store(out_pointer + ((group * tokens + far) * width)[:, None] + column[None, :], out, mask=inside)


@triton.jit
def gated_residual_backward_kernel(
    grad_pointer, y_pointer, gate_pointer, dy_pointer, sums_pointer,
    frames, tokens, width, splits, tiles,
    grad_b, grad_f, grad_n, y_b, y_f, y_n, gate_b, gate_f,
    ACC: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Grid as in `modulate_backward_kernel`."""
    group = (tl.program_id(0) // splits).to(tl.int64)
    b, f = group // frames, group % frames
    first = (tl.program_id(0) % splits) * tiles * ROWS
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    gate = _frame(gate_pointer + b * gate_b + f * gate_f, column, width, ACC)
    total = tl.zeros([BLOCK], ACC)
    for tile in range(tiles):
        token = (first + tile * ROWS + tl.arange(0, ROWS)).to(tl.int64)
        inside = (token < tokens)[:, None] & (column < width)[None, :]
        grad = _tile(grad_pointer, b * grad_b + f * grad_f + token * grad_n, column, inside, ACC)
        y = _tile(y_pointer, b * y_b + f * y_f + token * y_n, column, inside, ACC)
        tl.store(dy_pointer + ((group * tokens + token) * width)[:, None] + column[None, :], gate * grad, mask=inside)
        total += tl.sum(grad * y, 0)
    place = tl.program_id(0).to(tl.int64) * width + column
    tl.store(sums_pointer + place, total, mask=column < width)


def tile(width: int) -> tuple[int, int, int]:
    """ROWS, BLOCK and warps for tokens of a width."""
    block = min(triton.next_power_of_2(width), WIDEST)
    rows = max(1, min(16, TILE // block))
    return rows, block, max(1, min(8, rows * block // 1024))


def splits(groups: int, tokens: int, rows: int) -> tuple[int, int]:
    """Into how many programs a backward pass cuts a frame, and how many tiles each of them takes."""
    tiles = triton.cdiv(tokens, rows)
    each = triton.cdiv(tiles, max(1, SPLITS // groups))
    return triton.cdiv(tiles, each), each


def accumulator(x: Tensor) -> tl.dtype:
    return tl.float64 if x.dtype == torch.float64 else tl.float32


def modulate(x: Tensor, shift: Tensor, scale: Tensor, eps: float, rms: bool) -> tuple[Tensor, Tensor, Tensor]:
    """The result of the reference, and for the backward pass every token's mean and reciprocal deviation [B, F, N]."""
    frames, tokens, width = x.shape[1:]
    rows, block, warps = tile(width)
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    wide = torch.float64 if x.dtype == torch.float64 else torch.float32
    mean, deviation = (torch.empty(x.shape[:3], dtype=wide, device=x.device) for _ in range(2))
    if x.numel():
        grid = (x.shape[0] * frames * triton.cdiv(tokens, rows), triton.cdiv(width, block))
        modulate_kernel[grid](
            x, shift, scale, y, mean, deviation, frames, tokens, width, eps,
            *x.stride()[:3], *shift.stride()[:2], *scale.stride()[:2],
            RMS=rms, WIDE=width > block, ACC=accumulator(x), ROWS=rows, BLOCK=block, num_warps=warps,
        )  # fmt: skip
    return y, mean, deviation


def modulate_backward(
    grad: Tensor, x: Tensor, scale: Tensor, mean: Tensor, deviation: Tensor, rms: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of x (in its type), shift and scale (in the type of the statistics)."""
    batch, frames, tokens, width = x.shape
    rows, block, warps = tile(width)
    dx = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if not x.numel():
        return dx, mean.new_zeros(batch, frames, width), mean.new_zeros(batch, frames, width)
    count, tiles = splits(batch * frames, tokens, rows)
    sums = mean.new_empty(2, batch, frames, count, width)
    grid = (batch * frames * count, triton.cdiv(width, block))
    modulate_backward_kernel[grid](
        grad, x, scale, mean, deviation, dx, sums[0], sums[1], frames, tokens, width, count, tiles,
        *grad.stride()[:3], *x.stride()[:3], *scale.stride()[:2],
        RMS=rms, WIDE=width > block, ACC=accumulator(x), ROWS=rows, BLOCK=block, num_warps=warps,
    )  # fmt: skip
    return dx, sums[0].sum(2), sums[1].sum(2)


def gated_residual(x: Tensor, y: Tensor, gate: Tensor) -> Tensor:
    """The result of the reference."""
    frames, tokens, width = x.shape[1:]
    rows, block, warps = residual_tile(width)
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if x.numel():
        grid = (x.shape[0] * frames * triton.cdiv(tokens, rows), triton.cdiv(width, block))
        gated_residual_kernel[grid](
            x, y, gate, out, frames, tokens, width, *x.stride()[:3], *y.stride()[:3], *gate.stride()[:2],
            ACC=accumulator(x), ROWS=rows, BLOCK=block, num_warps=warps,
        )  # fmt: skip
    return out


def gated_residual_backward(grad: Tensor, y: Tensor, gate: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of y (in its type) and gate (in the type of the sums); that of x is `grad`."""
    batch, frames, tokens, width = y.shape
    rows, block, warps = residual_tile(width)
    dy = torch.empty(y.shape, dtype=y.dtype, device=y.device)
    wide = torch.float64 if grad.dtype == torch.float64 else torch.float32
    if not y.numel():
        return dy, torch.zeros(batch, frames, width, dtype=wide, device=y.device)
    count, tiles = splits(batch * frames, tokens, rows)
    sums = torch.empty(batch, frames, count, width, dtype=wide, device=y.device)
    grid = (batch * frames * count, triton.cdiv(width, block))
    gated_residual_backward_kernel[grid](
        grad, y, gate, dy, sums, frames, tokens, width, count, tiles,
        *grad.stride()[:3], *y.stride()[:3], *gate.stride()[:2],
        ACC=accumulator(grad), ROWS=rows, BLOCK=block, num_warps=warps,
    )  # fmt: skip
    return dy, sums.sum(2)


def residual_tile(width: int) -> tuple[int, int, int]:
    """ROWS, BLOCK and warps where columns do not depend on each other."""
    block = min(triton.next_power_of_2(width), 1024)
    rows = max(1, min(16, TILE // block))
    return rows, block, max(1, min(4, rows * block // 512))
