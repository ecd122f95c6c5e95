"""The pushforward trick (Brandstetter, Worrall & Welling, 2202.03376): learn from inputs that the model made itself.

The model is rolled out without gradients and only its last chunk is compared with the recording and differentiated, so
that it sees the distribution of its own errors, at the cost of one chunk's backward pass.

It is meant for models whose next chunk is determined by what they see. One that samples among several futures is pulled
towards their mean, as by any mean squared error of samples: such a model is served by Frechet forcing.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from worldmodel import noise
from worldmodel.chunk import Clip
from worldmodel.models.world import StreamConfig
from worldmodel.rollout import replay, rollout

from .base import Update
from .unrolled import Deployment, RolloutErrorObjective, Unroll, check_prefix, frame_errors

LENGTH = 6  # draw of a step's keyed generator


@dataclass(frozen=True, kw_only=True)
class Pushforward:
    """Configuration.

    prefix: real chunks that a rollout starts from. The number of chunks made, the last one with gradient, is uniform
    from 1 to all that the clip has room for; one draw serves a step, the same on every process. With one chunk it is
    the one-step loss: the draws together are the sum of one-step and stability loss that the paper minimises.
    """

    prefix: int = 1

    def __post_init__(self) -> None:
        check_prefix("pushforward", self.prefix)

    def frames(self, chunk: int, step: int) -> int:
        """The latent frames that a clip must have at a training step."""
        return (self.prefix + 1) * chunk

    def build(self, model: nn.Module, stream: StreamConfig | Deployment, seed: int) -> "PushforwardObjective":
        """model: anything that the rollout engine runs, or a wrapped DiT. stream: how. seed: of the run."""
        return PushforwardObjective(Unroll(stream=stream, prefix=self.prefix), model, seed)


class PushforwardObjective(RolloutErrorObjective):
    """One role, `model`, one update per step; validated by the error of the whole rollout."""

    def __init__(self, unroll: Unroll, model: nn.Module, seed: int) -> None:
        super().__init__(unroll, model, seed)
        self.step = 0

    def updates(self, clips: list[Clip]) -> Iterator[Update]:
        made = self.chunks(self.step, clips[0])
        self.step += 1
        yield Update("model", (self.loss(clip, made) / len(clips) for clip in clips), len(clips))

    def chunks(self, step: int, clip: Clip) -> int:
        """How many chunks the rollouts of a training step make, of clips as long as this one."""
        room = clip.x.shape[1] // self.model.chunk - self.unroll.prefix
        row = noise.row_seed(self.seed, torch.tensor([step]))
        return 1 + int(noise.uniform(row, torch.zeros_like(row)[:, None], LENGTH) * room)

    def loss(self, clip: Clip, chunks: int) -> Tensor:
        """Mean squared error [] of the last of `chunks` chunks."""
        size, stream = self.model.chunk, self.unroll.stream
        first = self.unroll.prefix * size
        last = first + (chunks - 1) * size  # first frame of the last chunk
        with torch.no_grad():
            state = self.unroll.begin(self.model, clip, self.seed)
            controller = replay(clip.control.frames(first, last), size)
            for _, after in rollout(self.model, controller, stream.sampler, state, stream.context_time):
                state = after
        made, _ = stream.sampler(self.model, clip.control.frames(last, last + size), state)
        return frame_errors(made, clip.x[:, last : last + size]).mean()

    def state_dict(self) -> dict[str, Any]:
        return {"step": self.step}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.step = int(state["step"])
