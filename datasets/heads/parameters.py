"""Numbers per row with a range each: what people, expressions, poses and lights are made of."""

from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from worldmodel import noise
from worldmodel.errors import UserError


def between(low: float, high: float) -> Any:
    """A field of `Parameters` that lies in [low, high]."""
    return field(metadata={"range": (low, high)})


@dataclass(frozen=True, slots=True)
class Parameters:
    """Every field is fp32 [B], a number per row, in the range that its declaration gives.

    draw: keyed by the rows' seeds, so that a row is the same in any batch, on any machine.
    """

    PURPOSE: ClassVar[int] = 0  # of the keyed draw, another one in every class

    @classmethod
    def ranges(cls) -> dict[str, tuple[float, float]]:
        return {each.name: each.metadata["range"] for each in fields(cls)}

    @classmethod
    def draw(cls, seed: Tensor) -> Self:
        """Uniform in the ranges. seed: [B] int64, one per row."""
        names = list(cls.ranges())
        count = torch.arange(len(names)).expand(len(seed), -1)
        return cls.of_shares(noise.uniform(seed, count, cls.PURPOSE))

    @classmethod
    def middle(cls, rows: int = 1) -> Self:
        """The middle of every range."""
        return cls.of_shares(torch.full((rows, len(cls.ranges())), 0.5))

    @classmethod
    def of_shares(cls, shares: Tensor) -> Self:
        """Of numbers [B, n] in 0..1, shares of the ranges in the order of the fields."""
        ranges = cls.ranges()
        if shares.ndim != 2 or shares.shape[1] != len(ranges):
            raise UserError(f"{cls.__name__}: {len(ranges)} numbers per row, not {list(shares.shape)}")
        low, high = torch.tensor(list(ranges.values())).T.contiguous()
        return cls(*(low + (high - low) * shares).T.contiguous().unbind(0))

    @property
    def rows(self) -> int:
        return len(getattr(self, fields(self)[0].name))

    def vector(self) -> Tensor:
        """[B, n] in 0..1, the inverse of `of_shares`."""
        low, high = torch.tensor(list(self.ranges().values())).T
        values = torch.stack([getattr(self, each.name) for each in fields(self)], 1)
        return (values - low) / (high - low)

    def select(self, rows: Tensor) -> Self:
        """The rows of an index tensor [B'] int64, in that order; a row may appear several times."""
        return type(self)(*(getattr(self, each.name)[rows] for each in fields(self)))

    def check(self) -> None:
        """A UserError that names the first number which is not in its range, or a field with other rows."""
        for name, (low, high) in self.ranges().items():
            values: Tensor = getattr(self, name)
            if values.shape != (self.rows,):
                raise UserError(f"{type(self).__name__}.{name}: one number for each of {self.rows} rows, not "
                                f"{list(values.shape)}")  # fmt: skip
            slack = 1e-5 * (high - low)
            wrong = ~((values >= low - slack) & (values <= high + slack))  # NaN too
            if wrong.any():
                row = int(wrong.nonzero()[0, 0])
                raise UserError(
                    f"{type(self).__name__}.{name} must be in [{low:g}, {high:g}], not {values[row]:g} in row {row}"
                )

    def __getitem__(self, name: str) -> Tensor:
        """A field as [B, 1], to be broadcast over places."""
        return getattr(self, name)[:, None]
