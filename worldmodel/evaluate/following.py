"""Do generated frames show what the actions asked for? Scores of the inverse-dynamics probe on several arms.

An arm is a set of videos: real ones, the tokenizer's reconstructions of them, generated ones. All arms of a comparison
are judged against the same recorded actions (and, if there is a pose, the same recorded motion of the body).
Letters: B clips, T frames, n windows of a clip, D targets, S state dimensions.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from worldmodel.actions import ActionSpec
from worldmodel.errors import UserError
from worldmodel.evaluate.motion import MOTIONS, body_motion, flow_fields, has_pose
from worldmodel.evaluate.probe import WINDOW, Probe, centres, fit
from worldmodel.evaluate.recordings import Excerpts, Pixels, Recordings, excerpts
from worldmodel.evaluate.report import Metric
from worldmodel.evaluate.statistics import bootstrap, r2, sign_agreement
from worldmodel.models.world import WorldModel
from worldmodel.pixels import to_float, to_uint8
from worldmodel.progress import progress_bar

VALID = 0.6  # a target counts only if the probe reaches this on real held-out clips
CLEAR = 0.3  # an action is clear from this share of its largest value on
LENGTH, EPOCHS = 24, 12  # frames of a training clip of the probe; passes over all of them, unless told otherwise
EPISODES = 40  # training clips come from at most so many
REBUILT = 1 / 3  # share of the training clips that the tokenizer has encoded and decoded

Floats = NDArray[np.floating]


@torch.no_grad()
def reconstruct(world: WorldModel, pixels: Pixels, progress: Callable[[int], None] = lambda n: None) -> Pixels:
    """Videos [B, T, H, W, 3] through the tokenizer and back, T rounded down to what it can take."""
    temporal = world.tokenizer.temporal
    length = 1 + (pixels.shape[1] - 1) // temporal * temporal
    rows = []
    for row in pixels[:, :length]:
        latents = world.tokenizer.encode(to_float(row[None]).to(world.device))
        rows.append(to_uint8(world.tokenizer.decode(latents)))
        progress(length)
    return np.concatenate(rows)


@dataclass(frozen=True, slots=True)
class Targets:
    """What a probe is asked for from each frame to the next: all actions, then some of MOTIONS."""

    actions: tuple[str, ...]
    motions: tuple[str, ...]
    state_names: tuple[str, ...]

    @property
    def names(self) -> tuple[str, ...]:
        return (*self.actions, *self.motions)

    @classmethod
    def of(cls, recordings: Recordings, pieces: Excerpts) -> "Targets":
        """All actions; the motions of the body if there is a pose, without those that hardly occur in the excerpts.

        UserError if an action dimension never changes: a probe has nothing to learn there.
        """
        for name, values in zip(recordings.action_names, np.moveaxis(pieces.actions, -1, 0), strict=True):
            if np.ptp(values) == 0:
                raise UserError(f"action '{name}' is constant at {values.flat[0]:g} in the excerpts for the probe")
        if pieces.state is None or not has_pose(recordings.state_names):
            return cls(tuple(recordings.action_names), (), tuple(recordings.state_names))
        spread = body_motion(pieces.state, recordings.state_names).std((0, 1))
        moves = spread > np.array([0.02 * max(spread[:2].max(), 1e-9)] * 2 + [1e-6])
        kept = tuple(name for name, moving in zip(MOTIONS, moves, strict=True) if moving)
        return cls(tuple(recordings.action_names), kept, tuple(recordings.state_names))

    def values(self, actions: Floats, state: Floats | None) -> Floats:
        """Of actions [B, T, dim] and states [B, T, S]: [B, T - 1, D]."""
        steps = actions[:, :-1]
        if not self.motions:
            return steps
        if state is None:
            raise UserError("the held-out recordings have no pose, those for training the probe have one")
        columns = [MOTIONS.index(name) for name in self.motions]
        return np.concatenate((steps, body_motion(state, self.state_names)[..., columns]), -1)


def train_probe(
    world: WorldModel, recordings: Recordings, clips: int, epochs: int, seed: int, quiet: bool = False
) -> tuple[Probe, Targets]:
    """A probe of all action dimensions (and of the body's motion) from `clips` real clips of LENGTH frames.

    A third of the clips are the tokenizer's reconstructions, so that the decoder's blur alone does not fail it.
    """
    total = clips * (LENGTH + epochs * (LENGTH - WINDOW))
    with progress_bar("probe", total, unit="windows", shown=not quiet) as progress:
        return _train_probe(world, recordings, clips, epochs, seed, progress)


def _train_probe(
    world: WorldModel, recordings: Recordings, clips: int, epochs: int, seed: int, progress: Callable[[int], None]
) -> tuple[Probe, Targets]:
    pieces = excerpts(recordings, LENGTH, clips, seed, EPISODES)
    targets = Targets.of(recordings, pieces)
    rebuilt = np.random.default_rng(seed).permutation(clips)[: max(1, round(clips * REBUILT))]
    made = reconstruct(world, pieces.pixels[rebuilt])
    pixels = pieces.pixels.copy()
    pixels[rebuilt, : made.shape[1]] = made
    rows = []
    for row in pixels:
        rows.append(flow_fields(row[None]))
        progress(len(row))
    values = targets.values(pieces.actions, pieces.state)
    return fit(np.concatenate(rows), values, targets.names, epochs, seed, progress), targets


@dataclass(frozen=True, slots=True)
class Judged:
    """True and predicted values [B, n, D] of the probe's targets on one arm."""

    names: tuple[str, ...]
    true: NDArray[np.float64]
    predicted: NDArray[np.float64]

    def scores(self, clips: NDArray[np.int64] | None = None) -> NDArray[np.float64]:
        """R2 of every target [D] over the windows of the given clips (default: of all)."""
        rows = np.arange(len(self.true)) if clips is None else clips
        true, predicted = (v[rows].reshape(-1, v.shape[-1]) for v in (self.true, self.predicted))
        return np.array([r2(t, p) for t, p in zip(true.T, predicted.T, strict=True)])


def judge(probe: Probe, pixels: Pixels, targets: Floats) -> Judged:
    """The probe on videos [B, T, H, W, 3] whose steps have targets [B, T - 1, D]."""
    return Judged(probe.names, centres(targets).astype(np.float64), probe.predict(flow_fields(pixels)))


def score_metric(judged: Judged, chosen: NDArray[np.int64], seed: int) -> Metric:
    """Mean R2 over the chosen targets, with a bootstrap interval over clips."""
    count = len(judged.true)
    interval = bootstrap(lambda clips: float(judged.scores(clips)[chosen].mean()), count, seed, 300)
    return Metric(float(judged.scores()[chosen].mean()), "R2", count, interval)


def sign_metrics(arms: dict[str, Judged], spec: ActionSpec, valid: NDArray[np.bool_]) -> dict[str, Metric]:
    """sign_ARM__NAME: how often the sign of a clear action is read correctly, for valid actions that go both ways.

    An action is clear from CLEAR times the larger of its normalisation's bounds on. valid: [D], of all targets.
    """
    metrics = {}
    for column, (name, low, high) in enumerate(zip(spec.names, spec.low, spec.high, strict=True)):
        clear = CLEAR * max(abs(low), abs(high))
        if not valid[column] or low > -clear or high < clear:
            continue
        for arm, judged in arms.items():
            share, count = sign_agreement(judged.true[..., column], judged.predicted[..., column], clear)
            if count:
                metrics[f"sign_{arm}__{name}"] = Metric(share, "share", count)
    return metrics
