"""Intervals and scores. Random numbers come from a seed, so that a report can be made again."""

from collections.abc import Callable
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Interval = tuple[float, float]


def bootstrap(
    statistic: Callable[[NDArray[np.int64]], float], n: int, seed: int = 0, resamples: int = 1000, level: float = 0.95
) -> Interval:
    """Percentile bootstrap interval (Efron & Tibshirani, 1993, chapter 13) of any statistic of n independent units.

    statistic: its value on the units of an index array [n] (drawn with replacement); draws where it is not finite do
    not count. Units must be what is independent: clips or episodes, never the frames of one.
    """
    if n < 1 or resamples < 1 or not 0 < level < 1:
        raise ValueError(f"bootstrap of {n} units with {resamples} resamples at level {level}")
    rng = np.random.default_rng(seed)
    values = np.array([statistic(rng.integers(0, n, n)) for _ in range(resamples)])
    low, high = np.quantile(values[np.isfinite(values)], ((1 - level) / 2, (1 + level) / 2))
    return float(low), float(high)


def mean_interval(values: Floats, seed: int = 0, resamples: int = 2000, level: float = 0.95) -> Interval:
    """Percentile bootstrap interval of the mean of independent values [n]."""
    values = np.asarray(values, np.float64)
    rows = np.random.default_rng(seed).integers(0, len(values), (resamples, len(values)))
    low, high = np.quantile(values[rows].mean(1), ((1 - level) / 2, (1 + level) / 2))
    return float(low), float(high)


def quantile_interval(values: Floats, q: float, level: float = 0.95) -> Interval:
    """Distribution-free interval of the q-quantile from order statistics (normal approximation of the binomial)."""
    ordered, n = np.sort(np.asarray(values, np.float64)), len(values)
    half = NormalDist().inv_cdf((1 + level) / 2) * np.sqrt(n * q * (1 - q))
    low, high = int(np.floor(n * q - half)), int(np.ceil(n * q + half))
    return float(ordered[max(low, 0)]), float(ordered[min(high, n - 1)])


def r2(true: Floats, predicted: Floats) -> float:
    """Coefficient of determination: 1 - sum (y - p)^2 / sum (y - mean y)^2. Can be negative; NaN for a constant y."""
    spread = float(((true - true.mean()) ** 2).sum())
    return 1 - float(((true - predicted) ** 2).sum()) / spread if spread else float("nan")


def sign_agreement(true: Floats, predicted: Floats, clear: float) -> tuple[float, int]:
    """Share of the values with |true| >= clear whose prediction has the same sign, and their number."""
    chosen = np.abs(true) >= clear
    count = int(chosen.sum())
    return (float((np.sign(true[chosen]) == np.sign(predicted[chosen])).mean()) if count else 0.0), count


def student_quantile(p: float, degrees: int) -> float:
    """The p-quantile, 0.5 <= p < 1, of Student's t with a whole number of degrees of freedom, to 1e-12 relative.

    Bisection of the distribution's finite series for whole degrees (Abramowitz & Stegun, 26.7.3 and 26.7.4).
    """
    if degrees < 1 or not 0.5 <= p < 1:
        raise ValueError(f"no quantile {p} of Student's t with {degrees} degrees of freedom")
    wanted, low, high = 2 * p - 1, 0.0, 1.0
    while _student_middle(high, degrees) < wanted:
        low, high = high, 2 * high
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if _student_middle(middle, degrees) < wanted else (low, middle)
    return (low + high) / 2


def _student_middle(t: float, degrees: int) -> float:
    """The probability of [-t, t]."""
    angle = np.arctan(t / degrees**0.5)
    odd = degrees % 2
    term, total = (float(np.cos(angle)) if odd else 1.0), 0.0
    for step in range(degrees // 2):
        total += term
        term *= float(np.cos(angle)) ** 2 * (2 * step + 1 + odd) / (2 * step + 2 + odd)
    total *= float(np.sin(angle))
    return 2 / np.pi * (float(angle) + total) if odd else total
