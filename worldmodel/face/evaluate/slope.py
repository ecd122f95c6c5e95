"""How fast a number of a long stream drifts, and how sure that is. Letters: T frames, W windows."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from worldmodel.evaluate.statistics import student_quantile

Floats = NDArray[np.float64]
WINDOWS = 20


@dataclass(frozen=True, slots=True)
class Slope:
    """Change per minute with its 95 % interval; None for fewer than three windows."""

    value: float
    interval: tuple[float, float] | None


def slope(values: Floats, minutes: Floats, windows: int = WINDOWS) -> Slope:
    """The least-squares line through the means of up to `windows` equal stretches of values [T] at minutes [T].

    Frames that follow each other say nearly the same, so that the residuals of single frames would promise far too
    much: the interval is Student's on those of the W means, W - 2 degrees of freedom, as if stretches were independent.
    They are where a stretch is long against what moves in the video. Values that are not finite are left out.
    """
    known = np.isfinite(values)
    values, minutes = values[known], minutes[known]
    if len(values) < 2:
        return Slope(0.0, None)
    parts = np.array_split(np.arange(len(values)), min(windows, len(values)))
    y, x = (np.array([each[part].mean() for part in parts]) for each in (values, minutes))
    x = x - x.mean()
    square = float((x**2).sum())
    if square == 0:
        return Slope(0.0, None)
    found = float((x * y).sum() / square)
    if len(parts) < 3:
        return Slope(found, None)
    rest = y - y.mean() - found * x
    error = np.sqrt((rest**2).sum() / (len(parts) - 2) / square)
    half = student_quantile(0.975, len(parts) - 2) * float(error)
    return Slope(found, (found - half, found + half))
