"""How far a policy recovers on shifted robots over trials, and what that is worth.

After every failed trial the context encoder makes one token of it; the tokens of all failed trials so far, summed or
averaged, correct the policy in the next one (Self-Adaptive VLA, 2609.30092). Recovery is the share of the lost success
that comes back: rho = (s - s_shifted) / (s_nominal - s_shifted).
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np
from torch import Tensor

from worldmodel.evaluate.report import Metric
from worldmodel.evaluate.statistics import bootstrap
from worldmodel.policies.adaptation import Adaptation
from worldmodel.policies.context_encoder import ensemble
from worldmodel.policies.episodes import SEEDS, Case, Robots, Row, Settings, run_cases
from worldmodel.policies.policy import Policy

APART = 1_000_003  # between the seeds of a case's trials: places of objects are new in each


def adapt(
    policy: Policy,
    adaptation: Adaptation,
    todo: Sequence[Case],
    settings: Settings,
    robots: Robots,
    trials: int,
    way: Literal["sum", "mean"] = "sum",
    told: Callable[[int], None] = lambda rows: None,
) -> tuple[tuple[Row, ...], ...]:
    """Rows of all cases in their first trial, without any context, and in `trials` more, each with what the failed ones
    before have shown. The robot of a case keeps its shift; objects lie elsewhere in every trial.

    told: after each row, how many are done.
    """
    tokens: list[list[Tensor]] = [[] for _ in todo]
    made: list[tuple[Row, ...]] = []
    for number in range(trials + 1):
        now = [replace(case, seed=(case.seed + number * APART) % SEEDS) for case in todo]
        known = [adaptation.context(ensemble(own, way)) if own else None for own in tokens]
        rows: list[Row] = []
        for own, (row, trial) in zip(
            tokens, run_cases(policy, now, settings, robots, number * len(todo), known), strict=True
        ):
            rows.append(row)
            if not row.success:
                own.append(adaptation.token(policy, trial))
            told(number * len(todo) + len(rows))
        made.append(tuple(rows))
    return tuple(made)


def recovery(nominal: Sequence[Row], shifted: Sequence[Row], adapted: Sequence[Row], seed: int = 0) -> Metric:
    """rho with a 95 % interval of a bootstrap over shifts, drawn with all their cases and together in all three.

    Episodes of one shift are not independent: most often all of them fail or none. Only where there is one shift are
    they what is drawn. n: of the cases. ValueError where the shifts have cost nothing: then nothing is to recover.
    """
    shifts = np.unique([row.shift for row in shifted], return_inverse=True)[1]
    units = [np.flatnonzero(shifts == shift) for shift in range(shifts.max() + 1)]
    units = units if len(units) > 1 else [np.array([case]) for case in range(len(shifted))]
    outcome = np.array([[row.success for row in rows] for rows in (nominal, shifted, adapted)], np.float64)

    def rho(drawn: np.ndarray) -> float:
        rows = np.concatenate([units[unit] for unit in drawn])
        fine, broken, better = outcome[:, rows].mean(1)
        return float((better - broken) / (fine - broken)) if fine > broken else float("nan")

    whole = rho(np.arange(len(units)))
    if not np.isfinite(whole):
        raise ValueError("the shifts cost no success: there is nothing to recover")
    return Metric(whole, "", outcome.shape[1], bootstrap(rho, len(units), seed))
