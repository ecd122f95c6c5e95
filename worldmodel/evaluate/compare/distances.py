"""Frechet distances over the windows of long rollouts: metrics, tables, verdicts and the plot of all arms.

Metrics of encoders other than the judge append __ENCODER to their names.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from worldmodel.evaluate import plots
from worldmodel.evaluate.compare.arms import Measured
from worldmodel.evaluate.compare.show import (
    Verdict,
    against,
    both,
    cell,
    drawn_curve,
    in_words,
    label,
    mean_of,
    metrics_of,
)
from worldmodel.evaluate.compare.statistics import (
    Curves,
    Estimate,
    Readings,
    at_most_zero,
    below_zero,
    combined,
    estimate,
)
from worldmodel.evaluate.long_rollouts import Scale
from worldmodel.evaluate.report import Figure, Metric, Table, rounded

SLOPE = "per 1,000 frames"
FLAT, AS_GOOD = 1.25, 1.1  # last window over first window; first window over the baseline's


def distance_metrics(
    arms: Sequence[Measured], curves: Sequence[Curves], places: NDArray[np.float64], encoder: str, suffix: str
) -> dict[str, Metric]:
    """First and last window, their quotient, slope, and the paired differences of the three from the baseline."""
    metrics: dict[str, Metric] = {}
    base = _readings_of(curves[0], places)
    for number, (arm, curve) in enumerate(zip(arms, curves, strict=True)):
        for measure, reading in _readings_of(curve, places).items():
            unit = f"{encoder}, {SLOPE if measure == 'fd_slope' else 'above floor'}"
            metrics |= metrics_of(f"{arm.name}/{measure}{suffix}", estimate(reading), unit)
            if number:
                difference = estimate(combined(np.subtract, reading, base[measure]))
                metrics |= metrics_of(f"{arm.name}/{measure}_difference{suffix}", difference, f"{unit}, arm - baseline")
        ratio = quotient(curve)
        if ratio is not None:
            metrics |= metrics_of(f"{arm.name}/fd_last_over_first{suffix}", ratio, "x")
    return metrics


def _readings_of(curves: Curves, places: NDArray[np.float64]) -> dict[str, Readings]:
    """The three numbers of a curve; no slope of a single window."""
    found = {"fd_first_window": curves.first_window, "fd_last_window": curves.last_window}
    return found | ({"fd_slope": curves.slope(places)} if len(places) > 1 else {})


def quotient(curves: Curves) -> Estimate | None:
    """Last window over first; None where a first window is not clearly above the floor, so that it means nothing.

    Clearly: the mean's interval over starts is above 0, and so is every seed's value, with any start left out.
    """
    first, last = curves.first_window, curves.last_window
    sure = estimate(first)
    if min(first.values.min(), first.without.min(initial=np.inf)) <= 0:
        return None
    if sure.over_starts is not None and sure.over_starts[0] <= 0:
        return None
    return estimate(combined(np.divide, last, first))


def distance_verdicts(
    arms: Sequence[Measured], curves: Sequence[Curves], places: NDArray[np.float64]
) -> tuple[Verdict, ...]:
    """Of every arm but the baseline, in the judge's features. As a bar, a first window below the floor counts as 0."""
    verdicts: list[Verdict] = []
    base, base_curve = arms[0].name, curves[0]
    for arm, curve in list(zip(arms, curves, strict=True))[1:]:
        first, last = curve.first_window, curve.last_window
        flat = estimate(combined(lambda b, a: b - FLAT * np.maximum(a, 0), last, first))
        values, ratio = f"{mean_of(last)} after {mean_of(first)}", quotient(curve)
        text = (
            f"{values}, {rounded(ratio.value)} x" if ratio else f"{values}: first not clear of the floor, no quotient"
        )
        verdicts.append((f"{arm.name}: last window at most {FLAT} x its first", at_most_zero(flat), text))
        theirs = base_curve.first_window
        good = estimate(combined(lambda a, b: a - AS_GOOD * np.maximum(b, 0), first, theirs))
        text = against(first, theirs)
        verdicts.append((f"{arm.name}: first window at most {AS_GOOD} x {base}'s", at_most_zero(good), text))
        if len(places) > 1:
            slope = estimate(combined(np.subtract, curve.slope(places), base_curve.slope(places)))
            verdicts.append((f"{arm.name}: slope below {base}'s", below_zero(slope), f"difference {in_words(slope)}"))
    return tuple(verdicts)


def distance_tables(
    arms: Sequence[Measured], curves: Sequence[Curves], places: NDArray[np.float64], encoder: str
) -> tuple[Table, Table]:
    """Arms x measures, and arms x differences from the baseline, each with an interval."""
    base = _readings_of(curves[0], places)
    kinds = tuple(name.removeprefix("fd_").replace("_", " ") for name in base)
    rows, differences = [], []
    for arm, curve in zip(arms, curves, strict=True):
        found, ratio = _readings_of(curve, places), quotient(curve)
        cells = [cell(estimate(reading)) for reading in found.values()]
        rows.append((arm.name, str(arm.seeds), *cells, "–" if ratio is None else cell(ratio)))
        pairs = str(min(arm.seeds, arms[0].seeds))
        cells = [both(estimate(combined(np.subtract, found[measure], base[measure]))) for measure in found]
        differences.append((arm.name, pairs, *cells))
    text = (
        "Distances above the real-versus-real floor; slope per 1,000 frames. In brackets the 95 % interval over "
        "training seeds (Student's t), or over starts (jackknife, *) where there is one seed. –: the first window is "
        "not clearly above the floor, a quotient would mean nothing."
    )
    paired = (
        "Seed by seed. In brackets the 95 % interval over seeds; after it, or alone where there is one pair, that over "
        "starts (*)."
    )
    return (
        Table(f"Frechet distance in {encoder} features", ("arm", "seeds", *kinds, "last / first"), tuple(rows), text),
        Table(f"Difference from {arms[0].name}, {encoder}", ("arm", "pairs", *kinds), tuple(differences[1:]), paired),
    )


def distance_figure(
    arms: Sequence[Measured],
    curves: Sequence[Curves],
    places: NDArray[np.float64],
    scale: Scale,
    pictures: int,
    clip_frames: int | None,
) -> Figure:
    """Frechet distance over the windows, all arms."""
    with plots.axes(9.0, 4.2) as (ax, out):
        edges = [0.0]
        for number, (arm, curve) in enumerate(zip(arms, curves, strict=True)):
            edges += drawn_curve(ax, places, curve, arm.name, number, len(arms))
        ax.axhline(0, color=plots.REAL, linewidth=1, linestyle=(0, (4, 2)), label="recorded frames")
        margin = 0.05 * (max(edges) - min(edges) or 1)
        ax.set_ylim(min(edges) - margin, max(edges) + margin)
        if clip_frames is not None:
            ax.axvline(clip_frames, color="#94a3b8", linewidth=1, linestyle=(0, (1, 2)))
            place = (clip_frames, ax.get_ylim()[1])
            ax.annotate(" training clip", place, color="#64748b", fontsize=8.5, va="top")
        label(ax, "distance above the floor", len(arms))
    text = (
        f"N = {pictures} pictures a window; 0 is as many real frames (the floor {scale.floor.value:.4g} is "
        f"subtracted). Thick: mean over training seeds; thin: single seeds; shaded: 95 % over seeds, from three on; "
        f"upright lines: 95 % jackknife over starts."
    )
    return Figure(f"Frechet distance in {scale.encoder.name} features", out[0], text, wide=True)
