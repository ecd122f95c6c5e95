"""A folder of videos with actions beside them."""

from fractions import Fraction
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from worldmodel.datasets.clips import VideoFolder, action_file, read_actions
from worldmodel.datasets.recordings import choose_actions, choose_camera, open_recordings, picture_size
from worldmodel.errors import UserError

ACTIONS = np.stack([np.arange(20.0), np.cos(np.arange(20.0))], 1)


def write_actions(path: Path, values: np.ndarray = ACTIONS) -> Path:
    table = pd.DataFrame(values, columns=["turn", "speed"])
    table.insert(0, "frame_index", np.arange(len(table)))  # counts rows: no action
    if path.suffix == ".csv":
        table.to_csv(path, index=False)
    elif path.suffix == ".parquet":
        table.to_parquet(path)
    else:
        np.savez(path, action=values, names=["turn", "speed"])
    return path


@pytest.fixture
def folder(tmp_path, videos) -> Path:
    videos.make(tmp_path / "clips" / "b.mp4", count=20)
    videos.make(tmp_path / "clips" / "deep" / "a.MKV", count=12)
    videos.make(tmp_path / "clips" / "a.mp4", count=9)
    (tmp_path / "clips" / "readme.txt").write_text("not a video")
    return tmp_path / "clips"


def test_files_are_episodes_in_the_order_of_their_paths(folder, videos):
    found = open_recordings(folder)
    assert isinstance(found, VideoFolder)
    assert [file.path.name for file in found.files] == ["a.mp4", "b.mp4", "a.MKV"]
    assert found.episodes == {0: 9, 1: 20, 2: 12}
    assert (found.fps, found.cameras, found.action_names) == (30, {"video": (48, 64)}, ())
    assert videos.numbers(found.frames(2, "video")) == list(range(12))
    assert found.actions(1).shape == (20, 0)
    assert choose_camera(found, None) == "video"


def test_single_file(folder, videos):
    found = open_recordings(folder / "b.mp4")
    assert found.episodes == {0: 20}
    assert videos.numbers(found.frames(0, "video")) == list(range(20))


@pytest.mark.parametrize("suffix", [".npz", ".csv", ".parquet"])
def test_actions_beside_the_video(tmp_path, videos, suffix):
    video = videos.make(tmp_path / "a.mp4", count=20)
    write_actions(tmp_path / f"a{suffix}")
    found = VideoFolder.open(video)
    assert found.action_names == ("turn", "speed")
    np.testing.assert_allclose(found.actions(0), ACTIONS, rtol=1e-6)
    found.check_statistics(found.action_names)


def test_actions_without_names(tmp_path):
    np.savetxt(tmp_path / "a.csv", ACTIONS, delimiter=",")
    names, values = read_actions(tmp_path / "a.csv")
    assert names == ("action_0", "action_1")
    np.testing.assert_allclose(values, ACTIONS)
    np.savez(tmp_path / "b.npz", ACTIONS[:, 0])
    names, values = read_actions(tmp_path / "b.npz")
    assert names == ("action_0",) and values.shape == (20, 1)
    pd.DataFrame({"action": list(ACTIONS), "timestamp": np.arange(20) / 30}).to_parquet(tmp_path / "c.parquet")
    names, values = read_actions(tmp_path / "c.parquet")
    assert names == ("action_0", "action_1")
    np.testing.assert_allclose(values, ACTIONS)


def test_the_action_of_a_kept_frame_covers_all_until_the_next_one(tmp_path, videos):
    """Variable rate: frames at 0, 30, 66, 100, 210, 220, 230, 300 ms; at 0, 50, 100 ... 300 the nearest ones."""
    videos.make(tmp_path / "a.mp4", count=8, pts=[0, 30, 66, 100, 210, 220, 230, 300])
    values = np.array([1.0, 2, 4, 8, 16, 32, 64, 128])
    np.savez(tmp_path / "a.npz", action=values)
    with pytest.raises(UserError, match=r"a\.mp4: from 23\.333 to 20 frames/s .*--merge-actions sum .* mean .* last"):
        VideoFolder.open(tmp_path, Fraction(20))
    found = VideoFolder.open(tmp_path, Fraction(20), "sum")
    assert videos.numbers(found.frames(0)) == [0, 2, 3, 3, 4, 6, 7]
    assert found.actions(0)[:, 0].tolist() == [3, 4, 4, 4, 48, 64, 128]
    found = VideoFolder.open(tmp_path, Fraction(20), "mean")
    np.testing.assert_allclose(found.actions(0)[:, 0], [(30 * 1 + 36 * 2) / 66, 4, 8, 8, 24, 64, 128], rtol=1e-6)
    found = VideoFolder.open(tmp_path, Fraction(20), "last")
    assert found.actions(0)[:, 0].tolist() == [2, 4, 8, 8, 32, 64, 128]
    assert any("brought from" in note and "to 20" in note for note in found.notes())
    assert any("actions merged by last" in note for note in found.notes())


def test_actions_stay_as_they_are_where_every_frame_is_kept(tmp_path, videos):
    videos.make(tmp_path / "a.mp4", count=20, rate=Fraction(30000, 1001))
    write_actions(tmp_path / "a.csv")
    found = VideoFolder.open(tmp_path, Fraction(30))
    assert found.merge is None and VideoFolder.open(tmp_path, Fraction(30), "sum").merge is None
    np.testing.assert_array_equal(found.actions(0), ACTIONS.astype(np.float32))


def test_sums_beyond_float32_are_named(tmp_path, videos):
    videos.make(tmp_path / "a.mp4", count=4)
    np.savez(tmp_path / "a.npz", action=[1, 2, 3e38, 3e38])
    with pytest.raises(UserError, match=r"a\.npz, merged: action 'action_0' is 6\.?\d*e\+38 at frame 1"):
        VideoFolder.open(tmp_path, Fraction(15), "sum").actions(0)


def test_rates(tmp_path, videos):
    videos.make(tmp_path / "a.mp4", rate=Fraction(30000, 1001))
    assert VideoFolder.open(tmp_path).fps == Fraction(30000, 1001)
    videos.make(tmp_path / "b.mp4", rate=Fraction(30))
    with pytest.raises(UserError, match=r"b\.mp4: 30 frames/s, .*a\.mp4 has 30000/1001; .* --fps 30"):
        VideoFolder.open(tmp_path)
    assert VideoFolder.open(tmp_path, Fraction(30)).episodes == {0: 40, 1: 40}
    videos.make(tmp_path / "b.mp4", pts=[0, 33, 200, 233], count=4)
    with pytest.raises(UserError, match=r"b\.mp4: variable frame rate \(frame \d comes at .* s\); .* --fps \d+$"):
        VideoFolder.open(tmp_path)
    np.savez(tmp_path / "a.npz", action=np.arange(40))
    np.savez(tmp_path / "b.npz", action=np.arange(4))
    with pytest.raises(UserError, match=r"b\.mp4: variable frame rate .* --fps \d+ and --merge-actions$"):
        VideoFolder.open(tmp_path)


def test_sizes(tmp_path, videos):
    videos.make(tmp_path / "a.mp4", count=3)
    videos.make(tmp_path / "b.mp4", count=3, height=32)
    found = VideoFolder.open(tmp_path)
    with pytest.raises(UserError, match=r"episode 1 has pictures of 64 x 32 pixels, the first of 64 x 48; .* --size"):
        picture_size(found, "video", None)
    assert picture_size(found, "video", (16, 24)) == (16, 24)


def test_lengths_that_differ_name_both(tmp_path, videos):
    videos.make(tmp_path / "a.mp4", count=9)
    write_actions(tmp_path / "a.csv")
    with pytest.raises(UserError, match=r"a\.csv: 20 actions, but a\.mp4 has 9 frames"):
        VideoFolder.open(tmp_path).actions(0)


def test_actions_beside_some_videos_only(tmp_path, videos):
    videos.make(tmp_path / "a.mp4", count=20)
    videos.make(tmp_path / "b.mp4", count=20)
    write_actions(tmp_path / "a.csv")
    with pytest.raises(UserError, match=r"b\.mp4: its actions are \[\], those of .*a\.mp4 \['turn', 'speed'\]"):
        VideoFolder.open(tmp_path)


def test_several_files_of_actions(tmp_path):
    write_actions(tmp_path / "a.csv")
    write_actions(tmp_path / "a.npz")
    with pytest.raises(UserError, match=r"several files of actions beside it \(a\.npz, a\.csv\)"):
        action_file(tmp_path / "a.mp4")


def test_values_that_are_not_finite_or_constant(tmp_path, videos):
    videos.make(tmp_path / "a.mp4", count=20)
    values = ACTIONS.copy()
    values[7, 1] = np.nan
    write_actions(tmp_path / "a.npz", values)
    with pytest.raises(UserError, match=r"a\.npz: action 'speed' is nan at frame 7"):
        VideoFolder.open(tmp_path).actions(0)
    values[:, 1] = 3
    write_actions(tmp_path / "a.npz", values)
    found = VideoFolder.open(tmp_path)
    with pytest.raises(UserError, match="action 'speed': constant at 3"):
        found.check_statistics(found.action_names)
    found.check_statistics(choose_actions(found, ("turn",)))
    with pytest.raises(UserError, match="no action 'jump'; it has turn, speed"):
        choose_actions(found, ("jump",))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", b"turn,speed\n1,2\n3,fast\n", r"a\.csv: column 'speed' is no number in row 1 \('fast'\)"),
        ("a.csv", b",turn\n0,2\n1,3\n", r"a\.csv: action 0 of 2 has an empty name"),
        ("a.csv", b"turn,turn\n0,2\n1,3\n", r"a\.csv: "),
        ("a.csv", b"", r"a\.csv: cannot be read as actions"),
        ("a.npz", b"PK\x03\x04 broken", r"a\.npz: cannot be read as actions"),
        ("a.parquet", b"PAR1 broken", r"a\.parquet: cannot be read as actions"),
    ],
)
def test_broken_files_of_actions(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=message) as caught:
        read_actions(tmp_path / name)
    assert "\n" not in str(caught.value)


@pytest.mark.filterwarnings("error::RuntimeWarning")
@pytest.mark.parametrize("value", ["1e40", "-1e300", "nan", "inf"])
def test_numbers_beyond_float32(tmp_path, videos, value):
    videos.make(tmp_path / "a.mp4", count=3)
    (tmp_path / "a.csv").write_text(f"turn,speed\n0,1\n0,2\n1,{value}\n")
    with pytest.raises(UserError, match=rf"a\.csv: action 'speed' is {float(value)} at frame 2".replace("+", r"\+")):
        VideoFolder.open(tmp_path).actions(0)


def test_npz_with_a_pickle_or_an_unclear_choice(tmp_path):
    np.savez(tmp_path / "a.npz", action=np.array([{}], dtype=object))
    with pytest.raises(UserError, match="cannot be read as actions"):
        read_actions(tmp_path / "a.npz")
    np.savez(tmp_path / "b.npz", left=ACTIONS, right=ACTIONS)
    with pytest.raises(UserError, match="which array holds the actions"):
        read_actions(tmp_path / "b.npz")


def test_nothing_to_read(tmp_path):
    with pytest.raises(UserError, match="no such file or folder"):
        open_recordings(tmp_path / "none")
    with pytest.raises(UserError, match="no video files in it"):
        open_recordings(tmp_path)
