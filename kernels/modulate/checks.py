"""What `kernels check` proves of AdaLN modulation and gated residual."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from worldmodel.kernels.check.declare import Case, Configuration, OpCheck, OpChecks, padded

from . import GATED_RESIDUAL, MODULATE, Modulation, Norm, Residual, reference, triton

EPS = 1e-6
Shape = tuple[int, int, int, int]
QUICK = ((1, 1, 1, 1), (2, 1, 41, 41))  # B, F, N, D
SHAPES = ((2, 3, 41, 41), (1, 2, 113, 203), (1, 3, 128, 128), (2, 1, 256, 256), (1, 1, 1023, 1024))
SHAPES += ((1, 2, 2, triton.WIDEST + 1),)  # wider than a tile
WIDTHS = (192, 1024, 1536, 3072, 5120, 8192, 16384)


def _draw(shape: Shape, scale: float, rng: torch.Generator, dtype: torch.dtype) -> tuple[Tensor, ...]:
    """Tokens, other tokens and the six modulations of their frames, as slices of larger tensors."""
    b, f, n, d = shape
    x, y = (padded(torch.randn(shape, generator=rng, dtype=dtype) * scale) for _ in range(2))
    modulation = torch.randn(b, f, 6, d, generator=rng, dtype=dtype) * scale
    return x + 0.5 * scale if n == 41 else x, y, *modulation.unbind(2)


def _modulation(shape: Shape, scale: float, norm: Norm, quick: bool) -> Case:
    def make(rng: torch.Generator, dtype: torch.dtype) -> Sequence[Tensor]:
        x, _, shift, factor, *_ = _draw(shape, scale, rng, dtype)
        return x, shift, factor

    def eager(x: Tensor, shift: Tensor, factor: Tensor) -> Tensor:
        y = F.layer_norm(x, x.shape[-1:], eps=EPS) if norm == "layer" else F.rms_norm(x, x.shape[-1:], eps=EPS)
        return y * (1 + factor[:, :, None]) + shift[:, :, None]

    return Case(
        f"{norm} {shape} x{scale:g}",
        make,
        lambda x, shift, factor: MODULATE(Modulation(x, shift, factor, EPS, norm), "triton"),
        lambda x, shift, factor: reference.modulate(x, shift, factor, EPS, norm),
        eager,
        gradients=(0, 1, 2),
        quick=quick,
    )


def _residual(shape: Shape, scale: float, quick: bool) -> Case:
    def make(rng: torch.Generator, dtype: torch.dtype) -> Sequence[Tensor]:
        x, y, gate, *_ = _draw(shape, scale, rng, dtype)
        return x, y, gate

    return Case(
        f"residual {shape} x{scale:g}",
        make,
        lambda x, y, gate: GATED_RESIDUAL(Residual(x, y, gate), "triton"),
        reference.gated_residual,
        lambda x, y, gate: x + gate[:, :, None] * y,
        gradients=(0, 1, 2),
        quick=quick,
    )


def cases() -> Sequence[Case]:
    norms: tuple[Norm, ...] = ("layer", "rms")
    made = [_modulation(s, 1, norm, s in QUICK) for s in (*QUICK, *SHAPES) for norm in norms]
    made += [_modulation(QUICK[1], 4, "layer", False), _modulation(QUICK[1], 16, "layer", True)]
    made += [_modulation(QUICK[1], 4, "rms", False), _modulation(QUICK[1], 16, "rms", False)]
    made += [_residual(s, 1, s in QUICK) for s in (*QUICK, *SHAPES)]
    return [*made, _residual(QUICK[1], 4, False), _residual(QUICK[1], 16, True)]


def _pointers(names: str, kind: str) -> dict[str, str]:
    return dict.fromkeys(names.split(), kind)


def configurations() -> Sequence[Configuration]:
    """Tokens in bf16 and modulations in fp32, as a model under autocast has them, at the widths of known models."""
    made = []
    for width in WIDTHS:
        rows, block, warps = triton.tile(width)
        constants = {"RMS": False, "WIDE": width > block, "ACC": triton.tl.float32, "ROWS": rows, "BLOCK": block}
        made += [
            _configuration(f"modulate {width}", triton.modulate_kernel, constants, warps),
            _configuration(f"modulate backward {width}", triton.modulate_backward_kernel, constants, warps),
        ]
        rows, block, warps = triton.residual_tile(width)
        constants = {"ACC": triton.tl.float32, "ROWS": rows, "BLOCK": block}
        made += [
            _configuration(f"residual {width}", triton.gated_residual_kernel, constants, warps),
            _configuration(f"residual backward {width}", triton.gated_residual_backward_kernel, constants, warps),
        ]
    return made


def _configuration(name: str, kernel: object, constants: dict[str, object], warps: int) -> Configuration:
    tokens = ("x_pointer", "y_pointer", "out_pointer", "grad_pointer", "dx_pointer", "dy_pointer")
    signature = {}
    for argument in kernel.arg_names:  # pyright: ignore[reportAttributeAccessIssue]
        if argument in constants:
            signature[argument] = "constexpr"
        elif argument.endswith("_pointer"):
            signature[argument] = "*bf16" if argument in tokens else "*fp32"
        else:
            signature[argument] = "fp32" if argument == "eps" else "i32"
    divisible = tuple(a for a in signature if a == "width" or a.endswith(("_b", "_f", "_n")))
    return Configuration(name, kernel, signature, constants, divisible, warps, quick="1536" in name)


def opchecks() -> Sequence[OpCheck]:
    from . import ops  # noqa: F401  registers the operators

    def tensors(rng: torch.Generator) -> tuple[Tensor, ...]:
        return _draw((1, 2, 3, 8), 1, rng, torch.float32)

    def backward(rng: torch.Generator) -> tuple[object, ...]:
        x, y, _, scale, *_ = tensors(rng)
        return y, x, scale, x.mean(-1), x.var(-1).rsqrt(), False

    own = torch.ops.worldmodel
    return (
        OpCheck(own.modulate.default, lambda rng: (*(tensors(rng)[i] for i in (0, 2, 3)), EPS, False)),
        OpCheck(own.modulate_backward.default, backward),
        OpCheck(own.gated_residual.default, lambda rng: tensors(rng)[:3]),
        OpCheck(own.gated_residual_backward.default, lambda rng: tensors(rng)[:3]),
    )


CHECKS = OpChecks("modulate", cases, configurations, opchecks)
