"""The stream protocol, version 2: what goes over the WebSocket. docs/guide/stream-protocol.md describes it for others.

Control messages are JSON objects in text messages, each with a "type". Pictures are binary messages: a header of 40
bytes, little-endian, then the encoded picture. A client uploads with binary messages, too.
"""

import json
import re
import struct
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Literal, get_args

from worldmodel.errors import UserError
from worldmodel.serial import from_json, to_json

VERSION = 2
MAX_TEXT = 16 * 1024  # bytes of a control message
MAX_UPLOAD = 8 * 1024 * 1024  # bytes of a picture or a replay file
MIN_PACE, MAX_PACE = 0.1, 1000.0  # pictures per second, unless 0
MAX_SEED = 2**53 - 1  # what every language reads exactly
MAX_LINE = 500  # characters of an error
MAX_REASON = 123  # bytes, RFC 6455 section 5.5

FRAME = 1  # first byte of a picture message
UPLOAD_PICTURE, UPLOAD_REPLAY = 2, 3  # first byte of an upload

REAL, HELD, CONTEXT = 1, 2, 4  # flags of a picture

CLOSE_BAD_MESSAGE, CLOSE_BAD_TOKEN, CLOSE_IDLE = 4400, 4404, 4408
CLOSE_MOVED, CLOSE_FULL, CLOSE_FAILED = 4409, 4429, 4500

_HEADER = struct.Struct("<BBBBHHIIQQIHH")
_UPLOAD = struct.Struct("<BBH")
_ADDRESS = re.compile(r" (object )?at 0x[0-9a-fA-F]+")  # as Python prints an object
HEADER_BYTES = _HEADER.size
UPLOAD_BYTES = _UPLOAD.size


class ProtocolError(Exception):
    """A message that breaks the protocol: its sender gets the one line of text, and the connection is closed."""


class Codec(IntEnum):
    """How a picture is encoded. RAW is [height, width, 3] uint8 RGB, bit-exact."""

    RAW = 0
    JPEG = 1
    WEBP = 2


@dataclass(frozen=True, slots=True)
class FrameHeader:
    """Everything about a picture but its pixels."""

    codec: Codec
    flags: int  # REAL: of the simulator; HELD: the last good one, shown again; CONTEXT: given, not dreamt
    width: int  # pixels
    height: int  # pixels
    stream: int  # counts the restarts of this session
    input: int  # seq of the newest input message that this picture obeys, 0 for none
    index: int  # of the pixel frame in its stream; consecutive unless frames were dropped
    pts: int  # presentation timestamp, microseconds of video time since the session began; never falls
    latency: int  # microseconds from reading the input to the encoded chunk
    place: int  # of the picture in its chunk, from 0
    size: int  # pictures in the chunk

    def pack(self) -> bytes:
        """The 40 bytes of the header."""
        return _HEADER.pack(
            FRAME, VERSION, self.codec, self.flags, self.width, self.height, self.stream, self.input, self.index,
            self.pts, min(self.latency, 2**32 - 1), self.place, self.size,
        )  # fmt: skip


def read_frame(message: bytes) -> tuple[FrameHeader, bytes]:
    """A picture message -> its header and the encoded picture. Raises ProtocolError."""
    if len(message) < HEADER_BYTES:
        raise ProtocolError(f"a picture message of {len(message)} bytes is shorter than its header of {HEADER_BYTES}")
    kind, version, codec, *rest = _HEADER.unpack_from(message)
    if kind != FRAME:
        raise ProtocolError(f"binary message of kind {kind}, expected {FRAME} (picture)")
    if version != VERSION:
        raise ProtocolError(f"picture message of version {version}, this client speaks {VERSION}")
    if codec not in set(Codec):
        raise ProtocolError(f"picture message with unknown codec {codec}")
    return FrameHeader(Codec(codec), *rest), message[HEADER_BYTES:]


def upload(kind: int, data: bytes) -> bytes:
    """An upload message: UPLOAD_PICTURE or UPLOAD_REPLAY and the bytes of a file."""
    return _UPLOAD.pack(kind, VERSION, 0) + data


def read_upload(message: bytes) -> tuple[int, bytes]:
    """An upload message -> its kind and the bytes of the file. Raises ProtocolError."""
    if len(message) > MAX_UPLOAD:
        raise ProtocolError(f"an upload of {len(message)} bytes is over the limit of {MAX_UPLOAD}")
    if len(message) <= UPLOAD_BYTES:
        raise ProtocolError(f"a binary message of {len(message)} bytes holds no upload")
    kind, version, zero = _UPLOAD.unpack_from(message)
    if kind not in (UPLOAD_PICTURE, UPLOAD_REPLAY) or zero:
        raise ProtocolError(
            f"binary message of kind {kind}: a client sends {UPLOAD_PICTURE} (picture) or {UPLOAD_REPLAY} (replay)"
        )
    if version != VERSION:
        raise ProtocolError(f"upload of protocol version {version}, this server speaks {VERSION}")
    return kind, message[UPLOAD_BYTES:]


# -- what a client says ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class Hello:
    """The first message, once. window: pictures sent ahead of the last acknowledged one; 0: TCP alone limits.

    With a resume token the session goes on where it was, under the settings of this hello; `start`, `seed` and `world`
    only count if the server does not have it any more.
    """

    version: int
    codec: Literal["raw", "jpeg", "webp"] = "jpeg"
    quality: int = 90  # 1 to 100
    policy: Literal["latest", "block"] = "latest"  # a full queue drops its oldest pictures, or stops the dream
    window: int = 0
    pace: float | None = None  # pictures per second, 0.1 to 1000; None: the world's own rate; 0: unpaced (blocks)
    steps: int | None = None  # sampler steps; None: the model's own
    start: int = 0  # which of the world's starts
    seed: int = 0
    paused: bool = False
    resume: str | None = None  # the token of the last welcome
    world: str | None = None  # name of one of the server's worlds; None: the first


@dataclass(frozen=True, kw_only=True, slots=True)
class Input:
    """What is pressed from now on: action name -> value in the world's units. Names that are left out rest."""

    seq: int  # grows from message to message, over all connections of a session
    action: dict[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Ack:
    """Every picture up to this pts was shown or thrown away."""

    pts: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Pause:
    on: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Restart:
    """Begin anew. start: one of the world's own beginnings; frame: a frame of the recordings; real: where the simulator
    stands now (with a seed: a new episode of it); bookmark: where the bookmark was set."""

    source: Literal["start", "frame", "real", "bookmark"]
    index: int = 0
    seed: int | None = None  # None: keep the seed


@dataclass(frozen=True, kw_only=True, slots=True)
class Reset:
    """Begin anew from the same beginning."""

    seed: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Switch:
    """Begin anew in a world, this one or another: the same beginning, the same seed, and the same keys as so far."""

    world: str  # its name


@dataclass(frozen=True, kw_only=True, slots=True)
class Takeover:
    """Drive from the next chunk on, although recorded keys are left: they are forgotten."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """Changes what it names, from the next chunk on."""

    codec: Literal["raw", "jpeg", "webp"] | None = None
    quality: int | None = None
    policy: Literal["latest", "block"] | None = None
    pace: float | None = None
    steps: int | None = None  # 0: the model's own


@dataclass(frozen=True, kw_only=True, slots=True)
class Bookmark:
    """Remember this moment; restart with source "bookmark" returns to it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Record:
    """Start recording a video, or finish it: a `file` message answers."""

    on: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Save:
    """Make a replay file of the stream since its start: a `file` message answers."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Real:
    """Run the simulator beside the dream, or stop showing it."""

    on: bool


ClientMessage = (
    Hello | Input | Ack | Pause | Restart | Reset | Switch | Takeover | Settings | Bookmark | Record | Save | Real
)

_RANGES: dict[str, tuple[float, float]] = {
    "quality": (1, 100), "window": (0, 10_000), "pace": (MIN_PACE, MAX_PACE), "steps": (0, 64), "start": (0, MAX_SEED),
    "index": (0, MAX_SEED), "seed": (0, MAX_SEED), "seq": (1, 2**32 - 1), "pts": (0, MAX_SEED),
}  # fmt: skip


def read_message(text: str) -> ClientMessage:
    """A client's control message. Raises ProtocolError with one line that says what is wrong with it."""
    message: ClientMessage = read_as(text, ClientMessage)
    for name, (low, high) in _RANGES.items():
        value = getattr(message, name, None)
        unpaced = name == "pace" and value == 0
        if value is not None and not unpaced and not low <= value <= high:
            also = " and not 0 (as fast as possible)" if name == "pace" else ""
            kind = type(message).__name__.lower()
            raise ProtocolError(f"message {kind}: {name} {value} is outside [{low:g}, {high:g}]{also}")
    if isinstance(message, Input):
        _check_action(message.action)
    if isinstance(message, Hello) and message.version != VERSION:
        raise ProtocolError(f"this server speaks protocol version {VERSION}, not {message.version}")
    return message


def read_as(text: str, union: Any) -> Any:
    """A JSON message of one of the classes of a union, which its "type" names in lower case.

    Raises ProtocolError with one line for what is none, or too long, or has fields that are missing or of other types.
    """
    if len(text) > MAX_TEXT or len(text.encode()) > MAX_TEXT:
        raise ProtocolError(f"a message of {len(text)} characters is over the limit of {MAX_TEXT} bytes")
    try:
        data = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"not a JSON message: {error}") from error
    if not isinstance(data, dict) or not isinstance(data.get("type"), str):
        raise ProtocolError('a message is a JSON object with a "type"')
    kinds = {kind.__name__.lower(): kind.__name__ for kind in get_args(union)}
    if data["type"] not in kinds:
        raise ProtocolError(f"message: type {data['type']!r} is none of {list(kinds)}")
    try:
        return from_json(data | {"type": kinds[data["type"]]}, union, "message")
    except UserError as error:
        raise ProtocolError(str(error)) from error


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not a number")


def _check_action(action: Any) -> None:
    if not isinstance(action, dict):
        raise ProtocolError("message input: action is an object of names and numbers")
    for name, value in action.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e9:
            raise ProtocolError(f"message input: action '{name}' is {value!r}, not a number below 1e9")


# -- what a server says ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class WorldFacts:
    """One of the server's worlds: what differs between them. They share pictures, actions and beginnings."""

    name: str
    title: str
    parameters: int
    sampler: str
    steps: int  # as in Welcome


@dataclass(frozen=True, kw_only=True, slots=True)
class Welcome:
    """The answer to hello: what this world is and how it is driven. Of several worlds it describes the first."""

    version: int
    title: str
    width: int
    height: int
    fps: float
    chunk: int  # pictures per chunk
    context: int  # pictures of a beginning
    starts: int  # how many beginnings there are
    frames: int  # frames of recordings to start from, 0 for none
    real: bool  # whether a simulator can run beside the dream
    sampler: str
    steps: int  # model calls per chunk; 0: fixed by the sampler's schedule
    parameters: int
    controls: list[Any]  # see bindings.Binding
    limits: dict[str, float]
    worlds: list[WorldFacts] = field(default_factory=list)  # all of them, the first included
    resume: str = ""  # token that the next connection of this session presents, once
    resumed: bool = False  # an older session goes on
    seq: int = 0  # of its newest input


@dataclass(frozen=True, kw_only=True, slots=True)
class Started:
    """A stream begins, or goes on after a resume: pictures with this stream number follow."""

    stream: int
    source: str
    index: int
    seed: int
    context: int  # pictures that it was given
    world: str  # name of the one that makes it
    scripted: int  # its pictures up to this index are made under recorded keys; 0: none


@dataclass(frozen=True, kw_only=True, slots=True)
class Stats:
    """Once a second. Times in milliseconds; chunk: from reading the input to the encoded pictures."""

    stream: int
    fps: float
    chunk: dict[str, float]  # p50, p95, p99, n
    stages: dict[str, float]  # sample, remember, decode, encode, send: medians of the last chunks
    queue: int  # pictures waiting
    queue_limit: int
    drops: int  # pictures
    memory: int  # latent frames remembered: sink + slow + ring
    memory_bytes: int
    held: int  # chunks whose values were not finite
    frames: int  # pixel frames made in this stream
    steps: int
    paused: bool
    recording: bool
    clients: int
    sink: int = 0  # as in Memory
    slow: list[int] = field(default_factory=list)
    ring: int = 0
    backend: str = "auto"  # of the kernels, as it was asked for
    fallbacks: dict[str, int] = field(default_factory=dict)  # what auto passed over and why, and how often so far


@dataclass(frozen=True, kw_only=True, slots=True)
class Memory:
    """What the memory holds, of a world whose memory chooses frames to keep, when it has changed.

    A latent frame is named by the index of its last picture; below 0 it was given before the stream began.
    """

    stream: int
    index: int  # newest picture that it knows
    pictures: int  # of a latent frame
    sink: int  # how many of the stream's first latent frames it holds
    slow: list[int]  # chosen latent frames, oldest first
    read: list[int]  # those of them that the next chunk reads
    places: int  # for chosen ones
    ring: int  # how many of the newest latent frames it holds


@dataclass(frozen=True, kw_only=True, slots=True)
class File:
    """A file is ready at the address `url`, for some minutes."""

    kind: Literal["video", "replay"]
    url: str
    name: str
    bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Paused:
    """The server paused or went on, by itself or because it was asked to."""

    on: bool
    reason: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Notice:
    """Something worth knowing that is no error."""

    text: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Error:
    """One line of text. After a fatal one the connection is closed."""

    message: str
    fatal: bool = field(default=False)


ServerMessage = Welcome | Started | Stats | Memory | File | Paused | Notice | Error


def one_line(text: str) -> str:
    """A text of whatever origin as one line that any screen can show: no control characters, at most 500 long."""
    line = " ".join(text.split())
    line = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in line)
    return line if len(line) <= MAX_LINE else f"{line[: MAX_LINE - 3]}..."


def in_words(error: BaseException | None) -> str:
    """What an exception says, in one line, without addresses of memory; its name if it says nothing."""
    return one_line(_ADDRESS.sub("", str(error))) or type(error).__name__


def close_reason(line: str) -> str:
    """As much of a line as the close frame of a WebSocket holds, 123 bytes of UTF-8."""
    return one_line(line).encode()[:MAX_REASON].decode(errors="ignore")


def write_message(message: ServerMessage | ClientMessage) -> str:
    """A message as JSON text."""
    data = to_json(message)
    return json.dumps(data | {"type": data["type"].lower()})
