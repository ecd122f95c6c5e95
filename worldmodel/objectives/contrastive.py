"""Learn an embedding from pairs: two views of one thing are near, those of different things are far (SimCLR's
NT-Xent, 2002.05709, with a positive pair per row).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from worldmodel.chunk import Clip
from worldmodel.errors import UserError
from worldmodel.objectives.base import Objective, Update, check_number


@dataclass(frozen=True, kw_only=True)
class Contrastive:
    """temperature: of the softmax over the cosines. Negatives are the other rows of a micro-batch: what is learned
    depends on its size."""

    temperature: float = 0.1

    def __post_init__(self) -> None:
        check_number("contrastive: temperature", self.temperature, 1e-3, 10)

    def build(self, model: nn.Module) -> "ContrastiveObjective":
        """model: views [N, 3, S, S] -> unit vectors [N, D]."""
        return ContrastiveObjective(self, model)


class ContrastiveObjective(Objective):
    """One role, `model`, one update per step. Clips have x [B, 2, 3, S, S]: two views of each of B things."""

    def __init__(self, cfg: Contrastive, model: nn.Module) -> None:
        self.cfg, self.roles = cfg, {"model": model}

    def updates(self, clips: list[Clip]) -> Iterator[Update]:
        yield Update("model", (self.loss(clip) / len(clips) for clip in clips), len(clips))

    def loss(self, clip: Clip) -> Tensor:
        """[]: how surprising it is which of the other 2 B - 1 views shows the same thing."""
        views = self._embed(clip).transpose(0, 1).flatten(0, 1)  # [2 B, D]
        rows = len(views)
        logits = (views @ views.T / self.cfg.temperature).masked_fill(torch.eye(rows, device=views.device).bool(), -1e9)
        same = torch.arange(rows, device=views.device).roll(rows // 2)
        return F.cross_entropy(logits, same)

    def validate(self, clip: Clip) -> dict[str, Tensor]:
        """loss; accuracy: of telling equal from different pairs at the best threshold, both kinds counting alike;
        same, different: mean cosines."""
        with torch.no_grad():
            loss = self.loss(clip)
            first, second = self._embed(clip).unbind(1)
        cosines = first @ second.T
        same, different = split_pairs(cosines)
        return {
            "loss": loss,
            "accuracy": verification_accuracy(same, different),
            "same": same.mean(),
            "different": different.mean(),
        }

    def _embed(self, clip: Clip) -> Tensor:
        if clip.x.ndim != 5 or clip.x.shape[1] != 2:
            raise UserError(f"contrastive: clips are two pictures each, [B, 2, 3, S, S], not {list(clip.x.shape)}")
        return self.roles["model"](clip.x.flatten(0, 1)).unflatten(0, (-1, 2))

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state:
            raise UserError(f"contrastive has no state to resume, the checkpoint holds {sorted(state)}")


def split_pairs(cosines: Tensor) -> tuple[Tensor, Tensor]:
    """[B, B] -> its diagonal [B] and all else [B * (B - 1)]."""
    eye = torch.eye(len(cosines), dtype=torch.bool, device=cosines.device)
    return cosines[eye], cosines[~eye]


def verification_accuracy(same: Tensor, different: Tensor) -> Tensor:
    """The best mean of the shares of `same` [n] at or above a threshold and of `different` [m] below it."""
    thresholds = torch.cat((same, different)).sort().values
    above = 1 - torch.searchsorted(same.sort().values, thresholds) / len(same)
    below = torch.searchsorted(different.sort().values, thresholds) / len(different)
    return ((above + below) / 2).max()
