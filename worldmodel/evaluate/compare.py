"""`evaluate compare`: drift of several ways to train, several training seeds each, in one report."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from worldmodel.encoders.frames import open_encoder
from worldmodel.errors import UserError
from worldmodel.evaluate.compare_arms import Arm, Measured, Open, check_same
from worldmodel.evaluate.compare_keep import keep, kept_key, load_kept
from worldmodel.evaluate.compare_measure import (
    Bench,
    CompareSettings,
    Measurement,
    frames_to_make,
    measure,
    model_key,
    prepare,
    scale_key,
)
from worldmodel.evaluate.compare_page import distance_figure, notes
from worldmodel.evaluate.compare_report import distance_metrics, distance_table, distance_verdicts
from worldmodel.evaluate.compare_sheet import films, sheets
from worldmodel.evaluate.long_rollouts import Scale, scale_of
from worldmodel.evaluate.recordings import Recordings, check_fit
from worldmodel.evaluate.report import Report
from worldmodel.models.world import WorldModel
from worldmodel.progress import progress_bar


def evaluate_compare(
    arms: Sequence[Arm],
    recordings: Recordings,
    *,
    settings: CompareSettings | None = None,
    encoders: tuple[str, ...] = ("lite0", "autoencoder"),
    clip_frames: int | None = None,
    kept: Path | None = None,
    open_world: Open = lambda folder: WorldModel.find(Path(folder)),
    quiet: bool = False,
) -> Report:
    """Roll out every model of every arm from the same beginnings and compare how they drift.

    arms: the first is the baseline. encoders: the first is the judge. clip_frames: pixel frames of the clips that the
    models were trained on, for the plot. kept: a folder for what was measured of each model, see compare_keep.
    One model is in memory at a time, and of its rollouts only the frames that are looked at.

    Example: evaluate_compare(parse_arms(("base=runs/a0,runs/a1", "forced=runs/f0,runs/f1")), recordings)
    """
    settings = settings or CompareSettings()
    _check(settings, encoders, clip_frames)
    world = check_same(arms, open_world)
    check_fit(world, recordings)
    bench = prepare(world, recordings, settings)
    scales = _scales(world, bench, encoders, quiet)
    shared = kept_key(bench.key, *(scale_key(scale) for scale in scales))
    found = tuple(_measured(arm, bench, scales, shared, kept, open_world, quiet) for arm in arms)
    return _report(world, bench, scales, found, clip_frames)


def _check(settings: CompareSettings, encoders: tuple[str, ...], clip_frames: int | None) -> None:
    counts = {name: value for name, value in asdict(settings).items() if isinstance(value, int)}
    least = {"window": 3, "frames": 3} | ({} if clip_frames is None else {"clip_frames": 1})
    for name, value in (counts | ({} if clip_frames is None else {"clip_frames": clip_frames})).items():
        if value < least.get(name, 1):
            raise UserError(f"compare: {name} must be at least {least.get(name, 1)}, not {value}")
    if settings.windows * settings.window > settings.frames:
        raise UserError(
            f"compare: {settings.frames} frames do not hold {settings.windows} windows of {settings.window}: at most "
            f"{settings.frames // settings.window}"
        )
    if not encoders or len(set(encoders)) < len(encoders):
        raise UserError(f"compare: give different encoders, one or more, not {list(encoders)}")


def _scales(world: WorldModel, bench: Bench, encoders: tuple[str, ...], quiet: bool) -> tuple[Scale, ...]:
    course, found = bench.course, []
    windows = course.real_windows
    seen = len(course.reference) + windows.shape[0] * windows.shape[1] * windows.shape[2]
    for choice in encoders:
        encoder = open_encoder(choice, world.tokenizer, world.device)
        with progress_bar(f"real frames: {encoder.name}", seen, shown=not quiet) as progress:
            found.append(scale_of(encoder, course.reference, windows, progress))
    return tuple(found)


def _measured(
    arm: Arm,
    bench: Bench,
    scales: tuple[Scale, ...],
    shared: str,
    kept: Path | None,
    open_world: Open,
    quiet: bool,
) -> Measured:
    found: list[Measurement] = []
    for folder in arm.folders:
        world = open_world(folder)
        key = kept_key(shared, model_key(world))
        known = load_kept(kept, key)
        if known is None:
            known = _measure(world, bench, scales, f"{arm.name} {len(found) + 1}/{len(arm.folders)}", quiet)
            keep(kept, key, known, _about(arm, folder, bench, scales))
        found.append(known)
    return Measured(arm, tuple(found))


def _measure(world: WorldModel, bench: Bench, scales: tuple[Scale, ...], name: str, quiet: bool) -> Measurement:
    settings = bench.settings
    made = frames_to_make(world, settings)
    seen = len(scales) * len(bench.starts) * settings.rollouts * settings.window
    with (
        progress_bar(f"rollouts: {name}", made, shown=not quiet) as rolled,
        progress_bar(f"features: {name}", seen, shown=not quiet) as encoded,
    ):
        return measure(world, bench, scales, rolled, encoded)


def _about(arm: Arm, folder: str, bench: Bench, scales: tuple[Scale, ...]) -> dict[str, Any]:
    names = [scale.encoder.name for scale in scales]
    return {"arm": arm.name, "folder": folder, "settings": asdict(bench.settings), "encoders": names}


def _report(
    world: WorldModel, bench: Bench, scales: tuple[Scale, ...], arms: tuple[Measured, ...], clip_frames: int | None
) -> Report:
    pictures = bench.settings.rollouts * bench.settings.window
    metrics, tables, figures, series = {}, [], [], {}
    for number, scale in enumerate(scales):
        encoder = scale.encoder.name
        curves = [arm.curves(number, scale) for arm in arms]
        metrics |= distance_metrics(arms, curves, bench.places, encoder, f"__{encoder}" if number else "")
        tables.append(distance_table(arms, curves, bench.places, encoder))
        figures.append(distance_figure(arms, curves, bench.places, scale, pictures, clip_frames))
        series[encoder] = {arm.name: curve.values.tolist() for arm, curve in zip(arms, curves, strict=True)}
    judged = [arm.curves(0, scales[0]) for arm in arms]
    return Report(
        command="worldmodel evaluate compare " + " ".join(f"{arm.name}={','.join(arm.arm.folders)}" for arm in arms),
        seeds=bench.settings.seeds,
        device=str(world.device),
        metrics=metrics,
        headline=tuple(f"{arm.name}/fd_{place}_window" for arm in arms for place in ("first", "last")),
        verdicts=distance_verdicts(arms, judged, bench.places),
        notes=notes(world, bench, arms, scales, clip_frames),
        tables=tuple(tables),
        figures=tuple(figures),
        films=films(bench, arms, world.fps),
        pictures=sheets(bench, arms),
        curves={
            "window_first_frame": [start + 1 for start in bench.starts],
            "window_middle": bench.places.tolist(),
            "floor": {scale.encoder.name: scale.floor.value for scale in scales},
            "fd_above_floor": series,
        },
    )
