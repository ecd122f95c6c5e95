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
from worldmodel.rollout import join, replay, rollout, start
from worldmodel.sampler import Sampler
from worldmodel.state import State

from .base import Update


@dataclass(frozen=True, kw_only=True)
class Unroll:
    """How a model runs on a clip, in training as in use: sampler, memory, and the leading frames that are given.

    context: a whole number of chunks. All that is random is keyed by the run's seed and the samples' global indices.
    """

    sampler: Sampler
    memory: MemoryConfig
    context: int = 1

    def begin(self, model: Any, clip: Clip, seed: int) -> State:
        """The state after the context. UserError for a clip that does not cut into chunks, or has none to make."""
        length = clip.x.shape[1]
        if self.context % model.chunk or length % model.chunk or not 0 <= self.context < length:
            raise UserError(
                f"unrolled clip: {length} frames with {self.context} given; both must be multiples of the chunk "
                f"({model.chunk}), and one chunk at least must be left to make"
            )
        return start(model, self.memory, noise.row_seed(seed, clip.index), clip.frames(0, self.context))

    def __call__(self, model: Any, clip: Clip, seed: int) -> Tensor:
        """The frames after the context as the model makes them, [B, F, C, H, W]; gradients flow through all of it."""
        control = clip.control.frames(self.context, clip.x.shape[1])
        controller = replay(control, model.chunk, self.sampler.lookahead)
        made = join(rollout(model, controller, self.sampler, self.begin(model, clip, seed)))
        if made.shape[1] != control.length:
            raise UserError(
                f"unrolled clip: its sampler looks ahead and leaves {control.length - made.shape[1]} frames"
            )
        return made

    def target(self, clip: Clip) -> Tensor:
        """The frames that the rollout should have made, [B, F, C, H, W]."""
        return clip.x[:, self.context :]


def frame_errors(made: Tensor, true: Tensor) -> Tensor:
    """Mean squared error of every frame, [B, F]."""
    return (made - true).square().flatten(2).mean(-1)


@dataclass(frozen=True, kw_only=True)
class RolloutError:
    """Absolute multi-step supervision: the mean squared error over a rollout of the clip's length, differentiated
    through all of its steps. With clips of one chunk beyond the context it is ordinary one-step training."""

    unroll: Unroll

    def build(self, model: nn.Module, config: Any, seed: int) -> "RolloutErrorObjective":
        """model: anything that the rollout engine runs. seed: of the run."""
        return RolloutErrorObjective(self.unroll, model, seed)


class RolloutErrorObjective:
    """One role, `model`, one update per step."""

    def __init__(self, unroll: Unroll, model: nn.Module, seed: int) -> None:
        self.unroll, self.seed, self.roles = unroll, seed, {"model": model}

    def updates(self, clips: list[Clip]) -> Iterator[Update]:
        yield Update("model", (self.errors(clip).mean() / len(clips) for clip in clips), len(clips))

    def validate(self, clip: Clip) -> dict[str, Tensor]:
        """`loss`: mean squared error of the whole rollout."""
        with torch.no_grad():
            return {"loss": self.errors(clip).mean()}

    def errors(self, clip: Clip) -> Tensor:
        """Rollout error of every sample, [B]."""
        return frame_errors(self.unroll(self.roles["model"], clip, self.seed), self.unroll.target(clip)).mean(1)

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state:
            raise UserError(f"{type(self).__name__} has no state to resume, the checkpoint holds {sorted(state)}")
