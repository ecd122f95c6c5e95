"""Reading a LeRobotDataset v3: against lerobot's own reader, and everything that can be wrong with one."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from lerobot.datasets.lerobot_dataset import LeRobotDataset

from worldmodel.datasets.lerobot import LeRobotRecordings
from worldmodel.datasets.lerobot_writer import Episode, EpisodeSchema, EpisodeWriter
from worldmodel.datasets.recordings import choose_camera, open_recordings
from worldmodel.errors import UserError

LENGTHS = (7, 30, 5)
NAMES = ("turn", "forward")
CAMERAS = ("front", "wrist")


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three episodes, two cameras; the pictures are noise, so that no two frames are alike."""
    folder = tmp_path_factory.mktemp("lerobot") / "data"
    schema = EpisodeSchema(fps=24, cameras=dict.fromkeys(CAMERAS, (32, 48)), state_names=("x",), action_names=NAMES)
    rng = np.random.default_rng(0)
    with EpisodeWriter(folder, schema) as writer:
        for length in LENGTHS:
            video = {camera: rng.integers(0, 255, (length, 4, 6, 3), np.uint8) for camera in CAMERAS}
            writer.write(
                Episode(
                    task="look around",
                    video={camera: frames.repeat(8, 1).repeat(8, 2) for camera, frames in video.items()},
                    state=np.zeros((length, 1), np.float32) + np.arange(length)[:, None].astype(np.float32),
                    action=rng.uniform(-1, 1, (length, 2)).astype(np.float32),
                    depth={},
                )
            )
    return folder


@pytest.fixture
def data(original: Path, tmp_path: Path) -> Path:
    """A copy to break."""
    return Path(shutil.copytree(original, tmp_path / "data"))


def change_info(data: Path, change: Callable[[dict], None]) -> None:
    path = data / "meta" / "info.json"
    info = json.loads(path.read_text())
    change(info)
    path.write_text(json.dumps(info))


def change_stats(data: Path, change: Callable[[dict], None]) -> None:
    path = data / "meta" / "stats.json"
    stats = json.loads(path.read_text())
    change(stats)
    path.write_text(json.dumps(stats))


def rows_file(data: Path) -> Path:
    return data / "data" / "chunk-000" / "file-000.parquet"


def episodes_file(data: Path) -> Path:
    return data / "meta" / "episodes" / "chunk-000" / "file-000.parquet"


def change_rows(path: Path, change: Callable[[dict], dict | None]) -> None:
    """Rewrite a parquet file; rows for which None is returned are dropped."""
    table = pq.read_table(path)
    rows = [changed for row in table.to_pylist() if (changed := change(row)) is not None]
    pq.write_table(pa.Table.from_pylist(rows, schema=table.schema), path)


def problem(data: Path, episode: int = 1, camera: str = "front") -> str:
    with pytest.raises(UserError) as caught:
        found = LeRobotRecordings.open(data)
        found.check_statistics(found.action_names)
        found.actions(episode)
        for _ in found.frames(episode, camera):
            pass
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_the_same_as_lerobots_own_reader(original):
    found, peer = LeRobotRecordings.open(original), LeRobotDataset("local/data", original, video_backend="pyav")
    assert found.episodes == dict(enumerate(LENGTHS))
    assert (found.fps, found.action_names, found.task(1)) == (24, NAMES, "look around")
    assert found.cameras == dict.fromkeys(CAMERAS, (32, 48))
    row = 0
    for episode, length in found.episodes.items():
        pictures = {camera: np.stack(list(found.frames(episode, camera))) for camera in CAMERAS}
        actions = found.actions(episode)
        for frame in range(length):
            item = peer[row]
            assert (item["episode_index"], item["frame_index"]) == (episode, frame)
            np.testing.assert_array_equal(actions[frame], item["action"].numpy())
            for camera in CAMERAS:
                expected = item[f"observation.images.{camera}"].numpy().transpose(1, 2, 0) * 255
                np.testing.assert_allclose(pictures[camera][frame], expected, atol=1e-3)
            row += 1


def test_several_cameras(original):
    found = LeRobotRecordings.open(original)
    assert choose_camera(found, "wrist") == choose_camera(found, "observation.images.wrist") == "wrist"
    with pytest.raises(UserError, match="data: choose a camera; it has front, wrist"):
        choose_camera(found, None)
    with pytest.raises(UserError, match="data: no camera 'side'; it has front, wrist"):
        choose_camera(found, "side")


def test_pictures_stored_in_the_parquet_file(tmp_path):
    rng = np.random.default_rng(0)
    pictures = rng.integers(0, 255, (6, 8, 12, 3), np.uint8)
    features = {
        "observation.images.top": {"dtype": "image", "shape": (8, 12, 3), "names": ["height", "width", "channels"]},
        "action": {"dtype": "float32", "shape": (2,), "names": None},
    }
    dataset = LeRobotDataset.create("local/images", 10, features, tmp_path / "data", use_videos=False)
    for index in range(6):
        frame = {"observation.images.top": pictures[index], "action": np.float32([index, -index]), "task": "t"}
        dataset.add_frame(frame)
    dataset.save_episode()
    dataset.finalize()
    found = open_recordings(tmp_path / "data")
    np.testing.assert_array_equal(np.stack(list(found.frames(0, "top"))), pictures)
    assert found.action_names == ("action_0", "action_1")  # `names: null`
    assert found.actions(0)[:, 1].tolist() == [0, -1, -2, -3, -4, -5]


def test_episodes_are_found_by_index_not_by_position(data, original):
    """As after the removal of episode 0."""
    change_rows(episodes_file(data), lambda row: row if row["episode_index"] else None)
    change_rows(rows_file(data), lambda row: row if row["episode_index"] else None)
    change_info(data, lambda info: info.update(total_episodes=2, total_frames=35))
    found, whole = LeRobotRecordings.open(data), LeRobotRecordings.open(original)
    assert found.episodes == {1: 30, 2: 5}
    np.testing.assert_array_equal(found.actions(2), whole.actions(2))
    np.testing.assert_array_equal(list(found.frames(2, "front")), list(whole.frames(2, "front")))


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (None, ("action_0", "action_1")),
        (["a"], ("action_0", "action_1")),
        ({"motors": ["a", "b"]}, ("a", "b")),
        ({"a": 0, "b": 1}, ("a", "b")),
    ],
)
def test_names_of_actions(data, names, expected):
    change_info(data, lambda info: info["features"]["action"].update(names=names))
    assert LeRobotRecordings.open(data).action_names == expected


def test_shapes_with_channels_first(data):
    change_info(data, lambda info: info["features"]["observation.images.front"].update(shape=[3, 32, 48], names=None))
    found = LeRobotRecordings.open(data)
    assert found.cameras["front"] == (32, 48) and len(list(found.frames(1, "front"))) == 30


def test_fractional_rate(data):
    change_info(data, lambda info: info.update(fps=29.97002997))
    found = LeRobotRecordings.open(data)
    assert (found.fps.numerator, found.fps.denominator) == (30000, 1001)


def test_rows_in_any_order(data, original):
    rows = pq.read_table(rows_file(data))
    order = np.random.default_rng(0).permutation(len(rows))
    pq.write_table(rows.take(order), rows_file(data))
    np.testing.assert_array_equal(LeRobotRecordings.open(data).actions(1), LeRobotRecordings.open(original).actions(1))


def test_statistics(data):
    def without(*keys):
        def change(stats):
            for key in keys[:-1]:
                stats = stats[key]
            del stats[keys[-1]]

        return change

    saved = (data / "meta" / "stats.json").read_text()
    change_stats(data, lambda stats: stats["action"]["std"].__setitem__(1, float("nan")))
    assert "stats.json: 'action/std' of dimension 'forward' is nan" in problem(data)
    (data / "meta" / "stats.json").write_text(saved)
    change_stats(data, lambda stats: stats["action"].update(min=[0.5, -1], max=[0.5, 1]))
    assert "'action' dimension 'turn' is constant at 0.5" in problem(data)
    LeRobotRecordings.open(data).check_statistics(("forward",))
    change_stats(data, lambda stats: stats["action"].update(min=[-1, -1, -1]))
    assert "'action/min' has 3 values for 2 dimensions" in problem(data)
    change_stats(data, without("action", "mean"))
    change_stats(data, without("action", "min"))
    assert "stats.json: statistic 'action/min' is missing" in problem(data)
    change_stats(data, without("action"))
    assert "stats.json: no statistics of 'action'" in problem(data)
    (data / "meta" / "stats.json").unlink()
    assert "stats.json: no such file" in problem(data)


def test_statistics_of_other_data(data):
    change_stats(data, lambda stats: stats["action"].update(max=[0.1, 1]))
    text = problem(data)
    assert "episode 1: 'action' dimension 'turn' is 0." in text and "at frame" in text
    assert "stats.json says [-0." in text and "0.1]: the statistics are not of this data" in text


def test_actions_that_are_not_finite(data):
    def change(row):
        bad = row["episode_index"] == 1 and row["frame_index"] == 12
        return {**row, "action": [row["action"][0], float("inf")]} if bad else row

    change_rows(rows_file(data), change)
    assert "episode 1: action 'forward' is inf at frame 12" in problem(data)


def test_missing_frames(data):
    gone = [(1, 12), (1, 13)]
    change_rows(rows_file(data), lambda r: None if (r["episode_index"], r["frame_index"]) in gone else r)
    assert "file-000.parquet: episode 1 has 28 frames, the first missing one is 12; it should have 30" in problem(data)


def test_times_beside_the_grid(data):
    change_rows(rows_file(data), lambda r: {**r, "timestamp": r["timestamp"] + (0.02 if r["frame_index"] == 9 else 0)})
    text = problem(data)
    assert "episode 1, frame 9: its time is 0.395000 s, expected 0.375000 s at 24 frames/s (tolerance 0.0001 s)" in text
    found = replace(LeRobotRecordings.open(data), tolerance=0.021)
    assert len(found.actions(1)) == 30  # explicit


def test_pictures_out_of_tolerance(data):
    def later(row):
        key = "videos/observation.images.front/from_timestamp"
        return {**row, key: row[key] + 0.01} if row["episode_index"] == 1 else row

    change_rows(episodes_file(data), later)
    text = problem(data)
    wanted = 7 / 24 + 0.01
    assert f"episode 1, frame 0: wanted at {wanted:.6f} s, the nearest picture is at {7 / 24:.6f} s" in text
    found = replace(LeRobotRecordings.open(data), tolerance=0.011)
    assert len(list(found.frames(1, "front"))) == 30


def test_video_that_ends_too_early(data):
    key = "videos/observation.images.front/from_timestamp"
    change_rows(episodes_file(data), lambda row: {**row, key: row[key] + 1.0} if row["episode_index"] == 1 else row)
    assert "ends at 1.708333 s, but episode 1, frame 11 is at 1.750000 s" in problem(data)


def test_missing_and_truncated_files(data):
    video = data / "videos" / "observation.images.front" / "chunk-000" / "file-000.mp4"
    video.write_bytes(video.read_bytes()[:2000])
    assert "file-000.mp4: has no whole frames, but episode 1, frame 0 is at 0.291667 s" in problem(data)
    video.unlink()
    assert "file-000.mp4: no such file; episode 1 lies in it" in problem(data)
    assert len(list(LeRobotRecordings.open(data).frames(1, "wrist"))) == 30
    rows_file(data).unlink()
    assert "file-000.parquet: no such file" in problem(data)


@pytest.mark.parametrize("which", [rows_file, episodes_file])
def test_unfinalised_parquet(data, which):
    path = which(data)
    path.write_bytes(path.read_bytes()[:-20])
    assert f"{path}: not finalised, it has no footer" in problem(data)


def test_wrong_shapes(data):
    change_info(data, lambda info: info["features"]["observation.images.front"].update(shape=[16, 16, 3]))
    assert "episode 1, frame 0 of front is 48 x 32 pixels, info.json says 16 x 16" in problem(data)
    change_info(data, lambda info: info["features"]["action"].update(shape=[3], names=None))
    change_stats(data, lambda stats: stats["action"].update({k: [0.0, 0.0, 0.0] for k in ("mean", "min")}))
    change_stats(data, lambda stats: stats["action"].update({k: [1.0, 1.0, 1.0] for k in ("std", "max")}))
    assert "episode 1: actions of shape [30, 2], expected [30, 3]" in problem(data)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"codebase_version": "v2.1"}, "info.json: LeRobotDataset v2.1; bring it to v3.0 with"),
        ({"codebase_version": "v4.0"}, "info.json: LeRobotDataset version v4.0; this reads v3"),
        ({"fps": None}, "info.json: key 'fps' is null"),
        ({"fps": 0}, "info.json: fps is 0"),
        ({"total_episodes": 4}, "3 episodes, info.json says 4"),
        ({"total_frames": 41}, "42 frames in all episodes, info.json says 41"),
        ({"fps": float("nan")}, "info.json: fps is nan"),
        ({"data_path": "data/{episode_chunk:03d}.parquet"}, "info.json: key 'data_path' is \"data/{episode_chunk:03d}"),
        ({"data_path": "data/{}/{chunk_index"}, "expected a name with {chunk_index}, {file_index}"),
        ({"video_path": "{video}.mp4"}, "info.json: key 'video_path' is \"{video}.mp4\"; expected a name with {chunk_"),
        ({"video_path": None}, "info.json: key 'video_path' is null"),
        ({"features": {"action": {"dtype": "float32"}}}, "info.json: feature 'action' has the shape null"),
        ({"features": {"action": 3}}, "info.json: feature 'action' is 3"),
        ({"features": {"a": {"dtype": "video", "shape": [3, 3]}}}, "'a' is a picture of shape [3, 3]"),
    ],
)
def test_descriptions(data, change, message):
    change_info(data, lambda info: info.update(change))
    assert message in problem(data)


@pytest.mark.parametrize("column", ["chunk_index", "file_index", "from_timestamp"])
def test_rows_without_the_place_of_the_video(data, column):
    name = f"videos/observation.images.front/{column}"
    change_rows(episodes_file(data), lambda row: {**row, name: None})
    assert f"episode 1 has no number in '{name}'" in problem(data)


def test_an_episode_without_frames(data):
    change_rows(episodes_file(data), lambda row: {**row, "length": 0})
    assert "file-000.parquet: episode 0 has the length 0" in problem(data)


def test_incomplete_folders(data, tmp_path):
    shutil.rmtree(data / "meta" / "episodes")
    assert "episodes: no parquet files: the recording was not finalised" in problem(data)
    (data / "meta" / "info.json").write_text("{broken")
    assert "info.json: not valid JSON" in problem(data)
    (data / "meta" / "info.json").unlink()
    with pytest.raises(UserError, match=r"info\.json: no such file"):
        open_recordings(data)


def test_resampling_is_refused(original):
    from fractions import Fraction

    with pytest.raises(UserError, match="a LeRobotDataset at 24 frames/s is not resampled to 30"):
        open_recordings(original, Fraction(30))


def test_hub_names_that_do_not_exist():
    with pytest.raises(UserError, match="nobody/nothing: no such folder, and no dataset of that name on the hub"):
        open_recordings(Path("nobody/nothing"))
