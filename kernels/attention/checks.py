"""What `kernels check` looks at in segmented attention."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from worldmodel.kernels.check.declare import Case, Configuration, OpCheck, OpChecks, padded
from worldmodel.kernels.rope import Pairing

from . import peers, reference
from . import triton as kernels
from .choice import ATTENTION, HEADS, WIDEST_SINGLE, Attention
from .operator import segmented_attention, segmented_attention_backward
from .reference import Segment


@dataclass(frozen=True, slots=True)
class Keys:
    """One segment of a case: P rows, N keys, a mask of so many places (None for none), whether it has a turn."""

    rows: int
    length: int
    places: int | None = None
    turn: bool = False
    empty: bool = False  # a mask that leaves nothing
    last: int = 0  # the last so many places are not there
    chunk: int = 0


STREAM = (Keys(1, 33, turn=True), Keys(1, 40, 4, turn=True), Keys(2, 70, 10), Keys(2, 41))  # sink, slow, ring, chunk


@dataclass(frozen=True, slots=True)
class Shape:
    """Queries [B, h, Q, D] with g key heads and what they look at."""

    rows: int
    heads: int
    key_heads: int
    queries: int
    head: int
    segments: tuple[Keys, ...]
    pairing: Pairing = "half"
    size: float = 1.0  # standard deviation of queries, keys and values

    def inputs(self, rng: torch.Generator, dtype: torch.dtype) -> list[Tensor]:
        """Queries; keys, values, then the mask and cosines and sines that there are, of every segment."""

        def draw(*shape: int) -> Tensor:
            return padded((torch.randn(shape, generator=rng, dtype=torch.float64) * self.size).to(dtype))

        made = [draw(self.rows, self.heads, self.queries, self.head)]
        for s in self.segments:
            keys, values = (draw(s.rows, self.key_heads, s.length, self.head) for _ in range(2))
            made += [keys, values]
            if s.places is not None:
                valid = torch.rand(s.rows, s.places, generator=rng) < (0 if s.empty else 0.6)
                if s.last:
                    valid[:, -s.last :] = False
                gone = ~valid.repeat_interleave(s.length // max(1, s.places), 1)[:, None, :, None]
                keys.masked_fill_(gone, torch.nan)
                values.masked_fill_(gone, torch.nan)
                made.append(valid)
            if s.turn:
                angle = torch.rand(s.rows, self.head // 2, generator=rng, dtype=torch.float64) * 2 * torch.pi
                wide = torch.promote_types(dtype, torch.float32)
                made += [angle.cos().to(wide), angle.sin().to(wide)]
        return made

    def call(self, inputs: Sequence[Tensor]) -> Attention:
        q, *rest = inputs
        given, segments = iter(rest), []
        for s in self.segments:
            keys, values = next(given), next(given)
            valid = None if s.places is None else next(given)
            turn = (next(given), next(given)) if s.turn else None
            segments.append(Segment(keys, values, valid, turn, s.chunk))
        return Attention(q, tuple(segments), self.pairing, self.head**-0.5)

    @property
    def learned(self) -> tuple[int, ...]:
        """Which inputs have a gradient: queries, keys and values."""
        found, at = [0], 1
        for s in self.segments:
            found += [at, at + 1]
            at += 2 + (s.places is not None) + 2 * s.turn
        return tuple(found)

    def case(self, name: str, dtype: torch.dtype, gradients: bool = True, quick: bool = True) -> Case:
        def of(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
            def run(*inputs: Tensor) -> Tensor:
                call = self.call(inputs)
                return function(call.q, call.segments, call.pairing, call.scale)

            return run

        def triton(*inputs: Tensor) -> Tensor:
            return ATTENTION(self.call(inputs), "triton")

        learned = self.learned if gradients else ()
        exact, peer = of(reference.attend_segments), of(peers.sdpa)
        return Case(name, self.inputs, triton, exact, peer, dtype, learned, quick=quick)


def cases() -> list[Case]:
    single, half = torch.float32, torch.float16
    nothing = (Keys(2, 0), Keys(2, 12, 3, empty=True))
    return [
        Shape(2, 2, 1, 41, 32, STREAM).case("a stream's segments, 41 queries, GQA", single),
        Shape(2, 2, 2, 41, 64, STREAM, "interleaved", 4.0).case("the same, interleaved, head 64, scale 4", half),
        Shape(1, 1, 1, 64, 64, (Keys(1, 128, turn=True), Keys(1, 64))).case("exact tiles", half),
        Shape(2, 2, 2, 1, 16, (Keys(1, 1, turn=True), Keys(1, 1)), size=16.0).case("1 x 1, scale 16, shared", single),
        Shape(2, 2, 1, 33, 16, (*nothing, Keys(1, 7, 7, last=2))).case("empty segments beside another", single),
        Shape(2, 1, 1, 5, 16, nothing).case("no key at all", single),
        Shape(0, 2, 1, 5, 16, (Keys(1, 4), Keys(1, 5))).case("empty batch", single),
        Shape(1, 1, 1, 0, 16, (Keys(1, 4),)).case("no queries", single),
        _gradcheck(),
        Shape(2, 1, 1, 70, 16, CHUNKS).case("chunk after chunk", single, quick=False),
        Shape(1, 1, 1, 40, 128, (Keys(1, 72, turn=True), Keys(1, 40)), size=16.0).case("head 128, scale 16", half),
        Shape(1, 1, 1, 113, 32, (Keys(1, 203),)).case("113 x 203", single, quick=False),
        Shape(3, 4, 2, 41, 64, STREAM_OF_THREE, "half", 16.0).case("scale 16, three rows", single, quick=False),
        _compiled(Shape(2, 2, 1, 5, 16, (Keys(1, 3, 3, turn=True), Keys(2, 5)))),
        Shape(1, 1, 1, 1023, 16, (Keys(1, 1024),)).case("1023 x 1024", half, quick=False),
    ]  # fmt: skip


CHUNKS = (Keys(1, 9, turn=True), Keys(2, 70, chunk=14))
STREAM_OF_THREE = (Keys(1, 33, turn=True), Keys(3, 40, 4, turn=True), Keys(3, 70, 10), Keys(3, 41))


def _gradcheck() -> Case:
    """Derivatives by differences, in fp64."""
    shape = Shape(1, 2, 1, 3, 16, (Keys(1, 2, turn=True), Keys(1, 3)), "interleaved")

    def run(*inputs: Tensor) -> Tensor:
        leaves = [x.detach().clone().requires_grad_(i in shape.learned) for i, x in enumerate(inputs)]
        right = torch.autograd.gradcheck(lambda *x: ATTENTION(shape.call(x), "triton"), leaves, fast_mode=True)
        return torch.tensor(right)

    return Case("gradcheck", shape.inputs, run, lambda *_: torch.tensor(True), dtype=torch.float64, exact=True)


def _compiled(shape: Shape) -> Case:
    """Under torch.compile(fullgraph=True), dispatch included."""
    case = shape.case("torch.compile, fullgraph", torch.float32, quick=False)
    return replace(case, run=torch.compile(case.run, fullgraph=True, backend="aot_eager"))


def opchecks() -> list[OpCheck]:
    shape = Shape(2, 2, 1, 5, 16, (Keys(1, 3, 3, turn=True), Keys(2, 5, chunk=2)))

    def forward(rng: torch.Generator) -> tuple[Any, ...]:
        call = shape.call([x.clone() for x in shape.inputs(rng, torch.float32)])
        for x in call.tensors:
            x.nan_to_num_().requires_grad_()
        each = ((s.keys, s.values, s.valid, *(s.turn or (None, None)), s.chunk) for s in call.segments)
        return call.q, *map(list, zip(*each, strict=True)), call.scale, False

    def backward(rng: torch.Generator) -> tuple[Any, ...]:
        with torch.no_grad():
            q, keys, values, *rest = forward(rng)
            out, lse = segmented_attention(q, keys, values, *rest)
            keys, values = ([x.detach() for x in part] for part in (keys, values))
            return out.clone(), q.detach(), out, lse, keys, values, *rest, [True, True]

    return [OpCheck(segmented_attention, forward), OpCheck(segmented_attention_backward, backward)]


def configurations() -> list[Configuration]:
    """A sink and slow frames with turns, a ring with empty places, the chunk: what a stream with memory reads.

    Every head size in every type, the chunk whole and cut into chunks, and pairs of neighbours as Wan has them.
    """
    kinds = [(head, dtype) for dtype in ("bf16", "fp16") for head in HEADS]
    kinds += [(head, "fp32") for head in HEADS if head <= WIDEST_SINGLE]
    shipped = [(*kind, chunked, False) for kind in kinds for chunked in (False, True)]
    shipped += [(head, "bf16", False, True) for head in (64, 128)]
    # The tiles of 10.0 are others where heads are large.
    return [made for each in shipped for archs in ((80, 86, 89, 90, 120), (100,)) for made in _kernels(*each, archs)]


QUICK = ("forward 128 bf16", "queries 128 bf16", "keys 128 bf16")
TURNED, MASKED = (True, True, False, False), (False, True, True, False)  # which of the four have a turn, a mask
PER_SEGMENT = ("rows", "lengths", "runs", "chunks", "k_b", "k_h", "k_n", "v_b", "v_h", "v_n", "valid_b", "turn_b")
STRIDES = ("_b", "_h", "_n")  # multiples of 16 numbers in every shipped shape, except those of masks
CONSTANTS = ("D", "INTERLEAVED", "ACC", "BM", "BN")


def _kernels(
    head: int, dtype: str, chunked: bool, interleaved: bool, archs: tuple[int, ...]
) -> list[Configuration]:  # fmt: skip
    itemsize = 4 if dtype == "fp32" else 2
    kinds = ((kernels.forward_kernel, "forward"), (kernels.queries_kernel, "queries"), (kernels.keys_kernel, "keys"))
    made = []
    for (kernel, part), tile in zip(kinds, kernels.tiles(head, itemsize, archs[0]), strict=True):
        if interleaved and part == "keys":
            continue  # it turns nothing
        types, constants, divisible = _arguments(kernel, f"*{dtype}", part != "keys", chunked)
        values = {
            "D": head, "INTERLEAVED": interleaved, "ACC": kernels.tl.float32, "BM": tile.queries, "BN": tile.keys,
        }  # fmt: skip
        constants |= {name: value for name, value in values.items() if name in types}
        name = f"{part} {head} {dtype}{' chunked' * chunked}{' interleaved' * interleaved}"
        made.append(
            Configuration(
                name, kernel, types, constants, divisible, tile.warps, tile.stages,
                matrix=itemsize == 2, archs=archs, quick=name in QUICK,
            )
        )  # fmt: skip
    return made


def _arguments(
    kernel: Any, pointer: str, several: bool, chunked: bool
) -> tuple[dict[str, Any], dict[Any, Any], tuple[Any, ...]]:
    """Types, the constants None, and which are multiples of 16.

    several: whether it takes tuples, one for a segment. chunked: whether the last of them is cut into chunks.
    """
    kinds = {"lse": "*fp32", "delta": "*fp32", "valid": "*i1", "cos": "*fp32", "sin": "*fp32", "scale": "fp32"}
    numbers = (*PER_SEGMENT, "length", "run", "chunk", "heads", "group", "queries", "copies")
    types: dict[str, Any] = {}
    constants: dict[Any, Any] = {}
    divisible: list[Any] = []
    for name in kernel.arg_names:
        kind = "i32" if name in numbers or name.endswith(STRIDES) else kinds.get(name, pointer)
        whole = name.endswith(STRIDES) and name != "valid_b"
        if name in CONSTANTS:
            types[name] = "constexpr"
        elif name == "chunk" and not chunked:
            types[name], constants[name] = "constexpr", None
        elif name == "chunks":
            last = kind if chunked else "constexpr"
            types[name] = (*("constexpr",) * (len(TURNED) - 1), last)
            constants |= {(name, i): None for i, own in enumerate(types[name]) if own == "constexpr"}
        elif several and name in (*PER_SEGMENT, "keys", "values"):
            types[name] = (kind,) * len(TURNED)
            divisible += [(name, i) for i in range(len(TURNED))] if whole else []
        elif several and name in ("valid", "cos", "sin", "turned"):
            there = MASKED if name == "valid" else TURNED
            types[name] = tuple(kind if own else "constexpr" for own in there)
            constants |= {(name, i): None for i, own in enumerate(there) if not own}
        else:
            types[name] = kind
            divisible += [name] if whole else []
    return types, constants, tuple(divisible)


CHECKS = OpChecks("attention", cases, configurations, opchecks)
