# pyright: reportIncompatibleMethodOverride=false
"""The Triton kernels as operators of torch.library, with shapes for torch.compile and gradients for autograd."""

from typing import Any

import torch
from torch import Tensor

from . import triton

LIBRARY = torch.library.Library("worldmodel", "FRAGMENT")
LIBRARY.define(
    "qk_norm_rope(Tensor q, Tensor k, Tensor? q_weight, Tensor? k_weight, Tensor? cos, Tensor? sin, float eps, "
    "bool paired) -> (Tensor, Tensor, Tensor, Tensor)"
)
LIBRARY.define(
    "norm_rope_backward(Tensor grad, Tensor x, Tensor? weight, Tensor? cos, Tensor? sin, Tensor deviation, "
    "bool paired) -> (Tensor, Tensor)"
)
LIBRARY.define(
    "write_ring(Tensor k, Tensor v, Tensor? weight, Tensor cos, Tensor sin, float eps, bool paired, "
    "Tensor(a!) keys, Tensor(b!) values, Tensor slot, Tensor keep) -> ()"
)
for _name in ("qk_norm_rope", "norm_rope_backward", "write_ring"):
    LIBRARY.impl(_name, getattr(triton, _name), "CompositeExplicitAutograd")


@torch.library.register_fake("worldmodel::qk_norm_rope", lib=LIBRARY)
def _(
    q: Tensor, k: Tensor, q_weight: Tensor | None, k_weight: Tensor | None, cos: Tensor | None, sin: Tensor | None,
    eps: float, paired: bool,
) -> tuple[Tensor, ...]:  # fmt: skip
    return q.new_empty(q.shape), k.new_empty(k.shape), *triton.deviations(q, k, q_weight, k_weight)


@torch.library.register_fake("worldmodel::norm_rope_backward", lib=LIBRARY)
def _(
    grad: Tensor, x: Tensor, weight: Tensor | None, cos: Tensor | None, sin: Tensor | None, deviation: Tensor,
    paired: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    return x.new_empty(x.shape), deviation.new_empty(0 if weight is None else weight.shape)


@torch.library.register_fake("worldmodel::write_ring", lib=LIBRARY)
def _(
    k: Tensor, v: Tensor, weight: Tensor | None, cos: Tensor, sin: Tensor, eps: float, paired: bool,
    keys: Tensor, values: Tensor, slot: Tensor, keep: Tensor,
) -> None:  # fmt: skip
    return None


class QKNormRope(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, q_weight: Tensor | None, k_weight: Tensor | None, cos: Tensor | None,
        sin: Tensor | None, eps: float, paired: bool,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        made = torch.ops.worldmodel.qk_norm_rope(q, k, q_weight, k_weight, cos, sin, eps, paired)
        ctx.save_for_backward(q, k, q_weight, k_weight, cos, sin, *made[2:])
        ctx.paired = paired
        return made[0], made[1]

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        q, k, q_weight, k_weight, cos, sin, q_deviation, k_deviation = ctx.saved_tensors
        found = []
        for grad, x, weight, deviation in (
            (grads[0], q, q_weight, q_deviation),
            (grads[1], k, k_weight, k_deviation),
        ):
            grad = grad if grad.stride(-1) == 1 else grad.contiguous()
            found += torch.ops.worldmodel.norm_rope_backward(grad, x, weight, cos, sin, deviation, ctx.paired)
        dq, dq_weight, dk, dk_weight = found
        weights = (None if w is None else dw.to(w.dtype) for w, dw in ((q_weight, dq_weight), (k_weight, dk_weight)))
        return dq, dk, *weights, None, None, None, None


def qk_norm_rope(
    q: Tensor, k: Tensor, q_weight: Tensor | None, k_weight: Tensor | None, cos: Tensor | None, sin: Tensor | None,
    eps: float, paired: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """As the reference, for queries and keys. Gradients once, none of gradients and none of the table."""
    if torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in (q, k, q_weight, k_weight)):
        return QKNormRope.apply(q, k, q_weight, k_weight, cos, sin, eps, paired)
    made = torch.ops.worldmodel.qk_norm_rope(q, k, q_weight, k_weight, cos, sin, eps, paired)
    return made[0], made[1]
