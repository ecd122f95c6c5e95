"""Pictures at the border: model values to uint8 RGB, uint8 to bytes on the wire, uploaded files to model values."""

import io
from typing import Literal

import cv2
import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor

from worldmodel.errors import UserError

from .protocol import Codec, in_words
from .sources import Pixels

MAX_UPLOAD_PIXELS = 40_000_000
UPLOAD_FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF")  # no others: some of Pillow's readers start programs
CodecName = Literal["raw", "jpeg", "webp"]


def to_uint8(pixels: Tensor) -> Pixels:
    """Pixels [..., 3, H, W] in [-1, 1] -> uint8 RGB [..., H, W, 3], rounded to the nearest."""
    scaled = ((pixels.float() + 1) * 127.5).round().clamp(0, 255).to(torch.uint8)
    return np.ascontiguousarray(scaled.movedim(-3, -1).cpu().numpy())


def to_model(pixels: Pixels, device: torch.device) -> Tensor:
    """uint8 RGB [P, H, W, 3] -> pixels [1, P, 3, H, W] in [-1, 1] on a device."""
    return torch.from_numpy(np.ascontiguousarray(pixels)).to(device).movedim(-1, -3).float()[None] / 127.5 - 1


def encode(picture: Pixels, codec: CodecName, quality: int) -> bytes:
    """A picture [H, W, 3] in one of the protocol's codecs. JPEG keeps the full colour resolution (4:4:4)."""
    if codec == "raw":
        return picture.tobytes()
    bgr = cv2.cvtColor(picture, cv2.COLOR_RGB2BGR)
    if codec == "webp":
        done, data = cv2.imencode(".webp", bgr, [cv2.IMWRITE_WEBP_QUALITY, quality])
    else:
        full = int(cv2.IMWRITE_JPEG_SAMPLING_FACTOR_444)
        options = [cv2.IMWRITE_JPEG_QUALITY, quality, cv2.IMWRITE_JPEG_SAMPLING_FACTOR, full]
        done, data = cv2.imencode(".jpg", bgr, options)
    if not done:
        raise RuntimeError(f"OpenCV did not encode a picture of shape {picture.shape} as {codec}")
    return data.tobytes()


def decode(payload: bytes, codec: Codec, width: int, height: int) -> Pixels:
    """The inverse of `encode`: [H, W, 3] uint8 RGB (exact for RAW). Raises ValueError on a payload that is not one."""
    if codec == Codec.RAW:
        return np.frombuffer(payload, np.uint8).reshape(height, width, 3)
    bgr = cv2.imdecode(np.frombuffer(payload, np.uint8), cv2.IMREAD_COLOR)
    if bgr is None:
        raise ValueError(f"{len(payload)} bytes are not a {codec.name} picture")
    return np.asarray(cv2.cvtColor(bgr, cv2.COLOR_BGR2RGB), np.uint8)


def fit(picture: Pixels, height: int, width: int) -> Pixels:
    """The largest centred part of a picture with the right aspect, resized to [height, width, 3]."""
    h, w = picture.shape[:2]
    scale = min(h / height, w / width)
    crop_h, crop_w = max(1, round(height * scale)), max(1, round(width * scale))
    top, left = (h - crop_h) // 2, (w - crop_w) // 2
    part = np.ascontiguousarray(picture[top : top + crop_h, left : left + crop_w])
    way = cv2.INTER_AREA if crop_h > height else cv2.INTER_CUBIC
    return np.asarray(cv2.resize(part, (width, height), interpolation=way), np.uint8)


def read_picture(data: bytes, height: int, width: int) -> Pixels:
    """A JPEG, PNG, WebP, BMP or GIF file, upright, cropped and resized to [height, width, 3].

    Raises UserError for what is none of these, is damaged or truncated, or has more than 40 million pixels.
    """
    try:
        with Image.open(io.BytesIO(data), formats=UPLOAD_FORMATS) as file:
            if file.width * file.height > MAX_UPLOAD_PIXELS:
                raise UserError(f"the picture has {file.width} x {file.height} pixels, at most 40 million are read")
            picture = np.asarray(ImageOps.exif_transpose(file).convert("RGB"))
        return fit(picture, height, width)
    except UserError:
        raise
    except Exception as error:  # readers of pictures raise anything on damaged ones
        raise UserError(f"the uploaded file is not a picture that can be read ({in_words(error)})") from error
