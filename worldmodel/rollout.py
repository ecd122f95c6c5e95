"""The rollout engine: one loop for generating video, swapping faces, imagining and acting.

    state = start(model, memory, seed=torch.tensor([7]), context=clip)
    for chunk, state in rollout(model, controller, sampler, state): ...

The controller is asked for the next control and sees the last chunk: a keyboard, a recorded clip, a driving camera, a
policy or the world itself. It ends the stream by returning None.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from .chunk import Chunk, Clip, Control
from .memory import MemoryConfig
from .sampler import Sampler, Streamable
from .state import State

C = TypeVar("C", bound=Control)
Controller = Callable[[Chunk | None], Any]


def start(
    model: Streamable, memory: MemoryConfig, seed: Tensor, context: Clip | None = None, context_time: float = 0.0
) -> State:
    """A state that remembers the context (a whole number of chunks), or nothing.

    seed: [B] int64, one per row. context_time: the flow time at which frames are written to memory.
    """
    batch, device = seed.shape[0], seed.device
    frame, active = torch.zeros_like(seed), torch.ones(batch, dtype=torch.bool, device=device)
    state = State(model.empty_memory(memory, batch), frame, seed, active)
    for chunk in () if context is None else context.chunks(model.chunk):
        state = advance(model, chunk, state, context_time)
    return state


def advance(model: Streamable, chunk: Chunk, state: State, context_time: float = 0.0) -> State:
    """The state after a finished chunk: it is remembered, and the active rows move on by the executed frames."""
    return state.advance(model.remember(chunk, state, context_time), chunk.x, chunk.executed)


def step[C: Control](
    model: Streamable, sample: Sampler, control: C, state: State, context_time: float = 0.0
) -> tuple[Chunk[C], State]:
    """Make one chunk under `control` ([B, K * (1 + lookahead)] frames of it) and move the state past it."""
    x, pending = sample(model, control, state)
    now = control.frames(0, x.shape[1])
    chunk = Chunk.whole(x, now, state.frame)
    return chunk, replace(advance(model, chunk, state, context_time), pending=pending)


def rollout(
    model: Streamable, controller: Controller, sample: Sampler, state: State, context_time: float = 0.0
) -> Iterator[tuple[Chunk, State]]:
    """Repeat `step` until the controller returns None; yields every chunk with the state after it."""
    chunk = None
    while (control := controller(chunk)) is not None:
        chunk, state = step(model, sample, control, state, context_time)
        yield chunk, state


def replay(control: Control, size: int, lookahead: int = 0) -> Controller:
    """A controller that plays back recorded controls of T frames, `size` at a time.

    With a lookahead of n chunks every answer also covers the n following ones; it ends when those run out.
    """
    last = control.length - size * (1 + lookahead)
    pieces = iter([control.frames(s, s + size * (1 + lookahead)) for s in range(0, last + 1, size)])
    return lambda _: next(pieces, None)


def join(chunks: Iterable[tuple[Chunk, State]]) -> Tensor:
    """The latents of a rollout, [B, T, C, H, W]. ValueError if its controls were too few for one chunk."""
    made = [chunk.x for chunk, _ in chunks]
    if not made:
        raise ValueError("the rollout made no chunk: its controls ended before the first one")
    return torch.cat(made, 1)
