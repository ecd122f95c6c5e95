"""A stream on disk goes on bit for bit; every other file is refused in one line."""

import copy
import json
from dataclasses import replace

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from tiny import small_clip, small_dit

from worldmodel.errors import UserError
from worldmodel.memory import FullConfig, LastFrameConfig, WindowConfig
from worldmodel.models.dit import DiT
from worldmodel.rollout import replay, rollout, start
from worldmodel.sampler import Euler, Pipelined
from worldmodel.session import restore, snapshot

EULER = Euler(steps=2)
WINDOW = WindowConfig(sink=2, ring=4)
SEEDS = torch.tensor([2**62 + 1, 5])


@pytest.fixture(scope="module", params=[False, True], ids=["plain", "anchor"])
def model(request):
    return small_dit(anchor=request.param)


@pytest.fixture(scope="module")
def clip(model):
    return small_clip(model, frames=24)


@torch.no_grad()
def go_on(model, sampler, control, state):
    made = list(rollout(model, replay(control, 2, sampler.lookahead), sampler, state, 0.1))
    return torch.cat([chunk.x for chunk, _ in made], 1), made[-1][1]


def begun(model, clip, memory, sampler=EULER):
    """A stream in the middle, with one row at rest."""
    with torch.no_grad():
        state = start(model, memory, SEEDS, clip.frames(0, 4))
    _, state = go_on(model, sampler, clip.control.frames(4, 12), state)
    return state.reset(torch.tensor([True, False]), torch.tensor([7, 0]))


@pytest.mark.parametrize("sampler", [EULER, Pipelined(chunks=2, steps=2)], ids=lambda s: type(s).__name__)
@pytest.mark.parametrize("memory", [FullConfig(), WINDOW], ids=str)
def test_goes_on_bit_for_bit(model, clip, memory, sampler, tmp_path):
    state = begun(model, clip, memory, sampler)
    snapshot(state, model, memory, tmp_path / "s.safetensors")
    again = restore(tmp_path / "s.safetensors", model, memory)
    assert [(a.dtype, a.tolist()) for a in (again.frame, again.seed, again.active)] == [
        (a.dtype, a.tolist()) for a in (state.frame, state.seed, state.active)
    ]
    control = clip.control.frames(12, 24)
    expected, _ = go_on(model, sampler, control, state)
    for _ in range(2):  # the file can be read again and again
        made, _ = go_on(model, sampler, control, restore(tmp_path / "s.safetensors", model, memory))
        assert torch.equal(made, expected)


def test_replaces_an_older_file_in_one_piece(model, clip, tmp_path, monkeypatch):
    path = tmp_path / "s.safetensors"
    snapshot(begun(model, clip, WINDOW), model, WINDOW, path)
    before = path.read_bytes()
    alive = restore(path, model, WINDOW)
    snapshot(begun(model, clip, WINDOW, Pipelined(chunks=2, steps=2)), model, WINDOW, path)
    assert path.read_bytes() != before and restore(path, model, WINDOW).pending is not None
    assert alive.frame.tolist() == [0, 12]  # what was read from the older file does not change
    assert [p.name for p in tmp_path.iterdir()] == ["s.safetensors"]


def rewrite(path, change):
    """The file with other tensors or another description."""
    with safe_open(path, "pt") as file:
        about = json.loads(file.metadata()["worldmodel"])
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no mapping)
    change(about, tensors)
    save_file(tensors, path, {"worldmodel": json.dumps(about)})


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda p: p.write_bytes(p.read_bytes()[:-7]), "not a complete safetensors file"),
        (lambda p: p.write_bytes(b""), "not a complete safetensors file"),
        (lambda p: p.write_bytes(b"\x80\x04K\x01."), "not a complete safetensors file"),
        (lambda p: p.unlink(), "no such file"),
        (lambda p: save_file({"x": torch.zeros(1)}, p), "names no format version"),
        (lambda p: save_file({"x": torch.zeros(1)}, p, {"worldmodel": "{"}), "not the state of a stream"),
        (lambda p: rewrite(p, lambda a, t: a.update(format=3)), "format 3 is newer than 2"),
        (lambda p: rewrite(p, lambda a, t: a.update(format="1")), "names no format version"),
        (lambda p: rewrite(p, lambda a, t: a.pop("memory")), "key 'memory' is missing"),
        (lambda p: rewrite(p, lambda a, t: a.pop("model") and a.update(format=1)), "key 'model' is missing"),
        (lambda p: rewrite(p, lambda a, t: a.update(model=7)), "a stream of another model"),
        (lambda p: rewrite(p, lambda a, t: a["memory"].update(type="Other")), "memory: type 'Other' is none of"),
        (lambda p: rewrite(p, lambda a, t: t.pop("memory.held")), "'held' is missing"),
        (lambda p: rewrite(p, lambda a, t: t.pop("seed")), "'seed' is missing"),
        (lambda p: rewrite(p, lambda a, t: t.update(seed=torch.zeros(3))), "different numbers of rows"),
        (lambda p: rewrite(p, lambda a, t: t.update({"memory.held": torch.zeros(2, 5)})), "holds 5 frames, not 6"),
    ],
)
def test_other_files_are_refused(model, clip, spoil, message, tmp_path):
    path = tmp_path / "s.safetensors"
    snapshot(begun(model, clip, WINDOW), model, WINDOW, path)
    spoil(path)
    with pytest.raises(UserError, match=message) as error:
        restore(path, model, WINDOW)
    assert str(path) in str(error.value) and "\n" not in str(error.value)


def test_another_memory_is_refused(model, clip, tmp_path):
    path = tmp_path / "s.safetensors"
    snapshot(begun(model, clip, WINDOW), model, WINDOW, path)
    for other in (FullConfig(), WindowConfig(sink=2, ring=6), WindowConfig(sink=4, ring=2)):
        with pytest.raises(UserError, match=r"a stream with the memory .*WindowConfig.*'sink': 2"):
            restore(path, model, other)


def test_another_model_is_refused(model, clip, tmp_path):
    path = tmp_path / "s.safetensors"
    snapshot(begun(model, clip, WINDOW), model, WINDOW, path)
    retrained = copy.deepcopy(model)
    next(iter(retrained.state_dict().values())).view(-1)[0] += 1e-3
    rewired = DiT(replace(model.cfg, eps=1e-5))  # the same weights under another configuration
    rewired.load_state_dict(model.state_dict())
    for other in (retrained, rewired, small_dit(anchor=not model.cfg.anchor)):
        with pytest.raises(UserError, match=r"s\.safetensors: a stream of another model"):
            restore(path, other, WINDOW)
    same = copy.deepcopy(model)
    assert torch.equal(restore(path, same, WINDOW).frame, restore(path, model, WINDOW).frame)


def test_a_memory_that_restore_does_not_know_is_not_written(model, clip, tmp_path):
    with pytest.raises(UserError, match=r"s\.safetensors: a stream with the memory LastFrameConfig could not be read"):
        snapshot(begun(model, clip, WINDOW), model, LastFrameConfig(), tmp_path / "s.safetensors")
    assert not list(tmp_path.iterdir())


def test_a_folder_that_is_not_there(model, clip, tmp_path):
    with pytest.raises(UserError, match=r"nowhere/s\.safetensors: could not be written"):
        snapshot(begun(model, clip, WINDOW), model, WINDOW, tmp_path / "nowhere" / "s.safetensors")
    with pytest.raises(UserError, match="a pickle could run code"):
        restore(tmp_path / "s.pt", model, WINDOW)
