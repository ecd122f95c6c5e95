"""Long rollouts under recorded actions: do they still look like the world after hundreds of frames?

Letters: B rollouts, T frames, D features.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from worldmodel.encoders.frames import Encoder, features_of
from worldmodel.errors import UserError
from worldmodel.evaluate.continuation import beginning, context_frames, continuations, following, whole_chunks
from worldmodel.evaluate.frechet import reference_of
from worldmodel.evaluate.recordings import Pixels, Recordings, Subset, cut, excerpts, onward_actions
from worldmodel.evaluate.report import Metric
from worldmodel.evaluate.statistics import bootstrap
from worldmodel.evaluate.temporal import border_jump, colour_shift, contrast_ratio, flicker_energy
from worldmodel.evaluate.windows import WindowDistance, real_floor, window_distance, window_features, window_starts
from worldmodel.models.world import WorldModel

DRAWS = 4  # real windows per rollout behind the floor


@dataclass(frozen=True, slots=True)
class Long:
    """B rollouts of T frames, and what they are compared with.

    made [B, T, H, W, 3]; truth: what was recorded from the same beginnings, shorter where episodes end; windows: real
    stretches [DRAWS, B, window, H, W, 3] from the same episodes; reference: frames [N, H, W, 3] of the other episodes.
    """

    made: Pixels
    truth: Pixels
    windows: Pixels
    reference: Pixels
    window: int


def two_sides(recordings: Recordings, needed: int, seed: int) -> tuple[Subset, Subset]:
    """Held-out episodes cut in two by chance: where rollouts start, and where reference frames come from.

    Starts need episodes of `needed` frames. UserError if there are fewer than two episodes.
    """
    lengths = np.asarray(recordings.lengths)
    order = np.random.default_rng(seed).permutation(len(lengths))
    order = order[np.argsort(lengths[order] < needed, kind="stable")]  # long ones first
    if len(order) < 2 or lengths[order[0]] < needed:
        raise UserError(
            f"drift needs two held-out episodes, one of them with {needed} frames; there are {len(order)}, the longest "
            f"has {int(lengths.max()) if len(lengths) else 0}"
        )
    half = min(len(order) // 2, int((lengths >= needed).sum()))
    starts, others = (tuple(int(e) for e in part) for part in (order[:half], order[half:]))
    return Subset(recordings, starts), Subset(recordings, others)


def roll_long(
    world: WorldModel,
    recordings: Recordings,
    count: int,
    context_chunks: int,
    frames: int,
    window: int,
    reference: int,
    seeds: tuple[int, ...],
    progress: Callable[[int], None] = lambda frames: None,
) -> Long:
    """`count` rollouts of `frames` frames; rollout b has seed number b modulo their number.

    Actions are the recorded ones; beyond the end of an episode, those of the next one.
    """
    begin, chunks = context_frames(world, context_chunks), whole_chunks(world, frames)
    starts, others = two_sides(recordings, begin + window, seeds[0])
    total = begin + chunks * world.pixel_frames
    shortest = min(starts.lengths)
    pieces = excerpts(starts, min(total, shortest), count, seeds[0])
    context = beginning(world, pieces, context_chunks)
    control = following(world, pieces, context_chunks, onward_actions(starts, pieces, total))
    made = np.empty((count, frames, *pieces.pixels.shape[2:]), np.uint8)
    for number, seed in enumerate(seeds):
        rows = torch.arange(number, count, len(seeds))
        if len(rows):
            places = rows.to(world.device)
            video = continuations(world, context.select(places), control.select(places), seed, progress=progress)
            made[rows.numpy()] = video[:, :frames]
    rng = np.random.default_rng(seeds[0])
    stretches = []
    for _ in range(DRAWS):
        places = [(int(e), int(rng.integers(0, starts.lengths[e] - window + 1))) for e in pieces.episode]
        stretches.append(cut(starts, places, window).pixels)
    return Long(made, pieces.pixels[:, begin:], np.stack(stretches), _spread_frames(others, reference), window)


def _spread_frames(recordings: Recordings, count: int) -> Pixels:
    """At most `count` frames, evenly spaced over all episodes."""
    lengths = np.asarray(recordings.lengths)
    ends = np.cumsum(lengths)
    found = []
    for place in np.unique(np.linspace(0, ends[-1] - 1, min(count, int(ends[-1]))).round().astype(int)):
        episode = int(np.searchsorted(ends, place, side="right"))
        start = int(place - (ends[episode] - lengths[episode]))
        found.append(recordings.read(episode, start, start + 1).pixels[0])
    return np.stack(found)


@dataclass(frozen=True, slots=True)
class Drift:
    """Distances of the windows of one encoder, first frame of each window beside its distance."""

    encoder: str
    starts: tuple[int, ...]
    distances: tuple[WindowDistance, ...]


def drift_of(
    encoder: Encoder, long: Long, windows: int, progress: Callable[[int], None] = lambda frames: None
) -> Drift:
    """Frechet distance of evenly spaced windows to the reference, minus the real-versus-real floor."""
    reference = reference_of(features_of(encoder, torch.from_numpy(long.reference).movedim(-1, 1)))
    progress(len(long.reference))
    real = torch.stack([window_features(encoder, draw, progress) for draw in long.windows])
    floor = real_floor(reference, real)
    starts = window_starts(long.made.shape[1], long.window, windows)
    found = []
    for start in starts:
        seen = window_features(encoder, long.made[:, start : start + long.window], progress)
        found.append(window_distance(reference, seen, floor))
    return Drift(encoder.name, starts, tuple(found))


def drift_metrics(drifts: tuple[Drift, ...]) -> dict[str, Metric]:
    """fd_first_window, fd_last_window and fd_floor of the first encoder, and with its name appended of the others."""
    metrics = {}
    for number, drift in enumerate(drifts):
        suffix = f"__{drift.encoder}" if number else ""
        unit = drift.encoder
        for place, found in (("first", drift.distances[0]), ("last", drift.distances[-1])):
            metrics[f"fd_{place}_window{suffix}"] = Metric(found.value, f"{unit}, above floor", found.n, found.interval)
        metrics[f"fd_floor{suffix}"] = Metric(drift.distances[0].floor, unit, drift.distances[0].n)
    return metrics


def temporal_metrics(long: Long, chunk: int, seed: int) -> dict[str, Metric]:
    """Jumps at chunk borders, flicker, and what happened to colours and contrast; chunk in pixel frames."""
    made, real = _unit(long.made), _unit(long.windows.reshape(-1, *long.windows.shape[2:]))
    rows, total = len(made), len(real)
    energy, real_energy = flicker_energy(made).numpy(), float(flicker_energy(real).mean())
    floor = max(real_energy, 1e-9)

    def jump(chosen: NDArray[np.int64]) -> float:
        return border_jump(made[chosen], real, chunk)

    last = made[:, -long.window :].flatten(0, 1)[None]
    everything = real.flatten(0, 1)[None]
    return {
        "border_jump": Metric(jump(np.arange(rows)), "x real", rows, bootstrap(jump, rows, seed, 200)),
        "flicker": Metric(
            float(energy.mean()) / floor, "x real", rows,
            bootstrap(lambda chosen: float(energy[chosen].mean()) / floor, rows, seed),
        ),
        "flicker_real": Metric(real_energy, "mean square", total),
        "colour_shift_last_window": Metric(float(colour_shift(last, everything)), "levels of 255", rows),
        "contrast_last_window": Metric(float(contrast_ratio(last, everything)), "x real", rows),
    }  # fmt: skip


def _unit(video: Pixels) -> torch.Tensor:
    return torch.from_numpy(video).movedim(-1, -3).float() / 255
