"""What the report of `evaluate actions` shows."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from worldmodel.evaluate import plots
from worldmodel.evaluate.counterfactual import Counterfactuals
from worldmodel.evaluate.drift_page import beside
from worldmodel.evaluate.following import CLEAR, VALID, Judged, Targets
from worldmodel.evaluate.recordings import Pixels
from worldmodel.evaluate.report import Figure, Film
from worldmodel.evaluate.statistics import mean_interval

POINTS = 500  # at most so many in a cloud


@dataclass(frozen=True, slots=True)
class Sizes:
    """Clips for training the probe, clips scored, clips of the counterfactuals, their frames, chunks of context."""

    train_clips: int
    clips: int
    gap_clips: int
    frames: int
    context: int


def figures(arms: dict[str, Judged], other: Counterfactuals, valid: NDArray[np.bool_]) -> tuple[Figure, ...]:
    """Scores per target and arm, gaps over time, predicted against true for every valid target."""
    names = arms["real"].names
    scores = {arm: np.clip(judged.scores(), -0.2, 1) for arm, judged in arms.items()}
    label = [f"{name}{'' if good else ' (not valid)'}" for name, good in zip(names, valid, strict=True)]
    found = [
        Figure(
            "What the probe reads",
            plots.bars([text.replace(" ", "\n").replace("_", "\n", 1) for text in label], scores, "R2", VALID),
            f"Actions, then motion of the body; valid from {VALID} on real clips (dashed). Below -0.2 is cut off.",
        ),
        Figure(
            "Counterfactuals: difference to the continuation under recorded actions",
            plots.curves([_line(name, values, i) for i, (name, values) in enumerate(other.differences().items())],
                         "frame", "mean difference, levels of 255", zero=True),
            "Same beginning. 'seed': recorded actions, another seed; the others: same seed, other actions.",
        ),
    ]  # fmt: skip
    clouds = (("real", plots.REAL), ("generated", plots.MODEL))
    for column in np.flatnonzero(valid):
        panels = [(arm, *_thinned(arms[arm], int(column)), colour) for arm, colour in clouds]
        found.append(Figure(f"{names[column]}: true and read", plots.scatter(panels, "true", "read from pixels")))
    return tuple(found)


def _line(name: str, values: NDArray[np.float64], number: int) -> plots.Curve:
    low, high = np.array([mean_interval(column, resamples=500) for column in values.T]).T
    colour = plots.COLOURS[-1] if name == "seed" else plots.COLOURS[number]
    return plots.Curve(name, np.arange(1, values.shape[1] + 1), values.mean(0), low, high, colour, name == "seed")


def _thinned(judged: Judged, column: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    true, read = judged.true[..., column].ravel(), judged.predicted[..., column].ravel()
    step = -(-len(true) // POINTS)
    return true[::step], read[::step]


def films(real: Pixels, other: Counterfactuals, fps: float, count: int = 4) -> tuple[Film, ...]:
    """Real | recorded actions | reversed | null, for some of the clips, at half speed."""
    found = []
    for row in range(min(count, len(other.recorded))):
        frames = real[row]
        for video in (other.recorded, other.arms["reversed"], other.arms["null"]):
            frames = beside(frames, video[row])
        title = f"Real | recorded actions | reversed | none, clip {row + 1}"
        found.append(Film(title, frames, fps / 2, max(1, round(480 / frames.shape[2]))))
    return tuple(found)


def notes(targets: Targets, scores: NDArray[np.float64], sizes: Sizes) -> tuple[str, ...]:
    """How it was measured, one paragraph each."""
    weak = [f"{n} ({s:.2f})" for n, s in zip(targets.names, scores, strict=True) if s < VALID]
    return (
        f"Probe: dense optical flow (DIS) of four steps between five neighbouring frames, averaged over a grid of 16 x "
        f"16, into a small convolutional network that reads what was done in the third step. Trained on "
        f"{sizes.train_clips} real clips, a third of them encoded and decoded by the model's tokenizer, so that blur "
        f"alone does not fail it. It sees pixels only.",
        f"Scores: R2 per dimension over {sizes.clips} held-out beginnings, {sizes.frames} frames each, on the recorded "
        f"frames, on their reconstructions and on what the model made of the same beginning under the same actions "
        f"({sizes.context} chunks of real context). probe_* is the mean over the action dimensions that reach {VALID} "
        f"on the recorded frames, pose_* the same for the body's motion (steps ahead and to the left, degrees turned) "
        f"as recorded. Which dimensions count is decided on real clips only. Intervals: bootstrap over clips.",
        ("Not counted, because it cannot be read from real clips well enough: " + ", ".join(weak) + ".")
        if weak
        else "Every dimension can be read from real clips well enough.",
        f"Signs: share of the steps with at least {CLEAR:.0%} of the action's range whose sign is read correctly; "
        f"'reversed' reads the continuation under opposite actions against those.",
        f"Gaps: mean absolute pixel difference between the continuations of {sizes.gap_clips} beginnings under other "
        f"and under recorded actions with the same seed, over the difference between two seeds (at least half a "
        f"level). shuffled: another clip's actions; reversed: every normalised action with the opposite sign; null: "
        f"the learned embedding for no action.",
    )
