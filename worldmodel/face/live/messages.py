"""What the page of a live swap and its server say to each other: JSON in text messages, each with a "type".

Pictures to the client are the binary messages of the stream protocol (docs/guide/stream-protocol.md): `input` is the
number of the client's picture that is shown, `index` counts up, the flag REAL marks the server's own picture before the
swap. Pictures from the client have a header of 16 bytes, little-endian, before the bytes of a JPEG, PNG or WebP file.
"""

import io
import json
import struct
from dataclasses import dataclass
from typing import Any, Literal

from PIL import Image

from worldmodel.errors import UserError
from worldmodel.serve.protocol import VERSION, Codec, ProtocolError, read_as

SHOT = 4  # first byte of a client's picture
MAX_PICTURE = 4 * 1024 * 1024  # bytes
MAX_PIXELS = 1920 * 1080
FORMATS = ("JPEG", "PNG", "WEBP")  # no others: some of Pillow's readers start programs
SourceName = Literal["client", "server"]

_SHOT = struct.Struct("<BBHIQ")  # kind, version, 0, number, microseconds


@dataclass(frozen=True, kw_only=True, slots=True)
class Hello:
    """The first message, once. source: whose pictures are swapped. method, reference: by their names; None: the first
    of this server. codec, quality: of the pictures that come back."""

    version: int
    source: SourceName
    method: str | None = None
    reference: str | None = None
    codec: Literal["jpeg", "webp"] = "jpeg"
    quality: int = 88


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """Another method or reference, from the next chunk on; None stays as it is."""

    method: str | None = None
    reference: str | None = None


def read(text: str) -> Hello | Change:
    """A message of a client. Raises ProtocolError."""
    message: Hello | Change = read_as(text, Hello | Change)
    if isinstance(message, Hello):
        if message.version != VERSION:
            raise ProtocolError(f"this server speaks protocol version {VERSION}, not {message.version}")
        if not 50 <= message.quality <= 100:
            raise ProtocolError(f"message hello: quality {message.quality} is outside [50, 100]")
    return message


def shot(number: int, ticks: int, data: bytes) -> bytes:
    """A client's picture message."""
    return _SHOT.pack(SHOT, VERSION, 0, number, ticks) + data


def read_shot(message: bytes) -> tuple[int, int, bytes]:
    """A client's picture message -> its number, its microseconds and its file.

    Raises ProtocolError for what is none, UserError for a file that will not be decoded; it is looked at, not decoded.
    """
    if len(message) <= _SHOT.size:
        raise ProtocolError(f"a binary message of {len(message)} bytes holds no picture")
    kind, version, zero, number, ticks = _SHOT.unpack_from(message)
    if kind != SHOT or zero:
        raise ProtocolError(f"binary message of kind {kind}: a client sends {SHOT} (picture)")
    if version != VERSION:
        raise ProtocolError(f"picture of protocol version {version}, this server speaks {VERSION}")
    if ticks >= 2**62:
        raise ProtocolError(f"a picture's time of {ticks} microseconds is beyond every clock")
    if len(message) > MAX_PICTURE:
        raise UserError(f"a picture of {len(message)} bytes is over the limit of {MAX_PICTURE}")
    data = message[_SHOT.size :]
    try:
        with Image.open(io.BytesIO(data), formats=FORMATS) as file:
            width, height = file.size
    except Exception as error:  # Pillow's readers raise many kinds
        raise UserError("a picture is no JPEG, PNG or WebP file") from error
    if width * height > MAX_PIXELS:
        raise UserError(f"a picture has {width} x {height} pixels, at most {MAX_PIXELS} are swapped live")
    return number, ticks, data


def write(kind: str, **fields: Any) -> str:
    """A message of the server."""
    return json.dumps({"type": kind, **fields})


CODECS = {"jpeg": Codec.JPEG, "webp": Codec.WEBP}
