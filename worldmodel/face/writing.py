"""Where pictures go: a file that can be resumed, a stream (RTMP or another URL), a folder of images.

Times are kept exactly: the encoder works in the ticks of the source and makes no frames that need later ones.
"""

from fractions import Fraction
from pathlib import Path
from typing import Any, Protocol

import av
import cv2
import numpy as np
from av.container import OutputContainer
from av.video.stream import VideoStream

from worldmodel.errors import UserError
from worldmodel.face.reading import Info, Picture, Sound, Source
from worldmodel.pixels import BT601, MATRICES

VIDEOS = (".mp4", ".mov", ".mkv")
STREAMS = {"rtmp": "flv", "rtmps": "flv", "http": "mpegts", "https": "mpegts", "tcp": "mpegts", "udp": "mpegts"}
QUALITY = "18"  # x264's constant rate factor


class Sink(Protocol):
    """Consumes a stream; a virtual camera fits here."""

    def write(self, event: Picture | Sound) -> None: ...

    def close(self) -> None: ...


class Encoder:
    """H.264 pictures into a container, in the source's ticks. Odd sizes gain a line or column, which repeats the last.

    lossless: RGB without loss (x264rgb), else yuv420p by the source's colour matrix.
    """

    def __init__(self, container: OutputContainer, info: Info, lossless: bool, live: bool) -> None:
        self._container, self._info = container, info
        self._height, self._width = info.height, info.width
        name = "libx264rgb" if lossless else "libx264"
        stream: Any = container.add_stream(name, rate=_rate(info.rate))
        self._stream: VideoStream = stream
        even = (lambda n: n) if lossless else (lambda n: n + n % 2)
        stream.width, stream.height = even(info.width), even(info.height)
        stream.pix_fmt = "rgb24" if lossless else "yuv420p"
        options = {"preset": "veryfast", "bf": "0", "crf": "0" if lossless else QUALITY}
        if live:
            options |= {"tune": "zerolatency", "g": str(max(1, round(2 * info.rate)))}
        stream.options = options
        context = stream.codec_context
        context.time_base = info.time_base
        stream.time_base = info.time_base
        if not lossless:
            colour = info.colour
            context.colorspace, context.color_primaries, context.color_trc = (
                colour.space if colour.space in (*MATRICES, BT601, 6) else 2,
                colour.primaries,
                colour.transfer,
            )

    def write(self, picture: Picture) -> None:
        stream = self._stream
        right, below = stream.width - self._width, stream.height - self._height
        pixels = picture.pixels
        if right or below:
            pixels = np.asarray(cv2.copyMakeBorder(pixels, 0, below, 0, right, cv2.BORDER_REPLICATE), np.uint8)
        frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(pixels), format="rgb24")
        if stream.pix_fmt != "rgb24" and self._info.colour.space in MATRICES:
            frame = frame.reformat(format=stream.pix_fmt, src_colorspace=BT601, dst_colorspace=self._info.colour.space)
        frame.pts, frame.time_base = picture.pts, self._info.time_base
        self._container.mux(stream.encode(frame))

    def finish(self) -> None:
        self._container.mux(self._stream.encode())


def _rate(rate: Fraction) -> Fraction:
    return rate.limit_denominator(1_000_000) if rate > 0 else Fraction(25)


class LiveSink:
    """A URL: pictures and sound as they come."""

    def __init__(self, url: str, source: Source, lossless: bool = False) -> None:
        self.url = url
        self._base = source.info.time_base
        try:
            self._container = av.open(url, "w", format=STREAMS.get(url.split("://")[0]), timeout=(10.0, 10.0))
            self._encoder = Encoder(self._container, source.info, lossless, live=True)
            self._sounds = {sound.index: _copied(self._container, sound, url) for sound in source.sounds}
            self._container.start_encoding()
        except (av.FFmpegError, OSError) as error:
            raise UserError(f"{url}: cannot be written to ({error.strerror or error})") from error

    def write(self, event: Picture | Sound) -> None:
        try:
            if isinstance(event, Picture):
                self._encoder.write(event)
            else:
                event.packet.stream = self._sounds[event.packet.stream_index]
                self._container.mux(event.packet)
        except (av.FFmpegError, OSError) as error:
            raise UserError(f"{self.url}: the connection ended ({error.strerror or error})") from error

    def close(self) -> None:
        try:
            self._encoder.finish()
            self._container.close()
        except (av.FFmpegError, OSError) as error:
            raise UserError(f"{self.url}: the connection ended ({error.strerror or error})") from error


class ImageSink:
    """A folder of PNG files, numbered from 0."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._count = folder, 0
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"{folder}: could not be made ({error.strerror})") from error

    def write(self, event: Picture | Sound) -> None:
        if isinstance(event, Sound):
            return
        path = self.folder / f"{self._count:06d}.png"
        try:
            written = cv2.imwrite(str(path), np.ascontiguousarray(event.pixels[..., ::-1]))
        except cv2.error as error:
            raise UserError(f"{path}: could not be written ({error.err})") from error
        if not written:
            raise UserError(f"{path}: could not be written")
        self._count += 1

    def close(self) -> None:
        pass


def _copied(container: OutputContainer, sound: Any, where: str) -> Any:
    """A stream of the container that takes a sound stream's packets as they are."""
    try:
        return container.add_stream_from_template(sound)
    except (av.FFmpegError, ValueError) as error:
        codec = sound.codec_context.name
        raise UserError(f"{where}: this container cannot hold {codec} sound; a name in .mkv can") from error
