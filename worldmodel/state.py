"""The state of a batch of streams, as a value: restore, fork and reset are copies of it.

Shape letters: B rows (streams), F frames that are begun and not finished.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from .memory import Memory


@dataclass(frozen=True, slots=True)
class Pending:
    """Frames that a sampler has begun and not finished."""

    x: Tensor  # [B, F, ...]
    ready: Tensor  # [B] bool; rows that have begun

    def select(self, rows: Tensor) -> "Pending":
        return Pending(self.x[rows], self.ready[rows])


@dataclass(frozen=True, slots=True)
class State:
    """Everything that the next chunk depends on besides weights and control."""

    memory: Memory
    frame: Tensor  # [B] int64, absolute index of the next frame
    seed: Tensor  # [B] int64
    active: Tensor  # [B] bool; inactive rows neither advance nor remember
    pending: Pending | None = None

    @property
    def batch(self) -> int:
        return self.frame.shape[0]

    def select(self, rows: Tensor) -> "State":
        """A copy of the rows of an index tensor [B'] int64."""
        pending = None if self.pending is None else self.pending.select(rows)
        return State(self.memory.select(rows), self.frame[rows], self.seed[rows], self.active[rows], pending)

    def fork(self, n: int) -> "State":
        """n continuations of every row, [B] -> [B * n]; they share a seed until you give them their own."""
        rows = torch.arange(self.batch, device=self.frame.device).repeat_interleave(n)
        pending = None if self.pending is None else self.pending.select(rows)
        return State(self.memory.fork(n), self.frame[rows], self.seed[rows], self.active[rows], pending)

    def reset(self, rows: Tensor, seed: Tensor) -> "State":
        """Rows of a mask [B] bool start anew with the given seeds [B]; the others stay bit for bit what they were."""
        pending = None if self.pending is None else replace(self.pending, ready=self.pending.ready & ~rows)
        frame, seed = self.frame.masked_fill(rows, 0), torch.where(rows, seed, self.seed)
        return State(self.memory.reset(rows), frame, seed, self.active | rows, pending)

    def to(self, device: torch.device | str) -> "State":
        pending = None if self.pending is None else Pending(self.pending.x.to(device), self.pending.ready.to(device))
        frame, seed, active = (t.to(device) for t in (self.frame, self.seed, self.active))
        return State(self.memory.to(device), frame, seed, active, pending)
