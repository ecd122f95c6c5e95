"""`inspect`: says what a path is, what is wrong with it and what to do next."""

import json
import shutil
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch

from worldmodel import artifact, checkpoint
from worldmodel.actions import ActionSpec
from worldmodel.cli import main
from worldmodel.datasets import lerobot
from worldmodel.datasets.convert import convert
from worldmodel.datasets.encode import encode_recordings
from worldmodel.datasets.inspect import AUTOENCODER, examine, inspect
from worldmodel.datasets.latent_files import episode_file
from worldmodel.datasets.recordings import open_recordings
from worldmodel.errors import UserError
from worldmodel.models.autoencoder import AutoencoderConfig
from worldmodel.models.dit import DiTConfig
from worldmodel.models.tokenizer_folder import load_tokenizer
from worldmodel.models.world import StreamConfig, WorldModel
from worldmodel.run import load


@pytest.fixture
def folder(tmp_path, videos) -> Path:
    for name, count in (("a", 20), ("b", 12)):
        videos.make(tmp_path / "clips" / f"{name}.mp4", count=count)
        np.savez(tmp_path / "clips" / f"{name}.npz", action=np.linspace(-1, 1, count), names=["turn"])
    return tmp_path / "clips"


@pytest.fixture
def tokenizer(tmp_path) -> Path:
    torch.manual_seed(0)
    AutoencoderConfig(channels=4, widths=(8, 8, 8), blocks=(0, 0, 0)).build().save(tmp_path / "tokenizer")
    return tmp_path / "tokenizer"


def test_folder_of_videos(folder, videos, tmp_path, capsys):
    videos.turn(folder / "b.mp4")
    assert inspect(folder, json=tmp_path / "out.json") == 0
    report = json.loads((tmp_path / "out.json").read_text())
    facts = report["facts"]
    assert (report["command"], report["kind"], report["problems"]) == ("inspect", "folder of videos", [])
    assert (facts["files"], facts["episodes"], facts["frames"], facts["fps"]) == (2, 2, 32, "30")
    assert facts["frames per episode"] == "12 to 20" and facts["sizes"] == ["48x64", "64x48"]
    assert facts["reader"] == {str(folder / "a.mp4"): "decord", str(folder / "b.mp4"): "pyav rotated by 90 degrees"}
    assert facts["actions"]["turn"]["min"] == -1 and facts["actions"]["turn"]["max"] == 1
    assert report["next"].startswith(f"worldmodel convert {folder} data/clips --size 64")
    text = capsys.readouterr().out
    assert f"{folder}: folder of videos" in text and "next: worldmodel convert" in text


def test_every_broken_video_is_named(folder, capsys):
    (folder / "c.mp4").touch()
    (folder / "a.mp4").write_bytes((folder / "a.mp4").read_bytes()[:1000])
    assert inspect(folder) == 2
    problems = examine(folder).problems
    assert len(problems) == 2 and "a.mp4" in problems[0] and "c.mp4" in problems[1]
    assert capsys.readouterr().out.count("problem: ") == 2


def test_damage_inside_is_found_by_a_deep_look(folder, videos):
    videos.make(folder / "b.mp4", count=40, container={"movflags": "faststart"})
    np.savez(folder / "b.npz", action=np.linspace(-1, 1, 40), names=["turn"])
    data = (folder / "b.mp4").read_bytes()
    (folder / "b.mp4").write_bytes(data[: len(data) // 2] + bytes(200) + data[len(data) // 2 + 200 :])
    assert examine(folder).problems == []
    (problem,) = examine(folder, deep=True).problems
    assert "b.mp4: frame" in problem


def test_single_video_of_variable_rate(tmp_path, videos):
    path = videos.make(tmp_path / "a.mp4", count=4, pts=[0, 33, 200, 233])
    report = examine(path)
    assert report.kind == "video" and not report.problems
    assert any("variable rate" in note for note in report.notes) and "--fps" in report.next


def test_actions_that_a_rate_would_merge(folder, videos, tmp_path):
    videos.make(folder / "b.mp4", count=12, rate=Fraction(15))
    report = examine(folder)
    assert not report.problems and report.next.endswith("--size 64 --fps 30 --merge-actions MERGE")
    assert any("MERGE is sum (displacements add up), mean" in note for note in report.notes)
    command = report.next.replace("MERGE", "sum").replace("data/clips", str(tmp_path / "data"))
    assert main(command.split()[1:]) == 0
    videos.make(folder / "b.mp4", count=12)
    assert "--merge-actions" not in examine(folder).next
    for name in "ab":  # 600 frames at 29.97 are 600.6 at 30
        video = videos.make(folder / f"{name}.mp4", count=600, height=16, width=16, rate=Fraction(30000, 1001))
        np.savez(video.with_suffix(".npz"), action=np.linspace(-1, 1, 600), names=["turn"])
    report = examine(folder)
    assert report.facts["fps"] == "30000/1001" and report.next.endswith("--fps 30 --merge-actions MERGE")

    out = tmp_path / "latents"
    encode_recordings(open_recordings(folder, Fraction(15), "sum"), "pixels", out)
    (out / "latents.json").rename(out / "unfinished.json")
    episode_file(out, 1).unlink()
    assert examine(out).next.endswith(f"--out {out} --fps 15 --merge-actions sum")
    assert main(examine(out).next.split()[1:]) == 0 and not examine(out).problems


def test_dataset_latents_and_their_problems(folder, tokenizer, tmp_path):
    convert(folder, tmp_path / "data")
    report = examine(tmp_path / "data")
    assert (report.kind, report.problems) == ("LeRobotDataset v3", [])
    assert report.facts["cameras"] == {"video": "64x48"} and report.facts["frames"] == 32
    data = tmp_path / "data"
    assert report.next == f"worldmodel encode {data} --tokenizer pixels --out {data}_pixels"
    assert any("configs/doom_autoencoder.py" in note for note in report.notes)

    out = tmp_path / "latents"
    encode_recordings(open_recordings(tmp_path / "data"), tokenizer, out)
    report = examine(out)
    assert (report.kind, report.problems) == ("latents", [])
    assert report.facts["frame"] == [4, 6, 8] and report.facts["latent frames"] == 32
    options = "--model.channels 4 --model.size 6 8 --model.actions 1"
    assert report.next == f"worldmodel train configs/doom.py {options} --data.path {out} --out runs/latents"
    assert main(["estimate", *report.next.split()[2:], "--tflops", "1"]) == 0
    episode_file(out, 1).unlink()
    report = examine(out)
    assert len(report.problems) == 1 and "000001.safetensors" in report.problems[0]
    assert report.next.startswith(f"worldmodel encode {tmp_path / 'data'} --camera video")
    (out / "latents.json").rename(out / "unfinished.json")
    assert examine(out).problems == ["1 of 2 episodes are encoded"]

    stats = tmp_path / "data" / "meta" / "stats.json"
    stats.write_text(json.dumps(json.loads(stats.read_text()) | {"action": {}}))
    assert examine(tmp_path / "data").problems == [f"{stats}: statistic 'action/min' is missing"]
    shutil.rmtree(tmp_path / "data" / "meta" / "episodes")
    assert "not finalised" in examine(tmp_path / "data").problems[0]


def test_small_pictures_are_their_own_latents(tmp_path, videos):
    videos.make(tmp_path / "clips" / "a.mp4", count=20, height=32, width=32)
    convert(tmp_path / "clips", tmp_path / "data")
    assert "--tokenizer pixels" in examine(tmp_path / "data").next
    out = tmp_path / "latents"
    encode_recordings(open_recordings(tmp_path / "data"), "pixels", out)
    options = f"--model.actions 0 --data.path {out} --out runs/latents"
    assert examine(out).next == f"worldmodel train configs/maze.py {options}"
    encode_recordings(open_recordings(tmp_path / "data"), "pixels", tmp_path / "other", size=(20, 28))
    assert "--model.size 20 28 --model.patch 4 --model.actions 0" in examine(tmp_path / "other").next


def test_name_on_the_hub(folder, tmp_path, monkeypatch):
    convert(folder, tmp_path / "cache" / "data")
    monkeypatch.setattr(lerobot, "download", lambda name: tmp_path / "cache" / name.split("/")[1])
    report = examine(Path("someone/data"))
    assert (report.path, report.kind, report.facts["episodes"]) == ("someone/data", "LeRobotDataset v3", 2)
    assert report.next == "worldmodel encode someone/data --tokenizer pixels --out data/data_pixels"


def test_pictures_that_want_an_autoencoder_get_their_own_first(tmp_path, videos):
    """The path of the README: pixels, a tokenizer of your own, latents, a world."""
    videos.make(tmp_path / "clips" / "a.mp4", count=12, height=60, width=76)
    convert(tmp_path / "clips", tmp_path / "mine")
    mine = tmp_path / "mine"
    report = examine(mine)
    assert report.next == f"worldmodel encode {mine} --size 72x56 --tokenizer pixels --out {mine}_pixels"
    assert main(report.next.split()[1:]) == 0
    report = examine(tmp_path / "mine_pixels")
    assert report.next == (
        f"worldmodel train configs/doom_autoencoder.py --data.path {mine}_pixels --out runs/mine_tokenizer"
    )
    recipe = load(AUTOENCODER)
    data = replace(recipe.data, path=(tmp_path / "mine_pixels",), validation=0.0)
    artifact.check(replace(recipe, data=data, validate=0))
    assert report.notes[0] == (
        f"after that: worldmodel encode {mine} --camera video --size 72x56 --tokenizer runs/mine_tokenizer/model "
        f"--out {mine}_latents"
    )
    encode_recordings(open_recordings(mine), "pixels", tmp_path / "odd", size=(60, 76))
    assert "configs/maze.py" in examine(tmp_path / "odd").next  # our autoencoder does not take such sides


def test_large_pictures_take_a_pretrained_autoencoder(tmp_path, videos):
    videos.make(tmp_path / "clips" / "a.mp4", count=8, height=64, width=136)
    convert(tmp_path / "clips", tmp_path / "large")
    report = examine(tmp_path / "large")
    assert report.next.endswith(f"--tokenizer TOKENIZER --out {tmp_path / 'large'}_latents")
    assert any("TOKENIZER is the folder or the name" in note for note in report.notes)


def test_latents_without_actions_and_of_one_frame(tmp_path, videos, tokenizer):
    for name, count in (("a", 9), ("b", 1)):
        videos.make(tmp_path / "clips" / f"{name}.mp4", count=count)
    encode_recordings(open_recordings(tmp_path / "clips"), tokenizer, tmp_path / "latents")
    report = examine(tmp_path / "latents")
    assert not report.problems and "actions" not in report.facts and report.facts["latent frames"] == 10


def test_tokenizer_and_world_model(tmp_path, tokenizer):
    assert examine(tokenizer).kind == "tokenizer (Autoencoder)"
    model = AutoencoderConfig(channels=4, widths=(8, 8), blocks=(0, 0)).build()
    dit = DiTConfig(channels=4, size=(4, 4), dim=32, depth=2, heads=2, hidden=64, actions=1).build()
    spec = ActionSpec(names=("turn",), low=(-2.0,), high=(3.0,))
    world = WorldModel(dit=dit, tokenizer=model, actions=spec, fps=24.0, stream=StreamConfig(), card={"steps": 7})
    world.save(tmp_path / "world")
    report = examine(tmp_path / "world")
    assert (report.kind, report.problems) == ("world model", [])
    assert report.facts["parameters"] == sum(p.numel() for p in dit.parameters())
    assert (report.facts["pixels"], report.facts["fps"], report.facts["steps"]) == ("16x16", 24.0, 7)
    assert report.facts["actions"] == {"turn": [-2.0, 3.0]}
    weights = tmp_path / "world" / "model.safetensors"
    assert examine(weights).kind == "weights (safetensors)"
    weights.write_bytes(weights.read_bytes()[:-1])
    assert "model.safetensors" in examine(tmp_path / "world").problems[0]
    assert "model.safetensors" in examine(weights).problems[0]


def test_run_of_a_tokenizer(tmp_path):
    step = tmp_path / "run" / "checkpoints" / "step_00000007"
    step.mkdir(parents=True)
    (step / "state.json").write_text(
        json.dumps({"format": checkpoint.FORMAT, "step": 7, "run": {}, "objective": {}, "best": None, "metrics": {}})
    )
    AutoencoderConfig(channels=4, widths=(8, 8), blocks=(0, 0)).build().save(tmp_path / "run" / "model")
    folder = tmp_path / "run"
    assert examine(folder).next == f"worldmodel encode DATA --tokenizer {folder / 'model'} --out DATA_latents"
    assert load_tokenizer(folder).channels == load_tokenizer(folder / "model").channels == 4


def test_pipeline_of_diffusers(tmp_path):
    (tmp_path / "wan" / "vae").mkdir(parents=True)
    index = {"_class_name": "WanPipeline", "vae": ["diffusers", "AutoencoderKLWan"], "text_encoder": ["x", "y"]}
    (tmp_path / "wan" / "model_index.json").write_text(json.dumps(index))
    report = examine(tmp_path / "wan")
    assert (report.kind, report.facts) == ("diffusers pipeline WanPipeline", {"parts": ["vae"]})
    assert f"--tokenizer {tmp_path / 'wan' / 'vae'}" in report.next


def test_checkpoints_of_a_run(tmp_path):
    from safetensors.torch import save_file

    step = tmp_path / "run" / "checkpoints" / "step_00000007"
    step.mkdir(parents=True)
    (step / "state.json").write_text(
        json.dumps({"format": checkpoint.FORMAT, "step": 7, "run": {}, "objective": {}, "best": None, "metrics": {}})
    )
    save_file({"a": torch.zeros(2)}, step / "model.safetensors")
    assert examine(tmp_path / "run").facts["checkpoints"] == ["step_00000007"]
    (tmp_path / "run" / "model").mkdir()
    (tmp_path / "run" / "model" / "config.json").write_text('{"kind": "world model"}')
    assert examine(tmp_path / "run").next == f"worldmodel serve {tmp_path / 'run'}"
    report = examine(step)
    assert report.facts == {"step": 7, "model.safetensors": "1 tensors"} and not report.problems
    (step / "model.safetensors").write_bytes(b"cut")
    assert "model.safetensors" in examine(tmp_path / "run").problems[0]


@pytest.mark.parametrize(("name", "message"), [("a.pt", "a pickle could run code"), ("none", "no such file or folder")])
def test_what_is_refused(tmp_path, name, message):
    (tmp_path / "a.pt").write_bytes(b"x")
    with pytest.raises(UserError, match=message):
        examine(tmp_path / name)
