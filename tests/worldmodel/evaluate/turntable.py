"""Rooms seen from their middle, and models of them that forget a view for good after a known number of frames.

One action, `turn`, in degrees per frame, a multiple of 30; the state is the room's place and the angle.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from worldmodel.actions import ActionSpec
from worldmodel.chunk import ActionControl, Chunk
from worldmodel.evaluate.recordings import ArrayRecordings, Recording
from worldmodel.memory import WindowConfig
from worldmodel.models.dit import DiTConfig
from worldmodel.models.pixel_tokenizer import PixelTokenizer, PixelTokenizerConfig
from worldmodel.models.world import StreamConfig, WorldModel
from worldmodel.pixels import to_float
from worldmodel.sampler import Euler
from worldmodel.state import State

ROOMS, STEP, SIDE = 6, 30, 16
PLACES = 360 // STEP
AROUND = 5  # frames on the way out of sight and back: a view was last drawn so many frames more than its horizon ago
HOLD, LEAD = 5, 8


def _views() -> np.ndarray:
    """Pictures [ROOMS, PLACES, SIDE, SIDE, 3] with nothing in common."""
    coarse = np.random.default_rng(3).integers(0, 256, (ROOMS, PLACES, 4, 4, 3))
    return coarse.repeat(SIDE // 4, 2).repeat(SIDE // 4, 3).astype(np.uint8)


VIEWS = _views()
FLAT = to_float(VIEWS).flatten(2).flatten(0, 1)


def path(horizons: list[int], start: int = 0) -> np.ndarray:
    """Angles frame by frame: some turning, then a visit for each horizon, each of another direction."""
    angles = [start + STEP * k for k in range(LEAD)]
    for horizon in horizons:
        at = angles[-1] + STEP
        out = [at + STEP, at + 2 * STEP]
        away = [at + 90 + STEP * min(k, horizon - 1 - k, 5) for k in range(horizon)]
        angles += [*[at] * HOLD, *out, *away, *reversed(out), *[at] * HOLD]
    return np.array(angles) % 360


def apart(angle: float, other: float) -> float:
    """Degrees between two directions."""
    return abs((angle - other + 180) % 360 - 180)


def recordings(horizons: list[int], episodes: int = ROOMS) -> ArrayRecordings:
    """An episode per room, each with a visit of each horizon."""
    made = []
    for episode in range(episodes):
        angles = path(horizons, STEP * episode)
        turn = np.diff(angles, append=angles[-1])
        turn = (turn + 180) % 360 - 180
        state = np.stack([np.full(len(angles), 10.0 * episode), np.zeros(len(angles)), angles], 1)
        pixels = VIEWS[episode % ROOMS, angles // STEP]
        made.append(Recording(pixels, turn[:, None].astype(np.float32), state.astype(np.float32)))
    return ArrayRecordings(tuple(made), ("turn",), ("x", "y", "angle"))


@dataclass(frozen=True)
class Seen:
    """room, place [B]: of the newest frame (-1: none yet); last [B, PLACES]: the frame that showed each view right."""

    room: Tensor
    place: Tensor
    last: Tensor

    @property
    def nbytes(self) -> int:
        return self.last.numel() * 8

    def select(self, rows: Tensor) -> "Seen":
        return Seen(self.room[rows], self.place[rows], self.last[rows])


class Recalling(torch.nn.Module):
    """Draws a view right if it last did so, or saw it, at most `span` frames ago; else that of another room.

    drifts: not even then if the frame before was wrong.
    """

    chunk, frame_shape = 1, (3, SIDE, SIDE)
    cfg = DiTConfig(channels=3, size=(SIDE, SIDE), chunk=1, actions=1)

    def __init__(self, span: float, drifts: bool = False) -> None:
        super().__init__()
        self.span, self.drifts, self.patch_in = span, drifts, torch.nn.Linear(1, 1)
        torch.nn.init.constant_(self.patch_in.weight, span if span < 1e6 else -1)
        torch.nn.init.constant_(self.patch_in.bias, 0)

    def empty_memory(self, config: Any, batch: int) -> Seen:
        nothing = torch.full((batch,), -1)
        return Seen(nothing, nothing, torch.full((batch, PLACES), -(10**9)))

    def prepare(self, control: ActionControl, state: State) -> Tensor:
        turn = (control.action[:, :1, 0] * 180 / STEP).round().long()
        place = (state.memory.place[:, None] + turn) % PLACES
        known = state.frame[:, None] - state.memory.last.gather(1, place) <= self.span
        if self.drifts:
            known &= state.memory.last.gather(1, state.memory.place[:, None]) == state.frame[:, None] - 1
        room = state.memory.room[:, None]
        wrong = (room + 1 + (place + state.frame[:, None]) % (ROOMS - 1)) % ROOMS
        return to_float(VIEWS[torch.where(known, room, wrong).numpy(), place.numpy()])

    def velocity(self, x_t: Tensor, t: Tensor, seen: Tensor) -> Tensor:
        return (x_t - seen) / t[..., None, None, None]

    def remember(self, chunk: Chunk, state: State, time: float = 0.0) -> Seen:
        found = torch.cdist(chunk.x[:, 0].flatten(1), FLAT).argmin(1)
        room, place = found // PLACES, found % PLACES
        memory: Any = state.memory
        own = torch.where(memory.room < 0, room, memory.room)
        last = memory.last.clone()
        right = (room == own).nonzero()[:, 0]
        last[right, place[right]] = state.frame[right]
        return Seen(own, place, last)


def world(span: float = 1e9, drifts: bool = False) -> WorldModel:
    spec = ActionSpec(names=("turn",), low=(-180.0,), high=(180.0,))
    stream = StreamConfig(memory=WindowConfig(ring=8), sampler=Euler(steps=1))
    model: Any = Recalling(span, drifts)
    return WorldModel(
        dit=model, tokenizer=PixelTokenizer(PixelTokenizerConfig()), actions=spec, fps=12.0, stream=stream
    )
