"""The Triton kernels as operators of torch.library. They have no gradients: a memory is written without."""

import torch
from torch import Tensor

from . import triton

LIBRARY = torch.library.Library("worldmodel", "FRAGMENT")
LIBRARY.define("quantise(Tensor x, int page, bool fp8, bool smooth) -> (Tensor, Tensor, Tensor)")
LIBRARY.define(
    "attend_quantised(Tensor q, Tensor k, Tensor k_scale, Tensor? mean, Tensor v, Tensor v_scale, Tensor? valid, "
    "int page, float scale) -> (Tensor, Tensor)"
)
LIBRARY.impl("quantise", triton.quantise, "CompositeExplicitAutograd")
LIBRARY.impl("attend_quantised", triton.attend, "CompositeExplicitAutograd")


@torch.library.register_fake("worldmodel::quantise", lib=LIBRARY)
def _(x: Tensor, page: int, fp8: bool, smooth: bool) -> tuple[Tensor, Tensor, Tensor]:
    rows, heads, count, width = x.shape
    codes = x.new_empty(x.shape, dtype=torch.float8_e4m3fn if fp8 else torch.int8)
    mean = x.new_empty(rows, heads, count // page if smooth else 0, width, dtype=torch.float32)
    return codes, x.new_empty(x.shape[:3], dtype=torch.float32), mean


@torch.library.register_fake("worldmodel::attend_quantised", lib=LIBRARY)
def _(
    q: Tensor, k: Tensor, k_scale: Tensor, mean: Tensor | None, v: Tensor, v_scale: Tensor, valid: Tensor | None,
    page: int, scale: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    return q.new_empty(q.shape), q.new_empty(q.shape[:3], dtype=torch.float32)
