"""`evaluate chunking`: what a robot that moves while its policy computes loses, and how each way to join chunks helps.

Every cell, a delay and a way, runs the same cases with the same noise, so that all differences are paired.
"""

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import get_args

import numpy as np
from numpy.typing import NDArray

from worldmodel.calibration import calibrate
from worldmodel.datasets.evaluate import as_typed, finish, prepare
from worldmodel.errors import UserError
from worldmodel.evaluate.report import Metric, Report, Table
from worldmodel.evaluate.statistics import mean_interval
from worldmodel.folders import check_outputs
from worldmodel.options import check_range, check_seeds
from worldmodel.policies.episodes import UNSEEN, Robots, Row, Settings, cases, evaluate, open_for
from worldmodel.policies.planning import Chunking
from worldmodel.policies.policy import find_policy
from worldmodel.policies.success import Paired, wilson
from worldmodel.progress import progress_bar

WAYS: tuple[Chunking, ...] = get_args(Chunking)
UNIT = "m / step^3"


@dataclass(frozen=True, slots=True)
class Cell:
    """All cases under one delay and one way to join chunks."""

    delay: int
    way: Chunking
    rows: tuple[Row, ...]

    @property
    def name(self) -> str:
        return f"{self.delay}__{self.way}"


def chunking(
    checkpoint: Path,
    tasks: tuple[str, ...],
    delays: tuple[int, ...] = (0, 1, 2, 4),
    ways: tuple[Chunking, ...] = WAYS,
    episodes: int = 100,
    horizon: int = 200,
    out: Path | None = None,
    json: Path | None = None,
    parallel: int = 1,
    together: bool = False,
    seed: int = 0,
    episode_seed: int = UNSEEN,
    threads: int = 1,
) -> int:
    """Success and jerk at the borders of chunks for every delay of a policy and every way to join its chunks.

    Example: worldmodel evaluate chunking runs/policies/reach --tasks reach --episodes 100

    All cells run the same episodes with the same noise. Without a delay nothing has been committed, all --ways are the
    same, and only naive runs. Differences are from naive under the same delay, episode by episode.
    """
    command = as_typed(chunking, locals())
    check_range(1, episodes=episodes)
    check_seeds(seed=seed, episode_seed=episode_seed)
    check_outputs(out, file=json)
    for name, given in (("delays", delays), ("ways", ways)):
        if not given or len(set(given)) != len(given):
            raise UserError(f"--{name}: give at least one, and none twice")
    prepare("cpu", threads)
    policy = find_policy(checkpoint, "cpu")
    todo = cases(tasks, ("nominal",), episodes, episode_seed)
    base = Settings(horizon=horizon, parallel=parallel, together=together, seed=seed)
    asked = [replace(base, delay=d, chunking=way) for d in delays for way in (ways if d else ("naive",))]
    for settings in asked:
        settings.check(policy)
    cells: list[Cell] = []
    with (
        closing(Robots(policy.interface, open_for)) as robots,
        progress_bar(str(checkpoint), len(asked) * len(todo), unit="episodes") as advance,
    ):
        for settings in asked:
            rows = evaluate(policy, todo, settings, robots, told=lambda _: advance(1)).rows
            cells.append(Cell(settings.delay, settings.chunking, rows))
    report = report_of(cells)
    print(
        "\n".join("  ".join(cell.rjust(18) for cell in row) for row in (report.tables[0].head, *report.tables[0].rows))
    )
    return finish(replace(report, command=command, seeds=(seed, episode_seed)), "chunking", out, json)


def report_of(cells: Sequence[Cell]) -> Report:
    """The report of cells over the same cases. Jerk is also told of the cases alone that all cells solved: what a
    failed episode does, such as drifting off, is no matter of how its chunks join."""
    solved = np.array([[row.success for row in cell.rows] for cell in cells]).all(0)
    naive = {cell.delay: cell for cell in cells if cell.way == "naive"}
    metrics: dict[str, Metric] = {}
    lines: list[tuple[str, ...]] = []
    for cell in cells:
        successes = sum(row.success for row in cell.rows)
        measured = {
            "success_rate": Metric(successes / len(cell.rows), "", len(cell.rows), wilson(successes, len(cell.rows)))
        }
        measured |= _jerk("border_jerk", _jerks(cell))
        measured |= _jerk("border_jerk_solved", _jerks(cell)[solved])
        if cell.delay in naive and cell.way != "naive":
            other = naive[cell.delay]
            pair = Paired.of([row.success for row in cell.rows], [row.success for row in other.rows])
            measured["difference"] = Metric(pair.difference, "", pair.pairs)
            measured["p_value"] = Metric(pair.p_value)
            measured |= _jerk("jerk_difference", _jerks(cell) - _jerks(other))
            measured |= _jerk("jerk_difference_solved", (_jerks(cell) - _jerks(other))[solved])
        metrics |= {f"{name}__{cell.name}": metric for name, metric in measured.items()}
        lines.append((str(cell.delay), cell.way, f"{successes} of {len(cell.rows)}", *map(_told, (
            measured["success_rate"], measured.get("border_jerk"), measured.get("border_jerk_solved"),
            measured.get("jerk_difference_solved"),
        )), f"{measured['p_value'].value:.3g}" if "p_value" in measured else "-"))  # fmt: skip
    metrics |= {
        "solved_by_all": Metric(int(solved.sum()), "", len(cells[0].rows)),
        "gflops": Metric(calibrate().gflops, "GFLOP/s"),
    }
    head = ("delay", "chunking", "successes", "rate", "border jerk", "where all solved", "less naive's", "p (success)")
    return Report(
        command="",
        seeds=(),
        metrics=metrics,
        headline=tuple(name for name in metrics if name.startswith("success_rate")),
        tables=(Table("Delays and ways to join chunks", head, tuple(lines)),),
        notes=(
            "Intervals of success are Wilson's, of jerk percentile bootstraps over episodes, at 95 %. Border jerk is "
            f"the root mean square, in an episode, of third differences of targets across borders ({UNIT}). p is exact "
            "McNemar's against naive under the same delay, for itself: it is not adjusted for the number of cells.",
        ),
        curves={
            "cases": [f"{row.task} {row.seed}" for row in cells[0].rows],
            "success": {cell.name: [row.success for row in cell.rows] for cell in cells},
            "border_jerk": {cell.name: [row.border_jerk for row in cell.rows] for cell in cells},
        },
    )


def _jerks(cell: Cell) -> NDArray[np.float64]:
    """[episodes], NaN where an episode had no border."""
    return np.array([np.nan if row.border_jerk is None else row.border_jerk for row in cell.rows])


def _jerk(name: str, values: NDArray[np.float64]) -> dict[str, Metric]:
    """The mean over the episodes that have a value, if there are any."""
    values = values[np.isfinite(values)]
    return {name: Metric(float(values.mean()), UNIT, len(values), mean_interval(values))} if len(values) else {}


def _told(metric: Metric | None) -> str:
    if metric is None or metric.interval is None:
        return "-"
    low, high = metric.interval
    return f"{metric.value:.3f} [{low:.3f}, {high:.3f}]"
