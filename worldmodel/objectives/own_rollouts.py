"""What objectives that train on self-generated continuations share: rollouts of real clips by the deployed sampler."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from worldmodel import noise
from worldmodel.chunk import ActionControl, Clip
from worldmodel.differentiable import Gradients, Take, dream, parallel, rehearse
from worldmodel.errors import UserError
from worldmodel.memory import Memory, MemoryConfig
from worldmodel.models.dit import DiT
from worldmodel.models.world import StreamConfig
from worldmodel.rollout import replay, rollout, start
from worldmodel.sampler import Solver
from worldmodel.state import State

CALL, LEAD = range(2)  # draws of a step's keyed generator


class Forwarded:
    """A DiT behind a wrapper (DDP, FSDP): every use of its parameters goes through the wrapper's forward."""

    def __init__(self, model: nn.Module) -> None:
        inner: Any = getattr(model, "module", model)
        if not isinstance(inner, DiT):
            raise TypeError(f"rollouts in training need a DiT, not {type(inner).__name__}")
        self.model, self.inner = model, inner

    @property
    def chunk(self) -> int:
        return self.inner.chunk

    @property
    def frame_shape(self) -> tuple[int, ...]:
        return self.inner.frame_shape

    def empty_memory(self, config: MemoryConfig, batch: int) -> Memory:
        return self.inner.empty_memory(config, batch)

    def prepare(self, control: Any, state: State) -> Any:
        return self.model("prepare", control, state)

    def velocity(self, x_t: Tensor, t: Tensor, prepared: Any) -> Tensor:
        return self.model("velocity", x_t, t, prepared)

    def remember(self, chunk: Any, state: State, time: float = 0.0) -> Memory:
        return self.model("remember", chunk, state, time)


@dataclass(frozen=True, kw_only=True)
class OwnRollouts:
    """How rollouts are made in training. Sampler, memory and context time are the stream's: what a user will see.

    prefix: real chunks that a rollout starts from. lead: at most so many generated chunks come before those that the
    loss sees, without loss and gradient; how many is drawn at every step, the same for all clips and processes, so that
    the loss sees rollouts of every age at the price of making them. ramp: pair of steps between which that most grows
    linearly from 0 to `lead`. lengths: pairs (from step, chunks), the schedule of
    the number of chunks that the loss sees. gradients: see `worldmodel.differentiable`.
    """

    prefix: int = 1
    lead: int = 0
    ramp: tuple[int, int] | None = None
    lengths: tuple[tuple[int, int], ...] = ((0, 6),)
    gradients: Gradients = field(default_factory=Gradients)

    def __post_init__(self) -> None:
        steps = [step for step, _ in self.lengths]
        if self.prefix < 1 or self.lead < 0:
            raise UserError(f"rollouts: prefix {self.prefix} must be at least 1 and lead {self.lead} at least 0")
        if self.ramp is not None and not 0 <= self.ramp[0] < self.ramp[1]:
            raise UserError(f"rollouts: ramp {self.ramp} must be two steps that rise")
        if not steps or steps[0] != 0 or sorted(set(steps)) != steps:
            raise UserError(f"rollouts: lengths {self.lengths} must begin at step 0 and rise")
        if min(chunks for _, chunks in self.lengths) < 1:
            raise UserError(f"rollouts: lengths {self.lengths} need at least one chunk each")

    def chunks(self, step: int) -> int:
        """How many chunks the loss sees at a training step."""
        return [chunks for since, chunks in self.lengths if since <= step][-1]

    def most(self, step: int) -> int:
        """How many chunks of lead there are at most at a training step."""
        if self.ramp is None:
            return self.lead
        first, last = self.ramp
        return round(self.lead * min(max(step - first, 0) / (last - first), 1.0))

    def made(self, step: int) -> float:
        """How many chunks are made at a training step, the mean over leads."""
        return self.most(step) / 2 + self.chunks(step)

    def frames(self, chunk: int, step: int) -> int:
        """The latent frames of a prefix and its longest rollout at a training step."""
        return (self.prefix + self.lead + self.chunks(step)) * chunk

    def build(self, model: nn.Module, stream: StreamConfig, seed: int) -> "Rollouts":
        return Rollouts(self, model, stream, seed)


@dataclass(frozen=True, slots=True)
class Made:
    """A rollout of the first pass: what came before it, the control after that, and what every chunk's sampling took.

    context: the real beginning, with the lead in its frames' place if there is one.
    """

    context: Clip[ActionControl]
    control: ActionControl  # [B, T]
    takes: list[Take]
    seed: Tensor  # [B]
    u: float
    after: State

    @property
    def x(self) -> Tensor:
        """The generated latents [B, T, C, H, W]."""
        return torch.cat([take.x for take in self.takes], 1)


class Rollouts:
    """Rollouts of a model in training."""

    def __init__(self, cfg: OwnRollouts, model: nn.Module, stream: StreamConfig, seed: int) -> None:
        if not isinstance(stream.sampler, Solver):
            raise UserError(f"training through a rollout needs Euler, Heun or FewStep, not {stream.sampler}")
        self.cfg, self.model, self.stream, self.seed = cfg, Forwarded(model), stream, seed
        self.solver: Solver = stream.sampler
        if cfg.gradients.memory == "full":
            raise UserError("training through a rollout keeps one chunk's graph; memory 'full' needs all of them")

    def first(self, clip: Clip[ActionControl], step: int, chunks: int) -> Made:
        """The first pass, from the clip's first frames under its recorded actions; no gradients.

        step: of the training; it draws the call that carries gradients, the same on every process.
        """
        size, prefix = self.model.chunk, self.cfg.prefix * self.model.chunk
        need = prefix + (self.cfg.lead + chunks) * size
        if clip.x.shape[1] < need:
            raise UserError(
                f"rollouts: {self.cfg.prefix} chunks of prefix and {self.cfg.lead + chunks} generated ones of {size} "
                f"frames need clips of {need} frames, these have {clip.x.shape[1]}"
            )
        device = clip.x.device
        seed, u = noise.row_seed(self.seed, clip.index), self._draw(step, CALL, device)
        begin = prefix + int(self._draw(step, LEAD, device) * (self.cfg.most(step) + 1)) * size
        context, state = self._led(clip, prefix, begin, seed)
        control = clip.control.frames(begin, begin + chunks * size)
        takes, after = dream(self.model, control, self.solver, state, self.cfg.gradients, u, self.stream.context_time)
        return Made(context, control, takes, seed, u, after)

    def again(self, made: Made, pulls: Sequence[Tensor]) -> Iterator[Tensor]:
        """The second pass: losses [] whose gradients sum to that of a loss with dL/dx `pulls` [B, K, ...] per chunk."""
        if self.cfg.gradients.memory == "replay":
            together = parallel(
                self.model.model, made.context, made.control, self.solver, made.takes, self.stream.memory,
                self.stream.context_time,
            )  # fmt: skip
            yield (together * torch.cat(list(pulls), 1)).sum()
            return
        seen = rehearse(
            self.model, made.control, self.solver, self._start(made.context, made.seed), self.cfg.gradients,
            made.takes, made.u, self.stream.context_time,
        )  # fmt: skip
        for x, pull in zip(seen, pulls, strict=True):
            yield (x * pull).sum()

    def losses(self, made: Made) -> int:
        """How many losses `again` yields."""
        return 1 if self.cfg.gradients.memory == "replay" else len(made.takes)

    @torch.no_grad()
    def _led(
        self, clip: Clip[ActionControl], prefix: int, begin: int, seed: Tensor
    ) -> tuple[Clip[ActionControl], State]:
        """The clip up to frame `begin`, real up to `prefix`, then generated; and the state after it."""
        real = clip.frames(0, prefix)
        state, x = self._start(real, seed), [real.x]
        controller = replay(clip.control.frames(prefix, begin), self.model.chunk)
        for chunk, after in rollout(self.model, controller, self.solver, state, self.stream.context_time):
            x.append(chunk.x)
            state = after
        return Clip(torch.cat(x, 1), clip.control.frames(0, begin), clip.index), state

    @torch.no_grad()
    def _start(self, context: Clip[ActionControl], seed: Tensor) -> State:
        return start(self.model, self.stream.memory, seed, context, self.stream.context_time)

    def _draw(self, step: int, what: int, device: torch.device) -> float:
        row = noise.row_seed(self.seed, torch.tensor([step], device=device))
        return float(noise.uniform(row, torch.zeros_like(row)[:, None], what))


def growth(objective: Any) -> tuple[int, ...]:
    """The training steps at which an objective's rollouts change their length; none for one without a schedule."""
    rollouts = getattr(objective, "rollouts", None)
    return tuple(step for step, _ in rollouts.lengths) if isinstance(rollouts, OwnRollouts) else ()


def check_lengths(
    objective: Any, chunk: int, length: int, curriculum: Sequence[tuple[int, int]], starts: Sequence[int], steps: int
) -> None:
    """A UserError if at some step the clips are shorter than the objective's `frames(chunk, step)`.

    length, curriculum: of the data, pairs (until step, length). starts: the steps at which rollouts grow.
    """
    for step in sorted({0, *starts, *(until for until, _ in curriculum)}):
        have = next((frames for until, frames in curriculum if step < until), length)
        need = objective.frames(chunk, step)
        if step < steps and have < need:
            raise UserError(
                f"{type(objective).__name__} needs clips of {need} latent frames from step {step} on, data.length and "
                f"data.curriculum give {have}"
            )
