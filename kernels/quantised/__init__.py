"""A memory's keys and values in one byte a number, and attention over them."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from worldmodel.kernels import arguments, triton_needs
from worldmodel.kernels.arguments import BOOL, FLOATS
from worldmodel.kernels.backend import Backend, Op

from . import reference
from .reference import KINDS, Kind, Quantised

__all__ = ["ATTEND", "HEADS", "QUANTISE", "Kind", "Look", "Pages", "Quantised", "attend", "merge", "quantise"]

TYPES = (torch.float32, torch.bfloat16, torch.float16)
HEADS = (16, 32, 64, 128)  # sizes of a head that attention is made for
CODES, SCALES, WIDE = (torch.int8, torch.float8_e4m3fn), (torch.float32,), (torch.float32, torch.float64)
FP8 = (8, 9)  # compute capability from which E4M3 compiles


@dataclass(frozen=True, slots=True)
class Pages:
    """A call of `quantise`."""

    x: Tensor  # [P, g, N, D]
    page: int
    kind: Kind
    smooth: bool

    @property
    def device(self) -> torch.device:
        return self.x.device


@dataclass(frozen=True, slots=True)
class Look:
    """A call of `attend`."""

    q: Tensor  # [B, h, Q, D]
    keys: Quantised
    values: Quantised
    valid: Tensor | None
    scale: float

    @property
    def device(self) -> torch.device:
        return self.q.device


def _fp8_reasons(device: torch.device) -> tuple[str, ...]:
    if device.type != "cuda" or torch.version.hip is not None:
        return ()
    found = torch.cuda.get_device_capability(device)
    return (
        () if found >= FP8 else (f"FP8 (E4M3) needs compute capability 8.9, this is {found[0]}.{found[1]}: use INT8",)
    )


def _pages_reasons(call: Pages) -> tuple[str, ...]:
    found = list(triton_needs.reasons(call.device) + triton_needs.tensors(call.device, TYPES, {"x": call.x}))
    if call.kind == "fp8":
        found += _fp8_reasons(call.device)
    return tuple(found)


def _pages_triton(call: Pages) -> Quantised:
    from . import ops  # noqa: F401  registers the operator

    codes, scale, mean = torch.ops.worldmodel.quantise(call.x, call.page, call.kind == "fp8", call.smooth)
    return Quantised(codes, scale, mean if call.smooth else None, call.page)


def _look_reasons(call: Look) -> tuple[str, ...]:
    found = list(triton_needs.reasons(call.device) + triton_needs.tensors(call.device, TYPES, {"q": call.q}))
    parts = {"codes of keys": call.keys.codes, "scales of keys": call.keys.scale, "codes of values": call.values.codes}
    parts |= {"scales of values": call.values.scale}
    parts |= {} if call.keys.mean is None else {"means of keys": call.keys.mean}
    parts |= {} if call.valid is None else {"valid": call.valid}
    found += [f"the {name} are not contiguous" for name, part in parts.items() if not part.is_contiguous()]
    head = call.q.shape[3]
    if call.q.dtype == torch.float32 and call.device.type == "cuda":
        found.append("queries in fp32, which has no matrix instructions, spill registers: bf16 or fp16")
    if head not in HEADS:
        found.append(f"heads of {head} dimensions, known are {', '.join(map(str, HEADS))}")
    if call.values.mean is not None:
        found.append("values are smoothed")
    if torch.float8_e4m3fn in (call.keys.codes.dtype, call.values.codes.dtype):
        found += _fp8_reasons(call.device)
    if torch.is_grad_enabled() and call.q.requires_grad:
        found.append("no gradient through a quantised memory")
    return tuple(found)


def _look_triton(call: Look) -> tuple[Tensor, Tensor]:
    from . import ops  # noqa: F401  registers the operator

    k, v = call.keys, call.values
    return torch.ops.worldmodel.attend_quantised(
        call.q, k.codes, k.scale, k.mean, v.codes, v.scale, call.valid, k.page, call.scale
    )


def _never(call: object) -> tuple[str, ...]:
    return ()


QUANTISE = Op(
    "quantise",
    (
        Backend("triton", _pages_reasons, _pages_triton, auto=("cuda",)),
        Backend("reference", _never, lambda c: reference.quantise(c.x, c.page, c.kind, c.smooth)),
    ),
)
ATTEND = Op(
    "attend_quantised",
    (
        Backend("triton", _look_reasons, _look_triton, auto=("cuda",)),
        Backend("reference", _never, lambda c: reference.attend(c.q, c.keys, c.values, c.valid, c.scale)),
    ),
)


def quantise(x: Tensor, page: int, kind: Kind, smooth: bool) -> Quantised:
    """Pages of keys (rotated) or values [P, g, N, D], finite, in one byte a number; N is a multiple of `page`.

    kind: "int8", or "fp8" (E4M3), which needs compute capability 8.9 on a GPU. smooth: subtract every page's mean over
    its tokens, which belongs to keys; attention adds q . mean back. Frozen: a page that moves in time is made again.
    With y = x - mean and a the largest |y| of a token, an INT8 number is off by at most a / 254, an FP8 one by at most
    max(|y| / 16, a / 458752); and by the rounding of fp32. Without gradients.
    ValueError names an argument that does not fit.
    """
    arguments.tensors("quantise", ("x", x, "PgND", FLOATS))
    arguments.whole("quantise", "page", page, 1)
    arguments.one_of("quantise", "kind", kind, KINDS)
    arguments.without_gradients("quantise", x=x)
    if x.shape[2] % page:
        raise ValueError(f"quantise: {x.shape[2]} tokens do not make pages of {page}")
    return QUANTISE(Pages(x, page, kind, smooth))


def attend(q: Tensor, keys: Quantised, values: Quantised, valid: Tensor | None, scale: float) -> tuple[Tensor, Tensor]:
    """softmax(scale * q . k) v over a quantised memory, and the log-sum-exp of its logits, for `merge`.

    q: [B, h, Q, D], rotated as these keys are to be looked at; B is a multiple of P (row b reads row b mod P), h of g.
    valid: [P, N / n] bool, which pages are there; None for all. Returns [B, h, Q, D] in the type of q (zeros where a
    query sees no key) and [B, h, Q] fp32 in bits, -inf there. segmented attention gives the same pair for what is not
    quantised, and `merge` makes one of both. ValueError names an argument that does not fit.
    """
    op = "attend_quantised"
    sizes = _check_memory(op, q, keys, values)
    batch, heads, rows, groups, pages = (sizes[axis] for axis in "BhPgM")
    if (batch % rows if rows else batch) or (heads % groups if groups else heads):
        raise ValueError(f"{op}: q has {batch} rows of {heads} heads, no multiples of keys' {rows} of {groups}")
    if valid is not None:
        made = arguments.tensors(op, ("q", q, "BhQD", FLOATS), ("valid", valid, "PM", BOOL))
        if (made["P"], made["M"]) != (rows, pages):
            raise ValueError(f"{op}: valid has the shape {list(valid.shape)}, not [P, N / n] = [{rows}, {pages}]")
    arguments.number(op, "scale", scale)
    return ATTEND(Look(q, keys, values, valid, scale))


def _check_memory(op: str, q: Tensor, keys: Quantised, values: Quantised) -> dict[str, int]:
    """The sizes of queries, and of keys and values in pages, as of `Quantised`; M of the keys' pages."""
    parts: list[arguments.Argument] = [("q", q, "BhQD", FLOATS)]
    for name, held in (("keys", keys), ("values", values)):
        if not isinstance(held, Quantised):
            raise ValueError(f"{op}: {name} is of type {type(held).__name__}, not Quantised")
        arguments.whole(op, f"{name}.page", held.page, 1)
        parts += [(f"{name}.codes", held.codes, "PgND", CODES), (f"{name}.scale", held.scale, "PgN", SCALES)]
        if held.mean is not None:
            parts.append((f"{name}.mean", held.mean, f"Pg{'M' if held is keys else 'm'}D", SCALES))
    sizes = arguments.tensors(op, *parts)
    for name, held, axis in (("keys", keys, "M"), ("values", values, "m")):
        if sizes["N"] != sizes.setdefault(axis, sizes["N"] // held.page) * held.page:
            raise ValueError(f"{op}: {name} have {sizes['N']} tokens, not {sizes[axis]} pages of {held.page}")
    return sizes


def merge(parts: Sequence[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """Attention over several sets of keys at once, from that over each: results [B, h, Q, D] with their log-sum-exps
    [B, h, Q] in bits. Returns both again; zeros and -inf where no part saw a key. ValueError if they do not fit."""
    if not parts:
        raise ValueError("merge: there are no parts")
    named = [
        argument
        for i, (out, lse) in enumerate(parts)
        for argument in ((f"result {i}", out, "BhQD", FLOATS), (f"log-sum-exp {i}", lse, "BhQ", WIDE))
    ]
    arguments.tensors("merge", *named)
    return reference.merge(parts)
