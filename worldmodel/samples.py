"""A look at a model during training: real and generated video side by side."""

from pathlib import Path

import numpy as np
import torch

from worldmodel.chunk import Clip
from worldmodel.models.world import WorldModel
from worldmodel.pixels import enlarge, to_uint8, write_video
from worldmodel.rollout import join, replay, rollout, start


@torch.no_grad()
def continue_clip(world: WorldModel, clip: Clip, context: int = 1, seed: int = 0) -> torch.Tensor:
    """Latents [B, T, C, H, W]: the first `context` chunks of the clip, then a rollout under its recorded actions."""
    model, size = world.dit, world.dit.chunk
    length = clip.x.shape[1] // size * size
    begin = clip.frames(0, context * size)
    seeds = torch.full((clip.batch,), seed, dtype=torch.int64, device=clip.x.device) + torch.arange(clip.batch)
    state = start(model, world.stream.memory, seeds, begin, world.stream.context_time)
    controls = replay(clip.control.frames(context * size, length), size, world.stream.sampler.lookahead)
    made = join(rollout(model, controls, world.stream.sampler, state, world.stream.context_time))
    return torch.cat((begin.x, made), 1)


@torch.no_grad()
def write_sample(world: WorldModel, clip: Clip, path: Path, rows: int = 4, scale: int = 3) -> None:
    """Real above generated, one column per row of the clip, as MP4."""
    clip = clip.select(torch.arange(min(rows, clip.batch)))
    made = to_uint8(world.tokenizer.decode(continue_clip(world, clip)))
    real = to_uint8(world.tokenizer.decode(clip.x[:, : made.shape[1]]))
    columns = [np.concatenate(pair, 1) for pair in zip(real, made, strict=True)]
    write_video(path, enlarge(np.concatenate(columns, 2), scale), world.fps)
