"""Flow matching on recorded clips: |v_theta(x_t, t) - (noise - x)|^2, with three ways to noise a clip's chunks.

`teacher`: every chunk is denoised given the clean chunks before it. `independent`: every chunk has its own level and
sees the noisy ones before it (Diffusion Forcing, 2407.01392). `monotone`: an anchor chunk's level is logit-normal and
levels do not fall going away from it (interpretation of CoPP in MiniWorld, 2608.01127).

Times, noise and dropped actions are keyed by the global index of each sample: a step is the same on one process and on
many, before and after a resume.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from worldmodel import flow, noise
from worldmodel.chunk import ActionControl, Clip
from worldmodel.errors import UserError
from worldmodel.frechet.population import FeatureQueue
from worldmodel.frechet.ranks import gather_features
from worldmodel.memory import MemoryConfig
from worldmodel.models.dit import DiTConfig

from .base import Objective, Update, check_number

NOISE, LEVEL, DROP, HISTORY_NOISE, HISTORY_LEVEL, ANCHOR, DRIFT, ERROR = range(8)  # draws of a sample's keyed generator
VALIDATION = 1 << 40  # validation samples are keyed beyond any training sample


@dataclass(frozen=True, kw_only=True)
class FlowMatching:
    """Configuration.

    chunk_noise: see the module. context_noise: with `teacher`, each history chunk is noised at its own level drawn from
    [0, context_noise] and the model is told. drift: with `teacher`, share of history chunks that get an error added, a
    random one of the last `errors` that this training made (its predictions of data less the data, one a chunk; error
    recycling for teachers of Context Forcing, 2602.06028, where they come from whole rollouts: ours are one-step
    predictions). shift: schedule shift of the training times; mean, std: of their
    logit-normal before the shift. drop: share of rows whose actions are dropped, for guidance. context: number of
    leading chunks that are only history and carry no loss, as a deployed stream always has some.
    """

    chunk_noise: Literal["teacher", "independent", "monotone"] = "teacher"
    context_noise: float = 0.0
    drift: float = 0.0
    errors: int = 512
    shift: float = 1.0
    mean: float = 0.0
    std: float = 1.0
    drop: float = 0.1
    context: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.context_noise < 1 or not 0 <= self.drop <= 1:
            raise UserError(f"flow matching: context_noise {self.context_noise} and drop {self.drop} must be in [0, 1)")
        check_number("flow matching: drift", self.drift, 0, 1)
        check_number("flow matching: errors", self.errors, 1, 1e6)
        if self.drift and self.chunk_noise != "teacher":
            raise UserError(f"flow matching: drift is of clean histories, chunk_noise {self.chunk_noise!r} has none")
        check_number("flow matching: shift", self.shift, 1e-3, 1e3)
        check_number("flow matching: mean", self.mean, -10, 10)
        check_number("flow matching: std", self.std, 0, 10)
        check_number("flow matching: context", self.context, 0, 1e6)

    def build(
        self, model: nn.Module, config: DiTConfig, seed: int, memory: MemoryConfig | None = None
    ) -> "FlowMatchingObjective":
        """model: the DiT of `config`, or a wrapper of it that forwards (mode, ...). seed: of the run.

        memory: of the stream; chunks see of a clip what it would hold. None: all that is before them.
        """
        size = config.chunk * config.channels * config.size[0] * config.size[1]
        bank = FeatureQueue(self.errors, size, next(model.parameters()).device) if self.drift else None
        return FlowMatchingObjective(self, model, config.chunk, seed, memory, bank)


class FlowMatchingObjective(Objective):
    """One role, `model`, one update per step."""

    def __init__(
        self,
        cfg: FlowMatching,
        model: nn.Module,
        chunk: int,
        seed: int,
        memory: MemoryConfig | None = None,
        bank: FeatureQueue | None = None,
    ) -> None:
        """bank: of errors [K * C * H * W], with drift."""
        self.cfg, self.chunk, self.seed, self.memory, self.bank = cfg, chunk, seed, memory, bank
        self.roles = {"model": model}

    def updates(self, clips: list[Clip[ActionControl]]) -> Iterator[Update]:
        errors = list[Tensor]()
        yield Update("model", (self.loss(clip, errors) / len(clips) for clip in clips), len(clips))
        if self.bank is not None:
            made = gather_features(torch.cat(errors))
            if torch.isfinite(made).all():
                self.bank.push(made)

    def validate(self, clip: Clip[ActionControl]) -> dict[str, Tensor]:
        """The teacher-forced loss at plain logit-normal times, whatever the training noise: comparable between runs."""
        cfg = FlowMatching(chunk_noise="teacher", drop=0.0, context=self.cfg.context)
        held_out = FlowMatchingObjective(cfg, self.roles["model"], self.chunk, self.seed + VALIDATION, self.memory)
        with torch.no_grad():
            return {"loss": held_out.loss(clip)}

    def loss(self, clip: Clip[ActionControl], errors: list[Tensor] | None = None) -> Tensor:
        """Mean squared velocity error [] over the chunks after the context; with a bank, errors [n, ...] are noted."""
        x, cfg = clip.x, self.cfg
        if x.shape[1] % self.chunk or x.shape[1] <= cfg.context * self.chunk:
            raise UserError(
                f"flow matching: clips of {x.shape[1]} frames must be chunks of {self.chunk}, more than the "
                f"{cfg.context} that are only context"
            )
        seed = noise.row_seed(self.seed, clip.index)
        frames = torch.arange(x.shape[1], device=x.device).expand(x.shape[:2])
        eps = noise.normal(seed, frames, NOISE, tuple(x.shape[2:]))
        t = self._levels(seed, x.shape[1] // self.chunk)
        x_t = flow.interpolate(x, eps, t)
        control = clip.control
        if cfg.drop:
            control = control.drop(noise.uniform(seed, frames[:, :1], DROP)[:, 0] < cfg.drop)
        first = cfg.context * self.chunk
        if cfg.chunk_noise == "teacher":  # no chunk sees the last one's history, and context chunks are not made
            history = self._history(x[:, : -self.chunk], seed, frames[:, : -self.chunk])
            v = self.roles["model"]("clip", x_t[:, first:], t[:, first:], control, history, self.memory)
        else:
            v = self.roles["model"]("clip", x_t, t, control, None, self.memory)[:, first:]
        wrong = v.float() - flow.velocity(x, eps)[:, first:]
        if self.bank is not None and errors is not None:  # the predicted data is x - t * wrong
            made = -t[:, first:, None, None, None] * wrong.detach()
            errors.append(made.unflatten(1, (-1, self.chunk)).flatten(0, 1).flatten(1))
        return wrong.square().mean()

    def _history(self, x: Tensor, seed: Tensor, frames: Tensor) -> tuple[Tensor, Tensor]:
        level = torch.zeros(x.shape[:2], device=x.device)
        chunks = torch.arange(x.shape[1] // self.chunk, device=x.device).expand(x.shape[0], -1)
        if self.bank is not None and self.bank.filled:
            pick = (noise.uniform(seed, chunks, ERROR) * self.bank.filled).long()
            hit = noise.uniform(seed, chunks, DRIFT) < self.cfg.drift
            added = torch.where(hit[..., None], self.bank.features[pick], 0)  # [B, chunks, K * C * H * W]
            x = x + added.to(x).reshape(x.shape)
        if not self.cfg.context_noise:
            return x, level
        level = self.cfg.context_noise * noise.uniform(seed, chunks, HISTORY_LEVEL).repeat_interleave(self.chunk, 1)
        return flow.interpolate(x, noise.normal(seed, frames, HISTORY_NOISE, tuple(x.shape[2:])), level), level

    def _levels(self, seed: Tensor, chunks: int) -> Tensor:
        """Flow times [B, T], equal within a chunk."""
        order = torch.arange(chunks, device=seed.device).expand(seed.shape[0], -1)
        level = torch.sigmoid(self.cfg.mean + self.cfg.std * noise.normal(seed, order, LEVEL, ()))
        if self.cfg.chunk_noise == "monotone":
            anchor = (noise.uniform(seed, order[:, :1], ANCHOR) * chunks).long()
            level = self._outward(level, (order - anchor).abs())
        return flow.shift(level, self.cfg.shift).repeat_interleave(self.chunk, 1)

    @staticmethod
    def _outward(level: Tensor, distance: Tensor) -> Tensor:
        """Levels [B, n] made non-decreasing in the distance [B, n] from the anchor: the largest met on the way out."""
        nearer = distance[:, None, :] <= distance[:, :, None]
        return torch.where(nearer, level[:, None, :], 0.0).amax(-1)

    def state_dict(self) -> dict[str, Any]:
        """The bank of errors, where there is one."""
        return {} if self.bank is None else {f"bank.{name}": t for name, t in self.bank.state_dict().items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if self.bank is not None and set(state) == set(self.state_dict()):
            self.bank.load_state_dict({name.removeprefix("bank."): tensor for name, tensor in state.items()})
        elif state or self.bank is not None:
            raise UserError(f"flow matching: the checkpoint holds {sorted(state)}, not {sorted(self.state_dict())}")
