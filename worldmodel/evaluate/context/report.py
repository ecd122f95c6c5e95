"""The report of `evaluate context`: numbers, verdicts, tables and how it was measured.

Names: with several arms ARM/MEASURE (and ARM/MEASURE/starts, ARM/MEASURE/seed0 ..., a start being a visit), with one
model MEASURE alone. Measures other than the judge append __NAME.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from worldmodel.evaluate.compare.show import Verdict, both, in_words, metrics_of
from worldmodel.evaluate.compare.statistics import Estimate
from worldmodel.evaluate.context.arms import Forgot, Measured
from worldmodel.evaluate.context.bench import Bench
from worldmodel.evaluate.context.forgetting import Reading
from worldmodel.evaluate.context.show import curve_figure, sheets
from worldmodel.evaluate.context.similarity import Scale
from worldmodel.evaluate.report import Metric, Outcome, Report, Table, rounded
from worldmodel.models.world import WorldModel

FRAMES, AT_LEAST = "frames", "frames, at least"


def report_of(
    world: WorldModel,
    bench: Bench,
    scales: tuple[Scale, ...],
    arms: tuple[Measured, ...],
    forgot: Sequence[Sequence[Forgot]],
    unclear: int,
) -> Report:
    """Of measures x arms. unclear: visits that were left out because nothing could be told of them."""
    metrics: dict[str, Metric] = {}
    figures, tables, several = [], [], len(arms) > 1
    for number, (scale, found) in enumerate(zip(scales, forgot, strict=True)):
        suffix = f"__{scale.measure.name}" if number else ""
        for arm, each in zip(arms, found, strict=True):
            metrics |= _metrics(bench, arm, each, found[0], arm is not arms[0], suffix)
        if several:
            metrics |= _common_metrics(bench, arms, found, suffix)
        metrics[f"retrieval_chance{suffix}"] = Metric(scale.chance)
        figures.append(curve_figure(bench, scale, arms, [each.scores for each in found], "score"))
        figures.append(curve_figure(bench, scale, arms, [each.right for each in found], "retrieval"))
        tables.append(_table(bench, scale, arms, found))
    metrics |= {f"{arm.prefix}memory_bytes": Metric(arm.memory_bytes, "bytes") for arm in arms}
    folders = " ".join(f"{arm.arm.name}={','.join(arm.arm.folders)}".removeprefix("=") for arm in arms)
    return Report(
        command=f"worldmodel evaluate context {folders}",
        title="Effective context" + (": " + ", ".join(arm.label for arm in arms) if several else ""),
        seeds=bench.settings.seeds,
        device=str(world.device),
        metrics=metrics,
        headline=tuple(f"{arm.prefix}{name}" for arm in arms for name in ("effective_context_frames", "memory_bytes")),
        verdicts=_verdicts(bench, arms, forgot[0]),
        notes=_notes(world, bench, scales, arms, unclear),
        tables=tuple(tables),
        figures=tuple(figures),
        pictures=sheets(bench, arms),
        curves=_curves(bench, scales, arms, forgot),
    )


def effective(forgot: Forgot) -> tuple[Estimate, bool]:
    """Effective context of an arm, and whether it is a lower bound because a model never lost half of its score."""
    visits = sum(len(rows) for rows in forgot.scores.horizons.members)
    return forgot.scores.effective.estimate(visits), bool(forgot.scores.at_least.any())


def _metrics(bench: Bench, arm: Measured, each: Forgot, base: Forgot, paired: bool, suffix: str) -> dict[str, Metric]:
    visits = [len(rows) for rows in bench.horizons.members]
    name = f"{arm.prefix}effective_context_frames"
    found, at_least = effective(each)
    metrics = _estimate_metrics(arm, f"{name}{suffix}", found, AT_LEAST if at_least else FRAMES)
    mean = each.scores.mean_score()
    metrics |= _estimate_metrics(arm, f"{arm.prefix}score_mean{suffix}", mean.estimate(sum(visits)), "")
    if paired:
        apart = each.scores.effective.minus(base.scores.effective)
        metrics |= metrics_of(f"{name}_difference{suffix}", apart.estimate(sum(visits)), "frames, arm - baseline")
        metrics |= _ratio(f"{name}_ratio{suffix}", each.scores.effective, base.scores.effective, sum(visits))
        better = mean.minus(base.scores.mean_score())
        metrics |= metrics_of(f"{arm.prefix}score_mean_difference{suffix}", better.estimate(sum(visits)), "")
    for number, (horizon, count) in enumerate(zip(bench.horizons.named, visits, strict=True)):
        score, right = each.scores.score(number).estimate(count), each.right.score(number).estimate(count)
        metrics |= _estimate_metrics(arm, f"{arm.prefix}score_n{horizon}{suffix}", score, "")
        metrics |= _estimate_metrics(arm, f"{arm.prefix}retrieval_n{horizon}{suffix}", right, "")
    return metrics


def common_level(forgot: Sequence[Forgot]) -> float:
    """Half of the best score that any arm has at the shortest horizon."""
    return max(float(each.scores.curves[:, 0].mean()) for each in forgot) / 2


def _common_metrics(bench: Bench, arms: Sequence[Measured], forgot: Sequence[Forgot], suffix: str) -> dict[str, Metric]:
    """Frames until the score falls below one level for all arms, and the differences from the baseline."""
    level, visits = common_level(forgot), sum(len(rows) for rows in bench.horizons.members)
    metrics = {f"common_level{suffix}": Metric(level)}
    base, _ = forgot[0].scores.above(level)
    for number, (arm, each) in enumerate(zip(arms, forgot, strict=True)):
        name, (reading, at_least) = f"{arm.prefix}common_context_frames", each.scores.above(level)
        unit = AT_LEAST if at_least.any() else FRAMES
        metrics |= _estimate_metrics(arm, f"{name}{suffix}", reading.estimate(visits), unit)
        if number:
            apart = reading.minus(base).estimate(visits)
            metrics |= metrics_of(f"{name}_difference{suffix}", apart, "frames, arm - baseline")
    return metrics


def _estimate_metrics(arm: Measured, name: str, found: Estimate, unit: str) -> dict[str, Metric]:
    if len(arm.found) > 1:
        return metrics_of(name, found, unit)
    return {name: Metric(found.value, unit, found.starts, found.over_starts)}


def _ratio(name: str, mine: Reading, theirs: Reading, visits: int) -> dict[str, Metric]:
    """Quotient of the means over seeds, with its interval over visits; none where the baseline may have no context."""
    over, under = mine.resampled.mean(0), theirs.resampled.mean(0)
    if theirs.values.mean() <= 0 or (under <= 0).any():
        return {}
    low, high = np.quantile(over / under, (0.025, 0.975))
    return {name: Metric(float(mine.values.mean() / theirs.values.mean()), "x", visits, (float(low), float(high)))}


def _verdicts(bench: Bench, arms: Sequence[Measured], forgot: Sequence[Forgot]) -> tuple[Verdict, ...]:
    """By the judge: what is remembered at all, and whose context is longer than the baseline's."""
    verdicts: list[Verdict] = []
    shortest, count = bench.horizons.named[0], len(bench.horizons.members[0])
    for arm, each in zip(arms, forgot, strict=True):
        first = each.scores.score(0).estimate(count)
        asked = f"{arm.label}: {shortest} frames after it was last seen, a view is drawn better than any room"
        verdicts.append((asked, _above_zero(first), f"score {in_words(first)}"))
    for arm, each in zip(arms[1:], forgot[1:], strict=True):
        base = forgot[0]
        visits = sum(len(rows) for rows in bench.horizons.members)
        apart = each.scores.effective.minus(base.scores.effective).estimate(visits)
        found, other = effective(each), effective(base)
        outcome: Outcome = "n/a" if found[1] and other[1] else _above_zero(apart)
        text = f"{_words(*found)} against {_words(*other)}, difference {in_words(apart)}"
        verdicts.append((f"{arm.label}: longer effective context than {arms[0].label}", outcome, text))
        level = common_level(forgot)
        (mine, kept), (theirs, theirs_kept) = each.scores.above(level), base.scores.above(level)
        apart = mine.minus(theirs).estimate(visits)
        outcome = "n/a" if kept.any() and theirs_kept.any() else _above_zero(apart)
        text = f"{_words(mine.estimate(visits), bool(kept.any()))} against "
        text += f"{_words(theirs.estimate(visits), bool(theirs_kept.any()))}, difference {in_words(apart)}"
        verdicts.append((f"{arm.label}: stays longer above a score of {rounded(level)}", outcome, text))
    return tuple(verdicts)


def _above_zero(found: Estimate) -> Outcome:
    if found.value <= 0:
        return False
    return True if all(low > 0 for low, _ in found.intervals) else "not shown"


def _words(found: Estimate, at_least: bool) -> str:
    return f"{'at least ' if at_least else ''}{rounded(found.value)}"


def _table(bench: Bench, scale: Scale, arms: Sequence[Measured], forgot: Sequence[Forgot]) -> Table:
    rows = []
    for arm, each in zip(arms, forgot, strict=True):
        found, at_least = effective(each)
        scores = [rounded(float(value)) for value in each.scores.curves.mean(0)]
        longest = ("≥ " if at_least else "") + both(found)
        rows.append((arm.label, f"{arm.memory_bytes:,}", longest, *scores))
    text = (
        f"Likeness by {scale.measure.name}. Scores by frames out of sight: 0 is any room, 1 is the tokenizer's own "
        f"picture. ≥: half of the score at {bench.horizons.named[0]} frames was never lost, so this is a lower bound. "
        f"In brackets 95 % intervals, first over training seeds where there are several, and over visits (*)."
    )
    head = ("arm", "memory, bytes", "effective context, frames", *(f"n = {n}" for n in bench.horizons.named))
    return Table(f"Effective context by {scale.measure.name}", head, tuple(rows), text)


def _notes(
    world: WorldModel, bench: Bench, scales: tuple[Scale, ...], arms: Sequence[Measured], unclear: int
) -> tuple[str, ...]:
    settings = bench.settings
    context = "all real frames before" if settings.lead is None else f"{settings.lead} real frames"
    recorded = ", the real frames of all the time out of sight, and makes the way back"
    away = " and goes on" if settings.away == "own" else recorded
    counts = ", ".join(f"{n}: {len(m)}" for n, m in zip(bench.horizons.named, bench.horizons.members, strict=True))
    episodes = len({case.episode for case in bench.cases})
    left = f" {unclear} visits were left out: the tokenizer's own picture is hardly better than any room." * (
        unclear > 0
    )
    return (
        "Arms: " + "; ".join(f"{arm.label} = {', '.join(arm.arm.folders)} with {arm.memory}" for arm in arms) + ".",
        f"Visits: a view is looked at, turned away from by 90 degrees or more, and come back to within "
        f"{settings.place:g} and {settings.heading:g} degrees. The horizon counts the frames from the first to the "
        f"last one turned away. Visits per horizon: {counts}; from {episodes} episodes.{left}",
        f"A model gets {context} up to the end of the look{away} by itself under the recorded actions, at "
        f"{world.fps:g} frames/s. The first {settings.views} frames back at the pose are compared with the recorded "
        f"ones. All models get the same visits, actions and noise (seeds {', '.join(map(str, settings.seeds))}).",
        "Score: (likeness to the real view - likeness of the real view to those of other visits) / (the same of the "
        "tokenizer's own picture of the real view). Likeness: "
        + " and ".join(_likeness(scale.measure.name) for scale in scales)
        + ". Retrieval: whether the drawn view is more alike to its real view than to those of "
        + f"{scales[0].rivals.shape[1]} other visits (chance {rounded(scales[0].chance)}).",
        "Effective context: the horizon at which half of the score at the shortest horizon is lost, along straight "
        "lines between horizons; per model, then averaged over training seeds. Intervals over visits: percentile "
        "bootstrap within each horizon, the same visits for all arms; over seeds: Student's t, paired by place in the "
        "list for differences. An arm that has lost nearly all at the shortest horizon has little left to lose: "
        "common_context_frames are the frames until the score falls below one level for all arms, half of the best "
        "score of any arm at the shortest horizon (the level is not resampled).",
        "Bytes: what the memory of one stream owns after the context and the longest visit.",
    )


def _likeness(name: str) -> str:
    if name == "psnr":
        return "PSNR in dB"
    return f"cosine between {name} features less their mean over the real views"


def _curves(
    bench: Bench, scales: Sequence[Scale], arms: Sequence[Measured], forgot: Sequence[Sequence[Forgot]]
) -> dict[str, Any]:
    found: dict[str, Any] = {
        "folders": {arm.label: list(arm.arm.folders) for arm in arms},
        "memory": {arm.label: arm.memory for arm in arms},
        "horizons": list(bench.horizons.named),
        "frames_out_of_sight": bench.horizons.frames.tolist(),
        "visits": [len(rows) for rows in bench.horizons.members],
    }
    for name in ("score", "retrieval", "effective_context"):
        found[name] = {}
    for scale, row in zip(scales, forgot, strict=True):
        measure = scale.measure.name
        for name in ("score", "retrieval", "effective_context"):
            found[name][measure] = {}
        for arm, each in zip(arms, row, strict=True):
            found["score"][measure][arm.label] = {
                "per_seed": each.scores.curves.tolist(), "band": [list(pair) for pair in each.scores.band()],
            }  # fmt: skip
            found["retrieval"][measure][arm.label] = {"per_seed": each.right.curves.tolist()}
            value, at_least = effective(each)
            found["effective_context"][measure][arm.label] = {
                "frames": value.value,
                "at_least": at_least,
                "per_seed": list(value.per_seed),
                "at_least_per_seed": each.scores.at_least.tolist(),
            }
    return found
