"""The report of `evaluate swap`: numbers, ranks, tables and how it was measured.

Names of metrics: METHOD/AXIS (mean over training seeds and people; interval over seeds, or over people where there is
one seed), METHOD/AXIS/starts (interval over people) and METHOD/AXIS/seed0 ...; METHOD/AXIS_difference is METHOD less
the first trained method, in pairs. A single folder that was given no name has AXIS alone.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from worldmodel.calibration import Calibration
from worldmodel.evaluate.compare.show import both, cell, metrics_of
from worldmodel.evaluate.report import Metric, Picture, Report, Table, rounded
from worldmodel.evaluate.timing import CALIBRATED, calibration_metrics
from worldmodel.face.evaluate.axes import Axis, Gallery
from worldmodel.face.evaluate.meter import Measured
from worldmodel.face.evaluate.methods import ALONE, Method
from worldmodel.face.evaluate.result import Result

HEADLINE = ("identity_cosine", "identity_retrieval", "psnr", "landmark_jitter_ratio", "identity_drift_per_minute")


def report_of(
    result: Result, videos: Sequence[Measured], gallery: Gallery, load: Calibration, notes: tuple[str, ...],
    pictures: tuple[Picture, ...], device: str,
) -> Report:  # fmt: skip
    metrics: dict[str, Metric] = {}
    for method in result.methods:
        for axis in result.axes:
            metrics |= _metrics(result, method, axis)
    metrics |= _ranks(result)
    metrics |= {"people": Metric(len(set(result.who))), "retrieval_chance": Metric(1 / len(gallery.who))}
    metrics |= calibration_metrics(load)
    shown = [method for method in result.methods if method.trained] or list(result.ranked)
    folders = [f"{method.name}={','.join(method.arm.folders)}" for method in result.methods if method.trained]
    return Report(
        command="worldmodel evaluate swap " + " ".join(folders),
        title="Face swaps: " + ", ".join(method.name for method in result.ranked),
        seeds=(0,),
        device=device,
        metrics=metrics,
        headline=tuple(f"{prefix(method)}{name}" for method in shown for name in HEADLINE),
        verdicts=(),
        notes=(*notes, *_how(result, gallery), CALIBRATED),
        tables=(*_tables(result), _rank_table(result)),
        pictures=pictures,
        curves=_curves(result, videos, gallery),
    )


def prefix(method: Method) -> str:
    """Of a method's metrics."""
    return "" if method.name == ALONE else f"{method.name}/"


def _metrics(result: Result, method: Method, axis: Axis) -> dict[str, Metric]:
    found, apart = result.found(method, axis), result.apart(method, axis)
    name, within = f"{prefix(method)}{axis.name}", result.within(method, axis)
    if found is None:
        metrics = {}
    elif found.intervals or within is None:
        metrics = metrics_of(name, found, axis.unit)
    else:
        metrics = {name: Metric(found.value, axis.unit, 1, within)}
    if apart is not None:
        metrics |= metrics_of(f"{name}_difference", apart, axis.unit)
    return metrics


def _ranks(result: Result) -> dict[str, Metric]:
    found = {}
    for method, mean in zip(result.ranked, result.mean_ranks(), strict=True):
        if np.isfinite(mean):
            found[f"{prefix(method)}mean_rank"] = Metric(mean, "place")
    return found


def _tables(result: Result) -> list[Table]:
    """Axes as rows, methods as columns."""
    text = (
        "In brackets 95 % intervals: over training seeds, or over people (*) where there is one seed. Ends of the "
        "scale: target is the input unchanged, truth the exact swap, both through the same paste."
    )
    head = ("axis", *(method.name for method in result.methods))
    rows = []
    for axis in result.axes:
        found = [result.found(method, axis) for method in result.methods]
        unit = f", {axis.unit}" if axis.unit else ""
        rows.append((f"{axis.name}{unit} ({axis.better})", *("" if each is None else cell(each) for each in found)))
    tables = [Table("Measures", head, tuple(rows), text)]
    others = [method for method in result.ranked if result.base is not None and method is not result.base]
    if others and result.base is not None:
        rows = []
        for axis in result.axes:
            found = [result.apart(method, axis) for method in others]
            rows.append((axis.name, *("" if each is None else both(each) for each in found)))
        text = "In pairs: the same people, seed by seed. First over training seeds, then over people (*). Base: "
        head = ("axis", *(f"{method.name} - {result.base.name}" for method in others))
        tables.append(Table("Differences", head, tuple(rows), text + f"{result.base.name}."))
    return tables


def _rank_table(result: Result) -> Table:
    rows = [(f"{axis.name} ({axis.better})", *(_place(each) for each in result.ranks(axis))) for axis in result.axes]
    rows.append(("mean rank", *(_place(each) for each in result.mean_ranks())))
    text = "By the means; 1 is best, equal ones share their places. The mean is over axes that all methods have."
    return Table("Ranks", ("axis", *(method.name for method in result.ranked)), tuple(rows), text)


def _place(rank: float) -> str:
    return "" if not np.isfinite(rank) else f"{rank:.3g}"


def _how(result: Result, gallery: Gallery) -> tuple[str, ...]:
    axes = "; ".join(f"{axis.name}: {axis.text}" for axis in result.axes)
    return (
        f"Axes: {axes}.",
        f"Each of {len(result.who)} videos is streamed chunk after chunk by every method, one face at a time, colours "
        f"matched on the mask's border and pasted as in the stream. People: {len(set(result.who))} new ones; videos of "
        f"one person are averaged first, so that people are the units. Retrieval: among {len(gallery.who)} references.",
        "Slopes per minute are least squares through the means of up to 20 equal stretches of a video. Intervals over "
        "people: percentile bootstrap of the mean. A slope of one seed in one video has that within the video.",
        "Frames per second and latencies are of the generator alone (crops in, faces out), without the first chunk of "
        "each video; tracking, cropping and pasting are not in them.",
    )


def _curves(result: Result, videos: Sequence[Measured], gallery: Gallery) -> dict[str, Any]:
    found: dict[str, Any] = {
        "videos": [{"name": v.case.name, "who": v.case.who, "frames": v.frames} for v in videos],
        "folders": {method.name: list(method.arm.folders) for method in result.methods if method.trained},
        "values": {},
        "slopes": {},
    }
    for method in result.methods:
        tables = {axis.name: result.tables[method.name, axis.name] for axis in result.axes}
        found["values"][method.name] = {name: _json(values) for name, values in tables.items()}
        found["slopes"][method.name] = [
            {name: {"value": each.value, "interval": each.interval} for name, each in some.items()}
            for some in result.slopes[method.name]
        ]
    return found


def _json(values: Any) -> list[list[float | None]]:
    """JSON knows no NaN."""
    return [[float(each) if np.isfinite(each) else None for each in row] for row in values]


def text_table(result: Result) -> str:
    """The means for a terminal, methods as columns."""
    names = [method.name for method in result.methods]
    rows = []
    for axis in result.axes:
        found = [result.found(method, axis) for method in result.methods]
        rows.append((axis.name, ["" if each is None else rounded(each.value) for each in found]))
    rows.append(("mean rank", [_place(each) for each in result.mean_ranks()]))
    wide = [max(len(name), *(len(cells[i]) for _, cells in rows if i < len(cells))) for i, name in enumerate(names)]
    left = max(len(name) for name, _ in rows)
    lines = [" ".join([" " * left, *(f"{name:>{w}}" for name, w in zip(names, wide, strict=True))])]
    for name, cells in rows:
        lines.append(" ".join([f"{name:{left}}", *(f"{c:>{w}}" for c, w in zip(cells, wide, strict=False))]))
    return "\n".join(lines)
