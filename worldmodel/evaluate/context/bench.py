"""The visits that memory is measured with: the same for every model of a tokenizer.

Letters: V visits, S frames of a view, H W pixels.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from worldmodel.errors import UserError
from worldmodel.evaluate.context.forgetting import Horizons, horizons_of
from worldmodel.evaluate.context.visits import HEADING, HOLD, PLACE, Visit, visits
from worldmodel.evaluate.continuation import context_frames
from worldmodel.evaluate.recordings import Pixels, Recordings, encode
from worldmodel.models.world import WorldModel
from worldmodel.pixels import to_uint8

POSE = ("x", "y", "angle")
Away = Literal["own", "recorded"]


@dataclass(frozen=True, slots=True)
class ContextSettings:
    """horizons: frames out of sight that are measured. lead: real frames up to the end of the look; None for all of
    the episode. away: who makes the frames out of sight, the model ("own") or nobody, they are the real ones
    ("recorded"). visits: at most so many of each horizon. views: frames after coming back that are scored. rivals:
    other views that a view must be told from. seeds: of the noise; scores are averaged. place, heading: of poses that
    count as the same, in the unit of x and y, and in degrees.
    """

    horizons: tuple[int, ...] = (4, 8, 16, 32, 64, 96, 128)
    lead: int | None = 64
    away: Away = "own"
    visits: int = 24
    views: int = 4
    rivals: int = 15
    seeds: tuple[int, ...] = (0,)
    place: float = PLACE
    heading: float = HEADING


@dataclass(frozen=True, slots=True)
class Case:
    """A visit of an episode, the first frame that a model makes, and how many chunks of real frames it gets before."""

    episode: int
    visit: Visit
    pose: tuple[float, float, float]  # of the look
    start: int
    chunks: int

    def same_place(self, other: "Case", place: float, heading: float) -> bool:
        """Whether both look from one pose of one episode, so that their views are one."""
        apart = np.hypot(self.pose[0] - other.pose[0], self.pose[1] - other.pose[1])
        turned = abs((self.pose[2] - other.pose[2] + 180) % 360 - 180)
        return self.episode == other.episode and bool(apart <= 2 * place and turned <= 2 * heading)


@dataclass(frozen=True, slots=True)
class Bench:
    """V visits with what is seen: look [V, H, W, 3] before, real [V, S, H, W, 3] after, rebuilt by the tokenizer."""

    settings: ContextSettings
    recordings: Recordings
    cases: tuple[Case, ...]
    horizons: Horizons
    look: Pixels
    real: Pixels
    rebuilt: Pixels

    @property
    def others(self) -> NDArray[np.bool_]:
        """[V, V]: which views show another place."""
        s = self.settings
        return np.array([[not a.same_place(b, s.place, s.heading) for b in self.cases] for a in self.cases])

    def select(self, rows: NDArray[np.int64]) -> "Bench":
        """Of some of the visits."""
        cases = tuple(self.cases[row] for row in rows)
        horizons = horizons_of([case.visit.horizon for case in cases], self.settings.horizons)
        return Bench(
            self.settings, self.recordings, cases, horizons, self.look[rows], self.real[rows], self.rebuilt[rows]
        )


def find_cases(world: WorldModel, recordings: Recordings, settings: ContextSettings) -> tuple[Case, ...]:
    """All visits that have enough real frames before them and are long enough in view after.

    UserError if the recordings hold no poses, no visit, or none with so much context.
    """
    names = tuple(recordings.state_names)
    if not set(POSE) <= set(names):
        raise UserError(f"visits are found in recorded poses: the state must have x, y and angle, it has {list(names)}")
    columns, found, early = [names.index(name) for name in POSE], list[Case](), 0
    for episode, length in enumerate(recordings.lengths):
        state = recordings.read(episode, 0, length).state
        if state is None:
            raise UserError(f"episode {episode} of the recordings has no recorded poses")
        poses = np.asarray(state, np.float64)[:, columns]
        for visit in visits(poses, settings.place, settings.heading, max(HOLD, settings.views)):
            start = visit.look + 1 if settings.away == "own" else visit.away[1] + 1
            given = start if settings.lead is None else settings.lead + start - (visit.look + 1)
            chunks = _chunks_within(world, given)
            if chunks < 1 or context_frames(world, chunks) > start:
                early += 1
                continue
            x, y, angle = poses[visit.look].tolist()
            found.append(Case(episode, visit, (x, y, angle), start, chunks))
    if not found and early:
        raise UserError(
            f"none of {early} visits has {settings.lead or context_frames(world, 1)} real frames before it: give "
            f"less --lead, or longer episodes"
        )
    if not found:
        raise UserError(
            "no visits found: no episode looks at something, turns away and comes back to the same pose (worldmodel "
            "collect maze --policy revisit records such)"
        )
    return tuple(found)


def _chunks_within(world: WorldModel, frames: int) -> int:
    """The most chunks whose pixel frames are at most `frames`."""
    latents = 1 + (frames - 1) // world.tokenizer.temporal if frames > 0 else 0
    return latents // world.dit.chunk


def prepare(world: WorldModel, recordings: Recordings, settings: ContextSettings) -> Bench:
    """A random choice of visits of each horizon, with their pictures. UserError if two of a horizon are lacking."""
    cases = find_cases(world, recordings, settings)
    horizons = horizons_of([case.visit.horizon for case in cases], settings.horizons)
    if not horizons.members:
        had = sorted({case.visit.horizon for case in cases})
        raise UserError(
            f"no horizon of {', '.join(map(str, settings.horizons))} has two visits: {len(cases)} were found, out of "
            f"sight for {', '.join(map(str, had[:20]))} frames"
        )
    rng = np.random.default_rng(settings.seeds[0])
    rows = np.sort(np.concatenate([rng.permutation(rows)[: settings.visits] for rows in horizons.members]))
    cases = tuple(cases[row] for row in rows)
    horizons = horizons_of([case.visit.horizon for case in cases], settings.horizons)
    look, real, rebuilt = [], [], []
    for case in cases:
        look.append(recordings.read(case.episode, case.visit.look, case.visit.look + 1).pixels[0])
        stop = case.visit.back + settings.views
        real.append(recordings.read(case.episode, case.visit.back, stop).pixels)
        rebuilt.append(_rebuilt(world, recordings, case.episode, stop, settings.views))
    return Bench(settings, recordings, cases, horizons, np.stack(look), np.stack(real), np.stack(rebuilt))


def _rebuilt(world: WorldModel, recordings: Recordings, episode: int, stop: int, frames: int) -> Pixels:
    """What the tokenizer makes of the last `frames` frames before `stop`, with as many before them as it needs."""
    temporal = world.tokenizer.temporal
    length = 1 + -(-(frames - 1) // temporal) * temporal
    pixels = recordings.read(episode, stop - length, stop).pixels
    return to_uint8(world.tokenizer.decode(encode(world, pixels[None])))[0, -frames:]


def groups(bench: Bench) -> Sequence[NDArray[np.int64]]:
    """Visits that can be rolled out together: the same context, the same horizon."""
    found = []
    for rows in bench.horizons.members:
        chunks = np.array([bench.cases[row].chunks for row in rows])
        found += [rows[chunks == count] for count in np.unique(chunks)]
    return found
