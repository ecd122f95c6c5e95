"""What a swap is made from and judged by: the control of training clips whose data are the swapped faces.

Letters: B rows, T frames, R reference pictures, S side of the aligned regions. A clip of swaps is `Clip(x, control,
index)` with x [B, T, 3, S, S] in -1..1, the faces that the generator should have made.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from worldmodel.face.generator import FaceControl


@dataclass(frozen=True, slots=True)
class SwapControl:
    """target: what a generator is given of every frame. reference: aligned pictures of who it should become.

    What only a loss and a judge may look at: `face`, how much of each pixel of the truth is the new face with nothing
    before it (0..1); `landmarks`, the truth's, in pixels of the region; `who`, numbers of the new and of the old
    person, -1 where nobody knows.
    """

    target: FaceControl  # [B, T]
    reference: Tensor  # [B, R, 3, S, S] fp32 in -1..1
    face: Tensor  # [B, T, 1, S, S] fp32
    landmarks: Tensor  # [B, T, 68, 2] fp32
    who: Tensor  # [B, 2] int64

    @property
    def batch(self) -> int:
        return self.reference.shape[0]

    @property
    def length(self) -> int:
        return self.target.length

    def to(self, device: torch.device | str) -> "SwapControl":
        rest = (part.to(device) for part in (self.reference, self.face, self.landmarks, self.who))
        return SwapControl(self.target.to(device), *rest)

    def select(self, rows: Tensor) -> "SwapControl":
        rest = (part[rows] for part in (self.reference, self.face, self.landmarks, self.who))
        return SwapControl(self.target.select(rows), *rest)

    def frames(self, start: int, stop: int) -> "SwapControl":
        target = self.target.frames(start, stop)
        return replace(self, target=target, face=self.face[:, start:stop], landmarks=self.landmarks[:, start:stop])

    def drop(self, rows: Tensor) -> "SwapControl":
        """Without the reference in some rows [B] bool: it is grey there."""
        return replace(self, reference=self.reference.masked_fill(rows[:, None, None, None, None], 0.0))
