"""Flow matching on the straight path between data and noise. Its conventions live here and nowhere else.

Flow time t runs from 0 (data) to 1 (noise): x_t = (1 - t) x + t noise, velocity v = noise - x (rectified flow, Liu et
al., 2209.03003; the direction is that of diffusers' flow-match schedulers). Shapes: x, noise, x_t, v [B, K, ...] and
t [B, K], one flow time per frame.
"""

import math

import torch
from torch import Tensor

from worldmodel.kernels import sampler_step


def _like(t: Tensor, x: Tensor) -> Tensor:
    return t.reshape(*t.shape, *(1,) * (x.ndim - t.ndim)).to(x.dtype)


def interpolate(x: Tensor, noise: Tensor, t: Tensor) -> Tensor:
    """The point x_t of the path at flow time t."""
    t = _like(t, x)
    return (1 - t) * x + t * noise


def velocity(x: Tensor, noise: Tensor) -> Tensor:
    """The constant velocity of the path from x to noise."""
    return noise - x


def clean(x_t: Tensor, v: Tensor, t: Tensor) -> Tensor:
    """Where the line through x_t with velocity v meets t = 0: the predicted data."""
    return x_t - _like(t, x_t) * v


def towards(x: Tensor, x_t: Tensor, t: Tensor) -> Tensor:
    """The inverse of `clean` for t > 0: the velocity of the line through x_t that meets t = 0 at x."""
    return (x_t - x) / _like(t, x_t)


def expected(x_t: Tensor, t: Tensor) -> Tensor:
    """What x_t says of data of unit variance, by the best linear estimate: x_t (1 - t) / ((1 - t)^2 + t^2), which is
    the data itself at t = 0 and 0 at t = 1."""
    t = _like(t, x_t)
    return x_t * ((1 - t) / ((1 - t) ** 2 + t**2))


def noise_of(x_t: Tensor, v: Tensor, t: Tensor) -> Tensor:
    """Where the line through x_t with velocity v meets t = 1: the predicted noise."""
    return x_t + (1 - _like(t, x_t)) * v


def euler(x_t: Tensor, v: Tensor, t: Tensor, s: Tensor) -> Tensor:
    """One Euler step from flow time t to s (s < t moves towards data): x_t + (s - t) v."""
    return sampler_step.euler(x_t, v, t, s)


def renoise(x_t: Tensor, v: Tensor, t: Tensor, s: Tensor, seed: Tensor, frame: Tensor, step: int) -> Tensor:
    """From x_t at flow time t to the predicted data, and from there to flow time s with fresh noise, which is drawn
    where it is used: draw `step` of rows with seed [B] int64 and absolute frames frame [B, K] int64.
    """
    return sampler_step.renoise(x_t, v, t, s, seed, frame, step)


def shift(t: Tensor, amount: float) -> Tensor:
    """The schedule shift s t / (1 + (s - 1) t) (Esser et al., 2403.03206): amount > 1 spends more steps near noise."""
    return amount * t / (1 + (amount - 1) * t)


def times(steps: int, amount: float = 1.0) -> tuple[float, ...]:
    """The sampler's schedule: steps + 1 flow times from 1 down to 0, shifted by `amount`."""
    if steps < 1:
        raise ValueError(f"a schedule needs at least one step, not {steps}")
    p, q = (1 / steps).as_integer_ratio()  # each time is rounded once, as torch.linspace does, but on no device
    even = [(q - i * p if i < (steps + 1) // 2 else (steps - i) * p) / q for i in range(1, steps)]
    return (1.0, *(amount * t / (1 + (amount - 1) * t) for t in even), 0.0)


def embed_time(t: Tensor, width: int, scale: float = 1000.0) -> Tensor:
    """Sinusoidal embedding of t [...] -> [..., width]: cosines, then sines, of scale * t over geometric frequencies.

    In fp32 and in diffusers' order of operations, so that pretrained models see the same numbers to the last bit
    (Vaswani et al., 1706.03762, base 10000).
    """
    half = width // 2
    frequency = torch.exp(-math.log(10000.0) * torch.arange(half, dtype=torch.float32, device=t.device) / half)
    angle = (t.float() * scale)[..., None] * frequency
    return torch.cat((angle.cos(), angle.sin()), -1)
