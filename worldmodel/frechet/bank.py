"""A frozen reference population on disk: moments, and what they are moments of.

FOLDER/
    bank.json           format, encoder, size, dimension, count, centred
    bank.safetensors    mean [D], covariance [D, D], fp64
"""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from worldmodel.errors import UserError
from worldmodel.folders import replaced
from worldmodel.frechet.moments import Moments
from worldmodel.serial import check_format, from_json, read_json, to_json, write_json
from worldmodel.weights import read_tensors, write_tensors

FORMAT = 1
CARD, TENSORS = "bank.json", "bank.safetensors"


@dataclass(frozen=True, slots=True)
class Source:
    """What features are of. Distances between features of different sources mean nothing.

    encoder: name of the feature map. size: height and width of what it sees (pixels, or cells of latents). dimension:
    number of features. centred: whether they are residuals from their own clip's mean.
    """

    encoder: str
    size: tuple[int, int]
    dimension: int
    centred: bool = False


@dataclass(frozen=True, slots=True)
class Bank:
    """A reference population: moments on the CPU and their source."""

    source: Source
    moments: Moments

    def __post_init__(self) -> None:
        if self.moments.dimension != self.source.dimension:
            raise ValueError(f"moments of {self.moments.dimension} features are not those of {self.source}")

    def save(self, folder: Path) -> None:
        """Write a folder (made if needed), as a whole or not at all; an older bank in it is replaced."""
        with replaced(folder, (CARD, TENSORS)) as beside:
            card = {"format": FORMAT, **to_json(self.source), "count": self.moments.count}
            write_json(card, beside / CARD)
            tensors = {"mean": self.moments.mean, "covariance": self.moments.covariance}
            write_tensors(tensors, beside / TENSORS)

    @classmethod
    def load(cls, folder: Path, needed: Source) -> "Bank":
        """The bank in a folder, for features of the source that is computed now.

        UserError, naming both values, if its encoder, size, dimension or centring is another one; also if it is
        missing, broken, of a newer format, or of fewer than two samples.
        """
        path = folder / CARD
        card = check_format(read_json(path), FORMAT, path, keys=("encoder", "size", "dimension", "count"))
        count = card["count"]
        if not isinstance(count, int) or isinstance(count, bool) or count < 2:
            raise UserError(f"{path}: count is {count!r}, a reference has at least 2 samples")
        stored = {key: value for key, value in card.items() if key not in ("format", "count")}
        source: Source = from_json(stored, Source, str(path))
        for key in ("encoder", "size", "dimension", "centred"):
            found, wanted = getattr(source, key), getattr(needed, key)
            if found != wanted:
                raise UserError(f"{path}: the reference has {key} {found}, the features computed now have {wanted}")
        mean, covariance = _read(folder / TENSORS, source.dimension)
        return cls(source, Moments(mean, covariance, count))


def _read(path: Path, dimension: int) -> tuple[Tensor, Tensor]:
    tensors = read_tensors(path)
    for name, shape in (("mean", (dimension,)), ("covariance", (dimension, dimension))):
        if name not in tensors or tensors[name].dtype != torch.float64 or tuple(tensors[name].shape) != shape:
            raise UserError(f"{path}: needs '{name}' in fp64 of shape {list(shape)}, as bank.json says")
        if not torch.isfinite(tensors[name]).all():
            raise UserError(f"{path}: '{name}' holds values that are not finite")
    return tensors["mean"], tensors["covariance"]
