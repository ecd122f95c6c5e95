"""Flow matching on demonstrated action chunks: |v_theta(x_t, t | observation) - (noise - x)|^2.

With `prefix`, chunks are also learned from actions that are fixed already (training-time real-time chunking,
2512.05964): the first d actions are clean at flow time 0, and the loss is that of the rest.

With `ending`, the eyes alone are also asked where the demonstration ends. Along one, proprioception soon gives that
away, and eyes that see a goal of a few pixels get hardly a gradient from the flow (docs/log.md).

Times, noise and dropped instructions are keyed by the global index of each sample: a step is the same on one process
and on many, before and after a resume.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from worldmodel import flow, noise
from worldmodel.chunk import Clip
from worldmodel.errors import UserError
from worldmodel.objectives.base import Objective, Update, check_number
from worldmodel.policies.demonstrations import Demonstrated
from worldmodel.policies.observation import Observation

NOISE, LEVEL, DROP, PREFIX = range(4)  # draws of a sample's keyed generator
VALIDATION = 1 << 40  # validation samples are keyed beyond any training sample


@dataclass(frozen=True, kw_only=True)
class BehaviourCloning:
    """Configuration. mean, std: of the training times' logit-normal; shift: of their schedule. drop: share of samples
    whose instruction is dropped, for guidance. prefix: the most actions that may be fixed already; d is uniform in
    [0, prefix]. ending: weight of the squared error, mean over the A numbers, of the normalised last action of the
    demonstration as the model's head tells it from the pictures (`PolicyConfig.ending`)."""

    mean: float = 0.0
    std: float = 1.0
    shift: float = 1.0
    drop: float = 0.0
    prefix: int = 0
    ending: float = 0.0

    def __post_init__(self) -> None:
        check_number("behaviour cloning: mean", self.mean, -10, 10)
        check_number("behaviour cloning: std", self.std, 0, 10)
        check_number("behaviour cloning: shift", self.shift, 1e-3, 1e3)
        check_number("behaviour cloning: drop", self.drop, 0, 1)
        check_number("behaviour cloning: prefix", self.prefix, 0, 1e4)
        check_number("behaviour cloning: ending", self.ending, 0, 1e4)

    def build(self, model: nn.Module, chunk: int, seed: int) -> "BehaviourCloningObjective":
        """model: a `FlowPolicy`, or a wrapper of it that forwards (mode, ...). chunk: K. seed: of the run."""
        if self.prefix >= chunk:
            raise UserError(f"behaviour cloning: prefix {self.prefix} leaves nothing of chunks of {chunk} to learn")
        return BehaviourCloningObjective(self, model, seed)


class BehaviourCloningObjective(Objective):
    """One role, `model`, one update per step. Clips hold normalised actions [B, K, A] under observations."""

    def __init__(self, cfg: BehaviourCloning, model: nn.Module, seed: int) -> None:
        self.cfg, self.seed = cfg, seed
        self.roles = {"model": model}

    def updates(self, clips: list[Clip[Observation]]) -> Iterator[Update]:
        yield Update("model", (self.loss(clip, self.seed) / len(clips) for clip in clips), len(clips))

    def validate(self, clip: Clip[Observation]) -> dict[str, Tensor]:
        """The loss on held-out chunks, nothing dropped and nothing fixed, at the same times in every run."""
        plain = BehaviourCloningObjective(BehaviourCloning(), self.roles["model"], self.seed)
        with torch.no_grad():
            return {"loss": plain.loss(clip, self.seed + VALIDATION)}

    def loss(self, clip: Clip[Observation], seed: int) -> Tensor:
        """Mean squared velocity error [] over the actions that are not fixed; with `ending`, that of the
        demonstration's last action is added."""
        x, cfg = clip.x, self.cfg
        rows = noise.row_seed(seed, clip.index)
        places = torch.arange(x.shape[1], device=x.device).expand(x.shape[:2])
        eps = noise.normal(rows, places, NOISE, tuple(x.shape[2:]))
        level = torch.sigmoid(cfg.mean + cfg.std * noise.normal(rows, places[:, :1], LEVEL, ()))
        t = flow.shift(level, cfg.shift).expand(x.shape[:2])
        fixed = places < (noise.uniform(rows, places[:, :1], PREFIX) * (cfg.prefix + 1)).long()
        t = t.masked_fill(fixed, 0)
        seen = clip.control
        if cfg.drop:
            seen = seen.drop(noise.uniform(rows, places[:, :1], DROP)[:, 0] < cfg.drop)
        x_t, told = flow.interpolate(x, eps, t), None
        if cfg.ending:
            v, told = self.roles["model"]("chunk and ending", x_t, t, seen)
        else:
            v = self.roles["model"]("chunk", x_t, t, seen)
        wrong = (v.float() - flow.velocity(x, eps)).square().mean(-1)
        loss = wrong.masked_fill(fixed, 0).sum() / (~fixed).sum()
        if told is None:
            return loss
        assert isinstance(clip, Demonstrated)
        return loss + cfg.ending * (told.float() - clip.ending).square().mean()

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state:
            raise UserError(f"behaviour cloning: the checkpoint holds {sorted(state)}, nothing was expected")
