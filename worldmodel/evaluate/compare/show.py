"""How numbers of a comparison are shown: as metrics, in tables and sentences, and as curves.

Names of metrics: ARM/MEASURE (mean over seeds; interval over seeds, or over starts where there is one seed),
ARM/MEASURE/starts (the same with the interval over starts) and ARM/MEASURE/seed0 ....
"""

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import NDArray

from worldmodel.evaluate.compare.statistics import Curves, Estimate, Readings
from worldmodel.evaluate.report import Metric, Outcome, rounded

COLOURS = ("#64748b", "#2563eb", "#d97706", "#059669", "#db2777", "#7c3aed", "#0891b2", "#a16207")  # baseline first

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


def against(mine: Readings, theirs: Readings) -> str:
    """The means of both over the seeds that both have."""
    seeds = min(len(mine.values), len(theirs.values))
    return f"{mean_of(mine.first(seeds))} against {mean_of(theirs.first(seeds))}"


def in_words(found: Estimate) -> str:
    """A value with both intervals."""
    seeds, starts = (None if each is None else _span(each) for each in (found.over_seeds, found.over_starts))
    parts = [f"{seeds} over seeds"] if seeds else []
    parts += [f"{starts} over starts"] if starts else []
    return f"{rounded(found.value)} ({', '.join(parts)})" if parts else rounded(found.value)


def _span(interval: tuple[float, float]) -> str:
    return f"{rounded(interval[0])} to {rounded(interval[1])}"


def mean_of(reading: Readings) -> str:
    """The mean over seeds."""
    return rounded(float(reading.values.mean()))


def colour(number: int) -> str:
    """Of arm `number`."""
    return COLOURS[number % len(COLOURS)]


def drawn_curve(ax: Axes, places: NDArray[np.float64], curve: Curves, name: str, number: int, arms: int) -> list[float]:
    """Draw an arm: mean, band over seeds, single seeds, jackknife whiskers. Returns the values that must be seen."""
    mean, shade = curve.values.mean(0), colour(number)
    band = curve.band() if len(curve.values) > 2 else None
    if band is not None:
        ax.fill_between(places, *band, color=shade, alpha=0.13, linewidth=0)
    if len(curve.values) > 1:
        ax.plot(places, curve.values.T, color=shade, linewidth=0.7, alpha=0.55)
    seen = [float(curve.values.min()), float(curve.values.max())]
    whiskers = curve.whiskers()
    if whiskers is not None:
        shift = (number - (arms - 1) / 2) * (places[-1] - places[0]) * 0.004
        ax.vlines(places + shift, *whiskers, color=shade, linewidth=1.0, alpha=0.45)
        seen += [float(whiskers[0].min()), float(whiskers[1].max())]
    ax.plot(places, mean, color=shade, linewidth=2.2, marker="o", markersize=3.5, label=name)
    return seen


def label(ax: Axes, what: str, arms: int) -> None:
    """Name the axes of a plot over the windows, and its arms above it."""
    ax.set_xlabel("middle of the window, frames after the context")
    ax.set_ylabel(what)
    ax.legend(ncols=min(arms + 1, 5), loc="lower left", bbox_to_anchor=(-0.02, 1.0), columnspacing=1.4)
