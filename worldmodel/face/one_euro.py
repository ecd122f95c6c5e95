"""One-Euro filter (Casiez, Roussel & Vogel, CHI 2012): a low-pass whose cutoff rises with speed; causal."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Smoothed:
    """The filter's state, a value: filtered values [N], their filtered speeds [N] per second, the last measurement [N].

    Speeds are differences of measurements, as in the authors' program; of filtered values they would count the lag too.
    """

    value: Vector
    speed: Vector
    last: Vector


@dataclass(frozen=True, slots=True)
class OneEuro:
    """still: cutoff at rest, in Hz: lower is calmer and lags more. rise: Hz per unit of speed. of_speed: cutoff of the
    speed's own filter, in Hz."""

    still: float = 1.5
    rise: float = 8.0
    of_speed: float = 2.0

    def begin(self, value: Vector) -> Smoothed:
        return Smoothed(value, np.zeros_like(value), value)

    def step(self, state: Smoothed, value: Vector, seconds: float, unit: Vector | float = 1.0) -> Smoothed:
        """One measurement [N], `seconds` after the last. unit [N]: by what each speed is divided before it counts."""
        if seconds <= 0:
            return state
        speed = _towards(state.speed, (value - state.last) / seconds, self.of_speed, seconds)
        cutoff = self.still + self.rise * np.abs(speed / unit)
        return Smoothed(_towards(state.value, value, cutoff, seconds), speed, value)


def _towards(old: Vector, new: Vector, cutoff: Vector | float, seconds: float) -> Vector:
    """First-order low-pass: the share of the new value is 1 / (1 + 1 / (2 pi cutoff seconds))."""
    share = 1 / (1 + 1 / (2 * np.pi * cutoff * seconds))
    return old + share * (new - old)
