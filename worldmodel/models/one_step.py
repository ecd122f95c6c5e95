"""A deterministic model of the next frame as the engine sees it: one chunk is one frame, and to sample is to apply.

So an operator for a partial differential equation runs in the same rollout loop, under the same objectives, as a video
generator. Letters: B rows, C H W channels, height and width of a frame.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from worldmodel import flow
from worldmodel.chunk import Chunk, Control
from worldmodel.memory import Geometry, Memory, MemoryConfig
from worldmodel.sampler import Streamable
from worldmodel.state import State


class OneStep(nn.Module, ABC):
    """x_(n+1) = f(x_n). A subclass brings `forward` and `frame_shape`; control is not looked at."""

    @property
    @abstractmethod
    def frame_shape(self) -> tuple[int, ...]:
        """(C, H, W)."""

    @abstractmethod
    def forward(self, last: Tensor) -> Tensor:
        """The next frame [B, C, H, W] after `last` [B, C, H, W]."""

    @property
    def chunk(self) -> int:
        return 1

    def empty_memory(self, config: MemoryConfig, batch: int) -> Memory:
        """The memory `config` for B rows; the model neither writes nor reads any."""
        return config.empty(Geometry(0, 0, 0, 0), batch, next(self.parameters()))

    def prepare(self, control: Control, state: State) -> Tensor:
        """The prediction [B, 1, C, H, W], which no flow time changes. ValueError before the first frame."""
        if state.last is None:
            raise ValueError("a one-step model needs a first frame: start it with context")
        made = self(state.last)[:, None]
        return made if control.batch == state.batch else made.repeat(control.batch // state.batch, *(1,) * 4)

    def velocity(self, x_t: Tensor, t: Tensor, prepared: Tensor) -> Tensor:
        """The velocity [B, 1, C, H, W] of the straight path from the prediction through x_t, at flow times t [B, 1]."""
        return flow.towards(prepared, x_t, t)

    def remember(self, chunk: Chunk, state: State, time: float = 0.0) -> Memory:
        """The memory as it is: the state keeps the newest frame by itself."""
        return state.memory


@dataclass(frozen=True, kw_only=True)
class Apply:
    """The sampler of a `OneStep`: its prediction, without noise. What `Euler` makes of it, but for rounding errors."""

    @property
    def lookahead(self) -> int:
        return 0

    def __call__(self, model: Streamable, control: Any, state: State) -> tuple[Tensor, None]:
        made = model.prepare(control, state)
        if not isinstance(made, torch.Tensor):
            raise TypeError(f"Apply samples one-step models, a {type(model).__name__} prepares no frame")
        return made, None
