"""The statistics of a LeRobotDataset: present, finite, with a range, and true of the data."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from worldmodel.errors import UserError
from worldmodel.serial import read_json


@dataclass(frozen=True, slots=True)
class Statistics:
    """Of one feature `key` in meta/stats.json, whose dimensions have `names`."""

    path: Path
    key: str
    names: tuple[str, ...]

    def check(self, used: tuple[str, ...]) -> None:
        """Raise UserError if a statistic is missing, or not finite or without range in one of the `used` dimensions."""
        if not used:
            return
        stats = self._read()
        for name in ("min", "max", "mean", "std"):
            if name not in stats:
                raise UserError(f"{self.path}: statistic '{self.key}/{name}' is missing")
            values = _vector(stats[name])
            if values.shape != (len(self.names),):
                raise UserError(
                    f"{self.path}: '{self.key}/{name}' has {values.size} values for {len(self.names)} dimensions"
                )
            for dim, value in zip(self.names, values, strict=True):
                if dim in used and not np.isfinite(value):
                    raise UserError(f"{self.path}: '{self.key}/{name}' of dimension '{dim}' is {value}")
        low, high = _vector(stats["min"]), _vector(stats["max"])
        for dim, a, b in zip(self.names, low, high, strict=True):
            if dim in used and b - a <= 1e-8:
                raise UserError(
                    f"{self.path}: '{self.key}' dimension '{dim}' is constant at {a:g}, it has no range to normalise; "
                    "leave it out by naming the others with --actions"
                )

    def compare(self, values: NDArray[np.float32], where: str) -> None:
        """Raise UserError if data [N, dim] lie outside the statistics' minimum and maximum: these are then stale."""
        if not self.path.is_file():
            return  # `check` reports that
        stats = self._read()
        if "min" not in stats or "max" not in stats:
            return
        low, high = _vector(stats["min"]), _vector(stats["max"])
        if low.shape != (values.shape[1],) or high.shape != low.shape:
            return
        slack = 1e-4 * np.maximum(1.0, np.maximum(np.abs(low), np.abs(high)))
        outside = np.argwhere((values < low - slack) | (values > high + slack))
        if len(outside):
            frame, dim = (int(i) for i in outside[0])
            raise UserError(
                f"{where}: '{self.key}' dimension '{self.names[dim]}' is {values[frame, dim]:g} at frame {frame}, but "
                f"{self.path} says [{low[dim]:g}, {high[dim]:g}]: the statistics are not of this data"
            )

    def _read(self) -> dict[str, Any]:
        stats = read_json(self.path)
        if not isinstance(stats, dict) or not isinstance(stats.get(self.key), dict):
            raise UserError(f"{self.path}: no statistics of '{self.key}'")
        return stats[self.key]


def _vector(values: Any) -> NDArray[np.float64]:
    try:
        return np.asarray(values, np.float64).reshape(-1)
    except (TypeError, ValueError):
        return np.array([], np.float64)  # reported as a wrong number of values
