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
from worldmodel.evaluate.recordings import Excerpts, Pixels, Recordings, Subset, cut, excerpts, onward_actions
from worldmodel.evaluate.report import Metric
from worldmodel.evaluate.statistics import bootstrap
from worldmodel.evaluate.temporal import border_differences, colour_shift, contrast_ratio, flicker_energy, jump_of
from worldmodel.evaluate.windows import (
    Floor,
    WindowDistance,
    real_floor,
    window_distance,
    window_features,
    window_starts,
)
from worldmodel.frechet.distance import DistanceTo
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


@dataclass(frozen=True, slots=True)
class Course:
    """Where B rollouts begin, what they do, and what they are compared with: nothing here depends on a model's weights.

    recordings: the episodes that rollouts start in. pieces: excerpts of them, each from the beginning of a rollout's
    context on. actions [B, T', dim]: from there on, to the end of a whole number of chunks. begin: pixel frames of the
    context, which is `context_chunks` chunks. draws: DRAWS times B real stretches of `window` frames from the same
    episodes. reference [N, H, W, 3]: frames of the other episodes.
    """

    recordings: Subset
    pieces: Excerpts
    actions: NDArray[np.float32]
    context_chunks: int
    begin: int
    frames: int
    window: int
    draws: tuple[Excerpts, ...]
    reference: Pixels

    @property
    def count(self) -> int:
        return self.pieces.batch

    @property
    def real_windows(self) -> Pixels:
        """[DRAWS, B, window, H, W, 3]"""
        return np.stack([draw.pixels for draw in self.draws])


def lay_out(
    world: WorldModel,
    recordings: Recordings,
    count: int,
    context_chunks: int,
    frames: int,
    window: int,
    reference: int,
    seed: int,
) -> Course:
    """`count` beginnings of rollouts of `frames` frames. Beyond the end of an episode, the next one's actions go on.

    A rollout that is longer than its episode starts in the episode's first half, so that several of one episode differ.
    """
    begin, chunks = context_frames(world, context_chunks), whole_chunks(world, frames)
    starts, others = two_sides(recordings, begin + window, seed)
    total, shortest = begin + chunks * world.pixel_frames, min(starts.lengths)
    length = total if total <= shortest else max(begin + window, shortest // 2)
    pieces = excerpts(starts, length, count, seed)
    rng = np.random.default_rng(seed)
    draws = []
    for _ in range(DRAWS):
        places = [(int(e), int(rng.integers(0, starts.lengths[e] - window + 1))) for e in pieces.episode]
        draws.append(cut(starts, places, window))
    return Course(
        recordings=starts,
        pieces=pieces,
        actions=onward_actions(starts, pieces, total),
        context_chunks=context_chunks,
        begin=begin,
        frames=frames,
        window=window,
        draws=tuple(draws),
        reference=_spread_frames(others, reference),
    )


def roll(
    world: WorldModel,
    course: Course,
    seeds: tuple[int, ...],
    progress: Callable[[int], None] = lambda frames: None,
    wanted: NDArray[np.int64] | None = None,
) -> Pixels:
    """The course's rollouts by a model, [B, N, H, W, 3]: the `wanted` frames [N], rising, or all. No other is held.

    Rollout b has seed number b modulo their number.
    """
    context = beginning(world, course.pieces, course.context_chunks)
    control = following(world, course.pieces, course.context_chunks, course.actions)
    wanted = np.arange(course.frames) if wanted is None else wanted
    made = np.empty((course.count, len(wanted), *course.pieces.pixels.shape[2:]), np.uint8)
    for number, seed in enumerate(seeds):
        rows = torch.arange(number, course.count, len(seeds))
        if len(rows):
            places = rows.to(world.device)
            made[rows.numpy()] = continuations(
                world, context.select(places), control.select(places), seed, progress=progress, wanted=wanted
            )
    return made


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
    """`count` rollouts of `frames` frames with everything that they are compared with."""
    course = lay_out(world, recordings, count, context_chunks, frames, window, reference, seeds[0])
    truth = course.pieces.pixels[:, course.begin :]
    return Long(roll(world, course, seeds, progress), truth, course.real_windows, course.reference, window)


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


@dataclass(frozen=True, slots=True)
class Scale:
    """What windows are measured with: an encoder, the distance to its reference, and the real-versus-real floor."""

    encoder: Encoder
    reference: DistanceTo
    floor: Floor


def scale_of(
    encoder: Encoder, reference: Pixels, windows: Pixels, progress: Callable[[int], None] = lambda frames: None
) -> Scale:
    """From reference frames [N, H, W, 3] and real windows [draws, B, T, H, W, 3]."""
    distance = reference_of(features_of(encoder, torch.from_numpy(reference).movedim(-1, 1)))
    progress(len(reference))
    real = torch.stack([window_features(encoder, draw, progress) for draw in windows])
    return Scale(encoder, distance, real_floor(distance, real))


def drift_of(
    encoder: Encoder, long: Long, windows: int, progress: Callable[[int], None] = lambda frames: None
) -> Drift:
    """Frechet distance of evenly spaced windows to the reference, minus the real-versus-real floor."""
    scale = scale_of(encoder, long.reference, long.windows, progress)
    starts = window_starts(long.made.shape[1], long.window, windows)
    found = []
    for start in starts:
        seen = window_features(encoder, long.made[:, start : start + long.window], progress)
        found.append(window_distance(scale.reference, seen, scale.floor))
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
    real = unit_video(long.windows.reshape(-1, *long.windows.shape[2:]))
    rows, total = len(long.made), len(real)
    borders, insides, energies = [], [], []
    for row in long.made:  # one at a time: as floats, all of them would not fit into memory when they are long
        video = unit_video(row[None])
        border, inside = border_differences(video, chunk)
        borders.append(float(border))
        insides.append(float(inside))
        energies.append(float(flicker_energy(video)))
    at, within, energy = (torch.tensor(values) for values in (borders, insides, energies))
    real_differences = border_differences(real, chunk)
    real_energy = float(flicker_energy(real).mean())
    floor = max(real_energy, 1e-9)

    def jump(chosen: NDArray[np.int64]) -> float:
        return jump_of((at[chosen], within[chosen]), real_differences)

    last, everything = unit_video(long.made[:, -long.window :]), real
    return {
        "border_jump": Metric(jump(np.arange(rows)), "x real", rows, bootstrap(jump, rows, seed, 200)),
        "flicker": Metric(
            float(energy.mean()) / floor, "x real", rows,
            bootstrap(lambda chosen: float(energy[chosen].mean()) / floor, rows, seed),
        ),
        "flicker_real": Metric(real_energy, "mean square", total),
        "colour_shift_last_window": Metric(colour_shift_of(last, everything), "levels of 255", rows),
        "contrast_last_window": Metric(contrast_of(last, everything), "x real", rows),
    }  # fmt: skip


def colour_shift_of(made: torch.Tensor, real: torch.Tensor) -> float:
    """Of all videos [B, T, 3, H, W] taken together."""
    return float(colour_shift(made.flatten(0, 1)[None], real.flatten(0, 1)[None]))


def contrast_of(made: torch.Tensor, real: torch.Tensor) -> float:
    """Of all videos [B, T, 3, H, W] taken together."""
    return float(contrast_ratio(made.flatten(0, 1)[None], real.flatten(0, 1)[None]))


def unit_video(video: Pixels) -> torch.Tensor:
    """uint8 [..., H, W, 3] as float [..., 3, H, W] in [0, 1]."""
    return torch.from_numpy(video).movedim(-1, -3).float() / 255
