"""Segmented attention as the engine calls it, and which backend runs it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from worldmodel.kernels import arguments, triton_needs
from worldmodel.kernels.backend import Backend, Op, constant
from worldmodel.kernels.rope import PAIRINGS, Pairing

from . import peers, reference
from .reference import Segment

HEADS = (16, 32, 64, 128)  # sizes of a head that the Triton kernels are made for
WIDEST_SINGLE = 64  # of them in fp32, which has no matrix instructions
GRID = 65535  # programs along the second axis of a launch
TYPES = (torch.float16, torch.bfloat16, torch.float32)


@dataclass(frozen=True, slots=True)
class Attention:
    """The arguments of `attend_segments`."""

    q: Tensor  # [B, h, Q, D]
    segments: tuple[Segment, ...]
    pairing: Pairing
    scale: float

    @property
    def device(self) -> torch.device:
        return self.q.device

    @property
    def tensors(self) -> list[Tensor]:
        """Queries, keys and values."""
        return [self.q, *(x for s in self.segments for x in (s.keys, s.values))]


def attend_segments(
    q: Tensor, segments: Sequence[Segment], pairing: Pairing = "half", scale: float | None = None
) -> Tensor:
    """Attention of the queries q [B, h, Q, D] over all keys of all segments, where they lie; see `Segment`.

    pairing: of the segments' turns, as the model rotates. scale: of the logits, None for D^-1/2. Every query sees every
    key that is there, unless its segment is cut into chunks; zeros for a query that sees none. Returns [B, h, Q, D].
    Autocast applies. Differentiable in queries, keys and values. ValueError if shapes do not go together; BackendError
    as in `worldmodel.kernels.backend`.
    """
    _check(q, segments)
    arguments.one_of("attention", "pairing", pairing, PAIRINGS)
    if scale is not None:
        arguments.number("attention", "scale", scale)
    if torch.is_autocast_enabled(q.device.type):
        kind = torch.get_autocast_dtype(q.device.type)
        q, segments = q.to(kind), [replace(s, keys=s.keys.to(kind), values=s.values.to(kind)) for s in segments]
    return ATTENTION(Attention(q, tuple(segments), pairing, q.shape[3] ** -0.5 if scale is None else scale))


def _check(q: Tensor, segments: Sequence[Segment]) -> None:
    _check_type("queries are", q, Tensor, "a tensor")
    if q.ndim != 4 or not q.is_floating_point() or not q.shape[3]:
        raise ValueError(f"attention: queries {list(q.shape)} of {q.dtype} are no floating-point [B, h, Q, D], D > 0")
    rows, heads, _, head = q.shape
    if not segments:
        raise ValueError("attention over no segments")
    for i, s in enumerate(segments):
        _check_type(f"segment {i} is", s, Segment, "Segment")
        _check_type(f"keys of segment {i} are", s.keys, Tensor, "a tensor")
        _check_type(f"values of segment {i} are", s.values, Tensor, "a tensor")
        if s.valid is not None:
            _check_type(f"the mask of segment {i} is", s.valid, Tensor, "a tensor")
        for part in s.turn or ():
            _check_type(f"the turn of segment {i} is", part, Tensor, "a tensor")
        if s.keys.ndim != 4 or not (s.keys.is_floating_point() and s.values.is_floating_point()):
            raise ValueError(
                f"attention: segment {i} has keys {list(s.keys.shape)} of {s.keys.dtype} and values of "
                f"{s.values.dtype}, not floating-point [P, g, N, D]"
            )
        parts = (s.keys, s.values, *(() if s.valid is None else (s.valid,)), *(s.turn or ()))
        if any(part.device != q.device for part in parts):
            devices = sorted({str(part.device) for part in parts})
            raise ValueError(f"attention: queries on {q.device}, segment {i} on {', '.join(devices)}")
        if s.valid is not None and (s.valid.ndim != 2 or s.valid.dtype != torch.bool):
            raise ValueError(
                f"attention: segment {i} has a mask {list(s.valid.shape)} of {s.valid.dtype}, not [P, M] of bools"
            )
        p, g, n, d = s.keys.shape
        if s.values.shape != s.keys.shape or d != head or (rows % p if p else rows) or heads % g:
            raise ValueError(
                f"attention of queries {list(q.shape)}: segment {i} has keys {list(s.keys.shape)} and values "
                f"{list(s.values.shape)}"
            )
        if g != segments[0].keys.shape[1]:
            raise ValueError(f"attention: segment {i} has {g} key heads, segment 0 {segments[0].keys.shape[1]}")
        if s.chunk < 0:
            raise ValueError(f"attention: segment {i} has chunks of {s.chunk} tokens")
        if s.valid is not None and (s.valid.shape[0] != p or (n % m if (m := s.valid.shape[1]) else n)):
            raise ValueError(f"attention: segment {i} of {p} rows and {n} keys has a mask {list(s.valid.shape)}")
        if s.turn is not None and any(t.shape != (p, d // 2) for t in s.turn):
            raise ValueError(
                f"attention: segment {i} of {p} rows has a turn {[list(t.shape) for t in s.turn]}, not [{p}, {d // 2}]"
            )


def _check_type(what: str, value: object, kind: type, wanted: str) -> None:
    if not isinstance(value, kind):
        raise ValueError(f"attention: {what} of type {type(value).__name__}, not {wanted}")


def _types(call: Attention) -> tuple[str, ...]:
    kind = call.q.dtype
    for s in call.segments:
        if s.keys.dtype != kind or s.values.dtype != kind:
            return (f"types differ: {', '.join(sorted({str(x.dtype) for x in call.tensors}))}",)
    return ()


def _triton_reasons(call: Attention) -> tuple[str, ...]:
    head, kind, found = call.q.shape[3], call.q.dtype, [*triton_needs.reasons(call.device), *_types(call)]
    if kind not in TYPES and not (kind == torch.float64 and triton_needs.interpreted()):
        found.append(f"type {kind} is none of {', '.join(map(str, TYPES))}")
    if head not in HEADS:
        found.append(f"head size {head} is none of {', '.join(map(str, HEADS))}")
    if kind == torch.float32 and head > WIDEST_SINGLE:
        found.append(f"heads of {head} in {kind} spill registers, {WIDEST_SINGLE} is the most")
    if any(x.stride(3) != 1 for x in call.tensors):
        found.append("the last axis of queries, keys or values is not contiguous")
    if any(x.shape[2] * x.stride(2) >= 2**31 for x in call.tensors) or call.q.shape[1:].numel() >= 2**31:
        found.append("the tokens of a row or of a head span 2^31 numbers or more")
    if call.q.shape[0] * call.q.shape[1] > GRID:
        found.append(f"{call.q.shape[0]} rows of {call.q.shape[1]} heads are more than {GRID}")
    return tuple(found)


@constant
@cache
def _installed(name: str) -> bool:
    return find_spec(name) is not None


def _flex_reasons(call: Attention) -> tuple[str, ...]:
    head, found = call.q.shape[3], list(_types(call))
    if call.device.type == "cpu":
        if torch.is_grad_enabled() and any(x.requires_grad for x in call.tensors):
            found.append("FlexAttention has no gradient on CPU")
    elif call.device.type != "cuda":
        found.append(f"device {call.device.type}")
    elif head & (head - 1) or head < 16:
        found.append(f"head size {head} is no power of two from 16")
    if not sum(s.keys.shape[2] for s in call.segments) or not call.q.numel():
        found.append("nothing to attend to")
    return tuple(found)


def _xformers_reasons(call: Attention) -> tuple[str, ...]:
    found = list(_types(call))
    if not _installed("xformers"):
        return ("xformers is not installed",)
    if call.device.type != "cuda":
        found.append(f"device {call.device.type} is no CUDA device")
    if call.q.dtype not in TYPES:
        found.append(f"type {call.q.dtype} is none of {', '.join(map(str, TYPES))}")
    if call.q.shape[3] % 8 or call.q.shape[3] > 256:
        found.append(f"head size {call.q.shape[3]} is no multiple of 8 up to 256")
    if not sum(s.keys.shape[2] for s in call.segments) or not call.q.numel():
        found.append("nothing to attend to")
    return tuple(found)


def _triton(call: Attention) -> Tensor:
    from .operator import segmented_attention

    turns = [(None, None) if s.turn is None else tuple(t.contiguous() for t in s.turn) for s in call.segments]
    cos, sin = ([turn[part] for turn in turns] for part in (0, 1))
    keys, values, valid = ([getattr(s, part) for s in call.segments] for part in ("keys", "values", "valid"))
    chunks, interleaved = [s.chunk for s in call.segments], call.pairing == "interleaved"
    return segmented_attention(call.q, keys, values, valid, cos, sin, chunks, call.scale, interleaved)[0]


def _run(function: Callable[..., Tensor]) -> Callable[[Attention], Tensor]:
    def run(call: Attention) -> Tensor:
        return function(call.q, call.segments, call.pairing, call.scale)

    return run


def _any(call: Any) -> tuple[str, ...]:
    return ()


ATTENTION: Op[Attention, Tensor] = Op(
    "attention",
    (
        Backend("triton", _triton_reasons, _triton, ("cuda",)),
        Backend("xformers", _xformers_reasons, _run(peers.xformers)),
        Backend("flex", _flex_reasons, _run(peers.flex)),
        Backend("sdpa", _types, _run(peers.sdpa), ("cuda", "cpu")),
        Backend("reference", _any, _run(reference.attend_segments)),
    ),
)
