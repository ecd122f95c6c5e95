"""Arguments that do not fit an op: one ValueError that names the op and the argument, whatever backend would run."""

from dataclasses import replace

import pytest
import torch

from worldmodel.kernels import noise
from worldmodel.kernels.attention import Segment, attend_segments
from worldmodel.kernels.modulate import gated_residual, modulate
from worldmodel.kernels.prefix_attention import QKV, attend_prefix
from worldmodel.kernels.qk_norm_rope import qk_norm_rope, write_ring
from worldmodel.kernels.quantised import attend, merge, quantise
from worldmodel.kernels.region_warp import region_warp
from worldmodel.kernels.rope import move_table, rope_table, rotate
from worldmodel.kernels.sampler_step import euler, normal, renoise


def zeros(*shape, dtype=torch.float32):
    return torch.zeros(shape, dtype=dtype)


def long(*shape):
    return zeros(*shape, dtype=torch.int64)


TABLE = (zeros(1, 6, 4), zeros(1, 6, 4))
X = zeros(2, 3, 4, 8)
PAGES = quantise(torch.ones(1, 2, 12, 16), 4, "int8", False)
MEANS = quantise(torch.ones(1, 2, 12, 16), 4, "int8", True)
assert MEANS.mean is not None
PASTE = {"patch": zeros(2, 4, 4, 3), "mask": zeros(2, 4, 4), "inverse": zeros(2, 2, 3)}
CALLS = {
    modulate: {"x": X, "shift": zeros(2, 3, 8), "scale": zeros(2, 3, 8), "eps": 1e-6, "norm": "layer"},
    gated_residual: {"x": X, "y": X, "gate": zeros(2, 3, 8)},
    qk_norm_rope: {
        "q": zeros(2, 6, 4, 8), "k": zeros(2, 6, 2, 8), "q_weight": zeros(8), "k_weight": zeros(8), "table": TABLE,
        "eps": 1e-6, "pairing": "half",
    },
    write_ring: {
        "k": zeros(5, 2, 6, 2, 8), "v": zeros(5, 2, 6, 2, 8), "weight": zeros(5, 8), "table": TABLE, "eps": 1e-6,
        "pairing": "half", "keys": zeros(5, 2, 2, 4, 2, 8), "values": zeros(5, 2, 2, 4, 2, 8),
        "slot": torch.tensor([[0, 1, 2], [3, 1, 0]]), "keep": zeros(2, 3, dtype=torch.bool),
    },
    quantise: {"x": zeros(1, 2, 12, 16), "page": 4, "kind": "int8", "smooth": True},
    attend: {"q": zeros(2, 4, 5, 16), "keys": MEANS, "values": PAGES, "valid": None, "scale": 0.25},
    merge: {"parts": [(zeros(1, 2, 3, 4), zeros(1, 2, 3))] * 2},
    region_warp: PASTE | {
        "frame": zeros(2, 9, 9, 3, dtype=torch.uint8), "corner": zeros(2, 2, dtype=torch.int32), "size": (4, 4),
    },
    euler: {"x": X, "v": X, "t": zeros(2, 3), "s": zeros(2, 3)},
    renoise: {"x": X, "v": X, "t": zeros(2, 3), "s": zeros(2, 3), "seed": long(2), "frame": long(2, 3), "step": 0},
    normal: {"seed": long(2), "frame": long(2, 3), "step": 0, "shape": (4,)},
    noise.normal: {"seed": long(2), "frame": long(2, 3), "step": 0, "shape": (4,)},
    noise.uniform: {"seed": long(2), "frame": long(2, 3), "step": 0},
    noise.row_seed: {"run_seed": 1, "index": long(2)},
    attend_prefix: {
        "prefix": QKV(zeros(2, 4, 5, 16), zeros(2, 2, 5, 16), zeros(2, 2, 5, 16)),
        "rollouts": QKV(zeros(6, 4, 3, 16), zeros(6, 2, 3, 16), zeros(6, 2, 3, 16)),
        "prefix_chunk": 0, "chunk": 0, "scale": None,
    },
    rope_table: {"frames": long(1, 3), "grid": (1, 2), "head_dim": 8},
    move_table: {"frames": long(1, 3), "head_dim": 8},
}  # fmt: skip
TENSORS = [(f, name) for f, call in CALLS.items() for name, x in call.items() if isinstance(x, torch.Tensor)]


def names(call):
    return call.__module__.split(".")[2] + "." + call.__name__ if callable(call) else str(call)


def refused(call, match, **changed):
    with pytest.raises(ValueError, match=match):
        call(**(CALLS[call] | changed))


@pytest.mark.parametrize("call", CALLS, ids=names)
def test_as_they_are_the_arguments_fit(call):
    call(**CALLS[call])


@pytest.mark.parametrize(("call", "name"), TENSORS, ids=names)
def test_every_tensor_by_kind_type_rank_size_and_device(call, name):
    x = CALLS[call][name]
    refused(call, rf": {name} is of type list, not a tensor", **{name: x.tolist()})
    for kind in (torch.int16, torch.complex64):
        refused(call, rf": {name} is of {kind}, known are", **{name: x.to(kind)})
    first = "v" if name == "x" and call in (euler, renoise) else name  # whose rank is that of x
    refused(call, rf": {first} has the shape .*, not \[", **{name: x[None]})
    if name not in ("index", "frames") and call is not quantise:  # they stand alone
        refused(call, r": [\w.]+ is on (cpu|meta), \w+ on (meta|cpu)", **{name: x.to("meta")})
        last = torch.cat((x, x[..., :1]), -1)
        if (call, name) not in ((normal, "frame"), (noise.normal, "frame"), (noise.uniform, "frame")):  # K is free
            refused(call, r"(has the shape|slot has 4 frames|has \d+ tokens|are neither)", **{name: last})


@pytest.mark.parametrize(("call", "name"), [c for c in TENSORS if CALLS[c[0]][c[1]].ndim > 2], ids=names)
def test_nothing_is_broadcast(call, name):
    """A kernel would read beyond the tensor."""
    x = CALLS[call][name]
    free = {quantise: (0, 1), region_warp: (1,) if name == "frame" else (), attend: (0,)}.get(call, ())
    for axis in range(2):
        if x.shape[axis] > 1 and axis not in free:
            refused(call, rf"{call.__name__}.*: ", **{name: x.narrow(axis, 0, 1)})


def test_numbers_and_words():
    for bad in (-1.0, float("nan"), float("inf"), "1e-6", None):
        for call in (modulate, qk_norm_rope, write_ring):
            refused(call, f"{call.__name__}: eps is .*, not a finite number of at least 0", eps=bad)
    refused(modulate, "norm is 'batch', known are layer, rms", norm="batch")
    refused(quantise, "kind is 'int4', known are int8, fp8", kind="int4")
    for bad in (0, -4, 2.0):
        refused(quantise, "page is .*, not a whole number from 1", page=bad)
    for call in (qk_norm_rope, write_ring):
        refused(call, "pairing is 'wan', known are interleaved, half", pairing="wan")
    with pytest.raises(ValueError, match="rotate: pairing is 'wan'"):
        rotate(X, (zeros(4), zeros(4)), "wan")  # pyright: ignore[reportArgumentType]
    for call in (normal, renoise, noise.uniform):
        for bad in (-1, 2**32, 0.5):
            refused(call, r"step is .*, not a whole number from 0 to 4294967295", step=bad)
    refused(normal, "a size of shape is -1", shape=(-1,))
    refused(attend, "scale is nan", scale=float("nan"))
    refused(attend_prefix, "chunk is -1", chunk=-1)
    refused(region_warp, "a side of size is -4", size=(4, -4))
    refused(region_warp, r"size is 4, not \(lines, columns\)", size=4)
    refused(rope_table, "head_dim is 7, which does not make pairs", head_dim=7)
    refused(rope_table, "a side of grid is 0", grid=(0, 2))


def test_norms_and_tables_of_queries_and_keys():
    refused(qk_norm_rope, "q_weight and k_weight come together", q_weight=None)
    refused(
        qk_norm_rope, r"q_weight \[32\] and k_weight \[8\] are neither \[8, 8\].* nor \[32, 16\]", q_weight=zeros(32)
    )
    refused(write_ring, r"weight has the shape \[5, 9\], not \[5, 8\].* or \[5, 16\]", weight=zeros(5, 9))
    for call in (qk_norm_rope, write_ring):
        refused(call, "table is of type Tensor, not a pair", table=TABLE[0])
        refused(call, r"table\[1\] has the shape", table=(TABLE[0], TABLE[1][..., :3]))
        refused(call, r"table\[0\] is of torch.int64", table=(TABLE[0].long(), TABLE[1]))
        refused(call, r"table\[1\] is on meta", table=(TABLE[0], TABLE[1].to("meta")))
        for wrong in (zeros(3, 6, 4), zeros(1, 5, 4), zeros(1, 6, 8)):
            refused(call, r"table has the shape .*, not \[2 or 1, 6, 4\]", table=(wrong, wrong))
    odd = {"q": zeros(2, 6, 4, 7), "k": zeros(2, 6, 2, 7), "q_weight": None, "k_weight": None}
    refused(qk_norm_rope, "heads of 7 dimensions do not make pairs", **odd)


def test_a_ring_takes_no_more_frames_than_it_has_slots():
    more = {name: zeros(5, 2, 2, 2, 2, 8) for name in ("keys", "values")}
    refused(write_ring, "slot has 3 frames, more than the 2 slots of keys", **more)
    refused(write_ring, "k has 6 tokens, not slot's 2 frames of keys' 2 tokens", slot=long(2, 2), keep=long(2, 2) == 0)


def test_memories_in_one_byte():
    refused(attend, "keys is of type Tensor, not Quantised", keys=PAGES.codes)
    for name in ("keys", "values"):
        for part, wrong in (("codes", PAGES.codes.float()), ("scale", PAGES.scale.half()), ("mean", zeros(1, 2, 3))):
            refused(attend, rf"{name}\.{part} (is of|has the shape)", **{name: replace(MEANS, **{part: wrong})})
        refused(attend, rf"{name}\.page is 0", **{name: replace(PAGES, page=0)})
        refused(attend, f"{name} have 12 tokens, not 2 pages of 5", **{name: replace(PAGES, page=5)})
        refused(attend, f"{name} have 12 tokens, not 3 pages of 6", **{name: replace(MEANS, page=6)})
    refused(attend, "q has 2 rows of 3 heads, no multiples of keys' 1 of 2", q=zeros(2, 3, 5, 16))
    refused(attend, r"valid has the shape \[1, 12\], not \[P, N / n\] = \[1, 3\]", valid=torch.ones(1, 12).bool())
    refused(attend, "valid is of torch.int64", valid=long(1, 3))
    refused(merge, "there are no parts", parts=[])
    refused(
        merge,
        r"log-sum-exp 1 has the shape \[1, 2, 4\]",
        parts=[(zeros(1, 2, 3, 4), zeros(1, 2, n)) for n in (3, 4)],
    )


def test_attention_takes_tensors_and_known_words():
    q, one = zeros(1, 2, 3, 16), Segment(zeros(1, 2, 4, 16), zeros(1, 2, 4, 16))
    for queries, segment, said in (
        (q.tolist(), one, "queries are"),
        (q, replace(one, keys=one.keys.tolist()), "keys of segment 0 are"),
        (q, replace(one, values=None), "values of segment 0 are"),
        (q, replace(one, valid=[[True]]), "the mask of segment 0 is"),
        (q, replace(one, turn=(one.keys, [0.0])), "the turn of segment 0 is"),
    ):
        with pytest.raises(ValueError, match=f"attention: {said} of type (list|NoneType), not a tensor"):
            attend_segments(queries, [segment])
    for rest, said in ((("wan", None), "pairing is 'wan'"), (("half", float("nan")), "scale is nan")):
        with pytest.raises(ValueError, match=f"attention: {said}"):
            attend_segments(q, [one], *rest)
    with pytest.raises(ValueError, match="segment 0 is of type tuple, not Segment"):
        attend_segments(q, [(one.keys, one.values)])  # pyright: ignore[reportArgumentType]


def test_rollouts_belong_to_their_prefixes():
    prefix, rollouts = CALLS[attend_prefix]["prefix"], CALLS[attend_prefix]["rollouts"]
    refused(attend_prefix, "prefix is of type tuple, not QKV", prefix=(prefix.q, prefix.k, prefix.v))
    for part in "qkv":
        for name, x in (("prefix", prefix), ("rollouts", rollouts)):
            for wrong in (getattr(x, part)[:1], getattr(x, part).long(), getattr(x, part).to("meta"), [1.0]):
                refused(attend_prefix, r"(prefix|rollouts)\.[qkv] (is|has)", **{name: replace(x, **{part: wrong})})
    five = QKV(*(x[:5] for x in (rollouts.q, rollouts.k, rollouts.v)))
    refused(attend_prefix, "rollouts have 5 rows, no multiple of the 2 of prefix", rollouts=five)


def test_gradients_that_would_be_cut_are_refused():
    for call, name in ((quantise, "x"), *((write_ring, n) for n in ("k", "v", "weight", "keys", "values")),
                       *((region_warp, n) for n in PASTE)):  # fmt: skip
        asking = CALLS[call][name].clone().requires_grad_()
        refused(call, f"{name} requires a gradient, which this op does not have", **{name: asking})
        with torch.no_grad():
            call(**(CALLS[call] | {name: asking}))


def test_what_is_written_has_a_place_of_its_own():
    refused(
        region_warp, "frame is written in place and was expanded", frame=zeros(1, 9, 9, 3).byte().expand(2, 9, 9, 3)
    )
    refused(
        write_ring,
        "values is written in place and was expanded",
        values=zeros(5, 2, 2, 1, 2, 8).expand(5, 2, 2, 4, 2, 8),
    )
    refused(region_warp, "patch is empty", patch=zeros(2, 0, 4, 3), mask=zeros(2, 0, 4))
    away = {name: x.to("meta") for name, x in CALLS[region_warp].items() if isinstance(x, torch.Tensor)}
    refused(region_warp, "frame is on meta", **away)


def test_empty_batches_and_chunks_are_right():
    assert modulate(X[:0], zeros(0, 3, 8), zeros(0, 3, 8), 1e-6).shape == (0, 3, 4, 8)
    assert gated_residual(X[:, :, :0], X[:, :, :0], zeros(2, 3, 8)).shape == (2, 3, 0, 8)
    assert qk_norm_rope(zeros(0, 6, 4, 8), zeros(0, 6, 2, 8), zeros(8), zeros(8), TABLE, 1e-6, "half")[1].shape == (
        0,
        6,
        2,
        8,
    )
    assert quantise(zeros(1, 2, 0, 16), 4, "int8", True).codes.shape == (1, 2, 0, 16)
    none = quantise(zeros(1, 2, 0, 16), 4, "int8", True)
    out, lse = attend(zeros(2, 4, 5, 16), none, none, None, 0.25)
    assert not out.any() and (lse == -torch.inf).all()
    assert euler(X[:, :0], X[:, :0], zeros(2, 0), zeros(2, 0)).shape == (2, 0, 4, 8)
    assert normal(long(2), long(2, 3), 0, (0,)).shape == (2, 3, 0)


def test_a_page_that_holds_nan_shows_it():
    x = torch.ones(1, 1, 4, 4)
    x[0, 0, 1, 2] = torch.nan
    for kind in ("int8", "fp8"):
        for smooth in (True, False):
            assert quantise(x, 2, kind, smooth).dense()[:, :, 1].isnan().any()
            assert torch.equal(quantise(x, 2, kind, smooth).dense()[:, :, 2:], torch.ones(1, 1, 2, 4))
