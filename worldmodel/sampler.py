"""Samplers: frozen values that make one clean chunk from noise. They know nothing about streams.

A sampler is called with (model, control, state) and returns the chunk's latents [B, K, C, H, W] and what it has begun
and not finished. All noise is keyed by (row seed, absolute frame, draw), so that the same state gives the same chunk.
"""

import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from . import flow, noise
from .errors import UserError
from .memory import Memory, MemoryConfig
from .state import Pending, State

Velocity = Callable[[Tensor, Tensor], Tensor]
MOST_STEPS = 1000  # model calls per chunk: beyond that lies only waiting


class Streamable(Protocol):
    """What a model needs to be sampled and rolled out."""

    @property
    def chunk(self) -> int:
        """Frames K of one chunk."""
        ...

    @property
    def frame_shape(self) -> tuple[int, ...]:
        """Shape of one frame's latent, (C, H, W)."""
        ...

    def empty_memory(self, config: MemoryConfig, batch: int) -> Memory:
        """A memory of the policy `config` that holds nothing, for `batch` rows, on this model's device."""
        ...

    def prepare(self, control: Any, state: State) -> Any:
        """What does not change between sampler steps. The control may bring n B rows: n choices for each of the state's
        B rows, row i for state row i mod B."""
        ...

    def velocity(self, x_t: Tensor, t: Tensor, prepared: Any) -> Tensor:
        """The velocity [B, F, ...] of latents x_t [B, F, ...] at flow times t [B, F]."""
        ...

    def remember(self, chunk: Any, state: State, time: float = 0.0) -> Memory:
        """The state's memory after a finished chunk, whose keys and values are taken at the flow time `time`."""
        ...


class Sampler(Protocol):
    """One chunk per call."""

    @property
    def lookahead(self) -> int:
        """How many chunks beyond the present one the control must cover."""
        ...

    def __call__(self, model: Streamable, control: Any, state: State) -> tuple[Tensor, Pending | None]: ...


@dataclass(frozen=True, slots=True, eq=False)
class Draws:
    """Keyed noise of a chunk's frames, by number of the draw: the same state draws the same."""

    seed: Tensor  # [B] int64
    frame: Tensor  # [B, F] int64, absolute
    shape: tuple[int, ...]  # of a frame

    def __call__(self, step: int) -> Tensor:
        """[B, F, *shape]."""
        return noise.normal(self.seed, self.frame, step, self.shape)

    def renoise(self, x_t: Tensor, v: Tensor, t: Tensor, s: Tensor, step: int) -> Tensor:
        """From x_t at flow times t to the predicted data and back to flow times s, with draw number `step`."""
        return flow.renoise(x_t, v, t, s, self.seed, self.frame, step)


def draws(model: Streamable, state: State, frames: int) -> Draws:
    """The noise of the next `frames` frames of every row."""
    index = state.frame[:, None] + torch.arange(frames, device=state.frame.device)
    return Draws(state.seed, index, model.frame_shape)


def draw(model: Streamable, state: State, frames: int, step: int) -> Tensor:
    """Keyed noise [B, F, C, H, W] for the next `frames` frames of every row, draw number `step`."""
    return draws(model, state, frames)(step)


def guide(with_control: Tensor, without: Tensor, guidance: float) -> Tensor:
    """Classifier-free guidance of two velocities: v_u + g (v_c - v_u)."""
    return without + guidance * (with_control - without)


def guided(model: Streamable, control: Any, state: State, guidance: float) -> Velocity:
    """The velocity field of a chunk; with guidance g it is v_u + g (v_c - v_u) (Ho & Salimans, 2207.12598).

    The unconditional branch drops the control and reads the same memory. Both go through the model as one batch, which
    costs a small model on a CPU 1.5 times one call instead of twice.
    """
    if guidance == 1.0:
        conditional = model.prepare(control, state)
        return lambda x, t: model.velocity(x, t, conditional)
    rows = torch.arange(2 * control.batch, device=state.frame.device)
    both = model.prepare(control.select(rows % control.batch).drop(rows >= control.batch), state)

    def velocity(x: Tensor, t: Tensor) -> Tensor:
        with_control, without = model.velocity(torch.cat((x, x)), torch.cat((t, t)), both).chunk(2)
        return guide(with_control, without, guidance)

    return velocity


def _at(x: Tensor, t: float) -> Tensor:
    return torch.full(x.shape[:2], t, device=x.device)


def _check(sampler: "Euler | Heun | FewStep | Pipelined", steps: int) -> None:
    name = type(sampler).__name__
    if not 1 <= steps <= MOST_STEPS:
        raise UserError(f"{name}: steps must be in [1, {MOST_STEPS}], not {steps}")
    if not 0 < sampler.shift < math.inf:  # NaN too
        raise UserError(f"{name}: shift must be a finite number above 0, not {sampler.shift}")
    if not 0 <= sampler.guidance < math.inf:
        raise UserError(f"{name}: guidance must be a finite number of at least 0, not {sampler.guidance}")


class _PresentChunk:
    """Samplers that need no control beyond the present chunk."""

    @property
    def lookahead(self) -> int:
        return 0


class Solver(_PresentChunk, ABC):
    """A sampler that integrates one chunk's velocity field, so that training can look into its calls."""

    guidance: float

    @property
    @abstractmethod
    def calls(self) -> int:
        """How often one chunk evaluates its velocity field."""

    @abstractmethod
    def integrate(self, velocity: Velocity, draw: Draws) -> Tensor:
        """The chunk [B, K, ...] that the field leads to, from draw 0."""

    def __call__(self, model: Streamable, control: Any, state: State) -> tuple[Tensor, None]:
        velocity = guided(model, control, state, self.guidance)
        return self.integrate(velocity, draws(model, state, model.chunk)), None


@dataclass(frozen=True, kw_only=True)
class Euler(Solver):
    """Euler steps along a shifted schedule. steps: model calls per chunk; shift: see flow.shift; guidance: 1 is off."""

    steps: int = 4
    shift: float = 1.0
    guidance: float = 1.0

    def __post_init__(self) -> None:
        _check(self, self.steps)

    @property
    def calls(self) -> int:
        return self.steps

    def integrate(self, velocity: Velocity, draw: Draws) -> Tensor:
        x = draw(0)
        for t, s in itertools.pairwise(flow.times(self.steps, self.shift)):
            x = flow.euler(x, velocity(x, _at(x, t)), _at(x, t), _at(x, s))
        return x


@dataclass(frozen=True, kw_only=True)
class Heun(Solver):
    """Heun's second-order steps: two model calls each, the last step is plain Euler into t = 0."""

    steps: int = 4
    shift: float = 1.0
    guidance: float = 1.0

    def __post_init__(self) -> None:
        _check(self, self.steps)

    @property
    def calls(self) -> int:
        return 2 * self.steps - 1

    def integrate(self, velocity: Velocity, draw: Draws) -> Tensor:
        x = draw(0)
        for t, s in itertools.pairwise(flow.times(self.steps, self.shift)):
            v = velocity(x, _at(x, t))
            ahead = flow.euler(x, v, _at(x, t), _at(x, s))
            if s > 0:
                v = (v + velocity(ahead, _at(x, s))) / 2
                ahead = flow.euler(x, v, _at(x, t), _at(x, s))
            x = ahead
        return x


@dataclass(frozen=True, kw_only=True)
class FewStep(Solver):
    """Jump to the predicted data, add fresh noise at the next level, repeat (consistency-style few-step sampling)."""

    levels: tuple[float, ...] = (1.0, 0.75, 0.5, 0.25)
    shift: float = 1.0
    guidance: float = 1.0

    def __post_init__(self) -> None:
        falling = all(a > b for a, b in zip(self.levels[:-1], self.levels[1:], strict=True))
        if not self.levels or self.levels[0] != 1.0 or not falling or self.levels[-1] <= 0:
            raise UserError(f"FewStep: levels must fall from 1.0 and stay above 0, not {self.levels}")
        _check(self, len(self.levels))

    @property
    def calls(self) -> int:
        return len(self.levels)

    def integrate(self, velocity: Velocity, draw: Draws) -> Tensor:
        x = draw(0)
        times = [flow.shift(_at(x, level), self.shift) for level in self.levels]
        for i, (t, s) in enumerate(itertools.pairwise(times)):
            x = draw.renoise(x, velocity(x, t), t, s, i + 1)
        return flow.clean(x, velocity(x, times[-1]), times[-1])


@dataclass(frozen=True, kw_only=True)
class FirstChunks(_PresentChunk):
    """One sampler for a stream's first chunks, another one afterwards: a schedule that depends on the chunk."""

    first: Euler | Heun | FewStep
    chunks: int
    then: Euler | Heun | FewStep

    def __post_init__(self) -> None:
        if self.chunks < 0:
            raise UserError(f"FirstChunks: chunks must not be negative, not {self.chunks}")

    def __call__(self, model: Streamable, control: Any, state: State) -> tuple[Tensor, None]:
        early = state.frame < self.chunks * model.chunk
        if not early.any():
            return self.then(model, control, state)
        if early.all():
            return self.first(model, control, state)
        first, then = self.first(model, control, state)[0], self.then(model, control, state)[0]
        return torch.where(early.reshape(-1, *(1,) * (first.ndim - 1)), first, then), None


@dataclass(frozen=True, kw_only=True)
class Pipelined:
    """Several chunks in flight at staggered noise levels (Rolling Diffusion, 2402.09470; RollingForcing, 2509.25161).

    With `chunks` = n in flight and `steps` = n * m, every call advances all of them by m levels in joint passes and
    hands out the first, so that a chunk costs m passes over n chunks instead of n * m passes over one. Control must
    cover all n chunks (lookahead n - 1). A new row starts with a triangle of passes that brings its chunks to their
    levels.
    """

    chunks: int = 2
    steps: int = 4
    shift: float = 1.0
    guidance: float = 1.0

    def __post_init__(self) -> None:
        _check(self, self.steps)
        if self.chunks < 1 or self.steps % self.chunks:
            raise UserError(f"Pipelined: {self.steps} steps do not divide among {self.chunks} chunks in flight")

    @property
    def lookahead(self) -> int:
        return self.chunks - 1

    def __call__(self, model: Streamable, control: Any, state: State) -> tuple[Tensor, Pending]:
        velocity = guided(model, control, state, self.guidance)
        size, per_call = model.chunk, self.steps // self.chunks
        fresh = draws(model, state, size * self.chunks)(0)
        x, level = fresh.clone(), torch.zeros(self.chunks, dtype=torch.int64)  # steps already taken, per chunk
        if state.pending is None or not state.pending.ready.all():
            for _ in range(self.chunks - 1):  # the triangle: chunk j waits for chunk j - 1 to be one stage ahead
                level_next = level + per_call
                level_next[int((level > 0).sum()) + 1 :] = 0
                x, level = self._advance(velocity, x, level, level_next, size)
        else:
            level = torch.arange(self.chunks - 1, -1, -1) * per_call
        if state.pending is not None:
            ready = state.pending.ready.reshape(-1, *(1,) * (x.ndim - 1))
            x = torch.where(ready, torch.cat((state.pending.x, fresh[:, -size:]), 1), x)
            level = torch.arange(self.chunks - 1, -1, -1) * per_call
        x, level = self._advance(velocity, x, level, level + per_call, size)
        return x[:, :size], Pending(x[:, size:], torch.ones_like(state.active))

    def _advance(
        self, velocity: Velocity, x: Tensor, level: Tensor, target: Tensor, size: int
    ) -> tuple[Tensor, Tensor]:
        """All chunks from their levels to the target levels, one joint pass per level."""
        times = torch.tensor(flow.times(self.steps, self.shift), dtype=torch.float32)
        while bool((level < target).any()):
            ahead = torch.minimum(level + 1, target)
            t, s = (times[i].repeat_interleave(size).expand(x.shape[:2]).to(x.device) for i in (level, ahead))
            x, level = flow.euler(x, velocity(x, t), t, s), ahead
        return x, level


AnySampler = Euler | Heun | FewStep | FirstChunks | Pipelined


def with_steps(sampler: AnySampler, steps: int) -> AnySampler:
    """The same sampler with another number of model calls per chunk, where it has one."""
    if isinstance(sampler, Euler | Heun | Pipelined):
        return replace(sampler, steps=steps)
    raise UserError(f"{type(sampler).__name__}: its number of steps is part of its schedule, set that instead")
