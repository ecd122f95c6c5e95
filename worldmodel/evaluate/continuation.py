"""Real beginnings, continued by the model. Letters: B rows, T pixel frames, K latent frames, A packed action size."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from worldmodel import noise
from worldmodel.chunk import ActionControl, Clip
from worldmodel.evaluate.recordings import Excerpts, clip_of, control_of
from worldmodel.generate import generated
from worldmodel.models.world import WorldModel
from worldmodel.sampler import AnySampler

ROWS = 16


def context_frames(world: WorldModel, chunks: int) -> int:
    """Pixel frames that `chunks` chunks at the beginning of a clip cover."""
    return 1 + (chunks * world.dit.chunk - 1) * world.tokenizer.temporal


def whole_chunks(world: WorldModel, frames: int) -> int:
    """The smallest whole number of chunks with at least this many pixel frames."""
    return -(-frames // world.pixel_frames)


def beginning(world: WorldModel, pieces: Excerpts, chunks: int) -> Clip[ActionControl]:
    """The first `chunks` chunks of excerpts as a context."""
    frames = context_frames(world, chunks)
    return clip_of(world, replace(pieces, pixels=pieces.pixels[:, :frames], actions=pieces.actions[:, :frames]))


def following(world: WorldModel, pieces: Excerpts, chunks: int, actions: NDArray[np.float32]) -> ActionControl:
    """The control of everything after a context of `chunks` chunks, from actions [B, T, dim] that begin with it."""
    control = control_of(world, actions, pieces.before, pieces.first)
    return control.frames(chunks * world.dit.chunk, control.length)


def continuations(
    world: WorldModel,
    context: Clip[ActionControl],
    control: ActionControl,
    seed: int,
    sampler: AnySampler | None = None,
    progress: Callable[[int], None] = lambda frames: None,
    wanted: NDArray[np.int64] | None = None,
) -> NDArray[np.uint8]:
    """What the model makes of each row of the context under a control [B, K, A] of whole chunks: [B, T, H, W, 3].

    Row b is a function of (seed, its index in the clip) whatever its place in a batch. A sampler that looks ahead sees
    the last controls repeated beyond the end. progress: told of pixel frames as they are made. wanted: indices [N] of
    the frames to keep, rising, 0 for the first one after the context: [B, N, H, W, 3] comes back, and no other frame is
    ever held.
    """
    sampler = sampler or world.stream.sampler
    total = control.length // world.dit.chunk * world.pixel_frames
    wanted = np.arange(total) if wanted is None else wanted
    control = _extended(control, sampler.lookahead * world.dit.chunk)
    seeds = noise.row_seed(seed, context.index)
    height, width = (side * world.tokenizer.spatial for side in world.dit.frame_shape[1:])
    kept = np.empty((context.batch, len(wanted), height, width, 3), np.uint8)
    for rows in torch.arange(context.batch, device=context.index.device).split(ROWS):
        pieces = generated(world, context.select(rows), control.select(rows), seeds[rows], sampler)
        next(pieces)  # the context
        first, begin = int(rows[0]), 0
        for piece in pieces:
            end = begin + piece.shape[1]
            low, high = np.searchsorted(wanted, (begin, end))
            kept[first : first + len(rows), low:high] = piece[:, wanted[low:high] - begin]
            progress(len(rows) * piece.shape[1])
            begin = end
    return kept


def _extended(control: ActionControl, frames: int) -> ActionControl:
    if not frames:
        return control
    index = torch.arange(control.length + frames).clamp_max(control.length - 1).to(control.action.device)
    return replace(control, action=control.action[:, index], has_action=control.has_action[:, index])
