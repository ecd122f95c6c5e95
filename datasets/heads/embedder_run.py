"""The training of a face embedder on rendered heads, as one value that `worldmodel train` runs."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor, nn

from worldmodel.datasets.heads.pairs import HeadPairs
from worldmodel.face.networks.embedder import Embedder, EmbedderConfig, FaceEmbedder
from worldmodel.objectives.base import Objective
from worldmodel.objectives.contrastive import Contrastive
from worldmodel.pixels import to_uint8, write_video
from worldmodel.run import Recipe, Training
from worldmodel.weights import load_into


@dataclass(frozen=True, kw_only=True)
class EmbedderRun(Training, Recipe):
    """data: pairs of pictures of one face. For all else see `Training`."""

    data: HeadPairs = field(default_factory=HeadPairs)
    model: EmbedderConfig = field(default_factory=EmbedderConfig)
    objective: Contrastive = field(default_factory=Contrastive)

    @property
    def batches(self) -> HeadPairs:
        return self.data

    def build(self) -> Embedder:
        return self.model.build()

    def build_objective(self, model: nn.Module, add: Callable[[str, nn.Module], nn.Module]) -> Objective:
        return self.objective.build(model)

    def template(self) -> "EmbedderTemplate":
        return EmbedderTemplate(self, self.build())

    @property
    def next_command(self) -> str:
        return "train CONFIG, of a swap that learns from it or is judged by it"

    def identity(self, frozen: str | None) -> dict[str, Any]:
        return {"model": self.model, "objective": self.objective, "data": self.data, "frozen": frozen}


@dataclass(frozen=True, slots=True)
class EmbedderTemplate:
    """The embedder of a run, filled with weights at every save."""

    run: EmbedderRun
    model: Embedder

    def fill(self, weights: dict[str, Tensor], card: dict[str, Any]) -> FaceEmbedder:
        load_into(self.model, weights, str(self.run.out))
        return FaceEmbedder(self.model.eval().requires_grad_(False), card)

    def look(self, made: FaceEmbedder, video: Path) -> None:
        """Held-out people, a second each: two pictures that must be told to be of one face."""
        clip = next(iter(self.run.data.validation_batches(1)))
        write_video(video, np.concatenate(to_uint8(clip.x.movedim(1, 0)), 2), 1)
