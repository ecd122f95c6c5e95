"""The commands that measure: what they print, the line that repeats them, and the halves of one dataset."""

import json
from pathlib import Path

import numpy as np
import pytest

from worldmodel.datasets import evaluate
from worldmodel.datasets.encode import encode_recordings
from worldmodel.datasets.evaluate import actions, drift, latency
from worldmodel.datasets.held_out import HeldOut
from worldmodel.datasets.recordings import open_recordings
from worldmodel.errors import UserError
from worldmodel.evaluate.report import Metric, Report

REPORT = Report(
    command="", seeds=(0,), headline=("a",), metrics={"a": Metric(1.0, "x"), "b": Metric(2.0, "x")}, notes=("How.",)
)


@pytest.fixture
def clips(tmp_path, videos) -> Path:
    for name in "abcde":
        videos.make(tmp_path / "clips" / f"{name}.mp4", count=8, height=32, width=32)
        np.savez(tmp_path / "clips" / f"{name}.npz", action=np.linspace(-1, 1, 8), names=["turn"])
    return tmp_path / "clips"


@pytest.fixture
def whole(clips, monkeypatch) -> HeldOut:
    monkeypatch.setattr(evaluate, "_load", lambda *_: None)
    recordings = open_recordings(clips)
    found = HeldOut(recordings, "video", (32, 32), tuple(recordings.episodes))
    monkeypatch.setattr(evaluate, "held_out", lambda *_: found)
    return found


def test_probe_learns_from_the_first_half(clips, whole, tmp_path, monkeypatch, capsys):
    seen = []
    monkeypatch.setattr(evaluate, "evaluate_actions", lambda world, *sides, **_: seen.extend(sides) or REPORT)
    assert actions(Path("m"), clips, out=tmp_path / "out", frames=20) == 0
    assert [side.indices for side in seen] == [(0, 1), (2, 3, 4)]
    assert np.array_equal(seen[1].read(0, 0, 8).actions, whole.read(2, 0, 8).actions)
    page = (tmp_path / "out" / "actions.html").read_text()
    assert f"first 2 episodes of {clips} and is scored on the other 3" in page
    command = f"worldmodel evaluate actions m --data {clips} --out {tmp_path / 'out'} --frames 20"
    assert json.loads((tmp_path / "out" / "actions.json").read_text())["command"] == command
    assert f"<code>{command}</code>" in page
    first, rest = capsys.readouterr().out.strip().split("\n")
    assert first == "a  1 x" and "actions.html" in rest and "all 2 numbers" in rest


def test_command_is_what_repeats_it(whole, monkeypatch, tmp_path):
    monkeypatch.setattr(evaluate, "evaluate_drift", lambda *_, **options: REPORT)
    monkeypatch.setattr(evaluate, "evaluate_latency", lambda *_, **options: REPORT)
    file = tmp_path / "x.json"
    drift(Path("my model"), Path("d"), json=file, seeds=(3, 4), encoders=("lite0",))
    expected = f"worldmodel evaluate drift 'my model' --data d --json {file} --encoders lite0 --seeds 3 4"
    assert json.loads(file.read_text())["command"] == expected
    latency(Path("m"), json=file, short=True)
    assert json.loads(file.read_text())["command"] == f"worldmodel evaluate latency m --json {file} --short"


def test_latents_are_no_recordings(clips, tmp_path):
    encode_recordings(open_recordings(clips), "pixels", tmp_path / "latents")
    with pytest.raises(UserError, match="these are latents; give the recordings"):
        open_recordings(tmp_path / "latents")


def test_one_episode_has_no_halves(whole):
    with pytest.raises(UserError, match="one episode cannot be halved; give --train-data"):
        HeldOut(whole.recordings, "video", (32, 32), (0,)).halves()


@pytest.mark.parametrize(
    ("command", "options", "message"),
    [
        ("drift", {"clips": 0}, "--clips must be at least 1, not 0"),
        ("drift", {"clips": -1}, "--clips must be at least 1, not -1"),
        ("drift", {"starts": 0}, "--starts must be at least 1, not 0"),
        ("drift", {"context": -1}, "--context must be at least 1, not -1"),
        ("drift", {"frames": 0}, "--frames must be at least 3, not 0"),
        ("drift", {"window": 2}, r"--window must be in \[3, 240\], not 2"),
        ("drift", {"window": 33, "frames": 32}, r"--window must be in \[3, 32\], not 33"),
        ("drift", {"seeds": (0, -1)}, r"--seeds must be in \[0, 2\*\*62\), not -1"),
        ("drift", {"seeds": (2**62,)}, r"--seeds must be in \[0, 2\*\*62\), not 4611686018427387904"),
        ("drift", {"seeds": ()}, "--seeds takes different numbers, one or more, not ''"),
        ("drift", {"seeds": (3, 3)}, "--seeds takes different numbers, one or more, not '3 3'"),
        ("drift", {"threads": 0}, r"--threads must be in \[1, 1024\], not 0"),
        ("actions", {"clips": 0}, "--clips must be at least 1, not 0"),
        ("actions", {"frames": 3}, "--frames must be at least 4, not 3"),
        ("actions", {"context": 0}, "--context must be at least 1, not 0"),
        ("actions", {"seeds": (1, 1)}, "--seeds takes different numbers"),
        ("actions", {"threads": -1}, r"--threads must be in \[1, 1024\], not -1"),
        ("latency", {"frames": 0}, "--frames must be at least 1, not 0"),
        ("latency", {"seed": -1}, r"--seed must be in \[0, 2\*\*62\), not -1"),
        ("latency", {"threads": 1025}, r"--threads must be in \[1, 1024\], not 1025"),
    ],
)
def test_numbers_out_of_range_are_refused_before_anything_is_read(command, options, message):
    data = {} if command == "latency" else {"data": Path("nothing")}
    with pytest.raises(UserError, match=f"^{message}"):
        getattr(evaluate, command)(Path("nothing"), **data, **options)
