"""Full memory: every frame is kept. Exact, and grows; the reference for all other policies."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from .base import Context, Geometry, Reach, Rotation


@dataclass(frozen=True, kw_only=True)
class FullConfig:
    """Keep everything."""

    def empty(self, geometry: Geometry, batch: int, like: Tensor) -> "FullMemory":
        g = geometry
        k = like.new_zeros(g.layers, batch, g.heads, 0, g.head_dim)
        none = torch.zeros(batch, 0, dtype=torch.bool, device=like.device)
        return FullMemory((k,), (k,), (none,), g.tokens)

    def restore(self, tensors: dict[str, Tensor]) -> "FullMemory":
        tokens = int(tensors["tokens"])
        return FullMemory((tensors["keys"],), (tensors["values"],), (tensors["valid"],), tokens)

    @property
    def compares(self) -> bool:
        return False

    @property
    def capacity(self) -> None:
        return None

    def check(self, chunk: int) -> None:
        """Any chunk fits."""

    def reach(self, starts: range, features: Tensor) -> list[Reach]:
        return [Reach(0) for _ in starts]


@dataclass(frozen=True, slots=True)
class FullMemory:
    """Segments in time order, never written to after they were made, so that forks and older values share them."""

    keys: tuple[Tensor, ...]  # [L, B, h, F * n, D] each, rotated to absolute frames
    values: tuple[Tensor, ...]
    valid: tuple[Tensor, ...]  # [B, F] bool each
    tokens: int

    @property
    def batch(self) -> int:
        return self.valid[0].shape[0]

    @property
    def nbytes(self) -> int:
        return sum(t.untyped_storage().nbytes() for part in (self.keys, self.values, self.valid) for t in part)

    def context(self, frame: Tensor, rotation: Rotation) -> Context:
        valid = torch.cat(self.valid, 1).repeat_interleave(self.tokens, 1)
        return Context(torch.cat(self.keys, 3), torch.cat(self.values, 3), valid)

    def append(self, keys: Tensor, values: Tensor, frame: Tensor, keep: Tensor, rotation: Rotation) -> "FullMemory":
        keys = rotation.rotate(keys, frame[:, None] + torch.arange(keep.shape[1], device=frame.device))
        gone = ~keep.repeat_interleave(self.tokens, 1)[:, None, :, None]  # zeros: a mask does not stop NaN
        keys, values = keys.masked_fill(gone, 0), values.masked_fill(gone, 0)
        return replace(self, keys=(*self.keys, keys), values=(*self.values, values), valid=(*self.valid, keep.clone()))

    def select(self, rows: Tensor) -> "FullMemory":
        keys, values = (tuple(t[:, rows] for t in part) for part in (self.keys, self.values))
        return replace(self, keys=keys, values=values, valid=tuple(t[rows] for t in self.valid))

    def fork(self, n: int) -> "FullMemory":
        if self.batch != 1:
            return self.select(torch.arange(self.batch, device=self.valid[0].device).repeat_interleave(n))
        shared = (tuple(t.expand(-1, n, -1, -1, -1) for t in part) for part in (self.keys, self.values))
        keys, values = shared  # one row: the forks look at the same storage
        return replace(self, keys=keys, values=values, valid=tuple(t.expand(n, -1) for t in self.valid))

    def reset(self, rows: Tensor) -> "FullMemory":
        gone = rows[:, None, None, None]
        keys, values = (tuple(t.masked_fill(gone, 0) for t in part) for part in (self.keys, self.values))
        return replace(self, keys=keys, values=values, valid=tuple(t & ~rows[:, None] for t in self.valid))

    def to(self, device: torch.device | str) -> "FullMemory":
        keys, values, valid = (tuple(t.to(device) for t in part) for part in (self.keys, self.values, self.valid))
        return replace(self, keys=keys, values=values, valid=valid)

    def tensors(self) -> dict[str, Tensor]:
        return {
            "keys": torch.cat(self.keys, 3),
            "values": torch.cat(self.values, 3),
            "valid": torch.cat(self.valid, 1),
            "tokens": torch.tensor(self.tokens),
        }
