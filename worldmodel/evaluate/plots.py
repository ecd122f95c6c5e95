"""Plots as SVG text. One look for all of them."""

import io
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

COLOURS = ("#2563eb", "#d97706", "#059669", "#db2777", "#7c3aed", "#64748b")
REAL, MODEL, BASELINE = "#0f172a", COLOURS[0], COLOURS[1]
STYLE: dict[Any, Any] = {  # matplotlib's own type of key is private
    "font.family": "DejaVu Sans",
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#94a3b8",
    "axes.labelcolor": "#334155",
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e2e8f0",
    "grid.linewidth": 0.8,
    "xtick.color": "#64748b",
    "ytick.color": "#64748b",
    "text.color": "#0f172a",
    "legend.frameon": False,
    "svg.hashsalt": "worldmodel",
}


@dataclass(frozen=True, slots=True)
class Curve:
    """A line with an optional band."""

    label: str
    x: ArrayLike
    y: ArrayLike
    low: ArrayLike | None = None
    high: ArrayLike | None = None
    colour: str = MODEL
    dashed: bool = False


@contextmanager
def axes(width: float = 6.4, height: float = 3.4) -> Iterator[tuple[Axes, list[str]]]:
    """Axes to draw on; after the block the list holds the SVG."""
    out: list[str] = []
    with rc_context(STYLE):
        figure = Figure(figsize=(width, height), layout="constrained")
        FigureCanvasSVG(figure)
        yield figure.subplots(), out
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    text = buffer.getvalue()
    out.append(text[text.index("<svg") :])


def curves(lines: Sequence[Curve], x_label: str, y_label: str, zero: bool = False) -> str:
    """Lines over a common axis. zero: let the axis begin at 0."""
    with axes() as (ax, out):
        for line in lines:
            style = (0, (4, 2)) if line.dashed else "solid"
            ax.plot(line.x, line.y, color=line.colour, label=line.label, linestyle=style, linewidth=1.8)
            if line.low is not None and line.high is not None:
                ax.fill_between(line.x, line.low, line.high, color=line.colour, alpha=0.14, linewidth=0)
        ax.set_xlabel(x_label)
        ax.set_ylabel(y_label)
        if zero:
            ax.set_ylim(bottom=min(0, ax.get_ylim()[0]))
        _legend(ax, len(lines))
    return out[0]


def bars(names: Sequence[str], groups: Mapping[str, ArrayLike], y_label: str, line: float | None = None) -> str:
    """Groups of bars, one colour per group. line: a level to compare with."""
    with axes() as (ax, out):
        width = 0.8 / len(groups)
        for i, (label, values) in enumerate(groups.items()):
            place = np.arange(len(names)) + (i - (len(groups) - 1) / 2) * width
            ax.bar(place, values, width * 0.92, color=COLOURS[i % len(COLOURS)], label=label)
        if line is not None:
            ax.axhline(line, color=REAL, linewidth=1, linestyle=(0, (4, 2)))
        ax.set_xticks(np.arange(len(names)), names)
        ax.grid(axis="x", visible=False)
        ax.set_ylabel(y_label)
        if len(groups) > 1:
            _legend(ax, len(groups))
    return out[0]


def scatter(panels: Sequence[tuple[str, ArrayLike, ArrayLike, str]], x_label: str, y_label: str) -> str:
    """Clouds of (label, x, y, colour) with the diagonal."""
    with axes(5.0, 4.2) as (ax, out):
        for label, x, y, colour in panels:
            ax.scatter(x, y, s=7, alpha=0.35, color=colour, label=label, linewidths=0, rasterized=False)
        low, high = ax.get_xlim()
        ax.plot((low, high), (low, high), color="#94a3b8", linewidth=1, zorder=0)
        ax.set_xlabel(x_label)
        ax.set_ylabel(y_label)
        ax.legend(markerscale=2.5)
    return out[0]


def trace(series: Mapping[str, ArrayLike], x_label: str, y_label: str) -> str:
    """Thin lines of a long series of measurements."""
    with axes() as (ax, out):
        for i, (label, values) in enumerate(series.items()):
            ax.plot(np.asarray(values), color=COLOURS[i], linewidth=0.9, label=label)
        ax.set_ylim(
            bottom=0, top=float(np.quantile(np.concatenate([np.asarray(v) for v in series.values()]), 0.995)) * 1.3
        )
        ax.set_xlabel(x_label)
        ax.set_ylabel(y_label)
        _legend(ax, len(series))
    return out[0]


def _legend(ax: Axes, count: int) -> None:
    """Above the plot, where it hides nothing."""
    ax.legend(ncols=min(count, 4), loc="lower left", bbox_to_anchor=(-0.02, 1.0), columnspacing=1.4, handlelength=1.6)
