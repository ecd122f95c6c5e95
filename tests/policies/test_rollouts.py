"""Evaluated episodes as a LeRobotDataset: the numbers of the run, whatever ran in parallel and wherever it stopped."""

import json
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from lerobot.datasets.dataset_tools import delete_episodes
from lerobot.datasets.lerobot_dataset import LeRobotDataset
from test_episodes import SETTINGS, FakeRobot, fake_policy, real_policy

from worldmodel.datasets import lerobot_writer
from worldmodel.datasets.interrupt import Stopped
from worldmodel.datasets.lerobot import RECORD, LeRobotRecordings, read_parquet
from worldmodel.errors import UserError
from worldmodel.fingerprint import fingerprint
from worldmodel.policies import episodes
from worldmodel.policies import evaluate as commands
from worldmodel.policies.demonstrations import Demonstrations
from worldmodel.policies.episodes import Evaluated, Robots, Settings, cases, evaluate
from worldmodel.policies.policy import Policy
from worldmodel.policies.rollouts import COLUMNS, evaluate_and_save

TODO = cases(["go", "home"], ["nominal", "actuation-bias:0.2,0,0"], 3, 3)


@dataclass
class Facts:
    task: str
    fps: int = 10
    state_names: tuple[str, ...] = ("q",)
    action_names: tuple[str, ...] = ("a", "b")


class RecordedRobot(FakeRobot):
    def __post_init__(self) -> None:
        self.facts = Facts(self.task)  # pyright: ignore[reportAttributeAccessIssue]


def save(folder: Path, todo=TODO, settings: Settings = SETTINGS, policy: Policy | None = None, opens=None) -> Evaluated:
    policy = policy or fake_policy()
    with closing(Robots(policy.interface, opens or (lambda task, _: RecordedRobot(task)))) as robots:
        return evaluate_and_save(policy, todo, settings, robots, folder, filmed=4, quiet=True)


@pytest.fixture(autouse=True)
def lossless(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lerobot_writer, "CRF", 0)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Evaluated]:
    folder = tmp_path_factory.mktemp("saved") / "rollouts"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lerobot_writer, "CRF", 0)
        return folder, save(folder)


def contents(folder: Path) -> dict[str, Any]:
    """All that does not tell the time; statistics as far as they do not depend on how episodes were grouped."""
    data = LeRobotRecordings.open(folder)
    columns = [name for name, feature in data.info["features"].items() if feature["dtype"] != "video"]
    stats = json.loads((folder / "meta" / "stats.json").read_text())
    files = sorted((folder / "data").rglob("*.parquet"))
    record = json.loads((folder / RECORD).read_text())
    assert record.pop("seconds") > 0
    return {
        "columns": pa.concat_tables(read_parquet(path, columns) for path in files).to_pydict(),
        "frames": {e: np.stack(list(data.frames(e, "front"))) for e in data.episodes},
        "tasks": [data.task(e) for e in data.episodes],
        "info": data.info,
        "stats": {key: stats[key] for key in ("action", "observation.state")},
        "record": record,
    }


def assert_same(one: Any, two: Any) -> None:
    if isinstance(one, dict):
        assert one.keys() == two.keys()
        for key in one:
            assert_same(one[key], two[key])
    else:
        np.testing.assert_array_equal(one, two)


def test_rows_and_films_are_those_of_an_evaluation_that_is_not_saved(saved):
    policy = fake_policy()
    with closing(Robots(policy.interface, lambda task, _: RecordedRobot(task))) as robots:
        plain = evaluate(policy, TODO, SETTINGS, robots, filmed=4)
    assert saved[1].rows == plain.rows
    assert 0 < sum(row.success for row in plain.rows) < len(TODO)
    assert len(saved[1].films) == 4
    for one, two in zip(saved[1].films, plain.films, strict=True):
        assert one[0] == two[0]
        np.testing.assert_array_equal(one[1], two[1])


def test_every_step_is_stored_with_what_came_of_it(saved):
    """Against the robot's own account: told the stored actions, it shows, reads and gives what is stored."""
    folder, found = saved
    data = LeRobotRecordings.open(folder)
    assert (data.fps, data.state_names, data.action_names) == (10, ("q",), ("a", "b"))
    assert data.cameras == {"front": (16, 16)} and len(data.episodes) == len(TODO)
    version = fingerprint(fake_policy().model)
    for number, (case, row) in enumerate(zip(TODO, found.rows, strict=True)):
        robot = RecordedRobot(case.task)
        robot.become(episodes.parse_shift(case.shift))
        state, _ = robot.reset(seed=case.seed)
        state, length = state["state"], data.episodes[number]
        column = {name: data.column(number, name) for name in COLUMNS}
        assert length == row.steps and data.task(number) == case.task
        for step, (frame, action) in enumerate(zip(data.frames(number, "front"), data.actions(number), strict=True)):
            np.testing.assert_allclose(frame, robot.look()["front"], atol=1)  # RGB through lossless YUV
            assert data.states(number)[step, 0] == state[0]
            seen, reward, ended, _, info = robot.step(action)
            state = seen["state"]
            assert column["next.reward"][step] == np.float32(reward)
            assert column["next.success"][step] == info["success"]
            assert column["next.done"][step] == (step == length - 1)
            assert ended <= (step == length - 1)
        assert column["next.reward"].max() == np.float32(row.score)
        assert (column["success"] == row.success).all() and (column["shift_id"] == case.shift).all()
        assert set(column["policy_version"]) == {version} and set(column["source"]) == {"real"}
        assert set(column["segment_label"]) == {""} and not column["intervention"].any()


def test_lerobot_reads_what_was_saved(saved, tmp_path):
    folder, found = saved
    peer = LeRobotDataset("local/rollouts", root=folder, video_backend="pyav")
    assert peer.num_episodes == len(TODO) and peer.num_frames == sum(row.steps for row in found.rows)
    for key, dtype in COLUMNS.items():
        assert (peer.features[key]["dtype"], tuple(peer.features[key]["shape"])) == (dtype, (1,))
    batch = next(iter(torch.utils.data.DataLoader(peer, batch_size=peer.num_frames)))  # pyright: ignore[reportArgumentType]
    ends = np.cumsum([row.steps for row in found.rows]) - 1
    assert torch.where(batch["next.done"])[0].tolist() == ends.tolist()
    assert batch["success"].tolist() == [row.success for row in found.rows for _ in range(row.steps)]
    assert batch["shift_id"] == [row.shift for row in found.rows for _ in range(row.steps)]
    assert batch["task"] == [row.task for row in found.rows for _ in range(row.steps)]
    assert batch["observation.images.front"].shape == (peer.num_frames, 3, 16, 16)


def test_what_succeeded_is_a_demonstration_with_the_same_numbers(saved, tmp_path):
    folder, found = saved
    data = LeRobotRecordings.open(folder)
    read = Demonstrations(path=(folder,), validation=0.0).read()
    good = [number for number, row in enumerate(found.rows) if row.success]
    assert len(read.training) == len(good)
    for number, got in zip(good, read.training, strict=True):
        np.testing.assert_array_equal(got.action, data.actions(number))
        np.testing.assert_array_equal(got.state, data.states(number))
        np.testing.assert_array_equal(got.image[:, 0].transpose(0, 2, 3, 1), list(data.frames(number, "front")))
        assert got.task == TODO[number].task
    assert (read.interface.cameras, read.interface.size, read.interface.fps) == (("front",), (16, 16), 10.0)
    assert read.interface.action.names == ("a", "b") and read.interface.state.names == ("q",)
    assert len(Demonstrations(path=(folder,), validation=0.0, failures=True).read().training) == len(TODO)
    peer = LeRobotDataset("local/rollouts", root=folder, video_backend="pyav")
    delete_episodes(peer, [0], output_dir=tmp_path / "fewer", repo_id="local/fewer")
    assert not (tmp_path / "fewer" / RECORD).exists()  # the column alone says what failed
    fewer = Demonstrations(path=(tmp_path / "fewer",), validation=0.0).read()
    for one, two in zip(fewer.training, read.training[good[0] == 0 :], strict=True):
        np.testing.assert_array_equal(one.action, two.action)


@pytest.mark.parametrize("parallel", [4, 16])
def test_the_dataset_is_the_same_for_any_number_of_robots(saved, tmp_path, parallel):
    made = save(tmp_path / "rollouts", settings=replace(SETTINGS, parallel=parallel))
    assert made.rows == saved[1].rows
    assert_same(contents(tmp_path / "rollouts"), contents(saved[0]))


class Broken(RecordedRobot):
    """Stops the process's work at the third reset of a task, as a signal or an error would."""

    failure: BaseException

    def reset(self, *, seed: int) -> tuple[dict, dict]:
        if seed == 5:
            raise self.failure
        return super().reset(seed=seed)


@pytest.mark.parametrize("failure", [RuntimeError("the simulator died"), Stopped("SIGTERM")], ids=repr)
def test_what_was_broken_off_stays_readable_and_goes_on(saved, tmp_path, failure, monkeypatch):
    folder = tmp_path / "rollouts"
    monkeypatch.setattr(Broken, "failure", failure, raising=False)
    with pytest.raises(type(failure)) as raised:
        save(folder, opens=lambda task, _: Broken(task))
    assert raised.value.__notes__ == [f"8 of 12 episodes are saved in {folder}: the same command goes on after them"]
    half = LeRobotRecordings.open(folder)
    assert len(half.episodes) == 8
    assert "8 of 12 episodes: the same `worldmodel evaluate policy` command records the others" in half.notes()
    made = save(folder, settings=replace(SETTINGS, parallel=3))
    assert made.rows == saved[1].rows
    assert_same(contents(folder), contents(saved[0]))
    for one, two in zip(made.films, saved[1].films, strict=True):
        np.testing.assert_allclose(np.array(one[1], int), np.array(two[1], int), atol=1)
    assert save(folder).rows == made.rows  # nothing is left to do
    assert_same(contents(folder), contents(saved[0]))


def test_a_killed_process_loses_its_last_group_alone(saved, tmp_path, monkeypatch):
    """What a kill leaves: the groups that are finished, and the part of one that is not."""
    folder = tmp_path / "rollouts"
    monkeypatch.setattr(lerobot_writer, "GROUP_FRAMES", 30)
    monkeypatch.setattr(Broken, "failure", KeyboardInterrupt(), raising=False)
    with monkeypatch.context() as patch:
        patch.setattr(lerobot_writer.EpisodeWriter, "__exit__", lambda writer, *_: writer._open.close())
        with pytest.raises(KeyboardInterrupt):
            save(folder, opens=lambda task, _: Broken(task))
    kept = len(LeRobotRecordings.open(folder).episodes)
    assert 0 < kept < 8
    assert save(folder).rows == saved[1].rows
    assert_same(contents(folder), contents(saved[0]))


def test_more_cases_are_added_to_those_that_are_there(saved, tmp_path):
    save(tmp_path / "some", TODO[:7])
    assert save(tmp_path / "some", TODO).rows == saved[1].rows
    one, two = contents(tmp_path / "some"), contents(saved[0])
    assert one["record"]["wanted"] == len(TODO)
    assert_same(one, two)


def test_another_evaluation_is_not_mixed_in(saved, tmp_path):
    folder = saved[0]
    before = contents(folder)
    for change, said in (
        ({"settings": replace(SETTINGS, horizon=12)}, "with the horizon 11, not 12: give a new folder"),
        ({"settings": replace(SETTINGS, seed=1)}, "with the seed 0, not 1"),
        ({"policy": fake_policy(execute=3)}, "with the acting"),
        ({"todo": cases(["go"], ["nominal"], 12, 3)}, r"episodes\[1\] is go with the seed 3 under actuation-bias"),
        ({"todo": TODO[:5]}, "with 12 episodes, not 5"),
    ):
        with pytest.raises(UserError, match=said) as raised:
            save(folder, **change)
        assert not getattr(raised.value, "__notes__", ())
    other = fake_policy()
    with torch.no_grad():
        next(iter(other.model.parameters())).add_(1)
    with pytest.raises(UserError, match="with the policy_version"):
        save(folder, policy=other)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").write_text("dear")
    with pytest.raises(UserError, match="no evaluation was saved in it"):
        save(tmp_path / "mine")
    assert (tmp_path / "mine" / "letter.txt").read_text() == "dear"
    assert_same(contents(folder), before)


class Solved(RecordedRobot):
    """Is done after one step, and can be held."""

    def step(self, action: np.ndarray) -> tuple[dict, float, bool, bool, dict]:
        seen, _, _, _, _ = super().step(action)
        self.over = False
        return seen, 0.5, True, False, {"success": True}


def test_an_episode_that_is_solved_at_once_is_held_for_another_step(tmp_path):
    def solved() -> Evaluated:
        return save(tmp_path / "one", TODO[:2], opens=lambda task, _: Solved(task))

    made = solved()
    assert [(row.steps, row.score, row.success) for row in made.rows] == [(1, 0.5, True)] * 2
    peer = LeRobotDataset("local/one", root=tmp_path / "one", video_backend="pyav")
    assert [peer[n]["next.done"].item() for n in range(peer.num_frames)] == [False, True, False, True]
    assert peer[0]["action"].tolist() == peer[1]["action"].tolist() != peer[2]["action"].tolist()
    assert peer[0]["observation.state"].item() != peer[1]["observation.state"].item()
    assert solved().rows == made.rows
    with pytest.raises(UserError, match="at least 2 steps"):
        save(tmp_path / "two", settings=replace(SETTINGS, horizon=1))


def test_two_policies_are_not_saved_together(tmp_path):
    with pytest.raises(UserError, match="--save stores the episodes of one policy"):
        commands.policy(tmp_path, ("reach",), against=tmp_path, save=tmp_path / "rollouts")


@pytest.mark.needs("metaworld")
@pytest.mark.slow
def test_the_simulator_s_episodes_are_saved_by_the_command(tmp_path, capsys):
    policy, folder = real_policy(), tmp_path / "rollouts"
    policy.save(tmp_path / "policy")
    shift = "encoder-offset:0.03,0,0"
    given = {"tasks": ("reach",), "shifts": (shift,), "episodes": 2, "horizon": 12}
    for name, options in (("plain", {}), ("saved", {"save": folder}), ("again", {"save": folder})):
        assert commands.policy(tmp_path / "policy", json=tmp_path / f"{name}.json", **given, **options) == 0
    plain, saved, again = (
        json.loads((tmp_path / f"{name}.json").read_text())["curves"]["rows"] for name in ("plain", "saved", "again")
    )
    assert plain == saved == again and len(plain) == 2
    assert f"--save {folder}" in json.loads((tmp_path / "saved.json").read_text())["command"]
    peer = LeRobotDataset("local/rollouts", root=folder, video_backend="pyav")
    assert (peer.num_episodes, peer.num_frames, peer.fps) == (2, 24, 80)
    assert set(peer.meta.camera_keys) == {"observation.images.corner4", "observation.images.corner"}
    with closing(episodes.open_for("reach", policy.interface)) as robot:
        robot.become(episodes.parse_shift(shift))
        seen, _ = robot.reset(seed=episodes.UNSEEN)
        for step in range(12):
            row = peer[step]
            assert (row["task"], row["shift_id"]) == (robot.facts.task, shift)
            assert row["policy_version"] == fingerprint(policy.model)
            np.testing.assert_array_equal(row["observation.state"].numpy(), seen["state"])
            for camera, picture in robot.look().items():
                got = row[f"observation.images.{camera}"].permute(1, 2, 0).numpy() * 255
                assert np.abs(got - picture).mean() < 2
            seen, reward, _, _, _ = robot.step(row["action"].numpy())
            assert row["next.reward"].item() == np.float32(reward)
            assert row["next.done"].item() == (step == 11)
