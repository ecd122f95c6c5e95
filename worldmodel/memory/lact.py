"""LaCT memory: a ring of the newest frames, and fast weights that every clean chunk updates (2505.23884).

The model owns the initial weights; the memory holds what a stream has added to them, so that an empty row is zeros
whatever the model. Bytes are constant: the ring's, and fp32 for three matrices per layer and head group.

Shape letters: L layers, B rows, G head groups, N tokens of a chunk, D width of a group, E hidden width.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from worldmodel.errors import UserError
from worldmodel.kernels.fast_weight import FastWeights, update

from .base import Context, Geometry, Reach, Rotation
from .window import WindowConfig, WindowMemory

MATRICES = ("w0", "w1", "w2")


@dataclass(frozen=True, slots=True)
class Written:
    """What the tokens of a chunk write into fast weights; with L in front for all layers at once."""

    keys: Tensor  # [B, G, N, D], unit norm
    values: Tensor  # [B, G, N, D]
    rates: Tensor  # [B, G, N, 3], at least 0; 0 leaves a token out
    beta: Tensor | None  # [B, G, N], decay of the momentum, where there is one

    def tokens(self, first: int, last: int) -> "Written":
        keys, values, rates = (t[..., first:last, :] for t in (self.keys, self.values, self.rates))
        return Written(keys, values, rates, None if self.beta is None else self.beta[..., first:last])


def learn(
    weights: FastWeights, momentum: FastWeights | None, initial: FastWeights, written: Written, muon: int
) -> tuple[FastWeights, FastWeights | None]:
    """Fast weights and momentum after a chunk; its decay is the mean over the tokens that are not left out."""
    beta = written.beta
    if beta is not None:
        there = (written.rates != 0).any(-1)
        beta = beta.masked_fill(~there, 0).sum(-1) / there.sum(-1).clamp_min(1)
    return update(weights, initial, written.keys, written.values, written.rates, momentum, beta, muon)


@dataclass(frozen=True, kw_only=True)
class LactConfig:
    """ring: how many of the newest frames are kept beside the fast weights, whose sizes are the model's."""

    ring: int = 6

    def __post_init__(self) -> None:
        if self.ring < 1:
            raise UserError(f"lact memory: ring {self.ring} must be at least 1")

    @property
    def window(self) -> WindowConfig:
        return WindowConfig(sink=0, ring=self.ring)

    @property
    def compares(self) -> bool:
        return False

    @property
    def capacity(self) -> int:
        return self.ring

    def check(self, chunk: int) -> None:
        if self.ring < chunk:
            raise UserError(f"lact memory: a ring of {self.ring} frames does not hold one chunk of {chunk}")

    def empty(self, geometry: Geometry, batch: int, like: Tensor) -> "LactMemory":
        if geometry.fast is None:
            raise UserError("lact memory: this model has no fast weights (model.fast)")
        fast = geometry.fast
        lead, kind = (geometry.layers, batch, fast.groups), torch.promote_types(like.dtype, torch.float32)
        shapes = ((fast.hidden, fast.width), (fast.width, fast.hidden), (fast.hidden, fast.width))
        added = FastWeights(*(torch.zeros(*lead, *shape, dtype=kind, device=like.device) for shape in shapes))
        momentum = FastWeights(*(torch.zeros_like(w) for w in added)) if fast.momentum else None
        return LactMemory(self.window.empty(geometry, batch, like), added, momentum)

    def restore(self, tensors: dict[str, Tensor]) -> "LactMemory":
        window = self.window.restore({name: tensors[f"window.{name}"] for name in ("keys", "values", "held")})
        added, momentum = (
            FastWeights(*(tensors[f"{part}.{name}"].clone() for name in MATRICES)) if f"{part}.w0" in tensors else None
            for part in ("added", "momentum")
        )
        if added is None:
            raise KeyError("added.w0")
        return LactMemory(window, added, momentum)

    def reach(self, starts: range, features: Tensor) -> list[Reach]:
        return self.window.reach(starts, features)


@dataclass(frozen=True, slots=True)
class LactMemory:
    """A ring, and [L, B, G, ...] of added fast weights."""

    window: WindowMemory
    added: FastWeights
    momentum: FastWeights | None

    @property
    def batch(self) -> int:
        return self.window.batch

    @property
    def nbytes(self) -> int:
        return self.window.nbytes + sum(w.untyped_storage().nbytes() for w in (*self.added, *(self.momentum or ())))

    def context(self, frame: Tensor, rotation: Rotation) -> Context:
        return replace(self.window.context(frame, rotation), fast=self.added)

    def pieces(self, frame: Tensor, rotation: Rotation) -> tuple[Context, ...]:
        first, *rest = self.window.pieces(frame, rotation)
        return replace(first, fast=self.added), *rest

    def append(self, keys: Tensor, values: Tensor, frame: Tensor, keep: Tensor, rotation: Rotation) -> "LactMemory":
        return replace(self, window=self.window.append(keys, values, frame, keep, rotation))

    def learn(self, initial: FastWeights, written: Written, keep: Tensor, muon: int) -> "LactMemory":
        """The memory after a clean chunk has updated the fast weights.

        initial: the model's, [L, 1, G, ...]. written: of the chunk, with L in front. keep: [B, K] bool, its frames that
        count.
        """
        tokens = keep.repeat_interleave(written.rates.shape[-2] // keep.shape[1], 1)[:, None, :, None]
        written = replace(written, rates=written.rates.masked_fill(~tokens, 0))
        weights, momentum = learn(initial + self.added, self.momentum, initial, written, muon)
        moved = keep.any(1)[:, None, None, None]  # a row that writes nothing stays what it was, bit by bit
        added = FastWeights(
            *(torch.where(moved, new, old) for new, old in zip(weights - initial, self.added, strict=True))
        )
        return LactMemory(self.window, added, momentum)

    def select(self, rows: Tensor) -> "LactMemory":
        return self._each(self.window.select(rows), lambda w: w[:, rows])

    def fork(self, n: int) -> "LactMemory":
        """Fast weights are never written to in place: the forks of one row share them."""
        if self.batch != 1:
            return self.select(torch.arange(self.batch, device=self.window.held.device).repeat_interleave(n))
        return self._each(self.window.fork(n), lambda w: w.expand(-1, n, -1, -1, -1))

    def reset(self, rows: Tensor) -> "LactMemory":
        return self._each(self.window.reset(rows), lambda w: w.masked_fill(rows[:, None, None, None], 0))

    def to(self, device: torch.device | str) -> "LactMemory":
        return self._each(self.window.to(device), lambda w: w.to(device, copy=True))

    def tensors(self) -> dict[str, Tensor]:
        found = {f"window.{name}": tensor for name, tensor in self.window.tensors().items()}
        for part, matrices in (("added", self.added), ("momentum", self.momentum)):
            if matrices is not None:
                found |= {f"{part}.{name}": w.clone() for name, w in zip(MATRICES, matrices, strict=True)}
        return found

    def _each(self, window: WindowMemory, change: Callable[[Tensor], Tensor]) -> "LactMemory":
        added = FastWeights(*map(change, self.added))
        return LactMemory(window, added, None if self.momentum is None else FastWeights(*map(change, self.momentum)))
