"""The comparison: every model of every arm is measured, or was before, and all of it becomes one report."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from worldmodel.encoders.frames import check_encoders, open_encoder
from worldmodel.errors import UserError
from worldmodel.evaluate.compare.arms import Arm, Measured, Open, check_same
from worldmodel.evaluate.compare.bench import Bench, CompareSettings, prepare
from worldmodel.evaluate.compare.closeness import closeness_metrics, closeness_table
from worldmodel.evaluate.compare.distances import distance_figure, distance_metrics, distance_tables, distance_verdicts
from worldmodel.evaluate.compare.following import (
    following_figure,
    following_metrics,
    following_table,
    following_verdicts,
    followings,
    recorded_following,
)
from worldmodel.evaluate.compare.keep import keep, keep_probe, kept_key, load_kept, load_probe
from worldmodel.evaluate.compare.measure import Measurement, frames_to_make, measure, model_key, scale_key
from worldmodel.evaluate.compare.notes import notes
from worldmodel.evaluate.compare.reader import Reader, reader_of, recordings_key
from worldmodel.evaluate.compare.sheets import films, sheets
from worldmodel.evaluate.following import EPOCHS, LENGTH, VALID, train_probe
from worldmodel.evaluate.long_rollouts import Scale, scale_of
from worldmodel.evaluate.probe import WINDOW
from worldmodel.evaluate.recordings import Recordings, check_fit
from worldmodel.evaluate.report import Report
from worldmodel.fingerprint import fingerprint
from worldmodel.models.world import WorldModel
from worldmodel.progress import progress_bar


def evaluate_compare(
    arms: Sequence[Arm],
    recordings: Recordings,
    train: Recordings | None = None,
    *,
    settings: CompareSettings | None = None,
    encoders: tuple[str, ...] = ("lite0", "autoencoder"),
    clip_frames: int | None = None,
    probe_clips: int = 800,
    readable: float = VALID,
    kept: Path | None = None,
    open_world: Open = lambda folder: WorldModel.find(Path(folder)),
    quiet: bool = False,
) -> Report:
    """Roll out every model of every arm from the same beginnings and compare how they drift.

    arms: the first is the baseline. recordings: held out; train: what a probe of the actions learns from, from
    `probe_clips` clips (None: action following is not measured); an action counts if the probe reads it from recorded
    clips with an R2 of at least `readable`. encoders: the first is the judge. clip_frames: pixel
    frames of the clips that the models were trained on, for the plot. kept: a folder for what was measured of each
    model, see keep.py. One model is in memory at a time, and of its rollouts only the frames that are looked at.

    Example: evaluate_compare(parse_arms(("base=runs/a0,runs/a1", "forced=runs/f0,runs/f1")), recordings)
    """
    settings = settings or CompareSettings()
    _check(settings, encoders, clip_frames, readable, train is not None)
    world = check_same(arms, open_world)
    check_fit(world, recordings)
    bench = prepare(world, recordings, settings)
    reader, read_by = None, "no probe"
    if train is not None:
        check_fit(world, train)
        reader, read_by = _reader(world, train, bench, probe_clips, readable, kept, quiet)
    scales = _scales(world, bench, encoders, quiet)
    shared = kept_key(bench.key, read_by, *(scale_key(scale) for scale in scales))
    found = tuple(_measured(arm, bench, scales, reader, shared, kept, open_world, quiet) for arm in arms)
    return _report(world, bench, scales, reader, found, clip_frames)


def _check(
    settings: CompareSettings, encoders: tuple[str, ...], clip_frames: int | None, readable: float, probe: bool
) -> None:
    counts = {name: value for name, value in asdict(settings).items() if isinstance(value, int)}
    least = {"window": WINDOW + 1, "horizon": WINDOW} if probe else {"window": 3}
    for name, value in (counts | ({} if clip_frames is None else {"clip_frames": clip_frames})).items():
        if value < least.get(name, 1):
            raise UserError(f"compare: {name} must be at least {least.get(name, 1)}, not {value}")
    if settings.windows * settings.window > settings.frames:
        raise UserError(
            f"compare: {settings.frames} frames do not hold {settings.windows} windows of {settings.window}: at most "
            f"{settings.frames // settings.window}"
        )
    if not 0 <= readable <= 1:
        raise UserError(f"compare: readable must be in [0, 1], not {readable}")
    if not encoders:
        raise UserError("compare: give an encoder, or several")
    check_encoders("compare", encoders)


def _reader(
    world: WorldModel,
    train: Recordings,
    bench: Bench,
    clips: int,
    readable: float,
    kept: Path | None,
    quiet: bool,
) -> tuple[Reader, str]:
    """A probe, trained here or kept from before, and a name for it."""
    tokenizer: Any = world.tokenizer  # tokenizers are modules
    seed = bench.settings.seeds[0]
    sizes = f"{clips} {LENGTH} {EPOCHS} {seed}"
    key = kept_key("probe", recordings_key(train), fingerprint(tokenizer), sizes)
    probe = load_probe(kept, key)
    if probe is None:
        probe, _ = train_probe(world, train, clips, EPOCHS, seed, quiet)
        keep_probe(kept, key, probe)
    return reader_of(world, bench, probe, readable), key


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
    reader: Reader | None,
    shared: str,
    kept: Path | None,
    open_world: Open,
    quiet: bool,
) -> Measured:
    found: list[Measurement] = []
    windows = len(bench.starts)
    shapes = {"raw": (len(scales), windows), "contrast": (windows,), "colour": (windows,)}
    for folder in arm.folders:
        world = open_world(folder)
        key = kept_key(shared, model_key(world))
        known = load_kept(kept, key, shapes)
        if known is None:
            name = f"{arm.name} {len(found) + 1}/{len(arm.folders)}"
            known = _measure(world, bench, scales, reader, name, quiet)
            keep(kept, key, known, _about(arm, folder, bench, scales))
        found.append(known)
    return Measured(arm, tuple(found))


def _measure(
    world: WorldModel, bench: Bench, scales: tuple[Scale, ...], reader: Reader | None, name: str, quiet: bool
) -> Measurement:
    settings = bench.settings
    encoded = len(scales) * len(bench.starts) * settings.rollouts * settings.window
    with progress_bar(name, frames_to_make(world, settings) + encoded, shown=not quiet) as progress:
        return measure(world, bench, scales, reader, progress)


def _about(arm: Arm, folder: str, bench: Bench, scales: tuple[Scale, ...]) -> dict[str, Any]:
    names = [scale.encoder.name for scale in scales]
    return {"arm": arm.name, "folder": folder, "settings": asdict(bench.settings), "encoders": names}


def _report(
    world: WorldModel,
    bench: Bench,
    scales: tuple[Scale, ...],
    reader: Reader | None,
    arms: tuple[Measured, ...],
    clip_frames: int | None,
) -> Report:
    pictures = bench.settings.rollouts * bench.settings.window
    metrics, tables, figures, series = {}, [], [], {}
    distances = [[arm.curves(number, scale) for arm in arms] for number, scale in enumerate(scales)]
    for number, (scale, curves) in enumerate(zip(scales, distances, strict=True)):
        encoder = scale.encoder.name
        metrics |= distance_metrics(arms, curves, bench.places, encoder, f"__{encoder}" if number else "")
        tables += distance_tables(arms, curves, bench.places, encoder)
        figures.append(distance_figure(arms, curves, bench.places, scale, pictures, clip_frames))
        series[encoder] = {arm.name: curve.values.tolist() for arm, curve in zip(arms, curves, strict=True)}
    verdicts = distance_verdicts(arms, distances[0], bench.places)
    series = {"fd_above_floor": series}
    if reader is not None:
        followed, recorded = followings(reader, arms), recorded_following(reader)
        metrics |= following_metrics(arms, followed, recorded)
        tables.append(following_table(arms, followed, recorded))
        figures.append(following_figure(arms, followed, recorded, bench, reader))
        verdicts += following_verdicts(arms, followed)
        found = zip(arms, followed, strict=True)
        series["follow_r2"] = {arm.name: each.long.values.tolist() for arm, each in found}
    return Report(
        command="worldmodel evaluate compare " + " ".join(f"{arm.name}={','.join(arm.arm.folders)}" for arm in arms),
        title="Drift: " + ", ".join(arm.name for arm in arms),
        seeds=bench.settings.seeds,
        device=str(world.device),
        metrics=metrics | closeness_metrics(arms),
        headline=tuple(f"{arm.name}/fd_last_window" for arm in arms),
        verdicts=verdicts,
        notes=notes(world, bench, arms, scales, reader, clip_frames),
        tables=(*tables, closeness_table(arms)),
        figures=tuple(figures),
        films=films(bench, arms, world.fps),
        pictures=sheets(bench, arms),
        curves={
            "folders": {arm.name: list(arm.arm.folders) for arm in arms},
            "window_first_frame": [start + 1 for start in bench.starts],
            "window_middle": bench.places.tolist(),
            "floor": {scale.encoder.name: scale.floor.value for scale in scales},
            **series,
        },
    )
