"""What the report of `evaluate drift` shows: curves, films, a contact sheet, and how it was measured."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from worldmodel.evaluate import plots
from worldmodel.evaluate.horizon import Closeness, Short
from worldmodel.evaluate.long_rollouts import Drift, Long
from worldmodel.evaluate.recordings import Pixels
from worldmodel.evaluate.report import Figure, Film, Picture
from worldmodel.evaluate.statistics import mean_interval
from worldmodel.models.world import WorldModel

GAP = 3  # white pixels between pictures
FILM = 480  # frames of a film at most


def figures(short: Short, beyond: Closeness, drifts: Sequence[Drift], fps: float) -> tuple[Figure, ...]:
    """PSNR and SSIM over the horizon, PSNR of the long rollouts, Frechet distance over windows per encoder."""
    arms = (("model", short.model, plots.MODEL), ("repeat the last frame", short.copy, plots.BASELINE))
    found = []
    for measure, label in (("psnr", "PSNR, dB"), ("ssim", "SSIM")):
        lines = [_band(name, getattr(arm, measure), colour) for name, arm, colour in arms]
        ceiling = getattr(short.ceiling, measure).mean(0)
        x = np.arange(1, len(ceiling) + 1)
        lines.append(plots.Curve("tokenizer alone", x, ceiling, colour=plots.REAL, dashed=True))
        text = f"Mean over {len(short.real)} held-out clips and {len(short.made)} seeds; band: 95 % over clips."
        found.append(Figure(label.split(",")[0] + " against the truth", plots.curves(lines, "frame", label), text))
    if beyond.psnr.shape[1] > short.horizon:
        line = _band("model", beyond.psnr, plots.MODEL)
        text = "Long rollouts against what was recorded under the same actions; positions drift apart, so it must fall."
        found.append(Figure("PSNR of long rollouts", plots.curves([line], "frame", "PSNR, dB"), text))
    return (*found, *(_window_figure(drift, fps) for drift in drifts))


def _band(label: str, values: NDArray[np.float64], colour: str) -> plots.Curve:
    bounds = np.array([mean_interval(column, resamples=500) for column in values.T])
    x = np.arange(1, values.shape[1] + 1)
    return plots.Curve(label, x, values.mean(0), bounds[:, 0], bounds[:, 1], colour)


def _window_figure(drift: Drift, fps: float) -> Figure:
    x = np.array(drift.starts) + 1
    values = np.array([found.value for found in drift.distances])
    low, high = np.array([found.interval for found in drift.distances]).T
    lines = [
        plots.Curve("model minus floor", x, values, low, high),
        plots.Curve("real frames (floor, subtracted)", x, np.zeros(len(x)), colour=plots.REAL, dashed=True),
    ]
    first = drift.distances[0]
    text = f"N = {first.n} pictures per window at {fps:g} frames/s; the floor is {first.floor:.4g}; band: jackknife."
    return Figure(
        f"Frechet distance in {drift.encoder} features", plots.curves(lines, "window begins at frame", "distance"), text
    )


def films(short: Short, long: Long, fps: float, count: int = 4) -> tuple[Film, ...]:
    """Real | generated, for some of the long rollouts (where the recording ends, its last frame stays)."""
    found = []
    length = long.made.shape[1]
    times = film_times(length, FILM)
    for row in range(min(count, len(long.made))):
        real = long.truth[row][np.minimum(times, long.truth.shape[1] - 1)]
        title = f"Real | generated, rollout {row + 1}{film_part(times, length)}"
        found.append(Film(title, beside(real, long.made[row][times]), fps, _scale(real, 2)))
    return tuple(found)


def film_times(length: int, most: int) -> NDArray[np.int64]:
    """Which of `length` frames a film of at most `most` shows: all, or two fifths from the beginning, then the end."""
    if length <= most:
        return np.arange(length)
    head = most * 2 // 5
    return np.concatenate((np.arange(head), np.arange(length - (most - head), length)))


def film_part(times: NDArray[np.int64], length: int) -> str:
    """What a film leaves out, for its title; "" for nothing."""
    if len(times) == length:
        return ""
    cut = int(np.argmax(np.diff(times) > 1))
    return f": frames 1 to {times[cut] + 1:,}, then {times[cut + 1] + 1:,} to {times[-1] + 1:,}"


def beside(left: Pixels, right: Pixels) -> Pixels:
    """Two videos [T, H, W, 3] as one, with a white gap (of even width with its pictures)."""
    gap = np.full((*left.shape[:2], 2, 3), 255, np.uint8)
    return np.concatenate((left, gap, right), 2)


def _scale(video: Pixels, columns: int) -> int:
    return max(1, round(440 / (columns * video.shape[2])))


def sheet(long: Long, rollouts: int = 4, columns: int = 10) -> Picture:
    """A contact sheet: pairs of lines, real above generated, frames at growing distances."""
    length = long.made.shape[1]
    times = np.unique(np.geomspace(1, length, columns).round().astype(int)) - 1
    lines = []
    for row in range(min(rollouts, len(long.made))):
        real = long.truth[row][np.minimum(times, long.truth.shape[1] - 1)]
        lines += [_line(real), _line(long.made[row][times])]
    title = "Real above generated, frames " + ", ".join(str(t + 1) for t in times)
    return Picture(title, np.concatenate(lines), max(1, round(1000 / lines[0].shape[1])))


def _line(frames: Pixels) -> Pixels:
    padded = np.pad(frames, ((0, 0), (0, GAP), (0, GAP), (0, 0)), constant_values=255)
    return np.concatenate(list(padded), 1)


def notes(world: WorldModel, short: Short, long: Long, drifts: Sequence[Drift], context_chunks: int) -> tuple[str, ...]:
    """One paragraph per measure."""
    b, k = len(short.real), world.dit.chunk
    first = drifts[0].distances[0]
    return (
        f"Short continuations: {b} held-out clips, {context_chunks} chunks of {k} latent frames of real context, then "
        f"{short.horizon} frames under the recorded actions, once per seed, with the sampler "
        f"{world.stream.sampler} and the memory {world.stream.memory}. PSNR (dB, mean of the frames' values) and SSIM "
        f"(Wang et al. 2004: Gaussian 11 x 11 window, sigma 1.5) are of 8-bit pictures against the recorded frame; "
        f"intervals are bootstraps over clips. 'Copy' repeats the last real frame of the context.",
        "Perceptual distance: squared difference of unit-length channel vectors of an EfficientNet-Lite0 trained on "
        "ImageNet, all weights equal, mean over positions and five maps; it is not LPIPS.",
        f"Frechet distance: |m1 - m2|^2 + tr C1 + tr C2 - 2 tr (C1 C2)^(1/2) of features, in fp64, of N = {first.n} "
        f"generated pictures ({len(long.made)} rollouts x {long.window} frames) against {len(long.reference)} real "
        f"frames of held-out episodes that no rollout starts in. The floor is the same for {len(long.windows)} draws "
        f"of real stretches of the same number and length from the episodes that rollouts start in; it is subtracted. "
        f"It is not FID, and values for another N or encoder do not compare. Intervals: jackknife over rollouts.",
        f"Border jump: mean absolute change into the first frame of a chunk ({world.pixel_frames} pixel frames) over "
        f"the change inside chunks, divided by the same of real video. Flicker: mean square of (p[t-1] - 2 p[t] + "
        f"p[t+1]) / 4 over that of real video. Colour shift: distance of mean RGB colours of the last window and of "
        f"real frames. Contrast: quotient of the pixels' standard deviations.",
        "Weights: the ones in the checkpoint's folder (the exponential moving average, if the run kept one).",
    )
