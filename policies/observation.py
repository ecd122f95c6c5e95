"""What a policy sees before it acts, and what both sides must agree in.

Letters: B rows, N cameras, H W pixels, S state and A action dimensions, L words.
"""

from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from worldmodel.errors import UserError

CONSTANT = 1e-6  # a range below this (in the data's own units) is none


@dataclass(frozen=True, slots=True)
class Observation:
    """The control of a policy: one observation stands for all frames of the chunk that follows it."""

    image: Tensor  # [B, N, 3, H, W] uint8
    state: Tensor  # [B, S] float, in the robot's own units
    words: Tensor  # [B, L] int64, places in the vocabulary; 0 stands for none
    length: int  # frames K of the chunk
    context: Tensor | None = None  # [B, D] what a context encoder has to say of this robot; None: it is as built
    past: "Observation | None" = None  # of one control step before; None where the policy does not look back so far

    @property
    def batch(self) -> int:
        return self.state.shape[0]

    def to(self, device: torch.device | str) -> "Observation":
        context = None if self.context is None else self.context.to(device)
        past = None if self.past is None else self.past.to(device)
        image, state, words = self.image.to(device), self.state.to(device), self.words.to(device)
        return Observation(image, state, words, self.length, context, past)

    def select(self, rows: Tensor) -> "Observation":
        context = None if self.context is None else self.context[rows]
        past = None if self.past is None else self.past.select(rows)
        return Observation(self.image[rows], self.state[rows], self.words[rows], self.length, context, past)

    def frames(self, start: int, stop: int) -> "Observation":
        return replace(self, length=stop - start)

    def drop(self, rows: Tensor) -> "Observation":
        """Without the instruction in the rows of a mask [B]: what guidance strengthens is the instruction."""
        return replace(self, words=self.words.masked_fill(rows[:, None], 0))


@dataclass(frozen=True, slots=True)
class Range:
    """Names of the dimensions of a vector, and which of their values become -1 and 1 in the model.

    A dimension without a range (low = high) becomes 0 and comes back as that value.
    """

    names: tuple[str, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]

    def __post_init__(self) -> None:
        if not len(self.names) == len(self.low) == len(self.high) > 0:
            raise UserError(f"a range needs as many names as bounds, not {len(self.names)}, {len(self.low)} and "
                            f"{len(self.high)}")  # fmt: skip
        for name, low, high in zip(self.names, self.low, self.high, strict=True):
            if not low <= high or not np.isfinite([low, high]).all():
                raise UserError(f"dimension '{name}': the range [{low}, {high}] is none")

    @classmethod
    def of(cls, names: tuple[str, ...], values: NDArray[np.floating]) -> "Range":
        """From the 1 % to the 99 % quantile of values [n, dim]; the whole range where these are the same."""
        x = values.astype(np.float64)
        low, high = np.quantile(x, 0.01, axis=0), np.quantile(x, 0.99, axis=0)
        narrow = high - low < CONSTANT
        low, high = np.where(narrow, x.min(0), low), np.where(narrow, x.max(0), high)
        return cls(names, tuple(low.round(7).tolist()), tuple(high.round(7).tolist()))

    @property
    def constant(self) -> tuple[str, ...]:
        """The dimensions without a range."""
        return tuple(n for n, a, b in zip(self.names, self.low, self.high, strict=True) if b - a < CONSTANT)

    @property
    def middle(self) -> Tensor:
        """[dim] fp32."""
        return torch.tensor([(a + b) / 2 for a, b in zip(self.low, self.high, strict=True)])

    @property
    def half(self) -> Tensor:
        """Half the width, [dim] fp32; 1 where there is no range, so that such a dimension keeps its unit."""
        widths = [(b - a) / 2 for a, b in zip(self.low, self.high, strict=True)]
        return torch.tensor([width if 2 * width >= CONSTANT else 1.0 for width in widths])


@dataclass(frozen=True, slots=True)
class Interface:
    """What a policy, its training data and a robot must agree in."""

    cameras: tuple[str, ...]
    size: tuple[int, int]  # height and width of all pictures
    state: Range
    action: Range
    vocabulary: tuple[str, ...]  # of the instructions
    words: int  # L, of the longest instruction
    fps: float

    @property
    def instructed(self) -> bool:
        """Whether the policy reads an instruction."""
        return bool(self.vocabulary)

    def encode(self, instruction: str) -> list[int]:
        """Places of an instruction's words in the vocabulary from 1 on, filled up to L with 0.

        UserError for a word that the policy has never seen, or too many.
        """
        words = split(instruction)
        unknown = [word for word in words if word not in self.vocabulary]
        if unknown:
            raise UserError(
                f"instruction '{instruction}': the policy does not know {', '.join(unknown)}; it knows "
                f"{', '.join(self.vocabulary)}"
            )
        if len(words) > self.words:
            raise UserError(f"instruction '{instruction}': {len(words)} words, the policy reads {self.words}")
        return [self.vocabulary.index(word) + 1 for word in words] + [0] * (self.words - len(words))

    def misfits(self, state: tuple[str, ...], action: tuple[str, ...], fps: float) -> list[str]:
        """What does not fit if this policy acts on a robot with these dimensions and rate: one line each."""
        found = [
            f"{what}: the policy has {', '.join(mine)}, the robot {', '.join(its)}"
            for what, mine, its in (("state", self.state.names, state), ("action", self.action.names, action))
            if mine != its
        ]
        return found + [f"fps: the policy has {self.fps}, the robot {fps}"] * (self.fps != fps)

    def differences(self, other: "Interface") -> list[str]:
        """What does not fit if this policy meets the data or the robot of `other`: one line each."""
        found = []
        for what in ("cameras", "size", "fps"):
            mine, theirs = getattr(self, what), getattr(other, what)
            if mine != theirs:
                found.append(f"{what}: the policy has {_shown(mine)}, this has {_shown(theirs)}")
        for what in ("state", "action"):
            mine, theirs = getattr(self, what).names, getattr(other, what).names
            if mine != theirs:
                found.append(f"{what}: the policy has {_shown(mine)}, this has {_shown(theirs)}")
        unknown = [word for word in other.vocabulary if word not in self.vocabulary]
        return found + ([f"instructions: the policy does not know {_shown(tuple(unknown))}"] if unknown else [])


def split(instruction: str) -> list[str]:
    """The words of an instruction, in lower case."""
    return instruction.lower().replace("-", " ").replace("_", " ").split()


def _shown(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)
