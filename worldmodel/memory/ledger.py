"""Which frames a slow memory holds and where attention finds them: decisions only, no keys.

A stream's newest frames are in a ring of `fast` frames. Every `every`-th frame is a candidate; one that is chosen goes
into one of the `slow` places when the ring drops it, and takes the place of the oldest there. Places before the ring
are given anew for every chunk, [sink | slow | ring | chunk] without gaps, so that no distance ever exceeds
sink + slow + fast + chunk (Context Forcing, 2602.06028).

A memory steps its ledger with every frame that it stores; training steps one along a clip (`trace`). Both therefore
attend to the same frames at the same places.

Shape letters: B rows, S slow places, R frames of the ring, D width of a frame's feature, M = sink + S.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional as F

from .base import Held, Reach

PARTS = ("slow", "chosen", "last", "features")  # the tensors of a ledger


@dataclass(frozen=True, slots=True)
class Tiers:
    """The numbers of a policy.

    surprise: a candidate is chosen if the cosine of its feature and that of the candidate before it is below this;
    above 1 all are. read: at most so many slow frames are read, those most like the newest frame; None for all.
    """

    sink: int
    slow: int
    fast: int
    every: int
    surprise: float
    read: int | None = None

    def empty(self, batch: int, width: int, device: torch.device) -> "Ledger":
        """width: D of the features [B, D] that frames will have."""
        slow = torch.full((batch, self.slow), -1, dtype=torch.int64, device=device)
        chosen = torch.zeros(batch, self.fast, dtype=torch.bool, device=device)
        wide = 0 if self.read is None else width
        features = torch.zeros(batch, self.slow + self.fast, wide, device=device)
        return Ledger(self, slow, chosen, torch.zeros(batch, width, device=device), features)


@dataclass(frozen=True, slots=True)
class Move:
    """What happens in a row when a frame is stored: the frame that the ring drops may go to a slow place."""

    goes: Tensor  # [B] bool
    place: Tensor  # [B] int64, which of the S


@dataclass(frozen=True, slots=True)
class Ledger:
    """A value; frame g of a stream is in ring slot (g - sink) mod R."""

    tiers: Tiers
    slow: Tensor  # [B, S] int64, the absolute frame in each place, -1 for none
    chosen: Tensor  # [B, R] bool, of the frame in each ring slot
    last: Tensor  # [B, D] feature of the newest candidate, zeros before there is one
    features: Tensor  # [B, S + R, D] of every frame held, if slow frames are picked by likeness; else D = 0

    def step(self, frame: Tensor, keep: Tensor, feature: Tensor) -> tuple["Ledger", Move]:
        """The ledger after frame [B] int64 with feature [B, D] of the rows keep [B] bool, and what moved."""
        t, rows = self.tiers, torch.arange(len(frame), device=frame.device)
        stored = keep & (frame >= t.sink)
        slot = (frame - t.sink).clamp_min(0) % t.fast
        goes, place = stored & self.chosen[rows, slot], self.slow.argmin(1)  # an empty place, or the oldest frame's

        candidate = keep & (frame % t.every == 0)
        surprising = F.cosine_similarity(feature, self.last, dim=-1) < t.surprise
        slow = self.slow.index_put((rows, place), torch.where(goes, frame - t.fast, self.slow[rows, place]))
        now = torch.where(stored, candidate & surprising, self.chosen[rows, slot])
        features = self.features
        if t.read is not None:
            left, moved = features[rows, t.slow + slot], features[rows, place]
            features = features.index_put((rows, place), torch.where(goes[:, None], left, moved))
            features = features.index_put((rows, t.slow + slot), torch.where(stored[:, None], feature, left))
        after = replace(
            self,
            slow=slow,
            chosen=self.chosen.index_put((rows, slot), now),
            last=torch.where(candidate[:, None], feature, self.last),
            features=features,
        )
        return after, Move(goes, place)

    def held(self, frame: Tensor) -> Held:
        """What a chunk that starts at frame [B] reads beside the ring: sink and slow frames, M of them."""
        t, order = self.tiers, torch.arange(self.tiers.sink, device=frame.device)
        read = self._read(frame)
        before = (self.slow[:, None] < self.slow[:, :, None]) & read[:, None]  # [B, S, S]
        edge = (frame - t.fast).clamp_min(t.sink)[:, None]  # the ring's first frame
        count = read.sum(1, keepdim=True)
        frames = torch.cat((order.expand(len(frame), -1), self.slow), 1)
        place = torch.cat((edge - count - t.sink + order, edge - count + before.sum(2)), 1)
        return Held(frames.clamp_min(0), place, torch.cat((order < frame[:, None], read), 1))

    def _read(self, frame: Tensor) -> Tensor:
        """Which slow frames are read, [B, S] bool."""
        t, there = self.tiers, self.slow >= 0
        if t.read is None or t.read >= t.slow:
            return there
        rows = torch.arange(len(frame), device=frame.device)
        newest = self.features[rows, t.slow + (frame - 1 - t.sink).clamp_min(0) % t.fast]
        likeness = F.cosine_similarity(self.features[:, : t.slow], newest[:, None], dim=-1)
        best = likeness.masked_fill(~there, -2).topk(t.read, 1).indices
        return torch.zeros_like(there).scatter(1, best, True) & there

    def select(self, rows: Tensor) -> "Ledger":
        return replace(self, **{name: getattr(self, name)[rows] for name in PARTS})

    def reset(self, rows: Tensor) -> "Ledger":
        gone, wide = rows[:, None], rows[:, None, None]
        return replace(
            self,
            slow=self.slow.masked_fill(gone, -1),
            chosen=self.chosen & ~gone,
            last=self.last.masked_fill(gone, 0),
            features=self.features.masked_fill(wide, 0),
        )

    def to(self, device: torch.device | str) -> "Ledger":
        return replace(self, **{name: getattr(self, name).to(device, copy=True) for name in PARTS})

    def tensors(self) -> dict[str, Tensor]:
        return {name: getattr(self, name).clone() for name in PARTS}


@torch.no_grad()
def trace(tiers: Tiers, starts: range, features: Tensor) -> list[Reach]:
    """What the chunks of a clip that begin at `starts` read, if frame g of it has features[:, g], [B, T, D]."""
    batch, device = features.shape[0], features.device
    ledger, found = tiers.empty(batch, features.shape[2], device), []
    everyone = torch.ones(batch, dtype=torch.bool, device=device)
    for start in starts:
        begin = torch.full((batch,), start, device=device)
        found.append(Reach(min(start, max(tiers.sink, start - tiers.fast)), ledger.held(begin)))
        for g in range(start, min(start + starts.step, features.shape[1])):
            ledger, _ = ledger.step(torch.full_like(begin, g), everyone, features[:, g])
    return found
