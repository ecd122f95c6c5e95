"""HERO, history-enriched rollout training, for any autoregressive predictor. **Our reading of an abstract**: only that
was published when this was written; formulas, choices and constants below are ours.

Besides the absolute rollout error E(theta) of a sample, the model is asked to do no worse than a reference: the
strongest of a few trajectories that carry no gradient. They come from lagged weights (a copy that is refreshed now and
then), from the current weights, and from the current weights with a perturbed first input. Per sample

    L = E + weight * tau * softplus((E - sg(E_ref) + margin) / tau)

whose gradient is (1 + weight * sigmoid((E - E_ref + margin) / tau)) dE/dtheta: the ground truth's gradient, reweighted
per sample by a factor between 1 and 1 + weight. Samples that the history of the training could do better count more.

The error is that of the frames which the model makes, so the loss is for models whose next chunk is determined by what
they see: operators for equations, world models of nearly deterministic worlds, on pixels or on latents. A generator
that samples among several futures is pulled towards their mean, as by any mean squared error of samples; for those
there is Frechet forcing. The graph of the whole rollout is kept: short clips, samplers of few calls.

Letters: B samples, R references, F frames made, C H W.
"""

import copy
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule

from worldmodel import noise
from worldmodel.chunk import Clip
from worldmodel.errors import UserError
from worldmodel.models.world import StreamConfig
from worldmodel.weights import load_into

from .base import Objective, Update
from .unrolled import Deployment, Unroll, check_prefix, frame_errors, runnable

PERTURBATION = 7  # draw of a sample's keyed generator
REFERENCES = ("lagged", "current", "perturbed")
TINY = 1e-30
LAGGED = "lagged."


def relative_loss(
    error: Tensor, reference: Tensor, weight: float, margin: float | Tensor, tau: float | Tensor
) -> Tensor:
    """The loss of every sample, [B], from its rollout error [B] and its reference's error [B] (detached here).

    margin, tau: in units of the error; numbers, or one per sample [B], detached too. tau must be above 0.
    """
    margin, tau = (torch.as_tensor(value, dtype=error.dtype, device=error.device).detach() for value in (margin, tau))
    return error + weight * tau * F.softplus((error - reference.detach() + margin) / tau, threshold=60)


def reweighting(error: Tensor, reference: Tensor, weight: float, margin: float | Tensor, tau: float | Tensor) -> Tensor:
    """The factor [B] by which `relative_loss` multiplies each sample's gradient, in [1, 1 + weight]."""
    return 1 + weight * torch.sigmoid((error.detach() - reference.detach() + margin) / tau)


def spectral_discrepancy(made: Tensor, true: Tensor) -> Tensor:
    """Difference of the spatial power spectra over the true power, mean over frames: [B] from [B, F, C, H, W]."""
    found, wanted = (torch.fft.rfftn(x, dim=(-2, -1)).abs().square().flatten(2) for x in (made, true))
    return ((found - wanted).abs().sum(-1) / wanted.sum(-1).clamp_min(TINY)).mean(1)


def energy_drift(made: Tensor, true: Tensor) -> Tensor:
    """Difference of the mean squares relative to the true one, mean over frames: [B] from [B, F, C, H, W]."""
    found, wanted = (x.square().flatten(2).mean(-1) for x in (made, true))
    return ((found - wanted).abs() / wanted.clamp_min(TINY)).mean(1)


def error_growth(made: Tensor, true: Tensor) -> Tensor:
    """Error of the last frame over that of the first: [B] from [B, F, C, H, W]."""
    errors = frame_errors(made, true)
    return errors[:, -1] / errors[:, 0].clamp_min(TINY)


def strongest(errors: Tensor, tie_breakers: Tensor, tie: float) -> Tensor:
    """Which reference is the strongest for every sample, [B] int64.

    The one of lowest error; errors within a factor of 1 + tie of the lowest count as equal, and among those the lowest
    mean rank over the tie breakers wins, then the first. A reference that is not finite never wins against one that is.

    errors: [R, B]. tie_breakers: [D, R, B], lower is better.
    """
    errors = torch.nan_to_num(errors, nan=torch.inf)
    tied = errors <= errors.amin(0) * (1 + tie)
    values = torch.nan_to_num(tie_breakers, nan=torch.inf)
    rank = (values[:, :, None] > values[:, None]).sum(2).to(errors.dtype).mean(0)  # how many are better, [R, B]
    return torch.where(tied, rank, torch.inf).argmin(0)


@dataclass(frozen=True, kw_only=True)
class Hero:
    """Configuration.

    prefix: real chunks that a rollout starts from; it goes on to the end of the clip. weight: lambda. margin, tau: in
    units of each sample's reference error, so that they keep their meaning while errors fall by orders of magnitude.
    refresh: updates between two refreshes of the lagged weights. perturbation: standard deviation of the noise on the
    prefix of the third reference, in the frames' units. tie: see `strongest`.
    """

    prefix: int = 1
    weight: float = 1.0
    margin: float = 0.0
    tau: float = 0.1
    refresh: int = 100
    perturbation: float = 0.01
    tie: float = 0.01

    def __post_init__(self) -> None:
        check_prefix("HERO", self.prefix)
        for name in ("weight", "margin", "perturbation", "tie"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise UserError(f"HERO: {name} must be a finite number of at least 0, not {getattr(self, name)}")
        if not 0 < self.tau < float("inf") or self.refresh < 1:
            raise UserError(f"HERO: tau {self.tau} must be above 0 and refresh {self.refresh} at least 1")

    def frames(self, chunk: int, step: int) -> int:
        """The latent frames that a clip must have at a training step."""
        return (self.prefix + 1) * chunk

    def build(self, model: nn.Module, stream: StreamConfig | Deployment, seed: int) -> "HeroObjective":
        """model: anything that the rollout engine runs, or a wrapped DiT. stream: how. seed: of the run."""
        return HeroObjective(self, Unroll(stream=stream, prefix=self.prefix), model, seed)


class HeroObjective(Objective):
    """One role, `model`, one update per step. Its history is a second copy of the weights."""

    def __init__(self, cfg: Hero, unroll: Unroll, model: nn.Module, seed: int) -> None:
        if isinstance(model, FSDPModule):
            raise UserError(
                "HERO keeps a second copy of all weights on every process: train it without sharding (FSDP)"
            )
        self.cfg, self.unroll, self.seed, self.count = cfg, unroll, seed, 0
        self.roles, self.model = {"model": model}, runnable(model)
        self.lagged = copy.deepcopy(_inner(model)).requires_grad_(False)

    def updates(self, clips: list[Clip]) -> Iterator[Update]:
        if self.count % self.cfg.refresh == 0:
            self.lagged.load_state_dict(_inner(self.roles["model"]).state_dict())
        self.count += 1
        metrics: dict[str, Tensor] = {}
        yield Update("model", self._losses(clips, metrics), len(clips), metrics)

    def _losses(self, clips: list[Clip], metrics: dict[str, Tensor]) -> Iterator[Tensor]:
        for clip in clips:
            made = self.unroll(self.model, clip, self.seed)
            error = frame_errors(made, self.unroll.target(self.model, clip)).mean(1)
            chosen, reference = self.reference(made.detach(), clip)
            found = {f"reference_{name}": (chosen == r).float().mean() for r, name in enumerate(REFERENCES)}
            found["error"] = error.detach().mean()
            found["reweighting"] = reweighting(error, reference, *self._scales(reference)).mean()
            for name, value in found.items():
                metrics[name] = metrics.get(name, torch.zeros_like(value)) + value / len(clips)
            yield relative_loss(error, reference, *self._scales(reference)).mean() / len(clips)

    def _scales(self, reference: Tensor) -> tuple[float, Tensor, Tensor]:
        """weight, margin and tau of every sample."""
        unit = reference.clamp_min(TINY)
        return self.cfg.weight, self.cfg.margin * unit, self.cfg.tau * unit

    @torch.no_grad()
    def reference(self, current: Tensor, clip: Clip) -> tuple[Tensor, Tensor]:
        """Index into REFERENCES and rollout error of every sample's strongest reference, [B] each.

        current: the trajectory [B, F, C, H, W] of the present weights, which need not be made twice.
        """
        true = self.unroll.target(self.model, clip)
        made = [
            self.unroll(runnable(self.lagged), clip, self.seed),
            current,
            self.unroll(self.model, self.perturbed(clip), self.seed),
        ]
        errors = torch.stack([frame_errors(m, true).mean(1) for m in made])
        breakers = [spectral_discrepancy, energy_drift, error_growth]
        chosen = strongest(
            errors, torch.stack([torch.stack([f(m, true) for m in made]) for f in breakers]), self.cfg.tie
        )
        return chosen, errors.gather(0, chosen[None])[0]

    def perturbed(self, clip: Clip) -> Clip:
        """The clip with noise on the frames of its prefix, keyed by (seed of the run, sample, frame)."""
        context = self.cfg.prefix * self.model.chunk
        frames = torch.arange(context, device=clip.x.device).expand(clip.batch, -1)
        seed = noise.row_seed(self.seed, clip.index)
        eps = noise.normal(seed, frames, PERTURBATION, tuple(clip.x.shape[2:])).to(clip.x.dtype)
        given = clip.x[:, :context] + self.cfg.perturbation * eps
        return replace(clip, x=torch.cat((given, clip.x[:, context:]), 1))

    def validate(self, clip: Clip) -> dict[str, Tensor]:
        """`loss`: mean squared error of the whole rollout, comparable with the other rollout objectives."""
        with torch.no_grad():
            made = self.unroll(self.model, clip, self.seed)
            return {"loss": frame_errors(made, self.unroll.target(self.model, clip)).mean()}

    def state_dict(self) -> dict[str, Any]:
        """The number of updates, and the lagged weights as `lagged.NAME`."""
        lagged = {f"{LAGGED}{name}": value.clone() for name, value in self.lagged.state_dict().items()}
        return {"count": self.count, **lagged}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        lagged = {name.removeprefix(LAGGED): value for name, value in state.items() if name.startswith(LAGGED)}
        load_into(self.lagged, lagged, "the lagged weights of the checkpoint")
        self.count = int(state["count"])


def _inner(model: nn.Module) -> nn.Module:
    """The model behind its wrapper (DDP)."""
    return getattr(model, "module", model)
