"""How alike two views are, and a scale on which 0 is any room and 1 is the best that a tokenizer can draw.

A view is S frames of one place. Letters: V views, S frames, H W pixels, D numbers of a frame's code, m other views.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from worldmodel.encoders.frames import Encoder, check_encoders, features_of
from worldmodel.errors import UserError
from worldmodel.evaluate.metrics import EXACT
from worldmodel.evaluate.recordings import Pixels

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
CLEAR = 0.1  # of the median distance from "any room" to the tokenizer's own picture: less tells nothing apart


class Measure(Protocol):
    """Codes of frames, and how alike they are: the higher, the more."""

    @property
    def name(self) -> str: ...

    def codes(self, views: Pixels) -> Tensor:
        """Views [V, S, H, W, 3] -> codes [V, S, D] fp64."""
        ...

    def between(self, first: Tensor, second: Tensor) -> Tensor:
        """Codes [V, S, D] and [V', S, D] -> likeness of every pair [V, V'], averaged over the S frames."""
        ...


class Psnr:
    """Peak signal-to-noise ratio in dB, frame by frame."""

    name = "psnr"

    def codes(self, views: Pixels) -> Tensor:
        return torch.from_numpy(views).flatten(2).double() / 255

    def between(self, first: Tensor, second: Tensor) -> Tensor:
        found = []
        for a, b in zip(first.unbind(1), second.unbind(1), strict=True):
            squared = torch.cdist(a[None], b[None], compute_mode="donot_use_mm_for_euclid_dist")[0].square()
            found.append(-10 * torch.log10((squared / a.shape[1]).clamp_min(EXACT)))
        return torch.stack(found).mean(0)


class Features:
    """Cosine between features of a frozen encoder, less the mean feature of the real views that it was made with."""

    def __init__(self, encoder: Encoder, real: Pixels) -> None:
        self.name, self._encoder = encoder.name, encoder
        self._mean = self._raw(real).flatten(0, 1).mean(0)

    def _raw(self, views: Pixels) -> Tensor:
        frames = torch.from_numpy(np.ascontiguousarray(views)).flatten(0, 1).movedim(-1, 1)
        return features_of(self._encoder, frames).unflatten(0, views.shape[:2])

    def codes(self, views: Pixels) -> Tensor:
        return F.normalize(self._raw(views) - self._mean, dim=-1)

    def between(self, first: Tensor, second: Tensor) -> Tensor:
        return torch.einsum("vsd,wsd->vw", first, second) / first.shape[1]


@dataclass(frozen=True, slots=True)
class Scale:
    """What redrawn views are compared with, for one measure.

    real: codes [V, S, D] of the real views. others [V, V]: which views show another place. any_room [V]: mean likeness
    of a view to those. rebuilt [V]: its likeness to what the tokenizer makes of it. rivals [V, m]: some of the others.
    """

    measure: Measure
    real: Tensor
    any_room: Floats
    rebuilt: Floats
    rivals: NDArray[np.int64]

    @property
    def chance(self) -> float:
        """Retrieval by guessing."""
        return 1 / (1 + self.rivals.shape[1])

    def judge(self, views: Pixels) -> tuple[Floats, Floats]:
        """Of redrawn views [V, S, H, W, 3]: scores [V], and whether the nearest real view is the right one [V] (0, 1).

        The score is (likeness - any room) / (rebuilt - any room). Nearest: more alike than all of the view's rivals.
        """
        likeness = self.measure.between(self.measure.codes(views), self.real).numpy()
        own = likeness.diagonal()
        rivals = np.take_along_axis(likeness, self.rivals, 1)
        return (own - self.any_room) / (self.rebuilt - self.any_room), (own > rivals.max(1)).astype(np.float64)


def scale_of(measure: Measure, real: Pixels, rebuilt: Pixels, others: Bools, count: int, seed: int) -> Scale:
    """The scale of V views from the real ones and the tokenizer's, both [V, S, H, W, 3]; at most `count` rivals."""
    codes = measure.codes(real)
    likeness = measure.between(codes, codes).numpy()
    any_room = np.where(others, likeness, 0).sum(1) / others.sum(1)
    own = measure.between(measure.codes(rebuilt), codes).numpy().diagonal()
    count = min(count, int(others.sum(1).min()))
    rng = np.random.default_rng(seed)
    rivals = np.stack([rng.choice(np.flatnonzero(row), count, replace=False) for row in others])
    return Scale(measure, codes, any_room, own, rivals)


def told_apart(scales: Sequence[Scale]) -> Bools:
    """Which views [V] the tokenizer itself draws clearly better than any room, by all measures."""
    margins = [scale.rebuilt - scale.any_room for scale in scales]
    return np.all([margin > CLEAR * max(float(np.median(margin)), 1e-9) for margin in margins], axis=0)


def measure_of(choice: str, real: Pixels, open_encoder: Callable[[str], Encoder]) -> Measure:
    """ "psnr", or the encoder of that name."""
    if choice == Psnr.name:
        return Psnr()
    return Features(open_encoder(choice), real)


def check_measures(choices: Sequence[str]) -> None:
    """A UserError unless they are one or more of different names."""
    if not choices:
        raise UserError("context: give a measure, or several")
    check_encoders("context", choices)
