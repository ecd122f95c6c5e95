"""What a person has pressed, turned into the actions of the next chunk."""

import threading
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from worldmodel.actions import ActionSpec

from .bindings import rest
from .protocol import ProtocolError


@dataclass(frozen=True, slots=True)
class _Pressed:
    seq: int
    values: NDArray[np.float32]  # [D], environment units
    since: float  # seconds


class InputTimeline:
    """What was held, when. Any thread may write, the engine's thread takes.

    A chunk gets what is held at the moment when it is started. An action that left its rest and came back to it
    between two chunks would be lost, so it counts for as many frames of the next chunk as it was held, and for one at
    least.
    """

    def __init__(self, spec: ActionSpec | None, frames: int, period: float) -> None:
        """frames: latent frames K of a chunk. period: seconds of video in a chunk."""
        self._names = spec.names if spec else ()
        bounds = zip(spec.low, spec.high, strict=True) if spec else ()
        self._rest = np.array([rest(low, high) for low, high in bounds], np.float32)
        self._frames, self._period = frames, period
        self._lock = threading.Lock()
        self._held = _Pressed(0, self._rest, 0.0)
        self._past: list[_Pressed] = []  # what was held since the last take, before `_held`
        self._taken = self._rest  # what was held at the last take

    @property
    def newest(self) -> int:
        """Number of the newest input, 0 before there is one."""
        return self._held.seq

    @property
    def pressed(self) -> bool:
        """Whether anything is held that is not at rest."""
        return not np.array_equal(self._held.values, self._rest)

    def put(self, seq: int, action: Mapping[str, float], now: float) -> None:
        """From `now` on these values are held; actions that are not named rest. Raises ProtocolError."""
        for name in action:
            if name not in self._names:
                raise ProtocolError(f"message input: this world has no action '{name}', only {list(self._names)}")
        values = self._rest.copy()
        for i, name in enumerate(self._names):
            values[i] = action.get(name, values[i])
        with self._lock:
            if seq <= self._held.seq:
                raise ProtocolError(f"message input: seq {seq} after {self._held.seq}, it must grow")
            self._past = [*self._past, self._held][-64:]
            self._held = _Pressed(seq, values, now)

    def release(self) -> None:
        """Everything at rest, nothing in between: whoever held it is gone."""
        with self._lock:
            self._held = _Pressed(self._held.seq, self._rest, self._held.since)
            self._past, self._taken = [], self._rest

    def take(self, now: float) -> tuple[int, NDArray[np.float32]]:
        """The newest seq and the actions [K, D] of a chunk that is started now."""
        with self._lock:
            past, held, taken = self._past, self._held, self._taken
            self._past, self._taken = [], held.values
        action = np.repeat(held.values[None], self._frames, 0)
        ends = [pressed.since for pressed in past[1:]] + [held.since]
        resting = (held.values == self._rest) & (taken == self._rest)
        for pressed, end in zip(past, ends, strict=False):  # without a past there is one end too many
            tapped = resting & (pressed.values != self._rest)
            frames = round((end - pressed.since) / self._period * self._frames)
            action[: max(1, min(frames, self._frames)), tapped] = pressed.values[tapped]
        return held.seq, action
