"""Real beginnings, continued by the model. Letters: B rows, T pixel frames, K latent frames, A packed action size."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from worldmodel import noise
from worldmodel.chunk import ActionControl, Clip
from worldmodel.evaluate.recordings import Excerpts, clip_of, control_of
from worldmodel.generate import generate
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
) -> NDArray[np.uint8]:
    """What the model makes of each row of the context under a control [B, K, A] of whole chunks: [B, T, H, W, 3].

    Row b is a function of (seed, its index in the clip) whatever its place in a batch. A sampler that looks ahead sees
    the last controls repeated beyond the end. progress: told of pixel frames as they are made.
    """
    sampler = sampler or world.stream.sampler
    control = _extended(control, sampler.lookahead * world.dit.chunk)
    seeds = noise.row_seed(seed, context.index)
    made = []
    for rows in torch.arange(context.batch, device=context.index.device).split(ROWS):
        frames = generate(world, context.select(rows), control.select(rows), seeds[rows], sampler, quiet=True)
        begin = 1 + (context.x.shape[1] - 1) * world.tokenizer.temporal
        made.append(frames[:, begin:])
        progress(made[-1].shape[0] * made[-1].shape[1])
    return np.concatenate(made)


def _extended(control: ActionControl, frames: int) -> ActionControl:
    if not frames:
        return control
    index = torch.arange(control.length + frames).clamp_max(control.length - 1).to(control.action.device)
    return replace(control, action=control.action[:, index], has_action=control.has_action[:, index])
