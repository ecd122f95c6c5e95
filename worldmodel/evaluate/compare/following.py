"""Action following in a comparison: scores of what the probe reads, and what the report says of them.

Letters: C short clips, B long rollouts, W windows of long rollouts, n readings per clip, D action dimensions.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from worldmodel.errors import UserError
from worldmodel.evaluate import plots
from worldmodel.evaluate.compare.arms import Measured
from worldmodel.evaluate.compare.bench import Bench
from worldmodel.evaluate.compare.reader import Reader
from worldmodel.evaluate.compare.show import Verdict, against, cell, drawn_curve, in_words, label, metrics_of
from worldmodel.evaluate.compare.statistics import Curves, Readings, at_most_zero, below_zero, combined, estimate
from worldmodel.evaluate.following import CLEAR, Judged
from worldmodel.evaluate.report import Figure, Metric, Table
from worldmodel.evaluate.statistics import sign_agreement

AS_OBEDIENT = 0.95  # short-horizon R2 over the baseline's
LEAST = 0.1  # R2 of the baseline from which on a quotient to it means something

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Following:
    """How an arm follows its actions: R2, and how often the sign of a clear action is read. Short, and per window."""

    short: Readings
    long: Curves
    sign_short: Readings | None  # None where no valid action goes both ways
    sign_last: Readings | None


def following_of(reader: Reader, short: Sequence[Floats], long: Sequence[Floats]) -> Following:
    """From the readings of every seed: [C, n, D] each, and [W, B, n, D] each."""
    curves = [
        _readings(reader, true, [seed[window] for seed in long], f"window {window + 1}")
        for window, true in enumerate(reader.true_long)
    ]
    return Following(
        short=_readings(reader, reader.true_short, short, "the short clips"),
        long=Curves(np.stack([each.values for each in curves], -1), np.stack([each.without for each in curves], -1)),
        sign_short=_sign_readings(reader, reader.true_short, short),
        sign_last=_sign_readings(reader, reader.true_long[-1], [seed[-1] for seed in long]),
    )


def _readings(reader: Reader, true: Floats, read: Sequence[Floats], where: str) -> Readings:
    """R2, mean over the valid dimensions, of every seed, and with each clip left out. true: [B, n, D]."""

    def score(seed: Floats, rows: NDArray[np.int64]) -> float:
        found = Judged(reader.spec.names, true, seed).scores(rows)[reader.valid]
        if not np.isfinite(found).all():
            raise UserError(f"an action never changes in {where}, with one start left out: use more --rollouts")
        return float(found.mean())

    return _with_each_left_out(score, read, len(true))


def _sign_readings(reader: Reader, true: Floats, read: Sequence[Floats]) -> Readings | None:
    """The share of clear actions whose sign is read, mean over valid dimensions that go both ways."""
    spec, both = reader.spec, []
    for column, (low, high) in enumerate(zip(spec.low, spec.high, strict=True)):
        clear = CLEAR * max(abs(low), abs(high))
        if reader.valid[column] and low <= -clear and high >= clear:
            both.append((column, clear))

    def score(seed: Floats, rows: NDArray[np.int64]) -> float:
        shares = [sign_agreement(true[rows][..., column], seed[rows][..., column], clear) for column, clear in both]
        counted = [share for share, count in shares if count]
        return float(np.mean(counted)) if counted else float("nan")

    found = _with_each_left_out(score, read, len(true)) if both else None
    return found if found is not None and np.isfinite(found.values).all() and np.isfinite(found.without).all() else None


def _with_each_left_out(
    score: Callable[[Floats, NDArray[np.int64]], float], read: Sequence[Floats], count: int
) -> Readings:
    everyone = np.arange(count)
    left = [everyone[everyone != b] for b in range(count)] if count > 1 else []
    values = np.array([score(seed, everyone) for seed in read])
    return Readings(values, np.array([[score(seed, rows) for rows in left] for seed in read]).reshape(len(read), -1))


def followings(reader: Reader, arms: Sequence[Measured]) -> list[Following]:
    """Of every arm."""
    return [following_of(reader, [m.read_short for m in a.found], [m.read_long for m in a.found]) for a in arms]


def recorded_following(reader: Reader) -> Following:
    """What the probe reads from recorded frames: the short clips, and the bench's real stretches (as one window)."""
    long = reader.real_long
    own = replace(reader, true_long=long.true[None])
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
