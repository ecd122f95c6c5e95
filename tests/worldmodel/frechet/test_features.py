"""Feature maps in closed form, their gradients down to the latents, streams against whole clips."""

import pytest
import torch

from worldmodel.encoders.frames import AutoencoderFeatures, AutoencoderHidden, Lite0Encoder
from worldmodel.errors import UserError
from worldmodel.frechet.bank import Source
from worldmodel.frechet.distance import Frechet
from worldmodel.frechet.features import DecodedFeatures, LatentStatistics
from worldmodel.frechet.mark import check_mark, mark_of
from worldmodel.models.autoencoder import AutoencoderConfig


def latents(seed=0, b=2, t=3):
    return torch.randn(b, t, 4, 6, 8, generator=torch.Generator().manual_seed(seed))


@pytest.fixture(scope="module")
def tokenizer():
    torch.manual_seed(0)
    return AutoencoderConfig(channels=4, widths=(8, 6), blocks=(1, 0)).build()


def test_latent_statistics_in_closed_form():
    phi, z = LatentStatistics(channels=4, height=6, width=8), latents()
    found = phi(z)
    assert phi.source == Source("latent_statistics", (6, 8), 24)
    assert found.shape == (2, 3, 24)
    one, row = z[1, 2], found[1, 2]
    torch.testing.assert_close(row[:4], one.mean((1, 2)))
    torch.testing.assert_close(row[4:8], one.flatten(1).std(1, correction=0))
    torch.testing.assert_close(
        row[8:12], torch.stack([one[0, :3, :4], one[0, :3, 4:], one[0, 3:, :4], one[0, 3:, 4:]]).mean((1, 2))
    )
    with pytest.raises(ValueError, match=r"\[B, T, 4, 6, 8\]"):
        phi(z[..., :4])
    with pytest.raises(UserError, match="7 x 7 patches do not fit 6 x 8"):
        LatentStatistics(channels=4, height=6, width=8, patches=7)


def test_distance_of_latent_statistics_has_finite_gradients():
    """Their covariance is singular: the regional means add up to the mean. One frame is constant."""
    phi, z = LatentStatistics(channels=4, height=6, width=8), latents(1, 8, 10)
    z[0, 0] = 0.5
    reference = phi(latents(2, 8, 20)).flatten(0, 1)
    to = Frechet().to(reference)
    assert abs(to(reference).item()) < 1e-5
    z.requires_grad_()
    to(phi(z).flatten(0, 1)).backward()
    assert torch.isfinite(z.grad).all()
    assert z.grad.abs().amax((2, 3, 4)).min() > 0  # every frame is pulled


def test_decoded_features_are_those_of_the_decoded_frames(tokenizer):
    encoder, z = AutoencoderFeatures(tokenizer), latents()
    phi = DecodedFeatures(encoder, tokenizer, 6, 8)
    pixels = tokenizer.decode(z)
    torch.testing.assert_close(phi(z)[1, 2], encoder.features(pixels[1, 2:3])[0])
    torch.testing.assert_close(phi.of_pixels(pixels), phi(z))
    assert phi.source == Source("autoencoder", (24, 32), 20)
    first, state = phi.stream(z[:, :1], None)
    rest, _ = phi.stream(z[:, 1:], state)
    torch.testing.assert_close(torch.cat((first, rest), 1), phi(z))
    assert DecodedFeatures(Lite0Encoder(size=64), tokenizer, 6, 8).source == Source("lite0", (64, 64), 1280)


def test_a_stride_looks_at_other_frames_in_every_row(tokenizer):
    z = latents()  # [2, 3, ...]: with a stride of 2, frame 0 of row 0 and frame 1 of row 1
    every, some = (DecodedFeatures(AutoencoderFeatures(tokenizer), tokenizer, 6, 8, stride)(z) for stride in (1, 2))
    assert some.shape == (2, 1, 20)
    torch.testing.assert_close(some[0], every[0, :1])
    torch.testing.assert_close(some[1], every[1, 1:2])
    with pytest.raises(UserError, match="stride of 4 leaves nothing of 3 frames"):
        DecodedFeatures(AutoencoderFeatures(tokenizer), tokenizer, 6, 8, 4)(z)


@pytest.mark.parametrize("kind", [AutoencoderFeatures, AutoencoderHidden])
def test_gradient_reaches_the_latents_and_no_weight(tokenizer, kind):
    phi = DecodedFeatures(kind(tokenizer), tokenizer, 6, 8)
    z, way = 0.3 * latents(3), latents(4)
    leaf = z.clone().requires_grad_()
    features = phi(leaf)
    weight = torch.randn(features.shape, generator=torch.Generator().manual_seed(5))
    (slope,) = torch.autograd.grad((features * weight).sum(), leaf)
    with torch.no_grad():
        ahead, behind = ((phi(z + s * way) * weight).sum() for s in (1e-2, -1e-2))
    assert (slope * way).sum().item() == pytest.approx((ahead - behind).item() / 2e-2, rel=0.02)
    assert not any(p.requires_grad for p in tokenizer.parameters())


def test_descent_through_lite0_changes_latents_until_the_frames_look_alike(tokenizer):
    """Fewer samples than features: the Gram form, through the network, the decoder and down to the latents."""
    phi = DecodedFeatures(Lite0Encoder(size=32), tokenizer, 6, 8)
    with torch.no_grad():
        to = Frechet().to(phi(latents(6, 2, 8)).flatten(0, 1))
    z = (3 * latents(7, 2, 4)).requires_grad_()
    first = to(phi(z).flatten(0, 1))
    (slope,) = torch.autograd.grad(first, z)
    moved = z.detach() - 0.05 * first.item() / slope.square().sum() * slope
    assert to(phi(moved).flatten(0, 1)).item() < 0.98 * first.item()


class Rounded:
    """Whole numbers have no slope."""

    name, size = "rounded", None

    def features(self, pixels):
        return pixels.mean((2, 3)).long().float()


class Varying:
    """Another number of features for several pictures than for one."""

    name, size = "varying", None

    def features(self, pixels):
        return pixels.mean((2, 3))[:, : 3 if len(pixels) == 1 else 2]


def test_encoders_that_cannot_train_are_refused(tokenizer):
    with pytest.raises(UserError, match="encoder rounded: its features carry no gradient"):
        DecodedFeatures(Rounded(), tokenizer, 6, 8)
    with pytest.raises(UserError, match="encoder varying: gives 2 features for 6 pictures, 3 for one"):
        DecodedFeatures(Varying(), tokenizer, 6, 8)(latents())


def test_a_mark_tells_feature_maps_apart_and_bears_rounding():
    phi = LatentStatistics(channels=2, height=4, width=6)
    mark = mark_of(phi, (2, 4, 6), 3, torch.device("cpu"))
    torch.testing.assert_close(mark, mark_of(phi, (2, 4, 6), 1, torch.device("cpu")), rtol=0, atol=0)
    assert mark.shape == (phi.source.dimension,) and float(mark.abs().min()) > 0
    check_mark("here", mark, mark + 0.009 * mark.abs().max())
    for other in (mark * 1.02, mark.flip(0), mark[:3], mark * torch.nan):
        with pytest.raises(UserError, match="here is another feature map now"):
            check_mark("here", mark, other)
