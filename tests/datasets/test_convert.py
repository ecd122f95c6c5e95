"""`convert`: video files become a LeRobotDataset that lerobot itself reads."""

import signal
from fractions import Fraction

import numpy as np
import pytest
from lerobot.datasets.lerobot_dataset import LeRobotDataset

from worldmodel.cli import main
from worldmodel.datasets import convert as module
from worldmodel.datasets.clips import VideoFolder
from worldmodel.datasets.convert import convert
from worldmodel.datasets.lerobot import LeRobotRecordings
from worldmodel.datasets.lerobot_writer import EpisodeWriter
from worldmodel.errors import UserError


def test_pictures_actions_and_rate(tmp_path, videos, capsys):
    for name, count in (("a", 20), ("b", 12)):
        videos.make(tmp_path / "clips" / f"{name}.mp4", count=count, rate=Fraction(24))
        np.savez(tmp_path / "clips" / f"{name}.npz", turn=np.arange(count) / 10)
    assert convert(tmp_path / "clips", tmp_path / "data", size="32x24", task="drive") == 0
    assert "2 episodes, 32 frames at 24 frames/s" in capsys.readouterr().out
    found = LeRobotRecordings.open(tmp_path / "data")
    assert (found.fps, found.episodes, found.cameras) == (24, {0: 20, 1: 12}, {"video": (24, 32)})
    assert found.task(0) == "drive"
    found.check_statistics(found.action_names)
    np.testing.assert_allclose(found.actions(1)[:, 0], np.arange(12) / 10, rtol=1e-6)
    assert videos.numbers(found.frames(1, "video")) == list(range(12))
    peer = LeRobotDataset("local/data", tmp_path / "data", video_backend="pyav")
    assert len(peer) == 32 and peer[25]["action"].item() == pytest.approx(0.5)
    assert videos.number_of(peer[25]["observation.images.video"].numpy().transpose(1, 2, 0) * 255) == 5


def test_rotated_odd_and_variable_videos_without_actions(tmp_path, videos):
    pts = np.cumsum(np.random.default_rng(0).integers(20, 60, 30)).tolist()
    videos.make(tmp_path / "clips" / "a.mp4", count=30, pts=pts)
    videos.turn(videos.make(tmp_path / "clips" / "b.mp4", count=10))
    videos.make(tmp_path / "clips" / "c.mp4", count=10, height=47, width=63, pixels="yuv444p")
    assert convert(tmp_path / "clips", tmp_path / "data", size="16", fps="20") == 0
    found = LeRobotRecordings.open(tmp_path / "data")
    assert found.fps == 20 and found.action_names == ()
    numbers = videos.numbers(found.frames(0, "video"))
    times = (np.array(pts) - pts[0]) / 1000
    assert numbers == [int(np.abs(times - k / 20).argmin()) for k in range(len(numbers))]
    assert videos.numbers(found.frames(1, "video")) == videos.numbers(found.frames(2, "video")) == [0, 1, 3, 4, 6, 7, 9]


def test_another_rate_keeps_every_displacement(tmp_path, videos, capsys):
    moved = np.random.default_rng(0).integers(-3, 4, (60, 2)).astype(float)
    for name in "ab":
        videos.make(tmp_path / "clips" / f"{name}.mp4", count=60)
        np.savez(tmp_path / "clips" / f"{name}.npz", action=moved)
    with pytest.raises(UserError, match=r"a\.mp4: from 30 to 24 frames/s .*--merge-actions sum \(displacements add"):
        convert(tmp_path / "clips", tmp_path / "data", fps="24")
    assert not (tmp_path / "data").exists()
    command = ["convert", str(tmp_path / "clips"), str(tmp_path / "data"), "--fps", "24", "--merge-actions", "sum"]
    assert main(command) == 0
    assert "actions merged by sum" in capsys.readouterr().out
    found = LeRobotRecordings.open(tmp_path / "data")
    assert found.episodes == {0: 48, 1: 48}
    numbers = videos.numbers(found.frames(1, "video"))
    places = np.cumsum(moved, 0) - moved  # at which each frame was seen
    np.testing.assert_allclose(np.cumsum(found.actions(1), 0)[:-1], places[numbers[1:]], atol=1e-5)
    assert found.actions(1).sum(0).tolist() == moved.sum(0).tolist()


def test_default_rate_is_the_first_ones_rounded(tmp_path, videos):
    videos.make(tmp_path / "a.mp4", rate=Fraction(30000, 1001))
    assert convert(tmp_path / "a.mp4", tmp_path / "data") == 0
    found = LeRobotRecordings.open(tmp_path / "data")
    assert found.fps == 30 and found.episodes == {0: 40}


def test_long_videos_become_several_episodes(tmp_path, videos, monkeypatch):
    monkeypatch.setattr(module, "MAX_EPISODE_BYTES", 48 * 64 * 3 * 15)
    videos.make(tmp_path / "a.mp4", count=40)
    np.savez(tmp_path / "a.npz", action=np.arange(40))
    convert(tmp_path / "a.mp4", tmp_path / "data")
    found = LeRobotRecordings.open(tmp_path / "data")
    assert found.episodes == {0: 13, 1: 14, 2: 13}
    assert [int(a) for episode in range(3) for a in found.actions(episode)[:, 0]] == list(range(40))
    assert [n for episode in range(3) for n in videos.numbers(found.frames(episode, "video"))] == list(range(40))


def test_a_video_damaged_inside_leaves_the_others_readable(tmp_path, videos):
    videos.make(tmp_path / "clips" / "a.mp4", count=10)
    broken = videos.make(tmp_path / "clips" / "b.mp4", count=40, container={"movflags": "faststart"})
    data = broken.read_bytes()
    broken.write_bytes(data[: len(data) // 2] + bytes(200) + data[len(data) // 2 + 200 :])
    with pytest.raises(UserError, match=r"b\.mp4: frame \d+ of 40 .*; the 1 episodes before it are in .*data"):
        convert(tmp_path / "clips", tmp_path / "data")
    assert LeRobotRecordings.open(tmp_path / "data").episodes == {0: 10}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_keeps_the_finished_episodes(tmp_path, videos, monkeypatch, capsys, number):
    for name in "abc":
        videos.make(tmp_path / "clips" / f"{name}.mp4", count=10)
    write = EpisodeWriter.write

    def write_and_signal(self, episode):
        write(self, episode)
        if self.episodes == 2:
            signal.raise_signal(number)

    monkeypatch.setattr(EpisodeWriter, "write", write_and_signal)
    before = signal.getsignal(number)
    assert convert(tmp_path / "clips", tmp_path / "data") == 130
    assert f"stopped by {number.name}; the 2 episodes before it are in" in capsys.readouterr().out
    assert LeRobotRecordings.open(tmp_path / "data").episodes == {0: 10, 1: 10}
    assert signal.getsignal(number) is before

    frames = VideoFolder.frames
    monkeypatch.setattr(VideoFolder, "frames", lambda *args: (signal.raise_signal(number), frames(*args))[1])
    assert convert(tmp_path / "clips", tmp_path / "none") == 130
    assert "nothing was saved" in capsys.readouterr().out and not (tmp_path / "none").exists()


def test_bad_input_makes_no_folder(tmp_path, videos):
    videos.make(tmp_path / "clips" / "a.mp4", count=5)
    (tmp_path / "clips" / "b.mp4").touch()
    with pytest.raises(UserError, match=r"b\.mp4: the file is empty"):
        convert(tmp_path / "clips", tmp_path / "data")
    (tmp_path / "clips" / "b.mp4").unlink()
    for size in ("1", "7x64", "64x99999", "9" * 5000):
        with pytest.raises(UserError, match=r"size '\w+': a side has 8 to 4096 pixels"):
            convert(tmp_path / "clips", tmp_path / "data", size=size)
    videos.make(tmp_path / "short" / "one.mp4", count=1)
    with pytest.raises(UserError, match=r"one\.mp4: only 1 frame at 30 frames/s; it takes two"):
        convert(tmp_path / "short", tmp_path / "data")
    videos.make(tmp_path / "tiny" / "a.mp4", count=3, height=4, width=6)
    with pytest.raises(UserError, match="pictures of 6 x 4 pixels; bring them to 8 or more with --size"):
        convert(tmp_path / "tiny", tmp_path / "data")
    with pytest.raises(UserError, match="whole number of frames per second"):
        convert(tmp_path / "clips", tmp_path / "data", fps="29.97")
    np.savez(tmp_path / "clips" / "a.npz", action=np.zeros(4))
    with pytest.raises(UserError, match=r"4 actions, but a\.mp4 has 5 frames"):
        convert(tmp_path / "clips", tmp_path / "data")
    assert not (tmp_path / "data").exists()
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "notes.txt").touch()
    (tmp_path / "clips" / "a.npz").unlink()
    with pytest.raises(UserError, match="exists already"):
        convert(tmp_path / "clips", tmp_path / "data")


def test_a_dataset_is_not_converted(tmp_path, videos):
    videos.make(tmp_path / "a.mp4", count=5)
    convert(tmp_path / "a.mp4", tmp_path / "data")
    with pytest.raises(UserError, match="is a LeRobotDataset already"):
        convert(tmp_path / "data", tmp_path / "again")
