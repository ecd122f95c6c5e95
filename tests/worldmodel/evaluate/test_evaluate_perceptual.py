"""A perceptual distance in closed form, and distances in the right direction on distorted pictures."""

import pytest
import torch
from torch import nn

from worldmodel.encoders.frames import Lite0Encoder, features_of
from worldmodel.evaluate.frechet import frechet_distance
from worldmodel.evaluate.perceptual import perceptual_distance


@pytest.fixture(scope="module")
def lite0():
    return Lite0Encoder(size=64)


def blobs(n=6, side=48, seed=0):
    """Smooth coloured pictures, float in [-1, 1]."""
    coarse = torch.rand(n, 3, 6, 6, generator=torch.Generator().manual_seed(seed)) * 2 - 1
    return nn.functional.interpolate(coarse, (side, side), mode="bicubic").clamp(-1, 1)


class TwoMaps:
    """Maps whose channel vectors have known angles."""

    name = "two"

    def maps(self, pixels):
        same = torch.ones_like(pixels)
        right = torch.stack((pixels[:, 0], 1 - pixels[:, 0]), 1)
        return [same, right]


def test_perceptual_distance_is_two_minus_two_cosines():
    a, b = torch.zeros(2, 3, 4, 4), torch.zeros(2, 3, 4, 4)
    b[1, 0] = 1  # second picture: the second map's vectors are at a right angle, the first map's agree
    assert perceptual_distance(TwoMaps(), a, b, batch=1).tolist() == pytest.approx([0, (0 + 2) / 2])
    b[1, 0, :2] = 0
    assert perceptual_distance(TwoMaps(), a, b).tolist() == pytest.approx([0, 0.5])


def test_perceptual_distance_grows_with_blur_and_noise(lite0):
    x, rng = blobs(4), torch.Generator().manual_seed(0)
    texture = (x + 0.3 * torch.randn(x.shape, generator=rng)).clamp(-1, 1)
    blurred = [nn.functional.avg_pool2d(texture, k, 1, k // 2, count_include_pad=False) for k in (1, 3, 7)]
    by_blur = [perceptual_distance(lite0, texture, y).mean().item() for y in blurred]
    assert by_blur[0] == pytest.approx(0, abs=1e-6)
    assert by_blur[0] < by_blur[1] < by_blur[2] < 4


def test_frechet_distance_in_lite0_grows_with_distortion(lite0):
    a, b, rng = blobs(40, seed=1), blobs(40, seed=2), torch.Generator().manual_seed(0)
    reference = features_of(lite0, a)
    assert reference.dtype == torch.float64
    noisy = [b + level * torch.randn(b.shape, generator=rng) for level in (0, 0.1, 0.4)]
    distances = [frechet_distance(features_of(lite0, y.clamp(-1, 1)), reference) for y in noisy]
    assert distances == sorted(distances)
    assert distances[2] > 2 * distances[0]
