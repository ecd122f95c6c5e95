"""PSNR, SSIM and temporal measures against closed forms, a direct reference, and planted faults."""

import math

import numpy as np
import pytest
import torch

from worldmodel.evaluate.metrics import psnr, ssim, to_unit
from worldmodel.evaluate.temporal import (
    border_differences,
    border_jump,
    colour_shift,
    contrast_ratio,
    flicker_energy,
)


def noise_picture(seed=0, shape=(2, 3, 24, 20)):
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_psnr_of_a_known_error():
    x = torch.full((3, 8, 8), 0.5)
    assert float(psnr(x, x + 2 / 255)) == pytest.approx(20 * math.log10(255 / 2), abs=1e-4)
    assert float(psnr(x, x)) == 100
    assert psnr(noise_picture(), noise_picture(1)).shape == (2,)


def test_to_unit():
    frames = np.array([0, 128, 255], np.uint8).reshape(1, 1, 3)
    assert to_unit(torch.from_numpy(frames)).flatten().tolist() == [0, 128 / 255, 1]


def direct_ssim(x, y):
    """Wang et al. by loops: one channel [H, W], every 11 x 11 window."""
    place = np.arange(11) - 5
    bell = np.exp(-(place[:, None] ** 2 + place[None] ** 2) / (2 * 1.5**2))
    bell /= bell.sum()
    values = []
    for i in range(x.shape[0] - 10):
        for j in range(x.shape[1] - 10):
            p, q = x[i : i + 11, j : j + 11], y[i : i + 11, j : j + 11]
            mp, mq = (bell * p).sum(), (bell * q).sum()
            vp, vq, c = (bell * (p - mp) ** 2).sum(), (bell * (q - mq) ** 2).sum(), (bell * (p - mp) * (q - mq)).sum()
            top = (2 * mp * mq + 1e-4) * (2 * c + 9e-4)
            values.append(top / ((mp**2 + mq**2 + 1e-4) * (vp + vq + 9e-4)))
    return float(np.mean(values))


def test_ssim_equals_the_definition():
    x = noise_picture(0, (3, 15, 13))
    y = (0.7 * x + 0.3 * noise_picture(1, (3, 15, 13))).clamp(0, 1)
    expected = np.mean([direct_ssim(a, b) for a, b in zip(x.numpy(), y.numpy(), strict=True)])
    assert float(ssim(x, y)) == pytest.approx(expected, abs=1e-12)


def test_ssim_equals_scikit_image():
    """structural_similarity(..., gaussian_weights=True, use_sample_covariance=False) of scikit-image 0.26."""
    rng = np.random.default_rng(0)
    a = rng.integers(0, 256, (40, 52, 3), dtype=np.uint8)
    b = np.clip(a + rng.normal(0, 30, a.shape), 0, 255).astype(np.uint8)
    x, y = (to_unit(torch.from_numpy(v)) for v in (a, b))
    assert float(ssim(x, y)) == pytest.approx(0.9278079898724139, abs=1e-9)
    assert float(psnr(x, y)) == pytest.approx(19.160450834632762, abs=1e-9)


def test_ssim_falls_with_distortion_and_is_one_for_equal():
    x = noise_picture()
    values = [ssim(x, (x + s * (noise_picture(3) - 0.5)).clamp(0, 1)).mean().item() for s in (0, 0.1, 0.3, 0.9)]
    assert values[0] == pytest.approx(1, abs=1e-12)
    assert values == sorted(values, reverse=True)
    with pytest.raises(ValueError, match="11 x 11"):
        ssim(x[..., :10], x[..., :10])


def steady(speed=0.01, frames=16):
    """Brightness that grows by `speed` per frame [2, frames, 3, 4, 4]."""
    return (0.1 + speed * torch.arange(frames, dtype=torch.float64)).reshape(1, -1, 1, 1, 1).expand(2, -1, 3, 4, 4)


def test_border_jump_finds_a_planted_jump_at_its_place():
    real = steady()
    jump = torch.tensor([0.03 * (i // 4) for i in range(16)], dtype=torch.float64).reshape(1, -1, 1, 1, 1)
    border, inside = border_differences(real + jump, chunk=4)
    assert border.tolist() == pytest.approx([0.04] * 2)
    assert inside.tolist() == pytest.approx([0.01] * 2)
    assert border_jump(real + jump, real, chunk=4) == pytest.approx(4)
    assert border_jump(real, real, chunk=4) == pytest.approx(1)
    assert border_jump(real + jump.roll(1, 1), real, chunk=4, offset=1) > 3
    with pytest.raises(ValueError, match="no border"):
        border_differences(real[:, :3], chunk=4)


def test_flicker_of_an_alternation_and_of_a_wave():
    time = torch.arange(400, dtype=torch.float64)
    assert flicker_energy(steady()).tolist() == pytest.approx([0, 0], abs=1e-30)
    alternating = (0.2 * (-1) ** time).reshape(1, -1, 1, 1, 1).expand(1, -1, 3, 2, 2)
    assert float(flicker_energy(alternating)) == pytest.approx(0.04, rel=1e-12)
    f = 0.05  # gain sin^2(pi f), mean square of a wave 1 / 2
    wave = torch.sin(2 * math.pi * f * time).reshape(1, -1, 1, 1, 1)
    assert float(flicker_energy(wave)) == pytest.approx(math.sin(math.pi * f) ** 4 / 2, rel=0.02)
    with pytest.raises(ValueError, match="at least 3"):
        flicker_energy(steady()[:, :2])


def test_colour_and_contrast():
    real = noise_picture(4, (2, 5, 3, 8, 8))
    red = real.clone()
    red[:, :, 0] += 10 / 255
    assert colour_shift(red, real).tolist() == pytest.approx([10, 10])
    assert contrast_ratio(0.5 * real + 0.25, real).tolist() == pytest.approx([0.5, 0.5])
    assert contrast_ratio(real, real).tolist() == pytest.approx([1, 1])
