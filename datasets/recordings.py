"""Recordings: what all sources of training video have in common, and how to open one.

A recording is a set of episodes, each a video per camera and, perhaps, an action per frame. `open_recordings` finds out
what a path is: a LeRobotDataset v3 (local, or the name of one on the hub), a folder of video files, or one video file.
"""

from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from worldmodel.datasets.merge_actions import Merge
from worldmodel.errors import UserError

SIDES = range(8, 4097)  # pixels that the sides of pictures are scaled to
MAX_FPS = 1000  # that videos are brought to
Frame = NDArray[np.uint8]  # [H, W, 3] RGB


class Recordings(Protocol):
    """Episodes by index. Pictures are uint8 [H, W, 3] RGB; action i leads from frame i to frame i + 1."""

    @property
    def path(self) -> Path: ...

    @property
    def kind(self) -> str:
        """What this is, for people."""
        ...

    @property
    def fps(self) -> Fraction: ...

    @property
    def cameras(self) -> dict[str, tuple[int, int]]:
        """Height and width of each camera's pictures in the first episode, in pixels."""
        ...

    @property
    def action_names(self) -> tuple[str, ...]:
        """Of the dimensions of an action; empty where there are none."""
        ...

    @property
    def episodes(self) -> dict[int, int]:
        """Frames N of each episode, by its index; indices may have gaps."""
        ...

    def size(self, episode: int, camera: str) -> tuple[int, int]:
        """Height and width of an episode's pictures."""
        ...

    def frames(self, episode: int, camera: str) -> Iterator[Frame]:
        """All N frames in order, in one pass with little memory."""
        ...

    def actions(self, episode: int) -> NDArray[np.float32]:
        """[N, dim] in the recording's own units."""
        ...

    def check_statistics(self, used: tuple[str, ...]) -> None:
        """Raise UserError for statistics of the `used` action dimensions that are missing, not finite or constant."""
        ...

    def task(self, episode: int) -> str:
        """What was to be done, in words; "" if unknown."""
        ...

    def notes(self) -> list[str]:
        """What a person should know about how the files are read."""
        ...


def open_recordings(path: Path, fps: Fraction | None = None, merge: Merge | None = None) -> Recordings:
    """Open whatever lies at a path.

    fps: bring video files to this rate, by their timestamps (a LeRobotDataset has one rate already: a UserError there
    unless it is the same). merge: how actions are merged where that leaves out or repeats frames; without it, such
    actions are a UserError. Raises UserError for anything that is none of the kinds, or broken.
    """
    from worldmodel.datasets.clips import VideoFolder  # these import this file
    from worldmodel.datasets.latent_files import INFO, PLAN
    from worldmodel.datasets.lerobot import LeRobotRecordings, is_lerobot

    path = located(path)
    if (path / INFO).is_file() or (path / PLAN).is_file():
        raise UserError(
            f"{path}: these are latents; give the recordings (a dataset or videos) that they were made from"
        )
    if is_lerobot(path):
        recordings = LeRobotRecordings.open(path)
        if fps not in (None, recordings.fps):
            raise UserError(f"{path}: a LeRobotDataset at {recordings.fps} frames/s is not resampled to {fps}")
        return recordings
    return VideoFolder.open(path, fps, merge)


def located(path: Path) -> Path:
    """The path if there is something; for a name "owner/name", where the dataset of that name on the hub is fetched to.

    Raises UserError if there is neither.
    """
    from worldmodel.datasets.lerobot import download  # imports this file

    if not path.exists() and str(path).count("/") == 1 and not str(path).startswith((".", "/", "~")):
        return download(str(path))
    if not path.exists():
        raise UserError(f"{path}: no such file or folder")
    return path


def choose_camera(recordings: Recordings, camera: str | None) -> str:
    """The camera of that name, or the only one. Anything else is a UserError that lists the cameras."""
    names = list(recordings.cameras)
    if camera is None and len(names) == 1:
        return names[0]
    matches = [name for name in names if camera in (name, f"observation.images.{name}")]
    if len(matches) == 1:
        return matches[0]
    problem = "choose a camera" if camera is None else f"no camera '{camera}'"
    raise UserError(f"{recordings.path}: {problem}; it has {', '.join(names) or 'none'}")


def choose_actions(recordings: Recordings, names: tuple[str, ...] | None) -> tuple[str, ...]:
    """The action dimensions of those names in that order, all of them for None; a UserError lists them."""
    known = recordings.action_names
    for name in names or ():
        if name not in known:
            raise UserError(f"{recordings.path}: no action '{name}'; it has {', '.join(known) or 'none'}")
    return known if names is None else names


def picture_size(recordings: Recordings, camera: str, size: tuple[int, int] | None) -> tuple[int, int]:
    """Height and width that all pictures of a camera have, or will have after `fit`."""
    if size is not None:
        return size
    height, width = recordings.cameras[camera]
    for episode in recordings.episodes:
        if (found := recordings.size(episode, camera)) != (height, width):
            raise UserError(
                f"{recordings.path}: episode {episode} has pictures of {found[1]} x {found[0]} pixels, the first of "
                f"{width} x {height}; bring them to one size with --size"
            )
    return height, width


def parse_size(text: str | None) -> tuple[int, int] | None:
    """ "64" or "WIDTHxHEIGHT" to (height, width), each of SIDES pixels."""
    if text is None:
        return None
    parts = text.lower().split("x")
    if len(parts) > 2 or not all(part.isdecimal() for part in parts):
        raise UserError(f"size '{text}': give one number, or WIDTHxHEIGHT, in pixels")
    if not all(len(part) < 9 and int(part) in SIDES for part in parts):
        raise UserError(f"size '{text[:40]}': a side has {SIDES.start} to {SIDES[-1]} pixels")
    return int(parts[-1]), int(parts[0])


def parse_fps(text: str | None) -> Fraction | None:
    """ "30", "29.97" or "30000/1001"."""
    if text is None:
        return None
    try:
        fps = Fraction(text)
    except (ValueError, ZeroDivisionError) as error:
        raise UserError(f"fps '{text}': give a number, or a fraction such as 30000/1001") from error
    if not 0 < fps <= MAX_FPS:
        raise UserError(f"fps '{text[:40]}': must be positive, and at most {MAX_FPS}")
    return fps


def numbered(dim: int, what: str = "action") -> tuple[str, ...]:
    """Names for actions, or what else has dimensions, that have none."""
    return tuple(f"{what}_{i}" for i in range(dim))


def check_actions(
    values: NDArray[np.generic], names: tuple[str, ...], frames: int, where: str, video: str
) -> NDArray[np.float32]:
    """Actions as float32 [frames, dim]; wrong lengths and shapes and values that are not finite are UserErrors."""
    if len(values) != frames:
        raise UserError(
            f"{where}: {len(values)} actions, but {video} has {frames} frames; one action per frame is needed"
        )
    if values.shape != (frames, len(names)):
        raise UserError(f"{where}: actions of shape {list(values.shape)}, expected {[frames, len(names)]}")
    with np.errstate(over="ignore"):  # beyond float32 becomes inf
        actions = values.astype(np.float32)
    bad = np.argwhere(~np.isfinite(actions))
    if len(bad):
        frame, column = (int(i) for i in bad[0])
        raise UserError(f"{where}: action '{names[column]}' is {values[frame, column]} at frame {frame}")
    return actions
