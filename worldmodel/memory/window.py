"""Window memory: the first frames (sink) and a ring of the newest, in constant bytes for ever.

Keys of the ring are stored rotated to their absolute frame: rotary attention sees differences only, and the angles are
computed in fp64, so that a stream may run as long as int64 counts. Sink keys are stored unrotated and placed directly
before the ring, so that no distance ever exceeds sink + ring + chunk (the bounded positions of LongLive, 2509.22622).
"""

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from worldmodel.errors import UserError
from worldmodel.kernels.qk_norm_rope import write_ring

from .base import Context, Geometry, Held, Holding, Reach, Rotation, together


@dataclass(frozen=True, kw_only=True)
class WindowConfig:
    """sink: how many of a stream's first frames stay for ever. ring: how many of the newest are kept."""

    sink: int = 0
    ring: int = 16

    def __post_init__(self) -> None:
        if self.sink < 0 or self.ring < 1:
            raise UserError(f"window memory: sink {self.sink} must be at least 0 and ring {self.ring} at least 1")

    def empty(self, geometry: Geometry, batch: int, like: Tensor) -> "WindowMemory":
        g = geometry
        keys = like.new_zeros(g.layers, batch, g.heads, self.sink + self.ring, g.tokens, g.head_dim)
        held = torch.full((batch, self.sink + self.ring), -1, dtype=torch.int64, device=like.device)
        return WindowMemory(keys, torch.zeros_like(keys), held, self.sink)

    def restore(self, tensors: dict[str, Tensor]) -> "WindowMemory":
        keys, values, held = (tensors[name].clone() for name in ("keys", "values", "held"))
        if held.shape[1] != self.sink + self.ring:
            raise UserError(f"window memory: the snapshot holds {held.shape[1]} frames, not {self.sink + self.ring}")
        return WindowMemory(keys, values, held, self.sink)

    @property
    def compares(self) -> bool:
        return False

    @property
    def capacity(self) -> int:
        return self.sink + self.ring

    def check(self, chunk: int) -> None:
        if self.ring < chunk:
            raise UserError(f"window memory: a ring of {self.ring} frames does not hold one chunk of {chunk}")

    def reach(self, starts: range, features: Tensor) -> list[Reach]:
        rows, device = features.shape[0], features.device
        order, found = torch.arange(self.sink, device=device).expand(rows, -1), []
        for start in starts:
            first = max(self.sink, start - self.ring)
            held = Held(order, order + first - self.sink, order < start) if self.sink else None
            found.append(Reach(min(start, first), held))
        return found


@dataclass(frozen=True, slots=True)
class WindowMemory:
    """Slots 0 to sink - 1 hold the sink; frame g lives in ring slot sink + (g - sink) mod ring."""

    keys: Tensor  # [L, B, h, slots, n, D]; sink slots unrotated, ring slots rotated
    values: Tensor  # [L, B, h, slots, n, D]
    held: Tensor  # [B, slots] int64, the absolute frame in each slot, -1 for none
    sink: int
    version: int = 0  # of this value; the storage knows the newest
    newest: list[int] = field(default_factory=lambda: [0])
    shared: list[bool] = field(default_factory=lambda: [False])  # whether forks look at the storage too

    @property
    def batch(self) -> int:
        return self.held.shape[0]

    @property
    def ring(self) -> int:
        return self.held.shape[1] - self.sink

    @property
    def nbytes(self) -> int:
        return sum(t.untyped_storage().nbytes() for t in (self.keys, self.values, self.held))

    def _check(self) -> None:
        if self.version != self.newest[0]:
            raise RuntimeError("this memory was consumed by a later append; fork it before, or use the newer value")

    def context(self, frame: Tensor, rotation: Rotation, sink_at: Tensor | None = None) -> Context:
        """sink_at: time positions [B, sink] for the sink; None puts it directly before the ring."""
        return together(self.pieces(frame, rotation, sink_at))

    def pieces(self, frame: Tensor, rotation: Rotation, sink_at: Tensor | None = None) -> tuple[Context, ...]:
        """The sink, at its positions, and the ring where it lies."""
        self._check()
        there, cut = self.held >= 0, self.sink
        ring = Context(self.keys[:, :, :, cut:].flatten(3, 4), self.values[:, :, :, cut:].flatten(3, 4), there[:, cut:])
        if not cut:
            return (ring,)
        if sink_at is None:
            order = torch.arange(cut, device=frame.device)
            sink_at = order + (frame - self.ring - cut).clamp_min(0)[:, None]
        keys = rotation.rotate(self.keys[:, :, :, :cut].flatten(3, 4), sink_at)
        return Context(keys, self.values[:, :, :, :cut].flatten(3, 4), there[:, :cut]), ring

    def holding(self, frame: Tensor) -> list[Holding]:
        self._check()
        return [Holding(sum(row[: self.sink]), ring=sum(row[self.sink :])) for row in (self.held >= 0).tolist()]

    def at(self, slot: Tensor) -> tuple[Tensor, Tensor]:
        """Keys (rotated) and values of the frame in a ring slot [B] of every row, two of [L, B, h, n, D]."""
        self._check()
        rows, place = torch.arange(self.batch, device=slot.device), self.sink + slot
        keys, values = (t.permute(1, 3, 0, 2, 4, 5)[rows, place].transpose(0, 1) for t in (self.keys, self.values))
        return keys, values

    def append(self, keys: Tensor, values: Tensor, frame: Tensor, keep: Tensor, rotation: Rotation) -> "WindowMemory":
        self._check()
        if self.shared[0] and not torch.is_grad_enabled():
            self.newest[0] += 1  # consumed, as without forks
            owned = WindowMemory(self.keys.clone(), self.values.clone(), self.held.clone(), self.sink)
            return owned.append(keys, values, frame, keep, rotation)
        size = keep.shape[1]
        WindowConfig(sink=self.sink, ring=self.ring).check(size)
        frames = frame[:, None] + torch.arange(size, device=frame.device)
        in_sink = frames < self.sink
        slots = torch.where(in_sink, frames, self.sink + (frames - self.sink) % self.ring)
        if torch.is_grad_enabled():
            return self._with(keys, values, frames, slots, keep, rotation)
        cos, sin = (part[:, 0] for part in rotation.table(frames))
        if self.sink:  # stored as it is
            still = in_sink.repeat_interleave(self.keys.shape[4], 1)[..., None]
            cos, sin = cos.masked_fill(still, 1), sin.masked_fill(still, 0)
        new = keys.transpose(2, 3), values.transpose(2, 3)
        write_ring(*new, None, (cos, sin), 0.0, rotation.pairing, self.keys, self.values, slots, keep)
        rows = torch.arange(self.batch, device=frame.device)[:, None].expand_as(slots)
        self.held.index_put_((rows, slots), torch.where(keep, frames, self.held[rows, slots]))
        self.newest[0] += 1
        return replace(self, version=self.newest[0])

    def _with(
        self, keys: Tensor, values: Tensor, frames: Tensor, slots: Tensor, keep: Tensor, rotation: Rotation
    ) -> "WindowMemory":
        """Another memory with the frames in their slots, as a function that has gradients."""
        rotated, size = rotation.rotate(keys, frames), keep.shape[1]
        raw, rotated, values = (t.unflatten(3, (size, -1)) for t in (keys, rotated, values))
        new = torch.where((frames < self.sink)[None, :, None, :, None, None], raw, rotated) if self.sink else rotated
        rows = torch.arange(self.batch, device=frames.device)[:, None].expand_as(slots)
        kept, back = keep[:, :, None, None, None, None], (2, 0, 3, 1, 4, 5)

        def put(stored: Tensor, new: Tensor) -> Tensor:
            stored, new = (t.permute(1, 3, 0, 2, 4, 5) for t in (stored, new))  # [B, slots, L, h, n, D]
            return stored.index_put((rows, slots), torch.where(kept, new, stored[rows, slots])).permute(back)

        held = self.held.index_put((rows, slots), torch.where(keep, frames, self.held[rows, slots]))
        return WindowMemory(put(self.keys, new), put(self.values, values), held, self.sink)

    def select(self, rows: Tensor) -> "WindowMemory":
        self._check()
        return WindowMemory(self.keys[:, rows], self.values[:, rows], self.held[rows], self.sink)

    def fork(self, n: int) -> "WindowMemory":
        """The forks of one row share its storage until they, or it, are appended to; several rows are copied."""
        if self.batch != 1:
            return self.select(torch.arange(self.batch, device=self.held.device).repeat_interleave(n))
        self._check()
        self.shared[0] = True
        keys, values = (t.expand(-1, n, -1, -1, -1, -1) for t in (self.keys, self.values))
        return WindowMemory(keys, values, self.held.expand(n, -1), self.sink, shared=[True])

    def reset(self, rows: Tensor) -> "WindowMemory":
        self._check()
        gone = rows[:, None, None, None, None]  # zeros, so that a row that went NaN is clean again
        keys, values = (t.masked_fill(gone, 0) for t in (self.keys, self.values))
        return WindowMemory(keys, values, self.held.masked_fill(rows[:, None], -1), self.sink)

    def to(self, device: torch.device | str) -> "WindowMemory":
        self._check()
        keys, values, held = (t.to(device, copy=True) for t in (self.keys, self.values, self.held))
        return WindowMemory(keys, values, held, self.sink)

    def tensors(self) -> dict[str, Tensor]:
        self._check()
        return {name: getattr(self, name).clone() for name in ("keys", "values", "held")}
