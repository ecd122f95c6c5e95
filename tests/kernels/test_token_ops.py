"""Modulation, QK-norm with RoPE and the sampler's step on a CPU: values, reasons, one graph."""

import pytest
import torch

from worldmodel.kernels import sampler_step
from worldmodel.kernels.backend import BackendError, fallbacks, using
from worldmodel.kernels.modulate import GATED_RESIDUAL, MODULATE, Modulation, Residual, gated_residual, modulate
from worldmodel.kernels.noise import normal
from worldmodel.kernels.qk_norm_rope import QK_NORM_ROPE, Tokens, qk_norm_rope, write_ring
from worldmodel.kernels.rope import rope_table
from worldmodel.models.rope import Rope3D


@pytest.fixture
def rng():
    return torch.Generator().manual_seed(0)


def test_modulation_by_its_definition(rng):
    x, shift, scale = (torch.randn(s, generator=rng, dtype=torch.float64) for s in ((2, 3, 4, 5), (2, 3, 5), (2, 3, 5)))
    mean, var = x.mean(-1, keepdim=True), x.var(-1, keepdim=True, correction=0)
    for norm, centred in (
        ("layer", (x - mean) / (var + 0.1).sqrt()),
        ("rms", x / (x.pow(2).mean(-1, True) + 0.1).sqrt()),
    ):
        wanted = centred * (1 + scale[:, :, None]) + shift[:, :, None]
        torch.testing.assert_close(modulate(x, shift, scale, 0.1, norm), wanted, rtol=0, atol=1e-12)
    wanted = x + x.flip(2) * shift[:, :, None]
    torch.testing.assert_close(gated_residual(x, x.flip(2), shift), wanted, rtol=0, atol=1e-12)


def test_half_precision_is_rounded_once(rng):
    """bf16 tokens with fp32 modulations: computed in fp32 throughout."""
    x = torch.randn(1, 1, 3, 8, generator=rng).bfloat16()
    shift, scale = torch.randn(2, 1, 1, 8, generator=rng).unbind(0)
    wanted = modulate(x.float(), shift, scale, 1e-6).bfloat16()
    assert torch.equal(modulate(x, shift, scale, 1e-6), wanted)
    assert torch.equal(gated_residual(x, x, shift), (x.float() + x.float() * shift[:, :, None]).bfloat16())


def test_table_equals_that_of_the_engine():
    """Bit for bit, at frame 0 and far into a stream."""
    frames = torch.tensor([[0, 1, 100_000, 2**40]])
    mine, engine = rope_table(frames, (3, 5), 32), Rope3D(32, (3, 5)).table(frames)
    assert all(torch.equal(a, b[:, 0]) for a, b in zip(mine, engine, strict=True))


def test_positions_are_relative_at_frame_100_000(rng):
    """Products of rotated queries and keys depend on the distance of their frames only, to 1e-5."""
    q, k = torch.randn(2, 1, 6, 2, 48, generator=rng).unbind(0)
    weight = torch.ones(48)
    for pairing in ("half", "interleaved"):
        products = []
        for start in (0, 100_000):
            table = rope_table(start + torch.arange(3)[None], (1, 2), 48)
            a, b = qk_norm_rope(q, k, weight, weight, table, 1e-6, pairing)
            products.append(torch.einsum("bihd,bjhd->bhij", a, b) / 48**0.5)
        torch.testing.assert_close(products[0], products[1], rtol=0, atol=1e-5)


def test_norms_per_head_and_across_heads(rng):
    x = torch.randn(1, 2, 3, 4, generator=rng, dtype=torch.float64)
    head, across = torch.rand(4, generator=rng).double(), torch.rand(12, generator=rng).double()
    found, _ = qk_norm_rope(x, x, head, head, None, 0.1, "half")
    torch.testing.assert_close(found, x / (x.pow(2).mean(-1, True) + 0.1).sqrt() * head, rtol=0, atol=1e-12)
    found, _ = qk_norm_rope(x, x, across, across, None, 0.1, "half")
    flat = x.flatten(2)
    wanted = (flat / (flat.pow(2).mean(-1, True) + 0.1).sqrt() * across).view_as(x)
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-12)


def test_ring_holds_rotated_keys_and_values(rng):
    k, v = torch.randn(2, 1, 6, 2, 8, generator=rng).unbind(0)
    table, weight = rope_table(torch.tensor([[9, 10, 11]]), (1, 2), 8), torch.rand(8, generator=rng)
    slot, keep = torch.tensor([[2, 3, 0]]), torch.tensor([[True, False, True]])
    for own in (weight, None):
        keys, values = torch.full((2, 2, 1, 2, 4, 2, 8), 7.0).unbind(0)
        both = None if own is None else torch.stack((own, 2 * own))  # of two layers, the second of other keys
        write_ring(torch.stack((k, v)), torch.stack((v, k)), both, table, 1e-6, "half", keys, values, slot, keep)
        first, second = qk_norm_rope(k, v, own, None if own is None else 2 * own, table, 1e-6, "half")
        for storage, new in ((keys[0], first), (values[0], v), (keys[1], second), (values[1], k)):
            frames = new.unflatten(1, (3, 2)).transpose(2, 3)  # [B, F, h, n, D]
            assert torch.equal(storage[:, :, 2], frames[:, 0]) and torch.equal(storage[:, :, 0], frames[:, 2])
            assert (storage[:, :, [1, 3]] == 7).all()


def test_steps_by_their_definition(rng):
    x, v = torch.randn(2, 2, 3, 4, 5, generator=rng).unbind(0)
    t, s = torch.rand(2, 2, 3, generator=rng).unbind(0)
    seed, frame = torch.tensor([1, 2]), torch.arange(6).view(2, 3) + 100_000
    at, to = t[..., None, None], s[..., None, None]
    torch.testing.assert_close(sampler_step.euler(x, v, t, s), x + (to - at) * v, rtol=0, atol=1e-6)
    wanted = (1 - to) * (x - at * v) + to * normal(seed, frame, 4, (4, 5))
    torch.testing.assert_close(sampler_step.renoise(x, v, t, s, seed, frame, 4), wanted, rtol=0, atol=2e-6)
    assert torch.equal(sampler_step.normal(seed, frame, 4, (4, 5)), normal(seed, frame, 4, (4, 5)))


def test_cpu_path_is_one_graph(rng):
    """torch.compile(fullgraph=True) of everything that a block and a step do, without one logged fallback."""
    x = torch.randn(1, 2, 3, 16, generator=rng)
    shift, scale, gate = torch.randn(3, 1, 2, 16, generator=rng).unbind(0)
    table, weight, t = rope_table(torch.tensor([[5, 6]]), (1, 3), 8), torch.ones(8), torch.rand(1, 2, generator=rng)
    seed, frame = torch.tensor([1]), torch.tensor([[5, 6]])

    def block(x: torch.Tensor) -> torch.Tensor:
        y = modulate(x, shift, scale, 1e-6).unflatten(3, (2, 8)).flatten(1, 2)
        q, k = qk_norm_rope(y, y, weight, weight, table, 1e-6, "half")
        x = gated_residual(x, (q * k).flatten(2).view_as(x), gate)
        return sampler_step.renoise(x, sampler_step.euler(x, x, t, t / 2), t, t / 2, seed, frame, 1)

    before = fallbacks()
    found = torch.compile(block, fullgraph=True, backend="aot_eager")(x)
    torch.testing.assert_close(found, block(x), rtol=0, atol=1e-6)
    assert fallbacks() == before


def test_reasons_are_told(rng):
    x = torch.randn(1, 1, 2, 8, generator=rng)
    shift = torch.zeros(1, 1, 8)
    turned = x.transpose(2, 3).contiguous().transpose(2, 3)
    said = MODULATE.explain(Modulation(turned, shift.half().to(torch.int8), shift, 1e-6, "layer"))
    assert said["reference"] == () and said["xformers"] == ("modulate has no such backend",)
    assert any("stride" in reason for reason in said["triton"]) and any("int8" in reason for reason in said["triton"])
    wide = torch.zeros(1, 2, 128, 128)
    reasons = QK_NORM_ROPE.explain(Tokens(wide, wide, torch.ones(128), torch.ones(128), None, 1e-6, "half"))["triton"]
    assert any("128 heads of 128" in reason for reason in reasons)
    with using("triton"), pytest.raises(BackendError, match=r"gated_residual: the backend triton cannot: .*CPU"):
        gated_residual(x, x, shift)
    assert GATED_RESIDUAL.choose(Residual(x, x, shift)).name == "reference"
