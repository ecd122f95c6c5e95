"""Streams under the clock: the parts that `evaluate latency` times.

Letters: C H W latent channels, height and width, K latent frames of a chunk, A packed action size.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from worldmodel import noise
from worldmodel.chunk import ActionControl, Chunk
from worldmodel.clock import clock
from worldmodel.memory import Memory, MemoryConfig, WindowConfig
from worldmodel.models.dit import DiT
from worldmodel.models.tokenizer import DecodeState
from worldmodel.models.world import WorldModel
from worldmodel.pixels import to_uint8
from worldmodel.rollout import advance, start, step
from worldmodel.state import State

ACTIONS = 1  # the noise draw that serves as actions


@dataclass(frozen=True, slots=True)
class Timed:
    """Seconds that one chunk took in the model (sampler steps and the pass that writes memory) and in the decoder."""

    model: float
    decode: float

    @property
    def total(self) -> float:
        return self.model + self.decode


def controls(world: WorldModel, seed: Tensor, frame: Tensor, frames: int) -> ActionControl:
    """Random actions of `frames` latent frames from absolute frames `frame` [1] on, the same for the same place."""
    size = world.dit.cfg.actions
    index = frame[:, None] + torch.arange(frames, device=frame.device)
    action = noise.normal(seed, index, ACTIONS, (size,)).clamp(-1, 1)
    return ActionControl(action, torch.full(index.shape, size > 0, device=frame.device))


class Stream:
    """One stream, timed chunk by chunk. It owns the newest state; `copy` makes another one from the same place."""

    def __init__(self, world: WorldModel, memory: MemoryConfig, seed: int) -> None:
        self.world, self.sampler = world, world.stream.sampler
        self.state = start(world.dit, memory, torch.tensor([seed], device=world.device))
        self.decoder: DecodeState | None = None

    def copy(self) -> "Stream":
        """A stream that goes on from here by itself."""
        other = object.__new__(Stream)
        other.world, other.sampler, other.decoder = self.world, self.sampler, self.decoder
        other.state = self.state.select(torch.zeros(1, dtype=torch.int64, device=self.world.device))
        return other

    def next(self) -> Timed:
        """Make one chunk and decode it to pictures."""
        world, device = self.world, self.world.device
        frames = world.dit.chunk * (1 + self.sampler.lookahead)
        control = controls(world, self.state.seed, self.state.frame, frames)
        begin = clock(device)
        chunk, self.state = step(world.dit, self.sampler, control, self.state, world.stream.context_time)
        made = clock(device)
        pixels, self.decoder = world.tokenizer.decode_stream(chunk.x, self.decoder)
        to_uint8(pixels)
        return Timed(made - begin, clock(device) - made)


class Counting:
    """A model that counts its velocity calls and remembers how many rows and frames each one had."""

    def __init__(self, model: DiT) -> None:
        self.model, self.calls = model, list[tuple[int, int]]()
        self.chunk, self.frame_shape = model.chunk, model.frame_shape

    def empty_memory(self, config: MemoryConfig, batch: int) -> Memory:
        return self.model.empty_memory(config, batch)

    def prepare(self, control: ActionControl, state: State) -> Any:
        return self.model.prepare(control, state)

    def velocity(self, x_t: Tensor, t: Tensor, prepared: Any) -> Tensor:
        self.calls.append((x_t.shape[0], x_t.shape[1]))
        return self.model.velocity(x_t, t, prepared)

    def remember(self, chunk: Chunk, state: State, time: float = 0.0) -> Any:
        return self.model.remember(chunk, state, time)


@dataclass(frozen=True, slots=True)
class Recompute:
    """A chunk made without a memory: every model call forwards the whole context again.

    calls: model calls per chunk, the same as with the memory. once: one such forward, with as many rows R as the
    sampler's calls have (two with guidance); its result is the velocity [R, F, C, H, W] of the frames in flight.
    difference: how far that is from the velocity with the memory (relative).
    """

    calls: int
    once: Callable[[], Tensor]
    difference: float


def cached_and_recompute(world: WorldModel, chunks: int, seed: int) -> tuple[Stream, Recompute]:
    """A stream whose window memory holds exactly `chunks` chunks, and the same without a memory."""
    model, device, size = world.dit, world.device, world.dit.chunk
    stream = Stream(world, WindowConfig(sink=0, ring=chunks * size), seed)
    row, frames = stream.state.seed, torch.arange(chunks * size, device=device)[None]
    past = noise.normal(row, frames, 0, model.frame_shape)
    past_control = controls(world, row, torch.zeros_like(row), chunks * size)
    for c in range(chunks):
        part = slice(c * size, (c + 1) * size)
        chunk = Chunk.whole(past[:, part], past_control.frames(part.start, part.stop), stream.state.frame)
        stream.state = advance(model, chunk, stream.state, world.stream.context_time)

    counting, lookahead = Counting(model), size * (1 + world.stream.sampler.lookahead)
    control = controls(world, row, stream.state.frame, lookahead)
    world.stream.sampler(counting, control, stream.state)  # once, to see what it calls
    rows, ahead = max(counting.calls)
    control = control.frames(0, ahead)
    x_t = noise.normal(row, stream.state.frame[:, None] + torch.arange(ahead, device=device), 0, model.frame_shape)
    t = torch.full((1, ahead), 0.7, device=device)
    everything = torch.cat((past, x_t), 1).repeat(rows, 1, 1, 1, 1)
    times = torch.cat((torch.full(past.shape[:2], world.stream.context_time, device=device), t), 1).repeat(rows, 1)
    both = ActionControl(
        torch.cat((past_control.action, control.action), 1),
        torch.cat((past_control.has_action, control.has_action), 1),
    ).select(torch.zeros(rows, dtype=torch.int64, device=device))

    def once() -> Tensor:
        return model.clip(everything, times, both)[:, -ahead:]

    cached = model.velocity(x_t, t, model.prepare(control, stream.state))
    gap = (once() - cached).abs().max() / cached.abs().max().clamp_min(1)
    return stream, Recompute(len(counting.calls), once, float(gap))
