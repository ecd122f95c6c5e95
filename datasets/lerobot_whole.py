"""Whether a LeRobotDataset v3 is whole, so that more episodes can follow those it has.

lerobot goes on behind the last row of meta/episodes without a look at the files that the rows refer to: a dataset that
has lost one would grow, and fail only when it is read.
"""

from contextlib import closing
from itertools import groupby
from pathlib import Path

import av
import numpy as np

from worldmodel.datasets.lerobot import LeRobotRecordings, columns_of, read_parquet
from worldmodel.datasets.lerobot_groups import INFO
from worldmodel.errors import UserError
from worldmodel.serial import read_json

COUNTS = ("total_episodes", "total_frames", "total_tasks", "chunks_size", "data_files_size_in_mb")
INDICES = ("episode_index", "frame_index", "index", "task_index")  # columns of the data that place a row
MOMENTS = ("min", "max", "mean", "std")


def check_whole(found: LeRobotRecordings) -> None:
    """Raise UserError, in one line that names the file, unless all that meta/ refers to is there and agrees with it.

    Counts and statistics are complete; the data files hold the rows of all episodes in order, and no others; each video
    file is as long as its episodes. Of a video only the end is decoded, so damage in the midst of one is not seen.
    """
    info = found.path / INFO
    for key in COUNTS:
        if not isinstance(found.info.get(key), int):
            raise UserError(f"{info}: key '{key}' is {found.info.get(key)!r}, expected a number")
    if list(found.rows) != list(range(len(found.rows))):
        raise UserError(f"{found.path / 'meta' / 'episodes'}: the episodes are not numbered from 0 on without gaps")
    _check_tasks(found)
    _check_statistics(found)
    _check_data(found)
    for key, feature in found.info["features"].items():
        if feature.get("dtype") == "video":
            _check_videos(found, key)


def _check_tasks(found: LeRobotRecordings) -> None:
    path = found.path / "meta" / "tasks.parquet"
    tasks = read_parquet(path, ["task_index", "task"])
    numbers, count = tasks["task_index"].to_pylist(), found.info["total_tasks"]
    if numbers != list(range(count)):
        raise UserError(f"{path}: has the tasks {numbers}, info.json says {count} in all")


def _check_statistics(found: LeRobotRecordings) -> None:
    """What lerobot needs of the old statistics to add new ones."""
    path = found.path / "meta" / "stats.json"
    stats = read_json(path)
    for key, feature in found.info["features"].items():
        if feature.get("dtype") == "string":
            continue
        of_key = stats.get(key) if isinstance(stats, dict) else None
        if not isinstance(of_key, dict):
            raise UserError(f"{path}: no statistics of '{key}'")
        shape = feature.get("shape")
        if not isinstance(shape, list) or not all(isinstance(side, int) for side in shape):
            raise UserError(f"{found.path / INFO}: feature '{key}' has the shape {shape!r}")
        size = shape[-1] if feature.get("dtype") == "video" else int(np.prod(shape))
        for name, wanted in (*((name, size) for name in MOMENTS), ("count", 1)):
            try:
                values = np.asarray(of_key.get(name), np.float64)
            except (TypeError, ValueError):
                values = np.array(np.nan)
            if values.size != wanted or not np.isfinite(values).all():
                raise UserError(f"{path}: '{key}/{name}' is not {wanted} finite numbers")


def _check_data(found: LeRobotRecordings) -> None:
    features = found.info["features"]
    columns = [name for name, feature in features.items() if feature.get("dtype") != "video"]
    referred: set[Path] = set()
    first = 0  # row of the whole dataset
    for path, group in groupby(found.rows, found.data_file):
        referred.add(path)
        episodes = list(group)
        lengths = [found.episodes[episode] for episode in episodes]
        present = columns_of(path)
        for name in columns:
            if name not in present:
                raise UserError(f"{path}: no column '{name}'; it has {', '.join(present)}")
        table = read_parquet(path, list(INDICES))
        if len(table) != sum(lengths):
            raise UserError(f"{path}: {len(table)} rows, the episodes in it have {sum(lengths)} frames")
        expected = {
            "episode_index": np.repeat(episodes, lengths),
            "frame_index": np.concatenate([np.arange(length) for length in lengths]),
            "index": np.arange(first, first + len(table)),
        }
        for name, values in expected.items():
            wrong = np.flatnonzero(table[name].to_numpy() != values)
            if len(wrong):
                row = int(wrong[0])
                raise UserError(f"{path}: row {row} has the {name} {table[name][row]}, expected {values[row]}")
        first += len(table)
    for path in sorted((found.path / "data").rglob("*.parquet")):
        if path not in referred:
            raise UserError(f"{path}: no episode in meta/episodes refers to it")


def _check_videos(found: LeRobotRecordings, key: str) -> None:
    for path, episodes in groupby(found.rows, lambda episode: found.video_file(episode, key)):
        last = max(episodes)
        _check_end(path, float(found.value(last, f"videos/{key}/to_timestamp")), float(found.fps), last)


def _check_end(path: Path, seconds: float, fps: float, episode: int) -> None:
    """A UserError unless the last frame before a time can be decoded."""
    if not path.is_file():
        raise UserError(f"{path}: no such file; episode {episode} lies in it")
    wanted, time = seconds - 1 / fps, -1.0
    try:
        with closing(av.open(str(path))) as container:
            if not container.streams.video:
                raise UserError(f"{path}: damaged or cut off, holds no video; episode {episode} lies in it")
            stream = container.streams.video[0]
            stream.codec_context.thread_count = 1
            container.seek(int(wanted / float(stream.time_base or 1)), stream=stream, backward=True)
            for frame in container.decode(stream):
                if frame.pts is not None and not frame.is_corrupt:
                    time = frame.pts * float(stream.time_base or 1)
    except av.FFmpegError as error:
        raise UserError(f"{path}: cannot be decoded ({error}); episode {episode} lies in it") from error
    if time < wanted - 0.5 / fps:
        raise UserError(f"{path}: damaged or cut off, episode {episode} ends at {seconds:.6f} s in it")
