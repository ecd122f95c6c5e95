"""How many bytes and operations a step of an objective that rolls its model out takes, beside those of footprint.py.

A rollout is counted chunk by chunk as the engine makes it: the sampler's calls, then the pass that writes the memory.
Passes without gradient keep nothing; what a second pass keeps is one chunk's.

Letters: b rows of a micro-batch, K frames of a chunk, N samples of a population, D features.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from worldmodel.errors import UserError
from worldmodel.footprint import NOTHING, Operations, Precision, Shapes, activations, operations
from worldmodel.frechet.features import LatentStatistics
from worldmodel.frechet.population import Queue
from worldmodel.frozen_footprint import look
from worldmodel.memory.budget import bytes_of, frame_bytes
from worldmodel.models.dit import DiT
from worldmodel.models.world import StreamConfig
from worldmodel.objectives.frechet_forcing import FrechetForcing
from worldmodel.objectives.hero import Hero
from worldmodel.objectives.own_rollouts import OwnRollouts
from worldmodel.objectives.pushforward import Pushforward
from worldmodel.objectives.self_forcing import SelfForcing
from worldmodel.sampler import Solver

EIGENVALUES = 11  # operations of a symmetric D x D problem over D^3: with its vectors, and their backward pass
DOUBLE = 2  # what an operation in fp64 costs in units of one in fp32

Rolling = FrechetForcing | SelfForcing | Hero | Pushforward


@dataclass(frozen=True, slots=True)
class RolloutStep:
    """One micro-batch's share of a step, the mean over steps where they differ."""

    operations: Operations
    activations: int  # bytes at the peak, memories of the rollouts included
    chunks: float  # that rollouts make in a step
    frozen: int = 0  # bytes of networks without gradient: teacher, lagged weights, decoders, encoders
    host: int = 0  # bytes of populations and references, which stay in the host's memory
    critics: int = 0  # further models of the same shape in training


@dataclass(frozen=True, slots=True)
class Rolled:
    """A model and how it is rolled out."""

    model: DiT  # on the meta device
    rows: int
    text: int
    precision: Precision
    checkpointing: bool
    stream: StreamConfig

    @property
    def solver(self) -> Solver:
        if not isinstance(self.stream.sampler, Solver):
            raise UserError(f"training through a rollout needs Euler, Heun or FewStep, not {self.stream.sampler}")
        return self.stream.sampler

    @property
    def guided(self) -> int:
        """How many rows of the model a row of a rollout takes."""
        return 1 if self.solver.guidance == 1.0 else 2

    def chunk_shapes(self, place: int, copies: int = 1, written: bool = False) -> Shapes:
        """Of a pass over chunk number `place` of a stream. written: the one that writes it to the memory."""
        size, capacity = self.model.chunk, self.stream.memory.capacity
        past = place * size if capacity is None else capacity
        rows = self.rows * copies
        return Shapes(rows, size, None, size, self.text, self.precision, past=past, written=written)

    def remember(self, place: int) -> Operations:
        """The pass that writes a chunk to the memory."""
        return operations(self.model, self.chunk_shapes(place, written=True), self.checkpointing)

    def sample(self, place: int, calls: int) -> Operations:
        """Calls of the sampler for a chunk."""
        return operations(self.model, self.chunk_shapes(place, self.guided), self.checkpointing, calls)

    def begin(self, prefix: int) -> Operations:
        return sum((self.remember(place) for place in range(prefix)), NOTHING)

    def rollout(self, prefix: int, chunks: int, calls: float) -> Operations:
        """A prefix, and chunks after it with a mean number of calls each."""
        return self.begin(prefix) + self.make(prefix, chunks, calls)

    def make(self, first: int, chunks: int, calls: float) -> Operations:
        """Chunks from number `first` on, with a mean number of calls each."""
        found, low = NOTHING, int(calls)
        for place in range(first, first + chunks):
            few = self.sample(place, low)
            more = few if calls == low else self.sample(place, low + 1)
            found += few.times(1 + low - calls) + more.times(calls - low) + self.remember(place)
        return found

    def clip_shapes(self, prefix: int, chunks: int, copies: int = 1) -> Shapes:
        """Of a pass over all chunks of a rollout at once, the clean ones before each as its history."""
        size = self.model.chunk
        total = (prefix + chunks) * size
        made, memory = chunks * size, self.stream.memory
        return Shapes(self.rows * copies, total, total - size, made, self.text, self.precision, memory)

    def clip(self, prefix: int, chunks: int, copies: int = 1) -> Operations:
        return operations(self.model, self.clip_shapes(prefix, chunks, copies), self.checkpointing)

    def peak(self, shapes: Shapes, passes: int = 1) -> int:
        """Bytes of the graph of equal passes during their backward pass."""
        kept, depth = activations(self.model, shapes), self.model.cfg.depth
        return (passes - 1) * kept.held(depth, self.checkpointing) + kept.peak(depth, self.checkpointing)

    def memory(self, frames: int) -> int:
        """Bytes that a rollout of so many frames remembers at its end."""
        config, kind = self.stream.memory, next(self.model.parameters()).dtype
        geometry = self.model.cfg.geometry
        if config.capacity is None:
            return self.rows * frames * frame_bytes(geometry, kind)
        return self.rows * bytes_of(config, geometry, kind)


def rollout_step(rolled: Rolled, objective: Rolling, frames: int, micro: int, tokenizer: Path | None) -> RolloutStep:
    """frames: of a clip. micro: micro-batches of a step. tokenizer: folder of the one whose decoder the terms need."""
    match objective:
        case FrechetForcing():
            return _frechet(rolled, objective, micro, tokenizer)
        case SelfForcing():
            return _self_forcing(rolled, objective, micro)
        case Hero():
            return _hero(rolled, objective, frames)
        case Pushforward():
            return _pushforward(rolled, objective, frames)


def _led(cfg: OwnRollouts, of: Callable[[int], Operations]) -> Operations:
    """The mean over the leads that may be drawn; of: what comes after so many chunks."""
    return sum((of(cfg.prefix + lead).times(1 / (cfg.lead + 1)) for lead in range(cfg.lead + 1)), NOTHING)


def _first(rolled: Rolled, cfg: OwnRollouts) -> Operations:
    """The pass that rolls out, without gradient."""
    calls = rolled.solver.calls
    mean = (calls + 1) / 2 if cfg.gradients.policy == "exit_step" else calls  # the others skip none

    def after(begin: int) -> Operations:
        return rolled.rollout(cfg.prefix, begin - cfg.prefix, calls) + rolled.make(begin, longest(cfg), mean)

    return _led(cfg, after).without_gradient


def _again(rolled: Rolled, cfg: OwnRollouts) -> tuple[Operations, int]:
    """The pass with gradient, and the bytes of its graph."""
    last, chunks = cfg.prefix + cfg.lead, longest(cfg)
    if cfg.gradients.memory == "replay":
        shapes = rolled.clip_shapes(last, chunks, rolled.guided)
        return _led(cfg, lambda begin: rolled.clip(begin, chunks, rolled.guided)), rolled.peak(shapes)
    chosen = len(cfg.gradients.calls(rolled.solver.calls, 0.0))

    def after(begin: int) -> Operations:
        found = rolled.begin(begin).without_gradient
        for place in range(begin, begin + chunks):
            found += rolled.sample(place, chosen) + rolled.remember(place).without_gradient
        return found

    return _led(cfg, after), rolled.peak(rolled.chunk_shapes(last + chunks - 1, rolled.guided), chosen)


def longest(cfg: OwnRollouts) -> int:
    """Chunks of the schedule's longest rollouts, which an estimate is of."""
    return max(chunks for _, chunks in cfg.lengths)


def _frechet(rolled: Rolled, cfg: FrechetForcing, micro: int, tokenizer: Path | None) -> RolloutStep:
    before, chunks = cfg.rollouts.prefix + cfg.rollouts.lead, longest(cfg.rollouts)
    size, latent = rolled.model.chunk, rolled.model.cfg
    remembered = rolled.memory((before + chunks + cfg.last) * size)  # of one micro-batch; all are rolled out first
    found, graphs, frozen, host = _first(rolled, cfg.rollouts), [0], 0, 0
    if cfg.context or (cfg.reality and cfg.encoders):
        again, graph = _again(rolled, cfg.rollouts)
        found, graphs = found + again, [*graphs, graph + remembered]
    dimensions: list[tuple[int, int]] = []  # features, and samples of a micro-batch
    if cfg.context:
        statistics = LatentStatistics(
            channels=latent.channels, height=latent.size[0], width=latent.size[1], patches=cfg.patches
        )
        dimensions.append((statistics.source.dimension, rolled.rows * chunks * size))
    if _encoders(cfg) and tokenizer is None:
        raise UserError("estimate: a Frechet distance of decoded frames needs the tokenizer's folder")
    looks = [look(choice, tokenizer, latent, chunks * size, cfg.stride) for choice in _encoders(cfg) if tokenizer]
    for one in looks:
        found += one.operations.times(rolled.rows)
        frozen += one.weights
        dimensions.append((one.dimension, rolled.rows * one.pictures))
    if looks:  # all distances are scored together
        graphs.append(rolled.rows * (sum(one.graph for one in looks) + max(one.gradient for one in looks)))
    for dimension, samples in dimensions:
        population = cfg.population.capacity if isinstance(cfg.population, Queue) else samples
        found += _distance(cfg, dimension, population)
        host += _population(cfg, dimension)
    if cfg.anchor:

        def anchored(begin: int) -> Operations:
            place = begin + chunks + cfg.last
            reals = sum((rolled.remember(place - 1 - n).without_gradient for n in range(cfg.last)), NOTHING)
            return reals + operations(rolled.model, rolled.chunk_shapes(place), rolled.checkpointing)

        found += _led(cfg.rollouts, anchored)
        graphs.append(rolled.peak(rolled.chunk_shapes(before + chunks + cfg.last)))
    made = cfg.rollouts.lead / 2 + chunks
    return RolloutStep(found, max(graphs) + micro * remembered, made, frozen, host)


def _encoders(cfg: FrechetForcing) -> tuple[str, ...]:
    return cfg.encoders if cfg.reality else ()


def _self_forcing(rolled: Rolled, cfg: SelfForcing, micro: int) -> RolloutStep:
    before, chunks = cfg.rollouts.prefix + cfg.rollouts.lead, longest(cfg.rollouts)
    clip = _led(cfg.rollouts, lambda begin: rolled.clip(begin, chunks))
    again, graph = _again(rolled, cfg.rollouts)
    scores = clip.without_gradient.times(2 if cfg.guidance == 1.0 else 3)  # critic, teacher, teacher without control
    found = _first(rolled, cfg.rollouts) + clip + (scores + again).times(1 / cfg.ratio)
    weights = sum(p.nbytes for p in rolled.model.parameters())
    peak = max(rolled.peak(rolled.clip_shapes(before, chunks)), graph)
    memory = (micro + 1) * rolled.memory((before + chunks) * rolled.model.chunk)
    return RolloutStep(found, peak + memory, cfg.rollouts.lead / 2 + chunks, frozen=weights, critics=1)


def _hero(rolled: Rolled, cfg: Hero, frames: int) -> RolloutStep:
    """Gradients flow through all of a rollout; two more make the references."""
    size, calls = rolled.model.chunk, rolled.solver.calls
    chunks = frames // size - cfg.prefix
    depth, checkpointing = rolled.model.cfg.depth, rolled.checkpointing
    reference, found = rolled.rollout(cfg.prefix, chunks, calls).without_gradient, NOTHING
    for place in range(cfg.prefix + chunks):
        if place >= cfg.prefix:
            found += rolled.sample(place, calls)
        written = rolled.remember(place)
        if place == cfg.prefix + chunks - 1:  # nothing comes after the last one
            found += written.without_gradient
        else:  # what is remembered are keys and values: the last block is hardly on their way, but for fast weights
            shapes = rolled.chunk_shapes(place)
            through = operations(rolled.model, shapes, checkpointing).backward
            learned = written.backward - through
            found += Operations(written.forward, through * (1 - 1 / depth) + learned, written.again)
    held = 0
    for place in range(cfg.prefix + chunks):
        kept = activations(rolled.model, rolled.chunk_shapes(place, written=True))
        held += kept.held(depth, checkpointing)
        if place >= cfg.prefix:
            kept = activations(rolled.model, rolled.chunk_shapes(place, rolled.guided))
            held += calls * kept.held(depth, checkpointing)
    last = activations(rolled.model, rolled.chunk_shapes(cfg.prefix + chunks - 1, rolled.guided))
    peak = held - last.held(depth, checkpointing) + last.peak(depth, checkpointing)
    weights = sum(p.nbytes for p in rolled.model.parameters())
    memory = rolled.memory(frames)
    return RolloutStep(found + reference.times(2), peak + memory, chunks, frozen=weights)


def _pushforward(rolled: Rolled, cfg: Pushforward, frames: int) -> RolloutStep:
    """The mean over the drawn lengths."""
    size, calls = rolled.model.chunk, rolled.solver.calls
    most = frames // size - cfg.prefix
    found = NOTHING
    for chunks in range(1, most + 1):
        before = rolled.rollout(cfg.prefix, chunks - 1, calls).without_gradient
        found += (before + rolled.sample(cfg.prefix + chunks - 1, calls)).times(1 / most)
    graph = rolled.peak(rolled.chunk_shapes(cfg.prefix + most - 1, rolled.guided), calls)
    return RolloutStep(found, graph + rolled.memory(frames), (most + 1) / 2)


def _distance(cfg: FrechetForcing, dimension: int, samples: int) -> Operations:
    """A Frechet distance and its gradient, in units of fp32."""
    if cfg.frechet.mode != "full":
        return NOTHING
    n, d = float(samples), float(dimension)
    if samples <= dimension and not cfg.frechet.shrinkage and isinstance(cfg.population, Queue):
        products, order = 2 * n * d * d + 2 * n * n * d, n
    else:
        products, order = 2 * n * d * d + 4 * d**3, d
    return Operations(DOUBLE * products, DOUBLE * (2 * products + EIGENVALUES * order**3), 0.0)


def _population(cfg: FrechetForcing, dimension: int) -> int:
    """Bytes of a term's population and of its reference: mean, covariance, and the covariance's root."""
    square = 8 * dimension * dimension
    own = 4 * cfg.population.capacity * dimension if isinstance(cfg.population, Queue) else square
    return own + square * (2 if cfg.frechet.mode == "full" else 1)
