"""Action following in a comparison: one probe, trained once, reads what every model shows.

Only action dimensions are scored, those that the probe reads from recorded clips with R2 >= VALID. Right after real
context (short) and in every window of the long rollouts all models have the same actions, so their scores compare.

Letters: C short clips, B long rollouts, W windows of long rollouts, n readings per clip, D action dimensions.
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from worldmodel.actions import ActionSpec
from worldmodel.errors import UserError
from worldmodel.evaluate.compare_bench import Bench
from worldmodel.evaluate.compare_statistics import Curves, Readings
from worldmodel.evaluate.following import CLEAR, VALID, Judged, reconstruct
from worldmodel.evaluate.motion import flow_fields
from worldmodel.evaluate.probe import Probe, centres
from worldmodel.evaluate.recordings import Pixels, Recordings
from worldmodel.evaluate.statistics import sign_agreement
from worldmodel.models.world import WorldModel

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Reader:
    """A probe with what it is asked for on a bench, and how well it reads recorded frames.

    last_seen [C, 1, H, W, 3]: the last frame of each short clip's context, through the tokenizer. true_short [C, n, D]
    and true_long [W, B, n, D]: the actions. real_short and real_long: readings of recorded frames, real_long of the
    bench's real stretches with their own actions. valid [D].
    """

    probe: Probe
    spec: ActionSpec
    last_seen: Pixels
    true_short: Floats
    true_long: Floats
    real_short: Judged
    real_long: Judged
    valid: NDArray[np.bool_]

    def read(self, video: Pixels) -> Floats:
        """What the probe sees done in videos [B, T, H, W, 3]: [B, n, D]."""
        return self.probe.predict(flow_fields(video))[..., : self.spec.dim]

    @property
    def counted(self) -> tuple[str, ...]:
        """Names of the valid dimensions."""
        return tuple(name for name, good in zip(self.spec.names, self.valid, strict=True) if good)


def reader_of(world: WorldModel, bench: Bench, probe: Probe) -> Reader:
    """UserError if the probe cannot read any action from recorded clips, or if an action never changes in them."""
    if world.actions is None:
        raise UserError("these models have no actions to follow: leave out --train-data")
    settings, course, short = bench.settings, bench.course, bench.short
    seen = slice(course.begin - 1, course.begin + settings.horizon)  # the last frame of the context and what follows
    true_short = _done(short.actions[:, seen])
    dim = world.actions.dim
    real_short = Judged(world.actions.names, true_short, probe.predict(flow_fields(short.pixels[:, seen]))[..., :dim])
    draws, actions = course.real_windows, np.concatenate([draw.actions for draw in course.draws])
    read = probe.predict(flow_fields(draws.reshape(-1, *draws.shape[2:])))[..., :dim]
    scores = real_short.scores()
    for name, score in zip(world.actions.names, scores, strict=True):
        if not np.isfinite(score):
            raise UserError(f"action '{name}' is constant in the {settings.clips} short clips; use more --clips")
    valid = scores >= VALID
    if not valid.any():
        listed = ", ".join(f"{name} {score:.2f}" for name, score in zip(world.actions.names, scores, strict=True))
        raise UserError(f"the probe reads no action from recorded clips with R2 of at least {VALID}: {listed}")
    windows = [course.begin + start + np.arange(settings.window) for start in bench.starts]
    return Reader(
        probe=probe,
        spec=world.actions,
        last_seen=reconstruct(world, short.pixels[:, : course.begin])[:, -1:],
        true_short=true_short,
        true_long=np.stack([_done(course.actions[:, frames]) for frames in windows]),
        real_short=real_short,
        real_long=Judged(world.actions.names, _done(actions), read),
        valid=valid,
    )


def _done(actions: NDArray[np.floating]) -> Floats:
    """The actions [B, T, D] from each frame of a video to the next, where the probe reads: [B, n, D]."""
    return centres(actions[:, :-1]).astype(np.float64)


def recordings_key(recordings: Recordings) -> str:
    """A SHA-256 of the names and lengths, and of some frames and actions of up to four episodes."""
    lengths = list(recordings.lengths)
    digest = hashlib.sha256(repr((tuple(recordings.action_names), lengths)).encode())
    for episode in np.unique(np.linspace(0, len(lengths) - 1, 4).round().astype(int)).tolist():
        piece = recordings.read(episode, 0, min(8, lengths[episode]))
        digest.update(np.ascontiguousarray(piece.pixels).tobytes() + np.ascontiguousarray(piece.actions).tobytes())
    return digest.hexdigest()[:32]


@dataclass(frozen=True, slots=True)
class Following:
    """How an arm follows its actions: R2, and how often the sign of a clear action is read. Short, and per window."""

    short: Readings
    long: Curves
    sign_short: Readings | None  # None where no valid action goes both ways
    sign_last: Readings | None


def following_of(reader: Reader, short: Sequence[Floats], long: Sequence[Floats]) -> Following:
    """From the readings of every seed: [C, n, D] each, and [W, B, n, D] each."""
    curves = [
        readings(reader, true, [seed[window] for seed in long], f"window {window + 1}")
        for window, true in enumerate(reader.true_long)
    ]
    return Following(
        short=readings(reader, reader.true_short, short, "the short clips"),
        long=Curves(np.stack([each.values for each in curves], -1), np.stack([each.without for each in curves], -1)),
        sign_short=sign_readings(reader, reader.true_short, short),
        sign_last=sign_readings(reader, reader.true_long[-1], [seed[-1] for seed in long]),
    )


def readings(reader: Reader, true: Floats, read: Sequence[Floats], where: str) -> Readings:
    """R2, mean over the valid dimensions, of every seed, and with each clip left out. true: [B, n, D]."""

    def score(seed: Floats, rows: NDArray[np.int64]) -> float:
        found = Judged(reader.spec.names, true, seed).scores(rows)[reader.valid]
        if not np.isfinite(found).all():
            raise UserError(f"an action never changes in {where}, with one start left out: use more --rollouts")
        return float(found.mean())

    return _with_each_left_out(score, read, len(true))


def sign_readings(reader: Reader, true: Floats, read: Sequence[Floats]) -> Readings | None:
    """The share of clear actions whose sign is read, mean over valid dimensions that go both ways."""
    spec, both = reader.spec, []
    for column, (low, high) in enumerate(zip(spec.low, spec.high, strict=True)):
        clear = CLEAR * max(abs(low), abs(high))
        if reader.valid[column] and low <= -clear and high >= clear:
            both.append((column, clear))

    def score(seed: Floats, rows: NDArray[np.int64]) -> float:
        shares = [sign_agreement(true[rows][..., column], seed[rows][..., column], clear) for column, clear in both]
        counted = [share for share, count in shares if count]
        return float(np.mean(counted)) if counted else float("nan")

    found = _with_each_left_out(score, read, len(true)) if both else None
    return found if found is not None and np.isfinite(found.values).all() and np.isfinite(found.without).all() else None


def _with_each_left_out(
    score: Callable[[Floats, NDArray[np.int64]], float], read: Sequence[Floats], count: int
) -> Readings:
    everyone = np.arange(count)
    left = [everyone[everyone != b] for b in range(count)] if count > 1 else []
    values = np.array([score(seed, everyone) for seed in read])
    return Readings(values, np.array([[score(seed, rows) for rows in left] for seed in read]).reshape(len(read), -1))
