"""What is timed: operations at the shapes of streaming, each computed in several ways."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from worldmodel.kernels.backend import Backend, Op

Run = Callable[[], Any]


@dataclass(frozen=True, slots=True)
class Work:
    """One operation at one shape.

    op: its name in the results. shape: in words. bytes: what must at least be read and written. flops: that must be
    done as matrix products. arms: ways to compute it, by name. own: which of them is ours, the choice of `auto` on this
    device; the others are its peers. without: ways that cannot be had here, and why. waits: ways that wait for the
    device, so that no CUDA graph holds them.
    """

    op: str
    shape: str
    bytes: float
    flops: float
    arms: Mapping[str, Run]
    own: str
    without: Mapping[str, str]
    waits: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of a stream's transformer: one row's chunk of `frames` frames of `tokens` tokens over a memory of `sink`
    first frames and a ring of the newest ones."""

    name: str
    heads: int
    head_dim: int
    tokens: int
    frames: int
    sink: int
    ring: int

    @property
    def width(self) -> int:
        return self.heads * self.head_dim

    @property
    def queries(self) -> int:
        return self.tokens * self.frames

    def __str__(self) -> str:
        return (
            f"{self.name}: {self.frames} frames of {self.tokens} tokens, {self.heads} heads of {self.head_dim}, memory "
            f"of {self.sink} + {self.ring} frames"
        )


SMALL = Shape("small world", heads=6, head_dim=32, tokens=16, frames=4, sink=2, ring=14)
WAN = Shape("480p, 1.3 B parameters", heads=12, head_dim=128, tokens=1560, frames=3, sink=3, ring=6)
FACE = Shape("512 x 512 face, 1.3 B parameters", heads=12, head_dim=128, tokens=1024, frames=1, sink=1, ring=12)


def work(
    op: Op[Any, Any], call: Any, name: str, shape: str, *, bytes: float, flops: float = 0.0,
    others: Mapping[str, Run] | None = None, each: Callable[[Any, Any], Any] | None = None,
    waits: tuple[str, ...] = (),
) -> Work:  # fmt: skip
    """The backends of an op that can serve a call, and other ways to compute it.

    each: what is timed of a backend (backend, call), by default running it; with gradients, running it and them.
    """
    reasons = op.explain(call)
    backends: list[Backend[Any, Any]] = [backend for backend in op.backends if not reasons[backend.name]]
    run = each or (lambda backend, call: backend.run(call))
    arms = {backend.name: (lambda backend=backend: run(backend, call)) for backend in backends}
    without = {b.name: "; ".join(reasons[b.name]) for b in op.backends if reasons[b.name]}
    return Work(name, shape, bytes, flops, arms | dict(others or {}), op.choose(call).name, without, waits)


def type_of(device: torch.device) -> torch.dtype:
    """Of tokens: bf16 on a GPU, fp32 on a CPU, which is slow at anything else."""
    return torch.bfloat16 if device.type == "cuda" else torch.float32


def shapes(device: torch.device) -> tuple[Shape, ...]:
    """The streams whose operations are timed on a device."""
    return (WAN, FACE, SMALL) if device.type == "cuda" else (SMALL,)
