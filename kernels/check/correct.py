"""Kernels in Triton's interpreter, on CPU, against their references; to be run where TRITON_INTERPRET=1 is set."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .declare import Case, OpCheck, Outputs

SEED = 20_260
DRAWS, FAR = 5, 10.0  # of a doubtful case; how many times the bound is no doubt


def faults_of(case: Case) -> tuple[str, ...]:
    """What is wrong with a case, empty if nothing is."""
    return examine(case)[0]


def examine(case: Case) -> tuple[tuple[str, ...], float]:
    """What is wrong with a case, and its worst error as a part of what is allowed (0 for an exact one).

    The largest error of one draw is a matter of luck, the peer's too: where it is over the bound, but not by far, the
    sums over DRAWS draws decide.
    """
    compared = list[_Compared]()
    for draw in range(DRAWS):
        faults, again = _compare(case, SEED + draw)
        if faults:
            return faults, math.inf
        compared = [a + b for a, b in zip(compared, again, strict=True)] if compared else again
        if all(c.part <= 1 for c in compared) or not all(c.part <= FAR for c in compared):
            break
    over = tuple(f"{c.name} is off by {c.error:.3g}, over {c.bound:.3g}" for c in compared if not c.part <= 1)
    return over, max((c.part for c in compared), default=0.0)


@dataclass(frozen=True, slots=True)
class _Compared:
    """An output or a gradient: its error and what is allowed, summed over draws."""

    name: str
    error: float
    bound: float

    @property
    def part(self) -> float:
        return self.error / self.bound if self.bound else self.error and math.inf

    def __add__(self, other: "_Compared") -> "_Compared":
        return _Compared(self.name, self.error + other.error, self.bound + other.bound)


def _compare(case: Case, seed: int) -> tuple[tuple[str, ...], list[_Compared]]:
    """What no luck explains, and the errors of everything if there is nothing of that kind."""
    with _poisoned():
        inputs = tuple(case.make(torch.Generator().manual_seed(seed), case.dtype))
        found = _evaluate(case.run, inputs, case.gradients)
        again = _evaluate(case.run, inputs, case.gradients)
    faults = [f"{a.name} differs when repeated" for a, b in zip(found, again, strict=True) if not _same(a.x, b.x)]
    if case.exact:
        wanted = _evaluate(case.reference, inputs, case.gradients)
        pairs = zip(found, wanted, strict=True)
        faults += [f"{a.name} is not bit for bit the reference's" for a, b in pairs if not _same(a.x, b.x)]
        return tuple(faults), []
    exact = _evaluate(case.reference, tuple(map(_double, inputs)), case.gradients)
    peer = _evaluate(case.peer or case.reference, inputs, case.gradients)
    compared = list[_Compared]()
    for a, p, e in zip(found, peer, exact, strict=True):
        if a.x.shape != e.x.shape or a.x.dtype != p.x.dtype:
            faults.append(f"{a.name} is {a.x.dtype} {list(a.x.shape)}, not {p.x.dtype} {list(e.x.shape)}")
        elif a.x.numel():
            compared.append(_Compared(a.name, _error(a.x, e.x), 2 * _error(p.x, e.x) + _ulp(e.x, a.x.dtype)))
    return tuple(faults), compared


FAST = ("test_schema", "test_autograd_registration", "test_faketensor")
SLOW = ("test_aot_dispatch_dynamic",)  # it imports the compiler, for seconds


def opcheck_faults(check: OpCheck, quick: bool = False) -> tuple[str, ...]:
    """What torch.library.opcheck says against an operator, empty if nothing. quick: without torch.compile's view."""
    arguments = check.arguments(torch.Generator().manual_seed(SEED))
    tests = FAST if quick else FAST + SLOW
    results = torch.library.opcheck(check.operator, arguments, test_utils=tests, raise_exception=False)
    return tuple(f"{name}: {str(said).splitlines()[0]}" for name, said in results.items() if said != "SUCCESS")


class _Named:
    """An output or a gradient."""

    def __init__(self, name: str, x: Tensor) -> None:
        self.name, self.x = name, x


def _evaluate(function: Callable[..., Outputs], inputs: Sequence[Any], gradients: Sequence[int]) -> list[_Named]:
    """Outputs, and the gradients of a fixed random sum of those that have one."""
    leaves = [x.detach().requires_grad_() if i in gradients else x for i, x in enumerate(inputs)]
    made = function(*leaves)
    outputs = (made,) if isinstance(made, Tensor) else tuple(made)
    named = [_Named(f"output {i}", x.detach()) for i, x in enumerate(outputs)]
    if not gradients:
        return named
    draw, roots = torch.Generator().manual_seed(SEED + 1), [x for x in outputs if x.requires_grad]
    weights = [torch.randn(x.shape, generator=draw).to(x.dtype) for x in roots]
    found = torch.autograd.grad(roots, [leaves[i] for i in gradients], weights)
    return named + [_Named(f"gradient of input {i}", g) for i, g in zip(gradients, found, strict=True)]


def _double(x: Any) -> Any:
    return x.double() if isinstance(x, Tensor) and x.is_floating_point() else x


def _same(a: Tensor, b: Tensor) -> bool:
    """Bit for bit, where NaN equals NaN."""
    return a.shape == b.shape and a.dtype == b.dtype and torch.equal(_bits(a), _bits(b))


def _bits(x: Tensor) -> Tensor:
    if not x.is_floating_point():
        return x
    kinds = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return x.contiguous().view(kinds[x.element_size()])


def _error(x: Tensor, exact: Tensor) -> float:
    """Largest distance; NaN where either has one. The same infinity on both sides is none."""
    distance = (x.double() - exact.double()).abs()
    return float(distance.masked_fill((x == exact) & exact.isinf(), 0).amax())


def _ulp(exact: Tensor, dtype: torch.dtype) -> float:
    """Distance of neighbours at the largest value."""
    if not dtype.is_floating_point:
        return 0.0
    largest = float(exact.abs().nan_to_num(0, 0).amax())  # of the finite ones
    return torch.finfo(dtype).eps * 2.0 ** math.floor(math.log2(largest)) if largest > 0 else 0.0


@contextmanager
def _poisoned() -> Iterator[None]:
    """Memory that torch hands out is full of NaN, so that what a kernel leaves unwritten shows."""
    memory: Any = torch.utils.deterministic
    before, fill = torch.get_deterministic_debug_mode(), memory.fill_uninitialized_memory
    torch.set_deterministic_debug_mode("error")  # use_deterministic_algorithms imports the compiler, for seconds
    memory.fill_uninitialized_memory = True
    try:
        yield
    finally:
        torch.set_deterministic_debug_mode(before)
        memory.fill_uninitialized_memory = fill
