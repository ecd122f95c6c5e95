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
    last: Tensor | None = None  # [B, ...] the newest finished frame; None, or zeros in a row, before there is one

    @property
    def batch(self) -> int:
        return self.frame.shape[0]

    def select(self, rows: Tensor) -> "State":
        """A copy of the rows of an index tensor [B'] int64."""
        return self._rows(rows, self.memory.select(rows))

    def fork(self, n: int) -> "State":
        """n continuations of every row, [B] -> [B * n]; they share a seed until you give them their own."""
        rows = torch.arange(self.batch, device=self.frame.device).repeat_interleave(n)
        return self._rows(rows, self.memory.fork(n))

    def _rows(self, rows: Tensor, memory: Memory) -> "State":
        pending = None if self.pending is None else self.pending.select(rows)
        last = None if self.last is None else self.last[rows]
        return State(memory, self.frame[rows], self.seed[rows], self.active[rows], pending, last)

    def reset(self, rows: Tensor, seed: Tensor) -> "State":
        """Rows of a mask [B] bool start anew with the given seeds [B]; the others stay bit for bit what they were.

        A mask or seeds of another shape are a ValueError.
        """
        if rows.shape != self.frame.shape or seed.shape != self.frame.shape or rows.dtype != torch.bool:
            raise ValueError(
                f"reset takes a bool mask and seeds [{self.batch}], not {rows.dtype} {list(rows.shape)} and "
                f"{list(seed.shape)}"
            )
        pending = None if self.pending is None else replace(self.pending, ready=self.pending.ready & ~rows)
        last = None if self.last is None else self.last.masked_fill(_wide(rows, self.last), 0)
        frame, seed = self.frame.masked_fill(rows, 0), torch.where(rows, seed, self.seed)
        return State(self.memory.reset(rows), frame, seed, self.active | rows, pending, last)

    def advance(self, memory: Memory, x: Tensor, executed: Tensor) -> "State":
        """Past a finished chunk x [B, K, ...] that `memory` holds, of which executed [B] frames were used.

        Inactive rows, and rows that used none, stay where they are.
        """
        order = torch.arange(self.batch, device=x.device)
        newest = x[order, executed.clamp_min(1) - 1]
        before = torch.zeros_like(newest) if self.last is None else self.last
        last = torch.where(_wide(self.active & (executed > 0), newest), newest, before)
        frame = self.frame + torch.where(self.active, executed, torch.zeros_like(executed))
        return replace(self, memory=memory, frame=frame, last=last)

    def to(self, device: torch.device | str) -> "State":
        pending = None if self.pending is None else Pending(self.pending.x.to(device), self.pending.ready.to(device))
        last = None if self.last is None else self.last.to(device)
        frame, seed, active = (t.to(device) for t in (self.frame, self.seed, self.active))
        return State(self.memory.to(device), frame, seed, active, pending, last)


def _wide(rows: Tensor, like: Tensor) -> Tensor:
    return rows.reshape(-1, *(1,) * (like.ndim - 1))
