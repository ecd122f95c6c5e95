"""Who is seen in a region: recognisers that a swap is measured with, and that none of the swaps has learned from."""

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from worldmodel import checkpoint
from worldmodel.errors import UserError
from worldmodel.face.networks.embedder import FaceEmbedder
from worldmodel.face.region import to_crops
from worldmodel.face.swap_model import SwapModel
from worldmodel.fingerprint import fingerprint

Floats = NDArray[np.float32]


class Judge(Protocol):
    @property
    def name(self) -> str:
        """For the report."""
        ...

    def embed(self, regions: NDArray[np.uint8], landmarks: NDArray[np.float64] | None) -> Floats:
        """Aligned regions [N, S, S, 3], with their 68 landmarks in pixels [N, 68, 2] if they were read -> unit vectors
        [N, D]."""
        ...


@dataclass(frozen=True, slots=True)
class HeadsJudge:
    """A `FaceEmbedder` of rendered heads; it needs no landmarks."""

    folder: Path
    embedder: FaceEmbedder

    @classmethod
    def find(cls, folder: Path) -> "HeadsJudge":
        return cls(folder, FaceEmbedder.find(folder))

    @property
    def name(self) -> str:
        cfg = self.embedder.model.cfg
        accuracy = self.embedder.card.get("metrics", {}).get("validation/accuracy")
        known = "" if accuracy is None else f", validation accuracy {accuracy:.3f}"
        return f"{self.folder} ({cfg.kind}, width {cfg.width}{known})"

    def embed(self, regions: NDArray[np.uint8], landmarks: NDArray[np.float64] | None) -> Floats:
        return self.embedder.embed(to_crops(regions)).numpy()


class PublishedJudge:
    """The published recogniser of real faces. It is aligned by landmarks."""

    name = "the published recogniser (worldmodel face fetch --what recogniser)"

    def __init__(self) -> None:
        from worldmodel.face.networks.recogniser import Recogniser

        self.recogniser = Recogniser()

    def embed(self, regions: NDArray[np.uint8], landmarks: NDArray[np.float64] | None) -> Floats:
        if landmarks is None:
            raise ValueError("the published recogniser needs landmarks")
        found = [self.recogniser.embed(region, points) for region, points in zip(regions, landmarks, strict=True)]
        return np.stack(found)


def taught_by(folder: Path, swap: SwapModel) -> str | None:
    """The fingerprint of the recogniser that a swap's loss looked at; "" for none; None where nothing records it.

    The folder's card says it, else the newest checkpoint of the run in that folder.
    """
    if "recogniser" in swap.card:
        return str(swap.card["recogniser"])
    kept = checkpoint.steps(folder)
    if not kept:
        return None
    objective = checkpoint.read_state(kept[-1])["run"].get("objective", {})
    identity = objective.get("identity")
    return "" if identity is None else str(identity.get("embedder", "")) or None


def check_independent(judge: FaceEmbedder, where: Path, folder: Path, swap: SwapModel) -> bool:
    """Whether it is recorded that a swap learned from another recogniser, or from none. A UserError if it was this."""
    teacher = taught_by(folder, swap)
    if teacher is not None and teacher == fingerprint(judge.model):
        raise UserError(
            f"--judge {where}: {folder} was trained by the loss of this very recogniser; measure with another one "
            "(configs/heads_judge.py)"
        )
    return teacher is not None
