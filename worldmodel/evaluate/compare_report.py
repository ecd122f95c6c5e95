"""The numbers of a comparison: metrics by arm and measure, a table, and what holds of each arm.

Names: ARM/MEASURE (mean over seeds; interval over seeds, or over starts where there is one seed), ARM/MEASURE/starts
(the same with the interval over starts) and ARM/MEASURE/seed0 .... Encoders other than the judge append __ENCODER.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from worldmodel.evaluate.compare_arms import Measured
from worldmodel.evaluate.compare_statistics import Curves, Estimate, Readings, combined, estimate
from worldmodel.evaluate.report import Metric, Outcome, Table, rounded

SLOPE = "per 1,000 frames"
FLAT, AS_GOOD = 1.25, 1.1  # last window over first window; first window over the baseline's

Verdict = tuple[str, Outcome, str]


def metrics_of(name: str, found: Estimate, unit: str) -> dict[str, Metric]:
    """An estimate under its three kinds of names."""
    shown = found.over_seeds or found.over_starts
    metrics = {
        name: Metric(found.value, unit, len(found.per_seed) if found.over_seeds else found.starts or None, shown)
    }
    if found.over_seeds and found.over_starts:
        metrics[f"{name}/starts"] = Metric(found.value, unit, found.starts, found.over_starts)
    return metrics | {f"{name}/seed{i}": Metric(value, unit) for i, value in enumerate(found.per_seed)}


def distance_metrics(
    arms: Sequence[Measured], curves: Sequence[Curves], places: NDArray[np.float64], encoder: str, suffix: str
) -> dict[str, Metric]:
    """First and last window, their quotient, slope, and the paired differences of the three from the baseline."""
    metrics: dict[str, Metric] = {}
    base = readings_of(curves[0], places)
    for number, (arm, curve) in enumerate(zip(arms, curves, strict=True)):
        for measure, reading in readings_of(curve, places).items():
            unit = f"{encoder}, {SLOPE if measure == 'fd_slope' else 'above floor'}"
            metrics |= metrics_of(f"{arm.name}/{measure}{suffix}", estimate(reading), unit)
            if number:
                difference = estimate(combined(np.subtract, reading, base[measure]))
                metrics |= metrics_of(f"{arm.name}/{measure}_difference{suffix}", difference, f"{unit}, arm - baseline")
        ratio = quotient(curve)
        if ratio is not None:
            metrics |= metrics_of(f"{arm.name}/fd_last_over_first{suffix}", ratio, "x")
    return metrics


def readings_of(curves: Curves, places: NDArray[np.float64]) -> dict[str, Readings]:
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


def distance_verdicts(
    arms: Sequence[Measured], curves: Sequence[Curves], places: NDArray[np.float64]
) -> tuple[Verdict, ...]:
    """Of every arm but the baseline, in the judge's features. As a bar, a first window below the floor counts as 0."""
    verdicts: list[Verdict] = []
    base, base_curve = arms[0].name, curves[0]
    for arm, curve in list(zip(arms, curves, strict=True))[1:]:
        first, last = curve.first_window, curve.last_window
        flat = estimate(combined(lambda b, a: b - FLAT * np.maximum(a, 0), last, first))
        values, ratio = f"{_mean(last)} after {_mean(first)}", quotient(curve)
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


def _mean(reading: Readings) -> str:
    return rounded(float(reading.values.mean()))


def against(mine: Readings, theirs: Readings) -> str:
    """The means of both over the seeds that both have."""
    seeds = min(len(mine.values), len(theirs.values))
    return f"{_mean(mine.first(seeds))} against {_mean(theirs.first(seeds))}"


def in_words(found: Estimate) -> str:
    """A value with both intervals."""
    seeds, starts = (None if each is None else _span(each) for each in (found.over_seeds, found.over_starts))
    parts = [f"{seeds} over seeds"] if seeds else []
    parts += [f"{starts} over starts"] if starts else []
    return f"{rounded(found.value)} ({', '.join(parts)})" if parts else rounded(found.value)


def _span(interval: tuple[float, float]) -> str:
    return f"{rounded(interval[0])} to {rounded(interval[1])}"


def distance_tables(
    arms: Sequence[Measured], curves: Sequence[Curves], places: NDArray[np.float64], encoder: str
) -> tuple[Table, Table]:
    """Arms x measures, and arms x differences from the baseline, each with an interval."""
    base = readings_of(curves[0], places)
    kinds = tuple(name.removeprefix("fd_").replace("_", " ") for name in base)
    rows, differences = [], []
    for arm, curve in zip(arms, curves, strict=True):
        found, ratio = readings_of(curve, places), quotient(curve)
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


def cell(found: Estimate) -> str:
    """A value with its interval over seeds; over starts, marked with a star, where there is one seed."""
    if found.over_seeds is None:
        return f"{_brief(found.value)}{_brackets(found.over_starts, '*')}"
    return f"{_brief(found.value)}{_brackets(found.over_seeds)}"


def both(found: Estimate) -> str:
    """A value with all its intervals."""
    return f"{_brief(found.value)}{_brackets(found.over_seeds)}{_brackets(found.over_starts, '*')}"


def _brackets(interval: tuple[float, float] | None, mark: str = "") -> str:
    return "" if interval is None else f" [{_brief(interval[0])}, {_brief(interval[1])}]{mark}"


def _brief(value: float) -> str:
    """Three significant digits, as tables have little room."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
