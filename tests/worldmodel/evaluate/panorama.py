"""A world that is known exactly: a camera pans over a wide random picture. Models of it are exact, deaf or blurred.

One action, `pan`, in pixels per frame; the state's angle is the camera's position, so its body only turns.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from worldmodel import noise
from worldmodel.actions import ActionSpec
from worldmodel.chunk import ActionControl, Chunk
from worldmodel.evaluate.recordings import ArrayRecordings, Recording
from worldmodel.memory import WindowConfig
from worldmodel.models.pixel_tokenizer import PixelTokenizer, PixelTokenizerConfig
from worldmodel.models.world import StreamConfig, WorldModel
from worldmodel.pixels import to_float
from worldmodel.sampler import Euler
from worldmodel.state import State

SIDE, WIDTH, FASTEST = 32, 600, 3


def picture() -> np.ndarray:
    """The wide picture [SIDE, WIDTH, 3]: random blobs, no two columns alike."""
    coarse = np.random.default_rng(5).integers(0, 256, (SIDE // 4, WIDTH // 4, 3)).astype(np.float32)
    rows = np.repeat(np.repeat(coarse, 4, 0), 4, 1)
    smooth = sum(np.roll(np.roll(rows, i, 0), j, 1) for i in range(3) for j in range(3)) / 9
    return smooth.round().astype(np.uint8)


PICTURE = picture()


def view(position: int) -> np.ndarray:
    return PICTURE[:, position : position + SIDE]


def recordings(episodes: int = 6, frames: int = 60, seed: int = 0) -> ArrayRecordings:
    """A camera that keeps a speed for some frames and stays inside the picture."""
    rng, made = np.random.default_rng(seed), []
    for _ in range(episodes):
        position, speed, positions, actions = int(rng.integers(100, WIDTH - SIDE - 100)), 0, [], []
        for i in range(frames):
            if i % 4 == 0:
                speed = int(rng.integers(-FASTEST, FASTEST + 1))
            if not 0 <= position + speed <= WIDTH - SIDE:
                speed = -speed
            positions.append(position)
            actions.append([float(speed)])
            position += speed
        state = np.stack([np.zeros(frames), np.zeros(frames), np.array(positions, float)], 1)
        pixels = np.stack([view(p) for p in positions])
        made.append(Recording(pixels, np.array(actions, np.float32), state))
    return ArrayRecordings(tuple(made), ("pan",), ("x", "y", "angle"))


@dataclass(frozen=True)
class Position:
    """The memory of a model that knows the picture: where the last frame was taken."""

    last: Tensor  # [B]

    def select(self, rows: Tensor) -> "Position":
        return Position(self.last[rows])


class KnowingModel:
    """Generates exactly what would be seen. deaf: it pans at a fixed speed instead. jitter: grey levels of noise."""

    chunk, frame_shape = 4, (3, SIDE, SIDE)

    def __init__(self, deaf: bool = False, jitter: float = 0.0) -> None:
        self.deaf, self.jitter = deaf, jitter
        self.patch_in = torch.nn.Linear(1, 1)

    def empty_memory(self, config: Any, batch: int) -> Position:
        return Position(torch.full((batch,), -1))

    def prepare(self, control: ActionControl, state: State) -> Tensor:
        speed = (control.action[..., 0] * FASTEST * control.has_action).round().long()
        places = state.memory.last[:, None] + (torch.ones_like(speed) if self.deaf else speed).cumsum(1)
        seen = np.stack([[view(int(p)) for p in row.clamp(0, WIDTH - SIDE)] for row in places])
        frames = state.frame[:, None] + torch.arange(control.length)
        return to_float(seen) + self.jitter / 127.5 * noise.normal(state.seed, frames, 9, self.frame_shape)

    def velocity(self, x_t: Tensor, t: Tensor, seen: Tensor) -> Tensor:
        return (x_t - seen) / t[..., None, None, None]

    def remember(self, chunk: Chunk, state: State, time: float = 0.0) -> Position:
        return Position(torch.tensor([locate(frame) for frame in chunk.x[:, -1]]))


VIEWS = to_float(PICTURE).unfold(2, SIDE, 1).permute(2, 0, 1, 3).flatten(1)  # [positions, 3 * SIDE * SIDE]
SQUARES = VIEWS.square().sum(1) / 2


def locate(frame: Tensor) -> int:
    """Where a frame [3, SIDE, SIDE] was taken: the nearest view."""
    return int((VIEWS @ frame.flatten() - SQUARES).argmax())


def world(deaf: bool = False, jitter: float = 0.0) -> WorldModel:
    spec = ActionSpec(names=("pan",), low=(-float(FASTEST),), high=(float(FASTEST),))
    stream = StreamConfig(memory=WindowConfig(ring=8), sampler=Euler(steps=1))
    tokenizer = PixelTokenizer(PixelTokenizerConfig())
    model: Any = KnowingModel(deaf, jitter)
    return WorldModel(dit=model, tokenizer=tokenizer, actions=spec, fps=12.0, stream=stream)


def with_sampler(known: WorldModel, sampler: Any) -> WorldModel:
    return replace(known, stream=replace(known.stream, sampler=sampler))
