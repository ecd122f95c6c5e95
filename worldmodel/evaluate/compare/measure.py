"""What is measured of one world model in a comparison.

Letters: B long rollouts, C short clips, W windows, E encoders, S starts that are shown, n D readings of the probe.
"""

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from worldmodel.encoders.frames import Encoder
from worldmodel.evaluate.compare.bench import Bench, CompareSettings
from worldmodel.evaluate.compare.reader import Reader
from worldmodel.evaluate.continuation import beginning, continuations, following, whole_chunks
from worldmodel.evaluate.horizon import closeness
from worldmodel.evaluate.long_rollouts import Scale, colour_shift_of, contrast_of, roll, unit_video
from worldmodel.evaluate.recordings import Pixels
from worldmodel.evaluate.windows import left_out_distances, window_features
from worldmodel.fingerprint import fingerprint
from worldmodel.models.world import WorldModel
from worldmodel.serial import to_json

SHEET, FILMS = 6, 3  # starts that are shown in contact sheets, and in films

Progress = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Measurement:
    """What is known of one model.

    raw [E, W]: Frechet distances of the windows, nothing subtracted; without [E, W, B]: with each start left out.
    contrast, colour [W]: of the windows, against real frames. psnr [C, horizon] of the short clips, dB. read_short
    [C, n, D], read_long [W, B, n, D]: the actions that the probe sees (n = 0 without a probe). sheet [S, columns, H, W,
    3], film [S, T, H, W, 3]: pictures for people.
    """

    raw: NDArray[np.float64]
    without: NDArray[np.float64]
    contrast: NDArray[np.float64]
    colour: NDArray[np.float64]
    psnr: NDArray[np.float64]
    read_short: NDArray[np.float64]
    read_long: NDArray[np.float64]
    sheet: Pixels
    film: Pixels


def frames_to_make(world: WorldModel, settings: CompareSettings) -> int:
    """Pixel frames that `measure` has a model make."""
    long, short = (whole_chunks(world, frames) for frames in (settings.frames, settings.horizon))
    return (settings.rollouts * long + settings.clips * short) * world.pixel_frames


def measure(
    world: WorldModel, bench: Bench, scales: tuple[Scale, ...], reader: Reader | None, progress: Progress
) -> Measurement:
    """Roll one model out and measure it. progress is told of frames as they are made and as they are encoded."""
    settings, course = bench.settings, bench.course
    made = roll(world, course, settings.seeds, progress, bench.wanted)
    windows = [made[:, bench.at(start + np.arange(settings.window))] for start in bench.starts]
    found = [
        [left_out_distances(s.reference, window_features(s.encoder, window, progress)) for window in windows]
        for s in scales
    ]
    draws = course.real_windows
    real = unit_video(draws.reshape(-1, *draws.shape[2:]))
    short = _short_clips(world, bench, progress)
    true = bench.short.pixels[:, course.begin : course.begin + settings.horizon]
    read_short, read_long = np.zeros((len(short), 0, 0)), np.zeros((len(windows), settings.rollouts, 0, 0))
    if reader is not None:
        read_short = reader.read(np.concatenate((reader.last_seen, short), 1))
        read_long = np.stack([reader.read(window) for window in windows])
    return Measurement(
        raw=np.array([[raw for raw, _ in each] for each in found]),
        without=np.array([[without for _, without in each] for each in found]),
        contrast=np.array([contrast_of(unit_video(window), real) for window in windows]),
        colour=np.array([colour_shift_of(unit_video(window), real) for window in windows]),
        psnr=closeness(true, short).psnr,
        read_short=read_short,
        read_long=read_long,
        sheet=made[:SHEET, bench.at(bench.sheet_times)],
        film=made[:FILMS, bench.at(bench.film_times)],
    )


def _short_clips(world: WorldModel, bench: Bench, rolled: Progress) -> Pixels:
    """The short clips of a bench, continued with its first seed: [C, horizon, H, W, 3]."""
    settings = bench.settings
    context = beginning(world, bench.short, settings.context)
    control = following(world, bench.short, settings.context, bench.short.actions)
    wanted = np.arange(settings.horizon)
    return continuations(world, context, control, settings.seeds[0], progress=rolled, wanted=wanted)


def model_key(world: WorldModel) -> str:
    """Which model this is, with how it is deployed."""
    tokenizer: Any = world.tokenizer  # tokenizers are modules
    stream = json.dumps(to_json(world.stream), sort_keys=True)
    return hashlib.sha256((fingerprint(world.dit, tokenizer) + stream).encode()).hexdigest()[:32]


def scale_key(scale: Scale) -> str:
    """Which encoder this is: its name, and its floor, which no other weights would have."""
    encoder: Encoder = scale.encoder
    return f"{encoder.name} {encoder.size} {scale.floor.value:.4g}"
