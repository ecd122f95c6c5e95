"""The bench of a comparison: what every model is measured on, the same for all.

Letters: W windows, N frames kept.
"""

import hashlib
import json
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from worldmodel.evaluate.continuation import context_frames, whole_chunks
from worldmodel.evaluate.drift_page import film_times
from worldmodel.evaluate.long_rollouts import Course, lay_out
from worldmodel.evaluate.recordings import Excerpts, Pixels, Recordings, excerpts, onward_frames
from worldmodel.evaluate.windows import window_starts
from worldmodel.models.world import WorldModel
from worldmodel.serial import to_json

FORMAT = 1  # of a kept measurement: another number where anything about measuring changes
FILM = 240  # frames of a film at most


@dataclass(frozen=True, kw_only=True)
class CompareSettings:
    """Sizes of a comparison, in pixel frames. context: chunks of real frames before every beginning.

    The names of this class and of its fields are in the keys of kept measurements.
    """

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

    starts [W]: first frames of the windows.
    """

    settings: CompareSettings
    course: Course
    short: Excerpts
    starts: tuple[int, ...]

    @property
    def wanted(self) -> NDArray[np.int64]:
        """The frames of a long rollout that are kept, rising: [N]."""
        inside = np.add.outer(np.array(self.starts), np.arange(self.settings.window)).ravel()
        return np.unique(np.concatenate((inside, self.sheet_times, self.film_times)))

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
        """Frames of the films."""
        return film_times(self.settings.frames, FILM)

    @property
    def places(self) -> NDArray[np.float64]:
        """The middle of each window, in frames from 1: [W]."""
        return np.array(self.starts) + (self.settings.window + 1) / 2

    def recorded(self, rows: int, times: NDArray[np.int64]) -> Pixels:
        """What was recorded under the same actions, of the first rows: [rows, N, H, W, 3]."""
        few = _first_rows(self.course.pieces, rows)
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


def _first_rows(pieces: Excerpts, rows: int) -> Excerpts:
    """The first excerpts alone."""
    return Excerpts(
        pixels=pieces.pixels[:rows],
        actions=pieces.actions[:rows],
        before=pieces.before[:rows],
        first=pieces.first[:rows],
        state=None if pieces.state is None else pieces.state[:rows],
        episode=pieces.episode[:rows],
        start=pieces.start[:rows],
    )


def prepare(world: WorldModel, recordings: Recordings, settings: CompareSettings) -> Bench:
    """The bench of all models that share this one's tokenizer, chunk and actions. UserError for too few recordings."""
    course = lay_out(
        world, recordings, settings.rollouts, settings.context, settings.frames, settings.window, settings.reference,
        settings.seeds[0],
    )  # fmt: skip
    length = context_frames(world, settings.context) + whole_chunks(world, settings.horizon) * world.pixel_frames
    short = excerpts(recordings, length, settings.clips, settings.seeds[0])
    starts = window_starts(settings.frames, settings.window, settings.windows)
    return Bench(settings, course, short, starts)
