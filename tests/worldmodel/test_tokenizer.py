"""The diffusers tokenizers against diffusers itself, streams against whole clips, and what loading refuses."""

import json
import pickle

import pytest
import torch
from diffusers import AutoencoderKL, AutoencoderKLWan, AutoencoderTiny
from safetensors.torch import load_file, save_file

from worldmodel.errors import UserError
from worldmodel.models.autoencoder import AutoencoderConfig
from worldmodel.models.diffusers_tokenizer import FrameTokenizer, WanTokenizer
from worldmodel.models.tokenizer import Tokenizer, num_latent_frames
from worldmodel.models.tokenizer_folder import load_tokenizer

WAN = {
    "base_dim": 8,
    "z_dim": 4,
    "dim_mult": [1, 2, 2],
    "num_res_blocks": 1,
    "temperal_downsample": [True, True],
    "latents_mean": [0.1, -0.2, 0.3, 0.0],
    "latents_std": [0.5, 1.5, 2.0, 1.0],
}
WAN22 = WAN | {"is_residual": True, "patch_size": 2, "in_channels": 12, "out_channels": 12}
WAN_LATE = WAN | {"dim_mult": [1, 1, 2, 2], "temperal_downsample": [False, True, True]}


def wan(config: dict = WAN) -> WanTokenizer:
    torch.manual_seed(0)
    return WanTokenizer(AutoencoderKLWan(**config))


def kl(**statistics: object) -> FrameTokenizer:
    torch.manual_seed(0)
    vae = AutoencoderKL(
        down_block_types=["DownEncoderBlock2D"] * 2,
        up_block_types=["UpDecoderBlock2D"] * 2,
        block_out_channels=[8, 16],
        norm_num_groups=4,
        **statistics,
    )
    return FrameTokenizer(vae)


def tiny() -> FrameTokenizer:
    torch.manual_seed(0)
    vae = AutoencoderTiny(
        encoder_block_out_channels=(8, 8, 8),
        decoder_block_out_channels=(8, 8, 8),
        num_encoder_blocks=(1, 1, 1),
        num_decoder_blocks=(1, 1, 1),
        scaling_factor=1.7,
        shift_factor=0.3,
    )
    return FrameTokenizer(vae)


def own():
    torch.manual_seed(0)
    model = AutoencoderConfig(channels=3, widths=(4, 8), blocks=(1, 1)).build()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    model.set_latent_statistics(torch.tensor([0.1, -0.2, 0.3]), torch.tensor([0.5, 1.5, 2.0]))
    return model.requires_grad_(False)


ALL = {
    "own": own,
    "kl": kl,
    "tiny": tiny,
    "wan": wan,
    "wan22": lambda: wan(WAN22),
    "wan_late": lambda: wan(WAN_LATE),
}


def pixels(frames: int, height: int = 16, width: int = 24, batch: int = 2) -> torch.Tensor:
    rng = torch.Generator().manual_seed(frames)
    return 2 * torch.rand(batch, frames, 3, height, width, generator=rng) - 1


def latents(tokenizer: Tokenizer, frames: int, batch: int = 2, seed: int = 0) -> torch.Tensor:
    rng = torch.Generator().manual_seed(seed)
    return torch.randn(batch, frames, tokenizer.channels, 2, 3, generator=rng)


def stream(tokenizer: Tokenizer, z: torch.Tensor, sizes: list[int]) -> torch.Tensor:
    state, out = None, []
    for piece in z.split(sizes, dim=1):
        frames, state = tokenizer.decode_stream(piece, state)
        out.append(frames)
    return torch.cat(out, dim=1)


@pytest.mark.parametrize("name", ALL)
def test_shapes_and_range(name):
    tokenizer = ALL[name]()
    assert isinstance(tokenizer, Tokenizer)
    height, width = 2 * tokenizer.spatial, 3 * tokenizer.spatial
    clip = pixels(9, height, width)
    z = tokenizer.encode(clip)
    assert z.shape == (2, num_latent_frames(tokenizer, 9), tokenizer.channels, 2, 3)
    decoded = tokenizer.decode(z)
    assert decoded.shape == clip.shape
    assert decoded.abs().max() <= 1


@pytest.mark.parametrize("sizes", [[1, 1, 1, 1, 1], [1, 4], [3, 2], [2, 1, 2]])
@pytest.mark.parametrize("name", ALL)
def test_stream_decode_equals_whole(name, sizes):
    tokenizer = ALL[name]()
    z = latents(tokenizer, 5)
    torch.testing.assert_close(stream(tokenizer, z, sizes), tokenizer.decode(z), rtol=0, atol=1e-5)


@pytest.mark.parametrize("config", [WAN, WAN22, WAN_LATE])
def test_wan_equals_diffusers(config):
    tokenizer = wan(config)
    mean = torch.tensor(config["latents_mean"])[:, None, None, None]
    std = torch.tensor(config["latents_std"])[:, None, None, None]
    z = latents(tokenizer, 4)
    expected = tokenizer.vae.decode(z.transpose(1, 2) * std + mean).sample.transpose(1, 2)
    assert expected.std() > 0.01  # a constant picture would prove nothing
    torch.testing.assert_close(tokenizer.decode(z), expected, rtol=0, atol=1e-5)
    torch.testing.assert_close(stream(tokenizer, z, [1, 2, 1]), expected, rtol=0, atol=1e-5)
    clip = pixels(9, 2 * tokenizer.spatial, 3 * tokenizer.spatial)
    raw = tokenizer.vae.encode(clip.transpose(1, 2)).latent_dist.mode()
    torch.testing.assert_close(tokenizer.encode(clip), ((raw - mean) / std).transpose(1, 2), rtol=0, atol=1e-5)


@pytest.mark.parametrize("config", [WAN, WAN22])
def test_wan_stream_encode_equals_whole(config):
    tokenizer = wan(config)
    clip = pixels(17, 2 * tokenizer.spatial, 2 * tokenizer.spatial)
    whole = tokenizer.encode(clip)
    state, out = None, []
    for piece in clip.split([5, 4, 8], dim=1):
        z, state = tokenizer.encode_stream(piece, state)
        out.append(z)
    torch.testing.assert_close(torch.cat(out, dim=1), whole, rtol=0, atol=1e-5)


def test_wan_streams_do_not_disturb_each_other():
    tokenizer = wan()
    first, second = latents(tokenizer, 4, seed=1), latents(tokenizer, 4, batch=3, seed=2)
    state_a = state_b = None
    out_a, out_b = [], []
    for k in range(4):
        frames, state_a = tokenizer.decode_stream(first[:, k : k + 1], state_a)
        out_a.append(frames)
        tokenizer.vae.decode(torch.randn(1, tokenizer.channels, 2, 2, 2))  # somebody uses the module itself
        frames, state_b = tokenizer.decode_stream(second[:, k : k + 1], state_b)
        out_b.append(frames)
    torch.testing.assert_close(torch.cat(out_a, dim=1), tokenizer.decode(first), rtol=0, atol=1e-5)
    torch.testing.assert_close(torch.cat(out_b, dim=1), tokenizer.decode(second), rtol=0, atol=1e-5)


def test_wan_state_is_a_value():
    tokenizer = wan()
    z = latents(tokenizer, 4)
    _, state = tokenizer.decode_stream(z[:, :2], None)
    copies = [tensor.clone() for tensor in state]
    once, _ = tokenizer.decode_stream(z[:, 2:], state)
    assert all(torch.equal(a, b) for a, b in zip(state, copies, strict=True))  # not changed by its use
    again, _ = tokenizer.decode_stream(z[:, 2:], state)
    assert torch.equal(once, again)
    rows = tuple(tensor[[1, 0, 1]] for tensor in state)  # rows are selected like any other value
    selected, _ = tokenizer.decode_stream(z[[1, 0, 1], 2:], rows)
    torch.testing.assert_close(selected, once[[1, 0, 1]], rtol=0, atol=1e-6)


def test_wan_state_does_not_grow():
    tokenizer = wan()
    z = latents(tokenizer, 6)
    _, state = tokenizer.decode_stream(z[:, :2], None)
    shapes = [tensor.shape for tensor in state]
    for k in range(2, 6):
        _, state = tokenizer.decode_stream(z[:, k : k + 1], state)
        assert [tensor.shape for tensor in state] == shapes


@pytest.mark.parametrize(
    ("statistics", "mean", "std"),
    [
        ({"scaling_factor": 0.5}, [0.0] * 4, [2.0] * 4),
        ({"scaling_factor": 0.5, "shift_factor": 0.25}, [0.25] * 4, [2.0] * 4),
        (
            {"scaling_factor": 0.5, "latents_mean": (1.0, 2.0, 3.0, 4.0), "latents_std": (1.0, 2.0, 1.0, 4.0)},
            [1.0, 2.0, 3.0, 4.0],
            [2.0, 4.0, 2.0, 8.0],
        ),
    ],
)
def test_kl_equals_diffusers(statistics, mean, std):
    tokenizer = kl(**statistics)
    mean, std = torch.tensor(mean)[:, None, None], torch.tensor(std)[:, None, None]
    clip = pixels(3, 16, 8)
    raw = tokenizer.vae.encode(clip.flatten(0, 1)).latent_dist.mode()
    z = tokenizer.encode(clip)
    torch.testing.assert_close(z.flatten(0, 1), (raw - mean) / std, rtol=0, atol=1e-6)
    torch.testing.assert_close(
        tokenizer.decode(z).flatten(0, 1), tokenizer.vae.decode(raw).sample.clamp(-1, 1), rtol=0, atol=1e-5
    )


def test_tiny_equals_diffusers():
    tokenizer = tiny()
    clip = pixels(3, 16, 8)
    raw = tokenizer.vae.encode(clip.flatten(0, 1)).latents
    z = tokenizer.encode(clip)
    torch.testing.assert_close(z.flatten(0, 1), (raw - 0.3) * 1.7, rtol=0, atol=1e-6)
    expected = tokenizer.vae.decode(raw).sample.clamp(-1, 1)
    torch.testing.assert_close(tokenizer.decode(z).flatten(0, 1), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", ALL)
def test_wrong_sizes_name_both_numbers(name):
    tokenizer = ALL[name]()
    factor = tokenizer.spatial
    with pytest.raises(UserError, match=rf"height {factor + 1} .* factor {factor}$"):
        tokenizer.encode(pixels(1, factor + 1, factor))
    with pytest.raises(UserError, match=rf"width {factor // 2} .* factor {factor}$"):
        tokenizer.encode(pixels(1, factor, factor // 2))
    with pytest.raises(UserError, match=r"\[B, T, 3, H, W\]"):
        tokenizer.encode(torch.zeros(1, 3, factor, factor))
    with pytest.raises(UserError, match=rf"C = {tokenizer.channels}, not \[1, 1, {tokenizer.channels + 1}, 2, 2\]"):
        tokenizer.decode(torch.zeros(1, 1, tokenizer.channels + 1, 2, 2))
    if tokenizer.temporal > 1:
        with pytest.raises(UserError, match="clip of 6 frames"):
            tokenizer.encode(pixels(6, factor, factor))


def test_wan_needs_temporal_factor_four():
    with pytest.raises(UserError, match="temporal factor of 2"):
        wan(WAN | {"temperal_downsample": [False, True]})


@pytest.mark.parametrize("name", ALL)
def test_save_and_load_are_bit_identical(name, tmp_path):
    tokenizer = ALL[name]()
    tokenizer.save(tmp_path / "saved")
    loaded = load_tokenizer(tmp_path / "saved")
    assert type(loaded) is type(tokenizer)
    ours, theirs = tokenizer.state_dict(), loaded.state_dict()
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[key], theirs[key]) for key in ours)
    z = latents(tokenizer, 2)
    assert torch.equal(tokenizer.decode(z), loaded.decode(z))
    clip = pixels(5, 2 * tokenizer.spatial, 2 * tokenizer.spatial)
    assert torch.equal(tokenizer.encode(clip), loaded.encode(clip))
    assert not list((tmp_path / "saved").glob("*.bin"))


def test_subfolder_of_a_pipeline(tmp_path):
    tiny().save(tmp_path / "vae")
    assert isinstance(load_tokenizer(tmp_path, subfolder="vae"), FrameTokenizer)


class Bomb:
    def __reduce__(self):
        return (pytest.fail, ("a pickle was read",))


@pytest.mark.parametrize("name", ["own", "kl"])
@pytest.mark.parametrize("suffix", [".bin", ".pt", ".ckpt"])
def test_pickled_weights_are_refused(name, suffix, tmp_path):
    ALL[name]().save(tmp_path)
    (weights,) = tmp_path.glob("*.safetensors")
    weights.unlink()
    poison = weights.with_suffix(suffix)
    poison.write_bytes(pickle.dumps(Bomb()))
    with pytest.raises(UserError, match=rf"{poison.name}: a pickle could run code"):
        load_tokenizer(tmp_path)
    with pytest.raises(UserError, match=rf"{poison.name}: a pickle could run code"):
        load_tokenizer(poison)


def test_a_pickle_named_safetensors_is_refused(tmp_path):
    own().save(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(pickle.dumps(Bomb()))
    with pytest.raises(UserError, match=r"model\.safetensors: not a complete safetensors file"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize("name", ["own", "kl", "tiny", "wan"])
def test_damaged_folders_name_the_file(name, tmp_path):
    ALL[name]().save(tmp_path)
    (weights,) = tmp_path.glob("*.safetensors")
    whole = weights.read_bytes()
    weights.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UserError, match=str(tmp_path)):
        load_tokenizer(tmp_path)
    weights.write_bytes(b"")
    with pytest.raises(UserError, match=str(tmp_path)):
        load_tokenizer(tmp_path)
    weights.write_bytes(whole)
    tensors = load_file(weights)
    lost = min(tensors)
    save_file({key: value for key, value in tensors.items() if key != lost}, weights)
    with pytest.raises(UserError, match=lost):
        load_tokenizer(tmp_path)
    save_file(tensors | {"extra": torch.zeros(1)}, weights)
    with pytest.raises(UserError, match="extra"):
        load_tokenizer(tmp_path)
    save_file(tensors | {lost: torch.zeros(1, 2)}, weights)
    with pytest.raises(UserError, match=lost):
        load_tokenizer(tmp_path)
    weights.unlink()
    with pytest.raises(UserError, match=rf"{weights.name}: no such file"):
        load_tokenizer(tmp_path)


def test_wrong_folders_and_configs(tmp_path):
    with pytest.raises(UserError, match="nowhere: no such folder"):
        load_tokenizer(tmp_path / "nowhere")
    with pytest.raises(UserError, match=r"config\.json: no such file"):
        load_tokenizer(tmp_path)
    config = tmp_path / "config.json"
    for text, message in [
        ("{", "not valid JSON"),
        ("[]", "must hold a JSON object, not a list"),
        ("{}", "not the configuration of a tokenizer"),
        ('{"type": "DiTConfig"}', "not the configuration of a tokenizer"),
        ('{"_class_name": "UNet2DModel"}', "UNet2DModel"),
        ('{"type": "AutoencoderConfig", "deep": 1}', "unknown key 'deep'"),
        ('{"type": "AutoencoderConfig", "blocks": [1, 1]}', "same length"),
        ('{"type": "AutoencoderConfig", "channels": "x"}', "channels: expected int, found 'x'"),
        ('{"type": "AutoencoderConfig", "widths": 4}', "widths: expected a list"),
    ]:
        config.write_text(text)
        with pytest.raises(UserError, match=message) as caught:
            load_tokenizer(tmp_path)
        assert str(config) in str(caught.value) or message == "same length"
        assert "\n" not in str(caught.value)
    with pytest.raises(UserError, match=r"a tokenizer is a folder"):
        load_tokenizer(config)


def test_wrong_statistics_are_refused(tmp_path):
    wan().save(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"latents_std": [1.0, 0.0, 1.0, 1.0]}))
    with pytest.raises(UserError, match="latents_std must be positive"):
        load_tokenizer(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(config | {"latents_mean": [1.0]}))
    with pytest.raises(UserError, match="latents_mean must hold 4 finite numbers"):
        load_tokenizer(tmp_path)


def test_hub_name_offline(monkeypatch, tmp_path):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(UserError, match=r"^nobody/nothing: no such folder, and not available from the hub"):
        load_tokenizer("nobody/nothing")
