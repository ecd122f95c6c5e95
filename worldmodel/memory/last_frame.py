"""The memory of a model that looks only at the newest frame, which every state holds anyway: it stores nothing."""

from dataclasses import dataclass

import torch
from torch import Tensor

from .base import Context, Geometry, Reach, Rotation


@dataclass(frozen=True, kw_only=True)
class LastFrameConfig:
    """Remember only `State.last`."""

    def empty(self, geometry: Geometry, batch: int, like: Tensor) -> "LastFrameMemory":
        return LastFrameMemory(torch.zeros(batch, 0, dtype=torch.bool, device=like.device))

    def restore(self, tensors: dict[str, Tensor]) -> "LastFrameMemory":
        return LastFrameMemory(tensors["valid"])

    @property
    def compares(self) -> bool:
        return False

    @property
    def capacity(self) -> int:
        return 0

    def check(self, chunk: int) -> None:
        """Nothing is stored: any chunk fits."""

    def reach(self, starts: range, features: Tensor) -> list[Reach]:
        return [Reach(start) for start in starts]


@dataclass(frozen=True, slots=True)
class LastFrameMemory:
    """No tokens, for B rows."""

    valid: Tensor  # [B, 0] bool

    @property
    def batch(self) -> int:
        return self.valid.shape[0]

    @property
    def nbytes(self) -> int:
        return 0

    def context(self, frame: Tensor, rotation: Rotation) -> Context:
        nothing = torch.zeros(0, self.batch, 0, 0, 0, device=self.valid.device)
        return Context(nothing, nothing, self.valid)

    def append(
        self, keys: Tensor, values: Tensor, frame: Tensor, keep: Tensor, rotation: Rotation
    ) -> "LastFrameMemory":
        return self

    def select(self, rows: Tensor) -> "LastFrameMemory":
        return LastFrameMemory(self.valid[rows])

    def fork(self, n: int) -> "LastFrameMemory":
        return LastFrameMemory(self.valid.repeat_interleave(n, 0))

    def reset(self, rows: Tensor) -> "LastFrameMemory":
        return self

    def to(self, device: torch.device | str) -> "LastFrameMemory":
        return LastFrameMemory(self.valid.to(device))

    def tensors(self) -> dict[str, Tensor]:
        return {"valid": self.valid}
