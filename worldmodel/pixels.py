"""Pictures at the border (uint8 [..., H, W, 3] RGB) and pixels inside models (float [..., 3, H, W] in [-1, 1])."""

import itertools
from collections.abc import Iterable
from fractions import Fraction
from pathlib import Path

import av
import cv2
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from worldmodel.errors import UserError
from worldmodel.folders import check_creatable

VIDEOS = (".mp4", ".mkv", ".mov")
BT601 = 5
MATRICES = (1, 4, 7, 9)  # of ITU-T H.273 that swscale knows beside BT.601's: BT.709, FCC, SMPTE 240M, BT.2020
Picture = NDArray[np.uint8]  # [H, W, 3] RGB


def to_float(frames: np.ndarray | Tensor) -> Tensor:
    """uint8 [..., H, W, 3] -> fp32 [..., 3, H, W] in [-1, 1]."""
    return torch.as_tensor(frames).movedim(-1, -3).float() / 127.5 - 1


def to_uint8(pixels: Tensor) -> NDArray[np.uint8]:
    """Float [..., 3, H, W] in [-1, 1] -> uint8 [..., H, W, 3] in C order, rounded and clipped."""
    scaled = ((pixels.detach().float() + 1) * 127.5).round().clamp(0, 255)
    return np.ascontiguousarray(scaled.to(torch.uint8).movedim(-3, -1).cpu().numpy())


def as_rgb(frame: av.VideoFrame) -> Picture:
    """The pixels [H, W, 3] of a decoded frame, by the colour matrix that the file names (BT.601 if it names none)."""
    if int(frame.colorspace) in MATRICES:  # PyAV takes the file's matrix only if it is told another one to go to
        frame = frame.reformat(format="rgb24", src_colorspace=int(frame.colorspace), dst_colorspace=BT601)
    return np.ascontiguousarray(frame.to_ndarray(format="rgb24"), np.uint8)


def fit(picture: Picture, height: int, width: int) -> Picture:
    """The largest centred part of a picture [h, w, 3] with the right aspect, resized to [height, width, 3].

    The part is cut out first, so that no intermediate picture is larger than both.
    """
    h, w = picture.shape[:2]
    if (h, w) == (height, width):
        return picture
    scale = min(h / height, w / width)
    crop_h, crop_w = max(1, round(height * scale)), max(1, round(width * scale))
    top, left = (h - crop_h) // 2, (w - crop_w) // 2
    part = np.ascontiguousarray(picture[top : top + crop_h, left : left + crop_w])
    way = cv2.INTER_AREA if crop_h > height else cv2.INTER_CUBIC
    return np.asarray(cv2.resize(part, (width, height), interpolation=way), np.uint8)


def enlarge(frames: np.ndarray, factor: int) -> np.ndarray:
    """Whole-number nearest-neighbour enlargement of uint8 [..., H, W, 3]."""
    return frames.repeat(factor, -3).repeat(factor, -2)


def check_video(path: Path) -> None:
    """A UserError if no video can be written at `path`: its suffix, its folder, what is there already."""
    if path.suffix.lower() not in VIDEOS:
        raise UserError(f"{path}: a video's name ends in one of {', '.join(VIDEOS)}")
    if path.is_dir():
        raise UserError(f"{path}: is a folder, a video is a file")
    check_creatable(path)


def write_video(path: Path, frames: np.ndarray | Iterable[Picture], fps: float, quality: int = 16) -> None:
    """Write uint8 [T, H, W, 3] as H.264 (yuv420p, short groups of pictures). Odd sizes lose their last row or column.

    Frames that come one by one are written as they come, and none is held; the file takes its place when it is whole.
    fps may be fractional, such as 30000 / 1001. quality: x264's constant rate factor, lower is better. A place that
    cannot be written to, or a full disk, is a UserError.
    """
    check_video(path)
    partial = path.with_name(f".{path.stem}.partial{path.suffix}")
    try:
        _encode(partial, frames, fps, quality)
        partial.replace(path)
    except (OSError, av.FFmpegError) as error:
        raise UserError(f"{path}: could not be written ({error.strerror or error})") from error
    finally:
        partial.unlink(missing_ok=True)


def _encode(path: Path, frames: np.ndarray | Iterable[Picture], fps: float, quality: int) -> None:
    rate = Fraction(fps).limit_denominator(1001)
    frames = iter(frames)
    if (first := next(frames, None)) is None:
        raise ValueError("a video has at least one frame")
    height, width = first.shape[0] // 2 * 2, first.shape[1] // 2 * 2
    path.parent.mkdir(parents=True, exist_ok=True)
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=rate)
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        stream.options = {"crf": str(quality), "g": "12", "preset": "veryfast"}
        for frame in itertools.chain((first,), frames):
            picture = av.VideoFrame.from_ndarray(np.ascontiguousarray(frame[:height, :width]), format="rgb24")
            container.mux(stream.encode(picture))
        container.mux(stream.encode())
