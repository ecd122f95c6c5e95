"""`evaluate actions`: does the generated world do what its actions say?"""

import numpy as np
import torch
from numpy.typing import NDArray

from worldmodel.actions import ActionSpec
from worldmodel.errors import UserError
from worldmodel.evaluate.actions_page import Sizes, figures, films, notes
from worldmodel.evaluate.continuation import beginning, context_frames, continuations, following, whole_chunks
from worldmodel.evaluate.counterfactual import ARMS, counterfactuals, gap_metrics
from worldmodel.evaluate.following import (
    EPOCHS,
    VALID,
    Floats,
    Judged,
    judge,
    reconstruct,
    score_metric,
    sign_metrics,
    train_probe,
)
from worldmodel.evaluate.probe import WINDOW
from worldmodel.evaluate.recordings import Recordings, check_fit, excerpts
from worldmodel.evaluate.report import Metric, Outcome, Report
from worldmodel.models.world import WorldModel
from worldmodel.progress import progress_bar


def evaluate_actions(
    world: WorldModel,
    train: Recordings,
    held_out: Recordings,
    *,
    clips: int = 64,
    frames: int = 16,
    gap_clips: int = 16,
    context: int = 4,
    train_clips: int = 800,
    epochs: int = EPOCHS,
    seeds: tuple[int, int] = (0, 1),
    name: str = "CHECKPOINT",
    quiet: bool = False,
) -> Report:
    """Train an inverse-dynamics probe on real clips and score it on generated ones; measure counterfactual gaps.

    The probe learns on `train_clips` clips of `train`. It is scored on `clips` beginnings from `held_out`, continued
    by the model for `frames` pixel frames under the recorded actions, and on the recorded frames themselves. A target
    counts only if it reaches R2 >= 0.6 on the recorded ones. Of `gap_clips` beginnings there are further continuations
    under shuffled, reversed and null actions and with the second seed. context: chunks of real frames before them.

    Example: write(evaluate_actions(world, train, held_out), json=Path("actions.json"))
    """
    for recordings in (train, held_out):
        check_fit(world, recordings)
    if world.actions is None:
        raise UserError("this model has no actions to follow")
    if min(clips, context, train_clips, epochs) < 1 or gap_clips < 2 or frames < WINDOW:
        raise UserError(
            f"actions: counts must be at least 1, gap_clips 2 and frames {WINDOW}; got clips {clips}, frames {frames}, "
            f"gap_clips {gap_clips}, context {context}, train_clips {train_clips}, epochs {epochs}"
        )
    probe, targets = train_probe(world, train, train_clips, epochs, seeds[0], quiet)

    begin, chunks = context_frames(world, context), whole_chunks(world, frames)
    per_clip = chunks * world.pixel_frames
    pieces = excerpts(held_out, begin + per_clip, clips, seeds[0])
    start, control = beginning(world, pieces, context), following(world, pieces, context, pieces.actions)
    few = torch.arange(min(gap_clips, clips), device=world.device)
    with progress_bar("continuations", per_clip * (clips + len(few) * (1 + len(ARMS))), shown=not quiet) as progress:
        made = continuations(world, start, control, seeds[0], progress=progress)[:, :frames]
        other = counterfactuals(world, start.select(few), control.select(few), made[: len(few)], seeds, progress)

    seen = slice(begin - 1, begin + frames)  # the last frame of the context and everything after it
    true = targets.values(pieces.actions[:, seen], None if pieces.state is None else pieces.state[:, seen])
    rebuilt = reconstruct(world, pieces.pixels)[:, seen]
    last = rebuilt[:, :1]
    arms = {
        "real": judge(probe, pieces.pixels[:, seen], true),
        "reconstructed": judge(probe, rebuilt, true),
        "generated": judge(probe, np.concatenate((last, made), 1), true),
    }
    scores = arms["real"].scores()
    for target, score in zip(targets.names, scores, strict=True):
        if not np.isfinite(score):
            raise UserError(f"'{target}' is constant in the {clips} held-out clips; use more of them")
    valid = scores >= VALID
    metrics = _score_metrics(arms, world.actions.dim, valid, seeds[0]) | gap_metrics(other, seeds[0])
    opposite = judge(
        probe, np.concatenate((last[: len(few)], other.arms["reversed"]), 1), _mirrored(true[: len(few)], world.actions)
    )
    signs = sign_metrics(arms | {"reversed": opposite}, world.actions, valid)
    return Report(
        command=f"worldmodel evaluate actions {name}",
        seeds=seeds,
        device=str(world.device),
        metrics=metrics | signs,
        headline=(
            "probe_real", "probe_generated", "probe_ratio", "pose_real", "pose_generated", "pose_ratio",
            "gap_shuffled", "gap_reversed", "gap_null",
        ),
        verdicts=_verdicts(targets.names, scores, world.actions.dim, metrics | signs),
        notes=notes(targets, scores, Sizes(train_clips, clips, len(few), frames, context)),
        figures=figures(arms, other, valid),
        films=films(pieces.pixels[:, begin : begin + frames], other, world.fps),
    )  # fmt: skip


def _mirrored(true: Floats, spec: ActionSpec) -> Floats:
    """Targets [B, T - 1, D] with their actions as `reversed` asks for them, in environment units."""
    opposite = np.asarray(spec.low) + np.asarray(spec.high) - true[..., : spec.dim]
    return np.concatenate((opposite, true[..., spec.dim :]), -1)


def _score_metrics(arms: dict[str, Judged], dim: int, valid: np.ndarray, seed: int) -> dict[str, Metric]:
    """probe_ARM and pose_ARM: means over valid targets (over all, if none is); then every target by itself."""
    metrics: dict[str, Metric] = {}
    count = len(valid)
    groups = {"probe": np.arange(dim)} | ({"pose": np.arange(dim, count)} if count > dim else {})
    for group, members in groups.items():
        chosen = members[valid[members]] if valid[members].any() else members
        for arm, judged in arms.items():
            metrics[f"{group}_{arm}"] = score_metric(judged, chosen, seed)
        ratio = metrics[f"{group}_generated"].value / max(metrics[f"{group}_real"].value, 1e-6)
        metrics[f"{group}_ratio"] = Metric(ratio, "x real", len(arms["real"].true))
    metrics["probe_valid_dimensions"] = Metric(int(valid[:dim].sum()), f"of {dim}")
    for group, members in groups.items():
        for column in members:
            for arm, judged in arms.items():
                metrics[f"{group}_{arm}__{judged.names[column]}"] = score_metric(judged, np.array([column]), seed)
    return metrics


def _verdicts(
    names: tuple[str, ...], scores: NDArray[np.float64], dim: int, metrics: dict[str, Metric]
) -> tuple[tuple[str, Outcome, str], ...]:
    """What a model that follows its actions must show."""
    listed = ", ".join(f"{name} {score:.2f}" for name, score in zip(names[:dim], scores[:dim], strict=True))
    asked = f"the probe is valid: R2 of at least {VALID} on real clips for some action"
    verdicts: list[tuple[str, Outcome, str]] = [(asked, bool((scores[:dim] >= VALID).any()), listed)]
    for group in ("probe", "pose"):
        if f"{group}_ratio" in metrics:
            ratio = metrics[f"{group}_ratio"].value
            real, made = metrics[f"{group}_real"].value, metrics[f"{group}_generated"].value
            numbers = f"{ratio:.0%} ({made:.2f} of {real:.2f})"
            verdicts.append((f"{group} score on generated clips at least 80 % of real", ratio >= 0.8, numbers))
    verdicts += [
        (f"sign of a clear {metric.removeprefix('sign_generated__')} right in at least 90 %", found.value >= 0.9,
         f"{found.value:.1%} of {found.n}")
        for metric, found in metrics.items() if metric.startswith("sign_generated__")
    ]  # fmt: skip
    gaps = [metrics[f"gap_{arm}"] for arm in ARMS]
    apart = all(gap.interval is not None and gap.interval[0] > 1 for gap in gaps)
    listed = ", ".join(f"{arm} {gap.value:.2f}" for arm, gap in zip(ARMS, gaps, strict=True))
    return (*verdicts, ("other actions change more than another seed", apart, listed))
