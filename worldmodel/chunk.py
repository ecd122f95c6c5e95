"""The values that flow through everything: Control, Chunk and Clip.

Shape letters: B batch, T latent frames in a clip, K latent frames in a chunk, C H W latent channels, height and width,
A packed action size, L text tokens, D text width, c channels of a condition.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Protocol, Self, TypeVar

import torch
from torch import Tensor


class Control(Protocol):
    """What is known before a chunk is made. Each kind of model brings its own; the engine needs only this."""

    @property
    def batch(self) -> int:
        """Number of rows B."""
        ...

    @property
    def length(self) -> int:
        """Number of frames K (or T for the control of a whole clip)."""
        ...

    def to(self, device: torch.device | str) -> Self: ...

    def select(self, rows: Tensor) -> Self:
        """The rows of an index tensor [B'] int64, in that order; a row may appear several times."""
        ...

    def frames(self, start: int, stop: int) -> Self:
        """Frames start to stop of a control that is given per frame."""
        ...

    def drop(self, rows: Tensor) -> Self:
        """The same control without its condition in the rows of a mask [B] bool: for classifier-free guidance."""
        ...


C = TypeVar("C", bound=Control)


@dataclass(frozen=True, slots=True)
class ActionControl:
    """The control of an action-conditioned world model.

    A frame's action is what was executed since the frame before it. Frames without one (the first of an episode, a
    dropped condition) have `has_action` False and get the model's learned null embedding, whatever `action` holds.
    """

    action: Tensor  # [B, K, A] float, normalised to [-1, 1]
    has_action: Tensor  # [B, K] bool
    text: Tensor | None = None  # [B, L, D] text features, or None for a model without text

    @property
    def batch(self) -> int:
        return self.action.shape[0]

    @property
    def length(self) -> int:
        return self.action.shape[1]

    def to(self, device: torch.device | str) -> "ActionControl":
        text = None if self.text is None else self.text.to(device)
        return ActionControl(self.action.to(device), self.has_action.to(device), text)

    def select(self, rows: Tensor) -> "ActionControl":
        text = None if self.text is None else self.text[rows]
        return ActionControl(self.action[rows], self.has_action[rows], text)

    def frames(self, start: int, stop: int) -> "ActionControl":
        return replace(self, action=self.action[:, start:stop], has_action=self.has_action[:, start:stop])

    def join(self, later: "ActionControl") -> "ActionControl":
        """These frames and then those of `later`."""
        action, has_action = (
            torch.cat((self.action, later.action), 1),
            torch.cat((self.has_action, later.has_action), 1),
        )
        return replace(self, action=action, has_action=has_action)

    def drop(self, rows: Tensor) -> "ActionControl":
        return replace(self, has_action=self.has_action & ~rows[:, None])


@dataclass(frozen=True, slots=True)
class ConditionControl:
    """What a model sees beside each of its frames: channels of the latents' height and width. Zeros are none."""

    condition: Tensor  # [B, K, c, H, W] float

    @property
    def batch(self) -> int:
        return self.condition.shape[0]

    @property
    def length(self) -> int:
        return self.condition.shape[1]

    def to(self, device: torch.device | str) -> "ConditionControl":
        return ConditionControl(self.condition.to(device))

    def select(self, rows: Tensor) -> "ConditionControl":
        return ConditionControl(self.condition[rows])

    def frames(self, start: int, stop: int) -> "ConditionControl":
        return ConditionControl(self.condition[:, start:stop])

    def join(self, later: "ConditionControl") -> "ConditionControl":
        """These frames and then those of `later`."""
        return ConditionControl(torch.cat((self.condition, later.condition), 1))

    def drop(self, rows: Tensor) -> "ConditionControl":
        return ConditionControl(self.condition.masked_fill(rows[:, None, None, None, None], 0))


@dataclass(frozen=True, slots=True)
class Chunk[C: Control]:
    """K consecutive latent frames of B streams, and the control they were made under."""

    x: Tensor  # [B, K, C, H, W]
    control: C
    start: Tensor  # [B] int64, absolute index of the first frame
    executed: Tensor  # [B] int64, how many of the K frames were used (K unless a controller stopped early)

    @classmethod
    def whole(cls, x: Tensor, control: C, start: Tensor) -> "Chunk[C]":
        """A chunk of which every frame is used."""
        return cls(x, control, start, torch.full_like(start, x.shape[1]))


@dataclass(frozen=True, slots=True)
class Clip[C: Control]:
    """A recorded piece of B streams, as datasets give it."""

    x: Tensor  # [B, T, C, H, W]
    control: C  # per frame, [B, T, ...]
    index: Tensor  # [B] int64, global sample index: seeds everything random about this row

    @property
    def batch(self) -> int:
        return self.x.shape[0]

    def frames(self, start: int, stop: int) -> "Clip[C]":
        return Clip(self.x[:, start:stop], self.control.frames(start, stop), self.index)

    def select(self, rows: Tensor) -> "Clip[C]":
        return Clip(self.x[rows], self.control.select(rows), self.index[rows])

    def chunks(self, size: int) -> Iterator[Chunk[C]]:
        """The clip cut into chunks of `size` frames; a clip whose length is no multiple of it is an error."""
        if self.x.shape[1] % size:
            raise ValueError(f"a clip of {self.x.shape[1]} frames does not cut into chunks of {size}")
        for s in range(0, self.x.shape[1], size):
            start = torch.full((self.batch,), s, dtype=torch.int64, device=self.x.device)
            yield Chunk.whole(self.x[:, s : s + size], self.control.frames(s, s + size), start)

    def to(self, device: torch.device | str) -> "Clip[C]":
        return Clip(self.x.to(device), self.control.to(device), self.index.to(device))
