"""Pictures on their way to the client: numbered, timed, encoded, queued."""

import time
from dataclasses import dataclass, fields, replace
from typing import Literal, Self

from .outbox import Outbox, Picture
from .pictures import CodecName, encode
from .protocol import REAL, Codec, FrameHeader, Hello, Settings
from .sources import Pixels


@dataclass(frozen=True, kw_only=True, slots=True)
class Choices:
    """What a client may change while it watches."""

    codec: CodecName
    quality: int
    policy: Literal["latest", "block"]
    pace: float  # pictures per second; 0: as fast as possible
    steps: int  # sampler steps; 0: the model's own

    @classmethod
    def of(cls, hello: Hello, fps: float) -> Self:
        """What a client asks for when it connects to a world with a frame rate."""
        pace = fps if hello.pace is None else hello.pace
        steps = hello.steps or 0
        return cls(codec=hello.codec, quality=hello.quality, policy=hello.policy, pace=pace, steps=steps)

    def changed(self, change: Settings) -> Self:
        """The same, but for what a client wants to change."""
        wanted = {field.name: getattr(change, field.name) for field in fields(self)}
        return replace(self, **{name: value for name, value in wanted.items() if value is not None})

    @property
    def waits(self) -> bool:
        """Whether a full queue stops the dream."""
        return self.policy == "block" or self.pace == 0


@dataclass(frozen=True, slots=True)
class Stamp:
    """What the pictures of one chunk have in common, whether they are dreamt or the simulator's."""

    stream: int
    input: int  # seq of the newest input
    index: int  # of the first picture in its stream
    shown: int  # pictures of this session before the first
    size: int  # pictures
    begun: float  # when the input was read, seconds


class Projector:
    """Counts the pictures of one session and puts them into its outbox."""

    def __init__(self, outbox: Outbox, fps: float) -> None:
        self.outbox, self.fps = outbox, fps
        self.stream = 0  # number of the newest stream
        self.index = 0  # of the next picture in it
        self._shown = 0

    def begin(self, index: int) -> None:
        """A new stream, whose next picture has this index; what waits of the old one is thrown away."""
        self.stream, self.index = self.stream + 1, index
        self.outbox.clear()

    def stamp(self, seq: int, size: int, begun: float) -> Stamp:
        """Number the next `size` pictures."""
        stamp = Stamp(self.stream, seq, self.index, self._shown, size, begun)
        self.index, self._shown = self.index + size, self._shown + size
        return stamp

    def show(self, frames: Pixels, stamp: Stamp, flags: int, choices: Choices) -> None:
        """Encode and queue pictures [P, H, W, 3] with P = stamp.size; from any thread, in order for each source."""
        height, width = frames.shape[1:3]
        encoded = [encode(frame, choices.codec, choices.quality) for frame in frames]
        now = time.perf_counter()
        pictures = []
        for place, data in enumerate(encoded):
            pts = round((stamp.shown + place) * 1e6 / self.fps)
            header = FrameHeader(
                codec=Codec[choices.codec.upper()], flags=flags, width=width, height=height, stream=stamp.stream,
                input=stamp.input, index=stamp.index + place, pts=pts, latency=round((now - stamp.begun) * 1e6),
                place=place, size=stamp.size,
            )  # fmt: skip
            pictures.append(Picture(header.pack() + data, pts, bool(flags & REAL), now))
        if stamp.stream == self.stream:  # the simulator may answer after a restart
            self.outbox.put(pictures)
