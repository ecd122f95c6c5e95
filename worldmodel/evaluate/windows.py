"""Windows of long rollouts against real frames, in the features of an encoder.

A window is `length` consecutive frames of every rollout, taken together: N = B * length pictures. Its Frechet distance
to the reference is compared with that of as many real frames of the same structure (as many stretches of the same
length, from the episodes that the rollouts start in): the estimate depends on N and on how alike neighbours are.
Letters: B rollouts, T frames, D features.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from worldmodel.encoders.frames import Encoder, features_of
from worldmodel.evaluate.statistics import Interval
from worldmodel.frechet.distance import DistanceTo

Pixels = NDArray[np.uint8]


def window_starts(frames: int, length: int, count: int) -> tuple[int, ...]:
    """First frames of at most `count` windows, evenly spaced from the first to the last possible one, all different."""
    if frames < length:
        raise ValueError(f"{frames} frames hold no window of {length}")
    return tuple(dict.fromkeys(int(s) for s in np.linspace(0, frames - length, count).round()))


def window_features(encoder: Encoder, video: Pixels, progress: Callable[[int], None] = lambda n: None) -> Tensor:
    """Features [B, T, D] of videos [B, T, H, W, 3]."""
    rows = []
    for row in video:
        rows.append(features_of(encoder, torch.from_numpy(np.ascontiguousarray(row)).movedim(-1, 1)))
        progress(len(row))
    return torch.stack(rows)


@dataclass(frozen=True, slots=True)
class WindowDistance:
    """value: distance minus floor. interval: jackknife over rollouts. raw: without subtraction. N: pictures."""

    value: float
    interval: Interval
    raw: float
    floor: float
    n: int


@dataclass(frozen=True, slots=True)
class Floor:
    """Distance of real windows to the reference: of all rollouts' episodes, and with each of them left out."""

    value: float
    without: tuple[float, ...]


def real_floor(reference: DistanceTo, real: Tensor) -> Floor:
    """From real features of the windows' structure, [draws, B, T, D]: the mean over the draws."""

    values, without = zip(*(left_out_distances(reference, draw) for draw in real), strict=True)
    return Floor(float(np.mean(values)), tuple(float(value) for value in np.mean(without, 0)))


def left_out_distances(reference: DistanceTo, window: Tensor) -> tuple[float, NDArray[np.float64]]:
    """The distance of a window's features [B, T, D], and with each of the B rollouts left out: [B], [0] for one."""
    without = [float(_distance(window[rows], reference)) for rows in _left_out(window.shape[0])]
    return float(_distance(window, reference)), np.array(without)


def window_distance(reference: DistanceTo, window: Tensor, floor: Floor) -> WindowDistance:
    """Of a window's features [B, T, D].

    The interval is a delete-one jackknife over rollouts (value +- 1.96 standard errors): each time a rollout is left
    out, so is the same episode's stretch of the real draws, so that the bias of fewer samples cancels. A single rollout
    has an interval of no width.
    """
    batch = window.shape[0]
    raw, without = left_out_distances(reference, window)
    value, error = raw - floor.value, 0.0
    if batch > 1:
        parts = without - floor.without
        error = float(np.sqrt((batch - 1) / batch * ((parts - parts.mean()) ** 2).sum()))
    interval = (value - 1.96 * error, value + 1.96 * error)
    return WindowDistance(value, interval, raw, floor.value, window.shape[0] * window.shape[1])


def _distance(features: Tensor, reference: DistanceTo) -> Tensor:
    return reference(features.flatten(0, 1))


def _left_out(batch: int) -> list[Tensor]:
    everyone = torch.arange(batch)
    return [everyone[everyone != b] for b in range(batch)] if batch > 1 else []
