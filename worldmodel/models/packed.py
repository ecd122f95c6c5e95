"""Weights laid out for one CPU, where the library behind `F.linear` is slow for few rows.

With 32 rows of 192 numbers, one chunk of the shipped world, PyTorch's fp32 product with a plain weight takes up to two
times as long as oneDNN's with a weight that was reordered for it once (docs/results/cpu_loop.md). The reordered copy
follows its weight: it is made when it is first asked for, and again after the weight has changed.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

FEWEST_ROWS = 16  # below, starting oneDNN costs more than it saves
LARGEST = 2**22  # numbers of a weight: large ones are not worth holding twice
_ONEDNN = torch.backends.mkldnn.is_available()

Product = Callable[[Tensor], Tensor]


class PackedLinear(nn.Linear):
    """A linear layer with a reordered copy of its weight for `product`; training and saving know nothing of it."""

    _copy: Tensor | None = None
    _copy_of: tuple[int, int] = (0, 0)  # address and version of the weight

    def packed(self) -> Tensor:
        """The weight as it is now, reordered."""
        copy, now = self._copy, (self.weight.data_ptr(), self.weight._version)
        if copy is None or now != self._copy_of:
            copy = torch.ops.mkldnn._reorder_linear_weight(self.weight.detach())
            self._copy, self._copy_of = copy, now
        return copy

    def __getstate__(self) -> dict[str, object]:
        return {name: value for name, value in self.__dict__.items() if name not in ("_copy", "_copy_of")}


def product(linear: nn.Linear, rows: int, gelu: bool = False) -> Product:
    """The fastest way to the layer's output for inputs [..., in] of so many rows, without gradients, in fp32 on a CPU.

    gelu: with a tanh-GELU behind it. The same numbers as the layer's but for the order of summation.
    """
    if not (_ONEDNN and type(linear) is PackedLinear and rows >= FEWEST_ROWS and linear.weight.numel() <= LARGEST):
        return (lambda x: F.gelu(linear(x), approximate="tanh")) if gelu else linear
    run, weight, bias, then = torch.ops.mkldnn._linear_pointwise.default, linear.packed(), linear.bias, "none"
    if gelu:
        then = "gelu"
    return lambda x: run(x, weight, bias, then, [], "tanh")
