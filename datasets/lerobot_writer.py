"""Whole episodes into a LeRobotDataset v3 that is readable whatever happens on the way.

A LeRobotDataset that is not finalised cannot be read at all, because its parquet files have no footer. So episodes are
handed over complete, each is written without being interrupted, and leaving the ``with`` block finalises, however it is
left.
"""

import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
from av.logging import ERROR, set_libav_level
from lerobot.configs import DepthEncoderConfig, RGBEncoderConfig
from lerobot.datasets.io_utils import load_stats, write_stats
from lerobot.datasets.lerobot_dataset import LeRobotDataset
from numpy.typing import NDArray

import datasets as hf_datasets
from worldmodel.datasets.interrupt import uninterrupted
from worldmodel.errors import UserError

STATE, ACTION = "observation.state", "action"
KEYFRAME_EVERY = 12  # frames: random access decodes at most eleven frames in vain
MAX_VIDEO_MB = 32  # lerobot copies the growing file at every episode
MIN_FREE_MB = 64
MAX_FRAMES = 1_000_000  # of an episode; lerobot drops frames when its queue is full, so it must never be
DEPTH_RANGE = (0.05, 80.0)  # metres that the 12 bits of the depth video span, logarithmically


@dataclass(frozen=True, slots=True)
class EpisodeSchema:
    """What every episode of one dataset has. Without names of a state, or of an action, there is no such column."""

    fps: int
    cameras: Mapping[str, tuple[int, int]]  # name -> (height, width) in pixels
    state_names: tuple[str, ...]
    action_names: tuple[str, ...]
    depth: tuple[str, ...] = ()  # the cameras that also give depth


@dataclass(frozen=True, slots=True)
class Episode:
    """T frames in order; ``action[i]`` is executed after frame i and leads to frame i + 1."""

    task: str
    video: Mapping[str, NDArray[np.uint8]]  # camera -> [T, H, W, 3] RGB
    state: NDArray[np.float32]  # [T, S]
    action: NDArray[np.float32]  # [T, A]
    depth: Mapping[str, NDArray[np.float32]]  # camera -> [T, H, W] metres

    def __len__(self) -> int:
        return len(self.action)


class EpisodeWriter:
    """``with EpisodeWriter(folder, schema) as writer: writer.write(episode)``.

    Pictures become H.264 with full colour resolution (yuv444p) at about 42 dB, depth becomes 12-bit HEVC in metres,
    ``observation.state`` and ``action`` float32. A folder without any finished episode is removed at the end.
    """

    def __init__(self, folder: Path, schema: EpisodeSchema) -> None:
        """Raises UserError when ``folder`` exists or cannot be made."""
        if folder.exists():
            raise UserError(f"{folder} exists already: give a new folder")
        self.folder = folder
        self.episodes = 0
        self._schema = schema
        self._rows: dict[str, list[NDArray[np.float32]]] = {key: [] for key in _vectors(schema)}
        try:
            folder.mkdir(parents=True)
            folder.rmdir()  # lerobot wants to make it
        except OSError as error:
            raise UserError(f"{folder}: cannot be made ({error.strerror})") from error
        with _quiet():
            self._dataset = LeRobotDataset.create(
                repo_id=f"local/{folder.name}",
                root=folder,
                fps=schema.fps,
                features=_features(schema),
                video_backend="pyav",  # what reads it back; without it lerobot probes torchcodec, at length
                rgb_encoder=RGBEncoderConfig(
                    vcodec="h264",
                    pix_fmt="yuv444p",
                    g=KEYFRAME_EVERY,
                    crf=6,
                    preset="veryfast",
                    extra_options={"bf": "0", "x264-params": "log-level=error"},
                ),
                depth_encoder=DepthEncoderConfig(
                    depth_min=DEPTH_RANGE[0],
                    depth_max=DEPTH_RANGE[1],
                    g=KEYFRAME_EVERY,
                    extra_options={"x265-params": "lossless=1:log-level=error"},
                ),
                streaming_encoding=True,
                encoder_queue_maxsize=MAX_FRAMES,
                encoder_threads=1,
                video_files_size_in_mb=MAX_VIDEO_MB,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with uninterrupted(), _quiet():
            self._dataset.finalize()
            if self.episodes == 0:
                shutil.rmtree(self.folder)
            else:
                self._write_exact_statistics()

    def write(self, episode: Episode) -> None:
        """Appends one episode.

        Raises UserError, with all earlier episodes safe, when the episode does not fit the schema, holds a number that
        is not finite, or the disk has no room for it.
        """
        _check(episode, self._schema, self.episodes)
        self._check_room(episode)
        with uninterrupted(), _quiet():
            try:
                for index in range(len(episode)):
                    self._dataset.add_frame(_frame(episode, index))
                self._wait_for_encoders()
                self._dataset.save_episode()
            except BaseException:
                self._dataset.clear_episode_buffer()
                raise
            self.episodes += 1
            for key, rows in self._rows.items():
                rows.append(episode.state if key == STATE else episode.action)

    def _wait_for_encoders(self) -> None:
        """Until all frames are taken up: lerobot gives up on an encoder 120 s after an episode's end, mid-video."""
        encoder = self._dataset.writer._streaming_encoder  # pyright: ignore[reportOptionalMemberAccess]
        assert encoder is not None
        for camera, frames in encoder._frame_queues.items():
            while not frames.empty() and encoder._threads[camera].is_alive():
                time.sleep(0.01)

    def _write_exact_statistics(self) -> None:
        """Replaces lerobot's statistics of state and action, whose quantiles are averages over episodes."""
        statistics = load_stats(self.folder)
        assert statistics is not None
        for key, rows in self._rows.items():
            statistics[key] = _statistics(np.concatenate(rows))
        write_stats(statistics, self.folder)

    def _check_room(self, episode: Episode) -> None:
        raw = sum(video.nbytes for video in (*episode.video.values(), *episode.depth.values()))
        free = shutil.disk_usage(self.folder).free
        if free < raw + (MAX_VIDEO_MB + MIN_FREE_MB) * 2**20:
            raise UserError(
                f"{self.folder}: the disk is nearly full ({free // 2**20} MB free), "
                f"stopped after {self.episodes} episodes"
            )


def _statistics(rows: NDArray[np.float32]) -> dict[str, NDArray[np.generic]]:
    """What lerobot keeps of a column: [N, D] -> min, max, mean, std and five quantiles, each [D], and the count."""
    values = rows.astype(np.float64)
    moments = {"min": values.min(0), "max": values.max(0), "mean": values.mean(0), "std": values.std(0)}
    quantiles = {f"q{percent:02d}": np.quantile(values, percent / 100, axis=0) for percent in (1, 10, 50, 90, 99)}
    return {**moments, **quantiles, "count": np.array([len(values)])}


def _vectors(schema: EpisodeSchema) -> dict[str, tuple[str, ...]]:
    """The columns of numbers, with the names of their dimensions."""
    return {key: names for key, names in ((STATE, schema.state_names), (ACTION, schema.action_names)) if names}


def _features(schema: EpisodeSchema) -> dict[str, dict]:
    features: dict[str, dict] = {}
    for camera, (height, width) in schema.cameras.items():
        features[f"observation.images.{camera}"] = {
            "dtype": "video",
            "shape": (height, width, 3),
            "names": ["height", "width", "channels"],
        }
    for camera in schema.depth:
        height, width = schema.cameras[camera]
        features[f"observation.images.{camera}_depth"] = {
            "dtype": "video",
            "shape": (height, width, 1),
            "names": ["height", "width", "channels"],
            "info": {"is_depth_map": True},
        }
    for key, names in _vectors(schema).items():
        features[key] = {"dtype": "float32", "shape": (len(names),), "names": list(names)}
    return features


def _frame(episode: Episode, index: int) -> dict[str, object]:
    vectors = {STATE: episode.state[index], ACTION: episode.action[index]}
    frame: dict[str, object] = {"task": episode.task, **{key: value for key, value in vectors.items() if value.size}}
    for camera, video in episode.video.items():
        frame[f"observation.images.{camera}"] = video[index]
    for camera, depth in episode.depth.items():
        frame[f"observation.images.{camera}_depth"] = depth[index, :, :, None]
    return frame


def _check(episode: Episode, schema: EpisodeSchema, number: int) -> None:
    length = len(episode)
    wanted = {f"camera {camera}": (length, *size, 3) for camera, size in schema.cameras.items()}
    wanted |= {f"depth of {camera}": (length, *schema.cameras[camera]) for camera in schema.depth}
    wanted |= {"state": (length, len(schema.state_names)), "action": (length, len(schema.action_names))}
    found = {f"camera {camera}": video.shape for camera, video in episode.video.items()}
    found |= {f"depth of {camera}": depth.shape for camera, depth in episode.depth.items()}
    found |= {"state": episode.state.shape, "action": episode.action.shape}
    if length < 2:
        raise UserError(f"episode {number} has {length} frames: it takes two to move")
    for name in wanted.keys() | found.keys():
        if wanted.get(name) != found.get(name):
            raise UserError(f"episode {number}, {name}: shape {found.get(name)} instead of {wanted.get(name)}")
    for name, values, names in (
        ("state", episode.state, schema.state_names),
        ("action", episode.action, schema.action_names),
    ):
        bad = np.argwhere(~np.isfinite(values))
        if len(bad):
            frame, column = bad[0]
            raise UserError(f"episode {number}, frame {frame}, {name} {names[column]!r} is {values[frame, column]}")


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the muxer's chatter, from here on, and without the progress bars of Hugging Face's datasets."""
    bars = hf_datasets.are_progress_bars_disabled()
    set_libav_level(ERROR)
    hf_datasets.disable_progress_bars()
    try:
        yield
    finally:
        if not bars:
            hf_datasets.enable_progress_bars()
