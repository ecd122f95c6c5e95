"""The Triton kernel as an operator of torch.library."""

import torch
from torch import Tensor

from . import triton

LIBRARY = torch.library.Library("worldmodel", "FRAGMENT")
LIBRARY.define(
    "region_warp(Tensor(a!) frame, Tensor patch, Tensor mask, Tensor inverse, Tensor corner, SymInt[] size) -> ()"
)
LIBRARY.impl("region_warp", triton.region_warp, "CompositeExplicitAutograd")


@torch.library.register_fake("worldmodel::region_warp", lib=LIBRARY)
def _(frame: Tensor, patch: Tensor, mask: Tensor, inverse: Tensor, corner: Tensor, size: list[int]) -> None:
    return None
