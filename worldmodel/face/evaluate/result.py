"""What was measured, summed up: a number per method and axis with its intervals. Letters: k seeds, P people."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from worldmodel.evaluate.compare.statistics import Estimate
from worldmodel.face.evaluate.axes import Axis, Gallery, Reading, axes_of, drifts, table_of
from worldmodel.face.evaluate.meter import Measured
from worldmodel.face.evaluate.methods import Method
from worldmodel.face.evaluate.slope import Slope
from worldmodel.face.evaluate.summary import by_person, difference, estimate, ranks


@dataclass(frozen=True, slots=True, eq=False)
class Result:
    """tables: [k, V] of every method and axis. slopes: the drifts of every method's first stream, video by video. One
    method is the base of differences: the first trained one."""

    methods: tuple[Method, ...]
    axes: tuple[Axis, ...]
    who: tuple[str, ...]  # of the videos
    tables: dict[tuple[str, str], NDArray[np.float64]]  # by names of method and axis
    slopes: dict[str, tuple[dict[str, Slope], ...]] = field(default_factory=dict)

    def within(self, method: Method, axis: Axis) -> tuple[float, float] | None:
        """The interval of a drift of a method's first stream within the video, if there is one video only."""
        found = self.slopes.get(method.name, ())
        return found[0][axis.name].interval if len(found) == 1 and axis.name in found[0] else None

    def people(self, method: Method, axis: Axis) -> NDArray[np.float64]:
        """[k, P]"""
        return by_person(self.tables[method.name, axis.name], self.who)

    def found(self, method: Method, axis: Axis) -> Estimate | None:
        return estimate(self.people(method, axis))

    @property
    def base(self) -> Method | None:
        return next((method for method in self.methods if method.trained), None)

    def apart(self, method: Method, axis: Axis) -> Estimate | None:
        """A method less the base; None for the base, for the ends of the scale, and where there is no base."""
        base = self.base
        if base is None or method is base or method.end:
            return None
        return difference(self.people(method, axis), self.people(base, axis))

    @property
    def ranked(self) -> tuple[Method, ...]:
        """All but the ends of the scale."""
        return tuple(method for method in self.methods if not method.end)

    def ranks(self, axis: Axis) -> list[float]:
        """Of the ranked methods, by their means; NaN where there is no number."""
        found = [self.found(method, axis) for method in self.ranked]
        return ranks(axis, [float("nan") if each is None else each.value for each in found])

    def mean_ranks(self) -> list[float]:
        """Over the axes on which every ranked method has a number."""
        rows = np.array([self.ranks(axis) for axis in self.axes])
        rows = rows[np.isfinite(rows).all(1)]
        return rows.mean(0).tolist() if len(rows) else [float("nan")] * len(self.ranked)


def result_of(
    methods: Sequence[Method], videos: Sequence[Measured], gallery: Gallery, landmarks: bool, truth: bool
) -> Result:
    axes = axes_of(landmarks, truth)
    tables = {
        (method.name, axis.name): table_of(axis, videos, gallery, number)
        for number, method in enumerate(methods)
        for axis in axes
    }
    slopes = {
        method.name: tuple(
            drifts(Reading(video, video.series[number][0], gallery)) if len(video.minutes) else {} for video in videos
        )
        for number, method in enumerate(methods)
    }
    return Result(tuple(methods), axes, tuple(video.case.who for video in videos), tables, slopes)
