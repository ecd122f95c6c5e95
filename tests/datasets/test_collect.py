"""What collect writes is read back by plain lerobot, PyAV and decord, however the run ends."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import namedtuple
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import av
import gymnasium
import numpy as np
import pytest
from lerobot.datasets.lerobot_dataset import LeRobotDataset
from numpy.typing import NDArray

from worldmodel.datasets import collect as module
from worldmodel.datasets.collect import collect
from worldmodel.datasets.lerobot_writer import KEYFRAME_EVERY, EpisodeWriter
from worldmodel.datasets.worlds import open_world
from worldmodel.datasets.worlds.base import Action, Observation, VectorWorld, World, WorldOptions, WorldSpec
from worldmodel.errors import UserError

SPEC = WorldSpec("toy", "slide the squares", 10, ("speed", "lift"), ("x", "y"), "top", 32, 64)
IMAGE = "observation.images.top"


def picture(x: float, y: float) -> NDArray[np.uint8]:
    rows, columns = np.mgrid[:32, :64]
    red = 128 + 100 * np.sin(columns / 6 + x)
    return np.stack([red, 4.0 * rows + 60 + y, np.full_like(red, 80)], -1).clip(0, 255).astype(np.uint8)


class Drift:
    name = "drift"

    def reset(self) -> None:
        pass

    def __call__(self, observation: Observation, rng: np.random.Generator | Sequence[np.random.Generator]) -> Action:
        if isinstance(rng, np.random.Generator):
            return rng.normal(size=2).astype(np.float32)
        return np.stack([r.normal(size=2) for r in rng]).astype(np.float32)


class Toy(World):
    """Adds the action to a pose that starts at the seed. ``trouble(episode, step)`` may raise, or send a signal."""

    def __init__(self, trouble: Callable[[int, int], None] = lambda *_: None, ends_at: int | None = None) -> None:
        self.facts = SPEC
        self.behaviour = Drift()
        self.action_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
        self.trouble, self.ends_at = trouble, ends_at
        self.episode, self.frame, self.closed = -1, 0, False

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Observation, dict]:
        assert seed is not None
        self.episode, self.frame, self.pose = self.episode + 1, 0, np.array([seed, 0.0], np.float32)
        return self._observe(), {}

    def step(self, action: Action) -> tuple[Observation, float, bool, bool, dict]:
        self.trouble(self.episode, self.frame)
        assert np.all(np.abs(action) <= 1)
        self.frame, self.pose = self.frame + 1, self.pose + action
        return self._observe(), 0.0, self.frame == self.ends_at, False, {"success": self.frame == 3}

    def close(self) -> None:
        self.closed = True

    def _observe(self) -> Observation:
        return {"image": picture(*self.pose), "state": self.pose.copy()}


class Toys(VectorWorld):
    def __init__(self, rows: int) -> None:
        self.facts, self.behaviour, self.num_envs = SPEC, Drift(), rows
        self.single_action_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Observation, dict]:
        assert len(seed) == self.num_envs
        self.pose = np.stack([np.array(seed, np.float32), np.zeros(self.num_envs, np.float32)], 1)
        return self._observe(), {}

    def step(self, actions: Action) -> tuple[Observation, Any, Any, Any, dict]:
        self.pose = self.pose + actions
        nothing = np.zeros(self.num_envs, bool)
        return self._observe(), nothing.astype(float), nothing, nothing, {}

    def _observe(self) -> Observation:
        return {"image": np.stack([picture(*pose) for pose in self.pose]), "state": self.pose.copy()}

    def close_extras(self, **_: Any) -> None:
        pass


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., module.Collection]:
    def collect_from(world: World | VectorWorld, episodes: int = 3, frames: int = 20) -> module.Collection:
        return collect("toy", episodes, tmp_path / "toy", frames, seed=5, quiet=True, opens=lambda name, options: world)

    return collect_from


def load(folder: Path) -> LeRobotDataset:
    return LeRobotDataset("local/toy", root=folder, video_backend="pyav")


def column(dataset: LeRobotDataset, key: str) -> NDArray[np.floating]:
    return np.array(dataset.hf_dataset.with_format("numpy")[key])


def test_the_dataset_holds_what_happened(run: Callable[..., module.Collection]) -> None:
    collection = run(Toy(), episodes=3, frames=20)
    dataset = load(collection.folder)
    assert (dataset.num_episodes, dataset.num_frames, dataset.fps) == (3, 60, 10)
    assert dataset.meta.features["action"]["names"] == ["speed", "lift"]
    assert dataset.meta.features["observation.state"]["names"] == ["x", "y"]
    action, state = column(dataset, "action"), column(dataset, "observation.state")
    for episode, seed in enumerate((5, 6, 7)):
        rows = slice(20 * episode, 20 * (episode + 1))
        expected = np.random.default_rng(seed).normal(size=(20, 2)).astype(np.float32).clip(-1, 1)
        np.testing.assert_array_equal(action[rows], expected)
        np.testing.assert_array_equal(state[rows][0], [seed, 0])
        np.testing.assert_allclose(state[rows][1:], state[rows][:-1] + action[rows][:-1], atol=1e-6)
    for index in (0, 19, 20, 41, 59):
        item = dataset[index]
        assert item["task"] == "slide the squares"
        assert item["timestamp"] == pytest.approx(index % 20 / 10)
        assert psnr(_pixels(item[IMAGE]), picture(*state[index])) > 40


def test_statistics_are_those_of_all_frames_together(run: Callable[..., module.Collection]) -> None:
    """lerobot averages quantiles over episodes: with episodes that differ (x starts at the seed) that is far off."""
    collection = run(Toy(), episodes=4, frames=15)
    dataset = load(collection.folder)
    for key in ("action", "observation.state"):
        rows, found = column(dataset, key).astype(np.float64), dataset.meta.stats[key]  # type: ignore[index]
        for name, percent in (("q01", 1), ("q10", 10), ("q50", 50), ("q90", 90), ("q99", 99)):
            np.testing.assert_allclose(found[name], np.percentile(rows, percent, axis=0), rtol=1e-9)
        np.testing.assert_allclose(found["mean"], rows.mean(0), rtol=1e-9)
        np.testing.assert_allclose(found["std"], rows.std(0), rtol=1e-9)
        np.testing.assert_allclose([found["min"], found["max"]], [rows.min(0), rows.max(0)])
        assert found["count"] == [60]


@pytest.mark.needs("decord")
def test_videos_have_short_groups_and_every_reader_agrees(run: Callable[..., module.Collection]) -> None:
    import decord

    collection = run(Toy(), episodes=2, frames=50)
    (path,) = collection.folder.glob("videos/**/*.mp4")
    frames = list(av.open(str(path)).decode(video=0))
    pyav = np.stack([frame.to_ndarray(format="rgb24") for frame in frames])
    keys = [index for index, frame in enumerate(frames) if frame.key_frame]
    assert max(np.diff([*keys, len(frames)])) <= KEYFRAME_EVERY
    assert [round(frame.time * 10, 6) for frame in frames] == list(range(100))
    other = decord.VideoReader(str(path)).get_batch(range(100)).asnumpy()
    assert np.abs(pyav.astype(int) - other).max() <= 2


def test_doom_pictures_keep_their_quality(tmp_path: Path) -> None:
    collection = collect("doom", 1, tmp_path / "doom", frames=60, seed=2, quiet=True)
    dataset = load(collection.folder)
    world = open_world("doom")
    observation, _ = world.reset(seed=2)  # type: ignore[arg-type]
    quality = []
    for index in range(60):
        quality.append(psnr(_pixels(dataset[index]["observation.images.first_person"]), observation["image"]))
        np.testing.assert_array_equal(dataset[index]["observation.state"], observation["state"])
        observation, *_ = world.step(dataset[index]["action"].numpy())
    world.close()
    assert np.mean(quality) > 40


def test_depth_comes_back_in_metres(tmp_path: Path) -> None:
    options = WorldOptions(depth=True)
    collection = collect("doom", 1, tmp_path / "doom", 12, options=options, quiet=True)
    dataset = load(collection.folder)
    world = open_world("doom", options)
    observation, _ = world.reset(seed=0)  # type: ignore[arg-type]
    for index in range(12):
        millimetres = dataset[index]["observation.images.first_person_depth"].squeeze().numpy()
        np.testing.assert_allclose(millimetres / 1000, observation["depth"], rtol=0.002, atol=0.002)
        observation, *_ = world.step(dataset[index]["action"].numpy())
    world.close()


def test_the_record_beside_info_json(run: Callable[..., module.Collection]) -> None:
    collection = run(Toy(ends_at=7), episodes=2, frames=20)
    record = json.loads((collection.folder / "meta" / "collection.json").read_text())
    assert (record["world"], record["policy"], record["options"]["size"]) == ("toy", "drift", 64)
    assert record["episodes"] == [{"seed": seed, "frames": 7, "ended": True, "success": True} for seed in (5, 6)]
    assert load(collection.folder).num_frames == 14


@pytest.mark.parametrize("rows", [1, 2, 4])
def test_a_vector_world_gives_the_same_episodes(run: Callable[..., module.Collection], rows: int) -> None:
    dataset = load(run(Toys(rows), episodes=3, frames=10).folder)
    assert dataset.num_episodes == 3
    for episode, seed in enumerate((5, 6, 7)):
        expected = np.random.default_rng(seed).normal(size=(10, 2)).astype(np.float32).clip(-1, 1)
        np.testing.assert_array_equal(column(dataset, "action")[10 * episode : 10 * (episode + 1)], expected)
        index = 10 * episode + 9
        state = column(dataset, "observation.state")[index]
        np.testing.assert_allclose(state, np.array([seed, 0]) + expected[:9].sum(0), atol=1e-5)
        assert psnr(_pixels(dataset[index][IMAGE]), picture(*state)) > 40


def test_a_crash_keeps_the_finished_episodes(run: Callable[..., module.Collection], tmp_path: Path) -> None:
    def crash(episode: int, step: int) -> None:
        if (episode, step) == (2, 11):
            raise RuntimeError("the engine died")

    world = Toy(crash)
    with pytest.raises(RuntimeError, match="the engine died") as caught:
        run(world, episodes=5)
    kept = f"2 finished episodes are saved in {tmp_path / 'toy'}: the same command goes on after them"
    assert caught.value.__notes__ == [kept]
    assert world.closed
    assert _readable(tmp_path / "toy") == (2, 40)
    assert len(json.loads((tmp_path / "toy/meta/collection.json").read_text())["episodes"]) == 2


def test_a_crash_before_the_first_episode_leaves_nothing(run: Callable[..., module.Collection], tmp_path: Path) -> None:
    def crash(*_: int) -> None:
        raise RuntimeError("the engine died")

    with pytest.raises(RuntimeError):
        run(Toy(crash))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_simulating_finalises(run: Callable[..., module.Collection], number: signal.Signals) -> None:
    def interrupt(episode: int, step: int) -> None:
        if (episode, step) == (2, 5):
            signal.raise_signal(number)

    before = signal.getsignal(number)
    collection = run(Toy(interrupt), episodes=5)
    assert collection.stopped == number.name
    assert _readable(collection.folder) == (2, 40)
    assert signal.getsignal(number) is before


def test_a_signal_while_writing_waits_for_the_episode(
    run: Callable[..., module.Collection], monkeypatch: pytest.MonkeyPatch
) -> None:
    save = LeRobotDataset.save_episode

    def save_slowly(self: LeRobotDataset, *args: Any, **kwargs: Any) -> None:
        signal.raise_signal(signal.SIGTERM)
        save(self, *args, **kwargs)

    monkeypatch.setattr(LeRobotDataset, "save_episode", save_slowly)
    collection = run(Toy(), episodes=5)
    assert collection.stopped == "SIGTERM"
    assert _readable(collection.folder) == (1, 20)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("episodes", [5, 2])
def test_a_signal_right_after_an_episode_is_saved(
    run: Callable[..., module.Collection], monkeypatch: pytest.MonkeyPatch, number: signal.Signals, episodes: int
) -> None:
    """Saved and on record are the same episodes, also if the signal comes between the two, and comes again."""
    write = EpisodeWriter.write

    def write_and_signal(self: EpisodeWriter, episode: Any) -> None:
        write(self, episode)
        if self.episodes == 2:
            signal.raise_signal(number)

    finish = EpisodeWriter.__exit__

    def signal_and_finish(self: EpisodeWriter, *error: object) -> None:
        signal.raise_signal(number)
        finish(self, *error)

    monkeypatch.setattr(EpisodeWriter, "write", write_and_signal)
    monkeypatch.setattr(EpisodeWriter, "__exit__", signal_and_finish)
    collection = run(Toy(), episodes=episodes)
    assert collection.stopped == number.name
    assert _readable(collection.folder) == (2, 40)
    record = json.loads((collection.folder / "meta" / "collection.json").read_text())
    assert [episode["seed"] for episode in record["episodes"]] == [5, 6]


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_the_whole_process_group(tmp_path: Path, number: signal.Signals) -> None:
    """As Ctrl-C in a terminal does: the simulator's own process gets it too."""
    out = tmp_path / "doom"
    code = (
        "import sys; from pathlib import Path; from worldmodel.datasets.collect import collect;"
        f"c = collect('doom', 500, Path({str(out)!r}), 100); print(c.stopped, len(c.episodes))"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, start_new_session=True)
    while process.poll() is None and not (out / "meta" / "stats.json").exists():
        time.sleep(0.05)
    os.killpg(process.pid, number)
    printed, _ = process.communicate(timeout=120)
    assert process.returncode == 0
    stopped, episodes = printed.split()
    assert stopped == number.name
    assert _readable(out) == (int(episodes), 100 * int(episodes))


def test_a_full_disk_stops_with_everything_saved(
    run: Callable[..., module.Collection], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = iter([10**12, 10**12, 10**6])
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(10**12, 0, next(free)))
    with pytest.raises(UserError, match=r"toy: the disk is nearly full \(0 MB free\), stopped after 2 episodes"):
        run(Toy())
    assert _readable(tmp_path / "toy") == (2, 40)


def test_a_number_that_is_not_finite_is_named(run: Callable[..., module.Collection], tmp_path: Path) -> None:
    world = Toy()
    step = world.step

    def broken(action: Action) -> tuple[Observation, float, bool, bool, dict]:
        result = step(action)
        if (world.episode, world.frame) == (1, 4):
            result[0]["state"][1] = np.nan
        return result

    world.step = broken  # type: ignore[method-assign]
    with pytest.raises(UserError, match="episode 1, frame 4, state 'y' is nan"):
        run(world)
    assert _readable(tmp_path / "toy") == (1, 20)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"episodes": 0}, r"--episodes must be in \[1, 4294967296\], not 0"),
        ({"episodes": -1}, r"--episodes must be in \[1, 4294967296\], not -1"),
        ({"frames": 1}, r"--frames must be in \[2, 1000000\], not 1"),
        ({"frames": 10**9}, r"--frames must be in \[2, 1000000\]"),
        ({"seed": -1}, r"--seed must be in \[0, 4294967295\], not -1"),
        ({"seed": 2**32}, r"--seed must be in \[0, 4294967295\]"),
        ({"world": "atari"}, "unknown world 'atari'"),
    ],
)
def test_bad_requests_are_named(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        collect(**{"world": "doom", "episodes": 1, "out": tmp_path / "x", **change})
    assert list(tmp_path.iterdir()) == []


def test_an_existing_folder_is_never_touched(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("keep")
    with pytest.raises(UserError, match=str(tmp_path / "mine")):
        collect("doom", 1, tmp_path / "mine")
    assert (tmp_path / "mine" / "notes.txt").read_text() == "keep"


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file" / "data", tmp_path / "file" / "a" / "data", Path("/proc/data")):
        with pytest.raises(UserError, match=rf"{folder}: cannot be made \("):
            EpisodeWriter(folder, module._schema(SPEC, WorldOptions()))


def _readable(folder: Path) -> tuple[int, int]:
    """Episodes and frames, after reading the last frame with its picture."""
    dataset = load(folder)
    assert dataset[dataset.num_frames - 1]["action"].shape[-1] in (2, 3)
    return dataset.num_episodes, dataset.num_frames


def _pixels(image: Any) -> NDArray[np.uint8]:
    return (image.permute(1, 2, 0).numpy() * 255).round().astype(np.uint8)


def psnr(one: NDArray[np.uint8], two: NDArray[np.generic]) -> float:
    return float(10 * np.log10(255**2 / max(np.mean((one.astype(float) - two.astype(float)) ** 2), 1e-9)))
