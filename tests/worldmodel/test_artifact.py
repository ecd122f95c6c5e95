"""What a run makes, from the same parts at every save."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tiny import tiny_run

from worldmodel.artifact import Template, build
from worldmodel.errors import UserError
from worldmodel.memory import FullConfig, LactConfig
from worldmodel.models.autoencoder import AutoencoderConfig
from worldmodel.models.fast_layer import FastConfig
from worldmodel.models.lora import LoraConfig
from worldmodel.objectives.reconstruction import Reconstruction

PIXELS = {"model": AutoencoderConfig(channels=2, widths=(4,), blocks=(1,)), "objective": Reconstruction()}


def weights_of(template, seed):
    """Other values for everything that is trained."""
    rng = torch.Generator().manual_seed(seed)
    named = dict(template.model.named_parameters())
    return {name: torch.randn(named[name].shape, generator=rng) for name in sorted(template.trained)}


def files(made, folder):
    made.save(folder)
    return {str(p.relative_to(folder)): p.read_bytes() for p in Path(folder).rglob("*") if p.is_file()}


@pytest.mark.parametrize("kind", ["world", "adapters", "autoencoder"])
def test_a_template_is_filled_as_often_as_asked(kind, tmp_path):
    """Nothing of an earlier model is left in a later one, and nothing is read again."""
    run = tiny_run(tmp_path / "run")
    if kind == "adapters":
        start = Template.of(run)
        start.fill(weights_of(start, 9), {}).save(tmp_path / "start")
        run = tiny_run(tmp_path / "run", init=str(tmp_path / "start"), lora=LoraConfig(rank=2))
    elif kind == "autoencoder":
        run = tiny_run(tmp_path / "run", {"pixels": True, "length": 2}, **PIXELS)
    often, once = Template.of(run), Template.of(run)
    shutil.rmtree(run.data.tokenizer)
    shutil.rmtree(tmp_path / "start", ignore_errors=True)
    first = files(often.fill(weights_of(often, 0), {"step": 1}), tmp_path / "a")
    second = files(often.fill(weights_of(often, 1), {"step": 2}), tmp_path / "b")
    assert first.keys() == second.keys() and first["model.safetensors"] != second["model.safetensors"]
    assert files(once.fill(weights_of(once, 1), {"step": 2}), tmp_path / "c") == second
    assert files(often.fill(weights_of(often, 0), {"step": 1}), tmp_path / "d") == first


def test_init_is_a_world_models_folder_or_a_runs(tmp_path):
    """What the run has made so far, as where a model is served."""
    run = tiny_run(tmp_path / "run")
    made = Template.of(run)
    made.fill(weights_of(made, 3), {}).save(tmp_path / "earlier" / "model")
    values = weights_of(made, 3)
    for init in (tmp_path / "earlier", tmp_path / "earlier" / "model"):
        found = dict(build(tiny_run(tmp_path / "run", init=str(init))).named_parameters())
        assert found.keys() == values.keys() and all(torch.equal(found[n], values[n]) for n in values)
        assert all(p.requires_grad for p in found.values())


def test_fast_weights_are_added_to_an_init_that_has_none(tmp_path):
    """The model answers as before, since the new layers' share starts at zero; other differences are still errors."""
    run = tiny_run(tmp_path / "run")
    made = Template.of(run)
    made.fill(weights_of(made, 3), {}).save(tmp_path / "earlier")
    fast = replace(run.model, fast=FastConfig(groups=2))
    stream = replace(run.stream, memory=LactConfig(ring=4))
    new = build(replace(run, init=str(tmp_path / "earlier"), model=fast, stream=stream))
    old = build(replace(run, init=str(tmp_path / "earlier")))
    values = old.state_dict()
    added = {name for name in new.state_dict() if name not in values}
    assert added and all(".fast." in name for name in added)
    assert all(torch.equal(new.state_dict()[name], value) for name, value in values.items())
    clip = next(run.data.batches(0, 0, 1, 1))[0]
    t = torch.full(clip.x.shape[:2], 0.5)
    with torch.no_grad():
        first = new("clip", clip.x, t, clip.control, None, LactConfig(ring=100))
        assert torch.equal(first, old("clip", clip.x, t, clip.control, None, FullConfig()))
    with pytest.raises(UserError, match="its dim is"):
        build(replace(run, init=str(tmp_path / "earlier"), model=replace(fast, dim=fast.dim * 2), stream=stream))


def test_an_init_without_a_model_is_named(tmp_path):
    (tmp_path / "earlier" / "checkpoints").mkdir(parents=True)
    for init, message in (
        (tmp_path / "earlier", "holds no model; init is the folder of a world model, of a run that has made one, or"),
        (tmp_path / "nowhere", "no such folder, and no name of the form 'org/model'"),
    ):
        with pytest.raises(UserError, match=message) as error:
            build(tiny_run(tmp_path / "run", init=str(init)))
        assert str(error.value).startswith(f"{init}: ")
