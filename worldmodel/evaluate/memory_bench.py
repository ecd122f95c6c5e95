"""What a chunk costs with every memory policy at equal bytes, against how long the stream already is.

Weights do not matter for that. Two copies of a model are timed: without fast weights for the memories that hold keys
and values, with fast weights for lact. Where the model has none, random ones of the size that the budget allows are
added.

Letters: n frames of context, K frames of a chunk.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from worldmodel import noise
from worldmodel.chunk import Chunk
from worldmodel.clock import clock
from worldmodel.errors import UserError
from worldmodel.evaluate.streams import cached_and_recompute, controls
from worldmodel.memory import FullConfig, MemoryConfig
from worldmodel.memory.budget import OF_FRAMES, budget_of, fast_within, within
from worldmodel.models.dit import DiT, DiTConfig
from worldmodel.models.fast_layer import FastConfig
from worldmodel.models.pixel_tokenizer import PixelTokenizer, PixelTokenizerConfig
from worldmodel.models.world import LONGEST, StreamConfig, WorldModel
from worldmodel.progress import progress_bar
from worldmodel.rollout import advance, start, step
from worldmodel.sampler import Euler
from worldmodel.state import State

FULL, RECOMPUTE = "full", "recompute"
LENGTHS = (8, 16, 32, 64, 128, 256, 512)


@dataclass(frozen=True, kw_only=True)
class CostSettings:
    """budget: frames of keys and values whose bytes a memory may have. lengths: of the context in frames; None for 8 to
    512, rounded up to whole chunks. rounds: how often everything is timed.
    """

    budget: int = 24
    lengths: tuple[int, ...] | None = None
    rounds: int = 50
    seed: int = 0

    def lengths_of(self, chunk: int) -> tuple[int, ...]:
        """In order. UserError if a length is no whole number of chunks, or there are none."""
        if self.lengths is None:
            return tuple(sorted({-(-n // chunk) * chunk for n in LENGTHS}))
        for n in self.lengths:
            if not 1 <= n <= LONGEST or n % chunk:
                raise UserError(f"--lengths must be multiples of the chunk of {chunk}, up to {LONGEST}, not {n}")
        if not self.lengths:
            raise UserError("--lengths takes one number or more")
        return tuple(sorted(set(self.lengths)))


@dataclass(frozen=True, slots=True)
class Arm:
    """A policy and the model that it is timed with."""

    world: WorldModel
    memory: MemoryConfig


@dataclass(frozen=True, slots=True)
class Costs:
    """What was found. seconds [rounds, n] and bytes [n] of every policy, the recomputed one included."""

    lengths: tuple[int, ...]
    budget: int  # bytes
    arms: dict[str, Arm]
    seconds: dict[str, NDArray[np.float64]]
    bytes: dict[str, tuple[int, ...]]
    difference: float  # of the velocities with full memory's keys and without any, relative, the largest
    calls: int  # model calls of the sampler for a chunk
    added: bool  # whether random fast weights were added to the model


def random_world(
    size: tuple[int, int], chunk: int, width: int, depth: int, heads: int, device: str = "cpu"
) -> WorldModel:
    """A DiT with random weights, four times as wide inside its MLPs: as good as any where only cost matters.

    size: (H, W) of the latent; a token is 2 x 2 of it. UserErrors as those of DiTConfig.
    """
    cfg = DiTConfig(channels=3, size=size, chunk=chunk, dim=width, depth=depth, heads=heads, hidden=4 * width)
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(0)
        dit = cfg.build().eval().requires_grad_(False)
        for parameter in dit.parameters():  # some begin at zero, and with them every velocity
            parameter.add_(torch.randn_like(parameter), alpha=0.05)
    tokenizer = PixelTokenizer(PixelTokenizerConfig())
    stream = StreamConfig(sampler=Euler(steps=4))
    return WorldModel(dit=dit.to(device), tokenizer=tokenizer, actions=None, fps=10.0, stream=stream)


def arms_of(world: WorldModel, frames: int) -> tuple[dict[str, Arm], int, bool]:
    """Every policy within the bytes of `frames` frames, full memory beside them; those bytes; whether fast weights were
    added. UserError if they are too few for one chunk.
    """
    cfg, dtype = world.dit.cfg, world.dit.patch_in.weight.dtype
    geometry, fast = replace(cfg.geometry, fast=None), cfg.fast
    budget = budget_of(frames, geometry, cfg.chunk, dtype)
    if fast is None:
        fast = FastConfig(groups=fast_within(budget, geometry, cfg.chunk, dtype=dtype).groups)
    plain, quick = (replace(world, dit=_with_fast(world.dit, choice)) for choice in (None, fast))
    arms = {policy: Arm(plain, within(policy, budget, geometry, cfg.chunk, dtype)) for policy in OF_FRAMES}
    arms["lact"] = Arm(quick, within("lact", budget, quick.dit.cfg.geometry, cfg.chunk, dtype))
    arms[FULL] = Arm(plain, FullConfig())
    return arms, budget, cfg.fast is None


def measure(world: WorldModel, settings: CostSettings, quiet: bool = False) -> Costs:
    """Time a chunk, sampled and remembered, of every policy after every length.

    A round times everything once, in another random order, so that a machine that gets faster or slower, and what is
    left in its caches, meets all alike. Each time the stream has exactly n frames behind it: it goes on in a copy, made
    before the clock starts.
    """
    arms, budget, added = arms_of(world, settings.budget)
    lengths, names = settings.lengths_of(world.dit.chunk), (*arms, RECOMPUTE)
    seconds = {name: np.zeros((settings.rounds, len(lengths))) for name in names}
    bytes_held, difference, calls = dict[str, tuple[int, ...]](), 0.0, 0
    timed = dict[tuple[str, int], Callable[[], float]]()
    with torch.no_grad():
        with progress_bar("fill memories", len(names), unit="memories", shown=not quiet) as progress:
            for name, arm in arms.items():
                states = _filled(arm, lengths, settings.seed)
                bytes_held[name] = tuple(state.memory.nbytes for state in states)
                timed |= {(name, i): _chunk(arm.world, state) for i, state in enumerate(states)}
                progress(1)
            for i, n in enumerate(lengths):
                _, recompute = cached_and_recompute(arms[FULL].world, n // world.dit.chunk, settings.seed)
                timed[RECOMPUTE, i] = _forward(world.device, recompute.once)
                difference, calls = max(difference, recompute.difference), recompute.calls
            bytes_held[RECOMPUTE] = tuple(4 * n * int(np.prod(world.dit.frame_shape)) for n in lengths)  # latents, fp32
            progress(1)
        order, rng = list(timed), np.random.default_rng(settings.seed)
        for key in order:
            timed[key]()  # once for whatever happens only the first time
        with progress_bar("all in turn", settings.rounds, unit="rounds", shown=not quiet) as progress:
            for r in range(settings.rounds):
                for place in rng.permutation(len(order)):
                    name, i = order[place]
                    seconds[name][r, i] = timed[name, i]() * (calls if name == RECOMPUTE else 1)
                progress(1)
    return Costs(lengths, budget, arms, seconds, bytes_held, difference, calls, added)


def _with_fast(dit: DiT, fast: FastConfig | None) -> DiT:
    """The model with these fast weights, random where it has none of them; the model itself if it has."""
    if dit.cfg.fast == fast:
        return dit
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(0)
        made = replace(dit.cfg, fast=fast).build()
    differing = made.load_state_dict(dit.state_dict(), strict=False)
    assert all(".fast." in name for name in (*differing.missing_keys, *differing.unexpected_keys))
    return made.to(dit.patch_in.weight).eval().requires_grad_(False)


def _filled(arm: Arm, lengths: tuple[int, ...], seed: int) -> list[State]:
    """States of one stream after so many frames each: random latents, and a chunk by the sampler before each length,
    which leaves behind whatever the sampler has begun."""
    world, found, size = arm.world, list[State](), arm.world.dit.chunk
    state = start(world.dit, arm.memory, torch.tensor([seed], device=world.device))
    for c in range(lengths[-1] // size):
        frames = size * (1 + world.stream.sampler.lookahead)
        control = controls(world, state.seed, state.frame, frames)
        if (c + 1) * size in lengths:
            _, state = step(world.dit, world.stream.sampler, control, state, world.stream.context_time)
            found.append(state)
            state = _copy(state)
        else:
            index = state.frame[:, None] + torch.arange(size, device=world.device)
            x = noise.normal(state.seed, index, 0, world.dit.frame_shape)
            chunk = Chunk.whole(x, control.frames(0, size), state.frame)
            state = replace(advance(world.dit, chunk, state, world.stream.context_time), pending=None)
    return found


def _chunk(world: WorldModel, state: State) -> Callable[[], float]:
    """Seconds of the chunk after a state, which stays as it is."""
    sampler = world.stream.sampler
    control = controls(world, state.seed, state.frame, world.dit.chunk * (1 + sampler.lookahead))

    def timed() -> float:
        now = _copy(state)
        begin = clock(world.device)
        step(world.dit, sampler, control, now, world.stream.context_time)
        return clock(world.device) - begin

    return timed


def _forward(device: torch.device, once: Callable[[], Tensor]) -> Callable[[], float]:
    def timed() -> float:
        begin = clock(device)
        once()
        return clock(device) - begin

    return timed


def _copy(state: State) -> State:
    return state.select(torch.arange(state.batch, device=state.frame.device))
