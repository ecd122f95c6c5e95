"""The pushforward trick (Brandstetter, Worrall & Welling, 2202.03376): learn from inputs that the model made itself.

The model is rolled out without gradients and only its last chunk is compared with the recording and differentiated, so
that it sees the distribution of its own errors, at the cost of one chunk's backward pass.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from worldmodel import noise
from worldmodel.chunk import Clip
from worldmodel.rollout import replay, rollout, step

from .base import Update
from .unrolled import RolloutErrorObjective, Unroll, frame_errors

LENGTH = 6  # draw of a sample's keyed generator


@dataclass(frozen=True, kw_only=True)
class Pushforward:
    """The number of chunks made, the last one with gradient, is uniform from 1 to all that the clip has room for.

    One draw serves a micro-batch, keyed by its first sample. With one chunk it is the one-step loss: the draws together
    are the sum of one-step and stability loss that the paper minimises.
    """

    unroll: Unroll

    def build(self, model: nn.Module, config: Any, seed: int) -> "PushforwardObjective":
        """model: anything that the rollout engine runs. seed: of the run."""
        return PushforwardObjective(self.unroll, model, seed)


class PushforwardObjective(RolloutErrorObjective):
    """One role, `model`, one update per step; validated by the error of the whole rollout."""

    def updates(self, clips: list[Clip]) -> Iterator[Update]:
        yield Update("model", (self.loss(clip) / len(clips) for clip in clips), len(clips))

    def chunks(self, clip: Clip) -> int:
        """How many chunks the rollout of this micro-batch makes."""
        model: Any = self.roles["model"]
        room = (clip.x.shape[1] - self.unroll.context) // model.chunk
        first = noise.row_seed(self.seed, clip.index[:1])
        return 1 + int(noise.uniform(first, torch.zeros_like(first)[:, None], LENGTH) * room)

    def loss(self, clip: Clip) -> Tensor:
        """Mean squared error [] of the last chunk."""
        model: Any = self.roles["model"]
        size, context, sampler = model.chunk, self.unroll.context, self.unroll.sampler
        last = context + (self.chunks(clip) - 1) * size  # its first frame
        with torch.no_grad():
            state = self.unroll.begin(model, clip, self.seed)
            controls = clip.control.frames(context, last + size * sampler.lookahead)
            for _, state in rollout(model, replay(controls, size, sampler.lookahead), sampler, state):  # noqa: B007, B020
                pass
        control = clip.control.frames(last, last + size * (1 + sampler.lookahead))
        made = step(model, sampler, control, state)[0].x
        return frame_errors(made, clip.x[:, last : last + size]).mean()
