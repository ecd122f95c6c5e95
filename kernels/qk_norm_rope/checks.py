"""What `kernels check` proves of QK-norm with rotary positions, and of writing into a memory's slots."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from worldmodel.kernels.check.declare import Case, Configuration, OpCheck, OpChecks, padded
from worldmodel.kernels.rope import Pairing, Table, rope_table, rotate

from . import QK_NORM_ROPE, WRITE_RING, Ring, Tokens, reference, triton

EPS = 1e-6
SHAPES = ((1, 1, 1, 2, True), (2, 7, 3, 8, False), (2, 7, 3, 8, True))  # B, N, heads, D, across heads
MORE = (
    (1, 41, 5, 48, True),
    (2, 113, 6, 32, False),
    (1, 128, 4, 64, False),
    (1, 41, 2, 128, True),
    (1, 65, 3, 6, True),
)
LATE = 100_000
STRIDES = ("_l", "_b", "_n", "_h", "_s")


def _table(rows: int, tokens: int, head_dim: int) -> Table:
    """Of `tokens` frames of one token each, far into a stream."""
    frames = LATE + 1000 * torch.arange(rows)[:, None] + torch.arange(tokens)
    return rope_table(frames, (1, 1), head_dim)


def _case(shape: tuple[int, int, int, int, bool], pairing: Pairing, rotated: bool, scale: float, quick: bool) -> Case:
    rows, tokens, heads, head_dim, across = shape
    table = _table(rows, tokens, head_dim) if rotated else None

    def make(rng: torch.Generator, dtype: torch.dtype) -> Sequence[Tensor]:
        packed = torch.randn(rows, tokens, 3, heads, head_dim, generator=rng, dtype=dtype) * scale
        q, k, _ = padded(packed).unbind(2)
        width = heads * head_dim if across else head_dim
        return q, k, *(1 + 0.5 * torch.randn(2, width, generator=rng, dtype=dtype)).unbind(0)

    def ours(q: Tensor, k: Tensor, q_weight: Tensor, k_weight: Tensor) -> tuple[Tensor, Tensor]:
        return QK_NORM_ROPE(Tokens(q, k, q_weight, k_weight, table, EPS, pairing), "triton")

    def right(q: Tensor, k: Tensor, q_weight: Tensor, k_weight: Tensor) -> tuple[Tensor, ...]:
        return tuple(reference.norm_rope(x, w, table, EPS, pairing) for x, w in ((q, q_weight), (k, k_weight)))

    def eager(q: Tensor, k: Tensor, q_weight: Tensor, k_weight: Tensor) -> tuple[Tensor, ...]:
        made = []
        for x, w in ((q, q_weight), (k, k_weight)):
            y = F.rms_norm(x.flatten(2) if across else x, w.shape, w, EPS).view(x.shape)
            made.append(y if table is None else rotate(y, (table[0][:, :, None], table[1][:, :, None]), pairing))
        return tuple(made)

    name = f"{shape[:4]} {'across heads' if across else 'per head'} {pairing if rotated else 'norm only'} x{scale:g}"
    return Case(name, make, ours, right, eager, gradients=(0, 1, 2, 3), quick=quick)


def _turned(shape: tuple[int, int, int, int, bool], pairing: Pairing, quick: bool) -> Case:
    """The rotation alone, of what is normalised already."""
    rows, tokens, heads, head_dim, _ = shape
    table = _table(rows, tokens, head_dim)

    def make(rng: torch.Generator, dtype: torch.dtype) -> Sequence[Tensor]:
        return padded(torch.randn(rows, tokens, 3, heads, head_dim, generator=rng, dtype=dtype)).unbind(2)[:2]

    def ours(q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        return QK_NORM_ROPE(Tokens(q, k, None, None, table, EPS, pairing), "triton")

    def right(q: Tensor, k: Tensor) -> tuple[Tensor, ...]:
        return tuple(reference.norm_rope(x, None, table, EPS, pairing) for x in (q, k))

    return Case(f"{shape[:4]} {pairing}, rotation only", make, ours, right, gradients=(0, 1), quick=quick)


def _ring_case(
    tokens: int, heads: int, head_dim: int, across: bool | None, pairing: Pairing, quick: bool
) -> Case:  # fmt: skip
    """Two rows whose chunks of three frames fall into slots out of order, one frame of each not kept, in two layers.

    across: None for keys that are normalised already.
    """
    layers, rows, frames, slots = 2, 2, 3, 5
    slot = torch.tensor([[4, 0, 2], [1, 3, 0]])
    keep = torch.tensor([[True, True, False], [False, True, True]])
    table = _table(rows, frames * tokens, head_dim)

    def make(rng: torch.Generator, dtype: torch.dtype) -> Sequence[Tensor]:
        packed = torch.randn(layers, rows, frames * tokens, 2, heads, head_dim, generator=rng, dtype=dtype)
        weight = 1 + 0.5 * torch.randn(layers, heads * head_dim if across else head_dim, generator=rng, dtype=dtype)
        storage = torch.randn(2, layers, rows, heads, slots, tokens, head_dim, generator=rng, dtype=dtype)
        return *padded(packed).unbind(3), weight, *storage.unbind(0)

    def ours(k: Tensor, v: Tensor, weight: Tensor, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        keys, values, own = padded(keys), padded(values), None if across is None else weight
        WRITE_RING(Ring(k, v, own, table, EPS, pairing, keys, values, slot, keep), "triton")
        return keys, values

    def right(k: Tensor, v: Tensor, weight: Tensor, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        keys, values = keys.clone(), values.clone()
        reference.write_ring(k, v, None if across is None else weight, table, EPS, pairing, keys, values, slot, keep)
        return keys, values

    return Case(f"ring of {tokens} tokens, {heads} heads of {head_dim}, {pairing}", make, ours, right, quick=quick)


def cases() -> Sequence[Case]:
    pairings: tuple[Pairing, ...] = ("half", "interleaved")
    made = [_case(SHAPES[0], "half", True, 1, True), _case(SHAPES[1], "half", True, 1, True)]
    made += [_case(SHAPES[2], "interleaved", True, 1, True), _case(SHAPES[1], "half", False, 1, False)]
    made += [_case(shape, pairing, True, 1, False) for shape in MORE for pairing in pairings]
    made += [_case(SHAPES[2], "interleaved", True, scale, scale == 16) for scale in (4.0, 16.0)]
    made += [_turned(SHAPES[1], "half", True), _turned(SHAPES[2], "interleaved", False)]
    rings = [_ring_case(3, 3, 8, None, "half", True), _ring_case(3, 3, 8, False, "half", False)]
    return [*made, *rings, _ring_case(41, 2, 48, True, "interleaved", False)]


KINDS = (
    (6, 32, False, "half"),
    (12, 128, True, "interleaved"),
    (40, 128, True, "interleaved"),
    (16, 64, False, "half"),
)


_BOTH: dict[str, dict[str, Any]] = {
    "": {"NORM": True, "ROTATE": True},
    " norm": {"NORM": True, "ROTATE": False},
    " turn": {"NORM": False, "ROTATE": True},
}
FORMS = {"forward": _BOTH, "backward": _BOTH, "ring": {"": {"NORM": False}}}  # a memory takes normalised keys


def configurations() -> Sequence[Configuration]:
    """Tokens and weights in bf16 and tables in fp32, for our small models, Wan 1.3B, Wan 14B, and heads of 64."""
    made = []
    for heads, head_dim, across, pairing in KINDS:
        t, h, p, warps = triton.tile(heads, head_dim)
        constants: dict[str, Any] = {"PAIRED": pairing == "interleaved", "ACROSS": across, "T": t, "H": h, "P": p}
        constants["ACC"] = triton.tl.float32
        for name, kernel in (
            ("forward", triton.qk_norm_rope_kernel),
            ("backward", triton.norm_rope_backward_kernel),
            ("ring", triton.write_ring_kernel),
        ):
            for what, flags in FORMS[name].items():
                own = constants | flags
                title = f"{name} {heads} heads of {head_dim}{what}"
                signature = {a: "constexpr" if a in own else _type(a) for a in kernel.arg_names}
                divisible = tuple(a for a in signature if a == "half" or a.endswith(STRIDES))
                quick = heads == 12 and not what
                made.append(Configuration(title, kernel, signature, own, divisible, warps, quick=quick))
    return made


def _type(argument: str) -> str:
    if argument.removesuffix("_pointer") in ("cos", "sin", "q_deviation", "k_deviation", "deviation", "sums"):
        return "*fp32"
    if argument == "slot_pointer":
        return "*i64"
    if argument == "keep_pointer":
        return "*i1"
    return "*bf16" if argument.endswith("_pointer") else "fp32" if argument == "eps" else "i32"


def opchecks() -> Sequence[OpCheck]:
    from . import ops  # noqa: F401  registers the operators

    own = torch.ops.worldmodel
    cos, sin = _table(1, 4, 8)

    def tokens(rng: torch.Generator) -> tuple[Tensor, ...]:
        return tuple(torch.randn(1, 4, 2, 8, generator=rng) for _ in range(2))

    def ring(rng: torch.Generator) -> tuple[Any, ...]:
        storage = torch.randn(2, 1, 1, 2, 3, 2, 8, generator=rng)
        slot, keep = torch.tensor([[2, 0]]), torch.tensor([[True, True]])
        k, v = (x[None] for x in tokens(rng))
        return k, v, None, cos, sin, EPS, True, storage[0].clone(), storage[1].clone(), slot, keep

    def backward(rng: torch.Generator) -> tuple[Any, ...]:
        return *tokens(rng), torch.ones(8), cos, sin, torch.ones(1, 4, 2), False

    return (
        OpCheck(own.qk_norm_rope.default, lambda r: (*tokens(r), torch.ones(16), torch.ones(16), cos, sin, EPS, False)),
        OpCheck(own.qk_norm_rope.default, lambda r: (*tokens(r), torch.ones(8), torch.ones(8), None, None, EPS, False)),
        OpCheck(own.qk_norm_rope.default, lambda r: (*tokens(r), None, None, cos, sin, EPS, True)),
        OpCheck(own.norm_rope_backward.default, backward),
        OpCheck(own.write_ring.default, ring),
    )


CHECKS = OpChecks("qk_norm_rope", cases, configurations, opchecks)
