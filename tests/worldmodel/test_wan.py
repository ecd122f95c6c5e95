"""diffusers' WanTransformer3DModel is the oracle: same weights, same output."""

import json
import shutil
from typing import Any

import pytest
import torch
from diffusers import WanTransformer3DModel
from huggingface_hub import constants
from safetensors.torch import load_file, save_file
from torch.profiler import ProfilerActivity, profile

from worldmodel import flow
from worldmodel.chunk import ActionControl, Clip
from worldmodel.errors import UserError
from worldmodel.memory import FullConfig
from worldmodel.models.dit import DiTConfig
from worldmodel.models.wan import export_wan, load_wan
from worldmodel.models.wan_layout import entries
from worldmodel.rollout import start

CHANNELS, TEXT, LAYERS = 4, 20, 3
CONFIG = {
    "patch_size": (1, 2, 2), "num_attention_heads": 3, "attention_head_dim": 20, "in_channels": CHANNELS,
    "out_channels": CHANNELS, "text_dim": TEXT, "freq_dim": 64, "ffn_dim": 56, "num_layers": LAYERS,
}  # fmt: skip


def random_wan(seed=0, **changes):
    """Every weight is random and none is zero, so that no mistake can hide."""
    torch.manual_seed(seed)
    model = WanTransformer3DModel(**(CONFIG | changes)).eval()
    with torch.no_grad():
        for name, p in model.named_parameters():
            if p.ndim == 1:
                p.copy_(0.3 * torch.randn_like(p) + ("norm" in name and name.endswith("weight")))
            else:
                p.mul_(1.5)
    return model.requires_grad_(False)


@pytest.fixture(scope="module")
def wan():
    return random_wan()


@pytest.fixture(scope="module")
def folder(wan, tmp_path_factory):
    path = tmp_path_factory.mktemp("wan")
    wan.save_pretrained(path)
    return path


@pytest.fixture
def copy(folder, tmp_path):
    """A folder that a test may spoil."""
    return shutil.copytree(folder, tmp_path / "copy")


def batch(frames, height, width, actions=3, rows=2, seed=1):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, frames, CHANNELS, height, width, generator=g)
    action = torch.rand(rows, frames, actions, generator=g) * 2 - 1
    text = torch.randn(rows, 7, TEXT, generator=g)
    return x, ActionControl(action, torch.rand(rows, frames, generator=g) > 0.5, text)


def reference(wan, x, timestep, text):
    return wan(x.transpose(1, 2), timestep, text, return_dict=False)[0].transpose(1, 2)


def close(ours, theirs, tolerance=1e-5):
    assert ours.shape == theirs.shape
    assert (ours - theirs).abs().max() <= tolerance * max(1.0, theirs.abs().max().item())


def randomise(dit, prefixes):
    with torch.no_grad():
        for name, p in dit.named_parameters():
            if name.startswith(prefixes):
                p.copy_(0.2 * torch.randn_like(p))


# -- the oracle --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("frames", "height", "width"), [(1, 2, 2), (1, 4, 6), (3, 6, 10), (5, 2, 14), (4, 10, 4), (7, 6, 6)]
)
def test_output_equals_diffusers(wan, folder, frames, height, width):
    dit = load_wan(folder, size=(height, width), chunk=frames, actions=0)
    x, control = batch(frames, height, width, actions=0)
    t = torch.tensor([0.137, 0.93])
    close(dit.clip(x, t[:, None].expand(2, frames), control), reference(wan, x, 1000 * t, control.text))


def test_output_equals_diffusers_with_a_time_per_frame(wan, folder):
    """Wan 2.2 TI2V gives every token its own timestep."""
    dit = load_wan(folder, size=(6, 10), chunk=4, actions=0)
    x, control = batch(4, 6, 10, actions=0)
    t = torch.tensor([[0.0, 0.25, 0.5, 1.0], [0.9, 0.1, 0.33, 0.77]])
    close(dit.clip(x, t, control), reference(wan, x, (1000 * t).repeat_interleave(15, 1), control.text))


@pytest.mark.parametrize("changes", [{"eps": 1e-3}, {"patch_size": (1, 1, 1)}, {"num_attention_heads": 1}])
def test_other_configurations(changes, tmp_path):
    wan = random_wan(seed=3, **changes)
    wan.save_pretrained(tmp_path)
    dit = load_wan(tmp_path, size=(4, 6), chunk=2, actions=0)
    x, control = batch(2, 4, 6, actions=0)
    t = torch.tensor([0.5, 0.75])
    close(dit.clip(x, t[:, None].expand(2, 2), control), reference(wan, x, 1000 * t, control.text))


def test_a_sampler_step_equals_diffusers(wan, folder):
    """The way the engine calls it: prepare once with an empty memory, then velocity."""
    dit = load_wan(folder, size=(6, 10), chunk=3, actions=3)
    x, control = batch(3, 6, 10)
    prepared = dit("prepare", control, start(dit, FullConfig(), torch.tensor([1, 2])))
    for time in (1.0, 0.5, 0.125):
        ours = dit("velocity", x, torch.full((2, 3), time), prepared)
        close(ours, reference(wan, x, torch.full((2,), 1000 * time), control.text))


def test_time_embedding_is_bit_equal(wan):
    t = torch.rand(500, generator=torch.Generator().manual_seed(0))
    assert torch.equal(flow.embed_time(t, 64), wan.condition_embedder.timesteps_proj(1000 * t))


def test_half_precision_follows_diffusers(folder):
    wan = WanTransformer3DModel.from_pretrained(folder, torch_dtype=torch.bfloat16).eval()
    dit = load_wan(folder, size=(4, 4), chunk=2, actions=3, dtype=torch.bfloat16)
    assert {p.dtype for p in dit.parameters()} == {torch.bfloat16}
    x, control = batch(2, 4, 4)
    t = torch.tensor([0.25, 0.75])
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        ours = dit.clip(x, t[:, None].expand(2, 2), control).float()
        theirs = reference(wan, x.bfloat16(), 1000 * t, control.text.bfloat16()).float()
    exact = load_wan(folder, size=(4, 4), chunk=2, actions=3).clip(x, t[:, None].expand(2, 2), control)
    assert (ours - exact).std() <= 1.5 * (theirs - exact).std()  # as far from fp32 as diffusers itself
    assert (ours - exact).abs().max() < 0.05 * exact.abs().max()


# -- as a world model --------------------------------------------------------------------------------------------------


def test_new_actions_change_nothing_yet_and_can_learn(folder):
    plain, acting = (load_wan(folder, size=(4, 6), chunk=2, actions=a) for a in (0, 3))
    x, control = batch(4, 4, 6)
    t = torch.rand(2, 4)
    expected = plain.clip(x, t, control)
    assert torch.equal(acting.clip(x, t, control), expected)
    acting.clip(x, t, control).square().mean().backward()
    for module in (acting.action_out, acting.action_modulation):
        assert module.weight.grad.abs().max() > 0
    randomise(acting, ("action_out.", "action_modulation."))
    assert (acting.clip(x, t, control) - expected).abs().max() > 1e-2


def test_cached_chunks_equal_the_whole_clip(folder):
    dit = load_wan(folder, size=(4, 6), chunk=2, actions=3)
    randomise(dit, ("action_in.", "null_action", "action_out.", "action_modulation."))
    x, control = batch(6, 4, 6)
    clip = Clip(x, control, torch.arange(2))
    t = torch.cat((torch.zeros(2, 4), torch.full((2, 2), 0.6)), 1)
    state = start(dit, FullConfig(), torch.tensor([1, 2]), clip.frames(0, 4))
    cached = dit.velocity(x[:, 4:], t[:, 4:], dit.prepare(control.frames(4, 6), state))
    close(cached, dit.clip(x, t, control)[:, 4:])


def test_own_text_stands_in_for_a_missing_one(folder):
    text = torch.randn(7, TEXT)
    dit = load_wan(folder, size=(4, 6), chunk=2, actions=3, text=text)
    x, control = batch(2, 4, 6)
    t = torch.rand(2, 2)
    without = ActionControl(control.action, control.has_action)
    given = ActionControl(control.action, control.has_action, text.expand(2, -1, -1))
    assert torch.equal(dit.clip(x, t, without), dit.clip(x, t, given))
    assert not torch.equal(dit.clip(x, t, without), dit.clip(x, t, control))


# -- export ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shard", ["5GB", "60KB"])
def test_export_is_read_by_diffusers_and_by_us(folder, tmp_path, shard):
    text = torch.randn(7, TEXT)
    dit = load_wan(folder, size=(4, 6), chunk=2, actions=3, text=text)
    randomise(dit, "")  # as after a training of everything
    export_wan(dit, tmp_path / "out", max_shard_size=shard)
    assert (len(list((tmp_path / "out").glob("diffusion*.safetensors"))) > 1) == (shard == "60KB")

    again = load_wan(tmp_path / "out", size=(4, 6), chunk=2, actions=3)
    assert again.cfg == dit.cfg
    own = again.state_dict()
    assert own.keys() == dit.state_dict().keys()
    assert all(torch.equal(own[name], tensor) for name, tensor in dit.state_dict().items())

    loaded: Any = WanTransformer3DModel.from_pretrained(tmp_path / "out", output_loading_info=True)
    wan, info = loaded
    assert not any(info.values()), info
    whole = load_wan(tmp_path / "out", size=(4, 6), chunk=4, actions=3)
    randomise(whole, ("action_out.", "action_modulation."))
    for module in (whole.action_out, whole.action_modulation):  # diffusers knows no actions
        torch.nn.init.zeros_(module.weight)
        torch.nn.init.zeros_(module.bias)
    x, control = batch(4, 4, 6)
    t = torch.tensor([0.2, 0.8])
    close(whole.clip(x, t[:, None].expand(2, 4), control), reference(wan, x, 1000 * t, control.text))


def test_export_gives_back_the_same_bits(wan, folder, tmp_path):
    export_wan(load_wan(folder, size=(4, 6), chunk=2, actions=0), tmp_path / "out")
    ours = load_file(tmp_path / "out" / "diffusion_pytorch_model.safetensors")
    theirs = wan.state_dict()
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], tensor) for name, tensor in theirs.items())
    assert not (tmp_path / "out" / "worldmodel_extra.safetensors").exists()
    config, original = (json.loads((f / "config.json").read_text()) for f in (tmp_path / "out", folder))
    assert {k: config[k] for k in original} == original


def test_export_refuses_other_models_and_full_folders(folder, tmp_path):
    dit = DiTConfig(channels=4, size=(4, 4), dim=32, depth=1, heads=2, hidden=64).build()
    with pytest.raises(UserError, match="not a Wan model: learned_position is True"):
        export_wan(dit, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    wan = load_wan(folder, size=(4, 6), chunk=2, actions=0)
    (tmp_path / "precious").write_text("x")
    with pytest.raises(UserError, match="already holds something"):
        export_wan(wan, tmp_path)
    wan.blocks[0].register_parameter("adapter", torch.nn.Parameter(torch.zeros(1)))
    with pytest.raises(UserError, match=r"blocks.0.adapter.*merge"):
        export_wan(wan, tmp_path / "out")
    assert not (tmp_path / "out").exists()


# -- files -------------------------------------------------------------------------------------------------------------


def test_every_key_is_used_exactly_once(wan, folder):
    dit = load_wan(folder, size=(4, 6), chunk=2, actions=0)
    used = [name for entry in entries(dit.cfg) for name in entry.theirs]
    assert sorted(used) == sorted(wan.state_dict())
    assert sorted(entry.ours for entry in entries(dit.cfg)) == sorted(dit.state_dict())


def test_shards_pipelines_and_the_hub(wan, folder, tmp_path, monkeypatch):
    expected = load_wan(folder, size=(4, 6), chunk=2, actions=0).state_dict()
    wan.save_pretrained(tmp_path / "pipeline" / "transformer", max_shard_size="60KB")
    assert len(list((tmp_path / "pipeline" / "transformer").glob("*.safetensors"))) > 1
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    cached = tmp_path / "hub" / "models--somebody--wan"
    shutil.copytree(tmp_path / "pipeline", cached / "snapshots" / ("a" * 40))
    (cached / "refs").mkdir()
    (cached / "refs" / "main").write_text("a" * 40)
    for source in (tmp_path / "pipeline", tmp_path / "pipeline" / "transformer", "somebody/wan"):
        own = load_wan(source, size=(4, 6), chunk=2, actions=0).state_dict()
        assert all(torch.equal(own[name], tensor) for name, tensor in expected.items())
    with pytest.raises(UserError, match="somebody/other: no such folder, and not in the hub's cache"):
        load_wan("somebody/other", size=(4, 6), chunk=2, actions=0)


def test_half_precision_loading_never_holds_the_model_twice(tmp_path):
    random_wan(num_layers=6, ffn_dim=512, num_attention_heads=6).save_pretrained(tmp_path)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True) as p:
        dit = load_wan(tmp_path, size=(4, 6), chunk=2, actions=3, dtype=torch.bfloat16)
    weights = sum(w.nbytes for w in dit.parameters())
    held = peak = 0
    for event in p.profiler.kineto_results.events():
        if event.name() == "[memory]":
            held += event.nbytes()
            peak = max(peak, held)
    assert weights <= held <= 1.01 * weights
    mapped = (tmp_path / "diffusion_pytorch_model.safetensors").stat().st_size  # counted, though it is no copy
    assert peak - mapped <= 1.25 * weights  # one fp32 matrix of this small model is a tenth of it


def spoil_weights(change):
    def spoil(folder):
        path = folder / "diffusion_pytorch_model.safetensors"
        tensors = load_file(path)
        change(tensors)
        save_file(tensors, path, {"format": "pt"})

    return spoil


def spoil_config(**values):
    def spoil(folder):
        path = folder / "config.json"
        config = json.loads(path.read_text()) | values
        path.write_text(json.dumps({k: v for k, v in config.items() if v != "remove"}))

    return spoil


def truncate(folder):
    path = folder / "diffusion_pytorch_model.safetensors"
    path.write_bytes(path.read_bytes()[:-1000])


def only_a_pickle(folder):
    (folder / "diffusion_pytorch_model.safetensors").rename(folder / "diffusion_pytorch_model.bin")


def missing_shard(folder):
    path = folder / "diffusion_pytorch_model.safetensors"
    names = load_file(path)
    path.unlink()
    index = {"metadata": {}, "weight_map": dict.fromkeys(names, "diffusion-00001-of-00002.safetensors")}
    (folder / "diffusion_pytorch_model.safetensors.index.json").write_text(json.dumps(index))


def escaping_shard(folder):
    index = {"weight_map": {"proj_out.bias": "../other.safetensors"}}
    (folder / "diffusion_pytorch_model.safetensors.index.json").write_text(json.dumps(index))


def two_models(folder):
    shutil.copy(folder / "diffusion_pytorch_model.safetensors", folder / "second.safetensors")


def not_finite(tensors):
    tensors["blocks.1.attn1.to_k.bias"][3] = float("nan")


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (spoil_weights(lambda w: w.pop("blocks.2.ffn.net.2.bias")), r"weight 'blocks.2.ffn.net.2.bias' is missing"),
        (spoil_weights(lambda w: w.update(extra=torch.zeros(2))), r"model.safetensors: unknown weight 'extra'"),
        (
            spoil_weights(lambda w: w.update({"blocks.0.attn2.add_k_proj.weight": torch.zeros(2)})),
            r"add_k_proj.weight' belongs to an image-to-video model",
        ),
        (
            spoil_weights(lambda w: w.update({"proj_out.bias": torch.zeros(20)})),
            r"'proj_out.bias' gives shape \[20\], the model expects \[16\]",
        ),
        (spoil_weights(not_finite), r"'blocks.1.attn1.to_q.bias' .*not finite"),
        (spoil_config(image_dim=8), r"config.json: image_dim is 8, must be None; image-to-video"),
        (spoil_config(in_channels=36), r"36 channels in, 4 out; image-to-video"),
        (spoil_config(cross_attn_norm=False), r"cross_attn_norm is False, must be True"),
        (spoil_config(_class_name="WanVACETransformer3DModel"), r"'WanVACETransformer3DModel', not a diffusers Wan"),
        (spoil_config(num_layers="remove"), r"key 'num_layers' is missing"),
        (spoil_config(num_layers=2), r"unknown weight 'blocks.2"),
        (spoil_config(new_thing=1), r"unknown key 'new_thing'"),
        (spoil_config(patch_size=[2, 2, 2]), r"patch_size \[2, 2, 2\] must be"),
        (lambda folder: (folder / "config.json").write_text("{"), r"config.json: not valid JSON"),
        (lambda folder: (folder / "config.json").unlink(), r"neither config.json nor transformer/config.json"),
        (truncate, r"model.safetensors: not a complete safetensors file"),
        (only_a_pickle, r"no safetensors file; \['diffusion_pytorch_model.bin'\] could run code"),
        (missing_shard, r"diffusion-00001-of-00002.safetensors: no such file"),
        (escaping_shard, r"'../other.safetensors', outside the folder"),
        (two_models, r"several models"),
    ],
)
def test_bad_folders_are_one_clear_line(copy, spoil, message):
    spoil(copy)
    with pytest.raises(UserError, match=message) as error:
        load_wan(copy, size=(4, 6), chunk=2, actions=3)
    assert "\n" not in str(error.value)


def test_bad_sources_and_sizes(folder, tmp_path):
    for source in (tmp_path / "nothing", "./nothing", "a/b/c", "name"):
        with pytest.raises(UserError, match="no such folder"):
            load_wan(source, size=(4, 6), chunk=2, actions=0)
    with pytest.raises(UserError, match="give the folder"):
        load_wan(folder / "config.json", size=(4, 6), chunk=2, actions=0)
    with pytest.raises(UserError, match="does not cut into patches"):
        load_wan(folder, size=(5, 6), chunk=2, actions=0)
    with pytest.raises(UserError, match=r"text features have shape \[7, 3\], .* takes \[tokens, 20\]"):
        load_wan(folder, size=(4, 6), chunk=2, actions=0, text=torch.zeros(7, 3))


def test_exported_actions_of_another_size_are_refused(folder, tmp_path):
    export_wan(load_wan(folder, size=(4, 6), chunk=2, actions=3), tmp_path / "out")
    with pytest.raises(UserError, match=r"action_in.0.weight' gives shape \[60, 3\], the model expects \[60, 5\]"):
        load_wan(tmp_path / "out", size=(4, 6), chunk=2, actions=5)
    with pytest.raises(UserError, match="no place in a model with actions of size 0"):
        load_wan(tmp_path / "out", size=(4, 6), chunk=2, actions=0)
