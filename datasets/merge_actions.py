"""Actions of a video whose frames are thinned out or repeated: each kept frame gets what leads to the next kept one.

Row i of a recording leads from frame i to frame i + 1. If frames i and i + 2 are kept, rows i and i + 1 together lead
from one to the other, and what that is as one action depends on what an action means:

    sum     displacements (moved or turned per frame) add up
    mean    commands and rates that are held for a frame (a velocity, a throttle) average over time
    last    absolute targets (a position to go to) keep the newest

A frame that is repeated shares what leads to the next one with its copies, in equal parts of the time: `sum` divides
it, `mean` and `last` repeat it.
"""

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Merge = Literal["sum", "mean", "last"]
CHOICES = "sum (displacements add up), mean (held commands or rates average) or last (absolute targets keep the newest)"


def merge_actions(
    actions: NDArray[Any], pts: NDArray[np.int64], kept: NDArray[np.int64], how: Merge
) -> NDArray[np.float64]:
    """Actions [N, dim] of N frames -> [M, dim] of the M kept ones, in the same units (for `sum`: per kept frame).

    pts: [N] presentation times in ticks, non-decreasing. kept: [M] frames in order, repeated ones several times; the
    first is 0. Row k of the result covers all from kept frame k to kept frame k + 1, the last row all to the end, so
    that with `sum` every column has the same total as before.
    """
    edges = _edges(pts, kept)
    cuts = np.union1d(np.arange(len(pts) + 1.0), edges)  # pieces of rows, each within one row and one kept frame
    row = cuts[:-1].astype(np.int64)
    frame = np.searchsorted(edges, cuts[:-1], side="right") - 1
    if how == "last":
        return actions[row[np.searchsorted(frame, np.arange(len(kept)), side="right") - 1]].astype(np.float64)
    weight = np.diff(cuts)
    if how == "mean":
        weight *= _durations(pts)[row]
        weight /= np.bincount(frame, weight, len(kept))[frame]
    merged = np.zeros((len(kept), actions.shape[1]))
    np.add.at(merged, frame, weight[:, None] * actions[row])
    return merged


def _edges(pts: NDArray[np.int64], kept: NDArray[np.int64]) -> NDArray[np.float64]:
    """Where the share of each kept frame begins [M], in rows: 2.5 is half through the duration of row 2."""
    frames, first, copies = np.unique(kept, return_index=True, return_counts=True)
    time = np.concatenate([[0.0], np.cumsum(_durations(pts))])  # at which each row begins, and the last one ends
    begin, end = time[frames], time[np.append(frames[1:], len(pts))]
    copy = np.arange(len(kept)) - np.repeat(first, copies)
    at = np.repeat(begin, copies) + np.repeat((end - begin) / copies, copies) * copy
    return np.interp(at, time, np.arange(len(time))).round(9)  # a cut beside a whole row only by rounding is none


def _durations(pts: NDArray[np.int64]) -> NDArray[np.float64]:
    """Ticks that each row was in force [N], at least 1; the last one as long as the others on average."""
    mean = (pts[-1] - pts[0]) / max(len(pts) - 1, 1)
    return np.maximum(np.append(np.diff(pts), mean), 1.0)
