"""A policy from demonstrations to a folder: what is read, what is refused, that it learns and resumes exactly."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from demonstrated import FPS, SIZE, episode, picture, write_dataset

from worldmodel import checkpoint
from worldmodel.errors import UserError
from worldmodel.memory import LastFrameConfig
from worldmodel.optim import AdamW, Schedule
from worldmodel.policies.behaviour_cloning import BehaviourCloning
from worldmodel.policies.demonstrations import EARLY, Demonstrated, Demonstrations
from worldmodel.policies.flow_policy import PolicyConfig
from worldmodel.policies.observation import Observation, Range
from worldmodel.policies.policy import Acting, Policy
from worldmodel.policies.policy_run import PolicyRun
from worldmodel.policies.shifts import EncoderOffset
from worldmodel.rollout import start
from worldmodel.sampler import Euler
from worldmodel.train import train
from worldmodel.weights import read_tensors

TINY = PolicyConfig(chunk=4, dim=32, depth=2, heads=2, hidden=64, channels=(8, 8), keypoints=8, time_width=16)


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    return write_dataset(tmp_path_factory.mktemp("data") / "spots", 24)


def tiny_run(data: Path, out: Path, **changes) -> PolicyRun:
    run = PolicyRun(
        data=Demonstrations(path=(data,), batch=8, validation=0.25),
        model=TINY,
        objective=BehaviourCloning(prefix=1, drop=0.1),
        acting=Acting(sampler=Euler(steps=4), execute=2),
        optimizer=AdamW(lr=3e-3),
        schedule=Schedule(warmup=2),
        out=out,
        steps=4,
        ema=0.5,
        validate=1,
        validate_every=2,
        save_every=2,
        threads=1,
    )
    return replace(run, **changes)


def test_what_is_read_is_what_was_demonstrated(data):
    read = Demonstrations(path=(data,), validation=0.25).read()
    assert read.split == {str(data): [0, 4, 8, 12, 16, 20]}
    assert len(read.training) == 18 and len(read.held_out) == 6
    true, got = episode(1), read.training[0]
    np.testing.assert_array_equal(got.action, true.action)
    np.testing.assert_array_equal(got.state, true.state)
    pixels = np.stack([true.video["front"], true.video["side"]], 1).transpose(0, 1, 4, 2, 3)
    assert np.abs(got.image.astype(int) - pixels).max() < 40 and np.abs(got.image.astype(int) - pixels).mean() < 2
    interface = read.interface
    assert interface.cameras == ("front", "side") and interface.size == (SIZE, SIZE) and interface.fps == FPS
    assert interface.vocabulary == ("go", "there") and interface.encode("There go") == [2, 1]


def test_batches_hold_chunks_that_repeat_the_last_action_and_depend_on_the_step_alone(data):
    chunks = Demonstrations(path=(data,), batch=64).chunks(5)
    (clip,) = next(chunks.batches(3, 0, 1, 1))
    interface = chunks.read.interface
    action = clip.x * interface.action.half + interface.action.middle
    episodes = chunks.read.training
    ends = 0
    for row in range(64):
        found = [
            (e, t)
            for e in episodes
            for t in range(len(e))
            if np.array_equal(e.state[t], clip.control.state[row])
            and np.array_equal(e.image[t], clip.control.image[row])
        ]
        (e, t), *_ = found
        wanted = np.stack([e.action[min(t + k, len(e) - 1)] for k in range(5)])
        np.testing.assert_allclose(action[row], wanted, atol=1e-6)
        ends += t + 5 > len(e)
    assert ends > 3
    assert clip.index.tolist() == list(range(3 * 64, 4 * 64))
    halves = [next(chunks.batches(3, rank, 2, 2)) for rank in range(2)]
    joined = torch.cat([part.x for half in halves for part in half])
    assert torch.equal(joined, clip.x)
    assert torch.equal(torch.cat([part.index for half in halves for part in half]), clip.index)


def test_early_samples_are_first_frames_of_any_episode(data):
    chunks = Demonstrations(path=(data,), batch=400, early=1).chunks(5)
    (clip,) = next(chunks.batches(0, 0, 1, 1))
    opening = clip.control.state[:, 3].numpy()  # 1 - 0.02 * frame
    frames = np.round((1 - opening) / 0.02).astype(int)
    assert set(frames) == set(range(EARLY))
    counts = np.bincount(frames)
    assert counts.min() > 25 and counts.max() < 80  # 400 / 8 = 50, standard deviation 6.6
    plain, few = (next(Demonstrations(path=(data,), batch=400, early=p).chunks(5).batches(0, 0, 1, 1))[0]
                  for p in (0.0, 0.25))  # fmt: skip
    same = (plain.x == few.x).flatten(1).all(1) & (plain.control.state == few.control.state).all(1)
    assert 270 < same.sum() < 330  # 300 are drawn as without


def test_samples_of_robots_that_are_off(data):
    """Every sample is compensated for a shift of its own: differences of state and action tell which."""
    plain, off = (Demonstrations(path=(data,), batch=200, offset=most).chunks(5) for most in (0.0, 0.08))
    own = off.read.interface
    half = torch.cat((own.action.half[:3], torch.ones(len(own.action.half) - 3)))
    for clips in (
        [next(c.batches(2, 0, 1, 1))[0] for c in (plain, off)],
        [next(c.validation_batches(1)) for c in (plain, off)],
    ):
        one, other = clips
        assert torch.equal(one.control.image, other.control.image) and torch.equal(one.ending, other.ending)
        moved = (one.x - other.x) * half  # a - (a - delta)
        sensed = one.control.state - other.control.state  # q - (q - delta), or 0
        assert torch.equal(moved[..., 3:], torch.zeros_like(moved[..., 3:])) and not sensed[:, 3:].any()
        torch.testing.assert_close(moved[..., :3], moved[:, :1, :3].expand(-1, 5, -1), atol=1e-6, rtol=0)
        offset, sensed = moved[:, 0, :3], sensed[:, :3]
        assert 0.06 < offset.norm(dim=-1).max() <= 0.0801 and len(offset.unique(dim=0)) > 150
        is_sensed = sensed.norm(dim=-1) > 1e-6
        torch.testing.assert_close(sensed[is_sensed], offset[is_sensed], atol=1e-5, rtol=0)
        assert 70 < is_sensed.sum() < 130  # 100, standard deviation 7


def test_every_chunk_knows_the_last_action_of_its_own_episode(data):
    chunks = Demonstrations(path=(data,), batch=32, early=0.3).chunks(5)
    (clip,) = next(chunks.batches(1, 0, 1, 1))
    assert isinstance(clip, Demonstrated)
    action = chunks.read.interface.action
    for row in range(32):
        (e,) = {
            number
            for number, e in enumerate(chunks.read.training)
            for t in range(len(e))
            if np.array_equal(e.state[t], clip.control.state[row])
        }
        wanted = (torch.from_numpy(chunks.read.training[e].action[-1]) - action.middle) / action.half
        torch.testing.assert_close(clip.ending[row], wanted, atol=1e-6, rtol=0)
    part = clip.to("cpu").select(torch.tensor([3, 1]))
    assert torch.equal(part.ending, clip.ending[[3, 1]]) and torch.equal(part.x, clip.x[[3, 1]])


def test_the_ending_is_told_from_pictures_alone_and_its_error_is_added(data, tmp_path):
    run = tiny_run(data, tmp_path / "run", model=replace(TINY, ending=16))
    run = replace(run, objective=BehaviourCloning(prefix=1, ending=0.5))
    model = run.build()
    (clip,) = next(run.batches.batches(0, 0, 1, 1))
    loss = run.objective.build(model, TINY.chunk, 0).loss(clip, 3)
    plain = BehaviourCloning(prefix=1).build(model, TINY.chunk, 0).loss(clip, 3)
    assert model.ending is not None and isinstance(clip, Demonstrated)
    told = model.ending(model.look(clip.control.image).flatten(1))
    added = 0.5 * ((told - clip.ending) ** 2).sum() / clip.ending.numel()
    torch.testing.assert_close(loss, plain + added, atol=1e-6, rtol=1e-6)
    (loss - plain).backward()
    assert all(eye.features[0].weight.grad.abs().max() > 1e-6 for eye in model.eyes)
    assert model.state_in[0].weight.grad.abs().max() == 0  # proprioception has no part in it
    blind = replace(clip, control=replace(clip.control, state=clip.control.state + 1))
    with torch.no_grad():
        args = (clip.x, torch.full(clip.x.shape[:2], 0.5))
        v, one = model("chunk and ending", *args, clip.control)
        _, two = model("chunk and ending", *args, blind.control)
        assert torch.equal(one, two)
        assert torch.equal(v, model("chunk", *args, clip.control))
    for wrong in (replace(run, model=TINY), replace(run, objective=BehaviourCloning())):
        with pytest.raises(UserError, match="must both be 0, or neither"):
            wrong.build()


def test_a_shift_rewrites_actions_and_states_of_the_training_data(data):
    plain, shifted = (
        Demonstrations(path=(data,), shift=shift).read().training[0]
        for shift in ("nominal", "encoder-offset:0.1,0,-0.05")
    )
    action, state = EncoderOffset((0.1, 0, -0.05)).compensate(plain.action, plain.state)
    np.testing.assert_array_equal(shifted.action, action)
    np.testing.assert_array_equal(shifted.state, state)


def test_ranges_are_quantiles_and_survive_dimensions_without_one():
    rng = np.random.default_rng(0)
    values = np.stack([rng.uniform(-3, 5, 4000), np.full(4000, 2.0), np.r_[np.zeros(3999), 1.0]], 1)
    made = Range.of(("a", "b", "c"), values)
    np.testing.assert_allclose([made.low[0], made.high[0]], np.quantile(values[:, 0], [0.01, 0.99]), atol=1e-6)
    assert made.constant == ("b",) and (made.low[2], made.high[2]) == (0, 1)
    assert made.half[1] == 1 and made.middle[1] == 2


@pytest.mark.slow
def test_it_learns_to_go_where_the_spot_is(data, tmp_path):
    run = tiny_run(data, tmp_path / "run", steps=400, ema=0.9, validate_every=0, save_every=0)
    run = replace(run, data=replace(run.data, batch=32))
    metrics = train(run)
    assert metrics["validation/loss"] < 0.6  # 1.2 for a velocity that knows nothing of the data
    policy = Policy.find(tmp_path / "run")
    spots = np.array([[-0.8, 0.5], [0.6, 0.7], [0.0, -0.7]])
    image = np.stack([[picture(s), picture(s)[::-1, ::-1]] for s in spots]).transpose(0, 1, 4, 2, 3)
    state = torch.tensor([[0.0, 0.0, 0.0, 1.0]] * 3)
    words = torch.tensor([policy.interface.encode("go there")] * 3)
    seen = Observation(torch.from_numpy(image.copy()), state, words, TINY.chunk)
    x, _ = policy.acting.sampler(policy.model, seen, start(policy.model, LastFrameConfig(), torch.arange(3)))
    went = policy.model.in_units(x)[:, 0, :3].numpy()
    np.testing.assert_allclose(went, 0.3 * spots[:, [0, 1, 0]], atol=0.12)
    assert policy.card["step"] == 400
    assert list((tmp_path / "run" / "samples").glob("*.mp4"))


plain_run = tiny_run


@pytest.mark.parametrize("ending", [False, True])
def test_a_run_that_was_stopped_goes_on_exactly(data, tmp_path, ending):
    def tiny_run(data: Path, out: Path, **changes) -> PolicyRun:
        run = plain_run(data, out, **changes)
        if not ending:
            return run
        objective, demonstrations = replace(run.objective, ending=0.5), replace(run.data, early=0.5)
        return replace(run, model=replace(TINY, ending=16), objective=objective, data=demonstrations)

    whole = train(tiny_run(data, tmp_path / "whole"))
    train(tiny_run(data, tmp_path / "parts", steps=2, schedule=Schedule(shape="constant")))
    files = [read_tensors(checkpoint.steps(tmp_path / out)[-1] / "model.safetensors") for out in ("whole", "parts")]
    assert whole["model/loss"] > 0 and files[0].keys() == files[1].keys()
    flat = Schedule(shape="constant")
    again = train(tiny_run(data, tmp_path / "parts", schedule=flat))
    assert again == train(tiny_run(data, tmp_path / "flat", schedule=flat))


def test_a_checkpoint_is_not_continued_by_another_run(data, tmp_path):
    train(tiny_run(data, tmp_path / "run"))
    run = tiny_run(data, tmp_path / "run", steps=6)
    for other, said in (
        (replace(run, model=replace(TINY, dim=64)), "model.dim was 32, this run's is 64"),
        (replace(run, data=replace(run.data, shift="actuation-bias:0.1,0,0")), "data.shift was nominal"),
        (replace(run, data=replace(run.data, early=0.5)), "data.early was 0.0"),
        (replace(run, data=replace(run.data, offset=0.05)), "data.offset was 0.0"),
        (replace(run, objective=BehaviourCloning()), "objective.drop was 0.1"),
    ):
        with pytest.raises(UserError, match=said):
            train(other)


def test_folders_are_read_back(data, tmp_path):
    train(tiny_run(data, tmp_path / "run"))
    one = Policy.find(tmp_path / "run")
    one.save(tmp_path / "copy")
    two = Policy.load(tmp_path / "copy")
    assert (one.model.cfg, one.interface, one.acting) == (two.model.cfg, two.interface, two.acting)
    for name, tensor in one.model.state_dict().items():
        assert torch.equal(tensor, two.model.state_dict()[name])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda c: c.update(kind="world model"), "not the configuration of a policy"),
        (lambda c: c["acting"].update(execute=9), r"execute must be in \[1, 4\]"),
        (lambda c: c["model"].update(dim=10**9), "model.dim is 1000000000"),
        (lambda c: c["interface"]["action"].update(low=[0.0]), "as many names as bounds"),
        (lambda c: c.pop("interface"), "interface"),
        (lambda c: c["model"].update(depth=3), "is missing"),
    ],
)
def test_broken_folders_are_told(data, tmp_path, change, said):
    run = tiny_run(data, tmp_path / "run")
    Policy(run.build(), run.acting).save(tmp_path / "policy")
    path = tmp_path / "policy" / "config.json"
    config = json.loads(path.read_text())
    change(config)
    path.write_text(json.dumps(config))
    with pytest.raises(UserError, match=said):
        Policy.load(tmp_path / "policy")


def edit(path: Path, change) -> None:
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def test_everything_that_is_wrong_with_the_data_is_told_at_once(tmp_path):
    first = write_dataset(tmp_path / "first", 3)
    other = write_dataset(tmp_path / "other", 3, fps=10, cameras=("front", "wrist"))
    old = write_dataset(tmp_path / "old", 3)

    def spoil(stats) -> None:
        del stats["action"]["std"]
        stats["action"]["max"][3] = stats["action"]["min"][3]
        stats["observation.state"]["mean"][1] = float("nan")

    edit(other / "meta" / "stats.json", spoil)
    edit(old / "meta" / "info.json", lambda info: info.update(codebase_version="v2.1"))
    with pytest.raises(UserError) as caught:
        Demonstrations(path=(first, other, old, tmp_path / "none")).read()
    text = str(caught.value)
    for said in (
        "8 problems",
        "the statistics are not of this data",
        "LeRobotDataset v2.1; bring it to v3.0 with",
        f"{tmp_path / 'none' / 'meta' / 'info.json'}",
        "statistic 'action/std' is missing",
        "'action' dimension 'grip' is constant at -1",
        "statistic 'observation.state/mean' of 'hand_y' is nan",
        "fps 10.0, but",
        "cameras ['front 32 x 32', 'wrist 32 x 32'], but",
    ):
        assert said in text


@pytest.mark.parametrize(
    ("key", "names", "said"),
    [
        ("action", ["x"], r"'action' has 4 dimensions, its names are \['x'\]"),
        ("action", ["x", "x", "z", "grip"], "'action' names several dimensions x"),
        ("observation.state", {"motors": [1, 2, 3, 4]}, r"'observation\.state' has 4 dimensions, its names are \[1, 2"),
    ],
)
def test_names_that_leave_open_what_they_mean_are_told(tmp_path, key, names, said):
    data = write_dataset(tmp_path / "data", 3)
    edit(data / "meta" / "info.json", lambda info: info["features"][key].update(names=names))
    with pytest.raises(UserError, match=rf"1 problem: .*meta/info\.json: {said}"):
        Demonstrations(path=(data,)).read()


def test_broken_files_are_told_with_everything_else(tmp_path):
    stats, record, video, fine = (write_dataset(tmp_path / name, 3) for name in ("stats", "record", "video", "fine"))
    (stats / "meta" / "stats.json").write_text("{")
    (record / "meta" / "collection.json").write_text("[")
    next((video / "videos").rglob("*.mp4")).unlink()
    for paths in ((stats, record, video, fine), (fine, record, video)):
        with pytest.raises(UserError, match=f"demonstrations: {len(paths) - 1} problems") as caught:
            Demonstrations(path=paths).read()
        for file in ("stats.json", "collection.json", ".mp4: no such file")[4 - len(paths) :]:
            assert file in str(caught.value)


def test_a_record_of_episodes_that_is_none_is_one_clear_line(tmp_path):
    data = write_dataset(tmp_path / "data", 3)
    (data / "meta" / "collection.json").write_text('{"episodes": null}')
    with pytest.raises(UserError, match=r"collection\.json: 'episodes' must be a list"):
        Demonstrations(path=(data,)).read()


def test_nameless_dimensions_get_numbers_and_must_agree(tmp_path):
    first, second = (write_dataset(tmp_path / name, 3) for name in ("first", "second"))
    for key in ("action", "observation.state"):
        edit(second / "meta" / "info.json", lambda info, key=key: info["features"][key].update(names=None))
    assert Demonstrations(path=(second,)).read().interface.state.names[0] == "state_0"
    assert Demonstrations(path=(second,)).read().interface.action.names == tuple(f"action_{i}" for i in range(4))
    with pytest.raises(UserError, match=r"action names \['action_0'"):
        Demonstrations(path=(first, second)).read()


def test_a_policy_says_what_does_not_fit_the_data(data, tmp_path):
    mine = Demonstrations(path=(data,)).read().interface
    other = write_dataset(tmp_path / "other", 3, fps=10, task="stay here", cameras=("front", "wrist"))
    found = mine.differences(Demonstrations(path=(other,)).read().interface)
    assert found == [
        "cameras: the policy has front, side, this has front, wrist",
        "fps: the policy has 20.0, this has 10.0",
        "instructions: the policy does not know here, stay",
    ]
    assert mine.differences(mine) == []
    with pytest.raises(UserError, match="does not know fly"):
        mine.encode("fly there")


def test_numbers_out_of_range_are_told(data):
    for make, said in (
        (lambda: Demonstrations(path=()), "must name a dataset"),
        (lambda: Demonstrations(path=(data,), batch=0), "batch 0"),
        (lambda: Demonstrations(path=(data,), shift="x"), "no shift 'x'"),
        (lambda: Demonstrations(path=(data,), early=1.5), "early must be in"),
        (lambda: Demonstrations(path=(data,), offset=-0.1), "must rise within"),
        (lambda: Demonstrations(path=(data,), offset=0.1, shift="latency:2"), "shift must be nominal, not latency:2"),
        (lambda: PolicyConfig(ending=-1), "ending must be at least 0"),
        (lambda: BehaviourCloning(ending=-0.5), "ending must be in"),
        (lambda: PolicyConfig(dim=30, heads=4), "multiple of heads"),
        (lambda: BehaviourCloning(prefix=4).build(torch.nn.Linear(1, 1), 4, 0), "leaves nothing"),
        (lambda: Acting(execute=9).check(8), r"\[1, 8\]"),
        (lambda: Acting(ensemble=-1.0).check(8), "ensemble"),
    ):
        with pytest.raises(UserError, match=said):
            make()
