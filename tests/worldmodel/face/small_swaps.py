"""A small swap generator with random weights everywhere, and targets, faces and clips for it."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from worldmodel.chunk import Clip
from worldmodel.face.generator import FaceControl
from worldmodel.face.region_codec import RegionCodec, condition_channels
from worldmodel.face.swap_control import SwapControl
from worldmodel.face.swap_model import SwapModel
from worldmodel.memory import WindowConfig
from worldmodel.models.dit import DiT, DiTConfig
from worldmodel.models.pixel_tokenizer import PixelTokenizer, PixelTokenizerConfig
from worldmodel.models.world import StreamConfig
from worldmodel.sampler import Euler

SIZE, PIXELS = 8, PixelTokenizer(PixelTokenizerConfig())
CFG = DiTConfig(
    channels=3, size=(SIZE, SIZE), condition=condition_channels(3, 1), patch=4, chunk=2, dim=32, depth=2, heads=2,
    hidden=48, time_width=32,
)  # fmt: skip
STREAM = StreamConfig(memory=WindowConfig(sink=1, ring=3), sampler=Euler(steps=2), context_time=0.1)


def shaken(cfg: DiTConfig) -> DiT:
    """Random weights everywhere, those that start at zero included."""
    torch.manual_seed(0)
    model = cfg.build()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn_like(p) * (0.3 if p.ndim == 1 else 0.5 / p.shape[-1] ** 0.5))
    return model


def small_swap(references: int = 1, size: int = SIZE) -> SwapModel:
    stream = replace(STREAM, memory=WindowConfig(sink=references, ring=3))
    cfg = replace(CFG, size=(size, size), patch=size // 2)
    return SwapModel(shaken(cfg), RegionCodec(PIXELS, size, references), stream)


def target(rows: int = 2, frames: int = 8, seed: int = 3) -> FaceControl:
    rng = torch.Generator().manual_seed(seed)
    crops = torch.rand(rows, frames, 3, SIZE, SIZE, generator=rng) * 2 - 1
    mask = torch.rand(rows, frames, 1, SIZE, SIZE, generator=rng)
    landmarks = torch.rand(rows, frames, 68, 2, generator=rng) * SIZE
    return FaceControl(crops, mask, landmarks, torch.ones(rows, frames, dtype=torch.bool))


def face(seed: int = 4, count: int = 1) -> Tensor:
    pictures = torch.rand(count, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(seed)) * 2 - 1
    return pictures[0] if count == 1 else pictures


def streamed(swap: SwapModel, control: FaceControl, state: Any) -> tuple[Tensor, Any]:
    made = []
    for first in range(0, control.length, swap.chunk):
        faces, state = swap.generate(control.frames(first, first + swap.chunk), state)
        made.append(faces)
    return torch.cat(made, 1), state


def small_clip(rows: int = 2, frames: int = 8, references: int = 1) -> Clip[SwapControl]:
    rng = torch.Generator().manual_seed(6)
    x = torch.rand(rows, frames, 3, SIZE, SIZE, generator=rng) * 2 - 1
    pictures = torch.rand(rows, references, 3, SIZE, SIZE, generator=rng) * 2 - 1
    seen, who = torch.ones(rows, frames, 1, SIZE, SIZE), torch.zeros(rows, 2, dtype=torch.int64)
    control = target(rows, frames)
    return Clip(x, SwapControl(control, pictures, seen, control.landmarks, who), torch.arange(rows))
