"""Segmented attention as an operator of torch: torch.ops.worldmodel.segmented_attention, with gradients.

torch.compile sees one node, in fullgraph too. Below is what the Triton kernels compute, on CUDA or in the interpreter.
"""

from typing import Any

import torch
from torch import Tensor

from . import triton as kernels

library = torch.library.Library("worldmodel", "FRAGMENT")
library.define(
    "segmented_attention(Tensor q, Tensor[] keys, Tensor[] values, Tensor?[] valid, Tensor?[] cos, Tensor?[] sin, "
    "int[] chunks, float scale, bool interleaved) -> (Tensor, Tensor)"
)
library.define(
    "segmented_attention_backward(Tensor grad, Tensor q, Tensor out, Tensor lse, Tensor[] keys, Tensor[] values, "
    "Tensor?[] valid, Tensor?[] cos, Tensor?[] sin, int[] chunks, float scale, bool interleaved, bool[] needed) "
    "-> (Tensor, Tensor[], Tensor[])"
)
library.impl("segmented_attention", kernels.forward, "CompositeExplicitAutograd")
library.impl("segmented_attention_backward", kernels.backward, "CompositeExplicitAutograd")

Tensors = list[Tensor]
Optional = list[Tensor | None]


@torch.library.register_fake("worldmodel::segmented_attention", lib=library)
def _(q: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return kernels.empty_results(q)


@torch.library.register_fake("worldmodel::segmented_attention_backward", lib=library)
def _(
    grad: Tensor, q: Tensor, out: Tensor, lse: Tensor, keys: Tensors, values: Tensors, valid: Optional, cos: Optional,
    sin: Optional, chunks: list[int], scale: float, interleaved: bool, needed: list[bool],
) -> tuple[Tensor, Tensors, Tensors]:  # fmt: skip
    return kernels.empty_gradients(q, keys, values, needed)


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, q: Tensor, valid: Optional, cos: Optional, sin: Optional, chunks: list[int],
        scale: float, interleaved: bool, *keys_values: Tensor,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        keys, values = _halves(keys_values)
        with torch._C._AutoDispatchBelowAutograd():
            out, lse = torch.ops.worldmodel.segmented_attention(
                q, keys, values, valid, cos, sin, chunks, scale, interleaved
            )
        ctx.mark_non_differentiable(lse)
        ctx.constants, ctx.counts = (chunks, scale, interleaved), [x is not None for x in (*valid, *cos, *sin)]
        ctx.save_for_backward(q, out, lse, *keys_values, *(x for x in (*valid, *cos, *sin) if x is not None))
        return out, lse

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *grads: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        grad = grads[0]  # the logits' sum has none
        q, out, lse, *rest = ctx.saved_tensors
        count = len(ctx.counts) // 3
        keys, values, given = rest[:count], rest[count : 2 * count], iter(rest[2 * count :])
        optional = [next(given) if there else None for there in ctx.counts]
        wanted = ctx.needs_input_grad[7:]
        needed = [k or v for k, v in zip(*_halves(wanted), strict=True)]
        dq, dkeys, dvalues = torch.ops.worldmodel.segmented_attention_backward(
            grad, q, out, lse, keys, values, optional[:count], optional[count : 2 * count], optional[2 * count :],
            *ctx.constants, needed,
        )  # fmt: skip
        gradients = (x if want else None for x, want in zip((*dkeys, *dvalues), wanted, strict=True))
        return dq, None, None, None, None, None, None, *gradients


def _halves(x: tuple[Any, ...]) -> tuple[list[Any], list[Any]]:
    return list(x[: len(x) // 2]), list(x[len(x) // 2 :])


@torch.library.impl(library, "segmented_attention", "Autograd")
def _(
    q: Tensor, keys: Tensors, values: Tensors, valid: Optional, cos: Optional, sin: Optional, chunks: list[int],
    scale: float, interleaved: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    if not torch.is_grad_enabled() or not any(x.requires_grad for x in (q, *keys, *values)):
        with torch._C._AutoDispatchBelowAutograd():
            return segmented_attention(q, keys, values, valid, cos, sin, chunks, scale, interleaved)
    return _Attention.apply(q, valid, cos, sin, chunks, scale, interleaved, *keys, *values)


segmented_attention: Any = torch.ops.worldmodel.segmented_attention.default
segmented_attention_backward: Any = torch.ops.worldmodel.segmented_attention_backward.default
