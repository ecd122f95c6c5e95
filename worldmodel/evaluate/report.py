"""The result of a measuring command: its numbers, and everything that a person wants to see. page.py shows it."""

import importlib.metadata
import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

import worldmodel


@dataclass(frozen=True, slots=True)
class Metric:
    """A number. n: independent units behind it. interval: 95 % unless the report says otherwise."""

    value: float
    unit: str = ""
    n: int | None = None
    interval: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        if not np.isfinite([self.value, *(self.interval or ())]).all():
            raise ValueError(f"a metric must be finite: {self}")

    def to_json(self) -> dict[str, Any]:
        data: dict[str, Any] = {"value": float(self.value), "unit": self.unit}
        if self.n is not None:
            data["n"] = int(self.n)
        if self.interval is not None:
            data["interval"] = [float(bound) for bound in self.interval]
        return data


@dataclass(frozen=True, slots=True)
class Figure:
    """A plot, as a complete SVG document. wide: it has a line of the page for itself."""

    title: str
    svg: str
    text: str = ""
    wide: bool = False


@dataclass(frozen=True, slots=True)
class Film:
    """A video to look at: frames uint8 [T, H, W, 3], frames per second, whole-number enlargement."""

    title: str
    frames: NDArray[np.uint8]
    fps: float
    scale: int = 3


@dataclass(frozen=True, slots=True)
class Picture:
    """A still to look at: uint8 [H, W, 3]."""

    title: str
    frame: NDArray[np.uint8]
    scale: int = 2


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of text under a head; the first column names the row, the others are numbers. text: what they mean."""

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    text: str = ""


Outcome = bool | Literal["not shown", "n/a"]
"""Whether something holds: yes, no, the measurement is too noisy to say no, or it cannot be asked here."""


@dataclass(frozen=True, kw_only=True)
class Report:
    """What a measuring command returns.

    command: as it would be typed. metrics: in the order in which they are shown. headline: names of the few that go on
    top of the page and to the terminal. verdicts: (what was asked, whether it holds, the numbers). notes: how it was
    measured, one paragraph each. curves: JSON data of whole series, for other programs. title: of the page; "": the
    command's name.
    """

    command: str
    seeds: tuple[int, ...]
    metrics: Mapping[str, Metric]
    device: str = "cpu"
    headline: tuple[str, ...] = ()
    verdicts: tuple[tuple[str, Outcome, str], ...] = ()
    notes: tuple[str, ...] = ()
    tables: tuple[Table, ...] = ()
    figures: tuple[Figure, ...] = ()
    films: tuple[Film, ...] = ()
    pictures: tuple[Picture, ...] = ()
    curves: Mapping[str, Any] = field(default_factory=dict)
    title: str = ""

    def to_json(self) -> dict[str, Any]:
        """The JSON object of every measuring command; "verdicts" and "curves" where there are curves."""
        data: dict[str, Any] = {
            "command": self.command,
            "versions": versions(),
            "device": device_name(self.device),
            "seeds": list(self.seeds),
            "metrics": {name: metric.to_json() for name, metric in self.metrics.items()},
        }
        if self.curves:
            said_of = [
                {"asked": asked, "outcome": said(outcome), "numbers": numbers}
                for asked, outcome, numbers in self.verdicts
            ]
            data |= {"verdicts": said_of, "curves": dict(self.curves)}
        return data

    def lines(self) -> list[str]:
        """For the terminal: one line per headline metric, then the verdicts."""
        shown = {name: self.metrics[name] for name in self.headline if name in self.metrics}
        width = max((len(name) for name in shown), default=0)
        lines = [f"{name:{width}}  {describe(metric)}" for name, metric in shown.items()]
        verdicts = [(said(outcome), asked, numbers) for asked, outcome, numbers in self.verdicts]
        width = max((len(word) for word, _, _ in verdicts), default=0)
        return lines + [f"{word:{width}} {asked}: {numbers}" for word, asked, numbers in verdicts]


def said(outcome: Outcome) -> str:
    """An outcome in a word."""
    return outcome if isinstance(outcome, str) else "ok" if outcome else "FAIL"


def describe(metric: Metric) -> str:
    """A metric in words: value, unit, interval, n."""
    text = f"{rounded(metric.value)} {metric.unit}".rstrip()
    if metric.interval is not None:
        text += f"  [{rounded(metric.interval[0])}, {rounded(metric.interval[1])}]"
    return text + (f"  n={metric.n}" if metric.n is not None else "")


def rounded(value: float) -> str:
    """Four significant digits without an exponent where that is readable."""
    return f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:.4g}"


def versions() -> dict[str, str]:
    """Of what a result may depend on."""
    found = {"worldmodel": worldmodel.__version__, "python": platform.python_version()}
    return found | {name: importlib.metadata.version(name) for name in ("torch", "numpy", "opencv-python-headless")}


def device_name(device: str) -> str:
    """A device for people: the GPU's name, or the processor with its cores and this process's threads."""
    if torch.device(device).type == "cuda":
        return torch.cuda.get_device_name(device)
    model = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.is_file():
        names = [line.split(":", 1)[1].strip() for line in info.read_text().splitlines() if "model name" in line]
        model = names[0] if names else model
    return f"{model}, {os.cpu_count()} cores, {torch.get_num_threads()} threads"
