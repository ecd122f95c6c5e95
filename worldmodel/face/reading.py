"""Where pictures come from: a video file, a folder of images, a URL, a camera; upright, each with its exact time.

Opening looks at the first picture only, so that a stream is as good as a file. What is damaged is skipped and counted.
"""

import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any, Protocol

import av
import cv2
import numpy as np
from av.audio.stream import AudioStream
from av.container import InputContainer
from av.video.stream import VideoStream
from numpy.typing import NDArray

from worldmodel.errors import UserError
from worldmodel.pixels import as_rgb

IMAGES = (".png", ".jpg", ".jpeg", ".bmp", ".webp")
TIMEOUT = 10.0  # seconds that a URL may be silent
CAMERA = "camera:"


@dataclass(frozen=True, slots=True)
class Colour:
    """How a video's numbers are meant, as FFmpeg's codes: matrix, primaries, transfer; 2 is unknown."""

    space: int = 2
    primaries: int = 2
    transfer: int = 2


@dataclass(frozen=True, slots=True)
class Info:
    """height, width: of the upright picture. time_base: seconds per tick of `Picture.pts`. rate: mean frames/s. frames:
    how many there will be, None if that is not known. live: pictures come when they come."""

    name: str
    height: int
    width: int
    time_base: Fraction
    rate: Fraction
    frames: int | None
    live: bool
    colour: Colour = Colour()


@dataclass(frozen=True, slots=True, eq=False)
class Picture:
    """pixels: [H, W, 3] uint8, upright, owned by who has it. pts: ticks of the time base, rising."""

    pixels: NDArray[np.uint8]
    pts: int


@dataclass(frozen=True, slots=True, eq=False)
class Sound:
    """A packet of a sound stream, as it was."""

    packet: av.Packet


class Source(Protocol):
    """info; sounds: streams of sound that pass through; damaged: how many packets were skipped so far."""

    info: Info
    sounds: tuple[AudioStream, ...]
    damaged: int

    def __iter__(self) -> Iterator[Picture | Sound]: ...

    def close(self) -> None: ...


def open_source(target: str, rate: Fraction = Fraction(25)) -> Source:
    """A video file, a folder of images (shown at `rate`), a URL, or a camera ("camera:0").

    UserError, one line, for what is missing, unreadable or without a picture.
    """
    if target.startswith(CAMERA):
        return Camera(target)
    if "://" in target:
        return Container(target, live=True)
    path = Path(target)
    if path.is_dir():
        return Images(path, rate)
    if not path.exists():
        raise UserError(f"{target}: no such file")
    if path.stat().st_size == 0:
        raise UserError(f"{target}: the file is empty (0 bytes)")
    return Container(target, live=False)


class Container:
    """A file or a URL, through FFmpeg."""

    def __init__(self, target: str, live: bool, sound: bool = True) -> None:
        self.damaged = 0
        self._target = target
        self._relay = _relay(target) if target.startswith(("rtmp://", "rtmps://")) else None
        try:
            self._container = _open(target, live) if self._relay is None else _piped(self._relay)
        except (av.FFmpegError, OSError) as error:
            said = "" if self._relay is None else self._relay.communicate()[1].decode(errors="replace").strip()
            why = said.splitlines()[-1] if said else error.strerror or error
            raise UserError(f"{target}: cannot be opened as a video ({why})") from error
        if not self._container.streams.video:
            kinds = sorted({stream.type for stream in self._container.streams})
            self._container.close()
            raise UserError(f"{target}: no picture in it, only {' and '.join(kinds) or 'nothing'}")
        self._stream: VideoStream = self._container.streams.video[0]
        self._stream.thread_type = "SLICE" if live else "AUTO"
        self.sounds: tuple[AudioStream, ...] = tuple(self._container.streams.audio) if sound else ()
        self._events = self._read()
        self._waiting: list[Picture | Sound] = []
        for event in self._events:  # up to the first picture, which says how large the upright one is
            self._waiting.append(event)
            if isinstance(event, Picture):
                break
        else:
            self._container.close()
            raise UserError(f"{target}: no picture of it can be decoded ({self.damaged} damaged packets)")
        first = self._waiting[-1]
        assert isinstance(first, Picture)
        rate = self._stream.average_rate or self._stream.guessed_rate or Fraction(25)
        height, width = first.pixels.shape[:2]
        self.info = Info(
            target,
            height,
            width,
            time_base=Fraction(self._stream.time_base or Fraction(1, 1000)),
            rate=Fraction(rate),
            frames=None if live else _count(self._stream, rate),
            live=live,
            colour=self._colour,
        )

    def __iter__(self) -> Iterator[Picture | Sound]:
        yield from self._waiting
        self._waiting.clear()
        yield from self._events

    def close(self) -> None:
        self._container.close()
        if self._relay is not None:
            self._relay.kill()
            self._relay.wait()

    def _read(self) -> Iterator[Picture | Sound]:
        last, size = None, None
        step = 1
        for packet in self._packets():
            if packet.stream.type == "audio":
                if packet.dts is not None and packet.size:
                    yield Sound(packet)
                continue
            for frame in self._decoded(packet):
                if size is None:
                    self._colour = _colour(frame, self._stream.codec_context)
                pixels = upright(frame, self._target)
                size = pixels.shape[:2] if size is None else size
                if pixels.shape[:2] != size:  # the rest of the chain has one size
                    pixels = np.asarray(cv2.resize(pixels, size[::-1], interpolation=cv2.INTER_AREA), np.uint8)
                pts = frame.pts if frame.pts is not None else 0 if last is None else last + step
                if last is not None:
                    pts = max(pts, last + 1)  # some files repeat a time
                    step = pts - last
                last = pts
                yield Picture(pixels, pts)

    def _packets(self) -> Iterator[av.Packet]:
        streams = (self._stream, *self.sounds)
        try:
            yield from self._container.demux(*streams)
        except av.FFmpegError as error:
            if isinstance(error, EOFError):
                return
            self.damaged += 1  # what comes after cannot be read; what came before is kept

    def _decoded(self, packet: av.Packet) -> list[av.VideoFrame]:
        try:
            return [frame for frame in packet.decode() if isinstance(frame, av.VideoFrame)]
        except av.FFmpegError as error:
            if not isinstance(error, EOFError):
                self.damaged += 1
            return []


def _relay(target: str) -> "subprocess.Popen[bytes]":
    """ffmpeg, which hands on what it receives: PyAV 15 crashes where it reads RTMP itself (it can write it)."""
    path = shutil.which("ffmpeg")
    if path is None:
        raise UserError(f"{target}: reading RTMP needs the program ffmpeg (Debian: apt-get install ffmpeg)")
    command = [path, "-v", "error", "-nostdin", "-rw_timeout", str(round(TIMEOUT * 1e6))]
    command += ["-i", target, "-c", "copy", "-f", "nut", "-flush_packets", "1", "pipe:1"]
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def _piped(relay: "subprocess.Popen[bytes]") -> InputContainer:
    return av.open(relay.stdout, "r", format="nut")


def _open(target: str, live: bool) -> InputContainer:
    if not live:
        return av.open(target)
    return av.open(target, timeout=(TIMEOUT, TIMEOUT))


def _count(stream: VideoStream, rate: Fraction) -> int | None:
    if stream.frames:
        return stream.frames
    if stream.duration is not None and stream.time_base is not None:
        return round(stream.duration * stream.time_base * rate)
    return None


def _colour(frame: av.VideoFrame, context: Any) -> Colour:
    return Colour(int(frame.colorspace), int(context.color_primaries), int(context.color_trc))


def upright(frame: av.VideoFrame, where: str) -> NDArray[np.uint8]:
    """RGB pixels turned as the file says; other than quarter turns are a UserError."""
    turn = -round(frame.rotation) % 360
    if turn % 90:
        raise UserError(f"{where}: rotated by {turn} degrees; only quarter turns are supported")
    pixels = as_rgb(frame)
    return np.ascontiguousarray(np.rot90(pixels, -turn // 90)) if turn else pixels


class Images:
    """A folder of images in the order of their names."""

    damaged = 0
    sounds: tuple[AudioStream, ...] = ()

    def __init__(self, folder: Path, rate: Fraction) -> None:
        self._paths = sorted(path for path in folder.iterdir() if path.suffix.lower() in IMAGES)
        if not self._paths:
            raise UserError(f"{folder}: no images in it ({', '.join(IMAGES)})")
        height, width = read_image(self._paths[0]).shape[:2]
        self.info = Info(str(folder), height, width, 1 / rate, rate, len(self._paths), False)

    def __iter__(self) -> Iterator[Picture]:
        for i, path in enumerate(self._paths):
            pixels = read_image(path)
            if pixels.shape[:2] != (self.info.height, self.info.width):
                raise UserError(
                    f"{path}: is {pixels.shape[1]} x {pixels.shape[0]} pixels, the first image is "
                    f"{self.info.width} x {self.info.height}"
                )
            yield Picture(pixels, i)

    def close(self) -> None:
        pass


def read_image(path: Path) -> NDArray[np.uint8]:
    """uint8 [H, W, 3] RGB, turned as its EXIF says."""
    if not path.is_file():
        raise UserError(f"{path}: no such file")
    return decode_image(path.read_bytes(), str(path))


def decode_image(data: bytes, where: str) -> NDArray[np.uint8]:
    """The content of an image file -> uint8 [H, W, 3] RGB, turned as its EXIF says. `where` names it in the error."""
    pixels = cv2.imdecode(np.frombuffer(data or b"\0", np.uint8), cv2.IMREAD_COLOR)
    if pixels is None:
        raise UserError(f"{where}: not a readable image")
    return np.asarray(cv2.cvtColor(pixels, cv2.COLOR_BGR2RGB), np.uint8)


@dataclass(slots=True)
class Camera:
    """A camera of this machine, by its number; times are those of arrival."""

    target: str
    damaged: int = 0
    sounds: tuple[AudioStream, ...] = ()
    info: Info = field(init=False)
    _device: Any = field(init=False)

    def __post_init__(self) -> None:
        number = self.target.removeprefix(CAMERA)
        if not number.isdigit():
            raise UserError(f"{self.target}: a camera is {CAMERA}NUMBER, such as {CAMERA}0")
        self._device = cv2.VideoCapture(int(number))
        good, pixels = self._device.read() if self._device.isOpened() else (False, None)
        if not good or pixels is None:
            self._device.release()
            raise UserError(f"{self.target}: no such camera, or it gives no picture")
        rate = Fraction(self._device.get(cv2.CAP_PROP_FPS) or 30).limit_denominator(1001)
        height, width = pixels.shape[:2]
        self.info = Info(self.target, height, width, Fraction(1, 90000), rate, None, True)

    def __iter__(self) -> Iterator[Picture]:
        began, last = time.monotonic(), -1
        while True:
            good, pixels = self._device.read()
            if not good:
                return
            last = max(last + 1, round((time.monotonic() - began) * 90000))
            yield Picture(np.asarray(cv2.cvtColor(pixels, cv2.COLOR_BGR2RGB), np.uint8), last)

    def close(self) -> None:
        self._device.release()
