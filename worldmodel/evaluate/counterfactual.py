"""Counterfactual gaps: how much a continuation changes with its actions, all else equal.

Each beginning is continued with the same seed under other actions, and with another seed under the same actions.
Gap = mean absolute pixel difference between other and recorded actions, over the difference between two seeds. A model
that ignores its actions has gap 0; above 1, actions matter more than chance.

- shuffled: the recorded actions of another clip
- reversed: opposite actions, each dimension mirrored within its normalised range (left for right, back for forward)
- null: no actions at all, the model's learned null embedding

Letters: B clips, T frames, K latent frames, A packed action size.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from worldmodel.chunk import ActionControl, Clip
from worldmodel.evaluate.continuation import continuations
from worldmodel.evaluate.recordings import Pixels
from worldmodel.evaluate.report import Metric
from worldmodel.evaluate.statistics import bootstrap
from worldmodel.models.world import WorldModel

ARMS = ("shuffled", "reversed", "null")
HALF_LEVEL = 0.5  # of 255: seeds that agree more closely than 8 bits show count as this far apart


def shuffled(control: ActionControl) -> ActionControl:
    """Every row gets the actions of the next row: another clip's, for two rows or more."""
    return control.select(torch.arange(control.batch, device=control.action.device).roll(-1))


def reversed_actions(control: ActionControl) -> ActionControl:
    """Opposite actions: normalised values change sign."""
    return replace(control, action=-control.action)


def altered(control: ActionControl, arm: str) -> ActionControl:
    """The control of one of ARMS."""
    match arm:
        case "shuffled":
            return shuffled(control)
        case "reversed":
            return reversed_actions(control)
        case "null":
            return control.drop(torch.ones_like(control.has_action[:, 0]))
        case _:
            raise ValueError(f"no counterfactual arm '{arm}'")


@dataclass(frozen=True, slots=True)
class Counterfactuals:
    """Videos [B, T, H, W, 3]: under recorded actions with the first and the second seed, and under each of ARMS."""

    recorded: Pixels
    other_seed: Pixels
    arms: dict[str, Pixels]

    def differences(self) -> dict[str, NDArray[np.float64]]:
        """Mean absolute difference to `recorded` [B, T] in levels of 255, of every arm and of `seed`."""
        others = self.arms | {"seed": self.other_seed}
        return {name: _difference(video, self.recorded) for name, video in others.items()}


def counterfactuals(
    world: WorldModel,
    context: Clip[ActionControl],
    control: ActionControl,
    recorded: Pixels,
    seeds: tuple[int, int],
    progress: Callable[[int], None] = lambda frames: None,
) -> Counterfactuals:
    """Continue the context under other actions. recorded: its continuation under `control` with the first seed."""
    other = continuations(world, context, control, seeds[1], progress=progress)
    arms = {a: continuations(world, context, altered(control, a), seeds[0], progress=progress) for a in ARMS}
    frames = recorded.shape[1]
    return Counterfactuals(recorded, other[:, :frames], {a: video[:, :frames] for a, video in arms.items()})


def gap_metrics(found: Counterfactuals, seed: int) -> dict[str, Metric]:
    """gap_shuffled, gap_reversed, gap_null, with bootstrap intervals over clips, and the difference of seeds."""
    clips = {name: values.mean(1) for name, values in found.differences().items()}
    count = len(found.recorded)

    def gap(arm: str, rows: NDArray[np.int64]) -> float:
        return float(clips[arm][rows].mean() / max(clips["seed"][rows].mean(), HALF_LEVEL))

    everyone = np.arange(count)
    metrics = {
        f"gap_{arm}": Metric(
            gap(arm, everyone), "x seeds", count, bootstrap(lambda rows, a=arm: gap(a, rows), count, seed)
        )
        for arm in ARMS
    }
    return metrics | {"seed_difference": Metric(float(clips["seed"].mean()), "levels of 255", count)}


def _difference(first: Pixels, second: Pixels) -> NDArray[np.float64]:
    return np.abs(first.astype(np.int16) - second).mean((2, 3, 4))
