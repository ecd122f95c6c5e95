"""Slow-fast memory: the first frames, a few that were surprising, and a ring of the newest, in constant bytes for ever.

The slow-fast memory of Context Forcing (2602.06028): a frame whose keys differ from those of the frame that was looked
at before it is kept when it leaves the ring, in the place of the oldest that was kept so. Which frames, and where
attention finds them, is in ledger.py; here are their keys and values. A frame is compared by its keys in the first
layer before rotation, their mean over the frame's tokens: one decision for all layers, known before any attention.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from worldmodel.errors import UserError

from .base import Context, Geometry, Holding, Reach, Rotation, together
from .ledger import PARTS, Ledger, Move, Tiers, trace
from .window import WindowConfig, WindowMemory


@dataclass(frozen=True, kw_only=True)
class SlowFastConfig:
    """sink: how many of a stream's first frames stay for ever. slow: how many surprising ones are kept. fast: how many
    of the newest. every: one frame of so many may be kept. surprise: it is kept if the cosine between its mean key and
    that of the one before it that might have been is below this.
    """

    sink: int = 2
    slow: int = 8
    fast: int = 6
    every: int = 4
    surprise: float = 0.95

    def __post_init__(self) -> None:
        if self.sink < 0 or self.slow < 1 or self.fast < 1 or self.every < 1 or not -1 <= self.surprise <= 1:
            raise UserError(
                f"slow-fast memory: sink {self.sink} must be at least 0, slow {self.slow}, fast {self.fast} and every "
                f"{self.every} at least 1, surprise {self.surprise} in [-1, 1]"
            )

    @property
    def tiers(self) -> Tiers:
        return Tiers(self.sink, self.slow, self.fast, self.every, self.surprise)

    @property
    def compares(self) -> bool:
        return True

    @property
    def capacity(self) -> int:
        return self.sink + self.slow + self.fast

    def check(self, chunk: int) -> None:
        if self.fast < chunk:
            raise UserError(f"slow-fast memory: {self.fast} fast frames do not hold one chunk of {chunk}")

    def empty(self, geometry: Geometry, batch: int, like: Tensor) -> "SlowFastMemory":
        return SlowFastMemory.empty(self.tiers, geometry, batch, like)

    def restore(self, tensors: dict[str, Tensor]) -> "SlowFastMemory":
        return SlowFastMemory.restore(self.tiers, tensors)

    def reach(self, starts: range, features: Tensor) -> list[Reach]:
        return trace(self.tiers, starts, features)


@dataclass(frozen=True, slots=True)
class SlowFastMemory:
    """A window of sink and ring with slow places between them."""

    window: WindowMemory
    keys: Tensor  # [L, B, h, S, n, D] of the slow places, rotated to time 0
    values: Tensor  # [L, B, h, S, n, D]
    ledger: Ledger

    @classmethod
    def empty(cls, tiers: Tiers, geometry: Geometry, batch: int, like: Tensor) -> "SlowFastMemory":
        g = geometry
        window = WindowConfig(sink=tiers.sink, ring=tiers.fast).empty(g, batch, like)
        keys = like.new_zeros(g.layers, batch, g.heads, tiers.slow, g.tokens, g.head_dim)
        return cls(window, keys, torch.zeros_like(keys), tiers.empty(batch, g.heads * g.head_dim, like.device))

    @classmethod
    def restore(cls, tiers: Tiers, tensors: dict[str, Tensor]) -> "SlowFastMemory":
        near, far = ({name: tensors[f"{part}.{name}"] for name in names} for part, names in STORED.items())
        window = WindowConfig(sink=tiers.sink, ring=tiers.fast).restore(near)
        ledger = Ledger(tiers, **{name: far[name].clone() for name in PARTS})
        if ledger.slow.shape[1] != tiers.slow:
            raise UserError(
                f"slow-fast memory: the snapshot holds {ledger.slow.shape[1]} slow frames, not {tiers.slow}"
            )
        return cls(window, far["keys"].clone(), far["values"].clone(), ledger)

    @property
    def batch(self) -> int:
        return self.window.batch

    @property
    def nbytes(self) -> int:
        own = (self.keys, self.values, *(getattr(self.ledger, name) for name in PARTS))
        return self.window.nbytes + sum(t.untyped_storage().nbytes() for t in own)

    def context(self, frame: Tensor, rotation: Rotation) -> Context:
        return together(self.pieces(frame, rotation))

    def pieces(self, frame: Tensor, rotation: Rotation) -> tuple[Context, ...]:
        """The slow frames and the sink, at their positions, and the ring where it lies."""
        held, sink = self.ledger.held(frame), self.window.sink
        keys = rotation.shift(self.keys.flatten(3, 4), held.places[:, sink:])
        slow = Context(keys, self.values.flatten(3, 4), held.valid[:, sink:])
        return slow, *self.window.pieces(frame, rotation, held.places[:, :sink])

    def holding(self, frame: Tensor) -> list[Holding]:
        slow, read = self.ledger.slow, self.ledger.held(frame).valid[:, self.window.sink :]
        chosen, seen = slow.tolist(), slow.masked_fill(~read, -1).tolist()
        return [
            replace(near, slow=_there(all_), read=_there(some), places=len(all_))
            for near, all_, some in zip(self.window.holding(frame), chosen, seen, strict=True)
        ]

    def append(self, keys: Tensor, values: Tensor, frame: Tensor, keep: Tensor, rotation: Rotation) -> "SlowFastMemory":
        window, ledger, slow_keys, slow_values = self.window, self.ledger, self.keys, self.values
        if window.shared[0] and not torch.is_grad_enabled():
            slow_keys, slow_values = slow_keys.clone(), slow_values.clone()
        features, rows = mean_keys(keys[0].detach(), self.keys.shape[4]), torch.arange(self.batch, device=frame.device)
        for i in range(keep.shape[1]):
            now = frame + i
            ledger, move = ledger.step(now, keep[:, i], features[:, i])
            left = window.at((now - window.sink).clamp_min(0) % window.ring)
            slow_keys = _put(slow_keys, rows, move, rotation.shift(left[0], (window.ring - now)[:, None]))
            slow_values = _put(slow_values, rows, move, left[1])
        return SlowFastMemory(window.append(keys, values, frame, keep, rotation), slow_keys, slow_values, ledger)

    def select(self, rows: Tensor) -> "SlowFastMemory":
        return SlowFastMemory(
            self.window.select(rows), self.keys[:, rows], self.values[:, rows], self.ledger.select(rows)
        )

    def fork(self, n: int) -> "SlowFastMemory":
        """As of the window: the forks of one row share its storage until one is appended to."""
        if self.batch != 1:
            return self.select(torch.arange(self.batch, device=self.keys.device).repeat_interleave(n))
        rows = torch.zeros(n, dtype=torch.int64, device=self.keys.device)
        keys, values = (t.expand(-1, n, -1, -1, -1, -1) for t in (self.keys, self.values))
        return SlowFastMemory(self.window.fork(n), keys, values, self.ledger.select(rows))

    def reset(self, rows: Tensor) -> "SlowFastMemory":
        gone = rows[:, None, None, None, None]
        keys, values = (t.masked_fill(gone, 0) for t in (self.keys, self.values))
        return SlowFastMemory(self.window.reset(rows), keys, values, self.ledger.reset(rows))

    def to(self, device: torch.device | str) -> "SlowFastMemory":
        keys, values = (t.to(device, copy=True) for t in (self.keys, self.values))
        return SlowFastMemory(self.window.to(device), keys, values, self.ledger.to(device))

    def tensors(self) -> dict[str, Tensor]:
        far = {"keys": self.keys.clone(), "values": self.values.clone()} | self.ledger.tensors()
        parts = {"window": self.window.tensors(), "slow": far}
        return {f"{part}.{name}": parts[part][name] for part, names in STORED.items() for name in names}


STORED = {"window": ("keys", "values", "held"), "slow": ("keys", "values", *PARTS)}  # in a snapshot


def mean_keys(keys: Tensor, tokens: int) -> Tensor:
    """Features of frames [B, K, h * D]: the means of one layer's unrotated keys [B, h, K * n, D] over n tokens."""
    return keys.float().unflatten(2, (-1, tokens)).mean(3).movedim(2, 1).flatten(2)


def _there(frames: list[int]) -> tuple[int, ...]:
    """The frames of places that hold one, oldest first."""
    return tuple(sorted(frame for frame in frames if frame >= 0))


def _put(storage: Tensor, rows: Tensor, move: Move, new: Tensor) -> Tensor:
    """Storage [L, B, h, S, n, D] with the frames new [L, B, h, n, D] in the places of a move; in place without grad."""
    view, new = storage.permute(1, 3, 0, 2, 4, 5), new.transpose(0, 1)  # [B, S, L, h, n, D] and [B, L, h, n, D]
    index = (rows, move.place)
    new = torch.where(move.goes[:, None, None, None, None], new, view[index])
    if torch.is_grad_enabled():
        return view.index_put(index, new).permute(2, 0, 3, 1, 4, 5)
    view.index_put_(index, new)
    return storage
