"""Checkpoints: exact, never half there, the older ones safe; everything that does not fit is named."""

import errno
import json
import math
import os
import pickle
import shutil

import pytest
import torch
from tiny import FROM_CLEAN, close, free_port, small_clip, small_dit
from torch import distributed
from torch.distributed.fsdp import fully_shard

from worldmodel import checkpoint
from worldmodel.checkpoint import Role
from worldmodel.ema import Ema
from worldmodel.errors import UserError
from worldmodel.objectives.flow_matching import FlowMatching
from worldmodel.optim import AdamW, Muon
from worldmodel.weights import read_tensors, write_tensors

STATE = {"run": {"seed": 0}, "objective": {}, "best": None, "metrics": {"loss": 1.5}}


def role(kind=AdamW, seed=0, steps=3, ema=True, frozen=()):
    """A model after some steps of training."""
    model = small_dit(seed)
    for name, p in model.named_parameters():
        p.requires_grad_(not name.startswith(tuple(frozen)))
    made = Role(model, kind(lr=1e-2).build(model), Ema(model, 0.5) if ema else None)
    advance(made, steps)
    return made


def advance(made, steps, seed=0, rows=None):
    objective = FlowMatching().build(made.model, made.model.cfg, seed)
    for step in range(steps):
        clip = small_clip(made.model, rows=4, seed=step)
        objective.loss(clip if rows is None else clip.select(rows)).backward()
        for optimizer in made.optimizers:
            optimizer.step()
            optimizer.zero_grad()
        if made.ema:
            made.ema.update()


def half_of_a_sharded_run(rank, port, out, kind):
    """One of two processes: three steps, a checkpoint, two more steps; and two steps from the checkpoint."""
    os.environ.update(RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    distributed.init_process_group("gloo")

    def sharded():
        model = small_dit()
        for part in (*model.blocks, model):
            fully_shard(part)
        return Role(model, kind(lr=1e-2).build(model), Ema(model, 0.5))

    made, fresh = sharded(), sharded()
    mine = torch.arange(2) + 2 * rank
    advance(made, 3, rows=mine)
    files = checkpoint.tensors_of({"model": made})
    if rank == 0:
        checkpoint.save(out, 3, files, STATE, ())
    distributed.barrier()
    checkpoint.restore(checkpoint.steps(out)[0], {"model": fresh})
    for step, one in ((4, made), (5, fresh)):
        advance(one, 2, seed=1, rows=mine)
        files = checkpoint.tensors_of({"model": one})
        if rank == 0:
            checkpoint.save(out, step, files, STATE, (3, 4))


@pytest.mark.parametrize("kind", [AdamW, Muon])
def test_sharded_by_fsdp2(kind, tmp_path):
    """Two processes with a shard of every tensor each: the files are those of a run that is not sharded.

    Adam divides by the root of a second moment: where gradients are nearly 0 it makes steps of another order of a sum,
    up to a part of lr * 3 steps = 0.03.
    """
    tolerance = {AdamW: 5e-4, Muon: 2e-5}[kind]
    processes, port = [], free_port()
    for rank in range(2):
        processes.append(FROM_CLEAN.Process(target=half_of_a_sharded_run, args=(rank, port, tmp_path, kind)))
        processes[-1].start()
    whole = role(kind, steps=0)
    advance(whole, 3, rows=torch.arange(4))
    whole_files = checkpoint.tensors_of({"model": whole})
    for process in processes:
        process.join()
    assert [p.exitcode for p in processes] == [0, 0]
    saved, went_on, resumed = checkpoint.steps(tmp_path)
    for name, tensors in whole_files.items():
        stored = read_tensors(saved / f"{name}.safetensors")
        assert stored.keys() == tensors.keys()
        for key, tensor in tensors.items():
            close(stored[key], tensor, tolerance)
        a, b = (read_tensors(folder / f"{name}.safetensors") for folder in (went_on, resumed))
        assert all(torch.equal(a[key], b[key]) for key in a)
    alone = role(kind, steps=0)
    checkpoint.restore(saved, {"model": alone})  # and one process can go on with it
    advance(alone, 2, seed=1, rows=torch.arange(4))
    for key, tensor in checkpoint.tensors_of({"model": alone})["model"].items():
        close(read_tensors(went_on / "model.safetensors")[key], tensor, tolerance)


def save(out, made, step, keep=()):
    return checkpoint.save(out, step, checkpoint.tensors_of({"model": made}), STATE, keep)


def same(a, b):
    one, two = (checkpoint.tensors_of({"model": r}) for r in (a, b))
    assert one.keys() == two.keys()
    return all(one[f].keys() == two[f].keys() and all(torch.equal(one[f][n], two[f][n]) for n in one[f]) for f in one)


@pytest.mark.parametrize("frozen", [(), ("blocks.0", "patch_in")], ids=["all trained", "partly frozen"])
@pytest.mark.parametrize("ema", [True, False])
@pytest.mark.parametrize("kind", [AdamW, Muon])
def test_there_and_back(kind, ema, frozen, tmp_path):
    made = role(kind, ema=ema, frozen=frozen)
    folder = save(tmp_path, made, 3)
    fresh = role(kind, steps=0, ema=ema, frozen=frozen)
    assert not same(made, fresh)
    checkpoint.restore(folder, {"model": fresh})
    assert same(made, fresh)
    advance(made, 2, seed=1)  # and it goes on alike
    advance(fresh, 2, seed=1)
    assert same(made, fresh)
    state = checkpoint.read_state(folder)
    assert state == {"format": 2, "step": 3, **STATE}
    names = ["model.ema.safetensors"] * ema + ["model.optimizer.safetensors", "model.safetensors", "state.json"]
    assert sorted(p.name for p in folder.iterdir()) == names
    stored = read_tensors(folder / "model.safetensors")
    assert stored.keys() == {n for n, p in made.model.named_parameters() if p.requires_grad}


def test_reading_the_state_of_a_new_optimizer_changes_nothing():
    made = role(steps=0)
    before = {name: p.detach().clone() for name, p in made.model.named_parameters()}
    checkpoint.tensors_of({"model": made})
    assert all(torch.equal(p, before[name]) for name, p in made.model.named_parameters())


def test_rotation(tmp_path):
    made = role(steps=1)
    for step in (10, 20, 30):
        save(tmp_path, made, step, keep=[10, step - 10])
    assert [p.name for p in checkpoint.steps(tmp_path)] == ["step_00000010", "step_00000020", "step_00000030"]
    save(tmp_path, made, 40, keep=[10, 30])
    assert [p.name for p in checkpoint.steps(tmp_path)] == ["step_00000010", "step_00000030", "step_00000040"]
    save(tmp_path, made, 40, keep=[])  # the same step again replaces it
    assert [p.name for p in checkpoint.steps(tmp_path)] == ["step_00000040"]
    assert checkpoint.steps(tmp_path / "nothing") == []
    assert checkpoint.last(tmp_path).endswith("step_00000040")
    assert checkpoint.last(tmp_path / "nothing") == "no checkpoint was written yet"


def test_other_folders_are_no_checkpoints(tmp_path):
    """Neither found as the newest nor removed; steps of more than eight digits come last."""
    made, places = role(steps=1), tmp_path / "checkpoints"
    for name in ("step_foo", "step_", "step_00000099x", "step_7", "step_00000000", "step_-0000001"):
        (places / name).mkdir(parents=True)
    assert checkpoint.steps(tmp_path) == [] and checkpoint.last(tmp_path) == "no checkpoint was written yet"
    for step in (5, 100_000_000, 99_999_999):
        save(tmp_path, made, step, keep=[5, 99_999_999, 100_000_000])
    assert [p.name for p in checkpoint.steps(tmp_path)] == ["step_00000005", "step_99999999", "step_100000000"]
    assert len(list(places.iterdir())) == 9


def test_a_state_that_is_not_finite_is_not_saved(tmp_path):
    made = role(steps=1)
    save(tmp_path, made, 1)
    for changes, message in (
        ({"best": (math.inf, 1)}, r"step_00000002/state\.json: key 'best' must be null or a finite loss"),
        ({"metrics": {"validation/loss": math.nan}}, r"'validation/loss' must be a finite number, not nan"),
        (
            {"objective": {"level": math.inf}},
            r"step_00000002: could not be .*not JSON compliant.*step_00000001",
        ),
    ):
        with pytest.raises(UserError, match=message):
            checkpoint.save(tmp_path, 2, checkpoint.tensors_of({"model": made}), STATE | changes, ())
        assert [p.name for p in (tmp_path / "checkpoints").iterdir()] == ["step_00000001"]


def test_the_state_of_an_objective(tmp_path):
    """JSON values by name, type and range; tensors finite."""
    own = {"step": 3, "share": 0.5, "queue": torch.zeros(2)}
    state = {"objective": {"step": 7, "share": 0.25}}
    assert checkpoint.read_objective(tmp_path, state, own) == state["objective"]  # it has no tensors yet
    file = tmp_path / "objective.safetensors"
    write_tensors({"queue": torch.tensor([1.0, 2.0]), "count": torch.tensor(4)}, file)
    found = checkpoint.read_objective(tmp_path, state, own)
    assert found["step"] == 7 and found["queue"].tolist() == [1.0, 2.0] and found["count"] == 4
    for values, message in (
        ({"step": 7}, r"key 'objective' holds \['step'\], this objective's state is \['share', 'step'\]"),
        ({"step": "a", "share": 0.25}, "key 'objective': 'step' cannot be 'a'"),
        ({"step": 1.5, "share": 0.25}, "'step' cannot be 1.5"),
        ({"step": True, "share": 0.25}, "'step' cannot be True"),
        ({"step": -1, "share": 0.25}, "'step' cannot be -1"),
        ({"step": 7, "share": math.nan}, "'share' cannot be nan"),
        ({"step": 7, "share": math.inf}, "'share' cannot be inf"),
    ):
        with pytest.raises(UserError, match=message) as error:
            checkpoint.read_objective(tmp_path, {"objective": values}, own)
        assert str(error.value).startswith(str(tmp_path / "state.json"))
    for value in (math.nan, -math.inf):
        write_tensors({"queue": torch.tensor([1.0, value])}, file)
        with pytest.raises(UserError, match=r"objective\.safetensors: 'queue' holds values that are not finite"):
            checkpoint.read_objective(tmp_path, state, own)


def test_remains_of_a_killed_save_are_removed(tmp_path):
    made = role(steps=1)
    left = tmp_path / "checkpoints" / ".step_00000007.partial"
    left.mkdir(parents=True)
    (left / "model.safetensors").write_bytes(b"half")
    assert checkpoint.steps(tmp_path) == []
    save(tmp_path, made, 9)
    assert [p.name for p in (tmp_path / "checkpoints").iterdir()] == ["step_00000009"]


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_what_is_not_finite_is_not_saved(value, tmp_path):
    made = role(steps=1)
    save(tmp_path, made, 1)
    with torch.no_grad():
        made.model.blocks[0].qkv.bias[3] = value
    with pytest.raises(UserError, match=r"'blocks\.0\.qkv\.bias' of model is not finite at step 2; .*step_00000001"):
        save(tmp_path, made, 2)
    made = role(steps=1)
    made.ema.average["time.0.weight"][0] = value
    with pytest.raises(UserError, match=r"'time\.0\.weight' of model\.ema is not finite"):
        save(tmp_path, made, 2)
    assert [p.name for p in checkpoint.steps(tmp_path)] == ["step_00000001"]


def full(*args, **named):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("place", ["fsync", "tensors", "json", "rename", "mkdir"])
def test_a_full_disk(place, tmp_path, monkeypatch):
    """At whatever call it shows: one line, nothing half written, the older checkpoint is whole."""
    made = role(steps=1)
    older = save(tmp_path, made, 1)
    other = role(steps=2)
    where, name = {
        "fsync": (os, "fsync"),
        "tensors": (__import__("worldmodel.weights").weights, "save_file"),
        "json": (type(tmp_path), "write_text"),
        "rename": (type(tmp_path), "rename"),
        "mkdir": (type(tmp_path), "mkdir"),
    }[place]
    with monkeypatch.context() as patch:
        patch.setattr(where, name, full)
        with pytest.raises(UserError, match=r"step_00000002: could not be written .*No space left on device") as error:
            save(tmp_path, other, 2)
    assert str(error.value).endswith(f"the last good checkpoint is {older}") and "\n" not in str(error.value)
    assert [p.name for p in (tmp_path / "checkpoints").iterdir()] == ["step_00000001"]
    fresh = role(steps=0)
    checkpoint.restore(older, {"model": fresh})
    assert same(made, fresh)
    save(tmp_path, other, 2, keep=[1])  # and when there is room again
    assert len(checkpoint.steps(tmp_path)) == 2


def change_json(**values):
    def spoil(folder):
        state = json.loads((folder / "state.json").read_text()) | values
        (folder / "state.json").write_text(json.dumps({k: v for k, v in state.items() if v != "remove"}))

    return spoil


def change_tensors(name, change):
    def spoil(folder):
        tensors = read_tensors(folder / name)
        change(tensors)
        write_tensors(tensors, folder / name)

    return spoil


def truncate(name):
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:-100])


def only_a_pickle(folder):
    (folder / "model.safetensors").unlink()
    (folder / "model.pt").write_bytes(pickle.dumps({}))


NO_STEPS = ("a", None, 1.0, True, -5, 0, 2**60, [1])
NO_BEST = ([1], ["a", "b"], 3, [1.0, "1"], [1.0, 2], [1.0, 0], [float("inf"), 1], [float("nan"), 1], {})


def first(tensors):
    return min(tensors)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (truncate("model.safetensors"), r"model\.safetensors: not a complete safetensors file"),
        (truncate("model.ema.safetensors"), r"model\.ema\.safetensors: not a complete"),
        (truncate("model.optimizer.safetensors"), r"model\.optimizer\.safetensors: not a complete"),
        (lambda f: (f / "model.ema.safetensors").write_bytes(b""), r"model\.ema\.safetensors: not a complete"),
        (lambda f: (f / "model.ema.safetensors").unlink(), r"model\.ema\.safetensors: no such file"),
        (only_a_pickle, r"model\.safetensors: no such file; model\.pt is a pickle, which could run code"),
        (lambda f: (f / "model.safetensors").write_bytes(pickle.dumps({})), r"model\.safetensors: not a complete"),
        (lambda f: (f / "state.json").unlink(), r"state\.json: no such file"),
        (lambda f: (f / "state.json").write_text('{"format": 1, "st'), r"state\.json: not valid JSON"),
        (lambda f: (f / "state.json").write_text("[]"), r"state\.json: names no format version"),
        (change_json(format=3), r"state\.json: format 3 is newer than 2"),
        (change_json(run="remove"), r"state\.json: key 'run' is missing"),
        (change_json(format="x"), r"state\.json: names no format version"),
        (change_json(step="remove"), r"state\.json: key 'step' is missing"),
        (change_json(objective="remove"), r"state\.json: key 'objective' is missing"),
        *[
            (change_json(step=x), r"state\.json: key 'step' must be a whole number of at least 1, not ")
            for x in NO_STEPS
        ],
        (change_json(step=10**9), r"state\.json: key 'step' is 1000000000, its folder is named step_00000001"),
        *[(change_json(best=x), r"state\.json: key 'best' must be null or a finite loss and a step") for x in NO_BEST],
        (change_json(metrics=[]), r"state\.json: key 'metrics' must be an object, not \[\]"),
        (change_json(metrics={"a": "b"}), r"state\.json: key 'metrics': 'a' must be a finite number, not 'b'"),
        (change_json(metrics={"a": float("nan")}), r"state\.json: key 'metrics': 'a' must be a finite number, not nan"),
        (change_json(objective=[1]), r"state\.json: key 'objective' must be an object, not \[1\]"),
        (change_json(run=[]), r"state\.json: key 'run' is missing"),
        (
            change_tensors("model.safetensors", lambda t: t.pop("patch_in.bias")),
            r"model\.safetensors: weight 'patch_in\.bias' is missing: this is not a checkpoint of this model",
        ),
        (
            change_tensors("model.safetensors", lambda t: t.update(more=torch.zeros(1))),
            r"model\.safetensors: unknown weight 'more'",
        ),
        (
            change_tensors("model.safetensors", lambda t: t.update({"patch_in.bias": torch.zeros(7)})),
            r"model\.safetensors: weight 'patch_in\.bias' has shape \[7\], the model expects \[32\]",
        ),
        (
            change_tensors("model.ema.safetensors", lambda t: t.pop("updates")),
            r"model\.ema\.safetensors: weight 'updates' is missing",
        ),
        (
            change_tensors("model.optimizer.safetensors", lambda t: t.pop(first(t))),
            r"model\.optimizer\.safetensors: weight 'state\..*' is missing",
        ),
        (
            change_tensors("model.safetensors", lambda t: t.update({"patch_in.bias": torch.full((32,), torch.nan)})),
            r"model\.safetensors: weight 'patch_in\.bias' holds values that are not finite",
        ),
    ],
)
def test_what_does_not_fit_is_named(spoil, message, tmp_path, saved):
    folder = shutil.copytree(saved, tmp_path / "step_00000001")
    spoil(folder)
    with pytest.raises(UserError, match=message) as error:
        checkpoint.read_state(folder)
        checkpoint.restore(folder, {"model": role(steps=0)})
    assert str(folder) in str(error.value) and "\n" not in str(error.value)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    return save(tmp_path_factory.mktemp("saved"), role(steps=1), 1)


def test_another_optimizer_does_not_fit(saved):
    with pytest.raises(UserError, match=r"model\.optimizer\.safetensors: weight 'state\..*' is missing"):
        checkpoint.restore(saved, {"model": role(Muon, steps=0)})
