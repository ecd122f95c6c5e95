"""A quantised memory and a pasted region: rows without keys, both halves of an attention, bits that must stay."""

import pytest
import torch

from worldmodel.kernels.attention import Segment
from worldmodel.kernels.attention.operator import segmented_attention
from worldmodel.kernels.attention.reference import attend_segments
from worldmodel.kernels.qk_norm_rope import WRITE_RING, Ring
from worldmodel.kernels.quantised import ATTEND, QUANTISE, Look, Pages, merge
from worldmodel.kernels.region_warp import REGION_WARP, Paste
from worldmodel.kernels.rope import rope_table


def test_quantised_and_dense_halves_make_one_attention(rng):
    """Pages as INT8 beside a dense chunk, merged by log-sum-exps, against one softmax over both in fp64."""
    q, k, v = torch.randn(3, 2, 2, 7, 16, generator=rng).unbind(0)
    old_k, old_v = torch.randn(2, 2, 2, 12, 16, generator=rng).unbind(0)
    keys, values = (QUANTISE(Pages(x, 4, "int8", s), "triton") for x, s in ((old_k + 4, True), (old_v, False)))
    valid = torch.tensor([[True, False, True], [False, False, False]])
    far = ATTEND(Look(q, keys, values, valid, 0.25), "triton")
    assert not far[0][1].any() and (far[1][1] == -torch.inf).all()
    none = [None]
    near = segmented_attention(q, [k], [v], none, none, none, [0], 0.25, False)
    found, lse = merge([far, near])
    wide = torch.float64
    segments = (
        Segment(keys.dense(wide), values.dense(wide), valid),
        Segment(k.double(), v.double()),
    )
    wanted = attend_segments(q.double(), segments, "half", 0.25)
    torch.testing.assert_close(found.double(), wanted, rtol=0, atol=2e-6)
    assert torch.isfinite(lse).all()


@pytest.mark.parametrize("head", [16, 32, 64, 128])
def test_large_logits_come_out_the_same_in_both_directions(rng, head):
    """Logits of some thousands: every query takes one value whole, whose gradient is then a sum of whole gradients.

    One last place of such a logit, made otherwise in the backward than in the forward, is an error of 1e-4.
    """
    q, k, v, grad = (torch.randn(1, 1, n, head, generator=rng) * 16 for n in (48, 96, 96, 48))
    v.requires_grad_()
    none = [None]
    found, _ = segmented_attention(q, [k], [v], none, none, none, [0], head**-0.5, False)
    logit = q.double() @ k.double().mT * head**-0.5
    top, taken = logit.topk(2, 3)
    sure = (top[..., 0] - top[..., 1] > 40)[..., None]
    assert sure.sum() > 24
    grad = grad * sure
    (dv,) = torch.autograd.grad(found, v, grad)
    wanted = torch.zeros_like(v, dtype=torch.float64)
    wanted.index_add_(2, taken[0, 0, :, 0], grad.double())
    torch.testing.assert_close(dv.double(), wanted, rtol=2e-6, atol=1e-5)


def test_nothing_remembered(rng):
    q = torch.randn(1, 1, 3, 16, generator=rng)
    empty = QUANTISE(Pages(q[:, :, :0], 4, "int8", True), "triton")
    found, lse = ATTEND(Look(q, empty, QUANTISE(Pages(q[:, :, :0], 4, "int8", False), "triton"), None, 1.0), "triton")
    assert not found.any() and (lse == -torch.inf).all()


def test_slots_that_are_not_written_keep_their_bits(rng):
    """Frame 1 of the first row is not kept, and slots that no frame goes to are not touched: NaN stays NaN."""
    k, v = torch.randn(2, 2, 6, 2, 8, generator=rng).unbind(0)
    storage = torch.full((2, 2, 2, 4, 3, 8), float("nan"))
    slot, keep = torch.tensor([[3, 1], [0, 2]]), torch.tensor([[True, False], [True, True]])
    table = rope_table(torch.tensor([[100_000, 100_001]]), (1, 3), 8)
    layers = k[None], v[None], torch.ones(1, 8), table, 1e-6, "half", storage[:1], storage[1:]
    WRITE_RING(Ring(*layers, slot, keep), "triton")
    written = torch.zeros(2, 4, dtype=torch.bool)
    written[0, 3] = written[1, 0] = written[1, 2] = True
    for part in storage:
        there = ~part.isnan().any(4).any(3).any(1)
        assert torch.equal(there, written) and torch.equal(~part.isnan().all(4).all(3).all(1), written)
    assert torch.equal(storage[1][1, :, 2], v[1].unflatten(0, (2, 3))[1].transpose(0, 1))


def test_not_a_number_beyond_the_mask_changes_nothing(rng):
    """NaN in the patch where nothing is seen of it and beside nothing that is, and in the map: no pixel changes."""
    frame = torch.randint(0, 256, (1, 8, 9, 3), generator=rng, dtype=torch.uint8)
    patch, mask = torch.full((1, 4, 4, 3), float("nan")), torch.zeros(1, 4, 4)
    patch[0, 1:3, 1:3], mask[0, 1, 1] = 200.0, 1.0
    moved = torch.tensor([[[1.0, 0.0, -2.0], [0.0, 1.0, -3.0]]])  # frame (3, 4) is patch (1, 1)
    before = frame.clone()
    corner = torch.zeros(1, 2, dtype=torch.int32)
    REGION_WARP(Paste(frame, patch, mask, moved, corner, (8, 9)), "triton")
    before[0, 4, 3] = 200
    assert torch.equal(frame, before)
    broken = torch.full((1, 2, 3), float("nan"))
    REGION_WARP(Paste(frame, patch, mask, broken, corner, (8, 9)), "triton")
    assert torch.equal(frame, before)
