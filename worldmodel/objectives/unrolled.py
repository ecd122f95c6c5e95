"""Rollouts of recorded clips as a training sees them, and the plainest loss on them: absolute rollout supervision.

Letters: B rows, T frames of a clip, F = T - context frames that are made, C H W.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from worldmodel import noise
from worldmodel.chunk import Clip
from worldmodel.errors import UserError
from worldmodel.memory import MemoryConfig
from worldmodel.models.dit import DiT
from worldmodel.models.world import StreamConfig
from worldmodel.rollout import join, replay, rollout, start
from worldmodel.sampler import Sampler
from worldmodel.state import State

from .base import Objective, Update, check_number
from .own_rollouts import Forwarded


@dataclass(frozen=True, kw_only=True)
class Deployment:
    """How a model is run that is no world model, which has its `StreamConfig` for that: the same three things."""

    sampler: Sampler
    memory: MemoryConfig
    context_time: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Unroll:
    """A model's rollout of a clip, in training as in use: by the stream's sampler and memory, after real chunks.

    prefix: chunks at the clip's beginning that are given. All that is random is keyed by the run's seed and the
    samples' global indices.
    """

    stream: StreamConfig | Deployment
    prefix: int = 1

    def begin(self, model: Any, clip: Clip, seed: int) -> State:
        """The state after the prefix.

        UserError for a clip that does not cut into chunks, or has none to make, and for a sampler that looks ahead.
        """
        if self.stream.sampler.lookahead:
            raise UserError(f"unrolled clip: {self.stream.sampler} looks ahead, and would leave the last frames unmade")
        length, given = clip.x.shape[1], self.prefix * model.chunk
        if length % model.chunk or length <= given:
            raise UserError(
                f"unrolled clip: {length} frames, of which {given} are given, must be chunks of {model.chunk} with one "
                "left to make"
            )
        seeds = noise.row_seed(seed, clip.index)
        return start(model, self.stream.memory, seeds, clip.frames(0, given), self.stream.context_time)

    def __call__(self, model: Any, clip: Clip, seed: int) -> Tensor:
        """The frames after the prefix as the model makes them, [B, F, C, H, W]; gradients flow through all of it."""
        state = self.begin(model, clip, seed)
        controller = replay(clip.control.frames(self.prefix * model.chunk, clip.x.shape[1]), model.chunk)
        return join(rollout(model, controller, self.stream.sampler, state, self.stream.context_time))

    def target(self, model: Any, clip: Clip) -> Tensor:
        """The frames that the rollout should have made, [B, F, C, H, W]."""
        return clip.x[:, self.prefix * model.chunk :]


def check_prefix(name: str, prefix: int) -> None:
    """A UserError for a number of given chunks that no rollout can start from."""
    check_number(f"{name}: prefix", prefix, 1, 1e6)


def runnable(model: nn.Module) -> Any:
    """What the engine calls: the model itself, or for a DiT and its wrapper (DDP) the way through the wrapper."""
    return Forwarded(model) if isinstance(getattr(model, "module", model), DiT) else model


def frame_errors(made: Tensor, true: Tensor) -> Tensor:
    """Mean squared error of every frame, [B, F]."""
    return (made - true).square().flatten(2).mean(-1)


@dataclass(frozen=True, kw_only=True)
class RolloutError:
    """Absolute multi-step supervision: the mean squared error over a rollout of the clip's length, differentiated
    through all of its steps. With clips of one chunk beyond the prefix it is ordinary one-step training."""

    prefix: int = 1

    def __post_init__(self) -> None:
        check_prefix("rollout error", self.prefix)

    def build(self, model: nn.Module, stream: StreamConfig | Deployment, seed: int) -> "RolloutErrorObjective":
        """model: anything that the rollout engine runs. stream: how. seed: of the run."""
        return RolloutErrorObjective(Unroll(stream=stream, prefix=self.prefix), model, seed)


class RolloutErrorObjective(Objective):
    """One role, `model`, one update per step."""

    def __init__(self, unroll: Unroll, model: nn.Module, seed: int) -> None:
        self.unroll, self.seed, self.roles, self.model = unroll, seed, {"model": model}, runnable(model)

    def updates(self, clips: list[Clip]) -> Iterator[Update]:
        yield Update("model", (self.errors(clip).mean() / len(clips) for clip in clips), len(clips))

    def validate(self, clip: Clip) -> dict[str, Tensor]:
        """`loss`: mean squared error of the whole rollout."""
        with torch.no_grad():
            return {"loss": self.errors(clip).mean()}

    def errors(self, clip: Clip) -> Tensor:
        """Rollout error of every sample, [B]."""
        made = self.unroll(self.model, clip, self.seed)
        return frame_errors(made, self.unroll.target(self.model, clip)).mean(1)

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state:
            raise UserError(f"{type(self).__name__} has no state to resume, the checkpoint holds {sorted(state)}")
