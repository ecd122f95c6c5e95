"""Closeness to the truth right after real context, and contrast and colours after a long rollout."""

from collections.abc import Sequence

import numpy as np

from worldmodel.evaluate.compare.arms import Measured
from worldmodel.evaluate.compare.show import cell, metrics_of
from worldmodel.evaluate.compare.statistics import Readings, estimate
from worldmodel.evaluate.report import Metric, Table


def _readings(arm: Measured) -> dict[str, tuple[Readings, str]]:
    """PSNR of the first and the last frame of the short clips, contrast and colour shift of the last window; units."""
    psnr = np.stack([each.psnr for each in arm.found])  # [k, C, horizon]
    clips, horizon = psnr.shape[1:]
    total = psnr.sum(1, keepdims=True)
    left = (total - psnr) / (clips - 1) if clips > 1 else np.zeros((len(psnr), 0, horizon))
    found = {f"psnr_h{h}": (Readings(psnr[:, :, h - 1].mean(1), left[:, :, h - 1]), "dB") for h in sorted({1, horizon})}
    nothing = np.zeros((len(psnr), 0))
    contrast = np.array([each.contrast[-1] for each in arm.found])
    shift = np.array([each.colour[-1] for each in arm.found])
    return found | {
        "contrast_last_window": (Readings(contrast, nothing), "x real"),
        "colour_shift_last_window": (Readings(shift, nothing), "levels of 255"),
    }


def closeness_metrics(arms: Sequence[Measured]) -> dict[str, Metric]:
    """psnr_h1, psnr_hH, contrast_last_window and colour_shift_last_window of every arm."""
    metrics: dict[str, Metric] = {}
    for arm in arms:
        for measure, (reading, unit) in _readings(arm).items():
            metrics |= metrics_of(f"{arm.name}/{measure}", estimate(reading), unit)
    return metrics


def closeness_table(arms: Sequence[Measured]) -> Table:
    """The same as a table."""
    rows = [(arm.name, *(cell(estimate(reading)) for reading, _ in _readings(arm).values())) for arm in arms]
    head = ("arm", *(f"{name.replace('_', ' ')}, {unit}" for name, (_, unit) in _readings(arms[0]).items()))
    text = "PSNR of the short clips against what was recorded; contrast 1 and colour shift 0 are like real frames."
    return Table("Closeness and colours", head, tuple(rows), text)
