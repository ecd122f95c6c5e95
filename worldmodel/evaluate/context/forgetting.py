"""From scores of visits to a forgetting curve, and from the curve to one number: the effective context.

The curve is the mean score of the visits of each horizon. The effective context is the horizon at which half of the
score at the shortest horizon is lost: the first crossing of that level, interpolated between two horizons along a
straight line. A curve that never falls below it has kept its memory for at least the longest horizon; one that is not
above 0 at the shortest has none, and 0 frames.

A model that has lost nearly everything at the shortest horizon has little left to lose, and so a long effective
context: arms are therefore also compared at one level for all, half of the best score of any arm at that horizon.

Letters: k training seeds, V visits, H horizons, R resamples.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from worldmodel.evaluate.compare.statistics import Estimate, t_interval
from worldmodel.evaluate.statistics import Interval

RESAMPLES = 2000

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Horizons:
    """The horizons of V visits, from short to long.

    frames [H]: mean frames out of sight of each horizon's visits, rising; members: their places in the list of visits.
    """

    named: tuple[int, ...]
    frames: Floats
    members: tuple[NDArray[np.int64], ...]

    def curve(self, scores: Floats) -> Floats:
        """Mean score per horizon [..., H] of scores [..., V]."""
        return np.stack([scores[..., rows].mean(-1) for rows in self.members], -1)

    def resampled(self, scores: Floats, seed: int = 0, resamples: int = RESAMPLES) -> Floats:
        """Curves [..., R, H] of visits drawn with replacement within each horizon; the same visits for every score."""
        rng, drawn = np.random.default_rng(seed), []
        for rows in self.members:
            chosen = rows[rng.integers(0, len(rows), (resamples, len(rows)))]
            drawn.append(scores[..., chosen].mean(-1))
        return np.stack(drawn, -1)


def effective_context(frames: Floats, curve: Floats, level: float | None = None) -> tuple[Floats, NDArray[np.bool_]]:
    """Effective context in frames [...] of curves [..., H] over horizons [H], and whether it is only a lower bound.

    level: the score below which a view counts as lost; None for half of each curve's first score.
    """
    levels = curve[..., :1] / 2 if level is None else np.full_like(curve[..., :1], level)
    lost = curve < levels
    lost[..., 0] |= curve[..., 0] <= 0  # nothing was remembered even at the shortest horizon
    after = lost.argmax(-1)
    before = np.maximum(after - 1, 0)
    high, low = (np.take_along_axis(curve, at[..., None], -1)[..., 0] for at in (before, after))
    fall = np.where(high > low, high - low, 1.0)
    crossing = frames[before] + (frames[after] - frames[before]) * (high - levels[..., 0]) / fall
    kept = np.logical_not(np.any(lost, axis=-1))
    found = np.where(lost[..., 0], 0.0, np.where(kept, frames[-1], crossing))
    return found, np.asarray(kept)


@dataclass(frozen=True, slots=True)
class Reading:
    """A number of an arm: of each training seed [k], and of the same with other visits [k, R]."""

    values: Floats
    resampled: Floats

    def estimate(self, visits: int) -> Estimate:
        """Mean over seeds; Student's t over seeds, percentile bootstrap over visits (the estimate's "starts")."""
        low, high = np.quantile(self.resampled.mean(0), (0.025, 0.975))
        over_seeds = t_interval(self.values) if len(self.values) > 1 else None
        return Estimate(
            float(self.values.mean()), over_seeds, (float(low), float(high)), tuple(self.values.tolist()), visits
        )

    def minus(self, other: "Reading") -> "Reading":
        """Seed by seed, visit by visit, of as many seeds as both have."""
        seeds = min(len(self.values), len(other.values))
        return Reading(self.values[:seeds] - other.values[:seeds], self.resampled[:seeds] - other.resampled[:seeds])


@dataclass(frozen=True, slots=True)
class Forgetting:
    """The curve of an arm. scores [k, V]; at_least: of each seed [k], the effective context is a lower bound."""

    horizons: Horizons
    scores: Floats
    effective: Reading
    at_least: NDArray[np.bool_]

    def above(self, level: float) -> tuple[Reading, NDArray[np.bool_]]:
        """Frames until the score falls below a level that is the same for all arms, and of which seeds it never did."""
        values, at_least = effective_context(self.horizons.frames, self.curves, level)
        others, _ = effective_context(self.horizons.frames, self.horizons.resampled(self.scores), level)
        return Reading(values, others), at_least

    @property
    def curves(self) -> Floats:
        """[k, H]"""
        return self.horizons.curve(self.scores)

    def score(self, horizon: int) -> Reading:
        """At horizon number `horizon`."""
        return Reading(self.curves[:, horizon], self.horizons.resampled(self.scores)[..., horizon])

    def mean_score(self) -> Reading:
        """Over all horizons, each with the same weight."""
        return Reading(self.curves.mean(-1), self.horizons.resampled(self.scores).mean(-1))

    def band(self) -> list[Interval]:
        """95 % over visits of the mean over seeds, at each horizon."""
        low, high = np.quantile(self.horizons.resampled(self.scores).mean(0), (0.025, 0.975), axis=0)
        return list(zip(low.tolist(), high.tolist(), strict=True))


def forgetting(horizons: Horizons, scores: Floats) -> Forgetting:
    """Of an arm's scores [k, V]."""
    values, at_least = effective_context(horizons.frames, horizons.curve(scores))
    others, _ = effective_context(horizons.frames, horizons.resampled(scores))
    return Forgetting(horizons, scores, Reading(values, others), at_least)


def horizons_of(frames: Sequence[int], named: Sequence[int], near: float = 1 / 8, least: int = 2) -> Horizons:
    """Visits by horizon: of those that were out of sight for `frames` [V], each goes to the nearest of the `named`.

    It must be within a share `near` of it, or a frame. Horizons with fewer than `least` visits are left out.
    """
    given, names = np.asarray(frames, np.float64), np.array(sorted(named))
    members, kept = list[NDArray[np.int64]](), list[int]()
    nearest = np.abs(given[:, None] - names).argmin(1) if len(given) else np.zeros(0, np.int64)
    for number, name in enumerate(names.tolist()):
        rows = np.flatnonzero((nearest == number) & (np.abs(given - name) <= max(1, near * name)))
        if len(rows) >= least:
            members.append(rows)
            kept.append(name)
    return Horizons(tuple(kept), np.array([given[rows].mean() for rows in members]), tuple(members))
