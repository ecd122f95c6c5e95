"""What makes the new face: K aligned crops in, K out, with the state as a value; and two baselines without weights.

Letters: B rows (slots of faces), K frames of a chunk, S side of a region. A chunk model of the engine fits here: the
control is its region latents' source, the reference is its sink (written once at `begin` or `reset`), and its memory
of its own last chunks is in the state.
"""

from dataclasses import dataclass, replace
from typing import Protocol, Self

import cv2
import numpy as np
import torch
from torch import Tensor

from worldmodel.face.region import soft_mask


@dataclass(frozen=True, slots=True)
class FaceControl:
    """What is known before a chunk of faces is made: a control of the engine, per frame.

    Rows that are not `active` hold no face; their output is not looked at.
    """

    crops: Tensor  # [B, K, 3, S, S] fp32 in -1..1, the target's aligned regions
    mask: Tensor  # [B, K, 1, S, S] fp32 in 0..1, what will be seen of the output
    landmarks: Tensor  # [B, K, 68, 2] fp32, in pixels of the region
    active: Tensor  # [B, K] bool

    @property
    def batch(self) -> int:
        return self.crops.shape[0]

    @property
    def length(self) -> int:
        return self.crops.shape[1]

    def _all(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return self.crops, self.mask, self.landmarks, self.active

    def to(self, device: torch.device | str) -> "FaceControl":
        return FaceControl(*(part.to(device) for part in self._all()))

    def select(self, rows: Tensor) -> "FaceControl":
        return FaceControl(*(part[rows] for part in self._all()))

    def frames(self, start: int, stop: int) -> "FaceControl":
        return FaceControl(*(part[:, start:stop] for part in self._all()))

    def drop(self, rows: Tensor) -> "FaceControl":
        """Without the target's face in some rows [B] bool: what is seen of the output is grey in the crops."""
        hidden = self.crops * (1 - self.mask)
        return replace(self, crops=torch.where(rows[:, None, None, None, None], hidden, self.crops))


class State(Protocol):
    """A generator's memory: a value that can be copied."""

    def reset(self, rows: Tensor) -> Self:
        """The same state with the rows of a mask [B] bool as at `begin`: another face takes that row."""
        ...


class Generator[S: State](Protocol):
    """size: S of its regions; chunk: K."""

    @property
    def size(self) -> int: ...

    @property
    def chunk(self) -> int: ...

    def begin(self, reference: Tensor, rows: int) -> S:
        """The state of `rows` streams that all get the aligned reference face [3, S, S] in -1..1."""
        ...

    def generate(self, control: FaceControl, state: S) -> tuple[Tensor, S]:
        """New faces [B, K, 3, S, S] in -1..1 for the control's crops, and the state after them."""
        ...


@dataclass(frozen=True, slots=True)
class Held:
    """The state of a baseline: the reference [3, S, S], and nothing of the past."""

    reference: Tensor

    def reset(self, rows: Tensor) -> "Held":
        return self


@dataclass(frozen=True, slots=True)
class CopyPaste:
    """The baseline: the aligned reference itself, whatever the target does."""

    size: int = 256
    chunk: int = 4

    def begin(self, reference: Tensor, rows: int) -> Held:
        return Held(reference)

    def generate(self, control: FaceControl, state: Held) -> tuple[Tensor, Held]:
        return state.reference.expand(control.crops.shape), state


@dataclass(frozen=True, slots=True)
class PoissonBlend:
    """The second baseline: the reference's gradients on the target's border (Perez, Gangnet & Blake, 2003)."""

    size: int = 256
    chunk: int = 4

    def begin(self, reference: Tensor, rows: int) -> Held:
        return Held(reference)

    def generate(self, control: FaceControl, state: Held) -> tuple[Tensor, Held]:
        source = _bytes(state.reference)
        inside = (soft_mask(self.size) > 0).astype(np.uint8) * 255
        rows, columns = np.flatnonzero(inside.any(1)), np.flatnonzero(inside.any(0))
        centre = int(columns[0] + columns[-1] + 1) // 2, int(rows[0] + rows[-1] + 1) // 2
        out = control.crops.clone()
        for b, k in control.active.nonzero().tolist():
            target = _bytes(control.crops[b, k])
            # A copy of the mask: OpenCV 4.13 writes to it, and every other picture would stay as it was.
            blended = cv2.seamlessClone(source, target, inside.copy(), centre, cv2.NORMAL_CLONE)
            out[b, k] = torch.from_numpy(blended).movedim(-1, 0).float() / 127.5 - 1
        return out, state


def _bytes(crop: Tensor) -> np.ndarray:
    """[3, S, S] in -1..1 -> uint8 [S, S, 3]."""
    return np.ascontiguousarray(((crop + 1) * 127.5).round().clamp(0, 255).byte().movedim(0, -1).numpy())
