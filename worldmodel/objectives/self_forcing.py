"""Distribution matching on own rollouts, with a teacher and a critic: Self Forcing and Context Forcing.

The student rolls out by its own sampler; a frozen teacher and a critic, which learns to denoise the student's chunks,
tell the difference of their scores there. With x the student's chunks, noised to x_t, and x0 the predictions of both:

    g = (x0_critic - x0_teacher) / mean |x - x0_teacher|        (the mean of each row over everything else)

is the gradient that the student's chunks receive. Teacher and critic are chunk-causal models; both see the student's
own chunks as history, as far as the teacher's own memory holds them. The critic makes a step on every training step,
the student on every `ratio`-th.

A teacher of short memory gives Self Forcing (2506.08009, 2405.14867). A teacher whose memory reaches far, trained on
drifted histories (`FlowMatching.drift`), gives Context Forcing (2602.06028), whatever the student's memory: both scores
are conditioned on the same context that the student made. Its first stage is short rollouts, its second
`OwnRollouts.lead` chunks of fully denoised context before those that are matched, more of them as training goes on
(`OwnRollouts.ramp`).
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from worldmodel import flow, noise
from worldmodel.chunk import ActionControl, Clip
from worldmodel.errors import UserError
from worldmodel.memory import MemoryConfig
from worldmodel.models.dit import DiT, DiTConfig
from worldmodel.models.tokenizer_folder import load_tokenizer
from worldmodel.models.world import StreamConfig, WorldModel
from worldmodel.objectives.base import Objective, Update, check_number
from worldmodel.objectives.own_rollouts import Made, OwnRollouts, Rollouts
from worldmodel.sampler import guide

LEVEL, NOISE, CRITIC_LEVEL, CRITIC_NOISE = range(1 << 20, (1 << 20) + 4)  # draws beyond any sampler's


@dataclass(frozen=True, kw_only=True)
class SelfForcing:
    """Configuration.

    teacher: folder of a world model, or of a run that has made one, with this run's latents, chunk and actions; it is
    the frozen teacher, and the critic starts from it. ratio: critic steps per student step. guidance: of the teacher.
    levels: range of the flow times at which scores are compared. Start the student from a trained model (`init`).
    """

    teacher: str
    rollouts: OwnRollouts = field(default_factory=OwnRollouts)
    ratio: int = 5
    guidance: float = 1.0
    levels: tuple[float, float] = (0.02, 0.98)

    def __post_init__(self) -> None:
        check_number("self forcing: guidance", self.guidance, 0, 1e3)
        low, high = self.levels
        if self.ratio < 1 or not 0 < low < high < 1:
            raise UserError(
                f"self forcing: ratio {self.ratio} must be at least 1 and levels {self.levels} rise in (0, 1)"
            )

    def frames(self, chunk: int, step: int) -> int:
        """The latent frames that a clip must have at a training step."""
        return self.rollouts.frames(chunk, step)

    def frozen(self, config: DiTConfig, tokenizer: Path) -> "Teacher":
        """The teacher, without gradients. UserError if it does not make chunks like those of the run's `config`, or
        latents of another tokenizer than the one in the folder `tokenizer`."""
        if not self.teacher:
            raise UserError("self forcing: no teacher is named; give the folder of a world model or of a run")
        world = WorldModel.find(Path(self.teacher))
        for name in ("channels", "size", "chunk", "actions", "text"):
            found, wanted = getattr(world.dit.cfg, name), getattr(config, name)
            if found != wanted:
                raise UserError(f"{self.teacher}: the teacher's {name} is {found}, the run's model.{name} is {wanted}")
        ours: Any = load_tokenizer(tokenizer)
        if not _alike(ours, world.tokenizer):
            raise UserError(f"{self.teacher}: the teacher's tokenizer is not {tokenizer}, which made the run's latents")
        return Teacher(world.dit, world.stream.memory)

    def build(
        self, model: nn.Module, critic: nn.Module, teacher: "Teacher", seed: int, stream: StreamConfig
    ) -> "SelfForcingObjective":
        """model and critic: two transformers in training, or their wrappers. stream: of the model."""
        return SelfForcingObjective(self, model, critic, teacher, self.rollouts.build(model, stream, seed), seed)


@dataclass(frozen=True, slots=True)
class Teacher:
    """A frozen model, and the memory through which it and the critic see the student's chunks."""

    model: DiT
    memory: MemoryConfig


class SelfForcingObjective(Objective):
    """Roles `critic` and `model`."""

    def __init__(
        self, cfg: SelfForcing, model: nn.Module, critic: nn.Module, teacher: Teacher, rollouts: Rollouts, seed: int
    ) -> None:
        self.cfg, self.teacher, self.rollouts, self.seed = cfg, teacher, rollouts, seed
        self.roles, self.step = {"model": model, "critic": critic}, 0

    def updates(self, clips: list[Clip[ActionControl]]) -> Iterator[Update]:
        chunks = self.rollouts.cfg.chunks(self.step)
        made = [self.rollouts.first(clip, self.step, chunks) for clip in clips]
        yield Update("critic", (self.critic_loss(m) / len(made) for m in made), len(made))
        if self.step % self.cfg.ratio == self.cfg.ratio - 1:
            losses = (loss for m in made for loss in self.rollouts.again(m, self._pulls(m, len(made))))
            yield Update("model", losses, sum(self.rollouts.losses(m) for m in made))
        self.step += 1

    def critic_loss(self, made: Made) -> Tensor:
        """Flow matching on the student's chunks, given those before them."""
        x = made.x.detach()
        t, eps = self._noised(made, CRITIC_LEVEL, CRITIC_NOISE)
        v = self._velocity(self.roles["critic"], made, flow.interpolate(x, eps, t), t)
        return (v - flow.velocity(x, eps)).square().mean()

    @torch.no_grad()
    def difference(self, made: Made) -> Tensor:
        """The normalised difference g of the scores [B, T, C, H, W]."""
        seen = torch.cat([take.seen for take in made.takes], 1)
        t, eps = self._noised(made, LEVEL, NOISE)
        x_t = flow.interpolate(seen, eps, t)
        false = flow.clean(x_t, self._velocity(self.roles["critic"], made, x_t, t), t)
        v = self._velocity(self.teacher.model, made, x_t, t)
        if self.cfg.guidance != 1.0:
            without = self._velocity(self.teacher.model, made, x_t, t, drop=True)
            v = guide(v, without, self.cfg.guidance)
        true = flow.clean(x_t, v, t)
        scale = (seen - true).abs().mean(dim=tuple(range(1, seen.ndim)), keepdim=True)
        return (false - true) / scale.clamp_min(1e-6)

    def _pulls(self, made: Made, parts: int) -> list[Tensor]:
        difference = self.difference(made) / (made.x.numel() * parts)
        return list(difference.split([take.x.shape[1] for take in made.takes], 1))

    def _noised(self, made: Made, level: int, draw: int) -> tuple[Tensor, Tensor]:
        """Flow times [B, T], one for each row, and noise [B, T, C, H, W]."""
        low, high = self.cfg.levels
        frames = torch.arange(made.x.shape[1], device=made.x.device).expand(made.x.shape[:2])
        t = low + (high - low) * noise.uniform(made.seed, frames[:, :1], level)
        return t.expand(made.x.shape[:2]), noise.normal(made.seed, frames, draw, tuple(made.x.shape[2:]))

    def _velocity(self, model: nn.Module, made: Made, x_t: Tensor, t: Tensor, drop: bool = False) -> Tensor:
        """Of all chunks, each with the clean ones before it as history, as far as the teacher's memory holds them."""
        x = torch.cat((made.context.x, made.x.detach()), 1)[:, : -made.takes[-1].x.shape[1]]
        whole = made.context.control.join(made.control)
        rows = torch.full((x.shape[0],), drop, device=x.device)
        history = (x, torch.zeros(x.shape[:2], device=x.device))
        return model("clip", x_t, t, whole, history, self.teacher.memory, rows)

    def validate(self, clip: Clip[ActionControl]) -> dict[str, Tensor]:
        """Mean absolute difference of the scores on rollouts of held-out clips: 0 where critic and teacher agree."""
        with torch.no_grad():
            made = self.rollouts.first(clip, self.step, self.rollouts.cfg.chunks(self.step))
            return {"loss": self.difference(made).abs().mean()}

    def state_dict(self) -> dict[str, Any]:
        return {"step": self.step}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.step = int(state["step"])


def _alike(a: Any, b: Any) -> bool:
    """Whether two tokenizers are one, up to the rounding of what is stored with fewer bits."""
    x, y = a.state_dict(), b.state_dict()
    return (
        type(a) is type(b)
        and {k: v.shape for k, v in x.items()} == {k: v.shape for k, v in y.items()}
        and all(torch.allclose(x[k].cpu().float(), y[k].cpu().float(), rtol=0.01, atol=1e-3) for k in x)
    )
