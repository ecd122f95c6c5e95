"""A checkpoint is continued only by the run that made it; a run's parts fit each other."""

import json
import math
import re
import shutil
from dataclasses import replace

import pytest
import torch
from accelerate.state import AcceleratorState
from tiny import TinyData, same_training, tensors_in, tiny_run

from worldmodel import checkpoint
from worldmodel.errors import UserError
from worldmodel.memory import LactConfig, SlowFastConfig, WindowConfig
from worldmodel.models.autoencoder import AutoencoderConfig
from worldmodel.models.dit import DiTConfig
from worldmodel.models.fast_layer import FastConfig
from worldmodel.models.lora import LoraConfig
from worldmodel.models.world import StreamConfig, WorldModel
from worldmodel.objectives.flow_matching import FlowMatching
from worldmodel.objectives.frechet_forcing import FrechetForcing
from worldmodel.objectives.own_rollouts import OwnRollouts
from worldmodel.objectives.reconstruction import Reconstruction
from worldmodel.optim import AdamW, Muon, Schedule
from worldmodel.rollout import join, replay, rollout, start
from worldmodel.sampler import Euler
from worldmodel.train import train


@pytest.mark.parametrize(
    ("data", "changes", "message"),
    [
        (
            {"held_out": ("0/1",)},
            {},
            r"data\.split\.validation was \['0/3'\], this run's is \['0/1'\]; choose another out",
        ),
        ({"low": -3.0}, {}, r"data\.action_spec\.low was \[-2\.0, -2\.0, -2\.0\], this run's is \[-3\.0"),
        ({"batch": 8}, {}, "data.batch was 4, this run's is 8;"),
        ({"length": 8}, {}, "data.length was 6, this run's is 8;"),
        ({"curriculum": ((1, 4),)}, {}, r"data\.curriculum was \[\], this run's is \[\[1, 4\]\];"),
        ({}, {"seed": 1}, "seed was 0, this run's is 1;"),
        ({}, {"micro": 2}, "micro was 1, this run's is 2;"),
        (
            {},
            {"model": DiTConfig(channels=2, size=(4, 6), chunk=2, dim=16, heads=1, actions=3)},
            "model.depth was 1, thi",
        ),
        ({}, {"ema": 0.5}, "ema was 0.9, this run's is 0.5;"),
        ({}, {"ema": 0.0}, "ema was 0.9, this run's is 0.0;"),
        ({}, {"precision": "bf16"}, "precision was fp32, this run's is bf16;"),
        ({}, {"clip_grad": 0.5}, "clip_grad was 1.0, this run's is 0.5;"),
        ({}, {"clip_grad": math.inf}, "clip_grad was 1.0, this run's is inf;"),
        ({"weights": (1.0, 2.0)}, {}, r"data\.weights was \[\], this run's is \[1\.0, 2\.0\];"),
        ({}, {"objective": FlowMatching(context_noise=0.3)}, r"objective\.context_noise was 0\.2, this run's is 0\.3;"),
        ({}, {"optimizer": Muon()}, r"optimizer\.type was AdamW, this run's is Muon;"),
    ],
    ids=lambda value: value[:20] if isinstance(value, str) else "",
)
def test_another_run_does_not_resume(data, changes, message, tmp_path):
    train(tiny_run(tmp_path / "run", steps=2, validate=0))
    before = tensors_in(tmp_path / "run")
    AcceleratorState._reset_state()  # accelerate keeps one precision per process
    with pytest.raises(UserError, match=message) as error:
        train(tiny_run(tmp_path / "run", data, **changes))
    AcceleratorState._reset_state()
    assert "step_00000002/state.json: " in str(error.value) and "\n" not in str(error.value)
    after = tensors_in(tmp_path / "run")
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_the_stream_is_part_of_what_rolls_out(tmp_path):
    """An objective that trains on rollouts makes them with it, and a memory shorter than the clips limits what chunks
    see; else it is how the model is deployed, and may change."""
    streams = {ring: StreamConfig(memory=WindowConfig(ring=ring), sampler=Euler(steps=1)) for ring in (4, 6, 8)}
    forcing = FrechetForcing(rollouts=OwnRollouts(lengths=((0, 1),)), context=0.0, reality=0.0, anchor=1.0)

    def go(name, steps, objective, ring):
        train(tiny_run(tmp_path / name, {"length": 8}, steps=steps, objective=objective, stream=streams[ring]))

    go("plain", 1, FlowMatching(), 6)
    go("plain", 2, FlowMatching(), 8)
    assert WorldModel.load(tmp_path / "plain" / "model").stream == streams[8]
    for name, objective in (("short", FlowMatching()), ("rolls", forcing)):
        go(name, 1, objective, 4)
        found = r"\.ring was 4, this run's is 6" if name == "rolls" else r" was WindowConfig, this run's is one that"
        with pytest.raises(UserError, match=rf"stream\.memory{found}.*; choose another out folder"):
            go(name, 2, objective, 6)
        go(name, 2, objective, 4)


@pytest.mark.parametrize("memory", [SlowFastConfig(sink=0, slow=2, fast=2, every=2), LactConfig(ring=2)], ids=str)
def test_a_memory_is_trained_and_deployed(memory, tmp_path):
    """On clips longer than it, stopped and resumed to the same bits; the world that is saved streams with it."""
    fast = FastConfig(groups=1, momentum=True) if isinstance(memory, LactConfig) else None
    model = replace(tiny_run(tmp_path / "whole").model, fast=fast)
    changes = {"model": model, "stream": StreamConfig(memory=memory, sampler=Euler(steps=1)), "steps": 4}
    changes |= {"objective": FlowMatching(drift=0.5, errors=16)}
    train(tiny_run(tmp_path / "whole", {"length": 12}, **changes))
    train(tiny_run(tmp_path / "run", {"length": 12, "stop_at": 2}, **changes))
    train(tiny_run(tmp_path / "run", {"length": 12}, **changes))
    assert same_training(tmp_path / "whole", tmp_path / "run")
    world = WorldModel.find(tmp_path / "run")
    assert world.stream.memory == memory and world.dit.cfg.fast == fast
    clip = next(TinyData(folder=tmp_path, length=12).batches(0, 0, 1, 1))[0]
    state = start(world.dit, memory, torch.arange(4), clip.frames(0, 2))
    with torch.no_grad():
        made = join(rollout(world.dit, replay(clip.control.frames(2, 12), 2), world.stream.sampler, state))
    assert made.shape[1] == 10 and made.isfinite().all()


def test_adapters_go_on_upon_the_same_weights(tmp_path):
    """Wherever they lie; where all weights are trained, `init` is but a start and may be another one."""
    for seed in (0, 1):
        train(tiny_run(tmp_path / f"base{seed}", seed=seed, steps=3, ema=0.0))
    adapted = {"lora": LoraConfig(rank=2), "init": str(tmp_path / "base0")}
    whole = train(tiny_run(tmp_path / "whole", **adapted))
    train(tiny_run(tmp_path / "run", {"stop_at": 3}, **adapted))
    other = adapted | {"init": str(tmp_path / "base1")}
    before = tensors_in(tmp_path / "run")
    with pytest.raises(
        UserError, match=r"state\.json: init was .*/base0 \(frozen weights [0-9a-f]{8}\), this"
    ) as error:
        train(tiny_run(tmp_path / "run", **other))
    assert re.search(r"this run's is \S*/base1 \(frozen weights [0-9a-f]{8}\); choose another", str(error.value))
    assert all(torch.equal(before[name], tensor) for name, tensor in tensors_in(tmp_path / "run").items())
    shutil.copytree(tmp_path / "base0" / "model", tmp_path / "moved")
    assert train(tiny_run(tmp_path / "run", **adapted | {"init": str(tmp_path / "moved")})) == whole
    assert same_training(tmp_path / "whole", tmp_path / "run")

    whole = train(tiny_run(tmp_path / "all", init=str(tmp_path / "base0")))
    train(tiny_run(tmp_path / "part", {"stop_at": 3}, init=str(tmp_path / "base0")))
    assert train(tiny_run(tmp_path / "part", init=str(tmp_path / "base1"))) == whole


def test_a_checkpoint_names_its_run(tmp_path):
    train(tiny_run(tmp_path / "run", steps=2, validate=0))
    state = checkpoint.steps(tmp_path / "run")[-1] / "state.json"
    whole = json.loads(state.read_text())
    for name in (None, "model", "seed", "data.split", "micro", "objective", "lora"):
        run = {key: value for key, value in whole["run"].items() if name not in (None, key)}
        state.write_text(json.dumps(whole | {"run": run}))
        with pytest.raises(UserError, match=rf"state\.json: key 'run' does not hold '{name or 'model'}'"):
            train(tiny_run(tmp_path / "run", steps=3))
    state.write_text(json.dumps(whole | {"objective": {"step": "a"}}))
    with pytest.raises(UserError, match=r"state\.json: key 'objective' holds \['step'\], this .* is \[\]"):
        train(tiny_run(tmp_path / "run", steps=3))


def test_what_may_change_on_resume(tmp_path):
    """How far and how fast, and what is written meanwhile; a checkpoint of format 1 knew four of the names."""
    train(tiny_run(tmp_path / "run", steps=2, validate=0))
    rates = {"optimizer": AdamW(lr=1e-3), "schedule": Schedule(warmup=1, floor=0.1)}
    train(tiny_run(tmp_path / "run", steps=3, validate=0, checkpointing=True, log_every=2, save_every=1, **rates))
    state = checkpoint.steps(tmp_path / "run")[-1] / "state.json"
    data = json.loads(state.read_text())
    del data["run"]["objective"]["std"]  # of a version without that field, whose default it is
    state.write_text(json.dumps(data))
    train(tiny_run(tmp_path / "run", steps=4))
    state = checkpoint.steps(tmp_path / "run")[-1] / "state.json"
    data = json.loads(state.read_text())
    run = data.pop("run")
    names = {"model": run["model"], "actions": run["data.action_spec"], "split": run["data.split"], "seed": run["seed"]}
    state.write_text(json.dumps({**data, **names, "format": 1}))
    with pytest.raises(UserError, match="seed was 0, this run's is 2;"):
        train(tiny_run(tmp_path / "run", steps=5, seed=2))
    train(tiny_run(tmp_path / "run", steps=5))
    assert checkpoint.read_state(checkpoint.steps(tmp_path / "run")[-1])["run"]["data.batch"] == 4
    with pytest.raises(UserError, match=r"state\.json: model: unknown key 'deep'"):
        state = checkpoint.steps(tmp_path / "run")[-1] / "state.json"
        data = json.loads(state.read_text())
        data["run"]["model"]["deep"] = 3
        state.write_text(json.dumps(data))
        train(tiny_run(tmp_path / "run", steps=6))


def test_parts_that_do_not_fit(tmp_path):
    model = {"channels": 2, "size": (4, 6), "chunk": 2, "dim": 16, "depth": 1, "heads": 1, "actions": 3}
    for changes, message in (
        ({"actions": 2}, r"model\.actions is 2, the data's actions have size 3"),
        ({"channels": 4}, r"model\.channels and model\.size are \(4, 4, 6\), the latents are \(2, 4, 6\)"),
        ({"chunk": 4}, r"clips of 6 frames do not cut into chunks of model\.chunk = 4"),
    ):
        with pytest.raises(UserError, match=message):
            train(tiny_run(tmp_path / "run", model=DiTConfig(**(model | changes))))
    short = StreamConfig(memory=WindowConfig(ring=1))
    with pytest.raises(UserError, match=r"stream\.memory: .* a ring of 1 frames does not hold one chunk of 2"):
        train(tiny_run(tmp_path / "run", stream=short))
    with pytest.raises(UserError, match="clips of 6 frames must be chunks of 2, more than the 3 that are only context"):
        train(tiny_run(tmp_path / "run", objective=FlowMatching(context=3)))
    autoencoder = AutoencoderConfig(channels=2, widths=(4,), blocks=(0,))
    with pytest.raises(UserError, match=r"learns from RGB pictures, the data's frames are \(2, 4, 6\)"):
        train(tiny_run(tmp_path / "run", model=autoencoder, objective=Reconstruction()))
    with pytest.raises(UserError, match="objective FlowMatching does not train a AutoencoderConfig"):
        train(tiny_run(tmp_path / "run", model=autoencoder))
    (tmp_path / "file").write_text("x")
    with pytest.raises(UserError, match="file/run: cannot be made"):
        train(replace(tiny_run(tmp_path / "run"), out=tmp_path / "file" / "run"))
    assert not checkpoint.steps(tmp_path / "run")
