"""RMSNorm of queries and keys and their rotation over (frame, row, column), and straight into a memory's slots."""

from dataclasses import dataclass

import torch
from torch import Tensor

from worldmodel.kernels import arguments, triton_needs
from worldmodel.kernels.arguments import BOOL, FLOATS, LONG
from worldmodel.kernels.backend import Backend, Op
from worldmodel.kernels.rope import PAIRINGS, Pairing, Table

from . import reference

__all__ = ["QK_NORM_ROPE", "WRITE_RING", "Ring", "Tokens", "qk_norm_rope", "write_ring"]

MOST = 8192  # padded heads times padded width: what a tile of one token may hold


@dataclass(frozen=True, slots=True)
class Tokens:
    """A call of `qk_norm_rope`."""

    q: Tensor  # [B, N, h, D]
    k: Tensor  # [B, N, h', D]
    q_weight: Tensor | None  # [D] or [h * D]
    k_weight: Tensor | None  # [D] or [h' * D]
    table: Table | None  # [B or 1, N, D / 2] each
    eps: float
    pairing: Pairing

    @property
    def device(self) -> torch.device:
        return self.q.device


@dataclass(frozen=True, slots=True)
class Ring:
    """A call of `write_ring`."""

    k: Tensor  # [L, B, F * n, h, D]
    v: Tensor  # [L, B, F * n, h, D]
    weight: Tensor | None  # [L, D] or [L, h * D]
    table: Table  # [B or 1, F * n, D / 2] each
    eps: float
    pairing: Pairing
    keys: Tensor  # [L, B, h, S, n, D]
    values: Tensor  # [L, B, h, S, n, D]
    slot: Tensor  # [B, F] int64
    keep: Tensor  # [B, F] bool

    @property
    def device(self) -> torch.device:
        return self.k.device


def _tokens_reasons(call: Tokens) -> tuple[str, ...]:
    named = {"q": call.q, "k": call.k, "q_weight": call.q_weight, "k_weight": call.k_weight}
    given = {name: x for name, x in named.items() if x is not None}
    return (
        *triton_needs.reasons(call.device),
        *triton_needs.tensors(call.device, FLOATS, given),
        *_shape_reasons(max(call.q.shape[2], call.k.shape[2]), call.q.shape[3], call.table),
    )


def _shape_reasons(heads: int, head_dim: int, table: Table | None) -> tuple[str, ...]:
    found = []
    if head_dim % 2:
        found.append(f"heads of {head_dim} dimensions do not make pairs")
    if (1 << (heads - 1).bit_length()) * (1 << (head_dim - 1).bit_length()) > MOST:
        found.append(f"{heads} heads of {head_dim} dimensions are more than a tile holds ({MOST})")
    if table is not None and not all(part.is_contiguous() for part in table):
        found.append("the table of cosines and sines is not contiguous")
    return tuple(found)


def _tokens_triton(call: Tokens) -> tuple[Tensor, Tensor]:
    from . import ops

    cos, sin = call.table or (None, None)
    paired = call.pairing == "interleaved"
    return ops.qk_norm_rope(call.q, call.k, call.q_weight, call.k_weight, cos, sin, call.eps, paired)


def _tokens_reference(call: Tokens) -> tuple[Tensor, Tensor]:
    rest = (call.table, call.eps, call.pairing)
    return reference.norm_rope(call.q, call.q_weight, *rest), reference.norm_rope(call.k, call.k_weight, *rest)


def _ring_reasons(call: Ring) -> tuple[str, ...]:
    named = {"k": call.k, "v": call.v, "keys": call.keys, "values": call.values}
    named |= {} if call.weight is None else {"weight": call.weight}
    found = list(triton_needs.reasons(call.device) + triton_needs.tensors(call.device, FLOATS, named))
    found += _shape_reasons(call.k.shape[3], call.k.shape[4], call.table)
    if not call.slot.is_contiguous() or not call.keep.is_contiguous():
        found.append("slot and keep are not contiguous")
    if call.weight is not None and not call.weight.is_contiguous():
        found.append("the weight is not contiguous")
    if torch.is_grad_enabled() and any(x.requires_grad for x in named.values()):
        found.append("what is written in place has no gradient")
    return tuple(found)


def _ring_triton(call: Ring) -> None:
    from . import ops  # noqa: F401  registers the operator

    cos, sin = call.table
    paired = call.pairing == "interleaved"
    torch.ops.worldmodel.write_ring(
        call.k, call.v, call.weight, cos, sin, call.eps, paired, call.keys, call.values, call.slot, call.keep
    )


def _ring_reference(call: Ring) -> None:
    reference.write_ring(
        call.k, call.v, call.weight, call.table, call.eps, call.pairing, call.keys, call.values, call.slot, call.keep
    )


def _never(call: object) -> tuple[str, ...]:
    return ()


QK_NORM_ROPE = Op(
    "qk_norm_rope",
    (
        Backend("triton", _tokens_reasons, _tokens_triton, auto=("cuda",)),
        Backend("reference", _never, _tokens_reference),
    ),
)
WRITE_RING = Op(
    "write_ring",
    (
        Backend("triton", _ring_reasons, _ring_triton, auto=("cuda",)),
        Backend("reference", _never, _ring_reference),
    ),
)


def qk_norm_rope(
    q: Tensor, k: Tensor, q_weight: Tensor | None, k_weight: Tensor | None, table: Table | None, eps: float,
    pairing: Pairing,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """RMSNorm of queries and keys, then their rotation.

    q: [B, N, h, D]; k: [B, N, h', D], as a slice of a packed projection may be. Weights [D] normalise every head alone,
    [h * D] and [h' * D] all heads of a token together, as Wan does; both None are for the rotation alone. table:
    cosines and sines [B or 1, N, D / 2], fp32, as `rope_table` makes them; None for the norm alone. pairing: see
    kernels/rope. Computed in fp32 and rounded once. ValueError names an argument that does not fit.
    """
    sizes = arguments.tensors("qk_norm_rope", ("q", q, "BNhD", FLOATS), ("k", k, "BNgD", FLOATS))
    if (q_weight is None) != (k_weight is None):
        raise ValueError("qk_norm_rope: q_weight and k_weight come together")
    if q_weight is not None and k_weight is not None:
        both = ("q_weight", q_weight, "W", FLOATS), ("k_weight", k_weight, "V", FLOATS)
        made = arguments.tensors("qk_norm_rope", ("q", q, "BNhD", FLOATS), *both)
        alone, across = (sizes["D"],) * 2, (sizes["h"] * sizes["D"], sizes["g"] * sizes["D"])
        if (made["W"], made["V"]) not in (alone, across):
            raise ValueError(
                f"qk_norm_rope: q_weight [{made['W']}] and k_weight [{made['V']}] are neither {list(alone)} (each head "
                f"alone) nor {list(across)} (all heads together)"
            )
    if table is not None:
        _check_table("qk_norm_rope", q, table, (sizes["B"], sizes["N"], sizes["D"]))
    _check_rest("qk_norm_rope", eps, pairing)
    return QK_NORM_ROPE(Tokens(q, k, q_weight, k_weight, table, eps, pairing))


def write_ring(
    k: Tensor, v: Tensor, weight: Tensor | None, table: Table, eps: float, pairing: Pairing,
    keys: Tensor, values: Tensor, slot: Tensor, keep: Tensor,
) -> None:  # fmt: skip
    """Norm and rotate the keys of a chunk's frames and write them, and its values, into the slots of a memory: all
    layers at once.

    k, v: [L, B, F * n, h, D]. weight: [L, D] or [L, h * D], or None for keys that are normalised already. table, eps
    and pairing as for `qk_norm_rope`. keys, values: [L, B, h, S, n, D], written in place. slot: [B, F] int64 in [0, S),
    all different in a row. keep: [B, F] bool: frames that are not kept leave their slot as it is, bit for bit. Without
    gradients. ValueError names an argument that does not fit; the values of slot are not looked at.
    """
    op = "write_ring"
    sizes = arguments.tensors(
        op, ("k", k, "LBThD", FLOATS), ("v", v, "LBThD", FLOATS), ("keys", keys, "LBhSnD", FLOATS),
        ("values", values, "LBhSnD", FLOATS), ("slot", slot, "BF", LONG), ("keep", keep, "BF", BOOL),
    )  # fmt: skip
    layers, batch, tokens, heads, width, slots, frames = (sizes[axis] for axis in "LBThDSF")
    if tokens != frames * sizes["n"]:
        raise ValueError(f"{op}: k has {tokens} tokens, not slot's {frames} frames of keys' {sizes['n']} tokens")
    if frames > slots:
        raise ValueError(f"{op}: slot has {frames} frames, more than the {slots} slots of keys")
    if weight is not None:
        shape = arguments.tensors(op, ("k", k, "LBThD", FLOATS), ("weight", weight, "LW", FLOATS))
        if shape["W"] not in (width, heads * width):
            raise ValueError(
                f"{op}: weight has the shape [{layers}, {shape['W']}], not [{layers}, {width}] (every head alone) or "
                f"[{layers}, {heads * width}] (all heads together)"
            )
    _check_table(op, k, table, (batch, tokens, width))
    _check_rest(op, eps, pairing)
    arguments.written(op, keys=keys, values=values)
    arguments.without_gradients(op, k=k, v=v, weight=weight, keys=keys, values=values)
    WRITE_RING(Ring(k, v, weight, table, eps, pairing, keys, values, slot, keep))


def _check_table(op: str, tokens: Tensor, table: object, sizes: tuple[int, int, int]) -> None:
    """sizes: B, N and D, with which the table is [B or 1, N, D / 2] twice."""
    if not isinstance(table, tuple) or len(table) != 2:
        raise ValueError(f"{op}: table is of type {type(table).__name__}, not a pair of cosines and sines")
    batch, count, width = sizes
    if width % 2:
        raise ValueError(f"{op}: heads of {width} dimensions do not make pairs")
    here = ("tokens", tokens, "abcde"[: tokens.ndim], (tokens.dtype,))
    made = arguments.tensors(op, here, ("table[0]", table[0], "RNH", FLOATS), ("table[1]", table[1], "RNH", FLOATS))
    if made["R"] not in (1, batch) or (made["N"], made["H"]) != (count, width // 2):
        raise ValueError(f"{op}: table has the shape {list(table[0].shape)}, not [{batch} or 1, {count}, {width // 2}]")


def _check_rest(op: str, eps: float, pairing: str) -> None:
    arguments.number(op, "eps", eps, 0)
    arguments.one_of(op, "pairing", pairing, PAIRINGS)
