"""Means over people with their intervals, differences of pairs, and ranks.

Letters: k streams of a method (its training seeds), V videos, P people (who a swap should become).
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from worldmodel.evaluate.compare.statistics import Estimate, t_interval
from worldmodel.evaluate.statistics import mean_interval
from worldmodel.face.evaluate.axes import Axis

Floats = NDArray[np.float64]


def by_person(values: Floats, who: Sequence[str]) -> Floats:
    """Means over the videos of each person: [k, V] -> [k, P], P as they come first. NaN does not count."""
    people = list(dict.fromkeys(who))
    found = np.full((len(values), len(people)), np.nan)
    for column, person in enumerate(people):
        mine = values[:, np.array(who) == person]
        known = np.isfinite(mine)
        count = known.sum(1)
        total = np.where(known, mine, 0.0).sum(1)
        found[:, column] = np.where(count > 0, total / np.maximum(count, 1), np.nan)
    return found


def estimate(people: Floats) -> Estimate | None:
    """Of [k, P]: the mean; over seeds, Student's interval; over people, the percentile bootstrap of the seeds' mean.

    People of whom a seed has no number are left out of all seeds; None if nobody is left.
    """
    people = people[:, np.isfinite(people).all(0)]
    if not people.shape[1]:
        return None
    per_seed = people.mean(1)
    return Estimate(
        value=float(per_seed.mean()),
        over_seeds=t_interval(per_seed) if len(per_seed) > 1 else None,
        over_starts=mean_interval(people.mean(0)) if people.shape[1] > 1 else None,
        per_seed=tuple(per_seed.tolist()),
        starts=people.shape[1],
    )


def difference(people: Floats, base: Floats) -> Estimate | None:
    """Of a method less a base, person by person, and seed by seed as far as both have seeds; a base of one stream is
    compared with every seed."""
    if 1 in (len(people), len(base)):
        return estimate(people - base)
    seeds = min(len(people), len(base))
    return estimate(people[:seeds] - base[:seeds])


def ranks(axis: Axis, values: Sequence[float]) -> list[float]:
    """From 1 for the best; equal values share the mean of their places; NaN has no rank (NaN)."""
    worse = np.array([axis.badness(value) for value in values])
    found = []
    for each in worse:
        place = (worse < each).sum() + ((worse == each).sum() + 1) / 2
        found.append(float(place) if np.isfinite(each) else float("nan"))
    return found
