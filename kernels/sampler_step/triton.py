# pyright: reportCallIssue=false, reportArgumentType=false, reportReturnType=false, reportGeneralTypeIssues=false
# Types of kernels are those of the language that Triton compiles.
"""A sampler's step in one pass, its noise drawn where it is used.

The generator is that of kernels/noise: Philox4x32-10 with counter (block of 4 elements, frame low, frame high, step)
and key (seed low, seed high): words are equal bit for bit. Box-Muller is computed in fp64 and rounded once to fp32, so
that a logarithm, cosine or sine that is off by one unit in the last place of fp64 shows in about one draw of 2^28, and
then as one unit in the last place of fp32.
"""

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from worldmodel.kernels import triton_needs

# Philox blocks of a program, one a thread: 4 elements each. The interpreter takes its time per program.
BLOCKS = 4096 if triton_needs.interpreted() else 128
TURN = tl.constexpr(2 * math.pi * 2.0**-32)
UNIT = tl.constexpr(2.0**-32)
QUARTER = tl.constexpr(1.5707963267341256)  # of a turn, pi / 2: its first 33 bits
QUARTER_LOW = tl.constexpr(6.077100506506192e-11)


@triton.jit
def _cos_sin(word):
    """Of the angle fp64(word) * 2 pi / 2^32, reduced to a quadrant by the word's own bits, then Taylor's series.

    Library functions keep room on the stack for angles of any size; these have 32 bits.
    """
    angle = word.to(tl.float64) * TURN
    quadrant = ((word >> 29) + 1) >> 1  # the nearest of 0 to 4
    turns = quadrant.to(tl.float64)
    r = (angle - turns * QUARTER) - turns * QUARTER_LOW  # |r| <= pi / 4, the product with 33 bits is exact
    z = r * r
    s, c = z * 0.0, z * 0.0
    for i in tl.static_range(8, 0, -1):  # up to r^17 / 17! and r^18 / 18!
        s = (s + 1.0) * z * (-1.0 / ((2 * i) * (2 * i + 1)))
        c = (c + 1.0) * z * (-1.0 / ((2 * i + 1) * (2 * i + 2)))
    s = r + r * s
    c = 1.0 - (0.5 * z + 0.5 * z * c)
    odd, half = (quadrant & 1) == 1, (quadrant & 2) == 2
    cos, sin = tl.where(odd, -s, c), tl.where(odd, c, s)
    return tl.where(half, -cos, cos), tl.where(half, -sin, sin)


@triton.jit
def _gaussian(a, b):
    """Two normals, fp32, of two words."""
    radius = tl.sqrt(-2.0 * tl.log((a.to(tl.float64) + 1.0) * UNIT))
    cos, sin = _cos_sin(b)
    return (radius * cos).to(tl.float32), (radius * sin).to(tl.float32)


@triton.jit
def _normal(seed, frame, step, block, COUNT: tl.constexpr):
    """Elements 4 * block + (0, 1, 2, 3) of a frame's noise, [4 * COUNT] fp32."""
    zero = tl.zeros([COUNT], tl.uint32)
    low, high = (frame & 0xFFFFFFFF).to(tl.uint32) + zero, ((frame >> 32) & 0xFFFFFFFF).to(tl.uint32) + zero
    a, b, c, d = tl.philox(seed, block.to(tl.uint32), low, high, step.to(tl.uint32) + zero)
    z0, z1 = _gaussian(a, b)
    z2, z3 = _gaussian(c, d)
    return tl.reshape(tl.join(tl.join(z0, z2), tl.join(z1, z3)), (4 * COUNT,))


@triton.jit
def normal_kernel(seed_pointer, frame_pointer, out_pointer, frames, size, step, frame_b, frame_k, COUNT: tl.constexpr):
    """Grid (rows * frames, tiles of a frame)."""
    group = tl.program_id(0).to(tl.int64)
    b, k = group // frames, group % frames
    seed, frame = tl.load(seed_pointer + b), tl.load(frame_pointer + b * frame_b + k * frame_k)
    first = tl.program_id(1) * COUNT
    made = _normal(seed, frame, step + tl.zeros([1], tl.int32), first + tl.arange(0, COUNT), COUNT)
    element = first * 4 + tl.arange(0, 4 * COUNT)
    tl.store(out_pointer + group * size + element, made, mask=element < size)


@triton.jit
def step_kernel(
    x_pointer, v_pointer, t_pointer, s_pointer, seed_pointer, frame_pointer, out_pointer,
    frames, size, step, x_b, x_k, v_b, v_k, t_b, t_k, s_b, s_k, frame_b, frame_k,
    RENOISE: tl.constexpr, ACC: tl.constexpr, COUNT: tl.constexpr,
):  # fmt: skip
    """Grid (rows * frames, tiles of a frame); the result is contiguous."""
    group = tl.program_id(0).to(tl.int64)
    b, k = group // frames, group % frames
    first = tl.program_id(1) * COUNT
    element = first * 4 + tl.arange(0, 4 * COUNT)
    inside = element < size
    x = tl.load(x_pointer + b * x_b + k * x_k + element, mask=inside, other=0.0).to(ACC)
    v = tl.load(v_pointer + b * v_b + k * v_k + element, mask=inside, other=0.0).to(ACC)
    t = tl.load(t_pointer + b * t_b + k * t_k).to(ACC)
    s = tl.load(s_pointer + b * s_b + k * s_k).to(ACC)
    if RENOISE:
        seed, frame = tl.load(seed_pointer + b), tl.load(frame_pointer + b * frame_b + k * frame_k)
        fresh = _normal(seed, frame, step + tl.zeros([1], tl.int32), first + tl.arange(0, COUNT), COUNT)
        out = (1 - s) * (x - t * v) + s * fresh.to(ACC)
    else:
        out = x + (s - t) * v
    tl.store(out_pointer + group * size + element, out, mask=inside)


def count(size: int) -> int:
    """Philox blocks of a program for frames of so many elements."""
    return min(BLOCKS, triton.next_power_of_2(triton.cdiv(size, 4)))


def normal(seed: Tensor, frame: Tensor, step: int, shape: list[int]) -> Tensor:
    """As the reference: [B, K, *shape] fp32."""
    out = torch.empty(*frame.shape, *shape, dtype=torch.float32, device=seed.device)
    size = math.prod(shape)
    if out.numel():
        blocks = count(size)
        normal_kernel[(frame.numel(), triton.cdiv(size, 4 * blocks))](
            seed, frame, out, frame.shape[1], size, step, *frame.stride(), COUNT=blocks, num_warps=4
        )
    return out


def euler(x: Tensor, v: Tensor, t: Tensor, s: Tensor) -> Tensor:
    """As the reference."""
    return _step(x, v, t, s, None, None, 0)


def renoise(x: Tensor, v: Tensor, t: Tensor, s: Tensor, seed: Tensor, frame: Tensor, step: int) -> Tensor:
    """As the reference."""
    return _step(x, v, t, s, seed, frame, step)


def _step(
    x: Tensor, v: Tensor, t: Tensor, s: Tensor, seed: Tensor | None, frame: Tensor | None, step: int
) -> Tensor:  # fmt: skip
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    size = math.prod(x.shape[2:])
    if out.numel():
        blocks = count(size)
        strides = (y.stride()[i] for y in (x, v, t, s) for i in (0, 1))
        step_kernel[(x.shape[0] * x.shape[1], triton.cdiv(size, 4 * blocks))](
            x, v, t, s, x if seed is None else seed, x if frame is None else frame, out,
            x.shape[1], size, step, *strides, *((0, 0) if frame is None else frame.stride()),
            RENOISE=seed is not None, ACC=tl.float64 if x.dtype == torch.float64 else tl.float32, COUNT=blocks,
            num_warps=4,
        )  # fmt: skip
    return out
