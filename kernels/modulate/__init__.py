"""AdaLN modulation and gated residual, each in one pass over the tokens."""

from dataclasses import dataclass

import torch
from torch import Tensor

from worldmodel.kernels import arguments, triton_needs
from worldmodel.kernels.arguments import FLOATS
from worldmodel.kernels.backend import Backend, Op

from . import reference
from .reference import NORMS, Norm

__all__ = ["GATED_RESIDUAL", "MODULATE", "Modulation", "Norm", "Residual", "gated_residual", "modulate"]


@dataclass(frozen=True, slots=True)
class Modulation:
    """A call of `modulate`."""

    x: Tensor  # [B, F, N, D]
    shift: Tensor  # [B, F, D]
    scale: Tensor  # [B, F, D]
    eps: float
    norm: Norm

    @property
    def device(self) -> torch.device:
        return self.x.device


@dataclass(frozen=True, slots=True)
class Residual:
    """A call of `gated_residual`."""

    x: Tensor  # [B, F, N, D]
    y: Tensor  # [B, F, N, D]
    gate: Tensor  # [B, F, D]

    @property
    def device(self) -> torch.device:
        return self.x.device


def _modulation_reasons(call: Modulation) -> tuple[str, ...]:
    named = {"x": call.x, "shift": call.shift, "scale": call.scale}
    return triton_needs.reasons(call.device) + triton_needs.tensors(call.device, FLOATS, named)


def _modulation_triton(call: Modulation) -> Tensor:
    from . import ops

    return ops.modulate(call.x, call.shift, call.scale, call.eps, call.norm == "rms")


def _residual_reasons(call: Residual) -> tuple[str, ...]:
    named = {"x": call.x, "y": call.y, "gate": call.gate}
    return triton_needs.reasons(call.device) + triton_needs.tensors(call.device, FLOATS, named)


def _residual_triton(call: Residual) -> Tensor:
    from . import ops

    return ops.gated_residual(call.x, call.y, call.gate)


def _never(call: object) -> tuple[str, ...]:
    return ()


MODULATE = Op(
    "modulate",
    (
        Backend("triton", _modulation_reasons, _modulation_triton, auto=("cuda",)),
        Backend("reference", _never, lambda c: reference.modulate(c.x, c.shift, c.scale, c.eps, c.norm)),
    ),
)
GATED_RESIDUAL = Op(
    "gated_residual",
    (
        Backend("triton", _residual_reasons, _residual_triton, auto=("cuda",)),
        Backend("reference", _never, lambda c: reference.gated_residual(c.x, c.y, c.gate)),
    ),
)


def modulate(x: Tensor, shift: Tensor, scale: Tensor, eps: float, norm: Norm = "layer") -> Tensor:
    """norm(x) * (1 + scale) + shift, one modulation per frame.

    x: [B, F, N, D]; shift, scale: [B, F, D]; norm: "layer" or "rms" over D, without weights of its own. Any width.
    Computed in fp32 (fp64 where x is that) and rounded once to the type of x, whose shape the result has. ValueError
    names an argument that does not fit; nothing is broadcast.
    """
    arguments.tensors(
        "modulate", ("x", x, "BFND", FLOATS), ("shift", shift, "BFD", FLOATS), ("scale", scale, "BFD", FLOATS)
    )
    arguments.number("modulate", "eps", eps, 0)
    arguments.one_of("modulate", "norm", norm, NORMS)
    return MODULATE(Modulation(x, shift, scale, eps, norm))


def gated_residual(x: Tensor, y: Tensor, gate: Tensor) -> Tensor:
    """x + gate * y, one gate per frame. x, y: [B, F, N, D]; gate: [B, F, D]. Returns the shape and type of x.
    ValueError as `modulate`."""
    arguments.tensors(
        "gated_residual", ("x", x, "BFND", FLOATS), ("y", y, "BFND", FLOATS), ("gate", gate, "BFD", FLOATS)
    )
    return GATED_RESIDUAL(Residual(x, y, gate))
