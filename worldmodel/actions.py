"""How a world's actions become numbers between -1 and 1. An ActionSpec travels inside the checkpoint."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from .errors import UserError


@dataclass(frozen=True, kw_only=True)
class ActionSpec:
    """Names and range of one environment action, and how many of them one latent frame carries.

    `low` and `high` are the 1 % and 99 % quantiles of the training data; they map to -1 and 1, and what lies outside
    is clipped to [-1.5, 1.5], so that one outlier cannot leave the range that the model was trained on.
    """

    names: tuple[str, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    pack: int = 1

    def __post_init__(self) -> None:
        if not len(self.names) == len(self.low) == len(self.high):
            raise UserError(f"actions {list(self.names)}: {len(self.low)} low and {len(self.high)} high bounds")
        for name, low, high in zip(self.names, self.low, self.high, strict=True):
            if not (np.isfinite(low) and np.isfinite(high)):
                raise UserError(f"action '{name}': bounds [{low}, {high}] are not finite")
            if high - low <= 1e-8:
                raise UserError(f"action '{name}': constant at {low}, it has no range to normalise; drop the dimension")
        if self.pack < 1:
            raise UserError(f"actions {list(self.names)}: pack must be at least 1, not {self.pack}")

    @property
    def dim(self) -> int:
        """Size of one environment action."""
        return len(self.names)

    @property
    def size(self) -> int:
        """Size A of the packed action of one latent frame."""
        return self.dim * self.pack

    @classmethod
    def from_data(
        cls, names: tuple[str, ...], actions: np.ndarray, pack: int = 1, source: str = "data"
    ) -> "ActionSpec":
        """From all actions [N, dim] of the training data. NaN, infinite or constant dimensions are errors."""
        if actions.ndim != 2 or actions.shape[1] != len(names):
            raise UserError(f"{source}: actions have shape {actions.shape}, expected [N, {len(names)}]")
        if len(actions) == 0:
            raise UserError(f"{source}: no actions at all")
        bad = ~np.isfinite(actions)
        if bad.any():
            row, column = (int(i) for i in np.argwhere(bad)[0])
            raise UserError(f"{source}: action '{names[column]}' is {actions[row, column]} at frame {row}")
        low, high = np.quantile(actions.astype(np.float64), (0.01, 0.99), axis=0)
        narrow = high - low <= 1e-8  # a rarely used dimension: fall back to its whole range
        low, high = np.where(narrow, actions.min(0), low), np.where(narrow, actions.max(0), high)
        return cls(names=tuple(names), low=tuple(low.tolist()), high=tuple(high.tolist()), pack=pack)

    def normalise(self, action: Tensor) -> Tensor:
        """Environment units [..., dim] -> [..., dim] in [-1.5, 1.5], bulk in [-1, 1]."""
        low, high = action.new_tensor(self.low), action.new_tensor(self.high)
        return (2 * (action - low) / (high - low) - 1).clamp(-1.5, 1.5)

    def denormalise(self, action: Tensor) -> Tensor:
        """The inverse of `normalise` inside its range."""
        low, high = action.new_tensor(self.low), action.new_tensor(self.high)
        return low + (action + 1) * (high - low) / 2

    def packed(self, action: Tensor) -> Tensor:
        """Normalised actions in order [..., K * pack, dim] -> [..., K, A]."""
        return action.unflatten(-2, (-1, self.pack)).flatten(-2)


def zero_action(spec: ActionSpec, batch: int, frames: int) -> Tensor:
    """Normalised "do nothing" [B, K, A]: every environment action at 0."""
    still = spec.normalise(torch.zeros(spec.dim))
    return still.repeat(spec.pack).expand(batch, frames, -1)
