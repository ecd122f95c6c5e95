"""Small videos whose pictures say which frame they are."""

import struct
from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest


def picture(index: int, height: int = 48, width: int = 64) -> np.ndarray:
    """uint8 [H, W, 3]: red counts tens, blue counts ones; a red square in the upper left corner."""
    frame = np.full((height, width, 3), (20 + 22 * (index // 10), 100, 20 + 22 * (index % 10)), np.uint8)
    frame[: height // 4, : width // 4] = (220, 20, 20)
    return frame


def number_of(frame: np.ndarray) -> int:
    """The index that a decoded, possibly scaled or turned picture was made with."""
    height, width = frame.shape[:2]
    centre = frame[height // 2 - 2 : height // 2 + 2, width // 2 - 2 : width // 2 + 2].astype(float)
    red, _, blue = centre.mean((0, 1))
    return 10 * round((red - 20) / 22) + round((blue - 20) / 22)


def make_video(
    path: Path,
    count: int = 40,
    height: int = 48,
    width: int = 64,
    rate: Fraction = Fraction(30),
    pts: Sequence[int] | None = None,  # milliseconds
    codec: str = "h264",
    pixels: str = "yuv420p",
    gop: int = 12,
    bframes: int = 0,
    container: dict[str, str] | None = None,
) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with av.open(str(path), "w", options=container or {}) as file:
        stream = file.add_stream(codec, rate=rate)
        stream.width, stream.height, stream.pix_fmt = width, height, pixels
        stream.gop_size = gop
        if codec == "h264":
            stream.options = {"crf": "8", "preset": "veryfast", "bf": str(bframes), "x264-params": "log-level=none"}
        else:
            stream.bit_rate = 4_000_000
        if pts is not None:
            stream.codec_context.time_base = Fraction(1, 1000)
        for index in range(count):
            frame = av.VideoFrame.from_ndarray(picture(index, height, width), format="rgb24")
            if pts is not None:
                frame.pts, frame.time_base = pts[index], Fraction(1, 1000)
            file.mux(stream.encode(frame))
        file.mux(stream.encode())
    return path


def turn(path: Path) -> Path:
    """Write a quarter turn clockwise into the track header of an MP4, as a telephone does."""
    data = bytearray(path.read_bytes())
    start = data.index(b"tkhd") + 4 + 4 + 20 + 16  # version and flags, times, layer and volume
    data[start : start + 36] = struct.pack(">9i", 0, 1 << 16, 0, -(1 << 16), 0, 0, 48 << 16, 0, 1 << 30)
    path.write_bytes(data)
    return path


def make_audio(path: Path) -> Path:
    with av.open(str(path), "w") as file:
        stream = file.add_stream("aac", rate=44100)
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 4096), np.float32), format="fltp", layout="mono")
        frame.sample_rate = 44100
        file.mux(stream.encode(frame))
        file.mux(stream.encode())
    return path


@pytest.fixture
def videos() -> "Videos":
    return Videos()


class Videos:
    """The functions of this file, for tests (which cannot import each other)."""

    make: Callable[..., Path] = staticmethod(make_video)
    make_audio = staticmethod(make_audio)
    number_of = staticmethod(number_of)
    picture = staticmethod(picture)
    turn = staticmethod(turn)

    def numbers(self, frames) -> list[int]:
        return [number_of(frame) for frame in frames]
