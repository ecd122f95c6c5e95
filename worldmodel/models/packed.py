"""Weights laid out for one CPU, where the library behind `F.linear` is slow for few rows.

With 32 rows of 192 numbers, one chunk of the shipped world, PyTorch's fp32 product with a plain weight takes up to two
times as long as oneDNN's with a weight that was reordered for it once, on processors with AVX-512. On those without,
oneDNN is the slower one, and the weight's transpose, laid out in a row, the fastest (docs/results/cpu_loop.md measures
both). The copy follows its weight: it is made when it is first asked for, and again after the weight has changed.
"""

from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor, nn
from torch.nn import functional as F

FEWEST_ROWS = 16  # below, starting oneDNN costs more than it saves
LARGEST = 2**22  # numbers of a weight: large ones are not worth holding twice

Product = Callable[[Tensor], Tensor]


@cache
def reorders() -> bool:
    """Whether oneDNN's reordered weights are the faster ones on this processor."""
    return torch.backends.mkldnn.is_available() and torch.backends.cpu.get_cpu_capability() == "AVX512"


class PackedLinear(nn.Linear):
    """A linear layer with a copy of its weight for `product`; training and saving know nothing of it."""

    _copy: Tensor | None = None
    _copy_of: tuple[int, int] = (0, 0)  # address and version of the weight

    def packed(self) -> Tensor:
        """The weight as it is now: reordered for oneDNN or, where that is not faster, its transpose [in, out]."""
        copy, now = self._copy, (self.weight.data_ptr(), self.weight._version)
        if copy is None or now != self._copy_of:
            weight = self.weight.detach()
            copy = torch.ops.mkldnn._reorder_linear_weight(weight) if reorders() else weight.T.contiguous()
            self._copy, self._copy_of = copy, now
        return copy

    def __getstate__(self) -> dict[str, object]:
        return {name: value for name, value in self.__dict__.items() if name not in ("_copy", "_copy_of")}


def product(linear: nn.Linear, rows: int, gelu: bool = False) -> Product:
    """The fastest way to the layer's output for inputs [..., in] of so many rows, without gradients, in fp32 on a CPU.

    gelu: with a tanh-GELU behind it. The same numbers as the layer's but for the order of summation.
    """
    if not (type(linear) is PackedLinear and rows >= FEWEST_ROWS and linear.weight.numel() <= LARGEST):
        return (lambda x: F.gelu(linear(x), approximate="tanh")) if gelu else linear
    weight, bias = linear.packed(), linear.bias
    if reorders():
        run, then = torch.ops.mkldnn._linear_pointwise.default, "gelu" if gelu else "none"
        return lambda x: run(x, weight, bias, then, [], "tanh")
    rowwise = weight.T
    return (lambda x: _gelu(F.linear(x, rowwise, bias))) if gelu else (lambda x: F.linear(x, rowwise, bias))


_ROOT = 8 / torch.pi  # its root is 2 sqrt(2 / pi)


def _gelu(x: Tensor) -> Tensor:
    """tanh-GELU as x sigmoid(2 sqrt(2 / pi) (x + 0.044715 x^3)): without AVX-512, half the time of PyTorch's tanh."""
    return torch.addcmul(_first(), x, x, value=0.044715 * _ROOT**0.5).mul_(x).sigmoid_().mul_(x)


@cache
def _first() -> Tensor:
    return torch.tensor(_ROOT**0.5)
