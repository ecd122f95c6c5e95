"""Pictures at the border: uint8 RGB to bytes on the wire and back, uploaded files to pictures."""

import io
from typing import Literal

import cv2
import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from worldmodel.errors import UserError
from worldmodel.pixels import fit

from .protocol import Codec, in_words
from .sources import Pixels

MAX_UPLOAD_PIXELS = 40_000_000
UPLOAD_FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF")  # no others: some of Pillow's readers start programs
CodecName = Literal["raw", "jpeg", "webp"]


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


def read_picture(data: bytes, height: int, width: int) -> Pixels:
    """A JPEG, PNG, WebP, BMP or GIF file, upright, cropped and resized to [height, width, 3].

    Raises UserError for what is none of these, is damaged or truncated, or has more than 40 million pixels.
    """
    try:
        with Image.open(io.BytesIO(data), formats=UPLOAD_FORMATS) as file:
            if file.width * file.height > MAX_UPLOAD_PIXELS:
                raise UserError(f"the picture has {file.width} x {file.height} pixels, at most 40 million are read")
            picture = np.array(ImageOps.exif_transpose(file).convert("RGB"))
        return fit(picture, height, width)
    except UserError:
        raise
    except UnidentifiedImageError as error:  # its own text shows an object of Python
        raise UserError("the uploaded file is not a picture: it is no JPEG, PNG, WebP, BMP or GIF file") from error
    except Image.DecompressionBombError as error:
        raise UserError("the picture has far more pixels than the 40 million that are read") from error
    except Exception as error:  # readers of pictures raise anything on damaged ones
        raise UserError(f"the uploaded file is not a picture that can be read ({in_words(error)})") from error
