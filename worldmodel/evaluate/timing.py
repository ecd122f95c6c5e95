"""What reports of times have in common: quotients of medians, bars on them, and how fast the machine was meanwhile."""

import numpy as np
from numpy.typing import NDArray

from worldmodel.calibration import Calibration
from worldmodel.evaluate.report import Metric, Outcome
from worldmodel.evaluate.statistics import bootstrap

CALIBRATED = (
    "Calibration: one fp32 product of two 1024 x 1024 matrices on one thread, before and after; load average over the "
    "last minute."
)


def quotient_of_medians(over: NDArray[np.float64], under: NDArray[np.float64]) -> Metric:
    """Of times [rounds] each, with a bootstrap interval over rounds, which both have in common."""

    def quotient(rows: NDArray[np.int64]) -> float:
        return float(np.median(over[rows]) / np.median(under[rows]))

    count = len(over)
    return Metric(quotient(np.arange(count)), "x", count, bootstrap(quotient, count))


def at_most(found: Metric, bar: float) -> tuple[Outcome, str]:
    """Whether it is at most the bar, missed only if all of its interval is above; and the value with its interval."""
    low, high = found.interval or (found.value, found.value)
    holds: Outcome = found.value <= bar or (False if low > bar else "not shown")
    return holds, f"{found.value:.3f} [{low:.3f}, {high:.3f}]"


def around(before: Calibration, after: Calibration) -> Calibration:
    """Of a measurement between two calibrations: their median rate, their largest load."""
    return Calibration(gflops=float(np.median((before.gflops, after.gflops))), load=max(before.load, after.load))


def calibration_metrics(load: Calibration) -> dict[str, Metric]:
    return {
        "calibration_gflops": Metric(load.gflops, "GFLOP/s"),
        "load_average": Metric(load.load, "runnable processes"),
    }
