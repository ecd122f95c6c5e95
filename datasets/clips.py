"""A folder of video files as a recording: each file is an episode, with its actions, if any, in a file beside it.

`drive/ride.mp4` finds its actions in `drive/ride.npz`, `.csv` or `.parquet`, one row per frame of the video:

    .npz       an array `action` [N, dim] (or the only array), and, optionally, `names` [dim]
    .csv       a column per dimension, the first line names them (without such a line they get numbers)
    .parquet   a column per dimension, or one column `action` of lists

Columns that only number the rows (frame, frame_index, timestamp, index, episode_index, task_index) are no actions.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pyarrow import csv

from worldmodel.actions import ActionSpec
from worldmodel.datasets.merge_actions import CHOICES, Merge, merge_actions
from worldmodel.datasets.recordings import Frame, check_actions, numbered
from worldmodel.datasets.video import SUFFIXES, VideoFile, open_video
from worldmodel.errors import UserError
from worldmodel.progress import progress_bar

CAMERA = "video"
MANY = 50  # files that take a while to look at
ACTIONS = (".npz", ".csv", ".parquet")
COUNTERS = {"frame", "frame_index", "timestamp", "index", "episode_index", "task_index"}


@dataclass(frozen=True, slots=True)
class VideoFolder:
    """Video files of one rate and one size. Episodes are numbered in the order of the files' paths.

    With `fps` given to `open`, the frames are those nearest to a grid of that rate, and the action of each covers all
    that was recorded until the next one. Without it, all files must have one constant rate.

    merge: how the actions of frames that are left out or repeated were chosen to be merged; None where all are kept.
    """

    path: Path
    files: tuple[VideoFile, ...]
    fps: Fraction
    action_names: tuple[str, ...]
    resampled: bool
    merge: Merge | None

    kind = "folder of videos"

    @classmethod
    def open(cls, path: Path, fps: Fraction | None = None, merge: Merge | None = None) -> "VideoFolder":
        """Look at a folder (with its subfolders) or a single file.

        Raises UserError that names the file for one that cannot be read, for different kinds of action, for actions
        beside some of the videos only; without `fps`, for different rates or a variable one; with it and without
        `merge`, for actions of frames that are left out or repeated.
        """
        paths, files = video_paths(path), []
        with progress_bar("look", len(paths), unit="files", shown=len(paths) >= MANY) as advance:
            for file in paths:
                files.append(open_video(file))
                advance(1)
        return cls.of(path, tuple(files), fps, merge)

    @classmethod
    def of(
        cls, path: Path, files: tuple[VideoFile, ...], fps: Fraction | None = None, merge: Merge | None = None
    ) -> "VideoFolder":
        """The same from files that are open already."""
        if fps is not None and fps <= 0:
            raise UserError(f"fps must be positive, not {fps}")
        paths = [file.path for file in files]
        names = [action_names(file) for file in paths]
        for file, found in zip(paths, names, strict=True):
            if found != names[0]:
                raise UserError(
                    f"{file}: its actions are {list(found or ())}, those of {paths[0]} {list(names[0] or ())}"
                )
        if fps is None:
            folder = cls(path, files, files[0].fps, names[0] or (), resampled=False, merge=None)
            folder._check_rates()
            return folder
        changed = [file for file in files if _changed(file, fps)] if names[0] else []
        if changed and merge is None:
            raise UserError(
                f"{changed[0].path}: from {_rates(changed[0], fps)} frames/s some frames are left out or repeated, and "
                f"its actions must be merged: choose --merge-actions {CHOICES}"
            )
        return cls(path, files, fps, names[0] or (), resampled=True, merge=merge if changed else None)

    @property
    def cameras(self) -> dict[str, tuple[int, int]]:
        return {CAMERA: (self.files[0].height, self.files[0].width)}

    @property
    def episodes(self) -> dict[int, int]:
        return {index: len(self._indices(index)) for index in range(len(self.files))}

    def size(self, episode: int, camera: str = CAMERA) -> tuple[int, int]:
        return self.files[episode].height, self.files[episode].width

    def frames(self, episode: int, camera: str = CAMERA) -> Iterator[Frame]:
        return self.files[episode].frames(self._indices(episode))

    def actions(self, episode: int) -> NDArray[np.float32]:
        indices = self._indices(episode)
        if not self.action_names:
            return np.zeros((len(indices), 0), np.float32)
        video = self.files[episode]
        path = action_file(video.path)
        assert path is not None
        actions = check_actions(read_actions(path)[1], self.action_names, len(video), str(path), video.path.name)
        if self.merge is None:
            return actions
        merged = merge_actions(actions, video.pts, indices, self.merge)
        return check_actions(merged, self.action_names, len(indices), f"{path}, merged", video.path.name)

    def task(self, episode: int) -> str:
        return ""

    def check_statistics(self, used: tuple[str, ...]) -> None:
        """Of the actions themselves: there are no others."""
        if used:
            columns = [self.action_names.index(name) for name in used]
            actions = np.concatenate([self.actions(episode) for episode in self.episodes])[:, columns]
            ActionSpec.from_data(used, actions, source=str(self.path))

    def notes(self) -> list[str]:
        decord = sum(file.reader == "decord" for file in self.files)
        notes = [f"read with PyAV; frames picked at random with decord in {decord} of {len(self.files)} files"]
        notes += _counted("PyAV only, {}", [(f.path, f.reason) for f in self.files if f.reader != "decord"])
        notes += _counted("turned by {} degrees", [(f.path, f.rotation) for f in self.files if f.rotation])
        if silent := [file for file in self.files if not file.announced]:
            frames = sum(len(file) for file in silent)
            notes.append(
                f"{len(silent)} files announce no length, such as {silent[0].path}: {frames} frames were read from "
                "them, and whether some are missing at an end cannot be seen"
            )
        if self.resampled:
            changed = [f for f in self.files if f.uneven is not None or f.fps != self.fps]
            rates = [(f.path, _rates(f, self.fps)) for f in changed]
            notes += _counted("brought from {} frames/s by timestamps", rates)
        if self.merge is not None:
            notes.append(f"actions merged by {self.merge}: that of a frame covers all until the next kept one")
        return notes

    def _indices(self, episode: int) -> NDArray[np.int64]:
        file = self.files[episode]
        return file.resampled(self.fps) if self.resampled else np.arange(len(file))

    def _check_rates(self) -> None:
        for file in self.files:
            advice = f"bring it to one rate with --fps {max(1, round(file.fps))}"
            if self.action_names:
                advice += " and --merge-actions"
            if file.uneven is not None:
                time = file.seconds[file.uneven]
                raise UserError(
                    f"{file.path}: variable frame rate (frame {file.uneven} comes at {time:.3f} s); {advice}"
                )
            if file.fps != self.fps:
                raise UserError(f"{file.path}: {file.fps} frames/s, {self.files[0].path} has {self.fps}; {advice}")


def video_paths(path: Path) -> list[Path]:
    """The video files at a path, sorted; a UserError if there are none."""
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise UserError(f"{path}: no such file or folder")
    found = sorted(file for file in path.rglob("*") if file.suffix.lower() in SUFFIXES and file.is_file())
    if not found:
        raise UserError(f"{path}: no video files in it ({', '.join(sorted(SUFFIXES))}) and no LeRobotDataset v3")
    return found


def action_file(video: Path) -> Path | None:
    """The file with a video's actions; None if there is none, a UserError if there are several."""
    found = [file for suffix in ACTIONS if (file := video.with_suffix(suffix)).is_file()]
    if len(found) > 1:
        raise UserError(f"{video}: several files of actions beside it ({', '.join(file.name for file in found)})")
    return found[0] if found else None


def action_names(video: Path) -> tuple[str, ...] | None:
    """Names of the action dimensions of a video, None without actions."""
    path = action_file(video)
    return None if path is None else read_actions(path)[0]


def read_actions(path: Path) -> tuple[tuple[str, ...], NDArray[np.float64]]:
    """Names and values [N, dim] of a file of actions; a UserError that names it for anything else in it."""
    try:
        names, values = _read_npz(path) if path.suffix == ".npz" else _read_table(path)
    except (OSError, ValueError, KeyError, BadZipFile, pa.ArrowException) as error:
        raise UserError(f"{path}: cannot be read as actions ({str(error).splitlines()[0]})") from error
    if values.ndim != 2 or len(names) != values.shape[1] or not names:
        raise UserError(f"{path}: {len(names)} names for actions of shape {list(values.shape)}, expected [frames, dim]")
    for column, name in enumerate(names):
        if not name.strip():
            raise UserError(f"{path}: action {column} of {len(names)} has an empty name")
        if name in names[:column]:
            raise UserError(f"{path}: two actions are named '{name}'")
    return names, values


def _read_npz(path: Path) -> tuple[tuple[str, ...], NDArray[np.float64]]:
    with np.load(path, allow_pickle=False) as file:
        arrays = [name for name in file.files if name != "names"]
        chosen = [name for name in ("action", "actions") if name in arrays] or arrays
        if len(chosen) != 1:
            raise UserError(
                f"{path}: which array holds the actions? name it 'action'; it has {', '.join(arrays) or 'none'}"
            )
        values = file[chosen[0]].astype(np.float64)
        values = values[:, None] if values.ndim == 1 else values
        given = file["names"].tolist() if "names" in file.files else None
    return tuple(map(str, given)) if given is not None else numbered(values.shape[-1]), values


def _read_table(path: Path) -> tuple[tuple[str, ...], NDArray[np.float64]]:
    table = _read_csv(path) if path.suffix == ".csv" else pq.read_table(path)
    if "action" in table.column_names and pa.types.is_nested(table.schema.field("action").type):
        values = np.stack([np.asarray(row, np.float64) for row in table["action"].to_pylist()])
        return numbered(values.shape[-1]), values
    columns = [name for name in table.column_names if name.strip() not in COUNTERS]
    for name in columns:
        kind = table.schema.field(name).type
        if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)):
            row, value = next((i, v) for i, v in enumerate(table[name].to_pylist()) if not _is_number(v))
            raise UserError(f"{path}: column '{name.strip()}' is no number in row {row} ({value!r})")
    arrays = [table[name].cast(pa.float64(), safe=False).to_numpy() for name in columns]  # nulls become NaN
    values = np.stack(arrays, 1) if arrays else np.zeros((len(table), 0))
    return tuple(name.strip() for name in columns), values


def _read_csv(path: Path) -> pa.Table:
    table = csv.read_csv(path)
    if all(_is_number(name) for name in table.column_names):  # no line of names
        names = list(numbered(len(table.column_names)))
        table = csv.read_csv(path, read_options=csv.ReadOptions(column_names=names))
    return table


def _changed(file: VideoFile, fps: Fraction) -> bool:
    """Whether frames of a file are left out or repeated at a rate."""
    return not np.array_equal(file.resampled(fps), np.arange(len(file)))


def _rates(file: VideoFile, fps: Fraction) -> str:
    return f"{float(file.fps):.5g} to {float(fps):.5g}"


def _counted(text: str, found: Sequence[tuple[Path, object]]) -> list[str]:
    """A line per value, with the number of files that have it."""
    count = Counter(value for _, value in found)
    first = {value: path for path, value in reversed(found)}
    return [f"{n} files {text.format(value)}, such as {first[value]}" for value, n in count.items()]


def _is_number(text: object) -> bool:
    try:
        float(str(text))
    except ValueError:
        return False
    return True
