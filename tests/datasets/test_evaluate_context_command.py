"""`evaluate context` from end to end: a maze with revisits, an untrained model, the command line."""

import json
from pathlib import Path

import pytest
import torch

from worldmodel.actions import ActionSpec
from worldmodel.cli import main
from worldmodel.datasets.evaluate import context
from worldmodel.errors import UserError
from worldmodel.memory import FullConfig
from worldmodel.models.dit import DiTConfig
from worldmodel.models.pixel_tokenizer import PixelTokenizer, PixelTokenizerConfig
from worldmodel.models.world import StreamConfig, WorldModel
from worldmodel.sampler import Euler


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    torch.manual_seed(0)
    sizes = {"channels": 3, "size": (16, 16), "patch": 8, "chunk": 4, "dim": 16, "depth": 1, "heads": 1, "hidden": 16}
    dit = DiTConfig(**sizes, actions=2, rank=2, time_width=8).build()
    spec = ActionSpec(names=("turn", "forward"), low=(-9.0, -1.0), high=(9.0, 1.0))
    stream = StreamConfig(sampler=Euler(steps=1))
    folder = tmp_path_factory.mktemp("world") / "model"
    WorldModel(dit, PixelTokenizer(PixelTokenizerConfig()), spec, 24.0, stream).save(folder)
    return folder


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("data") / "revisit"
    words = f"collect maze/small --policy revisit --size 16 --episodes 6 --frames 260 --seed 20 --out {folder}"
    assert main(words.split()) == 0
    return folder


def test_a_model_is_measured_with_its_own_and_with_another_memory(model, data, tmp_path, capsys):
    out = tmp_path / "out"
    words = ["evaluate", "context", f"own={model}", f"full={model}", "--data", str(data), "--out", str(out)]
    options = ["--memory", 'full={"type": "FullConfig"}', "--measures", "psnr", "--lead", "24", "--visits", "2"]
    assert main([*words, *options]) == 0
    printed = capsys.readouterr().out
    assert "full: longer effective context than own" in printed
    report = json.loads((out / "context.json").read_text())
    assert report["command"].startswith(f"worldmodel evaluate context own={model} full={model} --data {data}")
    metrics, curves = report["metrics"], report["curves"]
    assert metrics["full/memory_bytes"]["value"] > metrics["own/memory_bytes"]["value"] > 0
    assert curves["memory"]["full"] == str(FullConfig())
    assert len(curves["horizons"]) >= 1
    for horizon in curves["horizons"]:
        assert metrics[f"own/score_n{horizon}"]["n"] == 2
    assert 0 <= metrics["own/effective_context_frames"]["value"] <= 130
    assert (out / "context.html").stat().st_size > 10_000
    assert (out / "visits1.png").is_file()


def test_recordings_without_visits_are_one_clear_line(model, tmp_path, capsys):
    folder = tmp_path / "explore"
    main(f"collect maze/small --size 16 --episodes 1 --frames 30 --out {folder}".split())
    capsys.readouterr()
    assert main(["evaluate", "context", str(model), "--data", str(folder), "--measures", "psnr"]) == 2
    assert capsys.readouterr().err.startswith("error: no visits found: no episode looks at something, turns away")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"visits": 1}, "--visits must be at least 2, not 1"),
        ({"lead": 0}, "--lead must be at least 1, not 0"),
        ({"views": 0}, "--views must be at least 1, not 0"),
        ({"rivals": 0}, "--rivals must be at least 1, not 0"),
        ({"seeds": (1, 1)}, "--seeds takes different numbers"),
        ({"memory": ("{",)}, "--memory {: not valid JSON"),
    ],
)
def test_numbers_out_of_range_are_refused_before_anything_is_read(options, message):
    with pytest.raises(UserError, match=f"^{message}"):
        context(("nothing",), Path("nothing"), **options)
