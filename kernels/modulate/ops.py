# pyright: reportIncompatibleMethodOverride=false
"""The Triton kernels as operators of torch.library, with shapes for torch.compile and gradients for autograd."""

from typing import Any

import torch
from torch import Tensor

from . import triton

LIBRARY = torch.library.Library("worldmodel", "FRAGMENT")
LIBRARY.define("modulate(Tensor x, Tensor shift, Tensor scale, float eps, bool rms) -> (Tensor, Tensor, Tensor)")
LIBRARY.define(
    "modulate_backward(Tensor grad, Tensor x, Tensor scale, Tensor mean, Tensor deviation, bool rms) "
    "-> (Tensor, Tensor, Tensor)"
)
LIBRARY.define("gated_residual(Tensor x, Tensor y, Tensor gate) -> Tensor")
LIBRARY.define("gated_residual_backward(Tensor grad, Tensor y, Tensor gate) -> (Tensor, Tensor)")
for _name in ("modulate", "modulate_backward", "gated_residual", "gated_residual_backward"):
    LIBRARY.impl(_name, getattr(triton, _name), "CompositeExplicitAutograd")


@torch.library.register_fake("worldmodel::modulate", lib=LIBRARY)
def _(x: Tensor, shift: Tensor, scale: Tensor, eps: float, rms: bool) -> tuple[Tensor, Tensor, Tensor]:
    mean = x.new_empty(x.shape[:3], dtype=_wide(x))
    return x.new_empty(x.shape), mean, torch.empty_like(mean)


@torch.library.register_fake("worldmodel::modulate_backward", lib=LIBRARY)
def _(
    grad: Tensor, x: Tensor, scale: Tensor, mean: Tensor, deviation: Tensor, rms: bool
) -> tuple[Tensor, Tensor, Tensor]:
    batch, frames, _, width = x.shape
    dshift = mean.new_empty(batch, frames, width)
    return x.new_empty(x.shape), dshift, torch.empty_like(dshift)


@torch.library.register_fake("worldmodel::gated_residual", lib=LIBRARY)
def _(x: Tensor, y: Tensor, gate: Tensor) -> Tensor:
    return x.new_empty(x.shape)


@torch.library.register_fake("worldmodel::gated_residual_backward", lib=LIBRARY)
def _(grad: Tensor, y: Tensor, gate: Tensor) -> tuple[Tensor, Tensor]:
    batch, frames, _, width = y.shape
    return y.new_empty(y.shape), grad.new_empty(batch, frames, width, dtype=_wide(grad))


def _wide(x: Tensor) -> torch.dtype:
    return torch.float64 if x.dtype == torch.float64 else torch.float32


class Modulate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, shift: Tensor, scale: Tensor, eps: float, rms: bool) -> Tensor:
        y, mean, deviation = torch.ops.worldmodel.modulate(x, shift, scale, eps, rms)
        ctx.save_for_backward(x, scale, mean, deviation)
        ctx.rms, ctx.shift_type = rms, shift.dtype
        return y

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        x, scale, mean, deviation = ctx.saved_tensors
        found = torch.ops.worldmodel.modulate_backward(_dense(grad), x, scale, mean, deviation, ctx.rms)
        return found[0], found[1].to(ctx.shift_type), found[2].to(scale.dtype), None, None


class GatedResidual(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor, gate: Tensor) -> Tensor:
        ctx.save_for_backward(y, gate)
        return torch.ops.worldmodel.gated_residual(x, y, gate)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        y, gate = ctx.saved_tensors
        dy, dgate = torch.ops.worldmodel.gated_residual_backward(_dense(grad), y, gate)
        return grad, dy, dgate.to(gate.dtype)


def modulate(x: Tensor, shift: Tensor, scale: Tensor, eps: float, rms: bool) -> Tensor:
    """As the reference. Gradients once, none of gradients."""
    if torch.is_grad_enabled() and (x.requires_grad or shift.requires_grad or scale.requires_grad):
        return Modulate.apply(x, shift, scale, eps, rms)
    return torch.ops.worldmodel.modulate(x, shift, scale, eps, rms)[0]


def gated_residual(x: Tensor, y: Tensor, gate: Tensor) -> Tensor:
    """As the reference. Gradients once, none of gradients."""
    if torch.is_grad_enabled() and (x.requires_grad or y.requires_grad or gate.requires_grad):
        return GatedResidual.apply(x, y, gate)
    return torch.ops.worldmodel.gated_residual(x, y, gate)


def _dense(grad: Tensor) -> Tensor:
    """With a last axis of stride 1; the gradient of a sum, for one, has stride 0."""
    return grad if grad.stride(-1) == 1 else grad.contiguous()
