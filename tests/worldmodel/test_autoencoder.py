"""The small autoencoder: its shape, its statistics, its locality, and its loss in closed form."""

import math

import pytest
import torch

from worldmodel.errors import UserError
from worldmodel.models.autoencoder import AutoencoderConfig
from worldmodel.objectives.autoencoder import (
    ReconstructionWeights,
    edge_loss,
    moment_loss,
    psnr,
    reconstruction_loss,
)

SMALL = AutoencoderConfig(channels=4, widths=(8, 8), blocks=(1, 1))


def build(config: AutoencoderConfig = SMALL, seed: int = 0):
    torch.manual_seed(seed)
    return config.build()


def frames(num: int, size: int = 16, seed: int = 0) -> torch.Tensor:
    return 2 * torch.rand(1, num, 3, size, size, generator=torch.Generator().manual_seed(seed)) - 1


def test_default_size():
    model = build(AutoencoderConfig())
    assert (model.channels, model.spatial, model.temporal) == (8, 8, 1)
    encoder = sum(parameter.numel() for parameter in model.encoder.parameters())
    decoder = sum(parameter.numel() for parameter in model.decoder.parameters())
    assert (encoder, decoder) == (787752, 787756)
    z = model.encode(torch.zeros(2, 1, 3, 64, 128))
    assert z.shape == (2, 1, 8, 8, 16)
    assert z.is_contiguous() and model.decode(z).is_contiguous()


@pytest.mark.parametrize("levels", [1, 2, 4])
def test_factor_follows_the_widths(levels):
    model = build(AutoencoderConfig(channels=2, widths=(4,) * levels, blocks=(0,) * levels))
    assert model.spatial == 2**levels
    z = model.encode(frames(1, 32))
    assert z.shape == (1, 1, 2, 32 >> levels, 32 >> levels)
    assert model.decode(z).shape == (1, 1, 3, 32, 32)


def test_bad_configurations():
    with pytest.raises(UserError, match="same length"):
        AutoencoderConfig(widths=(8, 8), blocks=(1,))
    with pytest.raises(UserError, match="positive"):
        AutoencoderConfig(channels=0)


def test_statistics_normalise_exactly():
    model = build().requires_grad_(False)
    clip = frames(6)
    raw = model.encode(clip)[0]
    mean, std = raw.mean(dim=(0, 2, 3)), raw.std(dim=(0, 2, 3))
    before = model.decode(raw[None])
    model.set_latent_statistics(mean, std)
    latents = model.encode(clip)
    torch.testing.assert_close(latents[0], (raw - mean[:, None, None]) / std[:, None, None])
    torch.testing.assert_close(latents.mean(dim=(0, 1, 3, 4)), torch.zeros(4), rtol=0, atol=1e-5)
    torch.testing.assert_close(latents.std(dim=(0, 1, 3, 4)), torch.ones(4), rtol=0, atol=1e-3)
    torch.testing.assert_close(model.decode(latents), before, rtol=0, atol=1e-6)


@pytest.mark.parametrize("std", [[1.0, 0.0, 1.0, 1.0], [1.0, math.nan, 1.0, 1.0]])
def test_dead_channels_are_an_error(std):
    with pytest.raises(ValueError, match="finite, std positive"):
        build().set_latent_statistics(torch.zeros(4), torch.tensor(std))


def test_frames_and_far_corners_are_independent():
    model = build().requires_grad_(False)
    z = torch.randn(1, 2, 4, 12, 12, generator=torch.Generator().manual_seed(0))
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    changed = z.clone()
    changed[0, 1, :, 0, 0] += 1
    a, b = model.decode(z), model.decode(changed)
    assert torch.equal(a[0, 0], b[0, 0])
    moved = (a[0, 1] != b[0, 1]).any(dim=0)
    assert moved[:4, :4].any()
    assert not moved[32:, :].any() and not moved[:, 32:].any()  # nothing normalises over the picture


def test_edge_loss_closed_form():
    # a ramp of slope s along x: every horizontal difference is s, at half the resolution it is 2 s
    ramp = 0.1 * torch.arange(8.0).expand(2, 3, 8, 8)
    flat = torch.zeros(2, 3, 8, 8)
    torch.testing.assert_close(edge_loss(ramp, flat, 1), torch.tensor(0.1))
    torch.testing.assert_close(edge_loss(ramp, flat, 2), torch.tensor((0.1 + 0.2) / 2))
    torch.testing.assert_close(edge_loss(ramp.mT, flat, 3), torch.tensor((0.1 + 0.2 + 0.4) / 3))
    assert edge_loss(ramp + 0.5, ramp, 3) < 1e-6  # a constant offset has no edges


def test_moment_loss_is_the_divergence_of_normals():
    raw = torch.randn(5, 3, 4, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    raw = raw * torch.tensor([0.5, 1.0, 3.0])[:, None, None] + torch.tensor([0.0, -1.0, 2.0])[:, None, None]
    normal = torch.distributions.Normal(raw.mean(dim=(0, 2, 3)), raw.std(dim=(0, 2, 3), correction=0))
    expected = torch.distributions.kl_divergence(normal, torch.distributions.Normal(0.0, 1.0)).mean()
    torch.testing.assert_close(moment_loss(raw), expected, rtol=1e-6, atol=0)


def test_psnr_closed_form():
    picture = torch.zeros(1, 3, 4, 4)
    assert psnr(picture + 0.02, picture).item() == pytest.approx(40.0, abs=1e-4)
    assert psnr(picture + 5, picture + 1).item() == pytest.approx(100 + 10 * math.log10(4), abs=1e-4)  # clipped first


def test_loss_is_the_weighted_sum_of_its_metrics():
    model = build()
    weights = ReconstructionWeights(l1=0.5, l2=2.0, edge=3.0, moment=0.1, noise=0.0)
    loss, metrics = reconstruction_loss(model, frames(5), torch.Generator().manual_seed(0), weights)
    expected = 0.5 * metrics["l1"] + 2 * metrics["l2"] + 3 * metrics["edge"] + 0.1 * metrics["moment"]
    torch.testing.assert_close(loss.detach(), expected)
    clip = frames(5)
    plain = model.decode_raw(model.encode_raw(clip[0]))
    torch.testing.assert_close(metrics["l1"], (plain - clip[0]).abs().mean().detach())
    torch.testing.assert_close(metrics["l2"], (plain - clip[0]).square().mean().detach())


def test_noise_is_relative_to_each_channels_spread():
    model = build()
    clip = frames(5)[0]
    noise = torch.randn(5, 4, 4, 4, generator=torch.Generator().manual_seed(1))
    level = torch.tensor([0.0, 0.1, 0.2, 0.3, 0.4])
    reconstruction, raw = model(clip, noise, level)
    spread = raw.std(dim=(0, 2, 3), correction=0)
    expected = model.decode_raw(raw + level[:, None, None, None] * spread[:, None, None] * noise)
    torch.testing.assert_close(reconstruction, expected)
    torch.testing.assert_close(reconstruction[0], model.decode_raw(raw)[0])


def test_loss_follows_its_generator_alone():
    model = build()
    torch.manual_seed(1)
    first, _ = reconstruction_loss(model, frames(3), torch.Generator().manual_seed(7))
    torch.manual_seed(2)
    again, _ = reconstruction_loss(model, frames(3), torch.Generator().manual_seed(7))
    other, _ = reconstruction_loss(model, frames(3), torch.Generator().manual_seed(8))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_every_parameter_learns():
    model = build()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    loss, _ = reconstruction_loss(model, frames(3), torch.Generator().manual_seed(0))
    loss.backward()
    assert all(parameter.grad is not None and parameter.grad.abs().sum() > 0 for parameter in model.parameters())


def test_it_learns_flat_colours():
    model = build()
    rng = torch.Generator().manual_seed(0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(120):
        colours = 2 * torch.rand(1, 16, 3, 1, 1, generator=rng) - 1
        loss, _ = reconstruction_loss(model, colours.expand(1, 16, 3, 8, 8), rng)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    colours = (2 * torch.rand(1, 64, 3, 1, 1, generator=rng) - 1).expand(1, 64, 3, 8, 8)
    with torch.no_grad():
        assert psnr(model.decode(model.encode(colours)), colours) > 18  # repeating the mean colour gives 10.8 dB
