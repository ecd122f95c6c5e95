"""What an op declares so that `kernels check` can prove its Triton kernels without a GPU.

Each folder of an op has a module `checks.py` with a constant `CHECKS: OpChecks`, and a line in kernels/check/ops.py.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

Outputs = Tensor | tuple[Tensor, ...]


@dataclass(frozen=True, slots=True)
class Case:
    """One comparison of the Triton backend (in Triton's interpreter, on CPU) with the reference.

    name: what is special about it: shape, scale. make: the inputs, drawn from the generator, floating-point ones in the
    case's type; they must be as awkward as is legal (a tensor in a larger one that is full of NaN: `padded`). run, the
    Triton backend, reference and peer take them in this order. The reference is also run in fp64; peer is what PyTorch
    does in the case's own type and sets the bound: error against fp64 <= 2 x the peer's + 1 ulp of the largest output.
    None: the reference in that type. gradients: which inputs get a gradient, compared likewise. exact: outputs equal
    the reference's bit for bit instead (integers, copies). quick: part of `--quick`.

    Never bf16: products of bf16 are wrong in the interpreter.
    """

    name: str
    make: Callable[[torch.Generator, torch.dtype], Sequence[Any]]
    run: Callable[..., Outputs]
    reference: Callable[..., Outputs]
    peer: Callable[..., Outputs] | None = None
    dtype: torch.dtype = torch.float32
    gradients: tuple[int, ...] = ()
    exact: bool = False
    quick: bool = True


@dataclass(frozen=True, slots=True)
class OpCheck:
    """A registered operator and arguments for torch.library.opcheck; they may require gradients."""

    operator: Any  # torch.ops.worldmodel.NAME.default
    arguments: Callable[[torch.Generator], tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class Configuration:
    """One way in which a kernel ships, compiled ahead of time to a cubin for every architecture of `archs`.

    kernel: what triton.jit made. signature: the type of every argument by name ("*bf16", "i32", "fp32", a tuple of them
    for a tuple of pointers, "constexpr" for a constant). constants: values of the arguments that are "constexpr"; those
    inside a tuple by (name, index). Pointers are taken to be aligned to 16 bytes, as torch allocates, and the integers
    in `divisible` to be multiples of 16; say of strides what is true of the shipped shapes, or the code is far worse
    than what runs. warps, stages: as at the launch. matrix: whether matrix instructions must be used.
    """

    name: str
    kernel: Any
    signature: Mapping[str, Any]
    constants: Mapping[Any, Any] = field(default_factory=dict)
    divisible: tuple[Any, ...] = ()  # names, or (name, index)
    warps: int = 4
    stages: int = 2
    matrix: bool = False
    archs: tuple[int, ...] = (80, 86, 89, 90, 100, 120)
    quick: bool = True


@dataclass(frozen=True, slots=True)
class OpChecks:
    """All that is checked of one op. The functions are called in the process that needs them, the kernels imported
    there: with the interpreter for cases and opchecks, without it for configurations."""

    op: str
    cases: Callable[[], Sequence[Case]]
    configurations: Callable[[], Sequence[Configuration]]
    opchecks: Callable[[], Sequence[OpCheck]] = tuple


def padded(x: Tensor, pad: int = 3) -> Tensor:
    """The same values as a view into a larger tensor that is full of NaN (integers: of their largest value).

    The last axis stays contiguous, all other strides are odd ones, and what lies around x shows if it is read.
    """
    shape = [n + pad for n in x.shape]
    poison = float("nan") if x.is_floating_point() else True if x.dtype == torch.bool else torch.iinfo(x.dtype).max
    room = torch.full(shape, poison, dtype=x.dtype, device=x.device)
    view = room[tuple(slice(pad // 2, pad // 2 + n) for n in x.shape)]
    view.copy_(x)
    return view
