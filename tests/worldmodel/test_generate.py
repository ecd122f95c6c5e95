"""Rollouts to a video: what cannot be is said before anything is generated, what diverges is not shown."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from test_world import world

from worldmodel import cli
from worldmodel.errors import UserError
from worldmodel.generate import Diverged, context_of, generate, wander, write_rollout
from worldmodel.pixels import check_video, write_video
from worldmodel.sampler import Euler


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model") / "w"
    world().save(folder)
    return folder


@dataclass(frozen=True)
class Spoiled:
    """An Euler step whose chunks get a bad value in the frame `at`, in the second row."""

    at: int
    value: float
    lookahead = 0

    def __call__(self, model, control, state):
        x, pending = Euler(steps=1)(model, control, state)
        inside = self.at - int(state.frame[1])
        if 0 <= inside < x.shape[1]:
            x[1, inside, 0, 0, 0] = self.value
        return x, pending


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_latents_that_are_not_finite_name_the_frame(value, tmp_path):
    with pytest.raises(Diverged, match="the latents are not finite from frame 7 on"):
        write_rollout(world(), None, tmp_path / "x.mp4", 10, 0, Spoiled(7, value), 1)
    assert not list(tmp_path.iterdir())


def test_pixels_that_are_not_finite_name_the_frame():
    made = world()
    made.tokenizer.latent_std.fill_(torch.inf)  # 0 * inf and inf - inf
    with pytest.raises(Diverged, match="the pixels of the context are not finite from frame 0 on"):
        context = context_of(made)
        generate(made, context, wander(made.actions, 3, 4, 0), torch.arange(3), quiet=True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--out x.txt", "x.txt: a video's name ends in one of .mp4, .mkv, .mov"),
        ("--out file/x.mp4", "file/x.mp4: cannot be made, "),
        ("--out folder.mp4", "folder.mp4: is a folder, a video is a file"),
        ("--out x.mp4 --scale 0", "--scale must be in [1, 64], not 0"),
        ("--out x.mp4 --scale 65", "--scale must be in [1, 64], not 65"),
        ("--out x.mp4 --frames 0", "--frames must be at least 1, not 0"),
        ("--out x.mp4 --steps 0", "--steps must be at least 1, not 0"),
        ("--out x.mp4 --threads 0", "--threads must be in [1, 1024], not 0"),
        ("--out x.mp4 --seed -1", "--seed must be in [0, 2**62), not -1"),
        ("--out x.mp4 --seed 9223372036854775807", "--seed must be in [0, 2**62), not 9223372036854775807"),
        ("--out x.mp4 --device gpu", "device 'gpu' cannot be used here: "),
        ("--out x.mp4 --frames 1000000000000000", "out of memory: "),
    ],
)
def test_options_are_checked_first(options, message, saved, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    (tmp_path / "folder.mp4").mkdir()
    assert cli.main(["rollout", str(saved), *options.split()]) == 2
    printed = capsys.readouterr().err.strip()
    assert message in printed and printed.startswith("error: ") and "\n" not in printed
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "folder.mp4"]


def test_export_into_what_is_no_folder(saved, tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert cli.main(["export", str(saved), str(tmp_path / "file" / "out")]) == 2
    assert "file/out: cannot be made, " in capsys.readouterr().err


def test_a_rollout_is_written(saved, tmp_path, capsys):
    out = tmp_path / "new" / "x.mp4"
    assert cli.main(["rollout", str(saved), "--out", str(out), "--frames", "3", "--scale", "1"]) == 0
    assert out.stat().st_size > 0 and capsys.readouterr().out.splitlines()[-1] == str(out)


def test_a_video_that_cannot_be_written_is_one_line(tmp_path, monkeypatch):
    check_video(tmp_path / "a" / "b.mp4")
    monkeypatch.setattr("av.open", lambda *a: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(UserError, match=r"b\.mp4: could not be written \(No space left on device\)"):
        write_video(tmp_path / "b.mp4", np.zeros((2, 8, 8, 3), np.uint8), 8)


def test_frames_that_come_one_by_one_make_the_same_file(tmp_path):
    frames = np.random.default_rng(0).integers(0, 256, (5, 17, 18, 3)).astype(np.uint8)
    write_video(tmp_path / "whole.mp4", frames, 8)
    write_video(tmp_path / "single.mp4", iter(frames), 8)
    assert (tmp_path / "single.mp4").read_bytes() == (tmp_path / "whole.mp4").read_bytes()


def test_a_video_that_breaks_off_leaves_the_old_one(tmp_path):
    def broken():
        yield np.zeros((16, 16, 3), np.uint8)
        raise UserError("the model has diverged")

    path = tmp_path / "x.mp4"
    path.write_bytes(b"what was there")
    with pytest.raises(UserError, match="diverged"):
        write_video(path, broken(), 8)
    assert [(file.name, file.read_bytes()) for file in tmp_path.iterdir()] == [("x.mp4", b"what was there")]


def test_a_rollout_video_is_what_is_generated(tmp_path, monkeypatch):
    made, told = world(), []
    monkeypatch.setattr("worldmodel.generate.write_video", lambda path, frames, fps: told.extend(frames))
    write_rollout(made, None, tmp_path / "x.mp4", 6, 3, None, 2)
    context = context_of(made)
    length = -(-6 // made.dit.chunk) * made.dit.chunk
    control = wander(made.actions, context.batch, length + made.stream.sampler.lookahead * made.dit.chunk, 3)
    video = generate(made, context, control, 3 + torch.arange(context.batch), quiet=True)
    assert (np.stack(told)[:, ::2, ::2] == np.concatenate(list(video), 2)).all()


def test_an_error_and_its_notes_are_one_line(monkeypatch, capsys):
    def fail(*args):
        error = UserError("first\nsecond")
        error.add_note("a note")
        raise error

    monkeypatch.setattr("worldmodel.cli.training.train", fail)
    assert cli.main(["train", "x.py"]) == 2
    assert capsys.readouterr().err == "error: first second; a note\n"
