"""The numbers of a comparison that are no distances: action following, closeness to the truth, contrast and colour."""

from collections.abc import Sequence

import numpy as np

from worldmodel.evaluate import plots
from worldmodel.evaluate.compare_arms import Measured
from worldmodel.evaluate.compare_bench import Bench
from worldmodel.evaluate.compare_following import Following, Reader, following_of
from worldmodel.evaluate.compare_page import drawn_curve, label
from worldmodel.evaluate.compare_report import (
    Verdict,
    against,
    at_most_zero,
    below_zero,
    cell,
    in_words,
    metrics_of,
)
from worldmodel.evaluate.compare_statistics import Readings, combined, estimate
from worldmodel.evaluate.report import Figure, Metric, Table

AS_OBEDIENT = 0.95  # short-horizon R2 over the baseline's
LEAST = 0.1  # R2 of the baseline from which on a quotient to it means something


def followings(reader: Reader, arms: Sequence[Measured]) -> list[Following]:
    """Of every arm."""
    return [following_of(reader, [m.read_short for m in a.found], [m.read_long for m in a.found]) for a in arms]


def recorded_following(reader: Reader) -> Following:
    """What the probe reads from recorded frames: the short clips, and the bench's real stretches (as one window)."""
    long = reader.real_long
    own = Reader(
        reader.probe, reader.spec, reader.last_seen, reader.true_short, long.true[None], reader.real_short, long,
        reader.valid,
    )  # fmt: skip
    return following_of(own, [reader.real_short.predicted], [long.predicted[None]])


def quotient(found: Readings, base: Readings) -> Readings | None:
    """R2 over the baseline's; None where a baseline's is below LEAST with any start left out: it would mean nothing."""
    theirs = base.first(min(len(found.values), len(base.values)))
    if min(theirs.values.min(), theirs.without.min(initial=np.inf)) < LEAST:
        return None
    return combined(np.divide, found, theirs)


def following_metrics(arms: Sequence[Measured], found: Sequence[Following], recorded: Following) -> dict[str, Metric]:
    """follow_short and follow_last (R2), sign_short and sign_last (share), and R2 over and minus the baseline's."""
    metrics: dict[str, Metric] = {}
    base = found[0]
    for number, (name, each) in enumerate([*zip([a.name for a in arms], found, strict=True), ("recorded", recorded)]):
        other = 0 < number < len(arms)
        for place, mine, bases in (
            ("short", each.short, base.short),
            ("last", each.long.last_window, base.long.last_window),
        ):
            metrics |= metrics_of(f"{name}/follow_{place}", estimate(mine), "R2")
            if other:
                difference = estimate(combined(np.subtract, mine, bases))
                metrics |= metrics_of(f"{name}/follow_{place}_difference", difference, "R2, arm - baseline")
                if (ratio := quotient(mine, bases)) is not None:
                    metrics |= metrics_of(f"{name}/follow_{place}_over_baseline", estimate(ratio), "x baseline")
        for place, signs in (("short", each.sign_short), ("last", each.sign_last)):
            if signs is not None:
                metrics |= metrics_of(f"{name}/sign_{place}", estimate(signs), "share of clear actions")
    return metrics


def following_verdicts(arms: Sequence[Measured], found: Sequence[Following]) -> tuple[Verdict, ...]:
    """Of every arm but the baseline."""
    verdicts: list[Verdict] = []
    base = found[0]
    for arm, each in list(zip(arms, found, strict=True))[1:]:
        short = estimate(combined(lambda a, b: AS_OBEDIENT * b - a, each.short, base.short))
        ratio = quotient(each.short, base.short)
        text = f"R2 {against(each.short, base.short)}"
        text += f", quotient {in_words(estimate(ratio))}" if ratio is not None else ""
        asked = f"{arm.name}: follows actions at short horizon at least {AS_OBEDIENT} x as well as {arms[0].name}"
        verdicts.append((asked, at_most_zero(short), text))
        mine, theirs = each.long.last_window, base.long.last_window
        text = f"R2 {against(mine, theirs)}, difference {in_words(estimate(combined(np.subtract, mine, theirs)))}"
        asked = f"{arm.name}: follows actions in the last window better than {arms[0].name}"
        verdicts.append((asked, below_zero(estimate(combined(np.subtract, theirs, mine))), text))
    return tuple(verdicts)


def following_figure(
    arms: Sequence[Measured], found: Sequence[Following], recorded: Following, bench: Bench, reader: Reader
) -> Figure:
    """R2 over the windows, all arms."""
    with plots.axes(9.0, 3.6) as (ax, out):
        edges: list[float] = []
        for number, (arm, each) in enumerate(zip(arms, found, strict=True)):
            edges += drawn_curve(ax, bench.places, each.long, arm.name, number, len(arms))
        level = float(recorded.long.values[0, 0])
        ax.axhline(level, color=plots.REAL, linewidth=1, linestyle=(0, (4, 2)), label="recorded frames")
        margin = 0.05 * (max(*edges, level) - min(edges) or 1)
        ax.set_ylim(max(min(edges) - margin, -1), max(*edges, level) + margin)
        label(ax, "R2 of the probe", len(arms))
    text = (
        f"Mean over {', '.join(reader.counted)}: 1 is every action read exactly, 0 is no better than their mean; cut "
        f"off below -1. Lines, shades and upright lines as above."
    )
    return Figure("Action following over the rollout", out[0], text, wide=True)


def following_table(arms: Sequence[Measured], found: Sequence[Following], recorded: Following) -> Table:
    """R2 and signs, short and in the last window."""
    rows, base = [], found[0]
    for number, (name, each) in enumerate([*zip([a.name for a in arms], found, strict=True), ("recorded", recorded)]):
        cells = [name]
        for mine, bases, signs in (
            (each.short, base.short, each.sign_short),
            (each.long.last_window, base.long.last_window, each.sign_last),
        ):
            ratio = quotient(mine, bases) if 0 < number < len(arms) else None
            cells += [cell(estimate(mine)), "" if ratio is None else cell(estimate(ratio))]
            cells.append("–" if signs is None else f"{float(signs.values.mean()):.1%}")
        rows.append(tuple(cells))
    head = ("arm", "R2, short", "x baseline", "signs, short", "R2, last window", "x baseline", "signs, last window")
    text = (
        "R2 of the inverse-dynamics probe, mean over the actions that it reads from recorded frames; signs: share of "
        "clear actions whose sign is read. Brackets as above (* over clips or starts). No quotient where the baseline "
        f"has an R2 below {LEAST}."
    )
    return Table("Action following", head, tuple(rows), text)


def picture_readings(arm: Measured) -> dict[str, tuple[Readings, str]]:
    """psnr_h1, psnr_hH (the last frame of the short clips), and contrast and colour shift of the last window."""
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


def picture_metrics(arms: Sequence[Measured]) -> dict[str, Metric]:
    """The numbers of `picture_readings` by arm."""
    metrics: dict[str, Metric] = {}
    for arm in arms:
        for measure, (reading, unit) in picture_readings(arm).items():
            metrics |= metrics_of(f"{arm.name}/{measure}", estimate(reading), unit)
    return metrics


def picture_table(arms: Sequence[Measured]) -> Table:
    """The same as a table."""
    rows = [(arm.name, *(cell(estimate(reading)) for reading, _ in picture_readings(arm).values())) for arm in arms]
    head = ("arm", *(f"{name.replace('_', ' ')}, {unit}" for name, (_, unit) in picture_readings(arms[0]).items()))
    text = "PSNR of the short clips against what was recorded; contrast 1 and colour shift 0 are like real frames."
    return Table("Closeness and colours", head, tuple(rows), text)
