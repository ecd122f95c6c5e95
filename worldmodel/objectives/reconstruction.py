"""Train the small autoencoder on pixels: the objective around `reconstruction_loss`.

Its noise is keyed by the first sample of a micro-batch and its moments are those of a micro-batch: a resumed run is
exact, but other micro-batches or another number of processes are another run.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from worldmodel import noise
from worldmodel.chunk import Clip
from worldmodel.errors import UserError
from worldmodel.models.autoencoder import AutoencoderConfig
from worldmodel.objectives.autoencoder import ReconstructionWeights, psnr, reconstruction_loss
from worldmodel.objectives.base import Objective, Update


@dataclass(frozen=True, kw_only=True)
class Reconstruction:
    """Weights of the loss. The data are clips of pixels: latents of the `pixels` tokenizer."""

    weights: ReconstructionWeights = field(default_factory=ReconstructionWeights)

    def build(self, model: nn.Module, config: AutoencoderConfig, seed: int) -> "ReconstructionObjective":
        """model: the Autoencoder of `config`, or a wrapper of it."""
        return ReconstructionObjective(self, model, seed)


class ReconstructionObjective(Objective):
    """One role, `model`, one update per step."""

    def __init__(self, cfg: Reconstruction, model: nn.Module, seed: int) -> None:
        self.cfg, self.seed, self.roles = cfg, seed, {"model": model}

    def updates(self, clips: list[Clip]) -> Iterator[Update]:
        yield Update("model", (self._loss(clip) / len(clips) for clip in clips), len(clips))

    def validate(self, clip: Clip) -> dict[str, Tensor]:
        """Reconstruction error without latent noise: `loss` (L1) and `psnr` in dB."""
        model: Any = getattr(self.roles["model"], "module", self.roles["model"])
        frames = clip.x.flatten(0, 1)
        with torch.no_grad():
            made = model.decode_raw(model.encode_raw(frames))
        return {"loss": (made - frames).abs().mean(), "psnr": psnr(made, frames)}

    def _loss(self, clip: Clip) -> Tensor:
        seed = int(noise.row_seed(self.seed, clip.index[:1]))
        rng = torch.Generator(clip.x.device).manual_seed(seed)
        model: Any = self.roles["model"]
        return reconstruction_loss(model, clip.x, rng, self.cfg.weights)[0]

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state:
            raise UserError(f"reconstruction has no state to resume, the checkpoint holds {sorted(state)}")
