"""One video file: what it is, and its frames as uint8 [H, W, 3] RGB, upright, in the order of presentation.

Opening a file reads all its packets once, without decoding them: that gives the exact number of frames and the time of
each, and finds a file that is cut off.

Two libraries decode. One pass over a file is PyAV's: it is the faster one there, and it says when a frame is damaged.
Frames are picked at random by decord where it can read the file, which it does not if the picture is rotated, and for
fewer formats: the first frame is decoded by both, and decord is taken if they agree to the last bit, otherwise PyAV.
`VideoFile.reader` says which one, and `reason` why.
"""

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from fractions import Fraction
from math import ceil
from pathlib import Path
from typing import Any

import av
import numpy as np
from av.container import InputContainer
from av.video.stream import VideoStream
from numpy.typing import NDArray

from worldmodel.errors import UserError
from worldmodel.pixels import as_rgb

SUFFIXES = {".mp4", ".mov", ".m4v", ".mkv", ".webm", ".avi", ".mpg", ".mpeg", ".ts", ".wmv", ".flv"}
ONE_FRAME_PER_PACKET = {"h264", "hevc", "av1", "vp9", "mjpeg", "ffv1", "prores", "png"}
DECORD_CONTAINERS, DECORD_PIXELS = ("mp4", "matroska", "avi"), ("yuv420p", "yuvj420p", "yuv444p")
UNANNOUNCED = ("mpegts", "mpeg", "mpegvideo")  # containers without a length in their header
BATCH = 16  # frames that decord decodes at a time
FORWARD = 48  # frames that PyAV rather decodes in vain than seek

Frame = NDArray[np.uint8]  # [H, W, 3] RGB


@dataclass(frozen=True, slots=True, eq=False)
class VideoFile:
    """A video file that was found sound by `open_video`; cheap to keep, holds no open file.

    height, width: of the upright picture, in pixels. rotation: degrees clockwise that the stored picture is turned by
    to stand upright. pts: [N] presentation times in ticks of `time_base` seconds. fps: exact mean rate. reader: of
    frames in any order, "decord" or "pyav"; reason: why not decord. announced: whether the container says how long the
    video is, so that `open_video` found it whole; without that, missing frames at the end cannot be seen.
    """

    path: Path
    height: int
    width: int
    rotation: int
    pts: NDArray[np.int64]
    time_base: Fraction
    fps: Fraction
    reader: str
    reason: str = ""
    announced: bool = True

    def __len__(self) -> int:
        return len(self.pts)

    @property
    def seconds(self) -> NDArray[np.float64]:
        """Presentation times [N] in seconds, the first at 0."""
        return (self.pts - self.pts[0]) * float(self.time_base)

    @property
    def uneven(self) -> int | None:
        """The first frame that lies more than half a frame beside the grid of `fps`: the rate is variable."""
        return _uneven(self.pts, self.time_base, self.fps)

    def resampled(self, fps: Fraction) -> NDArray[np.int64]:
        """The frames nearest to times 0, 1 / fps, 2 / fps ... up to the last frame; the earlier one of equals."""
        grid = 1 / (fps * self.time_base)  # ticks per wanted frame, exact
        at = self.pts - self.pts[0]
        half_a_frame = Fraction(int(at[-1]), 2 * max(len(at) - 1, 1))
        count = int((int(at[-1]) + half_a_frame) / grid) + 1
        twice = np.array([ceil(2 * k * grid) for k in range(count)], np.int64)
        return np.searchsorted(at[1:] + at[:-1], twice, side="left").astype(np.int64)

    def frames(self, indices: Sequence[int] | NDArray[np.int64] | None = None) -> Iterator[Frame]:
        """All frames, or those of some non-decreasing indices, in one pass with little memory.

        Raises UserError with the number of a frame that cannot be decoded.
        """
        yield from _pyav(self, range(len(self)) if indices is None else [int(i) for i in indices])

    def pick(self, indices: Sequence[int]) -> NDArray[np.uint8]:
        """Some frames [len(indices), H, W, 3] in any order, by seeking."""
        order = np.argsort(indices, kind="stable")
        wanted = [int(indices[row]) for row in order]
        if wanted and not 0 <= wanted[0] <= wanted[-1] < len(self):
            raise IndexError(f"{self.path}: frames {wanted[0]} to {wanted[-1]} of {len(self)}")
        frames = _decord(self, wanted) if self.reader == "decord" else _pyav(self, wanted)
        out = np.empty((len(order), self.height, self.width, 3), np.uint8)
        for row, frame in zip(order, frames, strict=True):
            out[row] = frame
        return out


def open_video(path: Path) -> VideoFile:
    """Look at a video file.

    Raises UserError, one line with the file and the place, if it is missing, empty, no video, has only sound, or is cut
    off.
    """
    if not path.is_file():
        raise UserError(f"{path}: no such file")
    if path.stat().st_size == 0:
        raise UserError(f"{path}: the file is empty (0 bytes)")
    try:
        with closing(av.open(str(path))) as container:
            if not container.streams.video:
                found = sorted({stream.type for stream in container.streams})
                raise UserError(f"{path}: no picture in it, only {' and '.join(found) or 'nothing'}")
            stream = container.streams.video[0]
            pts = _scan(path, container, stream)
            time_base, rate = Fraction(stream.time_base or 1), stream.average_rate
            formats = (container.format.name, stream.codec_context.pix_fmt or "unknown")
    except av.FFmpegError as error:
        raise UserError(
            f"{path}: not a readable video, or its beginning or index is cut off ({_say(error)})"
        ) from error
    fps = Fraction(rate) if rate else None
    if fps is None or _uneven(pts, time_base, fps) is not None:
        fps = _mean_rate(path, pts, time_base)
    first, rotation = _first_frame(path)
    height, width = first.shape[:2]
    reader, reason = _choose(path, first, rotation, len(pts), *formats)
    announced = formats[0] not in UNANNOUNCED
    return VideoFile(path, height, width, rotation, pts, time_base, fps, reader, reason, announced)


def _scan(path: Path, container: InputContainer, stream: VideoStream) -> NDArray[np.int64]:
    """Presentation times of all frames, and the checks for a file that is cut off."""
    if stream.codec_context.name not in ONE_FRAME_PER_PACKET:
        return _scan_decoded(path, container, stream)
    times, packets = [], 0
    for packet in container.demux(stream):
        if packet.size == 0:  # the mark of the end
            continue
        if packet.is_corrupt:
            raise UserError(f"{path}: cut off or damaged at frame {packets}")
        packets += 1
        time = packet.dts if packet.pts is None else packet.pts
        if time is not None and not packet.is_discard:
            times.append(time)
    if not times:
        raise UserError(f"{path}: no frames in it")
    if packets < stream.frames:
        raise UserError(f"{path}: cut off after frame {packets - 1}, its header announces {stream.frames} frames")
    pts = np.sort(np.array(times, np.int64))
    announced = _announced_end(container, stream)
    if announced is not None and len(pts) > 1:
        step = float((pts[-1] - pts[0]) * stream.time_base) / (len(pts) - 1)
        end = float(pts[-1] * stream.time_base) + step
        if end < announced - 2.5 * step:
            raise UserError(
                f"{path}: cut off after frame {len(pts) - 1} at {end:.2f} s, its header announces {announced:.2f} s"
            )
    return pts


def _scan_decoded(path: Path, container: InputContainer, stream: VideoStream) -> NDArray[np.int64]:
    """The same for codecs whose packets hold no, or several, frames."""
    times: list[int] = []
    try:
        for frame in container.decode(stream):
            if frame.pts is None or frame.is_corrupt:
                raise UserError(f"{path}: frame {len(times)} is damaged, cut off or without presentation time")
            times.append(frame.pts)
    except av.FFmpegError as error:
        raise UserError(f"{path}: frame {len(times)} cannot be decoded ({_say(error)})") from error
    if not times:
        raise UserError(f"{path}: no frames in it")
    return np.array(times, np.int64)


def _announced_end(container: InputContainer, stream: VideoStream) -> float | None:
    """When the video stream should end, in seconds, if the header says so of it alone (sound may be longer)."""
    if stream.duration is not None and stream.time_base is not None:
        return float((stream.duration + (stream.start_time or 0)) * stream.time_base)
    if tag := stream.metadata.get("DURATION"):
        hours, minutes, seconds = tag.split(":")
        return 3600 * int(hours) + 60 * int(minutes) + float(seconds)
    if container.duration is not None and len(container.streams) == 1:
        return container.duration / 1e6
    return None


def _uneven(pts: NDArray[np.int64], time_base: Fraction, fps: Fraction) -> int | None:
    places = (pts - pts[0]) * float(time_base * fps)
    bad = np.abs(places - np.arange(len(pts))) > 0.5
    return int(bad.argmax()) if bad.any() else None


def _mean_rate(path: Path, pts: NDArray[np.int64], time_base: Fraction) -> Fraction:
    ticks = int(pts[-1] - pts[0])
    if ticks <= 0:
        raise UserError(f"{path}: {len(pts)} frame(s) without a frame rate")
    return Fraction(len(pts) - 1, 1) / (ticks * time_base)


def _first_frame(path: Path) -> tuple[Frame, int]:
    """The first frame, upright, and the clockwise rotation of the file."""
    try:
        with av.open(str(path)) as container:
            for frame in container.decode(video=0):
                rotation = -round(frame.rotation) % 360
                return _upright(frame, rotation, path), rotation
    except av.FFmpegError as error:
        raise UserError(f"{path}: frame 0 cannot be decoded ({_say(error)})") from error
    raise UserError(f"{path}: no frame can be decoded")


def _choose(path: Path, first: Frame, rotation: int, count: int, container: str, pixels: str) -> tuple[str, str]:
    """The library that picks frames of a file, and why it is not decord."""
    try:
        import decord
    except ImportError:
        return "pyav", "decord is not installed"
    if rotation:
        return "pyav", f"rotated by {rotation} degrees"  # decord would read beyond its buffer
    if pixels not in DECORD_PIXELS:
        return "pyav", f"pixel format {pixels}"
    if not any(name in container for name in DECORD_CONTAINERS):
        return "pyav", f"container {container}"
    decord.logging.set_level(decord.logging.QUIET)
    try:
        video: Any = decord.VideoReader(str(path), num_threads=1)
        found = len(video)
        same = found == count and np.array_equal(video[0].asnumpy(), first)
    except (decord.DECORDError, RuntimeError):
        return "pyav", "decord cannot read it"
    return ("decord", "") if same else ("pyav", f"decord sees {found} of {count} frames, or another first one")


def _decord(video: VideoFile, wanted: list[int]) -> Iterator[Frame]:
    import decord

    decord.logging.set_level(decord.logging.QUIET)
    done = 0
    try:
        reader: Any = decord.VideoReader(str(video.path), num_threads=1)
        for start in range(0, len(wanted), BATCH):
            for frame in reader.get_batch(wanted[start : start + BATCH]).asnumpy():
                yield frame
                done += 1
    except (decord.DECORDError, RuntimeError):
        yield from _pyav(video, wanted[done:])  # which says what is damaged, or reads it to the same pixels


def _pyav(video: VideoFile, wanted: Sequence[int]) -> Iterator[Frame]:
    position = 0
    while position < len(wanted):
        for index, frame in _pyav_from(video, wanted[position]):
            if index < wanted[position]:
                continue
            picture = _upright(frame, video.rotation, video.path)
            if picture.shape != (video.height, video.width, 3):
                raise UserError(
                    f"{video.path}: frame {index} is {picture.shape[1]} x {picture.shape[0]} pixels, the "
                    f"first one {video.width} x {video.height}"
                )
            while position < len(wanted) and wanted[position] == index:
                yield picture
                position += 1
            if position == len(wanted) or wanted[position] > index + FORWARD:
                break


def _pyav_from(video: VideoFile, first: int) -> Iterator[tuple[int, av.VideoFrame]]:
    """Frames with their numbers, from the key frame before `first` on; from 0 on in files that cannot be sought in."""
    number = None if first > FORWARD else 0
    try:
        with av.open(str(video.path)) as container:
            stream = container.streams.video[0]
            stream.codec_context.thread_count = 1
            if number is None:
                container.seek(int(video.pts[first]), stream=stream, backward=True)
            for frame in container.decode(stream):
                if number is None:
                    number = _number(video, frame)
                    if number is None or number > first:
                        break
                if frame.is_corrupt and number >= first:
                    raise UserError(f"{video.path}: frame {number} of {len(video)} is damaged or cut off")
                yield number, frame
                number += 1
            else:
                raise UserError(f"{video.path}: frame {number or first} of {len(video)} is missing")
    except av.FFmpegError as error:
        place = f"frame {number or first} of {len(video)}"
        raise UserError(f"{video.path}: {place} cannot be decoded ({_say(error)})") from error
    yield from _pyav_from(video, 0)


def _number(video: VideoFile, frame: av.VideoFrame) -> int | None:
    """Which frame of the file this is, by its time."""
    if frame.pts is None:
        return None
    index = int(np.searchsorted(video.pts, frame.pts))
    return index if index < len(video) and video.pts[index] == frame.pts else None


def _upright(frame: av.VideoFrame, rotation: int, path: Path) -> Frame:
    if rotation % 90:
        raise UserError(f"{path}: rotated by {rotation} degrees; only quarter turns are supported")
    picture = as_rgb(frame)
    return np.ascontiguousarray(np.rot90(picture, -rotation // 90)) if rotation else picture


def _say(error: av.FFmpegError) -> str:
    return error.strerror or type(error).__name__
