"""The training of a swap's autoencoder, as one value that `worldmodel train` runs, on regions as its codec meets them.

Letters: B rows, T frames, S side of the aligned regions.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from worldmodel.chunk import Clip
from worldmodel.datasets.faces.clips import FaceClips
from worldmodel.datasets.heads.swaps import HeadSwaps
from worldmodel.errors import UserError
from worldmodel.face.swap_control import SwapControl
from worldmodel.models.autoencoder import Autoencoder, AutoencoderConfig
from worldmodel.objectives.base import Objective
from worldmodel.objectives.reconstruction import Reconstruction
from worldmodel.pixels import enlarge, to_uint8, write_video
from worldmodel.run import Recipe, Training
from worldmodel.weights import load_into

MEASURED = 8  # batches whose latents are brought to zero mean and unit variance


@dataclass(frozen=True, kw_only=True)
class RegionAutoencoderRun(Training, Recipe):
    """data: rendered swaps, or real faces. model: its factor must divide their size. For all else see `Training`."""

    data: HeadSwaps | FaceClips = field(default_factory=HeadSwaps)
    model: AutoencoderConfig = field(default_factory=AutoencoderConfig)
    objective: Reconstruction = field(default_factory=Reconstruction)

    @property
    def batches(self) -> "Regions":
        return Regions(self.data)

    def build(self) -> Autoencoder:
        factor = 2 ** len(self.model.widths)
        if self.data.size % factor:
            raise UserError(f"autoencoder: regions of {self.data.size} pixels do not cut into its cells of {factor}")
        return self.model.build()

    def build_objective(self, model: nn.Module, add: Callable[[str, nn.Module], nn.Module]) -> Objective:
        return self.objective.build(model, self.model, self.seed)

    def template(self) -> "RegionAutoencoderTemplate":
        return RegionAutoencoderTemplate(self, self.build())

    @property
    def next_command(self) -> str:
        return f"train CONFIG --tokenizer {self.out}, of a swap in its latents"

    def identity(self, frozen: str | None) -> dict[str, Any]:
        return {"model": self.model, "objective": self.objective, "data": self.data, "frozen": frozen}


@dataclass(frozen=True, slots=True)
class Regions:
    """Clips [B, 2 T, 3, S, S] of what a codec encodes: the true regions, then the targets without their faces."""

    data: HeadSwaps | FaceClips

    def batches(
        self, first_step: int = 0, rank: int = 0, world: int = 1, micro: int = 1
    ) -> Iterator[list[Clip[SwapControl]]]:
        """The training stream of `data` from a step on."""
        for step in self.data.batches(first_step, rank, world, micro):
            yield [_both(clip) for clip in step]

    def validation_batches(self, count: int) -> Iterator[Clip[SwapControl]]:
        """`count` fixed batches of people that nothing was trained on."""
        for clip in self.data.validation_batches(count):
            yield _both(clip)


def _both(clip: Clip[SwapControl]) -> Clip[SwapControl]:
    target = clip.control.target
    return Clip(torch.cat((clip.x, target.crops * (1 - target.mask)), 1), clip.control, clip.index)


@dataclass(frozen=True, slots=True)
class RegionAutoencoderTemplate:
    """The autoencoder of a run, filled with weights at every save."""

    run: RegionAutoencoderRun
    model: Autoencoder

    def fill(self, weights: dict[str, Tensor], card: dict[str, Any]) -> Autoencoder:
        load_into(self.model, {**self.model.state_dict(), **weights}, str(self.run.out))
        model = self.model.eval().requires_grad_(False)
        batches = self.run.data.batches(0, 0, 1, 1)  # of whole regions: their latents are what a swap makes
        model.measure_latents(next(batches)[0].x.flatten(0, 1) for _ in range(MEASURED))
        return model

    def look(self, made: Autoencoder, video: Path) -> None:
        """Held-out people (of the training side, where none is held out), real above reconstructed."""
        run = self.run
        clip = next(run.batches.validation_batches(1)) if run.validate else next(run.batches.batches())[0]
        frames = clip.x.flatten(0, 1)[:, None]
        pair = np.concatenate([to_uint8(frames), to_uint8(made.decode(made.encode(frames)))], 2)
        write_video(video, enlarge(pair[:, 0], 3), 4)
