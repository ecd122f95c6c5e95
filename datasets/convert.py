"""`convert`: video files, with or without actions beside them, become a LeRobotDataset v3."""

from collections.abc import Iterator
from fractions import Fraction
from itertools import islice, pairwise
from pathlib import Path

import numpy as np

from worldmodel.datasets.clips import CAMERA, VideoFolder, video_paths
from worldmodel.datasets.interrupt import HeldSignals, Stopped
from worldmodel.datasets.lerobot import is_lerobot
from worldmodel.datasets.lerobot_writer import Episode, EpisodeSchema, EpisodeWriter
from worldmodel.datasets.merge_actions import Merge
from worldmodel.datasets.recordings import SIDES, parse_fps, parse_size, picture_size
from worldmodel.datasets.video import open_video
from worldmodel.errors import UserError
from worldmodel.pixels import fit
from worldmodel.progress import progress_bar

MAX_EPISODE_BYTES = 2**30  # of raw pictures, which lie in memory; longer videos become several episodes


def convert(
    source: Path,
    out: Path,
    size: str | None = None,
    fps: str | None = None,
    merge_actions: Merge | None = None,
    task: str = "watch",
) -> int:
    """Turn a folder of videos, or one video, into a LeRobotDataset v3.

    Example: worldmodel convert ~/videos/drive data/drive --size 64 --fps 24

    Actions are taken from a .npz, .csv or .parquet of the same name beside each video, one row per frame. --size
    WIDTHxHEIGHT scales and cuts pictures; --fps brings all videos to one rate by their timestamps (default: the first
    one's, rounded, as a LeRobotDataset has whole rates); --task says in words what is done in them. Where a new rate
    leaves out or repeats frames, --merge-actions says how the action of a kept frame covers all until the next one: sum
    (displacements add up), mean (held commands or rates average) or last (absolute targets keep the newest).
    """
    wanted = parse_fps(fps)
    if wanted is not None and wanted.denominator != 1:
        raise UserError(f"fps {fps}: a LeRobotDataset has a whole number of frames per second")
    folder = open_source(source, wanted, merge_actions)
    for note in folder.notes():
        print(note)
    try:
        episodes, frames = convert_videos(folder, out, parse_size(size), task)
    except KeyboardInterrupt as stop:
        print(f"{out}: stopped by {stop}")
        return 130
    print(f"{out}: {episodes} episodes, {frames} frames at {folder.fps} frames/s")
    return 0


def open_source(source: Path, fps: Fraction | None = None, merge: Merge | None = None) -> VideoFolder:
    """The videos, brought to a whole rate, their actions merged where that leaves out or repeats frames."""
    if is_lerobot(source):
        raise UserError(f"{source}: is a LeRobotDataset already; `encode` reads it as it is, and scales it with --size")
    return VideoFolder.open(source, fps or Fraction(max(1, round(open_video(video_paths(source)[0]).fps))), merge)


def convert_videos(
    folder: VideoFolder, out: Path, size: tuple[int, int] | None = None, task: str = "watch"
) -> tuple[int, int]:
    """Write all videos to the new folder `out`; returns the numbers of episodes and of frames.

    size: (height, width). An error, SIGINT or SIGTERM in one video leaves a readable dataset of those before it; bad
    input is a UserError, a signal raises Stopped.
    """
    height, width = picture_size(folder, CAMERA, size)
    schema = EpisodeSchema(
        fps=int(folder.fps), cameras={CAMERA: (height, width)}, state_names=(), action_names=folder.action_names
    )
    if folder.action_names:
        folder.check_statistics(folder.action_names)
    lengths = folder.episodes
    for index, length in lengths.items():
        if length < 2:
            raise UserError(f"{folder.files[index].path}: only {length} frame at {folder.fps} frames/s; it takes two")
    if min(height, width) < SIDES.start:
        raise UserError(
            f"{folder.path}: pictures of {width} x {height} pixels; bring them to {SIDES.start} or more with --size"
        )
    written = 0
    made = (episode for index in lengths for episode in _episodes(folder, index, height, width, task))
    with (
        HeldSignals() as signals,
        EpisodeWriter(out, schema) as writer,
        progress_bar("convert", sum(lengths.values())) as advance,
    ):
        try:
            for episode in signals.between(made):
                writer.write(episode)
                written += len(episode)
                advance(len(episode))
        except (UserError, Stopped) as error:
            saved = f"the {writer.episodes} episodes before it are in {out}" if writer.episodes else "nothing was saved"
            raise type(error)(f"{error}; {saved}") from error
    return writer.episodes, written


def _episodes(folder: VideoFolder, index: int, height: int, width: int, task: str) -> Iterator[Episode]:
    """A video as one episode, or as several of equal length if it is long."""
    length = folder.episodes[index]
    pieces = -(-length * height * width * 3 // MAX_EPISODE_BYTES)
    borders = np.linspace(0, length, pieces + 1).round().astype(int).tolist()
    pictures = (fit(frame, height, width) for frame in folder.frames(index))
    actions = folder.actions(index)
    for start, stop in pairwise(borders):
        yield Episode(
            task=task,
            video={CAMERA: np.stack(list(islice(pictures, stop - start)))},
            state=np.zeros((stop - start, 0), np.float32),
            action=actions[start:stop],
            depth={},
        )
