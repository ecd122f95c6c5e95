"""Segmented attention against one softmax over everything, its peers, and rotary positions; on CPU."""

import sys
from types import SimpleNamespace

import pytest
import torch

from worldmodel.kernels import backend
from worldmodel.kernels.attention import ATTENTION, Attention, Segment, Span, Visible, attend, attend_segments, peers
from worldmodel.kernels.backend import BackendError
from worldmodel.models.rope import Rope3D

BACKENDS = ("sdpa", "reference", pytest.param("flex", marks=pytest.mark.slow))  # it compiles itself


@pytest.fixture
def draw():
    rng = torch.Generator().manual_seed(3)
    return lambda *shape: torch.randn(shape, generator=rng, dtype=torch.float64)


def stream(draw, rows=2, heads=4, keys=2, head=16):
    """Queries and {sink with a turn, ring with gaps full of NaN, chunk}, and the dense attention that they mean."""
    q = draw(rows, heads, 6, head)
    sink, ring, chunk = ([draw(p, keys, n, head) for _ in range(2)] for p, n in ((1, 5), (rows, 8), (rows, 6)))
    angle = draw(1, head // 2)
    valid = torch.tensor([[True, False, True, True], [False, False, True, False]])
    for x in ring:
        x.masked_fill_(~valid.repeat_interleave(2, 1)[:, None, :, None], torch.nan)
    segments = (Segment(*sink, turn=(angle.cos(), angle.sin())), Segment(*ring, valid), Segment(*chunk))
    a, b = q.chunk(2, -1)
    turned = torch.cat((a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()), -1)
    found = torch.empty_like(q)
    for r in range(rows):
        for h in range(heads):
            g, there = h * keys // heads, valid[r].repeat_interleave(2)
            logits = torch.cat((
                turned[r, h] @ sink[0][0, g].T, q[r, h] @ ring[0][r, g][there].T, q[r, h] @ chunk[0][r, g].T,
            ), 1)  # fmt: skip
            values = torch.cat((sink[1][0, g], ring[1][r, g][there], chunk[1][r, g]))
            found[r, h] = (logits / 4).softmax(1) @ values
    return q, segments, found


@pytest.mark.parametrize("name", BACKENDS)
def test_all_backends_mean_one_softmax_over_what_is_there(draw, name):
    q, segments, wanted = stream(draw)
    with backend.using(name), torch.no_grad():
        found = attend_segments(q, segments)
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-12)


def test_gradients_of_the_peer_and_the_reference_agree_and_gaps_have_none(draw):
    q, segments, _ = stream(draw)
    leaves = [x.requires_grad_() for x in (q, *(x for s in segments for x in (s.keys, s.values)))]
    weight, found = draw(*q.shape), []
    for name in ("sdpa", "reference"):
        with backend.using(name):
            found.append(torch.autograd.grad((attend_segments(q, segments) * weight).sum(), leaves))
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12)
    gone = ~segments[1].valid.repeat_interleave(2, 1)[:, None, :, None]
    assert (found[1][3].masked_select(gone) == 0).all() and (found[1][4].masked_select(gone) == 0).all()


@pytest.mark.parametrize("name", BACKENDS)
def test_a_row_that_sees_nothing_is_zero_and_its_gradient_too(draw, name):
    q = draw(2, 1, 3, 16)
    keys, values = draw(2, 1, 4, 16), draw(2, 1, 4, 16)
    segment = Segment(keys, values, torch.tensor([[False, False], [True, False]]))
    with backend.using(name), torch.no_grad():
        found = attend_segments(q, (segment,))
    assert (found[0] == 0).all() and found[1].abs().amax() > 0
    if name != "flex":  # it has no gradient on CPU
        q.requires_grad_()
        with backend.using(name):
            (gradient,) = torch.autograd.grad(attend_segments(q, (segment,)).sum(), q)
        assert torch.isfinite(gradient).all() and (gradient[0] == 0).all()


@pytest.mark.parametrize("pairing", ["half", "interleaved"])
@pytest.mark.parametrize("frame", [0, 100_000])
def test_turning_the_queries_equals_absolute_positions(frame, pairing):
    """Keys written at frames 0 to 3 and read as if they were at frame - 4 to frame - 1; against rotating them there."""
    rope, rng = Rope3D(64, (2, 3), pairing=pairing), torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 2, n * 6, 64, generator=rng) for n in (2, 4, 4))
    now, written = torch.arange(2)[None] + frame, torch.arange(4)[None]
    away = torch.tensor([[4 - frame]])  # moves the queries so that they stand to the written keys as to the moved ones
    cos, sin = (t[0, :, 0] for t in rope.shift_table(away))
    turned = Segment(rope.rotate(k, written), v, turn=(cos, sin))
    moved = Segment(rope.rotate(k, written + frame - 4), v)
    found, wanted = (attend_segments(rope.rotate(q, now), (s,), pairing) for s in (turned, moved))
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-5)


def test_chunks_see_themselves_and_those_before(draw):
    q, k, v, past = draw(2, 2, 7, 16), draw(2, 2, 7, 16), draw(2, 2, 7, 16), (draw(1, 2, 3, 16), draw(1, 2, 3, 16))
    place = torch.arange(7) // 3
    mask = torch.cat((torch.ones(7, 3, dtype=torch.bool), place <= place[:, None]), 1)
    wanted = attend(q, k, v, (Segment(*past),), mask)
    for name in ("sdpa", "reference"):
        with backend.using(name):
            found = attend_segments(q, (Segment(*past), Segment(k, v, chunk=3)))
        torch.testing.assert_close(found, wanted, rtol=0, atol=1e-12)


def test_rows_share_what_has_fewer_rows(draw):
    q, keys, values = draw(4, 2, 3, 16), draw(2, 2, 5, 16), draw(2, 2, 5, 16)
    found = attend_segments(q, (Segment(keys, values),))
    wanted = attend_segments(q, (Segment(keys.repeat(2, 1, 1, 1), values.repeat(2, 1, 1, 1)),))
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-12)


def test_segments_equal_what_the_models_attention_makes_of_them(draw):
    q, k, v, past = draw(2, 2, 6, 16), draw(2, 2, 6, 16), draw(2, 2, 6, 16), (draw(1, 2, 4, 16), draw(1, 2, 4, 16))
    found = attend_segments(q, (Segment(*past), Segment(k, v)))
    torch.testing.assert_close(found, attend(q, k, v, (Segment(*past),), None), rtol=0, atol=1e-12)
    spans = (Span((0, 3), ((0, 7),)), Span((3, 6), ((2, 4), (4, 10))))
    parts = [attend_segments(q[:, :, :3], (Segment(*past), Segment(k[:, :, :3], v[:, :, :3])))]
    parts.append(attend_segments(q[:, :, 3:], (Segment(*(x[:, :, 2:] for x in past)), Segment(k, v))))
    torch.testing.assert_close(torch.cat(parts, 2), attend(q, k, v, (Segment(*past),), spans), rtol=0, atol=1e-12)


def test_visible_means_its_mask(draw):
    q, k, v, past = draw(4, 2, 6, 16), draw(4, 2, 6, 16), draw(4, 2, 6, 16), (draw(2, 2, 4, 16), draw(2, 2, 4, 16))
    valid, place = torch.tensor([[True, False], [True, True]]), torch.arange(6) // 2
    there = valid.repeat_interleave(2, 1).repeat(2, 1)[:, None, None].expand(-1, 1, 6, -1)
    mask = torch.cat((there, (place <= place[:, None]).expand(4, 1, -1, -1)), 3)
    pieces = (Segment(*(x[:, :, :2] for x in past), valid[:, :1]), Segment(*(x[:, :, 2:] for x in past), valid[:, 1:]))
    wanted = attend(q, k, v, (Segment(*past),), mask)
    torch.testing.assert_close(wanted, attend(q, k, v, pieces, mask), rtol=0, atol=1e-12)
    for before in ((Segment(*past, valid),), pieces):
        torch.testing.assert_close(attend(q, k, v, before, Visible(2)), wanted, rtol=0, atol=1e-12)
    alone = attend(q, k, v, (), Visible(0))
    torch.testing.assert_close(alone, attend(q, k, v, (), None), rtol=0, atol=0)


def test_autocast_applies_as_to_torchs_own_attention(draw):
    q, past, k, v = (draw(1, 2, 3, 16).float() for _ in range(4))
    with torch.autocast("cpu", torch.bfloat16):
        found = attend_segments(q, (Segment(past, past.bfloat16()), Segment(k, v.bfloat16())))
        wanted = torch.nn.functional.scaled_dot_product_attention(q, torch.cat((past, k), 2), torch.cat((past, v), 2))
    assert found.dtype == torch.bfloat16 and torch.equal(found, wanted)


@pytest.mark.slow
def test_compiled_in_one_graph(draw):
    q, segments, wanted = stream(draw)
    compiled = torch.compile(lambda q: attend_segments(q, segments) * 2, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(q), wanted * 2, rtol=0, atol=1e-12)


def test_explain_names_every_reason_on_this_machine():
    x = torch.zeros(1, 1, 2, 20, dtype=torch.float64).transpose(2, 3).contiguous().transpose(2, 3).requires_grad_()
    said = ATTENTION.explain(Attention(x, (Segment(x, x.float()),), "half", 1.0))
    assert said["triton"] == (
        "Triton runs CPU tensors only interpreted (TRITON_INTERPRET=1)",
        "types differ: torch.float32, torch.float64",
        "type torch.float64 is none of torch.float16, torch.bfloat16, torch.float32",
        "head size 20 is none of 16, 32, 64, 128",
        "the last axis of queries, keys or values is not contiguous",
    )
    assert said["flex"][1] == "FlexAttention has no gradient on CPU" and "device cpu" in said["xformers"][1]
    assert said["sdpa"] == said["triton"][1:2] and said["reference"] == ()
    with (
        backend.using("triton"),
        pytest.raises(BackendError, match=r"attention: the backend triton cannot: .*head size"),
    ):
        attend_segments(x, (Segment(x, x),))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"keys": torch.zeros(3, 1, 4, 8)}, "segment 0 has keys"),
        ({"values": torch.zeros(2, 1, 5, 8)}, "segment 0 has keys"),
        ({"valid": torch.ones(2, 3, dtype=torch.bool)}, r"a mask \[2, 3\]"),
        ({"valid": torch.ones(2, 4)}, r"a mask \[2, 4\] of torch.float32, not \[P, M\] of bools"),
        ({"keys": torch.zeros(2, 1, 4, 8, dtype=torch.int8)}, "keys .* of torch.int8"),
        ({"keys": torch.zeros(2, 4, 8)}, r"keys \[2, 4, 8\]"),
        ({"keys": torch.zeros(2, 1, 4, 8, device="meta")}, "queries on cpu, segment 0 on cpu, meta"),
        ({"chunk": -1}, "chunks of -1 tokens"),
        ({"turn": (torch.ones(2, 8), torch.ones(2, 8))}, r"a turn .* not \[2, 4\]"),
    ],
)
def test_shapes_that_do_not_go_together_are_told(change, message):
    fields = {"keys": torch.zeros(2, 1, 4, 8), "values": torch.zeros(2, 1, 4, 8)} | change
    fields = {"values": fields["keys"], **fields} if "keys" in change else fields
    with pytest.raises(ValueError, match=message):
        attend_segments(torch.zeros(2, 2, 3, 8), (Segment(**fields),))


@pytest.mark.parametrize(
    "q",
    [torch.zeros(2, 3, 8), torch.zeros(2, 2, 3, 8, dtype=torch.int64), torch.zeros(2, 2, 3, 0)],
    ids=lambda q: q.ndim,
)
def test_queries_that_are_none_are_told(q):
    with pytest.raises(ValueError, match="are no floating-point"):
        attend_segments(q, (Segment(torch.zeros(2, 1, 4, 8), torch.zeros(2, 1, 4, 8)),))


def test_xformers_is_given_its_layout_and_a_bias_of_whole_rows(draw, monkeypatch):
    """Its operator has no CPU version: a stand-in with the documented meaning takes its place."""
    q, segments, wanted = stream(draw)

    def stand_in(query, key, value, attn_bias, scale):
        assert attn_bias.stride(0) % 8 == 0 and attn_bias.shape == (2, 4, 6, 19)
        logits = torch.einsum("bqhd,bkhd->bhqk", query, key) * scale + attn_bias
        return torch.einsum("bhqk,bkhd->bqhd", logits.softmax(3), value)

    monkeypatch.setitem(sys.modules, "xformers.ops", SimpleNamespace(memory_efficient_attention=stand_in))
    monkeypatch.setitem(sys.modules, "xformers", SimpleNamespace(ops=sys.modules["xformers.ops"]))
    torch.testing.assert_close(peers.xformers(q, segments, "half", 0.25), wanted, rtol=0, atol=1e-12)
