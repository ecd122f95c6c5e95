"""`evaluate policy`: success of a policy on simulated robots, with intervals, or against another policy on the same
cases."""

import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from worldmodel.calibration import calibrate
from worldmodel.datasets.evaluate import as_typed, finish, prepare
from worldmodel.datasets.interrupt import Stopped
from worldmodel.errors import UserError
from worldmodel.evaluate.report import Film, Metric, Report, Table
from worldmodel.evaluate.statistics import mean_interval
from worldmodel.folders import check_outputs
from worldmodel.options import check_range, check_seeds
from worldmodel.pixels import check_video, enlarge, write_video
from worldmodel.policies.episodes import UNSEEN, Case, Evaluated, Robots, Row, Settings, cases, evaluate, open_for
from worldmodel.policies.observation import Interface
from worldmodel.policies.planning import Chunking
from worldmodel.policies.policy import AnyPolicy, find_policy
from worldmodel.policies.robot import HandRobot
from worldmodel.policies.rollouts import evaluate_and_save
from worldmodel.policies.success import Paired, decided, holm, wilson
from worldmodel.progress import progress_bar

BLOCK = 10  # cases between two looks at the evidence
WALL = 16  # films on the video wall
EDGE = 2  # pixels of their frames
GREEN, RED, GREY = (40, 160, 70), (200, 50, 50), (120, 120, 120)


def policy(
    checkpoint: Path,
    tasks: tuple[str, ...],
    against: Path | None = None,
    shifts: tuple[str, ...] = ("nominal",),
    episodes: int = 50,
    horizon: int = 200,
    out: Path | None = None,
    json: Path | None = None,
    video: Path | None = None,
    save: Path | None = None,
    parallel: int = 1,
    together: bool = False,
    delay: int = 0,
    chunking: Chunking = "naive",
    alpha: float = 0.05,
    stop_early: bool = False,
    seed: int = 0,
    episode_seed: int = UNSEEN,
    device: str = "cpu",
    threads: int = 1,
) -> int:
    """Success of a policy on simulated robots; with --against, compared with another one on the same episodes.

    Example: worldmodel evaluate policy runs/policies/reach --tasks reach --episodes 50 --video wall.mp4

    CHECKPOINT and --against are folders of policies, ours or lerobot's (pretrained_model, or the run that it is
    in). Every task and shift is run with --episodes seeds from --episode-seed on (1,000,000: no recording begins
    there), for at most --horizon control steps each; the rows are the same for any number of --parallel robots
    (--together infers them in one batch, which is faster and the same to rounding only). --shifts: such as nominal,
    actuation-bias:0.04,0,0, encoder-offset:0,0.03,0, gain:1.2, camera-pose:0.05,0,0 or latency:3. --delay: control
    steps that making a chunk takes; --chunking says how chunks then join. --stop-early ends a comparison as soon as
    its evidence is enough at level --alpha, however often it looks. --video writes a wall of the first episodes.
    --save stores all episodes as a LeRobotDataset v3, with reward, success, shift and the policy's fingerprint in
    every row; if it is broken off, the same command goes on with the episodes that are missing.
    """
    command = as_typed(policy, locals())
    check_range(1, episodes=episodes)
    check_seeds(seed=seed, episode_seed=episode_seed)
    if not 0 < alpha < 1:
        raise UserError(f"--alpha must be in (0, 1), not {alpha}")
    if video is not None:
        check_video(video)
    if save is not None and against is not None:
        raise UserError("--save stores the episodes of one policy: evaluate each without --against to save both")
    check_outputs(out, file=json)
    prepare(device, threads)
    settings = Settings(
        horizon=horizon, parallel=parallel, together=together, delay=delay, chunking=chunking, seed=seed
    )
    todo = cases(tasks, shifts, episodes, episode_seed)
    first = find_policy(checkpoint, device)
    settings.check(first)
    if against is None:
        if stop_early:
            raise UserError("--stop-early ends a comparison: it needs --against")
        try:
            found = _evaluated(first, todo, settings, save, str(checkpoint))
        except Stopped as stop:
            print("; ".join((f"stopped by {stop}", *getattr(stop, "__notes__", ()))), file=sys.stderr)
            return 130
        report = report_of(found)
    else:
        second = find_policy(against, device)
        settings.check(second)
        names = (str(checkpoint), str(against))
        with progress_bar(" against ".join(names), 2 * len(todo), unit="episodes") as advance:
            found, other = compare(first, second, todo, settings, alpha if stop_early else None, told=advance)
        report = comparison_of(found, other, names, alpha, stop_early)
    if video is not None:
        write_video(video, wall(found), 10)
    print("\n\n".join(_as_text(table) for table in report.tables) + "\n")
    return finish(replace(report, command=command, seeds=(seed, episode_seed), device=device), "policy", out, json)


def _evaluated(policy: AnyPolicy, todo: Sequence[Case], settings: Settings, save: Path | None, name: str) -> Evaluated:
    with closing(Robots(policy.interface, open_for)) as robots:
        if save is not None:
            return evaluate_and_save(policy, todo, settings, robots, save, WALL)
        with progress_bar(name, len(todo), unit="episodes") as advance:
            return evaluate(policy, todo, settings, robots, WALL, told=lambda _: advance(1))


def compare(
    first: AnyPolicy,
    second: AnyPolicy,
    todo: Sequence[Case],
    settings: Settings,
    alpha: float | None,
    told: Callable[[int], None] = lambda rows: None,
    opens: Callable[[str, Interface], HandRobot] = open_for,
) -> tuple[Evaluated, Evaluated]:
    """Both policies on the same cases, a block of them at a time; with an alpha, until the evidence reaches it.

    Blocks have BLOCK cases whatever runs in parallel, so that this decides nothing. told: after each row.
    """
    done = [Evaluated((), (), 0.0), Evaluated((), (), 0.0)]
    with ExitStack() as opened:
        robots = [opened.enter_context(closing(Robots(one.interface, opens))) for one in (first, second)]
        for start in range(0, len(todo), BLOCK):
            part = todo[start : start + BLOCK]
            for side, one in enumerate((first, second)):
                filmed = max(0, WALL - start)
                made = evaluate(one, part, settings, robots[side], filmed, start, told=lambda _: told(1))
                old = done[side]
                done[side] = Evaluated(old.rows + made.rows, old.films + made.films, old.seconds + made.seconds)
            successes = [[row.success for row in each.rows] for each in done]
            if alpha is not None and decided(successes[0], successes[1], alpha) is not None:
                break
    return done[0], done[1]


def report_of(found: Evaluated) -> Report:
    """The report of one policy: rates and scores, of all episodes and of each task and shift."""
    rows = found.rows
    metrics = {"success_rate": _rate(rows), "score": _score(rows)}
    parts = _parts(rows)
    if len(parts) > 1:
        metrics |= {f"success_rate__{task}__{shift}": _rate(own) for (task, shift), own in parts.items()}
    if (jerk := [row.border_jerk for row in rows if row.border_jerk is not None]) != []:
        metrics["border_jerk"] = Metric(float(np.mean(jerk)), "m / step^3", len(jerk), mean_interval(np.array(jerk)))
    speed = calibrate()
    metrics |= {
        "episodes_per_minute": Metric(60 * len(rows) / found.seconds, "episodes/min"),
        "gflops": Metric(speed.gflops, "GFLOP/s"),
    }
    head = ("task", "shift", "successes", "episodes", "rate", "95 % interval", "score", "steps to success")
    table = Table("Success by task and shift", head, tuple(_line(*part) for part in parts.items()))
    return Report(
        command="",
        seeds=(),
        metrics=metrics,
        headline=tuple(name for name in metrics if name.startswith(("success", "score", "border"))),
        tables=(table,),
        films=(Film("The first episodes: green frames succeeded, red ones did not", wall(found), 10, scale=2),),
        notes=(
            "Intervals of success are Wilson's, of scores percentile bootstraps over episodes, at 95 %. An episode's "
            "score is its best reward, in [0, 1].",
        ),
        curves={"rows": [row.to_json() for row in rows]},
    )


def comparison_of(found: Evaluated, other: Evaluated, names: tuple[str, str], alpha: float, stopped: bool) -> Report:
    """The report of two policies on the same cases. stopped: whether the comparison could stop early."""
    report = report_of(found)
    pairs = {
        part: Paired.of([row.success for row in own], [row.success for row in _parts(other.rows)[part]])
        for part, own in _parts(found.rows).items()
    }
    adjusted = holm([pair.p_value for pair in pairs.values()])
    whole = Paired.of([row.success for row in found.rows], [row.success for row in other.rows])
    at = decided([row.success for row in found.rows], [row.success for row in other.rows], alpha)
    head = ("task", "shift", "both", "only first", "only second", "neither", "difference", "p", "p (Holm)")
    lines = tuple(
        (task, shift, *map(str, (pair.both, pair.only_first, pair.only_second, pair.neither)),
         f"{pair.difference:+.3f}", f"{pair.p_value:.3g}", f"{p:.3g}")
        for ((task, shift), pair), p in zip(pairs.items(), adjusted, strict=True)
    )  # fmt: skip
    better = next((name for name, sign in zip(names, (1, -1), strict=True) if sign * whole.difference > 0), "neither")
    metrics = {
        **report.metrics,
        "success_rate__against": _rate(other.rows),
        "difference": Metric(whole.difference, "", whole.pairs),
        "p_value": Metric(whole.p_value),
    }
    said = f"p = {whole.p_value:.3g} (exact McNemar, {whole.only_first} : {whole.only_second}), better: {better}"
    differ = at is not None or (not stopped and whole.p_value <= alpha)  # after an early stop, p says too much
    early = "never" if at is None else f"after {at} of {whole.pairs} episodes"
    return replace(
        report,
        metrics=metrics,
        headline=(*report.headline, "success_rate__against", "difference", "p_value"),
        tables=(*report.tables, Table(f"{names[0]} against {names[1]}, episode by episode", head, lines)),
        verdicts=(("the policies differ", True if differ else "not shown", said),),
        notes=(
            *report.notes,
            f"Evidence that may be looked at after every episode (an e-value; p is for a fixed number) reaches level "
            f"{alpha:g} {early}.",
        ),
        curves={**report.curves, "rows_against": [row.to_json() for row in other.rows]},
    )


def wall(found: Evaluated) -> NDArray[np.uint8]:
    """The films side by side, uint8 [T, H, W, 3], one frame per observation; each stands still at its end, framed by
    how it ended."""
    films = found.films
    across = int(np.ceil(np.sqrt(len(films))))
    longest = max(len(film) for _, film in films) + 8
    side = films[0][1][0].shape[0] + 2 * EDGE
    frames = np.full((longest, int(np.ceil(len(films) / across)) * side, across * side, 3), 255, np.uint8)
    for number, (row, film) in enumerate(films):
        top, left = number // across * side, number % across * side
        for t in range(longest):
            colour = GREY if t < len(film) else GREEN if row.success else RED
            tile = _framed(film[min(t, len(film) - 1)], colour)
            frames[t, top : top + side, left : left + side] = tile
    return np.asarray(enlarge(frames, 2), np.uint8)


def _as_text(table: Table) -> str:
    """For the terminal: columns as wide as they need, numbers to the right."""
    rows = (table.head, *table.rows)
    widths = [max(len(row[column]) for row in rows) for column in range(len(table.head))]
    lines = [
        "  ".join(
            cell.ljust(w) if at < 2 else cell.rjust(w) for at, (cell, w) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]
    return "\n".join((table.title, *lines))


def _framed(picture: NDArray[np.uint8], colour: tuple[int, int, int]) -> NDArray[np.uint8]:
    made = np.empty((picture.shape[0] + 2 * EDGE, picture.shape[1] + 2 * EDGE, 3), np.uint8)
    made[:] = colour
    made[EDGE:-EDGE, EDGE:-EDGE] = picture
    return made


def _parts(rows: Sequence[Row]) -> dict[tuple[str, str], list[Row]]:
    parts: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        parts.setdefault((row.task, row.shift), []).append(row)
    return parts


def _rate(rows: Sequence[Row]) -> Metric:
    successes = sum(row.success for row in rows)
    return Metric(successes / len(rows), "", len(rows), wilson(successes, len(rows)))


def _score(rows: Sequence[Row]) -> Metric:
    scores = np.array([row.score for row in rows])
    return Metric(float(scores.mean()), "", len(rows), mean_interval(scores))


def _line(part: tuple[str, str], rows: Sequence[Row]) -> tuple[str, ...]:
    rate, successes = _rate(rows), [row.steps for row in rows if row.success]
    low, high = rate.interval or (0.0, 1.0)
    return (
        *part,
        str(len(successes)),
        str(len(rows)),
        f"{rate.value:.3f}",
        f"[{low:.3f}, {high:.3f}]",
        f"{_score(rows).value:.3f}",
        f"{np.mean(successes):.0f}" if successes else "-",
    )
