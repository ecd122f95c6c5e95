"""Retrieval memory: a bank of frames at regular distances, of which the most fitting are read; a plain baseline.

Beside a sink and a ring of the newest frames it keeps every `every`-th frame that left the ring, up to `bank` of them,
and reads the `read` ones whose mean keys are most like the newest frame's. Same storage and same places in time as
slow-fast memory; bytes are constant.
"""

from dataclasses import dataclass

from torch import Tensor

from worldmodel.errors import UserError

from .base import Geometry, Reach
from .ledger import Tiers, trace
from .slow_fast import SlowFastMemory

ALL = 2.0  # a cosine is always below


@dataclass(frozen=True, kw_only=True)
class RetrievalConfig:
    """sink: how many of a stream's first frames stay for ever. bank: how many frames there are to choose from, one of
    `every`. read: how many of them a chunk reads. ring: how many of the newest frames it reads always.
    """

    sink: int = 0
    bank: int = 8
    read: int = 4
    ring: int = 6
    every: int = 4

    def __post_init__(self) -> None:
        if self.sink < 0 or min(self.bank, self.ring, self.every) < 1 or not 1 <= self.read <= self.bank:
            raise UserError(
                f"retrieval memory: sink {self.sink} must be at least 0, bank {self.bank}, ring {self.ring} and every "
                f"{self.every} at least 1, read {self.read} in [1, bank]"
            )

    @property
    def tiers(self) -> Tiers:
        return Tiers(self.sink, self.bank, self.ring, self.every, ALL, self.read)

    @property
    def compares(self) -> bool:
        return True

    @property
    def capacity(self) -> int:
        return self.sink + self.bank + self.ring

    def check(self, chunk: int) -> None:
        if self.ring < chunk:
            raise UserError(f"retrieval memory: a ring of {self.ring} frames does not hold one chunk of {chunk}")

    def empty(self, geometry: Geometry, batch: int, like: Tensor) -> SlowFastMemory:
        return SlowFastMemory.empty(self.tiers, geometry, batch, like)

    def restore(self, tensors: dict[str, Tensor]) -> SlowFastMemory:
        return SlowFastMemory.restore(self.tiers, tensors)

    def reach(self, starts: range, features: Tensor) -> list[Reach]:
        return trace(self.tiers, starts, features)
