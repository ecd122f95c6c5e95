"""The probe of a comparison: trained once, it reads which actions are seen in what every model shows.

Only action dimensions are scored, those that the probe reads from recorded clips well enough. Right after real
context (short) and in every window of the long rollouts all models have the same actions, so their scores compare.

Letters: C short clips, B long rollouts, W windows of long rollouts, n readings per clip, D action dimensions.
"""

import hashlib
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from worldmodel.actions import ActionSpec
from worldmodel.errors import UserError
from worldmodel.evaluate.compare.bench import Bench
from worldmodel.evaluate.following import VALID, Judged, reconstruct
from worldmodel.evaluate.motion import flow_fields
from worldmodel.evaluate.probe import Probe, centres
from worldmodel.evaluate.recordings import Pixels, Recordings
from worldmodel.models.world import WorldModel

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Reader:
    """A probe with what it is asked for on a bench, and how well it reads recorded frames.

    last_seen [C, 1, H, W, 3]: the last frame of each short clip's context, through the tokenizer. true_short [C, n, D]
    and true_long [W, B, n, D]: the actions. real_short and real_long: readings of recorded frames, real_long of the
    bench's real stretches with their own actions. valid [D]: with an R2 of at least `readable` on
    recorded clips.
    """

    probe: Probe
    spec: ActionSpec
    last_seen: Pixels
    true_short: Floats
    true_long: Floats
    real_short: Judged
    real_long: Judged
    valid: NDArray[np.bool_]
    readable: float = VALID

    def read(self, video: Pixels) -> Floats:
        """What the probe sees done in videos [B, T, H, W, 3]: [B, n, D]."""
        return self.probe.predict(flow_fields(video))[..., : self.spec.dim]

    @property
    def counted(self) -> tuple[str, ...]:
        """Names of the valid dimensions."""
        return tuple(name for name, good in zip(self.spec.names, self.valid, strict=True) if good)


def reader_of(world: WorldModel, bench: Bench, probe: Probe, readable: float = VALID) -> Reader:
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
    valid = scores >= readable
    if not valid.any():
        listed = ", ".join(f"{name} {score:.2f}" for name, score in zip(world.actions.names, scores, strict=True))
        raise UserError(f"the probe reads no action from recorded clips with R2 of at least {readable}: {listed}")
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
        readable=readable,
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
