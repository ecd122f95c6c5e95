"""What the page of the robot demo and its server say to each other: JSON in text messages, each with a "type".

Pictures are the binary messages of the stream protocol (docs/guide/stream-protocol.md): `stream` is the number of the
trial, `index` its control step.
"""

import json
from dataclasses import dataclass
from typing import Any

from worldmodel.policies.demo.rounds import Way
from worldmodel.policies.shifts import parse_shift
from worldmodel.serve.protocol import VERSION, ProtocolError, read_as

MAX_SHIFT = 200  # characters of a shift's name
MIN_SPEED, MAX_SPEED = 0.1, 10.0  # times real time, unless 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Hello:
    """The first message, once."""

    version: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Break:
    """Another robot, at once; the trial under way does not count. shift: as `parse_shift` reads it."""

    shift: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Correct:
    """Whether failed trials correct the policy from the next trial on, and how their tokens are put together."""

    on: bool
    way: Way = "mean"


@dataclass(frozen=True, kw_only=True, slots=True)
class Pause:
    on: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Speed:
    """times: real time, 0.1 to 10; 0: as fast as it goes."""

    times: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Again:
    """Begin another round, at once: nothing is known of the robot; the trial under way does not count."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Clear:
    """As Again, and all counts are forgotten."""


Wish = Break | Correct | Pause | Speed | Again | Clear


def read(text: str) -> Hello | Wish:
    """A message of the page; a shift comes by its one name.

    Raises ProtocolError for what is no message of this protocol, UserError for a shift that there is not.
    """
    message: Hello | Wish = read_as(text, Hello | Wish)
    match message:
        case Hello(version=version) if version != VERSION:
            raise ProtocolError(f"this server speaks protocol version {VERSION}, not {version}")
        case Speed(times=times) if times and not MIN_SPEED <= times <= MAX_SPEED:
            raise ProtocolError(
                f"message speed: {times} times is outside [{MIN_SPEED:g}, {MAX_SPEED:g}] and not 0 (as fast as it goes)"
            )
        case Break(shift=shift):
            if len(shift) > MAX_SHIFT:
                raise ProtocolError(f"message break: a shift of {len(shift)} characters, at most {MAX_SHIFT} are read")
            return Break(shift=parse_shift(shift).name)
    return message


def write(kind: str, **fields: Any) -> str:
    """A message of the server."""
    return json.dumps({"type": kind, **fields})
