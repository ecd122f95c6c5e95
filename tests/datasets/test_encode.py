"""`encode`: the right latents of the right frames with the right actions, whatever interrupts it."""

import os
import signal
import subprocess
import sys
import time
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch

from worldmodel.datasets import encode as module
from worldmodel.datasets.clips import VideoFolder
from worldmodel.datasets.encode import encode, encode_recordings
from worldmodel.datasets.latent_files import Latents, LatentsInfo, episode_file
from worldmodel.datasets.latents import LatentClips
from worldmodel.datasets.recordings import parse_fps, parse_size
from worldmodel.errors import UserError
from worldmodel.models.autoencoder import AutoencoderConfig
from worldmodel.models.tokenizer_folder import load_tokenizer
from worldmodel.pixels import fit, to_float, to_uint8

COUNTS = (37, 70, 5, 33)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("tokenizer")
    AutoencoderConfig(channels=4, widths=(8, 8, 8), blocks=(0, 0, 0)).build().save(folder)
    return folder


@pytest.fixture
def data(tmp_path, videos) -> VideoFolder:
    for index, count in enumerate(COUNTS):
        path = videos.make(tmp_path / "clips" / f"{index}.mp4", count=count)
        np.savez(path.with_suffix(".npz"), action=np.stack([np.arange(count), -np.arange(count)], 1))
    return VideoFolder.open(tmp_path / "clips")


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_latents_are_those_of_the_frames(tmp_path, data, tokenizer):
    info = encode_recordings(data, tokenizer, tmp_path / "out")
    assert info.episodes == dict(enumerate(COUNTS))
    assert (info.shape, info.temporal, info.spatial, info.fps) == ((4, 6, 8), 1, 8, 30)
    latents, model = Latents.open(tmp_path / "out"), load_tokenizer(tokenizer)
    for index, count in enumerate(COUNTS):
        pixels = to_float(np.stack(list(data.frames(index))))
        with torch.no_grad():
            expected = model.encode(pixels[None])[0]
        found = torch.from_numpy(latents.frames(index, 0, count)).float()
        torch.testing.assert_close(found, expected, atol=2e-3, rtol=1e-3)  # float16
        assert latents.actions(index)[:, 0, 0].tolist() == [0, *range(count - 1)]


def test_folder_is_all_that_training_needs(tmp_path, data, tokenizer):
    encode_recordings(data, tokenizer, tmp_path / "out")
    clips = LatentClips(path=(tmp_path / "out",), length=4, batch=2, validation=0.3)
    clip = next(clips.batches())[0]
    model = load_tokenizer(clips.tokenizer)
    assert model.decode(clip.x).shape == (2, 4, 3, 48, 64)
    assert clips.fps == 30 and clip.control.action.shape == (2, 4, 2)


def test_a_tokenizer_for_other_pictures_is_told(tmp_path, data, tokenizer, monkeypatch):
    def said(name: str | Path, out: str) -> list[str]:
        lines: list[str] = []
        encode_recordings(data, name, tmp_path / out, say=lines.append)
        return lines

    quality, warning = said(tokenizer, "bad")  # random weights
    model, frames = load_tokenizer(tokenizer), np.stack(list(data.frames(0))[:9])
    with torch.no_grad():
        made = to_uint8(model.decode(model.encode(to_float(frames)[None])))[0]
    expected = (-10 * np.log10(((made / 255.0 - frames / 255.0) ** 2).mean((1, 2, 3)))).mean()
    assert abs(float(quality.split(" with ")[1].split()[0]) - expected) <= 0.06 and "9 frames" in quality
    assert warning.startswith("warning: below 25 dB") and "configs/doom_autoencoder.py" in warning
    assert said(tokenizer, "bad") == []  # nothing was left to do
    assert said("pixels", "pixels") == []
    monkeypatch.setattr(module, "FITTING", 1.0)
    assert len(said(tokenizer, "good")) == 1


def test_size_and_actions_can_be_chosen(tmp_path, data, tokenizer):
    info = encode_recordings(data, tokenizer, tmp_path / "out", size=(16, 24), actions=("action_1",))
    assert info.shape == (4, 2, 3) and info.action_names == ("action_1",)
    latents, model = Latents.open(tmp_path / "out"), load_tokenizer(tokenizer)
    assert latents.actions(0)[5:8, 0, 0].tolist() == [-4, -5, -6]
    pixels = to_float(np.stack([fit(frame, 16, 24) for frame in data.frames(2)]))
    with torch.no_grad():
        expected = model.encode(pixels[None])[0]
    torch.testing.assert_close(torch.from_numpy(latents.frames(2, 0, 5)).float(), expected, atol=2e-3, rtol=1e-3)


def test_another_rate_merges_actions(tmp_path, data, capsys):
    """At 15 frames/s pairs of rows lead to the next kept frame; latent frame k carries what led to it."""
    out = tmp_path / "out"
    with pytest.raises(UserError, match=r"0\.mp4: from 30 to 15 frames/s .*--merge-actions sum"):
        encode(data.path, "pixels", out, fps="15")
    assert not out.exists()
    assert encode(data.path, "pixels", out, fps="15", merge_actions="sum") == 0
    assert "actions merged by sum" in capsys.readouterr().out
    latents = Latents.open(out)
    assert latents.info.merge_actions == "sum" and latents.info.episodes[0] == 19
    assert latents.actions(0)[:, 0, 0].tolist() == [0, *range(1, 72, 4)]
    with pytest.raises(UserError, match="latents of another merge_actions; give a new folder"):
        encode(data.path, "pixels", out, fps="15", merge_actions="mean")
    assert encode(data.path, "pixels", tmp_path / "last", fps="15", merge_actions="last") == 0
    assert Latents.open(tmp_path / "last").actions(0)[:, 0, 0].tolist() == [0, *range(1, 37, 2)]
    assert encode(data.path, "pixels", tmp_path / "same", fps="30", merge_actions="sum") == 0
    assert Latents.open(tmp_path / "same").info.merge_actions is None


def interrupt_after(episodes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    done = 0

    def write(*args):
        nonlocal done
        if done == episodes:
            raise KeyboardInterrupt
        done += 1
        original(*args)

    original = module.write_episode
    monkeypatch.setattr(module, "write_episode", write)


def test_interrupted_and_resumed_equals_uninterrupted(tmp_path, data, tokenizer, monkeypatch, capsys):
    encode_recordings(data, tokenizer, tmp_path / "whole")
    with monkeypatch.context() as patch:
        interrupt_after(2, patch)
        assert encode(data.path, str(tokenizer), tmp_path / "out") == 130
    assert "the same command goes on" in capsys.readouterr().out
    with pytest.raises(UserError, match="encoding is not finished"):
        LatentsInfo.read(tmp_path / "out")
    # What a kill in the middle of a write leaves behind, and a file that a full disk cut off:
    (tmp_path / "out" / "episodes" / "000002.4711.part").write_bytes(b"half")
    cut = episode_file(tmp_path / "out", 1)
    cut.write_bytes(cut.read_bytes()[:-100])
    kept = episode_file(tmp_path / "out", 0).stat().st_mtime_ns
    assert encode(data.path, str(tokenizer), tmp_path / "out") == 0
    assert episode_file(tmp_path / "out", 0).stat().st_mtime_ns == kept
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_keeps_the_finished_episodes(tmp_path, data, tokenizer, monkeypatch, capsys, number):
    def write(*args):
        original(*args)
        signal.raise_signal(number)

    original = module.write_episode
    before = signal.getsignal(number)
    with monkeypatch.context() as patch:
        patch.setattr(module, "write_episode", write)
        assert encode(data.path, str(tokenizer), tmp_path / "out") == 130
    assert "finished episodes are kept, the same command goes on" in capsys.readouterr().out
    assert signal.getsignal(number) is before
    assert [path.name for path in (tmp_path / "out" / "episodes").iterdir()] == ["000000.safetensors"]


def test_finished_folder_is_left_alone(tmp_path, data, tokenizer, monkeypatch):
    encode_recordings(data, tokenizer, tmp_path / "out")
    before = contents(tmp_path / "out")
    interrupt_after(0, monkeypatch)
    encode_recordings(data, tokenizer, tmp_path / "out")
    assert contents(tmp_path / "out") == before


def test_other_settings_and_other_folders_are_refused(tmp_path, data, tokenizer):
    encode_recordings(data, tokenizer, tmp_path / "out")
    with pytest.raises(UserError, match=r"latents\.json: latents of another shape; give a new folder"):
        encode_recordings(data, tokenizer, tmp_path / "out", size=(16, 16))
    torch.manual_seed(1)
    AutoencoderConfig(channels=4, widths=(8, 8, 8), blocks=(0, 0, 0)).build().save(tmp_path / "other")
    with pytest.raises(UserError, match="latents of another sha256"):
        encode_recordings(data, tmp_path / "other", tmp_path / "out")
    with pytest.raises(UserError, match="not empty, and no latents"):
        encode_recordings(data, tokenizer, data.path)


def test_a_broken_video_keeps_the_finished_episodes(tmp_path, data, tokenizer):
    video = data.files[1].path
    whole = video.read_bytes()
    video.write_bytes(whole[:500] + bytes(200) + whole[700:])
    with pytest.raises(UserError, match=r"1\.mp4: frame \d+ of 70"):
        encode_recordings(data, tokenizer, tmp_path / "out")
    assert episode_file(tmp_path / "out", 0).is_file()
    video.write_bytes(whole)
    encode_recordings(data, tokenizer, tmp_path / "out")
    assert Latents.open(tmp_path / "out").info.frames == sum(COUNTS)


def test_bad_input(tmp_path, data, tokenizer, videos):
    with pytest.raises(UserError, match=r"pictures of 60 x 20 pixels, .* multiples of 8; .* --size 56x16"):
        encode_recordings(data, tokenizer, tmp_path / "out", size=(20, 60))
    np.savez(data.files[2].path.with_suffix(".npz"), action=np.zeros((9, 2)))
    with pytest.raises(UserError, match=r"2\.npz: 9 actions, but 2\.mp4 has 5 frames"):
        encode_recordings(data, tokenizer, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_sizes_and_rates_as_text():
    assert parse_size("64") == (64, 64) and parse_size("64x48") == (48, 64) and parse_size(None) is None
    assert parse_fps("30000/1001") == Fraction(30000, 1001) and parse_fps("29.97") == Fraction(2997, 100)
    for text in ("x", "0", "64x", "-3", "1x2x3"):
        with pytest.raises(UserError, match=f"size '{text}'"):
            parse_size(text)
    for text in ("fast", "1/0", "0", "-2"):
        with pytest.raises(UserError, match=f"fps '{text}'"):
            parse_fps(text)


class FourFrames:
    """A causal tokenizer that keeps the mean grey of each group: 1 frame, then 4, 4, ..."""

    channels, spatial, temporal = 1, 8, 4

    def encode_stream(self, pixels, state):
        lead = pixels[:, :1] if state is None else pixels[:, :0]
        groups = pixels[:, lead.shape[1] :].unflatten(1, (-1, 4)).mean(2)
        grey = torch.cat([lead, groups], 1).mean((2, 3, 4), keepdim=True)
        return grey.expand(*grey.shape[:3], pixels.shape[-2] // 8, pixels.shape[-1] // 8), True


@pytest.mark.parametrize("count", [70, 33, 5, 37, 36])
def test_causal_tokenizer_piece_by_piece(tmp_path, videos, count):
    """Latent frame tau is made of the pixel frames 4 tau - 3 to 4 tau and carries the actions that led to them."""
    path = videos.make(tmp_path / "a.mp4", count=count)
    np.savez(path.with_suffix(".npz"), action=np.stack([np.arange(count), -np.arange(count)], 1))
    data, model = VideoFolder.open(path), FourFrames()
    plan = module._plan
    encoding = plan(data, torch_module(model), tmp_path / "out", None, None, None, "cpu")
    num = 1 + (count - 1) // 4
    assert encoding.info.episodes == {0: num} and encoding.info.temporal == 4
    told = []
    encoding.episode(model, 0, told.append)
    assert sum(told) == count
    latents = Latents(tmp_path / "out", encoding.info)
    grey = [frame.astype(float).mean() / 127.5 - 1 for frame in data.frames(0)]
    expected = [grey[0], *(np.mean(grey[4 * tau - 3 : 4 * tau + 1]) for tau in range(1, num))]
    np.testing.assert_allclose(latents.frames(0, 0, num)[:, 0, 0, 0], expected, atol=1e-3)
    actions = latents.actions(0)[..., 0]
    assert all(actions[tau].tolist() == list(range(4 * tau - 4, 4 * tau)) for tau in range(1, num))


def torch_module(model: FourFrames) -> FourFrames:
    model.state_dict = dict
    return model


COMMAND = """
import sys
from pathlib import Path
from worldmodel.datasets.encode import encode
if __name__ == "__main__":
    sys.exit(encode(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]), workers=2))
"""


def alive_workers(parent: int) -> list[int]:
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:  # it has just ended
            continue
        if int(fields[1]) == parent and fields[0] != "Z":
            found.append(int(stat.parent.name))
    return found


@pytest.mark.slow
@pytest.mark.needs("proc")
def test_kill_9_of_several_processes_and_resume(tmp_path, videos, tokenizer):
    for index in range(12):
        videos.make(tmp_path / "clips" / f"{index:02}.mp4", count=60)
    encode_recordings(VideoFolder.open(tmp_path / "clips"), tokenizer, tmp_path / "whole")
    script = tmp_path / "command.py"
    script.write_text(COMMAND)
    out = tmp_path / "out"
    command = [sys.executable, str(script), str(tmp_path / "clips"), str(tokenizer), str(out)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while not list((out / "episodes").glob("*.safetensors")):
        time.sleep(0.01)
        assert process.poll() is None
    workers = alive_workers(process.pid)
    assert len(workers) >= 2
    process.send_signal(signal.SIGKILL)
    process.wait()
    deadline = time.monotonic() + 60
    while any(Path(f"/proc/{pid}").exists() for pid in workers):
        assert time.monotonic() < deadline, "workers outlive the killed process"
        time.sleep(0.05)
    assert not (out / "latents.json").exists()
    assert subprocess.run(command, check=False, stdout=subprocess.DEVNULL).returncode == 0
    assert contents(out) == contents(tmp_path / "whole")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"workers": 0}, r"--workers must be in \[1, 1024\], not 0"),
        ({"workers": -1}, r"--workers must be in \[1, 1024\], not -1"),
        ({"device": "toaster"}, "device"),
        ({"fps": "0"}, "fps '0': must be positive, and at most 1000"),
        ({"fps": "-24"}, "fps '-24': must be positive"),
        ({"fps": "1e99"}, "fps '1e99': must be positive, and at most 1000"),
        ({"fps": "nan"}, "fps 'nan': give a number"),
        ({"size": "0"}, "size '0': a side has 8 to 4096 pixels"),
        ({"size": "-64"}, "size '-64': give one number, or WIDTHxHEIGHT"),
        ({"size": "64x99999"}, "size '64x99999': a side has 8 to 4096 pixels"),
    ],
)
def test_options_out_of_range_are_refused(tmp_path, videos, options, message):
    videos.make(tmp_path / "a.mp4", count=8)
    with pytest.raises(UserError, match=message):
        module.encode(tmp_path / "a.mp4", "pixels", tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
@pytest.mark.needs("proc")
@pytest.mark.parametrize(
    ("number", "when"),
    [(signal.SIGTERM, "working"), (signal.SIGINT, "working"), (signal.SIGINT, "starting")],
    ids=lambda value: getattr(value, "name", value),
)
def test_a_signal_to_the_whole_process_group(tmp_path, videos, tokenizer, number, when):
    """As Ctrl-C in a terminal does: the workers get it too, also while they still import."""
    for index in range(12):
        videos.make(tmp_path / "clips" / f"{index:02}.mp4", count=60)
    script, out = tmp_path / "command.py", tmp_path / "out"
    script.write_text(COMMAND)
    command = [sys.executable, str(script), str(tmp_path / "clips"), str(tokenizer), str(out)]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )

    def reached() -> bool:
        if when == "starting":  # with the resource tracker there are three
            return len(alive_workers(process.pid)) == 3
        return bool(list((out / "episodes").glob("*.safetensors")))

    while not reached():
        time.sleep(0.01)
        assert process.poll() is None
    os.killpg(process.pid, number)
    printed, errors = process.communicate(timeout=300)
    assert process.returncode == 130, errors
    assert printed.splitlines()[-1] == f"{out}: stopped; finished episodes are kept, the same command goes on"
    assert "Traceback" not in errors and "KeyboardInterrupt" not in errors
    kept = len(list((out / "episodes").glob("*.safetensors"))) if (out / "episodes").is_dir() else 0
    assert (when == "working") <= kept < 12


@pytest.mark.slow
def test_wan_tokenizer_whole_and_piece_by_piece(tmp_path, videos):
    from diffusers import AutoencoderKLWan

    from worldmodel.models.diffusers_tokenizer import WanTokenizer

    torch.manual_seed(0)
    sizes = {"base_dim": 8, "z_dim": 4, "dim_mult": [1, 1, 1, 1], "num_res_blocks": 1}
    statistics = {"latents_mean": [0.0] * 4, "latents_std": [1.0] * 4}
    WanTokenizer(AutoencoderKLWan(**sizes, **statistics)).save(tmp_path / "wan")
    videos.make(tmp_path / "a.mp4", count=75, height=16, width=16)
    data = VideoFolder.open(tmp_path / "a.mp4")
    encode_recordings(data, tmp_path / "wan", tmp_path / "out")
    model = load_tokenizer(tmp_path / "wan")
    with torch.no_grad():
        expected = model.encode(to_float(np.stack(list(data.frames(0))[:73]))[None])[0]
    found = torch.from_numpy(Latents.open(tmp_path / "out").frames(0, 0, 19)).float()
    torch.testing.assert_close(found, expected, atol=2e-3, rtol=1e-3)
