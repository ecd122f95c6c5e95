"""What is measured of one world model in a comparison, and what every model of the comparison shares.

Letters: B long rollouts, C short clips, W windows, E encoders, N frames kept, S starts of the contact sheet.
"""

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from worldmodel.encoders.frames import Encoder
from worldmodel.evaluate.continuation import beginning, context_frames, continuations, following, whole_chunks
from worldmodel.evaluate.horizon import closeness
from worldmodel.evaluate.long_rollouts import Course, Scale, colour_shift_of, contrast_of, lay_out, roll, unit_video
from worldmodel.evaluate.recordings import Excerpts, Pixels, Recordings, excerpts, onward_frames
from worldmodel.evaluate.windows import left_out_distances, window_features, window_starts
from worldmodel.fingerprint import fingerprint
from worldmodel.models.world import WorldModel
from worldmodel.serial import to_json

FORMAT = 1  # of a kept measurement: another number where anything about measuring changes
SHEET, FILMS = 6, 3  # starts that are shown in the contact sheet, and in films
FILM = 240  # frames of a film: all of a short rollout, the beginning and the end of a long one

Progress = Callable[[int], None]


@dataclass(frozen=True, kw_only=True)
class CompareSettings:
    """Sizes of a comparison, in pixel frames. context: chunks of real frames before every beginning."""

    frames: int = 384
    window: int = 32
    windows: int = 8
    rollouts: int = 12
    clips: int = 64
    horizon: int = 16
    context: int = 4
    reference: int = 1500
    seeds: tuple[int, ...] = (0,)


@dataclass(frozen=True, slots=True)
class Bench:
    """What all models are measured on: the same starts, recorded actions and noise seeds.

    starts [W]: first frames of the windows. wanted [N]: the frames of a long rollout that are kept.
    """

    settings: CompareSettings
    course: Course
    short: Excerpts
    starts: tuple[int, ...]
    wanted: NDArray[np.int64]

    def at(self, frames: NDArray[np.int64]) -> NDArray[np.int64]:
        """Where some of the wanted frames are among them."""
        return np.searchsorted(self.wanted, frames)

    @property
    def sheet_times(self) -> NDArray[np.int64]:
        """Frames of the contact sheet's columns: the first, then at 1/16, 1/8, 1/4, 1/2, 3/4 and all of the length."""
        shares = np.array([0, 1 / 16, 1 / 8, 1 / 4, 1 / 2, 3 / 4, 1])
        return np.unique(np.maximum(np.round(shares * self.settings.frames).astype(np.int64) - 1, 0))

    @property
    def film_times(self) -> NDArray[np.int64]:
        """Frames of the films: all, or FILM of them, two fifths from the beginning and the rest from the end."""
        frames = self.settings.frames
        if frames <= FILM:
            return np.arange(frames)
        head = FILM * 2 // 5
        return np.concatenate((np.arange(head), np.arange(frames - (FILM - head), frames)))

    @property
    def places(self) -> NDArray[np.float64]:
        """The middle of each window, in frames from 1: [W]."""
        return np.array(self.starts) + (self.settings.window + 1) / 2

    def recorded(self, rows: int, times: NDArray[np.int64]) -> Pixels:
        """What was recorded under the same actions, of the first rows: [rows, N, H, W, 3]."""
        few = first_rows(self.course.pieces, rows)
        return onward_frames(self.course.recordings, few, times + self.course.begin)

    @property
    def key(self) -> str:
        """A SHA-256 of every frame and action that a model starts from or is compared with, and of the settings."""
        digest = hashlib.sha256(json.dumps([FORMAT, to_json(self.settings)], sort_keys=True).encode())
        course = self.course
        for pieces in (course.pieces, *course.draws, self.short):
            for array in (pieces.pixels, pieces.actions, pieces.before, pieces.first):
                digest.update(np.ascontiguousarray(array).tobytes())
        for array in (course.actions, course.reference):
            digest.update(np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()[:32]


def first_rows(pieces: Excerpts, rows: int) -> Excerpts:
    """The first excerpts alone."""
    values = {field.name: getattr(pieces, field.name) for field in fields(pieces)}
    return Excerpts(**{name: None if value is None else value[:rows] for name, value in values.items()})


def prepare(world: WorldModel, recordings: Recordings, settings: CompareSettings) -> Bench:
    """The bench of all models that share this one's tokenizer, chunk and actions. UserError for too few recordings."""
    course = lay_out(
        world, recordings, settings.rollouts, settings.context, settings.frames, settings.window, settings.reference,
        settings.seeds[0],
    )  # fmt: skip
    length = context_frames(world, settings.context) + whole_chunks(world, settings.horizon) * world.pixel_frames
    short = excerpts(recordings, length, settings.clips, settings.seeds[0])
    starts = window_starts(settings.frames, settings.window, settings.windows)
    bench = Bench(settings, course, short, starts, np.arange(0))
    inside = np.add.outer(np.array(starts), np.arange(settings.window)).ravel()
    wanted = np.unique(np.concatenate((inside, bench.sheet_times, bench.film_times)))
    return Bench(settings, course, short, starts, wanted)


@dataclass(frozen=True, slots=True)
class Measurement:
    """What is known of one model.

    raw [E, W]: Frechet distances of the windows, nothing subtracted; without [E, W, B]: with each start left out.
    contrast, colour [W]: of the windows, against real frames. psnr [C, horizon] of the short clips, dB.
    sheet [S, columns, H, W, 3], film [FILMS, T, H, W, 3]: pictures for people.
    """

    raw: NDArray[np.float64]
    without: NDArray[np.float64]
    contrast: NDArray[np.float64]
    colour: NDArray[np.float64]
    psnr: NDArray[np.float64]
    sheet: Pixels
    film: Pixels


def frames_to_make(world: WorldModel, settings: CompareSettings) -> int:
    """Pixel frames that `measure` has a model make."""
    made = settings.rollouts * whole_chunks(world, settings.frames) + settings.clips * whole_chunks(
        world, settings.horizon
    )
    return made * world.pixel_frames


def measure(
    world: WorldModel, bench: Bench, scales: tuple[Scale, ...], rolled: Progress, seen: Progress
) -> Measurement:
    """Roll one model out and measure it. rolled and seen are told of frames made and of pictures encoded."""
    settings, course = bench.settings, bench.course
    made = roll(world, course, settings.seeds, rolled, bench.wanted)
    windows = [made[:, bench.at(start + np.arange(settings.window))] for start in bench.starts]
    found = [[left_out_distances(s.reference, window_features(s.encoder, w, seen)) for w in windows] for s in scales]
    draws = course.real_windows
    real = unit_video(draws.reshape(-1, *draws.shape[2:]))
    short = short_clips(world, bench, rolled)
    true = bench.short.pixels[:, course.begin : course.begin + settings.horizon]
    return Measurement(
        raw=np.array([[raw for raw, _ in each] for each in found]),
        without=np.array([[without for _, without in each] for each in found]),
        contrast=np.array([contrast_of(unit_video(window), real) for window in windows]),
        colour=np.array([colour_shift_of(unit_video(window), real) for window in windows]),
        psnr=closeness(true, short).psnr,
        sheet=made[:SHEET, bench.at(bench.sheet_times)],
        film=made[:FILMS, bench.at(bench.film_times)],
    )


def short_clips(world: WorldModel, bench: Bench, rolled: Progress) -> Pixels:
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
