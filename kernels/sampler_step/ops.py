# pyright: reportIncompatibleMethodOverride=false
"""The Triton kernels as operators of torch.library, with shapes for torch.compile and gradients for autograd."""

from typing import Any

import torch
from torch import Tensor

from . import triton

LIBRARY = torch.library.Library("worldmodel", "FRAGMENT")
LIBRARY.define("sampler_normal(Tensor seed, Tensor frame, int step, SymInt[] shape) -> Tensor")
LIBRARY.define("sampler_euler(Tensor x, Tensor v, Tensor t, Tensor s) -> Tensor")
LIBRARY.define("sampler_renoise(Tensor x, Tensor v, Tensor t, Tensor s, Tensor seed, Tensor frame, int step) -> Tensor")
for _name in ("normal", "euler", "renoise"):
    LIBRARY.impl(f"sampler_{_name}", getattr(triton, _name), "CompositeExplicitAutograd")


@torch.library.register_fake("worldmodel::sampler_normal", lib=LIBRARY)
def _(seed: Tensor, frame: Tensor, step: int, shape: list[int]) -> Tensor:
    return seed.new_empty(*frame.shape, *shape, dtype=torch.float32)


@torch.library.register_fake("worldmodel::sampler_euler", lib=LIBRARY)
def _(x: Tensor, v: Tensor, t: Tensor, s: Tensor) -> Tensor:
    return x.new_empty(x.shape)


@torch.library.register_fake("worldmodel::sampler_renoise", lib=LIBRARY)
def _(x: Tensor, v: Tensor, t: Tensor, s: Tensor, seed: Tensor, frame: Tensor, step: int) -> Tensor:
    return x.new_empty(x.shape)


class Euler(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, v: Tensor, t: Tensor, s: Tensor) -> Tensor:
        ctx.save_for_backward(t, s)
        return torch.ops.worldmodel.sampler_euler(x, v, t, s)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        t, s = (_like(time, grad) for time in ctx.saved_tensors)
        return grad, (s - t) * grad, None, None


class Renoise(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, v: Tensor, t: Tensor, s: Tensor, seed: Tensor, frame: Tensor, step: int) -> Tensor:
        ctx.save_for_backward(t, s)
        return torch.ops.worldmodel.sampler_renoise(x, v, t, s, seed, frame, step)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        t, s = (_like(time, grad) for time in ctx.saved_tensors)
        dx = (1 - s) * grad
        return dx, -t * dx, None, None, None, None, None


def euler(x: Tensor, v: Tensor, t: Tensor, s: Tensor) -> Tensor:
    """As the reference. Gradients of x and v."""
    if torch.is_grad_enabled() and (x.requires_grad or v.requires_grad):
        return Euler.apply(x, v, t, s)
    return torch.ops.worldmodel.sampler_euler(x, v, t, s)


def renoise(x: Tensor, v: Tensor, t: Tensor, s: Tensor, seed: Tensor, frame: Tensor, step: int) -> Tensor:
    """As the reference. Gradients of x and v."""
    if torch.is_grad_enabled() and (x.requires_grad or v.requires_grad):
        return Renoise.apply(x, v, t, s, seed, frame, step)
    return torch.ops.worldmodel.sampler_renoise(x, v, t, s, seed, frame, step)


def _like(t: Tensor, x: Tensor) -> Tensor:
    return t.to(x.dtype).view(*t.shape, *(1,) * (x.ndim - t.ndim))
