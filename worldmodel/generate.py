"""Long generation from a model's own beginnings or from recordings, as video."""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from worldmodel.actions import ActionSpec
from worldmodel.chunk import ActionControl, Chunk, Clip
from worldmodel.errors import Diverged, UserError
from worldmodel.models.tokenizer import DecodeState
from worldmodel.models.world import WorldModel
from worldmodel.pixels import enlarge, to_uint8, write_video
from worldmodel.progress import progress_bar
from worldmodel.rollout import replay, rollout, start
from worldmodel.sampler import AnySampler


def wander(spec: ActionSpec | None, batch: int, frames: int, seed: int) -> ActionControl:
    """Smooth random driving: normalised actions [B, T, A] that change slowly, the same for the same seed."""
    rng = torch.Generator().manual_seed(seed)
    size = spec.size if spec else 0
    knots = torch.rand(batch, size, frames // 12 + 2, generator=rng) * 2 - 1  # a new wish every 12 frames
    line = torch.nn.functional.interpolate(knots, scale_factor=12, mode="linear", align_corners=True) if size else knots
    action = line[..., :frames].transpose(1, 2).contiguous()
    return ActionControl(action, torch.full((batch, frames), size > 0))


def context_of(world: WorldModel, chunks: int = 1) -> Clip[ActionControl]:
    """The first chunks of the model's own beginnings."""
    if world.starts is None:
        raise UserError("this model has no beginnings of its own: give a recording with --data")
    return world.starts.frames(0, min(chunks * world.dit.chunk, world.starts.x.shape[1]))


@torch.no_grad()
def generated(
    world: WorldModel,
    context: Clip[ActionControl],
    control: ActionControl,
    seed: Tensor,
    sampler: AnySampler | None = None,
) -> Iterator[NDArray[np.uint8]]:
    """The frames of `generate` as they are made: [B, T, H, W, 3] of the context, then of one chunk after another."""
    model, stream = world.dit, world.stream
    sampler = sampler or stream.sampler
    state = start(model, stream.memory, seed, context, stream.context_time)
    controls = replay(control, model.chunk, sampler.lookahead)
    decoded, cache = world.tokenizer.decode_stream(context.x, None)
    _check_finite(decoded, "the pixels of the context", 0)
    made = decoded.shape[1]
    yield to_uint8(decoded)
    for chunk, _ in rollout(model, controls, sampler, state, stream.context_time):
        _check_finite(chunk.x, "the latents", int(chunk.start[0]))
        decoded, cache = _decode(world, chunk, cache)
        _check_finite(decoded, "the pixels", made)
        made += decoded.shape[1]
        yield to_uint8(decoded)


def generate(
    world: WorldModel,
    context: Clip[ActionControl],
    control: ActionControl,
    seed: Tensor,
    sampler: AnySampler | None = None,
    quiet: bool = False,
) -> np.ndarray:
    """Frames [B, T, H, W, 3] uint8: the context, then a rollout under `control` ([B, T', A], T' a multiple of K).

    seed: [B] int64, one per stream. Decoding is streamed, so memory does not grow with the latents. Latents or pixels
    that are not finite raise Diverged, which names the frame.
    """
    chunks = control.length // world.dit.chunk
    with progress_bar("rollout", chunks * world.pixel_frames, shown=not quiet) as advance:
        return np.concatenate(list(_told(generated(world, context, control, seed, sampler), advance)), 1)


def _check_finite(x: Tensor, name: str, first: int) -> None:
    """x: [B, F, ...], frames that count from `first`."""
    bad = (~torch.isfinite(x)).flatten(2).any(2).any(0).nonzero()
    if len(bad):
        raise Diverged(f"{name} are not finite from frame {first + int(bad[0])} on: the model has diverged")


def _decode(world: WorldModel, chunk: Chunk, cache: DecodeState) -> tuple[Tensor, DecodeState]:
    return world.tokenizer.decode_stream(chunk.x, cache)


def write_rollout(
    world: WorldModel,
    recording: Clip[ActionControl] | None,
    out: Path,
    frames: int,
    seed: int,
    sampler: AnySampler | None,
    scale: int,
) -> None:
    """Write a video of the context and `frames` generated latent frames, one column per row of the recording.

    With a recording [B, T, ...] its first chunk is the context and its actions are followed; otherwise the model's own
    beginnings are continued under wandering actions. Frames are written as they are made: no length needs more memory.
    """
    size = world.dit.chunk
    context = context_of(world) if recording is None else recording.frames(0, size)
    length = -(-frames // size) * size
    ahead = (sampler or world.stream.sampler).lookahead * size
    if recording is None:
        control = wander(world.actions, context.batch, length + ahead, seed)
    elif recording.control.length < size + length + ahead:
        raise UserError(f"the recording has {recording.control.length} frames, {size + length + ahead} are needed")
    else:
        control = recording.control.frames(size, size + length + ahead)
    seeds = seed + torch.arange(context.batch)
    unit = f"x {context.batch} frames"  # all beginnings at once
    with progress_bar("rollout", length // size * world.pixel_frames, unit=unit) as advance:
        pieces = _told(generated(world, context, control, seeds, sampler), advance)
        pictures = (np.concatenate(list(piece[:, time]), 1) for piece in pieces for time in range(piece.shape[1]))
        write_video(out, (enlarge(picture, scale) for picture in pictures), world.fps)


def _told(pieces: Iterator[NDArray[np.uint8]], advance: Callable[[int], None]) -> Iterator[NDArray[np.uint8]]:
    """The pieces of `generated`, each counted, but for the first one, which is the context."""
    yield next(pieces)
    for piece in pieces:
        advance(piece.shape[1])
        yield piece


def write_comparison(world: WorldModel, clip: Clip[ActionControl], out: Path, rows: int = 4, scale: int = 3) -> None:
    """Real above generated, one column per row of the clip [B, T, ...]: its first chunk is the context."""
    size, frames = world.dit.chunk, clip.x.shape[1] - clip.x.shape[1] % world.dit.chunk
    clip = clip.select(torch.arange(min(rows, clip.batch))).frames(0, frames)
    made = generate(world, clip.frames(0, size), clip.control.frames(size, frames), clip.index, quiet=True)
    real = to_uint8(world.tokenizer.decode(clip.x))[:, : made.shape[1]]
    columns = [np.concatenate(pair, 1) for pair in zip(real, made, strict=True)]
    write_video(out, enlarge(np.concatenate(columns, 2), scale), world.fps)
