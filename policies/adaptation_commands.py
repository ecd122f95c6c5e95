"""`trials` and `evaluate recovery`: what a context encoder learns from, and how far it brings a policy back."""

from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Literal

from worldmodel.datasets.evaluate import as_typed, finish, prepare
from worldmodel.errors import UserError
from worldmodel.evaluate.report import Metric, Report, Table
from worldmodel.folders import check_outputs
from worldmodel.options import check_range, check_seeds
from worldmodel.policies.adaptation import Adaptation
from worldmodel.policies.episodes import UNSEEN, Case, Robots, Row, Settings, evaluate, open_for
from worldmodel.policies.policy import Policy
from worldmodel.policies.recovery import adapt, recovery
from worldmodel.policies.shifts import OFFSETS
from worldmodel.policies.success import wilson
from worldmodel.policies.trials import before, record_trials, shifted_cases
from worldmodel.progress import progress_bar

BLOCK = 25  # trials between two savings


def trials(
    checkpoint: Path,
    task: str,
    out: Path,
    kinds: tuple[str, ...] = OFFSETS,
    least: float = 0.0,
    most: float = 0.06,
    episodes: int = 200,
    horizon: int = 200,
    parallel: int = 1,
    episode_seed: int = 100_000,
    seed: int = 0,
    threads: int = 1,
) -> int:
    """Record trials of a policy on shifted robots, for a context encoder to learn from.

    Example: worldmodel trials runs/policies/reach --task reach --out runs/trials/reach

    Every episode has a random shift of its own: the --kinds in turn, of a length in [--least, --most] metres. The
    policy is told nothing of it. They are stored in blocks; what was broken off goes on with the same command, and more
    --episodes add to those that are there.
    """
    check_range(1, episodes=episodes)
    check_seeds(seed=seed, episode_seed=episode_seed)
    prepare("cpu", threads)
    policy = Policy.find(checkpoint)
    todo = shifted_cases(task, kinds, least, most, episodes, episode_seed)
    settings = Settings(horizon=horizon, parallel=parallel, seed=seed)
    kept = before(out, policy, todo, settings)
    done = 0 if kept is None else len(kept.known)
    with (
        closing(Robots(policy.interface, open_for)) as robots,
        progress_bar("trials", episodes, done=done, unit="episodes") as advance,
    ):
        for first in range(done, episodes, BLOCK):
            made = record_trials(
                policy, todo[first : first + BLOCK], settings, robots, lambda _: advance(1), start=first
            )
            kept = made if kept is None else kept.joined(made)
            kept.save(out)
    assert kept is not None
    print(f"{out}: {episodes} trials of {task}, {sum(known.success for known in kept.known)} of them succeeded")
    return 0


def recovery_command(
    checkpoint: Path,
    encoder: Path,
    task: str,
    without: Path | None = None,
    kind: Literal["actuation-bias", "encoder-offset"] = "actuation-bias",
    least: float = 0.04,
    most: float = 0.06,
    shifts: int = 20,
    episodes: int = 10,
    trials: int = 6,
    way: Literal["sum", "mean"] = "sum",
    horizon: int = 200,
    out: Path | None = None,
    json: Path | None = None,
    parallel: int = 1,
    together: bool = False,
    episode_seed: int = UNSEEN,
    seed: int = 0,
    threads: int = 1,
) -> int:
    """How far a context encoder brings a policy back on shifted robots, trial by trial.

    Example: worldmodel evaluate recovery runs/policies/push --encoder runs/adaptation/push --task push --way mean

    --shifts random offsets of a length in [--least, --most] metres, --episodes episodes each, paired in all arms: the
    robot as built, the shifted robot without context, and after 1 to --trials trials. Shifts and seeds must be other
    ones than the encoder was trained on. --way: how the tokens of trials are put together. --without: another policy,
    which runs as it is, on the robot as built and on the shifted ones: one that was trained on shifted data
    (`data.offset`) shows what there is to gain without any context.
    """
    command = as_typed(recovery_command, locals()).replace("recovery_command", "recovery")
    check_range(1, shifts=shifts, episodes=episodes)
    check_range(1, 1000, trials=trials)
    check_seeds(seed=seed, episode_seed=episode_seed)
    check_outputs(out, file=json)
    prepare("cpu", threads)
    policy = Policy.find(checkpoint)
    adaptation = Adaptation.find(encoder, policy)
    other = None if without is None else Policy.find(without)
    if other is not None and (wrong := policy.interface.differences(other.interface)):
        raise UserError(f"{without}: not a policy of the same robot: {'; '.join(wrong)}")
    offsets = [case.shift for case in shifted_cases(task, (kind,), least, most, shifts, episode_seed)]
    first = shifted_cases(task, (kind,), least, most, shifts * episodes, episode_seed)
    todo = [replace(case, shift=offsets[n % shifts]) for n, case in enumerate(first)]
    settings = Settings(horizon=horizon, parallel=parallel, together=together, seed=seed)
    with (
        closing(Robots(policy.interface, open_for)) as robots,
        progress_bar("recovery", (2 + trials + 2 * (other is not None)) * len(todo), unit="episodes") as advance,
    ):
        plain = [replace(case, shift="nominal") for case in todo]

        def run(which: Policy, cases: Sequence[Case]) -> Sequence[Row]:
            return evaluate(which, cases, settings, robots, told=lambda _: advance(1)).rows

        nominal = run(policy, plain)
        others = None if other is None else (run(other, plain), run(other, todo))
        adapted = adapt(policy, adaptation, todo, settings, robots, trials, way, told=lambda _: advance(1))
    report = report_of(nominal, adapted, others)
    print(
        "\n".join("  ".join(cell.rjust(16) for cell in row) for row in (report.tables[0].head, *report.tables[0].rows))
    )
    return finish(replace(report, command=command, seeds=(seed, episode_seed)), "recovery", out, json)


def report_of(
    nominal: Sequence[Row],
    adapted: Sequence[Sequence[Row]],
    others: tuple[Sequence[Row], Sequence[Row]] | None = None,
) -> Report:
    """The report of a policy on the robot as built, and of its trials on shifted ones, the first without context.

    others: of another policy, on the robot as built and on the shifted ones.
    """
    metrics = {"success_rate__nominal": _rate(nominal), "success_rate__shifted": _rate(adapted[0])}
    for number, rows in enumerate(adapted[1:], start=1):
        metrics[f"success_rate__after_{number}"] = _rate(rows)
        if metrics["success_rate__nominal"].value > metrics["success_rate__shifted"].value:
            metrics[f"recovery_rho__after_{number}"] = recovery(nominal, adapted[0], rows)
    last = f"recovery_rho__after_{len(adapted) - 1}"
    if last in metrics:
        metrics["recovery_rho"] = metrics[last]
    if others is not None:
        metrics["success_rate__other_nominal"], metrics["success_rate__other_shifted"] = map(_rate, others)
        if last in metrics:
            metrics["recovery_rho__other"] = recovery(nominal, adapted[0], others[1])
    arms = [("robot as built", nominal), ("shifted", adapted[0])]
    arms += [(f"after {number}", rows) for number, rows in enumerate(adapted[1:], start=1)]
    if others is not None:
        arms += [("other, as built", others[0]), ("other, shifted", others[1])]
    lines = tuple((name, f"{sum(row.success for row in rows)}", f"{len(rows)}") for name, rows in arms)
    return Report(
        command="",
        seeds=(),
        metrics=metrics,
        headline=tuple(metrics),
        tables=(Table("Success over trials", ("arm", "successes", "episodes"), lines),),
        notes=("Intervals of success are Wilson's; that of rho is a bootstrap over shifts, paired in all arms.",),
        curves={"rows": {name: [row.to_json() for row in rows] for name, rows in arms}},
    )


def _rate(rows: Sequence[Row]) -> Metric:
    successes = sum(row.success for row in rows)
    return Metric(successes / len(rows), "", len(rows), wilson(successes, len(rows)))
