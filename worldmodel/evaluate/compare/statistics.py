"""Arms of several training seeds: estimates, their intervals, and bars that they meet or miss.

**What is uncertain.** A number of an arm, such as the slope of its Frechet distances, depends on which training seeds
were drawn and on which starts the rollouts have. Two intervals answer two questions, and are never mixed:

- *over seeds*: would another training come out the same? Student's t on one value per seed. Every seed has the same
  starts, so the starts' own share in the uncertainty is common to all of them and not in it. It needs two seeds.
- *over starts*: would other starts say the same of these trained models? A Frechet distance is no mean over starts (it
  compares covariances of all pictures of a window together), so there is no value per start to average. The delete-one
  jackknife (Quenouille 1956; Tukey 1958; Efron & Tibshirani 1993, chapter 11) needs none: the whole statistic is
  computed again with one start left out, theta_(-b), and

      pseudo-value p_b = n theta - (n - 1) theta_(-b),   standard error^2 = variance of the p_b / n
                                                       = (n - 1) / n * sum_b (theta_(-b) - mean theta_(-b))^2.

  A start is left out of both arms, of all seeds, of all windows and of the real-versus-real floor at once: they share
  it, so leaving it out of one alone would break the pairing and count its chance as a difference of the arms. The
  interval is theta +- t_(n-1) standard errors. It holds for smooth statistics, which a distance of moments is.

**Pairs.** Differences from the baseline are taken seed by seed (folder i of every arm has the same training seed), so
what a seed does to both arms cancels.

Letters: k seeds, n starts (or clips), W windows.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from worldmodel.evaluate.report import Outcome
from worldmodel.evaluate.statistics import Interval, student_quantile

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Readings:
    """One number per seed [k], and the same with each start left out [k, n] (n = 0: a single start)."""

    values: Floats
    without: Floats

    def first(self, seeds: int) -> "Readings":
        """Of the first seeds alone."""
        return Readings(self.values[:seeds], self.without[:seeds])


def combined(rule: Callable[..., Floats], *readings: Readings) -> Readings:
    """An elementwise rule of several readings, of as many seeds as all of them have."""
    seeds = min(len(each.values) for each in readings)
    parts = [each.first(seeds) for each in readings]
    return Readings(rule(*(part.values for part in parts)), rule(*(part.without for part in parts)))


@dataclass(frozen=True, slots=True)
class Curves:
    """One number per window: of every seed [k, W], and with each start left out [k, n, W]."""

    values: Floats
    without: Floats

    @property
    def first_window(self) -> Readings:
        return Readings(self.values[:, 0], self.without[:, :, 0])

    @property
    def last_window(self) -> Readings:
        return Readings(self.values[:, -1], self.without[:, :, -1])

    def slope(self, frames: Floats) -> Readings:
        """Of the least-squares line over the windows' places [W] in frames: change per 1,000 frames."""
        weights = slope_weights(frames)
        return Readings(self.values @ weights, self.without @ weights)

    def band(self) -> tuple[Floats, Floats] | None:
        """The 95 % t-interval over seeds of every window's mean: [W], [W]; None for a single seed."""
        if len(self.values) < 2:
            return None
        low, high = np.array([t_interval(column) for column in self.values.T]).T
        return low, high

    def whiskers(self) -> tuple[Floats, Floats] | None:
        """The jackknife interval over starts of every window's mean over seeds; None for a single start."""
        if self.without.shape[1] < 2:
            return None
        pairs = [
            jackknife_interval(float(mean), left)
            for mean, left in zip(self.values.mean(0), self.without.mean(0).T, strict=True)
        ]
        low, high = np.array(pairs).T
        return low, high


def slope_weights(frames: Floats) -> Floats:
    """Weights [W] whose sum with values [W] is the slope of their least-squares line, per 1,000 frames."""
    centred = np.asarray(frames, np.float64) - np.mean(frames)
    return 1000 * centred / (centred**2).sum()


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean over seeds with its two 95 % intervals (None where there is one seed, or one start), and every seed's."""

    value: float
    over_seeds: Interval | None
    over_starts: Interval | None
    per_seed: tuple[float, ...]
    starts: int

    @property
    def intervals(self) -> tuple[Interval, ...]:
        return tuple(each for each in (self.over_seeds, self.over_starts) if each is not None)


def estimate(readings: Readings) -> Estimate:
    """The mean over seeds. Both intervals: see the module."""
    value, starts = float(readings.values.mean()), readings.without.shape[1]
    return Estimate(
        value=value,
        over_seeds=t_interval(readings.values) if len(readings.values) > 1 else None,
        over_starts=jackknife_interval(value, readings.without.mean(0)) if starts > 1 else None,
        per_seed=tuple(readings.values.tolist()),
        starts=starts,
    )


def at_most_zero(found: Estimate) -> Outcome:
    """A bar on a contrast: it holds if its mean is at most 0; above, it is missed only if an interval excludes 0."""
    if found.value <= 0:
        return True
    return False if any(low > 0 for low, _ in found.intervals) or not found.intervals else "not shown"


def below_zero(found: Estimate) -> Outcome:
    """A difference that is claimed: its mean and all its intervals are below 0; a mean of 0 or more is a no."""
    if found.value >= 0:
        return False
    return True if found.intervals and all(high < 0 for _, high in found.intervals) else "not shown"


def t_interval(values: Floats) -> Interval:
    """Student's 95 % interval of the mean of two or more independent values [k]."""
    count = len(values)
    half = student_quantile(0.975, count - 1) * float(np.std(values, ddof=1)) / count**0.5
    mean = float(np.mean(values))
    return mean - half, mean + half


def jackknife_interval(value: float, without: Floats) -> Interval:
    """The 95 % interval around a statistic from its values with each of two or more units left out [n]."""
    count = len(without)
    error = float(np.sqrt((count - 1) / count * ((without - without.mean()) ** 2).sum()))
    half = student_quantile(0.975, count - 1) * error
    return value - half, value + half
