"""A world model is a folder that comes back as it was; every broken one is refused in a line that names the file."""

import json
import pickle
import shutil
from dataclasses import dataclass, replace
from types import SimpleNamespace

import pytest
import torch
from tiny import small_clip, small_dit

from worldmodel.actions import ActionSpec
from worldmodel.errors import UserError
from worldmodel.memory import FullConfig, LastFrameConfig, WindowConfig
from worldmodel.models.autoencoder import AutoencoderConfig
from worldmodel.models.world import StreamConfig, WorldModel
from worldmodel.rollout import join, replay, rollout, start
from worldmodel.sampler import Euler, FewStep, FirstChunks, Heun, Pipelined
from worldmodel.weights import read_tensors, write_tensors

SPEC = ActionSpec(names=("a", "b", "c"), low=(-1.0,) * 3, high=(1.0,) * 3)
STREAM = StreamConfig(memory=WindowConfig(sink=2, ring=4), sampler=Euler(steps=2), context_time=0.1)


def world(starts=True, stream=STREAM, **changes):
    dit = small_dit(**changes)
    torch.manual_seed(1)
    tokenizer = AutoencoderConfig(channels=2, widths=(4,), blocks=(0,)).build().requires_grad_(False)
    clip = small_clip(dit, rows=3, frames=4) if starts else None
    actions = SPEC if dit.cfg.actions else None
    return WorldModel(
        dit=dit.requires_grad_(False), tokenizer=tokenizer, actions=actions, fps=24.0, stream=stream, starts=clip,
        card={"note": "for people", "seeds": [1, 2]},
    )  # fmt: skip


@torch.no_grad()
def dream(made, clip):
    state = start(made.dit, made.stream.memory, torch.tensor([1, 2, 3]), clip.frames(0, 2), made.stream.context_time)
    controls = replay(clip.control.frames(2, 8), 2, made.stream.sampler.lookahead)
    latents = join(rollout(made.dit, controls, made.stream.sampler, state, made.stream.context_time))
    return made.tokenizer.decode(latents)


@pytest.mark.parametrize(
    "stream",
    [
        STREAM,
        StreamConfig(memory=FullConfig(), sampler=Heun(steps=1, guidance=1.5)),
        StreamConfig(sampler=FewStep(levels=(1.0, 0.5)), memory=WindowConfig(ring=2)),
        StreamConfig(sampler=FirstChunks(first=Euler(steps=3), chunks=1, then=Euler(steps=1))),
        StreamConfig(sampler=Pipelined(chunks=2, steps=2)),
    ],
    ids=lambda s: type(s.sampler).__name__,
)
def test_there_and_back(stream, tmp_path):
    made = world(stream=stream)
    made.save(tmp_path / "w")
    again = WorldModel.load(tmp_path / "w")
    assert (again.actions, again.fps, again.stream, again.card) == (made.actions, 24.0, stream, made.card)
    assert again.dit.cfg == made.dit.cfg and again.pixel_frames == 2 and str(again.device) == "cpu"
    assert not any(p.requires_grad for m in (again.dit, again.tokenizer) for p in m.parameters())
    clip = small_clip(made.dit, rows=3, frames=8, seed=3)
    assert torch.equal(dream(again, clip), dream(made, clip))
    for a, b in ((again.starts.x, made.starts.x), (again.starts.control.action, made.starts.control.action)):
        assert torch.equal(a, b)
    assert torch.equal(again.starts.control.has_action, made.starts.control.has_action)
    again.save(tmp_path / "w")  # over the files that it was read from
    third = WorldModel.load(tmp_path / "w")
    assert torch.equal(dream(third, clip), dream(made, clip)) and torch.equal(third.starts.x, made.starts.x)


@dataclass(frozen=True, kw_only=True)
class MyEuler(Euler):
    """A sampler that no saved world knows."""


class Nameless(WindowConfig):
    """A memory with the fields of a known one."""


Nameless.__name__ = "WindowConfig"


@pytest.mark.parametrize(
    ("stream", "named"),
    [
        (replace(STREAM, memory=LastFrameConfig()), r"stream.memory: type 'LastFrameConfig' is none of"),
        (replace(STREAM, memory=Nameless(ring=4)), r"stream.memory is another .*Nameless"),
        (replace(STREAM, memory=SimpleNamespace(capacity=1)), "SimpleNamespace has no place"),
        (replace(STREAM, sampler=MyEuler()), r"stream.sampler: type 'MyEuler' is none of"),
        (
            replace(STREAM, sampler=FirstChunks(first=MyEuler(), chunks=1, then=Euler())),
            r"stream.sampler.first: type 'MyEuler' is none of",
        ),
    ],
)
def test_what_could_not_be_read_back_is_not_written(stream, named, tmp_path):
    world().save(tmp_path / "w")
    before = {path: path.read_bytes() for path in (tmp_path / "w").rglob("*") if path.is_file()}
    with pytest.raises(UserError, match=named):
        world(stream=stream).save(tmp_path / "w")
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    with pytest.raises(UserError, match=named):
        world(stream=stream).save(tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_without_actions_and_beginnings(tmp_path):
    world().save(tmp_path / "w")
    made = world(starts=False, actions=0)
    made.save(tmp_path / "w")  # over a model that had both
    again = WorldModel.load(tmp_path / "w")
    assert again.actions is None and again.starts is None
    assert not list(tmp_path.rglob("*.partial"))


def config(**changes):
    def spoil(folder):
        path = folder / "config.json"
        data = json.loads(path.read_text()) | changes
        path.write_text(json.dumps({k: v for k, v in data.items() if v != "remove"}))

    return spoil


def inside(key, **changes):
    def spoil(folder):
        path = folder / "config.json"
        data = json.loads(path.read_text())
        data[key] |= changes
        path.write_text(json.dumps(data))

    return spoil


def tensors(name, **changes):
    def spoil(folder):
        write_tensors(read_tensors(folder / name) | changes, folder / name)

    return spoil


def cut(name):
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:-9])


def pickled(folder):
    (folder / "model.safetensors").unlink()
    (folder / "model.bin").write_bytes(pickle.dumps({}))


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("world") / "w"
    world().save(folder)
    return folder


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (shutil.rmtree, "w: no such folder; a world model is a folder with config.json in it"),
        (lambda f: (f / "config.json").unlink(), r"config\.json: no such file"),
        (lambda f: (f / "config.json").write_text("{"), r"config\.json: not valid JSON"),
        (lambda f: (f / "config.json").write_text("[1]"), r"config\.json: not the configuration of a world model"),
        (config(kind="autoencoder"), r"config\.json: not the configuration of a world model"),
        (config(format=99), r"config\.json: format 99 is newer than 1, which this version reads"),
        (config(format="1"), r"config\.json: names no format version"),
        (config(stream="remove"), r"config\.json: key 'stream' is missing"),
        (config(fps="fast"), r"config\.json: fps must be a number above 0, not 'fast'"),
        (config(fps=0), r"config\.json: fps must be a number above 0, not 0"),
        (inside("dit", dim="wide"), r"config\.json: dit\.dim: expected int, found 'wide'"),
        (inside("dit", heads=0), r"config\.json: dit: DiT: heads must be at least 1"),
        (inside("dit", size=[4]), r"config\.json: dit\.size: expected 2 values, found 1"),
        (inside("dit", new_thing=1), r"config\.json: dit: unknown key 'new_thing'"),
        (inside("dit", depth=3), r"model\.safetensors: weight 'blocks\.2\..*' is missing"),
        (inside("dit", dim=64), r"model\.safetensors: weight '.*' has shape .* the model expects"),
        (inside("actions", low=[0.0, 0.0]), r"config\.json: actions: actions .* 2 low and 3 high"),
        (inside("actions", pack=2), r"config\.json: actions of size 6, the model takes 3"),
        (config(actions=None), r"config\.json: actions of size 0, the model takes 3"),
        (inside("stream", memory={"type": "Elephant"}), r"config\.json: stream\.memory: type 'Elephant' is none of"),
        (inside("stream", sampler={"type": "Euler", "steps": 0}), r"stream\.sampler: Euler: steps must be in"),
        (cut("model.safetensors"), r"w/model\.safetensors: not a complete safetensors file"),
        (lambda f: (f / "model.safetensors").write_bytes(b""), r"w/model\.safetensors: not a complete"),
        (pickled, r"w/model\.safetensors: no such file; model\.bin is a pickle, which could run code"),
        (tensors("model.safetensors", extra=torch.zeros(1)), r"model\.safetensors: unknown weight 'extra'"),
        (
            tensors("model.safetensors", table_out=torch.full((2, 32), torch.nan)),
            r"model\.safetensors: weight 'table_out' holds values that are not finite",
        ),
        (lambda f: shutil.rmtree(f / "tokenizer"), r"w/tokenizer: no such folder"),
        (cut("tokenizer/model.safetensors"), r"tokenizer/model\.safetensors: not a complete"),
        (
            lambda f: AutoencoderConfig(channels=4, widths=(4,), blocks=(0,)).build().save(f / "tokenizer"),
            r"config\.json: 2 latent channels, but its tokenizer makes 4",
        ),
        (cut("starts.safetensors"), r"starts\.safetensors: not a complete"),
        (tensors("starts.safetensors", x=torch.zeros(3, 4, 2, 8, 8)), r"starts\.safetensors: not the beginnings"),
        (tensors("starts.safetensors", x=torch.zeros(3, 3, 2, 4, 6)), r"starts\.safetensors: not the beginnings"),
        (tensors("starts.safetensors", x=torch.zeros(4)), r"starts\.safetensors: not the beginnings"),
        (tensors("starts.safetensors", action=torch.zeros(3, 4, 5)), r"starts\.safetensors: not the beginnings"),
        (config(fps=float("inf")), r"config\.json: fps must be a number above 0, not inf"),
        (config(fps=float("nan")), r"config\.json: fps must be a number above 0, not nan"),
        (config(fps=True), r"config\.json: fps must be a number above 0, not True"),
        (config(card=[1]), r"config\.json: card: expected an object, found list"),
        (config(stream_of=1), r"config\.json: unknown key 'stream_of'"),
        (inside("stream", context_time=1.0), r"stream\.context_time must be in \[0, 1\), not 1\.0"),
        (inside("stream", context_time=-0.1), r"stream\.context_time must be in \[0, 1\)"),
        (inside("stream", context_time=float("nan")), r"stream\.context_time: expected a finite number, found nan"),
        (
            inside("stream", memory={"type": "WindowConfig", "ring": 1}),
            r"stream\.memory: .* a ring of 1 frames does not hold one chunk of 2",
        ),
        (
            inside("stream", memory={"type": "WindowConfig", "ring": 10**12}),
            r"stream\.memory holds 1000000000000 frames, at most 65536",
        ),
        (inside("dit", dim=2**40), r"config\.json: dit\.dim is 1099511627776, but .*model\.safetensors holds"),
        (inside("dit", hidden=2**62), r"config\.json: dit\.hidden is 4611686018427387904"),
        (inside("dit", depth=2**40), r"config\.json: dit\.depth is 1099511627776"),
        (inside("dit", chunk=2**40), r"config\.json: dit\.chunk is 1099511627776, at most 65536"),
        (inside("dit", size=[2**40, 6]), r"config\.json: dit\.size is 1099511627776, at most 65536"),
        (
            lambda f: (f / "config.json").write_text("[" * 100_000),
            r"config\.json: not valid JSON for us \(nested too deep\)",
        ),
        (lambda f: (f / "config.json").write_text('{"format": 1' + "0" * 5000 + "}"), r"config\.json: not valid JSON"),
        (
            tensors("model.safetensors", table_out=torch.zeros(2, 32, dtype=torch.complex64)),
            r"model\.safetensors: weight 'table_out' is of type torch\.complex64, the model's is torch\.float32",
        ),
        (
            tensors("model.safetensors", table_out=torch.zeros(2, 32, dtype=torch.int64)),
            r"model\.safetensors: weight 'table_out' is of type torch\.int64",
        ),
        (
            tensors(
                "starts.safetensors",
                x=torch.zeros(0, 4, 2, 4, 6),
                action=torch.zeros(0, 4, 3),
                has_action=torch.zeros(0, 4, dtype=torch.bool),
            ),
            r"starts\.safetensors: not the beginnings",
        ),
        (
            tensors(
                "starts.safetensors",
                x=torch.zeros(3, 0, 2, 4, 6),
                action=torch.zeros(3, 0, 3),
                has_action=torch.zeros(3, 0, dtype=torch.bool),
            ),
            r"starts\.safetensors: not the beginnings",
        ),
        (
            tensors("starts.safetensors", x=torch.full((3, 4, 2, 4, 6), torch.nan)),
            r"starts\.safetensors: 'x' holds values that are not finite",
        ),
        (
            tensors("starts.safetensors", action=torch.full((3, 4, 3), torch.inf)),
            r"starts\.safetensors: 'action' holds values that are not finite",
        ),
        (tensors("starts.safetensors", text=torch.zeros(3)), r"starts\.safetensors: not the beginnings"),
    ],
)
def test_broken_folders_are_one_clear_line(spoil, message, saved, tmp_path):
    folder = shutil.copytree(saved, tmp_path / "w")
    spoil(folder)
    with pytest.raises(UserError, match=message) as error:
        WorldModel.load(folder)
    assert "\n" not in str(error.value) and str(tmp_path) in str(error.value)


@pytest.mark.parametrize("device", ["gpu", "cuda:99", "meta", ""])
def test_devices_that_are_not_here(device, saved):
    with pytest.raises(UserError, match=f"device '{device}' cannot be used here: ") as error:
        WorldModel.load(saved, device)
    assert "\n" not in str(error.value)


def test_a_pickle_instead_of_a_folder(tmp_path):
    (tmp_path / "model.pt").write_bytes(pickle.dumps({}))
    with pytest.raises(UserError, match=r"model\.pt: a pickle could run code"):
        WorldModel.load(tmp_path / "model.pt")


def test_a_full_disk_is_one_line(tmp_path, monkeypatch):
    made = world()
    made.save(tmp_path / "w")

    def full(*_, encoding=None):
        raise OSError(28, "No space left")

    monkeypatch.setattr("pathlib.Path.write_text", full)
    with pytest.raises(UserError, match=r"config\.json: could not be written \(No space left\)"):
        made.save(tmp_path / "w")
    monkeypatch.undo()
    WorldModel.load(tmp_path / "w")
