"""`evaluate context`: how long a model remembers what it has seen, for one model or for several arms."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import get_args

from worldmodel.encoders.frames import Encoder, open_encoder
from worldmodel.errors import UserError
from worldmodel.evaluate.compare.arms import Arm, Open, check_each
from worldmodel.evaluate.context.arms import Forgot, Measured, OpenArm
from worldmodel.evaluate.context.bench import Away, Bench, ContextSettings, prepare
from worldmodel.evaluate.context.forgetting import forgetting
from worldmodel.evaluate.context.redraw import frames_to_make, measure
from worldmodel.evaluate.context.report import report_of
from worldmodel.evaluate.context.similarity import Scale, check_measures, measure_of, scale_of, told_apart
from worldmodel.evaluate.recordings import Recordings, check_fit
from worldmodel.evaluate.report import Report
from worldmodel.memory import MemoryConfig
from worldmodel.models.world import WorldModel
from worldmodel.progress import progress_bar


def evaluate_context(
    arms: Sequence[Arm],
    recordings: Recordings,
    *,
    settings: ContextSettings | None = None,
    measures: tuple[str, ...] = ("lite0", "psnr"),
    memories: Mapping[str, MemoryConfig] | None = None,
    open_world: Open = lambda folder: WorldModel.find(Path(folder)),
    quiet: bool = False,
) -> Report:
    """Let every model of every arm turn away from views and come back, and score what it draws there.

    arms: the first is the baseline; a single one named "" is reported without a name. recordings: episodes with visits,
    see visits.py. measures: "psnr", or names of encoders; the first is the judge. memories: by name of an arm ("": for
    all others) what its models remember with, instead of their own. UserErrors: no visits, other sizes or actions.

    Example: evaluate_context((Arm("", ("runs/maze",)),), recordings)
    """
    settings = settings or ContextSettings()
    _check(settings, measures)
    open_arm = OpenArm(open_world, dict(memories or {}))
    world = check_each(arms, open_arm)
    check_fit(world, recordings)
    bench, scales, unclear = _scaled(world, prepare(world, recordings, settings), measures)
    found = tuple(_measured(arm, bench, scales, open_arm, quiet) for arm in arms)
    forgot = [[_forgot(bench, each, number) for each in found] for number in range(len(scales))]
    return report_of(world, bench, scales, found, forgot, unclear)


def _check(settings: ContextSettings, measures: tuple[str, ...]) -> None:
    least = {"visits": 2, "views": 1, "rivals": 1}
    for name, value in least.items():
        if getattr(settings, name) < value:
            raise UserError(f"context: {name} must be at least {value}, not {getattr(settings, name)}")
    if settings.lead is not None and settings.lead < 1:
        raise UserError(f"context: lead must be at least 1, not {settings.lead}")
    if not settings.horizons or min(settings.horizons) < 1 or len(set(settings.horizons)) < len(settings.horizons):
        raise UserError(f"context: horizons are different numbers of frames from 1 on, not {list(settings.horizons)}")
    if settings.away not in get_args(Away):
        raise UserError(f"context: away is {' or '.join(get_args(Away))}, not {settings.away}")
    if not settings.seeds:
        raise UserError("context: give a noise seed or more")
    if not 0 <= settings.place < float("inf") or not 0 <= settings.heading < 45:
        raise UserError(
            f"context: place must be at least 0 and heading in [0, 45) degrees, not {settings.place} and "
            f"{settings.heading}"
        )
    check_measures(measures)


def _scaled(world: WorldModel, bench: Bench, measures: tuple[str, ...]) -> tuple[Bench, tuple[Scale, ...], int]:
    """The visits whose views can be told apart at all, their scales, and how many others there were."""
    scales = _scales(world, bench, measures)
    clear = told_apart(scales)
    if clear.all():
        return bench, scales, 0
    kept = bench.select(clear.nonzero()[0])
    if not kept.horizons.members:
        raise UserError("the tokenizer draws the views of these recordings no better than any other view")
    return kept, _scales(world, kept, measures), len(bench.cases) - len(kept.cases)


def _scales(world: WorldModel, bench: Bench, measures: tuple[str, ...]) -> tuple[Scale, ...]:
    others, settings = bench.others, bench.settings
    if not others.any(1).all():
        raise UserError(f"all {len(bench.cases)} visits look at one place: there is no other view to tell it from")

    def encoder(name: str) -> Encoder:
        return open_encoder(name, world.tokenizer, world.device)

    return tuple(
        scale_of(
            measure_of(name, bench.real, encoder), bench.real, bench.rebuilt, others, settings.rivals, settings.seeds[0]
        )
        for name in measures
    )


def _measured(arm: Arm, bench: Bench, scales: tuple[Scale, ...], open_arm: OpenArm, quiet: bool) -> Measured:
    found, memory = [], ""
    for number, folder in enumerate(arm.folders):
        world = open_arm(arm, folder)
        memory = memory or str(world.stream.memory)
        name = " ".join(part for part in (arm.name, f"{number + 1}/{len(arm.folders)}") if part)
        with progress_bar(name, frames_to_make(world, bench), shown=not quiet) as progress:
            found.append(measure(world, bench, scales, progress))
    return Measured(arm, memory, tuple(found))


def _forgot(bench: Bench, measured: Measured, number: int) -> Forgot:
    return Forgot(
        forgetting(bench.horizons, measured.scores(number)), forgetting(bench.horizons, measured.right(number))
    )
