"""A sampler's step, with its noise drawn where it is used."""

from dataclasses import dataclass

import torch
from torch import Tensor

from worldmodel.kernels import arguments, triton_needs
from worldmodel.kernels import noise as keyed
from worldmodel.kernels.arguments import FLOATS, LONG
from worldmodel.kernels.backend import Backend, Op

from . import reference

__all__ = ["EULER", "NORMAL", "RENOISE", "Draw", "Noised", "Step", "euler", "normal", "renoise"]

TIMES = (torch.float32, torch.float64)


@dataclass(frozen=True, slots=True)
class Draw:
    """A call of `normal`."""

    seed: Tensor  # [B] int64
    frame: Tensor  # [B, K] int64
    step: int
    shape: tuple[int, ...]

    @property
    def device(self) -> torch.device:
        return self.seed.device


@dataclass(frozen=True, slots=True)
class Step:
    """A call of `euler`."""

    x: Tensor  # [B, K, ...]
    v: Tensor  # [B, K, ...]
    t: Tensor  # [B, K]
    s: Tensor  # [B, K]

    @property
    def device(self) -> torch.device:
        return self.x.device


@dataclass(frozen=True, slots=True)
class Noised:
    """A call of `renoise`."""

    move: Step
    noise: Draw

    @property
    def device(self) -> torch.device:
        return self.move.device


def _draw_reasons(call: Draw) -> tuple[str, ...]:
    return triton_needs.reasons(call.device) + _key_reasons(call)


def _key_reasons(call: Draw) -> tuple[str, ...]:
    found = list(triton_needs.tensors(call.device, (torch.int64,), {"seed": call.seed}))
    if call.frame.device != call.device or call.frame.dtype != torch.int64:
        found.append(f"frame is {call.frame.dtype} on {call.frame.device}, not int64 on {call.device}")
    return tuple(found)


def _step_reasons(call: Step) -> tuple[str, ...]:
    found = list(triton_needs.reasons(call.device))
    for name, x, types in (("x", call.x, FLOATS), ("v", call.v, FLOATS), ("t", call.t, TIMES), ("s", call.s, TIMES)):
        if x.device != call.device or x.dtype not in types:
            found.append(f"{name} is {x.dtype} on {x.device}; known are {', '.join(map(str, types))} on {call.device}")
    found += [f"a frame of {name} is not contiguous" for name, x in (("x", call.x), ("v", call.v)) if not _dense(x)]
    if torch.is_grad_enabled() and (call.t.requires_grad or call.s.requires_grad):
        found.append("no gradient for flow times")
    return tuple(found)


def _dense(x: Tensor) -> bool:
    """Whether every frame of x [B, K, ...] is contiguous."""
    size = 1
    for length, stride in zip(reversed(x.shape[2:]), reversed(x.stride()[2:]), strict=True):
        if length > 1 and stride != size:
            return False
        size *= length
    return True


def _draw_triton(call: Draw) -> Tensor:
    from . import ops  # noqa: F401  registers the operator

    return torch.ops.worldmodel.sampler_normal(call.seed, call.frame, call.step, call.shape)


def _step_triton(call: Step) -> Tensor:
    from . import ops

    return ops.euler(call.x, call.v, call.t, call.s)


def _noised_triton(call: Noised) -> Tensor:
    from . import ops

    m, n = call.move, call.noise
    return ops.renoise(m.x, m.v, m.t, m.s, n.seed, n.frame, n.step)


def _noised_reference(call: Noised) -> Tensor:
    m, n = call.move, call.noise
    return reference.renoise(m.x, m.v, m.t, m.s, n.seed, n.frame, n.step)


def _never(call: object) -> tuple[str, ...]:
    return ()


NORMAL = Op(
    "normal",
    (
        Backend("triton", _draw_reasons, _draw_triton, auto=("cuda",)),
        Backend("reference", _never, lambda c: keyed.normal(c.seed, c.frame, c.step, c.shape)),
    ),
)
EULER = Op(
    "euler",
    (
        Backend("triton", _step_reasons, _step_triton, auto=("cuda",)),
        Backend("reference", _never, lambda c: reference.euler(c.x, c.v, c.t, c.s)),
    ),
)
RENOISE = Op(
    "renoise",
    (
        Backend("triton", lambda c: _step_reasons(c.move) + _key_reasons(c.noise), _noised_triton, auto=("cuda",)),
        Backend("reference", _never, _noised_reference),
    ),
)


def normal(seed: Tensor, frame: Tensor, step: int, shape: tuple[int, ...]) -> Tensor:
    """Standard normal noise [B, K, *shape] fp32 of frames [B, K] int64, keyed by (seed [B] int64, frame, step).

    The words behind it are those of kernels/noise, bit for bit; so are the normals, but for about one in 2^28 where two
    mathematical libraries differ in the last place of fp64, which are off by one unit in the last place of fp32.
    ValueError names an argument that does not fit.
    """
    arguments.tensors("normal", ("seed", seed, "B", LONG), ("frame", frame, "BK", LONG))
    arguments.whole("normal", "step", step, 0, 2**32)
    for size in shape:
        arguments.whole("normal", "a size of shape", size)
    return NORMAL(Draw(seed, frame, step, shape))


def euler(x: Tensor, v: Tensor, t: Tensor, s: Tensor) -> Tensor:
    """x + (s - t) v: one Euler step from flow time t to s. x, v: [B, K, ...]; t, s: [B, K]. ValueError names an
    argument that does not fit."""
    _check_move("euler", x, v, t, s)
    return EULER(Step(x, v, t, s))


def renoise(x: Tensor, v: Tensor, t: Tensor, s: Tensor, seed: Tensor, frame: Tensor, step: int) -> Tensor:
    """(1 - s) (x - t v) + s noise: jump to the data predicted at flow time t, add fresh noise up to flow time s.

    x, v: [B, K, ...]; t, s: [B, K]; noise as of `normal`. One pass instead of three, the noise never in memory.
    ValueError as `euler`.
    """
    times = _check_move("renoise", x, v, t, s)
    arguments.tensors("renoise", times, ("seed", seed, "B", LONG), ("frame", frame, "BK", LONG))
    arguments.whole("renoise", "step", step, 0, 2**32)
    return RENOISE(Noised(Step(x, v, t, s), Draw(seed, frame, step, tuple(x.shape[2:]))))


def _check_move(op: str, x: Tensor, v: Tensor, t: Tensor, s: Tensor) -> arguments.Argument:
    """The flow times, as what else belongs to frames is held against."""
    times = ("t", t, "BK", FLOATS)
    axes = "BK" + "".join(map(chr, range(ord("c"), ord("c") + getattr(x, "ndim", 2) - 2)))
    arguments.tensors(op, ("x", x, axes, FLOATS), ("v", v, axes, FLOATS), times, ("s", s, "BK", FLOATS))
    return times
