"""Held-out recordings as the evaluation sees them, and excerpts of them as a model's context and control.

Letters: B excerpts, T pixel frames, H W pixels, N actions or frames, S state dimensions, K latent frames, A packed
action size.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from worldmodel.chunk import ActionControl, Clip
from worldmodel.errors import UserError
from worldmodel.models.tokenizer import check_size, num_latent_frames
from worldmodel.models.world import WorldModel
from worldmodel.pixels import to_float

Pixels = NDArray[np.uint8]
Floats = NDArray[np.floating]


@dataclass(frozen=True, slots=True)
class Recording:
    """Consecutive frames of one episode. actions[i] leads from frame i to frame i + 1 (the last one leads nowhere)."""

    pixels: Pixels  # [T, H, W, 3] RGB
    actions: Floats  # [T, dim], in the environment's own units
    state: Floats | None = None  # [T, S], what was true at each frame


class Recordings(Protocol):
    """Episodes that can be read piece by piece."""

    @property
    def action_names(self) -> tuple[str, ...]: ...

    @property
    def state_names(self) -> tuple[str, ...]:
        """Names of the state's dimensions, empty if there is no state. x, y, angle (degrees) make a planar pose."""
        ...

    @property
    def lengths(self) -> Sequence[int]:
        """Frames of each episode."""
        ...

    def read(self, episode: int, start: int, stop: int) -> Recording:
        """Frames start to stop of the episode at that place in `lengths`."""
        ...


@dataclass(frozen=True, slots=True)
class ArrayRecordings:
    """Recordings that lie in memory (or in memory-mapped arrays)."""

    episodes: tuple[Recording, ...]
    action_names: tuple[str, ...]
    state_names: tuple[str, ...] = ()

    @property
    def lengths(self) -> tuple[int, ...]:
        return tuple(len(episode.pixels) for episode in self.episodes)

    def read(self, episode: int, start: int, stop: int) -> Recording:
        whole = self.episodes[episode]
        state = None if whole.state is None else whole.state[start:stop]
        return Recording(np.asarray(whole.pixels[start:stop]), whole.actions[start:stop], state)


@dataclass(frozen=True, slots=True)
class Subset:
    """Some episodes of recordings, in the given order."""

    whole: Recordings
    chosen: tuple[int, ...]

    @property
    def action_names(self) -> tuple[str, ...]:
        return self.whole.action_names

    @property
    def state_names(self) -> tuple[str, ...]:
        return self.whole.state_names

    @property
    def lengths(self) -> tuple[int, ...]:
        return tuple(self.whole.lengths[episode] for episode in self.chosen)

    def read(self, episode: int, start: int, stop: int) -> Recording:
        return self.whole.read(self.chosen[episode], start, stop)


@dataclass(frozen=True, slots=True)
class Excerpts:
    """B pieces of T frames, cut from recordings."""

    pixels: Pixels  # [B, T, H, W, 3]
    actions: NDArray[np.float32]  # [B, T, dim], actions[:, i] leads from frame i to frame i + 1
    before: NDArray[np.float32]  # [B, dim], the action that led to frame 0; zero where there is none
    first: NDArray[np.bool_]  # [B], whether frame 0 begins its episode
    state: Floats | None  # [B, T, S]
    episode: NDArray[np.int64]  # [B]
    start: NDArray[np.int64]  # [B]

    @property
    def batch(self) -> int:
        return self.pixels.shape[0]


def excerpts(recordings: Recordings, length: int, count: int, seed: int = 0, episodes: int | None = None) -> Excerpts:
    """`count` pieces of `length` frames at random places, spread evenly over the episodes that are long enough.

    Pieces of one episode fall into equal stretches of it, so that they overlap only if there is no room. episodes: take
    at most so many, drawn by chance (reading video is slow). Same seed, same pieces. UserError if none is long enough.
    """
    lengths = np.asarray(recordings.lengths)
    usable = np.flatnonzero(lengths >= length)
    if not len(usable):
        longest = int(lengths.max()) if len(lengths) else 0
        raise UserError(f"no held-out episode has {length} frames; the longest of {len(lengths)} has {longest}")
    if count < 1:
        raise UserError(f"the number of excerpts must be at least 1, not {count}")
    rng = np.random.default_rng(seed)
    drawn = rng.permutation(usable)[:episodes]
    shares = np.diff(np.linspace(0, count, len(drawn) + 1).round().astype(int))
    places = []
    for episode, share in zip(drawn, shares, strict=True):
        room = (lengths[episode] - length + 1) / max(share, 1)
        places += [(int(episode), int((j + rng.random()) * room)) for j in range(share)]
    return cut(recordings, places, length)


def cut(recordings: Recordings, places: Sequence[tuple[int, int]], length: int) -> Excerpts:
    """The pieces at the given (episode, start) places. UserError if one reaches beyond its episode or sizes differ."""
    pieces, before = [], []
    for episode, start in places:
        if start < 0 or start + length > recordings.lengths[episode]:
            raise UserError(
                f"episode {episode} has {recordings.lengths[episode]} frames, none from {start} to {start + length}"
            )
        lead = min(start, 1)
        piece = recordings.read(episode, start - lead, start + length)
        before.append(piece.actions[0] if lead else np.zeros_like(piece.actions[0]))
        pieces.append(
            Recording(piece.pixels[lead:], piece.actions[lead:], None if piece.state is None else piece.state[lead:])
        )
    sizes = {piece.pixels.shape[1:] for piece in pieces}
    if len(sizes) > 1:
        raise UserError(f"held-out pictures have different sizes: {sorted(sizes)}")
    states = [piece.state for piece in pieces if piece.state is not None]
    return Excerpts(
        pixels=np.stack([piece.pixels for piece in pieces]),
        actions=np.stack([piece.actions for piece in pieces]).astype(np.float32),
        before=np.stack(before).astype(np.float32),
        first=np.array([start == 0 for _, start in places]),
        state=np.stack(states) if len(states) == len(pieces) else None,
        episode=np.array([episode for episode, _ in places]),
        start=np.array([start for _, start in places]),
    )


def check_fit(world: WorldModel, recordings: Recordings) -> None:
    """Raise UserError unless the recordings have this model's actions and a picture size that it can encode."""
    names = world.actions.names if world.actions else ()
    if names and tuple(recordings.action_names) != names:
        raise UserError(f"the recordings have actions {list(recordings.action_names)}, the model takes {list(names)}")
    if world.actions and world.actions.pack != world.tokenizer.temporal:
        raise UserError(
            f"the model packs {world.actions.pack} actions into a latent frame of {world.tokenizer.temporal} pixel "
            f"frames: only one action per pixel frame can be evaluated"
        )
    if not len(recordings.lengths):
        raise UserError("there are no held-out recordings")
    height, width = recordings.read(0, 0, 1).pixels.shape[1:3]
    check_size(world.tokenizer, height, width)
    wanted = tuple(side * world.tokenizer.spatial for side in world.dit.frame_shape[1:])
    if (height, width) != wanted:
        raise UserError(f"the recordings are {width} x {height} pixels, the model makes {wanted[1]} x {wanted[0]}")


@torch.no_grad()
def encode(world: WorldModel, pixels: Pixels, rows: int = 8) -> Tensor:
    """Latents [B, K, C, h, w] of pixels [B, T, H, W, 3], a few rows at a time."""
    pieces = np.array_split(pixels, max(1, -(-len(pixels) // rows)))
    return torch.cat([world.tokenizer.encode(to_float(piece).to(world.device)) for piece in pieces])


def control_of(
    world: WorldModel, actions: NDArray[np.float32], before: NDArray[np.float32], first: NDArray[np.bool_]
) -> ActionControl:
    """Environment actions [B, T, dim] of T pixel frames as this model's control, one per latent frame: [B, K, A].

    actions[:, i] leads from frame i to i + 1 (the last one is not used); before [B, dim] led to frame 0; first [B]:
    whether frame 0 begins its episode. A latent frame carries the actions executed since the one before it. The first
    one has the action that led to it, unless it begins an episode or covers one pixel frame only (`temporal > 1`).
    """
    temporal, batch = world.tokenizer.temporal, len(actions)
    frames = num_latent_frames(world.tokenizer, actions.shape[1])
    has_action = torch.ones(batch, frames, dtype=torch.bool)
    if world.actions is None:
        return ActionControl(torch.zeros(batch, frames, 0), torch.zeros_like(has_action)).to(world.device)
    has_action[:, 0] = ~torch.from_numpy(first) & (temporal == 1)
    lead = np.repeat(before[:, None], temporal, 1)
    flat = torch.from_numpy(np.concatenate((lead, actions[:, : (frames - 1) * temporal]), 1))
    return ActionControl(world.actions.packed(world.actions.normalise(flat)), has_action).to(world.device)


def clip_of(world: WorldModel, pieces: Excerpts) -> Clip[ActionControl]:
    """The excerpts encoded, with their control."""
    index = torch.arange(pieces.batch, device=world.device)
    control = control_of(world, pieces.actions, pieces.before, pieces.first)
    return Clip(encode(world, pieces.pixels), control, index)


def onward(recordings: Recordings, episode: int, start: int, length: int) -> list[tuple[int, int, int]]:
    """Stretches (episode, start, stop) of `length` frames together, from one place on.

    Where the episode ends, the next episode in the list goes on, from its beginning; the first follows the last.
    """
    found: list[tuple[int, int, int]] = []
    while length > 0:
        stop = min(recordings.lengths[episode], start + length)
        found.append((episode, start, stop))
        length -= stop - start
        episode, start = (episode + 1) % len(recordings.lengths), 0
    return found


def onward_actions(recordings: Recordings, pieces: Excerpts, length: int) -> NDArray[np.float32]:
    """The recorded actions from each excerpt's first frame on, [B, length, dim]; beyond its episode as in `onward`."""
    rows = []
    for episode, start in zip(pieces.episode.tolist(), pieces.start.tolist(), strict=True):
        stretches = onward(recordings, episode, start, length)
        rows.append(np.concatenate([recordings.read(*stretch).actions for stretch in stretches]))
    return np.stack(rows).astype(np.float32)


def onward_frames(recordings: Recordings, pieces: Excerpts, wanted: NDArray[np.int64]) -> Pixels:
    """Recorded frames [B, N, H, W, 3] at distances `wanted` [N], rising, from each excerpt's first frame.

    Beyond the end of an episode they are those of the recording whose actions go on, as in `onward`.
    """
    rows = []
    for episode, start in zip(pieces.episode.tolist(), pieces.start.tolist(), strict=True):
        frames, begin = [], 0
        for where, first, stop in onward(recordings, episode, start, int(wanted[-1]) + 1):
            end = begin + stop - first
            inside = wanted[(wanted >= begin) & (wanted < end)]
            if len(inside):
                frames.append(recordings.read(where, first, stop).pixels[inside - begin])
            begin = end
        rows.append(np.concatenate(frames))
    return np.stack(rows)
