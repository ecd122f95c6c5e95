"""Frechet Forcing: train a model together with its deployed sampler, on its own rollouts, from short real clips.

Three terms (formulas are our reading of an abstract, 2607.07675), each of which a weight of 0 removes:

    anchor    flow matching on the real chunk that follows [real prefix | generated chunks | last real chunk]
    context   Frechet distance of latent statistics, centred on each clip's own, between rollouts and real clips
    reality   Frechet distances between generated and real frames in frozen encoders, summed

There is no teacher, no critic and no frame-by-frame comparison, so a rollout may be of any length for which a clip has
actions. Distances are normalised (worldmodel/frechet/loss.py); their gradient reaches the model chunk by chunk
(worldmodel/differentiable.py).
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from worldmodel import flow, noise
from worldmodel.chunk import ActionControl, Chunk, Clip
from worldmodel.differentiable import pull
from worldmodel.encoders.frames import check_encoders, encoder_name, open_encoder
from worldmodel.errors import Diverged, UserError
from worldmodel.frechet.distance import Frechet
from worldmodel.frechet.features import DecodedFeatures, FeatureMap, LatentStatistics
from worldmodel.frechet.loss import FrechetLoss, Scored, Term, centred
from worldmodel.frechet.mark import mark_of
from worldmodel.frechet.moments import Moments
from worldmodel.frechet.population import Average, Queue
from worldmodel.frechet.ranks import merge_moments, num_ranks, on_all_ranks
from worldmodel.frechet.reference import read_reference, reference_state
from worldmodel.models.dit import DiTConfig
from worldmodel.models.tokenizer_folder import load_tokenizer
from worldmodel.models.world import StreamConfig
from worldmodel.objectives.base import Objective, Update, check_number
from worldmodel.objectives.own_rollouts import Made, OwnRollouts
from worldmodel.rollout import advance

CONTEXT = "context"  # name of the term of latent statistics; reality's terms have their encoders' names
LEVEL, NOISE, DROP = range(1 << 21, (1 << 21) + 3)  # draws beyond any sampler's


@dataclass(frozen=True, kw_only=True)
class FrechetForcing:
    """Configuration.

    rollouts: how the model is rolled out. anchor, context, reality: weights of the terms. last: real chunks between the
    rollout and the anchored chunk. mean, std: of the logit-normal flow times of the anchor; drop: share of its rows
    whose actions are dropped. encoders: of reality, as `evaluate drift` names them (judge in another one); they look at
    one of `stride` frames. patches: of the latent statistics. frechet, population: which distance, of what. reference:
    real clips whose frames are the reference. patience: steps in a row that may be skipped because something was not
    finite.
    """

    rollouts: OwnRollouts = field(default_factory=OwnRollouts)
    anchor: float = 1.0
    context: float = 0.3
    reality: float = 0.3
    last: int = 1
    mean: float = 0.0
    std: float = 1.0
    drop: float = 0.1
    encoders: tuple[str, ...] = ("lite0",)
    stride: int = 1
    patches: int = 2
    frechet: Frechet = field(default_factory=Frechet)
    population: Queue | Average = field(default_factory=Queue)
    reference: int = 256
    patience: int = 20

    def __post_init__(self) -> None:
        ranges = {
            "anchor": (0, 1e6), "context": (0, 1e6), "reality": (0, 1e6), "mean": (-10, 10), "std": (0, 10),
            "drop": (0, 1), "last": (1, 1e6), "stride": (1, 1e6), "reference": (1, 1e9), "patience": (1, 1e9),
        }  # fmt: skip
        for name, (least, most) in ranges.items():
            check_number(f"Frechet forcing: {name}", getattr(self, name), least, most)
        if not (self.anchor or self.context or self.reality):
            raise UserError("Frechet forcing: anchor, context and reality are all 0, there is nothing to train")
        if self.reality and not self.encoders:
            raise UserError("Frechet forcing: reality needs an encoder; weight 0 turns it off")
        check_encoders("Frechet forcing", self.encoders)
        if CONTEXT in map(encoder_name, self.encoders):
            raise UserError(
                f"Frechet forcing: no encoder can be called '{CONTEXT}', as the term of latent statistics is"
            )

    def frames(self, chunk: int, step: int) -> int:
        """The latent frames that a clip must have at a training step."""
        return self.rollouts.frames(chunk, step) + ((self.last + 1) * chunk if self.anchor else 0)

    def build(
        self, model: nn.Module, config: DiTConfig, seed: int, stream: StreamConfig, tokenizer: Path
    ) -> "FrechetForcingObjective":
        """model: the DiT of `config` or its wrapper. tokenizer: folder of the one that made the latents."""
        maps: dict[str, FeatureMap] = {}
        if self.context:
            maps[CONTEXT] = LatentStatistics(
                channels=config.channels, height=config.size[0], width=config.size[1], patches=self.patches
            )
        for choice in self.encoders if self.reality else ():
            device = next(model.parameters()).device
            decoder: Any = load_tokenizer(tokenizer)
            decoder = decoder.to(device)
            maps[choice] = DecodedFeatures(open_encoder(choice, decoder, device), decoder, *config.size, self.stride)
        return FrechetForcingObjective(self, model, maps, stream, seed)


@dataclass(frozen=True, slots=True)
class _Plan:
    """A micro-batch after the first pass."""

    clip: Clip[ActionControl]
    made: Made
    pulls: list[Tensor]
    scored: Scored | None


class FrechetForcingObjective(Objective):
    """One role, `model`."""

    def __init__(
        self, cfg: FrechetForcing, model: nn.Module, maps: dict[str, FeatureMap], stream: StreamConfig, seed: int
    ) -> None:
        self.cfg, self.maps, self.seed = cfg, maps, seed
        self.roles, self.rollouts = {"model": model}, cfg.rollouts.build(model, stream, seed)
        self.context_time = stream.context_time
        self.loss: FrechetLoss | None = None  # once there is a reference
        self.marks: dict[str, Tensor] = {}
        self.step = self.skipped = self.in_a_row = 0

    # -- before the first step -----------------------------------------------------------------------------------------

    @torch.no_grad()
    def begin(self, batches: Iterator[list[Clip[ActionControl]]]) -> None:
        """Take the reference from real clips, and fill the populations with rollouts of the model as it is."""
        if not self.maps:
            return
        real: dict[str, Moments] = {}
        seen, clips = 0, next(batches)
        self._check_room(clips[0])
        while seen < self.cfg.reference:
            for clip in clips:
                for name, features in self.features(clip.x, clip.x).items():
                    try:
                        new = Moments.of(features.cpu())
                    except Diverged as error:
                        raise Diverged(f"Frechet forcing: {name} of real clips: {error}") from error
                    real[name] = real[name].merge(new) if name in real else new
            seen += num_ranks() * sum(clip.batch for clip in clips)  # every rank takes its share of a step's clips
            clips = next(batches)
        self.loss = self._loss({name: merge_moments(moments) for name, moments in real.items()})
        before = 0  # steps before the first: a lead of their own each
        while not self.loss.ready:
            before -= 1
            for clip in clips:
                made = self.rollouts.first(clip, before, self.rollouts.cfg.chunks(0))
                self.loss.fill(self.features(made.x, clip.x))
            clips = next(batches)

    def _check_room(self, clip: Clip[ActionControl]) -> None:
        """A UserError, before anything takes long, if rollouts will grow beyond what a population holds."""
        for since, chunks in self.cfg.rollouts.lengths:
            one = clip.x.new_zeros(1, chunks * self.rollouts.model.chunk, *clip.x.shape[2:])
            for name, phi in self.maps.items():
                features = phi(one)
                count = features.shape[1] * clip.batch * num_ranks()
                try:
                    self.cfg.population.build(features.shape[-1]).check_room(count)
                except UserError as error:
                    raise UserError(
                        f"Frechet forcing: rollouts of {chunks} chunks, from step {since} on: {name}: {error}"
                    ) from error

    def features(self, x: Tensor, truth: Tensor) -> dict[str, Tensor]:
        """Features [N, D] of latents x [B, T, C, H, W] by term; truth: the real clip that belongs to them."""
        found = {}
        for name, phi in self.maps.items():
            features = phi(x)
            found[name] = (centred(features, phi(truth)) if name == CONTEXT else features).flatten(0, 1)
        return found

    def _loss(self, real: dict[str, Moments]) -> FrechetLoss:
        """c of each term: a hundredth of the spread of the real features."""
        weights = {name: self.cfg.context if name == CONTEXT else self.cfg.reality for name in real}
        return FrechetLoss(
            [
                Term(
                    name,
                    self.cfg.frechet.to(moments),
                    self.cfg.population.build(moments.dimension),
                    weights[name],
                    max(float(moments.covariance.trace()) / 100, 1e-12),
                )
                for name, moments in real.items()
            ]
        )

    # -- a step --------------------------------------------------------------------------------------------------------

    def updates(self, clips: list[Clip[ActionControl]]) -> Iterator[Update]:
        """One update; an empty one where something was not finite: the step is skipped, counted and reported."""
        if self.maps and self.loss is None:
            raise RuntimeError("begin was not called: there is no reference yet")
        step, self.step = self.step, self.step + 1
        try:
            plans = [self._plan(clip, step, len(clips)) for clip in clips]
        except Diverged as error:
            self.skipped, self.in_a_row = self.skipped + 1, self.in_a_row + 1
            if self.in_a_row >= self.cfg.patience:
                raise Diverged(
                    f"Frechet forcing: {self.in_a_row} steps in a row were skipped, the last because {error}; lower "
                    f"the learning rate or the weights, or start from a better model"
                ) from error
            yield Update("model", (), 0, {"skipped": torch.tensor(float(self.skipped), device=clips[0].x.device)})
            return
        self.in_a_row = 0
        count = sum((self.rollouts.losses(p.made) if p.pulls else 0) + (self.cfg.anchor > 0) for p in plans)
        losses = (loss for plan in plans for loss in self._losses(plan, len(plans)))
        yield Update("model", losses, count, self._metrics(plans))
        for plan in plans:
            if plan.scored is not None and self.loss is not None:
                self.loss.push(plan.scored.seen)

    def _plan(self, clip: Clip[ActionControl], step: int, parts: int) -> _Plan:
        made = self.rollouts.first(clip, step, self.rollouts.cfg.chunks(step))
        if self.cfg.anchor:
            self._check_length(clip, made)
        if self.loss is None:
            return _Plan(clip, made, [], None)
        loss, scored = self.loss, list[Scored]()

        def distance(x: Tensor) -> Tensor:
            scored.append(loss(self.features(x, clip.x)))
            return scored[0].loss.float() / parts

        _, pulls = pull(distance, made.takes)
        if not on_all_ranks(all(bool(torch.isfinite(p).all()) for p in pulls), clip.x.device):
            raise Diverged("the gradient of a Frechet distance is not finite")
        return _Plan(clip, made, pulls, scored[0])

    def _losses(self, plan: _Plan, parts: int) -> Iterator[Tensor]:
        if plan.pulls:
            yield from self.rollouts.again(plan.made, plan.pulls)
        if self.cfg.anchor:
            yield self.cfg.anchor * self.anchored(plan.clip, plan.made) / parts

    def anchored(self, clip: Clip[ActionControl], made: Made) -> Tensor:
        """Flow matching [] on the real chunk after [prefix | rollout | last real chunks], given that history."""
        model, size = self.rollouts.model, self.rollouts.model.chunk
        begin = made.context.x.shape[1] + made.control.length
        state = made.after
        with torch.no_grad():
            for i in range(self.cfg.last):
                part = clip.frames(begin + i * size, begin + (i + 1) * size)
                state = advance(model, Chunk.whole(part.x, part.control, state.frame), state, self.context_time)
        begin += self.cfg.last * size
        target = clip.frames(begin, begin + size)
        frames = torch.arange(begin, begin + size, device=clip.x.device).expand(clip.batch, -1)
        t = torch.sigmoid(self.cfg.mean + self.cfg.std * noise.normal(made.seed, frames[:, :1], LEVEL, ()))
        t = t.expand(-1, size)
        eps = noise.normal(made.seed, frames, NOISE, tuple(clip.x.shape[2:]))
        control = target.control.drop(noise.uniform(made.seed, frames[:, :1], DROP)[:, 0] < self.cfg.drop)
        v = model.velocity(flow.interpolate(target.x, eps, t), t, model.prepare(control, state))
        return (v.float() - flow.velocity(target.x, eps)).square().mean()

    def _check_length(self, clip: Clip[ActionControl], made: Made) -> None:
        size, have = self.rollouts.model.chunk, clip.x.shape[1]
        need = made.context.x.shape[1] + made.control.length + (self.cfg.last + 1) * size
        if have < need:
            raise UserError(
                f"Frechet forcing: {len(made.takes)} chunks of rollout, {self.cfg.last} last ones and the anchored "
                f"one need clips of {need} frames, these have {have}"
            )

    def _metrics(self, plans: list[_Plan]) -> dict[str, Tensor]:
        device = plans[0].clip.x.device
        found = {"skipped": torch.tensor(float(self.skipped), device=device)}
        scored = [plan.scored for plan in plans if plan.scored is not None]
        for name in scored[0].distances if scored else ():
            values = [s.distances[name].float().to(device) for s in scored]
            found[f"frechet/{Path(name).stem}"] = torch.stack(values).mean()
        return found

    @torch.no_grad()
    def validate(self, clip: Clip[ActionControl]) -> dict[str, Tensor]:
        """The anchor's loss on held-out clips, after rollouts of the present length."""
        made = self.rollouts.first(clip, self.step, self.rollouts.cfg.chunks(self.step))
        self._check_length(clip, made)
        return {"loss": self.anchored(clip, made)}

    # -- resume --------------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Counters, reference and populations."""
        found: dict[str, Any] = {"step": self.step, "skipped": self.skipped, "in_a_row": self.in_a_row}
        if self.loss is None:
            return found
        found |= {f"population.{key}": value for key, value in self.loss.state_dict().items()}
        for name, term in self.loss.terms.items():
            found |= reference_state(name, term.distance.reference, self._mark(name))
        return found

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """UserError if the reference is of other terms, encoders or sizes than this run's."""
        self.step, self.skipped, self.in_a_row = (int(state[k]) for k in ("step", "skipped", "in_a_row"))
        if not self.maps:
            return
        real = {
            name: read_reference("Frechet forcing", name, state, self._mark(name), phi.source.dimension)
            for name, phi in self.maps.items()
        }
        self.loss = self._loss(real)
        prefix = "population."
        self.loss.load_state_dict({k.removeprefix(prefix): v for k, v in state.items() if k.startswith(prefix)})

    def _mark(self, name: str) -> Tensor:
        if name not in self.marks:
            shape, device = tuple(self.rollouts.model.frame_shape), next(self.rollouts.model.model.parameters()).device
            self.marks[name] = mark_of(self.maps[name], shape, self.cfg.stride, device)
        return self.marks[name]
