"""Whole episodes into a LeRobotDataset v3 that is readable whatever happens on the way.

Episodes are handed over complete, and each is written without being interrupted. They join the dataset by groups (see
`lerobot_groups`): leaving the ``with`` block, however it is left, finishes the last group, and a killed process loses
that one only.
"""

import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, Self

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq
from av.logging import ERROR, set_libav_level
from lerobot.configs import DepthEncoderConfig, RGBEncoderConfig
from lerobot.datasets.io_utils import load_stats, write_stats
from lerobot.datasets.lerobot_dataset import LeRobotDataset
from numpy.typing import NDArray

import datasets as hf_datasets
from worldmodel.datasets import lerobot_groups as groups
from worldmodel.datasets.interrupt import uninterrupted
from worldmodel.datasets.lerobot import LeRobotRecordings, read_parquet
from worldmodel.datasets.lerobot_whole import check_whole
from worldmodel.errors import UserError
from worldmodel.folders import alone

STATE, ACTION = "observation.state", "action"
KEYFRAME_EVERY = 12  # frames: random access decodes at most eleven frames in vain
CRF = 6  # of x264: 45 dB and more; 0 is lossless
MAX_VIDEO_MB = 32  # lerobot copies the growing file at every episode
GROUP_FRAMES = 5_000  # of a group of episodes: seconds to minutes of work, which a kill can lose
GROUP_BYTES = 2**30  # of its raw pictures
MIN_FREE_MB = 64
MAX_FRAMES = 1_000_000  # of an episode; lerobot drops frames when its queue is full, so it must never be
DEPTH_RANGE = (0.05, 80.0)  # metres that the 12 bits of the depth video span, logarithmically


@dataclass(frozen=True, slots=True)
class EpisodeSchema:
    """What every episode of one dataset has. Without names of a state, or of an action, there is no such column.

    columns: of more values, one per frame, with their types as lerobot names them: a type of numpy, or "string".
    """

    fps: int
    cameras: Mapping[str, tuple[int, int]]  # name -> (height, width) in pixels
    state_names: tuple[str, ...]
    action_names: tuple[str, ...]
    depth: tuple[str, ...] = ()  # the cameras that also give depth
    columns: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Episode:
    """T frames in order; ``action[i]`` is executed after frame i and leads to frame i + 1."""

    task: str
    video: Mapping[str, NDArray[np.uint8]]  # camera -> [T, H, W, 3] RGB
    state: NDArray[np.float32]  # [T, S]
    action: NDArray[np.float32]  # [T, A]
    depth: Mapping[str, NDArray[np.float32]]  # camera -> [T, H, W] metres
    columns: Mapping[str, NDArray[np.generic]] = field(default_factory=dict)  # name -> [T]; text as numpy's str

    def __len__(self) -> int:
        return len(self.action)

    @property
    def nbytes(self) -> int:
        """Of the raw pictures."""
        return sum(video.nbytes for video in (*self.video.values(), *self.depth.values()))


class EpisodeWriter:
    """``with EpisodeWriter(folder, schema) as writer: writer.write(episode)``.

    Pictures become H.264 with full colour resolution (yuv444p) at about 42 dB, depth becomes 12-bit HEVC in metres,
    ``observation.state`` and ``action`` float32. A folder without any finished episode is removed at the end.

    ``episodes`` counts those in the folder, ``saved`` those of them that a kill cannot lose: after the block, all.
    """

    def __init__(
        self,
        folder: Path,
        schema: EpisodeSchema,
        resume: bool = False,
        beside: Callable[[Path, int], None] = lambda group, episodes: None,
    ) -> None:
        """Make ``folder``, or with ``resume`` go on after the episodes that a writer has left there.

        beside: told, whenever a group of episodes is finished, of a folder and of the number of all episodes; what it
        writes below that folder appears in ``folder`` together with the group.

        Raises UserError when ``folder`` cannot be made, exists (without ``resume``), holds episodes of another schema
        or damaged ones (see `check_whole`), or is written to by another process. A folder that holds nothing but what a
        killed writer has left of its first group counts as one that does not exist.
        """
        if folder.exists() and not resume and not groups.is_untouched(folder):
            raise UserError(f"{folder} exists already: give a new folder")
        self.folder = folder
        self._schema = schema
        self._beside = beside
        self._dataset: LeRobotDataset | None = None  # of the group that is being written
        self._group_frames = self._group_bytes = 0
        self._torn = False  # the group has rows of an episode that failed
        with ExitStack() as opened:
            opened.enter_context(alone(folder))
            opened.callback((folder / groups.LOCK).unlink, missing_ok=True)
            groups.recover(folder)
            self.saved = self.episodes = _check_same(folder, schema)
            self._rows = {key: _read_rows(folder, key, len(names)) for key, names in _vectors(schema).items()}
            self._open = opened.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with uninterrupted(), self._open:
            if self._dataset is not None:
                self._finish_group()
            if self.saved == 0:
                shutil.rmtree(self.folder)

    def write(self, episode: Episode) -> None:
        """Appends one episode.

        Raises UserError, with all earlier episodes safe, when the episode does not fit the schema, holds a number that
        is not finite, or the disk has no room for it.
        """
        _check(episode, self._schema, self.episodes)
        self._check_room(episode)
        with uninterrupted(), _quiet():
            if self._torn and self._dataset is not None:
                self._finish_group()
            dataset = self._dataset = self._dataset or self._begin_group()
            try:
                for index in range(len(episode)):
                    dataset.add_frame(_frame(episode, index))
                self._wait_for_encoders(dataset)
                self._torn = True
                dataset.save_episode()
                self._torn = False
            except BaseException:
                dataset.clear_episode_buffer()
                raise
            self.episodes += 1
            for key, rows in self._rows.items():
                rows.append(episode.state if key == STATE else episode.action)
            self._group_frames += len(episode)
            self._group_bytes += episode.nbytes
            if self._group_frames >= GROUP_FRAMES or self._group_bytes >= GROUP_BYTES:
                self._finish_group()

    def _begin_group(self) -> LeRobotDataset:
        repo_id = f"local/{self.folder.name}"
        if self.saved:
            with _no_traces(self.folder / groups.PART):
                return LeRobotDataset.resume(repo_id=repo_id, root=groups.begin_after(self.folder), **_encoding())
        return LeRobotDataset.create(
            repo_id=repo_id,
            root=self.folder / groups.PART,
            fps=self._schema.fps,
            features=_features(self._schema),
            video_files_size_in_mb=MAX_VIDEO_MB,
            **_encoding(),
        )

    def _finish_group(self) -> None:
        """Raises UserError when the disk is full: then the episodes of this group are lost."""
        assert self._dataset is not None
        dataset, self._dataset, group = self._dataset, None, self.folder / groups.PART
        try:
            with _quiet():
                dataset.finalize()
            if self.episodes > self.saved:
                if self._torn:
                    _drop_rows_from(group, self.episodes)
                self._write_exact_statistics(group)
                self._beside(group, self.episodes)
                groups.finish(self.folder)
            else:  # its first episode failed
                shutil.rmtree(group)
        except OSError as error:
            raise UserError(
                f"{self.folder}: could not be written ({error.strerror or error}); {self.saved} episodes are kept"
            ) from error
        self.saved, self._torn = self.episodes, False
        self._group_frames = self._group_bytes = 0

    def _wait_for_encoders(self, dataset: LeRobotDataset) -> None:
        """Until all frames are taken up: lerobot gives up on an encoder 120 s after an episode's end, mid-video."""
        encoder = dataset.writer._streaming_encoder  # pyright: ignore[reportOptionalMemberAccess]
        assert encoder is not None
        for camera, frames in encoder._frame_queues.items():
            while not frames.empty() and encoder._threads[camera].is_alive():
                time.sleep(0.01)

    def _write_exact_statistics(self, group: Path) -> None:
        """Replaces lerobot's statistics of state and action, whose quantiles are averages over episodes."""
        statistics = load_stats(group)
        assert statistics is not None
        for key, rows in self._rows.items():
            statistics[key] = _statistics(np.concatenate(rows))
        write_stats(statistics, group)

    def _check_room(self, episode: Episode) -> None:
        free = shutil.disk_usage(self.folder).free
        if free < episode.nbytes + (MAX_VIDEO_MB + MIN_FREE_MB) * 2**20:
            raise UserError(
                f"{self.folder}: the disk is nearly full ({free // 2**20} MB free), "
                f"stopped after {self.episodes} episodes"
            )


def _encoding() -> dict[str, Any]:
    return {
        "video_backend": "pyav",  # what reads it back; without it lerobot probes torchcodec, at length
        "rgb_encoder": RGBEncoderConfig(
            vcodec="h264",
            pix_fmt="yuv444p",
            g=KEYFRAME_EVERY,
            crf=CRF,
            preset="veryfast",
            extra_options={"bf": "0", "x264-params": "log-level=error"},
        ),
        "depth_encoder": DepthEncoderConfig(
            depth_min=DEPTH_RANGE[0],
            depth_max=DEPTH_RANGE[1],
            g=KEYFRAME_EVERY,
            extra_options={"x265-params": "lossless=1:log-level=error"},
        ),
        "streaming_encoding": True,
        "encoder_queue_maxsize": MAX_FRAMES,
        "encoder_threads": 1,
    }


def _check_same(folder: Path, schema: EpisodeSchema) -> int:
    """The number of episodes in the folder; a UserError if they are of another schema, or damaged."""
    if groups.is_untouched(folder):
        return 0
    dataset = LeRobotRecordings.open(folder)
    info = dataset.info
    for key, feature in _features(schema).items():
        found = info["features"].get(key, {})
        if (found.get("shape"), found.get("names")) != (list(feature["shape"]), feature["names"]):
            raise UserError(f"{folder}: its episodes have another '{key}': give a new folder")
    if info["fps"] != schema.fps:
        raise UserError(f"{folder}: its episodes have {info['fps']} frames/s, not {schema.fps}: give a new folder")
    check_whole(dataset)
    return len(dataset.rows)


def _read_rows(folder: Path, key: str, size: int) -> list[NDArray[np.float32]]:
    """All numbers of a column, [N, size] for each file."""
    rows = []
    for path in sorted((folder / "data").glob("*/*.parquet")):
        column = read_parquet(path, [key])[key].combine_chunks()
        values = column.to_numpy() if size == 1 else column.flatten().to_numpy()  # lerobot keeps one number as a scalar
        rows.append(values.reshape(-1, size).astype(np.float32, copy=False))
    return rows


def _drop_rows_from(group: Path, episode: int) -> None:
    """An episode whose video failed has left its numbers in the last file: later ones would be misplaced."""
    path = max((group / "data").glob("*/*.parquet"))
    rows = pq.ParquetFile(path).read()
    pq.write_table(rows.filter(pc.field("episode_index") < episode), path)


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
    return features | {key: {"dtype": kind, "shape": (1,), "names": None} for key, kind in schema.columns.items()}


def _frame(episode: Episode, index: int) -> dict[str, object]:
    vectors = {STATE: episode.state[index], ACTION: episode.action[index]}
    frame: dict[str, object] = {"task": episode.task, **{key: value for key, value in vectors.items() if value.size}}
    for camera, video in episode.video.items():
        frame[f"observation.images.{camera}"] = video[index]
    for camera, depth in episode.depth.items():
        frame[f"observation.images.{camera}_depth"] = depth[index, :, :, None]
    for key, values in episode.columns.items():
        frame[key] = str(values[index]) if values.dtype.kind == "U" else values[index : index + 1]
    return frame


def _check(episode: Episode, schema: EpisodeSchema, number: int) -> None:
    length = len(episode)
    wanted = {f"camera {camera}": (length, *size, 3) for camera, size in schema.cameras.items()}
    wanted |= {f"depth of {camera}": (length, *schema.cameras[camera]) for camera in schema.depth}
    wanted |= {"state": (length, len(schema.state_names)), "action": (length, len(schema.action_names))}
    wanted |= {f"column {key}": (length,) for key in schema.columns}
    found = {f"camera {camera}": video.shape for camera, video in episode.video.items()}
    found |= {f"depth of {camera}": depth.shape for camera, depth in episode.depth.items()}
    found |= {"state": episode.state.shape, "action": episode.action.shape}
    found |= {f"column {key}": values.shape for key, values in episode.columns.items()}
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


@contextmanager
def _no_traces(group: Path) -> Iterator[None]:
    """lerobot reads the last episode with Hugging Face's datasets: its cache lies here and is gone after the block,
    and its progress bars stay as `_quiet` left them.
    """
    settings: Any = import_module("datasets.config")  # read where the cache is needed
    before, settings.HF_DATASETS_CACHE = settings.HF_DATASETS_CACHE, group / ".cache"
    try:
        yield
    finally:
        settings.HF_DATASETS_CACHE = before
        shutil.rmtree(group / ".cache", ignore_errors=True)
        hf_datasets.disable_progress_bars()  # lerobot has enabled them
