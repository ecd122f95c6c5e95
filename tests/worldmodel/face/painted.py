"""Painted people for tests without weights: a square of one hue is a face; videos of them with times and sound."""

import os
import signal
from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest

from worldmodel.face.alignment import MEAN_FACE
from worldmodel.face.faces import Networks
from worldmodel.face.pipeline import Swapper

RED, GREEN = (220, 60, 60), (60, 220, 60)
SKIN = 150  # a channel at least this bright, beside a dark one, is paint


def points_in(box: np.ndarray) -> np.ndarray:
    """68 landmarks [68, 2] of a mean face that fills a box (left, top, right, bottom)."""
    jaw = np.stack((np.linspace(-0.1, 1.08, 17), 0.2 + np.sin(np.linspace(0, np.pi, 17))), 1)
    low, high = np.array(box[:2], float), np.array(box[2:4], float)
    return low + np.concatenate((jaw, MEAN_FACE)) * (high - low)


def boxes_of(picture: np.ndarray) -> list[np.ndarray]:
    """The box and mean colour of each painted square, found by hue."""
    found = []
    for channel in (0, 1):
        paint = (picture[..., channel] > SKIN) & (picture[..., 1 - channel] < 110)
        if paint.sum() > 20:
            y, x = np.nonzero(paint)
            box = np.array((x.min() - 0.5, y.min() - 0.5, x.max() + 0.5, y.max() + 0.5, 0.9), np.float32)
            found.append((box, channel))
    return found


class Detector:
    calls = 0

    def detect(self, picture: np.ndarray) -> np.ndarray:
        Detector.calls += 1
        boxes = [box for box, _ in boxes_of(picture)]
        return np.stack(boxes) if boxes else np.zeros((0, 5), np.float32)


class Landmarks:
    size = 112

    def points(self, crops: np.ndarray) -> np.ndarray:
        """Of the square nearest to the middle; somewhere senseless without one."""
        out = []
        for crop in crops:
            boxes = [box for box, _ in boxes_of(crop)]
            middle = np.array((55.5, 55.5))
            boxes.sort(key=lambda b: float(np.hypot(*((b[:2] + b[2:4]) / 2 - middle))))
            out.append(points_in(boxes[0]) if boxes else np.linspace(0, 9, 136).reshape(68, 2))
        return np.stack(out)


class Identity:
    size, padding, same = 32, 0.0, 0.6

    def embed(self, chips: np.ndarray) -> np.ndarray:
        return (chips[:, 8:24, 8:24].mean((1, 2)) / 100).astype(np.float32)


def networks() -> Networks:
    return Networks(Detector(), Landmarks(), Identity())


Person = tuple[tuple[int, int, int], float, float, float]  # colour, centre x, centre y, side


def paint(*people: Person, height: int = 96, width: int = 128) -> np.ndarray:
    picture = np.full((height, width, 3), 40, np.uint8)
    picture[..., 2] += np.arange(width, dtype=np.uint8) // 4
    for colour, x, y, side in people:
        left, top = round(x - side / 2), round(y - side / 2)
        right, below = round(x + side / 2), round(y + side / 2)
        picture[max(top, 0) : max(below, 0), max(left, 0) : max(right, 0)] = colour
    return picture


def write(
    path: Path,
    pictures: Sequence[np.ndarray],
    pts: Sequence[int] | None = None,
    time_base: Fraction = Fraction(1, 12800),
    rate: Fraction = Fraction(25),
    sound: str | None = None,
    codec: str = "aac",
    edit: Callable[[av.VideoFrame], av.VideoFrame] | None = None,
    space: int | None = None,
    gop: int = 12,
) -> Path:
    """A nearly lossless H.264 video. pts: in ticks; sound: a layout such as "5.1", a second of it per 25 pictures."""
    pts = [round(i / rate / time_base) for i in range(len(pictures))] if pts is None else pts
    height, width = pictures[0].shape[:2]
    even = height % 2 == 0 and width % 2 == 0
    with av.open(str(path), "w") as file:
        stream = file.add_stream("libx264", rate=rate)
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p" if even else "yuv444p"
        stream.options = {"crf": "4", "bf": "0", "preset": "veryfast", "g": str(gop)}
        stream.codec_context.time_base = time_base
        stream.time_base = time_base
        if space is not None:
            stream.codec_context.colorspace = space
        audio = None
        if sound is not None:
            audio = file.add_stream(codec, rate=48000, layout=sound)
        for i, picture in enumerate(pictures):
            frame = av.VideoFrame.from_ndarray(picture, format="rgb24")
            frame = edit(frame) if edit is not None else frame
            frame.pts, frame.time_base = pts[i], time_base
            file.mux(stream.encode(frame))
        file.mux(stream.encode())
        if audio is not None:
            samples, size = round(48000 * len(pictures) / 25), audio.codec_context.frame_size or 1024
            channels = audio.codec_context.layout.nb_channels
            for start in range(0, samples, size):
                wave = np.sin(2 * np.pi * 440 * (start + np.arange(size)) / 48000).astype(np.float32) * 0.3
                frame = av.AudioFrame.from_ndarray(np.tile(wave, (channels, 1)), format="fltp", layout=sound)
                frame.sample_rate, frame.pts, frame.time_base = 48000, start, Fraction(1, 48000)
                file.mux(audio.encode(frame))
            file.mux(audio.encode())
    return path


def read(path: Path) -> tuple[list[np.ndarray], list[Fraction]]:
    """All pictures (RGB by the file's own matrix left to the reader under test) and their times in seconds."""
    pictures, times = [], []
    with av.open(str(path)) as file:
        for frame in file.decode(video=0):
            pictures.append(frame.to_ndarray(format="rgb24"))
            times.append(frame.pts * frame.time_base)
    return pictures, times


def sound_packets(path: Path) -> list[bytes]:
    packets: list[bytes] = []
    with av.open(str(path)) as file:
        if file.streams.audio:
            packets += [bytes(p) for p in file.demux(audio=0) if p.size]
    return packets


def interrupt_third_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C as the third chunk from now on is begun, once."""
    swapped, calls = Swapper.swap, []

    def interrupted(self, pictures, seen, state):
        calls.append(len(pictures))
        if len(calls) == 3:
            os.kill(os.getpid(), signal.SIGINT)
        return swapped(self, pictures, seen, state)

    monkeypatch.setattr(Swapper, "swap", interrupted)
