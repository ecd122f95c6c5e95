"""A generator that never shows what is not finite: the last good face is shown again, and its memory begins anew."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from worldmodel.face.generator import FaceControl, Generator


@dataclass(frozen=True, slots=True, eq=False)
class Kept:
    """inner: the generator's state. last: [B, 3, S, S], the newest face of each row; good: [B] bool, whether there is
    one. held: chunks so far that were not finite in some row."""

    inner: Any
    last: Tensor
    good: Tensor
    held: int = 0

    def reset(self, rows: Tensor) -> "Kept":
        return Kept(self.inner.reset(rows), self.last, self.good & ~rows, self.held)


@dataclass(frozen=True, slots=True)
class Guarded:
    """Makes what another generator makes; where that is not finite, the row's last good face, or the target itself."""

    generator: Generator[Any]

    @property
    def size(self) -> int:
        return self.generator.size

    @property
    def chunk(self) -> int:
        return self.generator.chunk

    def begin(self, reference: Tensor, rows: int) -> Kept:
        last = torch.zeros(rows, 3, self.size, self.size)
        return Kept(self.generator.begin(reference, rows), last, torch.zeros(rows, dtype=torch.bool))

    def generate(self, control: FaceControl, state: Kept) -> tuple[Tensor, Kept]:
        faces, inner = self.generator.generate(control, state.inner)
        active = control.active.any(1)
        bad = active & ~faces.isfinite().flatten(1).all(1)
        if bad.any():
            every = (slice(None), None, None, None, None)
            instead = torch.where(state.good[every], state.last[:, None], control.crops)
            faces, inner = torch.where(bad[every], instead, faces), inner.reset(bad)
        made = active & ~bad
        last = torch.where(made[:, None, None, None], faces[:, -1], state.last)
        return faces, Kept(inner, last, state.good | made, state.held + int(bad.any()))
