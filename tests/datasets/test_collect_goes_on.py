"""A collection that was broken off, by kill -9 or anything else, goes on and ends like one that was not."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from lerobot.datasets.dataset_writer import DatasetWriter
from lerobot.datasets.lerobot_dataset import LeRobotDataset

from worldmodel.datasets import lerobot_groups as groups
from worldmodel.datasets import lerobot_writer
from worldmodel.datasets.collect import Collection, collect
from worldmodel.datasets.inspect import examine
from worldmodel.datasets.lerobot import LeRobotRecordings
from worldmodel.datasets.worlds.base import WorldOptions
from worldmodel.errors import UserError
from worldmodel.folders import alone

FRAMES, GROUP, EPISODES = 20, 2, 5  # frames of an episode, episodes of a group, all episodes
SMALL = WorldOptions(size=16)

KILLED = """
import os, signal, sys
from pathlib import Path
from worldmodel.datasets import lerobot_writer
from worldmodel.datasets.collect import collect
from worldmodel.datasets.worlds.base import WorldOptions

lerobot_writer.GROUP_FRAMES, lerobot_writer.CRF = {frames} * {group}, 0
renamed = 0

def kill(event, _):
    global renamed
    if event == "os.rename":
        if renamed == stop:
            os.kill(os.getpid(), signal.SIGKILL)
        renamed += 1

for stop in {stops}:
    child = os.fork()
    if child == 0:
        renamed = 0
        sys.addaudithook(kill)
        collect("maze", {episodes}, Path({folder!r}) / str(stop), {frames}, 3, WorldOptions(16), True)
        print("renamed", renamed, flush=True)
        os._exit(0)
    print(stop, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


def record(out: Path, episodes: int = EPISODES) -> Collection:
    return collect("maze", episodes, out, FRAMES, seed=3, options=SMALL, quiet=True)


@pytest.fixture(autouse=True)
def small_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small groups of losslessly kept episodes."""
    monkeypatch.setattr(lerobot_writer, "GROUP_FRAMES", FRAMES * GROUP)
    monkeypatch.setattr(lerobot_writer, "CRF", 0)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Without a break."""
    out = tmp_path_factory.mktemp("whole") / "maze"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lerobot_writer, "GROUP_FRAMES", FRAMES * GROUP)
        patch.setattr(lerobot_writer, "CRF", 0)
        record(out)
    return out


def contents(folder: Path) -> dict[str, Any]:
    """Everything that a reader sees: ours the pictures and actions, lerobot's the columns, and the descriptions."""
    found, peer = LeRobotRecordings.open(folder), LeRobotDataset("local/maze", root=folder, video_backend="pyav")
    assert peer.num_episodes == len(found.episodes) and peer.num_frames == FRAMES * len(found.episodes)
    columns = peer.hf_dataset.with_format("numpy")
    for row in (0, peer.num_frames - 1):
        picture = (peer[row]["observation.images.first_person"].permute(1, 2, 0).numpy() * 255).round()
        np.testing.assert_array_equal(picture, list(found.frames(row // FRAMES, "first_person"))[row % FRAMES])
    meta = folder / "meta"
    return {
        "frames": [np.stack(list(found.frames(index, "first_person"))) for index in found.episodes],
        "actions": [found.actions(index) for index in found.episodes],
        "columns": {name: np.array(columns[name]) for name in columns.column_names},
        "stats": json.loads((meta / "stats.json").read_text()),
        "info": json.loads((meta / "info.json").read_text()),
        "collection": json.loads((meta / "collection.json").read_text()),
    }


def assert_same(one: Any, two: Any) -> None:
    """Bit for bit; the videos are lossless, as x264 does not always decide alike."""
    if isinstance(one, dict):
        assert one.keys() == two.keys()
        for key in one:
            assert_same(one[key], two[key])
    else:
        np.testing.assert_array_equal(one, two)


def kill_at(folder: Path, stops: list[int]) -> list[str]:
    """Collections that are killed (-9) at the n-th renaming of a file, for each n: a line "n, exit code" for each."""
    code = KILLED.format(frames=FRAMES, group=GROUP, episodes=EPISODES, stops=stops, folder=str(folder))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def check_killed(out: Path, whole: Path) -> int:
    """That a killed collection can be read, and that going on makes it whole; the number of episodes that it had."""
    saved = 0
    if (out / groups.INFO).is_file():
        found, full = LeRobotRecordings.open(out), LeRobotRecordings.open(whole)
        peer = LeRobotDataset("local/maze", root=out, video_backend="pyav")
        saved = len(found.episodes)
        assert saved == peer.num_episodes and saved % GROUP in (0, EPISODES % GROUP)
        for index in found.episodes:
            np.testing.assert_array_equal(found.actions(index), full.actions(index))
            assert_same(*([np.stack(list(data.frames(index, "first_person")))] for data in (found, full)))
        assert peer[peer.num_frames - 1]["action"].shape == (2,)
    elif groups.is_begun(out):
        with pytest.raises(UserError, match="the command that made it goes on when given again"):
            LeRobotRecordings.open(out)
    made = record(out)
    assert [episode.seed for episode in made.episodes] == [3, 4, 5, 6, 7]
    assert_same(contents(out), contents(whole))
    left = {str(path.relative_to(out)) for path in out.rglob("*")} ^ {
        str(path.relative_to(whole)) for path in whole.rglob("*")
    }
    assert not left
    return saved


@pytest.mark.parametrize("joined", [0, 1, 2, 3, 6])
def test_killed_while_a_group_joins(tmp_path: Path, whole: Path, monkeypatch: pytest.MonkeyPatch, joined: int) -> None:
    """In the midst of the second group's renaming: the beginning is kept, and nothing of the group is lost."""
    out, replace, left = tmp_path / "maze", Path.replace, 7 + joined

    class Killed(BaseException):
        pass

    def killed(path: Path, target: Path) -> Path:
        nonlocal left
        if groups.WHOLE in path.parts:
            if not left:
                raise Killed
            left -= 1
        return replace(path, target)

    monkeypatch.setattr(Path, "replace", killed)
    with pytest.raises(Killed):
        record(out)
    monkeypatch.setattr(Path, "replace", replace)
    assert (out / groups.WHOLE).is_dir()
    assert check_killed(out, whole) == GROUP


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_killed_at_any_moment(tmp_path: Path, whole: Path) -> None:
    *killed, count, last = kill_at(tmp_path, [*range(0, 35, 2), 1000])
    assert last == "1000 0" and 30 < int(count.removeprefix("renamed ")) < 45
    assert killed == [f"{stop} {-signal.SIGKILL}" for stop in range(0, 35, 2)]
    saved = [check_killed(tmp_path / str(stop), whole) for stop in range(0, 35, 2)]
    assert saved == sorted(saved) and set(saved) >= {0, 2, 4}


@pytest.mark.parametrize("first", [1, 2, 3, 5])
def test_more_episodes_later(tmp_path: Path, whole: Path, first: int) -> None:
    """Of a collection that ended by itself, or was stopped between two groups."""
    out = tmp_path / "maze"
    assert len(record(out, first).episodes) == first
    assert [episode.seed for episode in record(out).episodes] == [3, 4, 5, 6, 7]
    one, two = contents(out), contents(whole)
    for name in ("frames", "actions", "columns", "collection"):
        assert_same(one[name], two[name])
    assert_same(one["stats"]["action"], two["stats"]["action"])


def test_an_episode_whose_video_failed_leaves_nothing(
    tmp_path: Path, whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its numbers are written by then: without care they would lie before those of the next try."""
    out, save, calls = tmp_path / "maze", DatasetWriter._save_episode_video, 0

    def fail_once(*args: Any, **kwargs: Any) -> dict:
        nonlocal calls
        calls += 1
        if calls == 4:
            raise RuntimeError("no video")
        return save(*args, **kwargs)

    monkeypatch.setattr(DatasetWriter, "_save_episode_video", fail_once)
    with pytest.raises(RuntimeError, match="no video") as caught:
        record(out)
    assert "3 finished episodes are saved" in caught.value.__notes__[0]
    assert contents(out)["info"]["total_episodes"] == 3
    record(out)
    for name in ("frames", "actions", "columns"):
        assert_same(contents(out)[name], contents(whole)[name])


def test_what_is_missing_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out, write, written = tmp_path / "maze", lerobot_writer.EpisodeWriter.write, 0

    def stop_after_the_third(writer: lerobot_writer.EpisodeWriter, episode: lerobot_writer.Episode) -> None:
        nonlocal written
        write(writer, episode)
        written += 1
        if written == 3:
            signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(lerobot_writer.EpisodeWriter, "write", stop_after_the_third)
    assert record(out).stopped == "SIGTERM"
    report = examine(out)
    assert not report.problems
    assert "3 of 5 episodes: the same `worldmodel collect` command records the others" in report.notes
    assert len(record(out).episodes) == 5
    assert not any("episodes" in note for note in examine(out).notes)


def test_the_same_command_again_changes_nothing(tmp_path: Path, whole: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in whole.rglob("*") if path.is_file()}
    assert len(record(whole).episodes) == EPISODES
    assert before == {path: path.stat().st_mtime_ns for path in whole.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seed": 4}, "recorded with the seed 3, not 4: give a new folder"),
        ({"frames": 21}, "recorded with the max_frames 20, not 21"),
        ({"world": "maze/small"}, "recorded with the world maze, not maze/small"),
        ({"options": WorldOptions(size=32)}, "recorded with the options {'size': 16"),
        ({"episodes": 4}, "exists already, with 5 episodes: give a new folder"),
    ],
)
def test_other_options_are_refused(whole: Path, change: dict[str, Any], message: str) -> None:
    asked = {"world": "maze", "episodes": EPISODES, "out": whole, "frames": FRAMES, "seed": 3, "options": SMALL}
    with pytest.raises(UserError, match=message):
        collect(**(asked | change))


def test_only_one_process_writes(tmp_path: Path) -> None:
    (tmp_path / "maze" / groups.PART).mkdir(parents=True)
    with alone(tmp_path / "maze"), pytest.raises(UserError, match="another process writes to"):
        record(tmp_path / "maze")
    assert (tmp_path / "maze" / groups.PART).is_dir()


@pytest.mark.parametrize("left", [(), (".lock",), (".lock", groups.PART), (groups.PART,)])
def test_killed_at_the_very_start(tmp_path: Path, left: tuple[str, ...]) -> None:
    """Before the first group, a killed process leaves a folder, then a lock, then a part: each counts as none."""
    out = tmp_path / "maze"
    out.mkdir()
    for name in left:
        (out / name).mkdir() if name == groups.PART else (out / name).touch()
    assert len(record(out, 1).episodes) == 1
    assert {path.name for path in out.iterdir()} == {"data", "meta", "videos"}


def test_two_that_start_at_once(tmp_path: Path) -> None:
    with alone(tmp_path / "maze"), pytest.raises(UserError, match="another process writes to"):
        record(tmp_path / "maze")


def test_a_part_beside_something_else_is_not_ours(tmp_path: Path) -> None:
    out = tmp_path / "maze"
    (out / groups.PART).mkdir(parents=True)
    (out / "notes.txt").write_text("keep")
    with pytest.raises(UserError, match="maze exists already: give a new folder"):
        record(out)
    assert (out / "notes.txt").read_text() == "keep"


def test_a_group_that_is_to_join_says_what_was_asked_for(tmp_path: Path, whole: Path) -> None:
    """Killed while the first group joined: its record lies in the group, and other options are refused."""
    out = tmp_path / "maze"
    shutil.copytree(whole, out / groups.WHOLE)
    with pytest.raises(UserError, match="recorded with the seed 3, not 4"):
        collect("maze", EPISODES, out, FRAMES, seed=4, options=SMALL, quiet=True)
    assert len(record(out).episodes) == EPISODES
    assert_same(contents(out), contents(whole))


DATA, ROWS = "data/chunk-000/file-000.parquet", "meta/episodes/chunk-000/file-000.parquet"
VIDEO = "videos/observation.images.first_person/chunk-000/file-000.mp4"


def cut(path: Path, size: int) -> None:
    os.truncate(path, size)


def change(path: Path, changed: Callable[[Any], Any]) -> None:
    path.write_text(json.dumps(changed(json.loads(path.read_text()))))


def drop_last_row(path: Path) -> None:
    rows = pq.ParquetFile(path).read()
    pq.write_table(rows.slice(0, len(rows) - 1), path)


DAMAGE: list[tuple[str, Callable[[Path], object], str]] = [
    ("meta/info.json", Path.unlink, "no such file"),
    ("meta/info.json", lambda p: change(p, lambda d: d | {"total_tasks": None}), "key 'total_tasks' is None"),
    ("meta/stats.json", Path.unlink, "no such file"),
    ("meta/stats.json", lambda p: change(p, lambda d: d | {"action": {}}), "'action/min' is not 2 finite numbers"),
    ("meta/tasks.parquet", Path.unlink, "no such file"),
    ("meta/tasks.parquet", lambda p: cut(p, 100), "not finalised"),
    ("meta/tasks.parquet", drop_last_row, r"has the tasks \[\], info.json says 1"),
    (ROWS, Path.unlink, "3 episodes, info.json says 5"),
    (ROWS, lambda p: cut(p, 1000), "not finalised"),
    (DATA, Path.unlink, "no such file"),
    (DATA, lambda p: cut(p, 1000), "not finalised"),
    (DATA, drop_last_row, "39 rows, the episodes in it have 40 frames"),
    ("data/chunk-000/file-009.parquet", lambda p: shutil.copy(p.with_name("file-000.parquet"), p), "no episode in"),
    (VIDEO, Path.unlink, "no such file"),
    (VIDEO, lambda p: cut(p, 100), "damaged or cut off, holds no video; episode 1"),
    (VIDEO, lambda p: cut(p, p.stat().st_size * 3 // 4), "cannot be decoded|damaged or cut off"),
    (VIDEO, lambda p: shutil.copy(p.with_name("file-002.mp4"), p), "damaged or cut off, episode 1 ends at 1.666667 s"),
    ("meta/collection.json", Path.unlink, "no such file, so nothing can be added to the episodes"),
    ("meta/collection.json", lambda p: cut(p, 100), "not valid JSON"),
    ("meta/collection.json", lambda p: change(p, lambda d: d | {"episodes": []}), "0 episodes, but the dataset has 5"),
    (
        "meta/collection.json",
        lambda p: change(p, lambda d: d | {"episodes": [e | {"hue": 1} for e in d["episodes"]]}),
        r"episodes\[0\]: unknown key 'hue'",
    ),
    (
        "meta/collection.json",
        lambda p: change(p, lambda d: d | {"episodes": d["episodes"][::-1]}),
        r"episodes\[0\] has the seed 7, expected 3",
    ),
]


@pytest.mark.parametrize(("name", "damage", "message"), DAMAGE)
def test_damage_is_named_and_nothing_touched(
    tmp_path: Path, whole: Path, name: str, damage: Callable[[Path], object], message: str
) -> None:
    out = Path(shutil.copytree(whole, tmp_path / "maze"))
    damage(out / name)
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    with pytest.raises(UserError, match=message) as caught:
        record(out, EPISODES + 1)
    place = out / name if (name, message) != (ROWS, "3 episodes, info.json says 5") else out / "meta" / "episodes"
    assert str(place) in str(caught.value) and "\n" not in str(caught.value)
    assert not getattr(caught.value, "__notes__", [])  # no promise that the same command goes on
    assert before == {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}


def test_a_reader_of_a_killed_recording_is_told_the_way_on(tmp_path: Path) -> None:
    out = tmp_path / "maze"
    (out / groups.PART).mkdir(parents=True)
    with pytest.raises(UserError, match=r"broken off before its first group .* goes on when given again"):
        LeRobotRecordings.open(out)
    record(out, 1)
    assert len(LeRobotRecordings.open(out).episodes) == 1
