"""A LeRobotDataset v3 as a recording.

The files are read directly, where lerobot's own class is made for random access: an episode is one pass over its piece
of a video file, without seeking per frame; episodes are found by `episode_index`, never by position; and whatever is
wrong is named with its file, episode and frame. Format: lerobot's documentation of "LeRobotDataset v3.0".
"""

import json
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from fractions import Fraction
from math import isfinite
from pathlib import Path
from typing import Any

import av
import cv2
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from worldmodel.datasets.lerobot_groups import WHOLE, is_begun
from worldmodel.datasets.lerobot_statistics import Statistics
from worldmodel.datasets.recordings import Frame, check_actions, numbered
from worldmodel.errors import UserError
from worldmodel.pixels import as_rgb
from worldmodel.serial import read_json

ACTION = "action"
PREFIX = "observation.images."
STATE = "observation.state"
TOLERANCE = 1e-4  # seconds, lerobot's own
RECORD = Path("meta") / "collection.json"  # by `collect` and others, beside lerobot's own info.json


@dataclass(frozen=True, slots=True)
class LeRobotRecordings:
    """A dataset whose description was read by `open`; data and video files are read episode by episode.

    tolerance: seconds by which a frame may lie beside the time of its row before that is an error.
    """

    path: Path
    info: dict[str, Any]
    rows: dict[int, dict[str, Any]]  # of meta/episodes, by episode_index
    statistics: Statistics
    tolerance: float = TOLERANCE

    kind = "LeRobotDataset v3"

    @classmethod
    def open(cls, path: Path, tolerance: float = TOLERANCE) -> "LeRobotRecordings":
        """Read the description. A UserError names the file and place of what is missing, broken or of a version that is
        not 3.
        """
        if is_begun(path) and not (path / "meta" / "info.json").is_file():
            raise UserError(
                f"{path}: a recording that was broken off before its first group of episodes was saved, or still goes "
                "on; if no process writes to it, the command that made it goes on when given again"
            )
        info = _read_info(path / "meta" / "info.json")
        rows = _read_episodes(path / "meta" / "episodes")
        if (path / WHOLE).is_dir():  # killed while a group joined: info.json does not count all of it yet
            rows = {index: row for index, row in rows.items() if index < info.get("total_episodes", len(rows))}
        if len(rows) != info.get("total_episodes", len(rows)):
            raise UserError(
                f"{path / 'meta' / 'episodes'}: {len(rows)} episodes, info.json says {info['total_episodes']}"
            )
        frames = sum(row["length"] for row in rows.values())
        if frames != info.get("total_frames", frames):
            raise UserError(
                f"{path / 'meta' / 'episodes'}: {frames} frames in all episodes, info.json says {info['total_frames']}"
            )
        feature = info["features"].get(ACTION)
        names = () if feature is None else _names(feature)
        return cls(path, info, rows, Statistics(path / "meta" / "stats.json", ACTION, names), tolerance)

    @property
    def fps(self) -> Fraction:
        return Fraction(self.info["fps"]).limit_denominator(1001)

    @property
    def cameras(self) -> dict[str, tuple[int, int]]:
        return {key.removeprefix(PREFIX): _size(feature) for key, feature in self._pictures.items()}

    @property
    def action_names(self) -> tuple[str, ...]:
        return self.statistics.names

    @property
    def episodes(self) -> dict[int, int]:
        return {index: self._length(index) for index in self.rows}

    def size(self, episode: int, camera: str) -> tuple[int, int]:
        return self.cameras[camera]

    def frames(self, episode: int, camera: str) -> Iterator[Frame]:
        """All frames of an episode; UserError for a frame that is missing, damaged, late or of another size."""
        key = camera if camera in self._pictures else PREFIX + camera
        feature = self._pictures[key]
        if feature["dtype"] == "video":
            pictures = self._video_frames(episode, key)
        else:
            pictures = self._stored_pictures(episode, key)
        height, width = _size(feature)
        for frame, picture in enumerate(pictures):
            if picture.shape != (height, width, 3):
                raise UserError(
                    f"{self.path}: episode {episode}, frame {frame} of {camera} is {picture.shape[1]} x "
                    f"{picture.shape[0]} pixels, info.json says {width} x {height}"
                )
            yield picture

    def actions(self, episode: int) -> NDArray[np.float32]:
        if not self.action_names:
            return np.zeros((self._length(episode), 0), np.float32)
        path, table = self._table(episode, [ACTION])
        where = f"{path}: episode {episode}"
        try:
            values = np.stack([np.asarray(row, np.float64) for row in table[ACTION].to_pylist()])
        except (ValueError, TypeError) as error:
            raise UserError(f"{where}: actions of different shapes ({error})") from error
        values = values[:, None] if values.ndim == 1 else values
        actions = check_actions(values, self.action_names, self._length(episode), where, "the episode")
        self.statistics.compare(actions, where)
        return actions

    @property
    def state_names(self) -> tuple[str, ...]:
        """Of the dimensions of `observation.state`; empty where there is none."""
        feature = self.info["features"].get(STATE)
        return () if feature is None else _names(feature, "state")

    def states(self, episode: int) -> NDArray[np.float64]:
        """`observation.state` of every frame, [N, S]."""
        path, table = self._table(episode, [STATE])
        values = np.array(table[STATE].to_pylist(), np.float64)
        values = values[:, None] if values.ndim == 1 else values
        if values.shape != (self.episodes[episode], len(self.state_names)):
            raise UserError(f"{path}: episode {episode}: states of shape {values.shape}, expected {self.state_names}")
        return values

    def column(self, episode: int, name: str) -> NDArray[np.generic]:
        """A column of single values, one of every frame, [N]; text as objects."""
        _, table = self._table(episode, [name])
        return table[name].to_numpy()

    def check_statistics(self, used: tuple[str, ...]) -> None:
        self.statistics.check(used)

    def task(self, episode: int) -> str:
        tasks = self.rows[episode].get("tasks")
        return str(tasks[0]) if tasks else ""

    def notes(self) -> list[str]:
        depth = [key for key, feature in self.info["features"].items() if _is_depth(feature)]
        return ["videos read with PyAV", *(f"depth is not read: {key}" for key in depth), *self._missing()]

    def _missing(self) -> Iterator[str]:
        """What is known of episodes that a recording should have had."""
        record = read_json(self.path / RECORD) if (self.path / RECORD).is_file() else {}
        wanted, command = None, "collect"
        if isinstance(record, dict):
            wanted, command = record.get("wanted"), record.get("command", command)
        if isinstance(wanted, int) and wanted > len(self.rows):
            yield f"{len(self.rows)} of {wanted} episodes: the same `worldmodel {command}` command records the others"
        elif is_begun(self.path):
            yield "the recording was broken off, or still goes on: its last group of episodes is not saved"

    @property
    def _pictures(self) -> dict[str, dict[str, Any]]:
        features = self.info["features"].items()
        return {key: f for key, f in features if f.get("dtype") in ("video", "image") and not _is_depth(f)}

    def _length(self, episode: int) -> int:
        return int(self.rows[episode]["length"])

    def value(self, episode: int, column: str) -> int | float:
        """A number in an episode's row of meta/episodes."""
        value = self.rows[episode].get(column)
        if not isinstance(value, int | float) or not isfinite(value):
            raise UserError(f"{self.path / 'meta' / 'episodes'}: episode {episode} has no number in '{column}'")
        return value

    def data_file(self, episode: int) -> Path:
        """The parquet file with the rows of an episode."""
        return self._file("data_path", episode, "data")

    def video_file(self, episode: int, key: str) -> Path:
        """The video file with the pictures of an episode; ``key`` as in info.json."""
        return self._file("video_path", episode, f"videos/{key}", video_key=key)

    def _file(self, template: str, episode: int, columns: str, **names: str) -> Path:
        """The file with an episode's rows or pictures, by a key of info.json and two columns of meta/episodes."""
        place = {key: int(self.value(episode, f"{columns}/{key}")) for key in ("chunk_index", "file_index")}
        return self.path / self.info[template].format(**place, **names)

    def _table(self, episode: int, columns: list[str]) -> tuple[Path, pa.Table]:
        """The rows of an episode in order, checked to be complete and on time."""
        path = self.data_file(episode)
        wanted = list(dict.fromkeys((*columns, "frame_index", "timestamp")))
        table = read_parquet(path, wanted, [("episode_index", "=", episode)]).sort_by("frame_index")
        where, length = f"{path}: episode {episode}", self._length(episode)
        found = table["frame_index"].to_numpy()
        missing = np.flatnonzero(found[:length] != np.arange(length)[: len(found)])
        if len(found) != length or len(missing):
            first = int(missing[0]) if len(missing) else min(len(found), length)
            raise UserError(
                f"{where} has {len(found)} frames, the first missing one is {first}; it should have {length}"
            )
        times, grid = table["timestamp"].to_numpy().astype(np.float64), np.arange(length) / float(self.fps)
        late = np.abs(times - grid) > self.tolerance + 1e-6 * grid  # stored with 24 bits
        if late.any():
            frame = int(late.argmax())
            raise UserError(
                f"{where}, frame {frame}: its time is {times[frame]:.6f} s, expected {grid[frame]:.6f} s at "
                f"{float(self.fps):.5g} frames/s (tolerance {self.tolerance:g} s)"
            )
        return path, table

    def _stored_pictures(self, episode: int, key: str) -> Iterator[Frame]:
        path, table = self._table(episode, [key])
        for frame, cell in enumerate(table[key]):
            data = cell.as_py()["bytes"]
            picture = None if not data else cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)
            if picture is None:
                raise UserError(f"{path}: episode {episode}, frame {frame}: {key} is not a readable picture")
            yield cv2.cvtColor(picture, cv2.COLOR_BGR2RGB).astype(np.uint8, copy=False)

    def _video_frames(self, episode: int, key: str) -> Iterator[Frame]:
        path = self.video_file(episode, key)
        if not path.is_file():
            raise UserError(f"{path}: no such file; episode {episode} lies in it")
        _, table = self._table(episode, [])
        wanted = self.value(episode, f"videos/{key}/from_timestamp") + table["timestamp"].to_numpy().astype(np.float64)
        yield from _at_times(path, wanted, self.tolerance, episode)


def _at_times(path: Path, wanted: NDArray[np.float64], tolerance: float, episode: int) -> Iterator[Frame]:
    """The frames nearest to increasing times in seconds, in one pass from the key frame before the first on."""
    done, last = 0, None
    try:
        with closing(av.open(str(path))) as container:
            stream = container.streams.video[0]
            stream.codec_context.thread_count = 1
            time_base = float(stream.time_base or 1)
            container.seek(round(wanted[0] / time_base) - 1, stream=stream, backward=True)
            for frame in container.decode(stream):
                if frame.pts is None:
                    continue
                time = frame.pts * time_base
                while done < len(wanted) and wanted[done] <= time + tolerance:
                    if last is None or abs(time - wanted[done]) <= abs(last[0] - wanted[done]):
                        yield _frame(path, frame, time, wanted[done], tolerance, episode, done)
                    else:
                        yield _frame(path, last[1], last[0], wanted[done], tolerance, episode, done)
                    done += 1
                if done == len(wanted):
                    return
                last = time, frame
    except (av.FFmpegError, IndexError) as error:
        raise UserError(f"{path}: episode {episode}, frame {done} cannot be decoded ({error})") from error
    end = "has no whole frames" if last is None else f"ends at {last[0]:.6f} s"
    raise UserError(f"{path}: {end}, but episode {episode}, frame {done} is at {wanted[done]:.6f} s")


def _frame(
    path: Path, frame: av.VideoFrame, time: float, wanted: float, tolerance: float, episode: int, number: int
) -> Frame:
    where = f"{path}: episode {episode}, frame {number}"
    if abs(time - wanted) > tolerance:
        raise UserError(
            f"{where}: wanted at {wanted:.6f} s, the nearest picture is at {time:.6f} s (tolerance {tolerance:g} s)"
        )
    if frame.is_corrupt:
        raise UserError(f"{where} is damaged or cut off")
    return as_rgb(frame)


def is_lerobot(path: Path) -> bool:
    """Whether a folder looks like a LeRobotDataset, of whatever version and however broken."""
    meta = path / "meta"
    return (meta / "info.json").is_file() or (meta.is_dir() and (path / "data").is_dir()) or is_begun(path)


def download(name: str) -> Path:
    """Fetch a dataset "owner/name" through lerobot, or find it in its cache; returns the folder."""
    from httpx import HTTPError  # the hub's client is built on it, and lets its errors through
    from lerobot.datasets.lerobot_dataset import LeRobotDataset  # takes seconds

    try:
        return Path(LeRobotDataset(name, video_backend="pyav").root)
    except (HTTPError, OSError, ValueError, RuntimeError) as error:
        reason = " ".join(str(error).split())[:200]
        raise UserError(f"{name}: no such folder, and no dataset of that name on the hub ({reason})") from error


def read_parquet(path: Path, columns: list[str], filters: Any = None) -> pa.Table:
    """Columns of a parquet file, of all rows or some; a UserError that names it if that is not possible."""
    present = columns_of(path)
    for name in columns:
        if name not in present:
            raise UserError(f"{path}: no column '{name}'; it has {', '.join(present)}")
    try:
        # The names of the folders are no columns, even if they look like "name=value".
        return pq.read_table(path, columns=columns, filters=filters, partitioning=None)  # pyright: ignore[reportArgumentType]
    except (pa.ArrowException, OSError) as error:
        raise UserError(f"{path}: damaged ({str(error).splitlines()[0]})") from error


def columns_of(path: Path) -> list[str]:
    """Names of the columns of a parquet file, from its footer."""
    if not path.is_file():
        raise UserError(f"{path}: no such file")
    try:
        return pq.read_schema(path).names
    except (pa.ArrowException, OSError) as error:
        raise UserError(f"{path}: not finalised, it has no footer: the recording was broken off or cut") from error


def _read_info(path: Path) -> dict[str, Any]:
    info = read_json(path)
    version = str(info.get("codebase_version", "")) if isinstance(info, dict) else ""
    if version.startswith(("v1", "v2")):
        raise UserError(
            f"{path}: LeRobotDataset {version}; bring it to v3.0 with "
            "`python -m lerobot.scripts.convert_dataset_v21_to_v30 --repo-id=NAME --root=FOLDER`"
        )
    if not version.startswith("v3"):
        raise UserError(f"{path}: LeRobotDataset version {version or 'unknown'}; this reads v3")
    for key, kind in (("features", dict), ("fps", int | float), ("data_path", str)):
        if not isinstance(info.get(key), kind):
            raise UserError(f"{path}: key '{key}' is {json.dumps(info.get(key))}")
    if not isfinite(info["fps"]) or info["fps"] <= 0:
        raise UserError(f"{path}: fps is {info['fps']}")
    videos = False
    for name, feature in info["features"].items():
        if not isinstance(feature, dict):
            raise UserError(f"{path}: feature '{name}' is {json.dumps(feature)}")
        shape, picture = feature.get("shape"), feature.get("dtype") in ("video", "image")
        if not picture and name not in (ACTION, STATE):
            continue
        if not isinstance(shape, list) or not all(isinstance(side, int) and side > 0 for side in shape):
            raise UserError(f"{path}: feature '{name}' has the shape {json.dumps(shape)}")
        if picture and len(shape) != 3:
            raise UserError(f"{path}: feature '{name}' is a picture of shape {shape}, expected three numbers")
        videos = videos or feature.get("dtype") == "video"
    _check_template(info, "data_path", path)
    if videos:
        _check_template(info, "video_path", path, video_key="x")
    return info


def _check_template(info: dict[str, Any], key: str, path: Path, **names: str) -> None:
    """A UserError for the name of a file that holds other places than the format knows."""
    try:
        info[key].format(chunk_index=0, file_index=0, **names)
    except (KeyError, IndexError, ValueError, AttributeError, TypeError) as error:
        known = ", ".join(f"{{{name}}}" for name in ("chunk_index", "file_index", *names))
        raise UserError(f"{path}: key '{key}' is {json.dumps(info.get(key))}; expected a name with {known}") from error


def _read_episodes(folder: Path) -> dict[int, dict[str, Any]]:
    files = sorted(folder.rglob("*.parquet"))
    if not files:
        raise UserError(f"{folder}: no parquet files: the recording was not finalised, or is incomplete")
    rows: dict[int, dict[str, Any]] = {}
    for file in files:
        names = [name for name in columns_of(file) if not name.startswith("stats/")]
        for needed in ("episode_index", "length", "data/chunk_index", "data/file_index"):
            if needed not in names:
                raise UserError(f"{file}: no column '{needed}'")
        for row in read_parquet(file, names).to_pylist():
            if not isinstance(row["episode_index"], int) or not isinstance(row["length"], int) or row["length"] < 1:
                raise UserError(f"{file}: episode {row['episode_index']} has the length {row['length']}")
            if row["episode_index"] in rows:
                raise UserError(f"{file}: episode {row['episode_index']} is there twice")
            rows[row["episode_index"]] = row
    if not rows:
        raise UserError(f"{folder}: no episodes")
    return dict(sorted(rows.items()))


def names_given(feature: dict[str, Any]) -> Any:
    """What a feature says its dimensions are called: names in a list if it is well made, None for `names: null`."""
    names = feature.get("names")
    while isinstance(names, dict) and len(names) == 1:  # {"motors": [...]}
        names = next(iter(names.values()))
    return list(names) if isinstance(names, dict) else names


def _names(feature: dict[str, Any], what: str = "action") -> tuple[str, ...]:
    """Names of the dimensions of an action; `names: null`, or a wrong number of names, gives numbers."""
    dim, names = int(np.prod(feature["shape"])), names_given(feature)
    fits = isinstance(names, list) and len(names) == dim and all(isinstance(name, str) for name in names)
    return tuple(names) if fits else numbered(dim, what)


def _size(feature: dict[str, Any]) -> tuple[int, int]:
    a, b, c = feature["shape"]
    return (b, c) if a in (1, 3) and c not in (1, 3) else (a, b)


def _is_depth(feature: dict[str, Any]) -> bool:
    info = {**(feature.get("video_info") or {}), **(feature.get("info") or {})}
    return bool(info.get("is_depth_map") or info.get("video.is_depth_map"))
