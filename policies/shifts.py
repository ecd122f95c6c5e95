"""Hardware shifts: what wear and miscalibration do to a robot that is told where its hand should be.

An action is an absolute target of the hand in metres; the robot's controller moves until its *reading* of the hand is
at the target. A shift changes what the controller is given (`drive`), what proprioception reports (`sense`), the place
of the camera, or when an action arrives. One object serves in three places: the simulator applies it (collection and
evaluation), and `compensate` rewrites recorded data into what the shifted robot would have had to be told, and would
have reported, for the same motion: a* = a - delta for an actuation bias; for an encoder offset also q* = q - delta
(labels of Self-Adaptive VLA, 2609.30092). A shift is constant during an episode.

In text a shift is `NAME:NUMBERS`, several are joined by "+": `encoder-offset:0.02,0,-0.01+latency:2`; the robot as it
was built is `nominal`. Letters: T frames, A >= 3 action and S >= 3 state dimensions, of which the first three are x, y,
z of the hand in metres.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from worldmodel.errors import UserError

Floats = NDArray[np.floating]
Vector = tuple[float, float, float]
CENTRE = np.array([0.0, 0.6, 0.2])  # metres: where a wrong gain leaves the hand in place, the middle of the workspace
MAX_OFFSET, MAX_TURN, MAX_DELAY, GAINS = 0.5, 90.0, 100, (0.1, 10.0)


class Shift:
    """A robot as it was built; a subclass overrides what it changes."""

    @property
    def name(self) -> str:
        """The text that `parse_shift` reads."""
        return "nominal"

    def drive(self, target: Floats) -> Floats:
        """What the controller is given for a commanded target [..., 3]."""
        return target

    def undrive(self, driven: Floats) -> Floats:
        """The inverse of `drive`."""
        return driven

    def sense(self, hand: Floats) -> Floats:
        """What proprioception reports of a hand at [..., 3]."""
        return hand

    @property
    def delay(self) -> int:
        """Control steps between an action and its execution."""
        return 0

    @property
    def camera(self) -> "CameraPose | None":
        """Where the camera has moved to; None where it was."""
        return None

    def command(self, action: Floats) -> Floats:
        """The action [..., A] for which this robot does what the robot as built does for `action`, but for delays."""
        return _with_hand(action, self.undrive(self.sense(action[..., :3])))

    def report(self, state: Floats) -> Floats:
        """The state [..., S] that this robot reports when the robot as built reports `state`."""
        return _with_hand(state, self.sense(state[..., :3]))

    def compensate(self, actions: Floats, states: Floats) -> tuple[Floats, Floats]:
        """An episode's actions [T, A] and states [T, S], recorded on the robot as built, for this one.

        A delay brings actions forward and repeats the last one. Pictures cannot be rewritten: after a shift of the
        camera they must be drawn again.
        """
        later = np.minimum(np.arange(len(actions)) + self.delay, len(actions) - 1)
        return self.command(actions[later]), self.report(states)


NOMINAL = Shift()


def _with_hand(vector: Floats, hand: Floats) -> Floats:
    return np.concatenate((hand, vector[..., 3:]), -1).astype(vector.dtype, copy=False)


def _check_offset(name: str, values: tuple[float, ...], most: float, unit: str) -> None:
    if len(values) != 3 or not all(abs(value) <= most for value in values):  # NaN too
        raise UserError(f"shift {name}: needs three numbers in [-{most:g}, {most:g}] {unit}, not {values}")


def _text(*numbers: float) -> str:
    return ",".join(f"{number:g}" for number in numbers)


@dataclass(frozen=True, slots=True)
class ActuationBias(Shift):
    """The hand reaches a + delta, and proprioception tells so. delta: metres."""

    delta: Vector
    kind: ClassVar[str] = "actuation-bias"

    def __post_init__(self) -> None:
        _check_offset(self.kind, self.delta, MAX_OFFSET, "m")

    @property
    def name(self) -> str:
        return f"{self.kind}:{_text(*self.delta)}"

    def drive(self, target: Floats) -> Floats:
        return target + np.asarray(self.delta)

    def undrive(self, driven: Floats) -> Floats:
        return driven - np.asarray(self.delta)


@dataclass(frozen=True, slots=True)
class EncoderOffset(Shift):
    """Proprioception reads q - delta, so that the hand reaches a + delta: only a camera can tell. delta: metres."""

    delta: Vector
    kind: ClassVar[str] = "encoder-offset"

    def __post_init__(self) -> None:
        _check_offset(self.kind, self.delta, MAX_OFFSET, "m")

    @property
    def name(self) -> str:
        return f"{self.kind}:{_text(*self.delta)}"

    def sense(self, hand: Floats) -> Floats:
        return hand - np.asarray(self.delta)


@dataclass(frozen=True, slots=True)
class Gain(Shift):
    """The hand goes `factor` times as far from the middle of the workspace as it should; proprioception is honest."""

    factor: float
    kind: ClassVar[str] = "gain"

    def __post_init__(self) -> None:
        if not GAINS[0] <= self.factor <= GAINS[1]:
            raise UserError(f"shift {self.kind}: needs a factor in [{GAINS[0]:g}, {GAINS[1]:g}], not {self.factor}")

    @property
    def name(self) -> str:
        return f"{self.kind}:{_text(self.factor)}"

    def drive(self, target: Floats) -> Floats:
        return CENTRE + self.factor * (target - CENTRE)

    def undrive(self, driven: Floats) -> Floats:
        return CENTRE + (driven - CENTRE) / self.factor


@dataclass(frozen=True, slots=True)
class CameraPose(Shift):
    """The first camera stands elsewhere.

    move: metres along the axes of what it is mounted on. turn: degrees about its own right, up and backward axes, in
    this order.
    """

    move: Vector = (0.0, 0.0, 0.0)
    turn: Vector = (0.0, 0.0, 0.0)
    kind: ClassVar[str] = "camera-pose"

    def __post_init__(self) -> None:
        _check_offset(self.kind, self.move, MAX_OFFSET, "m")
        _check_offset(self.kind, self.turn, MAX_TURN, "degrees")

    @property
    def name(self) -> str:
        return f"{self.kind}:{_text(*self.move, *self.turn)}"

    @property
    def camera(self) -> "CameraPose":
        return self


@dataclass(frozen=True, slots=True)
class Latency(Shift):
    """Every action is executed `steps` control steps late; until the first arrives the hand stays where it is."""

    steps: int
    kind: ClassVar[str] = "latency"

    def __post_init__(self) -> None:
        if not 0 <= self.steps <= MAX_DELAY:
            raise UserError(f"shift {self.kind}: needs a whole number of steps in [0, {MAX_DELAY}], not {self.steps}")

    @property
    def name(self) -> str:
        return f"{self.kind}:{self.steps}"

    @property
    def delay(self) -> int:
        return self.steps


@dataclass(frozen=True, slots=True)
class Joined(Shift):
    """Several shifts at once: a command passes through them in order. Delays add up; one camera pose at most."""

    parts: tuple[Shift, ...]

    def __post_init__(self) -> None:
        if sum(part.camera is not None for part in self.parts) > 1:
            raise UserError(f"shift {self.name}: only one camera-pose is possible")

    @property
    def name(self) -> str:
        return "+".join(part.name for part in self.parts)

    def drive(self, target: Floats) -> Floats:
        return reduce(lambda driven, part: part.drive(driven), self.parts, target)

    def undrive(self, driven: Floats) -> Floats:
        return reduce(lambda target, part: part.undrive(target), reversed(self.parts), driven)

    def sense(self, hand: Floats) -> Floats:
        return reduce(lambda read, part: part.sense(read), self.parts, hand)

    @property
    def delay(self) -> int:
        return sum(part.delay for part in self.parts)

    @property
    def camera(self) -> CameraPose | None:
        return next((part.camera for part in self.parts if part.camera is not None), None)


KINDS = ("nominal", "actuation-bias", "encoder-offset", "gain", "camera-pose", "latency")
"""Names of the registry, as `parse_shift` reads them."""


def parse_shift(text: str) -> Shift:
    """The shift that a text names, see the module. UserError for an unknown name or numbers that do not fit."""
    parts = tuple(part for each in text.split("+") if (part := _parse_one(each, text)) is not NOMINAL)
    if len(parts) > 1:
        return Joined(parts)
    return parts[0] if parts else NOMINAL


def _parse_one(part: str, text: str) -> Shift:
    name, _, given = part.partition(":")
    if name not in KINDS:
        raise UserError(f"shift '{text}': no shift '{name}'; there are {', '.join(KINDS)}")
    try:
        numbers = [float(number) for number in given.split(",")] if given else []
    except ValueError as error:
        raise UserError(f"shift '{text}': '{given}' is not a list of numbers") from error
    sizes = {"nominal": (0,), "gain": (1,), "latency": (1,), "camera-pose": (3, 6)}.get(name, (3,))
    if len(numbers) not in sizes:
        raise UserError(f"shift '{text}': {name} takes {' or '.join(map(str, sizes))} numbers, not {len(numbers)}")
    match name:
        case "nominal":
            return NOMINAL
        case "actuation-bias":
            return ActuationBias(_vector(numbers))
        case "encoder-offset":
            return EncoderOffset(_vector(numbers))
        case "gain":
            return Gain(numbers[0])
        case "latency":
            if not numbers[0].is_integer():
                raise UserError(f"shift '{text}': latency is a whole number of steps")
            return Latency(int(numbers[0]))
        case _:
            return CameraPose(_vector(numbers[:3]), _vector(numbers[3:] or [0.0] * 3))


def _vector(numbers: Sequence[float]) -> Vector:
    x, y, z = numbers
    return x, y, z


OFFSETS = ActuationBias.kind, EncoderOffset.kind


def draw_offset(kind: str, least: float, most: float, seed: int) -> Shift:
    """A random actuation bias or encoder offset: a direction uniform on the sphere, a length in [least, most] metres.

    A function of its arguments alone. UserError for another kind, or lengths that no offset can have.
    """
    kinds = dict(zip(OFFSETS, (ActuationBias, EncoderOffset), strict=True))
    if kind not in kinds:
        raise UserError(f"no random shift '{kind}': there are {', '.join(kinds)}")
    if not 0 <= least <= most <= MAX_OFFSET:
        raise UserError(f"random {kind}: lengths [{least}, {most}] must rise within [0, {MAX_OFFSET}] m")
    rng = np.random.default_rng([KINDS.index(kind), seed])
    direction = rng.standard_normal(3)
    length = rng.uniform(least, most)
    x, y, z = (length * direction / np.linalg.norm(direction)).round(5).tolist()
    return kinds[kind]((x, y, z))
