"""What `kernels check` proves of a quantised memory."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from worldmodel.kernels.check.declare import Case, Configuration, OpCheck, OpChecks, padded

from . import ATTEND, HEADS, QUANTISE, Kind, Look, Pages, Quantised, reference, triton

Shape = tuple[int, int, int, int]


def _keys(shape: Shape, scale: float, rng: torch.Generator) -> Tensor:
    """Keys whose mean is large, as those of trained models are, and one token of zeros."""
    x = torch.randn(shape, generator=rng) + 5 * torch.randn(shape[1], 1, shape[3], generator=rng)
    x[0, 0, 0] = 0
    return x * scale


def _quantise(shape: Shape, page: int, kind: Kind, scale: float, quick: bool) -> Case:
    """Codes, scales and, of keys with means of few bits (so that sums are exact in any order), means: bit for bit."""

    def parts(x: Tensor, setting: Any) -> tuple[Tensor, ...]:
        made = [QUANTISE(Pages(x, page, kind, smooth), setting) for smooth in (True, False)]
        found = [t for q in made for t in (q.codes.float(), q.scale, q.mean) if t is not None]
        return tuple(found)

    def make(rng: torch.Generator, dtype: torch.dtype) -> Sequence[Tensor]:
        return (padded((_keys(shape, scale, rng) * 64).round() / 64),)

    name = f"quantise {kind} {shape} in pages of {page} x{scale:g}"
    return Case(name, make, lambda x: parts(x, "triton"), lambda x: parts(x, "reference"), exact=True, quick=quick)


def _attend(rows: tuple[int, int], heads: tuple[int, int], queries: int, pages: int, page: int, head: int, kind: Kind,
            masked: bool, scale: float, quick: bool) -> Case:  # fmt: skip
    """Against the reference on the same codes: what is proved is the arithmetic, with q . mean and scales apart."""
    valid = torch.arange(rows[1] * pages).view(rows[1], pages) % 3 != 1 if masked else None

    def make(rng: torch.Generator, dtype: torch.dtype) -> Sequence[Any]:
        q = padded(torch.randn(rows[0], heads[0], queries, head, generator=rng) * scale).to(dtype)
        k = reference.quantise(_keys((rows[1], heads[1], pages * page, head), scale, rng), page, kind, True)
        v = reference.quantise(torch.randn(rows[1], heads[1], pages * page, head, generator=rng), page, kind, False)
        assert k.mean is not None
        return q, k.codes, k.scale, k.mean, v.codes, v.scale

    def look(q: Tensor, k: Tensor, k_scale: Tensor, mean: Tensor, v: Tensor, v_scale: Tensor) -> Look:
        keys, values = Quantised(k, k_scale, mean, page), Quantised(v, v_scale, None, page)
        return Look(q, keys, values, valid, head**-0.5)

    def ours(*inputs: Tensor) -> tuple[Tensor, ...]:
        return ATTEND(look(*inputs), "triton")

    def right(*inputs: Tensor) -> tuple[Tensor, ...]:
        call = look(*inputs)
        return reference.attend(call.q, call.keys, call.values, call.valid, call.scale)

    name = f"attend {kind} {queries} queries, {pages} pages of {page}, head {head} x{scale:g}"
    return Case(name, make, ours, right, quick=quick)


def cases() -> Sequence[Case]:
    return (
        _quantise((1, 1, 1, 1), 1, "int8", 1, True),
        _quantise((2, 2, 24, 16), 8, "int8", 1, True),
        _quantise((2, 2, 24, 16), 8, "fp8", 16, True),
        _quantise((1, 2, 128, 48), 128, "int8", 16, False),
        _quantise((1, 1, 256, 128), 64, "fp8", 4, False),
        _attend((1, 1), (1, 1), 1, 1, 1, 16, "int8", False, 1, True),
        _attend((2, 1), (2, 1), 41, 3, 7, 16, "int8", True, 1, True),
        _attend((2, 2), (2, 2), 41, 4, 41, 32, "fp8", True, 4, False),
        _attend((1, 1), (2, 2), 128, 2, 128, 64, "int8", False, 1, False),
        _attend((2, 2), (1, 1), 3, 1, 33, 128, "int8", True, 16, False),
    )


def configurations() -> Sequence[Configuration]:
    """Every head size, of bf16 queries over INT8 and FP8, of fp16 over INT8."""
    made = []
    for kind, archs in (("int8", (80, 86, 89, 90, 100, 120)), ("fp8", (89, 90, 100, 120))):
        codes = "*i8" if kind == "int8" else "*fp8e4nv"
        for head in HEADS:
            t, d, warps = triton.page_tile(head)
            constants: dict[str, Any] = {"MOST": reference.MOST[kind], "WHOLE": kind == "int8", "SMOOTH": True}
            types = {"x_pointer": "*bf16", "codes_pointer": codes}
            own = constants | {"T": t, "D": d}
            made.append(_configuration(f"quantise {kind} {head}", triton.quantise_kernel, own, types, warps, archs))
            for dtype in ("bf16", "fp16") if kind == "int8" else ("bf16",):
                bm, bn, warps = triton.tiles(head, 2)
                own = {"MASKED": True, "SMOOTH": True, "D": head, "BM": bm, "BN": bn}
                types = {"q_pointer": f"*{dtype}", "out_pointer": f"*{dtype}", "k_pointer": codes, "v_pointer": codes}
                types["valid_pointer"] = "*i1"
                name = f"attend {kind} {head} {dtype}"
                made.append(_configuration(name, triton.attend_kernel, own, types, warps, archs, True))
    return made


def _configuration(
    name: str, kernel: Any, constants: dict[str, Any], types: dict[str, str], warps: int, archs: tuple[int, ...],
    matrix: bool = False,
) -> Configuration:  # fmt: skip
    signature = {}
    for a in kernel.arg_names:
        kind = "*fp32" if a.endswith("_pointer") else "fp32" if a == "scale" else "i32"
        signature[a] = "constexpr" if a in constants else types.get(a, kind)
    divisible = tuple(a for a in signature if a in ("width", "x_p", "x_g", "x_n", "q_b", "q_h", "q_n"))
    quick = name in ("quantise int8 128", "attend int8 128 bf16")
    return Configuration(name, kernel, signature, constants, divisible, warps, 2, matrix, archs, quick)


def opchecks() -> Sequence[OpCheck]:
    from . import ops  # noqa: F401  registers the operators

    own = torch.ops.worldmodel

    def memory(rng: torch.Generator) -> tuple[Any, ...]:
        k = reference.quantise(_keys((1, 1, 4, 16), 1, rng), 2, "int8", True)
        v = reference.quantise(_keys((1, 1, 4, 16), 1, rng), 2, "int8", False)
        q = torch.randn(1, 1, 3, 16, generator=rng)
        return q, k.codes, k.scale, k.mean, v.codes, v.scale, torch.tensor([[True, False]]), 2, 0.25

    return (
        OpCheck(own.quantise.default, lambda rng: (_keys((1, 1, 4, 16), 1, rng), 2, False, True)),
        OpCheck(own.attend_quantised.default, memory),
    )


CHECKS = OpChecks("quantised", cases, configurations, opchecks)
