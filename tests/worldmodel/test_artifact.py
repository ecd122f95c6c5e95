"""What a run makes, from the same parts at every save."""

import shutil
from pathlib import Path

import pytest
import torch
from tiny import tiny_run

from worldmodel.artifact import Template
from worldmodel.models.autoencoder import AutoencoderConfig
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
