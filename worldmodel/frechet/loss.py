"""Frechet distances of several feature maps as one training loss (FD-loss, 2604.28190; Frechet Forcing).

Each distance is divided by its own value, FD / (sg(FD) + c), so that encoders with numbers of any size pull alike; the
normalised value is constant and says nothing, so the raw distances are returned beside it.

    loss = FrechetLoss((Term("lite0", Frechet().to(bank.moments), Queue(capacity=2048).build(1280)),))
    while not loss.ready:                       # before the first step, with the model as it is
        loss.fill({"lite0": features_of_a_rollout()})
    scored = loss({"lite0": features})          # every step
    scored.loss.backward()
    loss.push(scored.seen)                      # once the step is taken

Letters: n samples of this rank's batch, D features of a term.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from worldmodel.errors import Diverged, UserError
from worldmodel.frechet.distance import DistanceTo
from worldmodel.frechet.population import Population
from worldmodel.frechet.ranks import gather_features


@dataclass(frozen=True, slots=True)
class Term:
    """One feature map's distance.

    name: of the feature map. population: None takes the batch (of all ranks) alone. weight: of the normalised distance.
    c: keeps the gradient from growing without bound as the distance falls; in units of the distance, so a good value is
    what real data have against real data.
    """

    name: str
    distance: DistanceTo
    population: Population | None = None
    weight: float = 1.0
    c: float = 0.01


@dataclass(frozen=True, slots=True)
class Scored:
    """What a batch came to."""

    loss: Tensor  # [] fp64, weighted sum of the normalised distances
    distances: dict[str, Tensor]  # [] each, raw, without gradient
    seen: dict[str, Tensor]  # features of all ranks, without gradient: for push


class FrechetLoss:
    """The weighted sum over terms; their populations are its state."""

    def __init__(self, terms: Sequence[Term]) -> None:
        self.terms = {term.name: term for term in terms}
        if not terms or len(self.terms) != len(terms):
            raise UserError(f"frechet loss: needs terms of different names, got {[term.name for term in terms]}")
        for term in terms:
            if not (0 <= term.weight < math.inf and 0 < term.c < math.inf):
                raise UserError(
                    f"frechet loss {term.name}: weight {term.weight} must be finite and at least 0, c {term.c} positive"
                )

    @property
    def ready(self) -> bool:
        """Whether every population is filled."""
        return all(term.population is None or term.population.ready for term in self.terms.values())

    def __call__(self, features: Mapping[str, Tensor]) -> Scored:
        """Score the features [n, D] of each term. All ranks must call it.

        Features that are not finite, on any rank, are Diverged on every rank: skip the step on it, and push nothing.
        """
        self._check(features)
        total, distances, seen = torch.zeros((), dtype=torch.float64), {}, {}
        for name, term in self.terms.items():
            batch = gather_features(features[name])
            try:
                fd = term.distance(batch if term.population is None else term.population.live(batch))
            except UserError as error:  # of its own kind: Diverged stays Diverged
                raise type(error)(f"{name}: {error}") from error
            total = total.to(fd.device) + term.weight * normalised(fd, term.c)
            distances[name], seen[name] = fd.detach(), batch.detach()
        return Scored(total, distances, seen)

    def fill(self, features: Mapping[str, Tensor]) -> None:
        """Take features [n, D] of each term in without scoring them. All ranks must call it with their own."""
        self._check(features)
        self.push({name: gather_features(batch.detach()) for name, batch in features.items()})

    def push(self, seen: Mapping[str, Tensor]) -> None:
        """Take features of all ranks, `Scored.seen`, into the populations.

        Diverged if they are not finite: then no population has changed.
        """
        self._check(seen)
        for name, batch in seen.items():
            if not torch.isfinite(batch).all():
                raise Diverged(f"{name}: features are not finite")
        for name, term in self.terms.items():
            if term.population is not None:
                term.population.push(seen[name])

    def state_dict(self) -> dict[str, Tensor]:
        """CPU tensors, the same on every rank."""
        populations = {n: term.population for n, term in self.terms.items() if term.population is not None}
        return {f"{name}.{key}": value for name, p in populations.items() for key, value in p.state_dict().items()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """The inverse, exactly. UserError if the state is not that of these terms."""
        unknown = [key for key in state if key.rpartition(".")[0] not in self.terms]
        if unknown:
            raise UserError(f"frechet loss: the checkpoint holds {unknown}, the terms are {sorted(self.terms)}")
        for name, term in self.terms.items():
            own = {key.removeprefix(f"{name}."): v for key, v in state.items() if key.rpartition(".")[0] == name}
            if term.population is not None:
                try:
                    term.population.load_state_dict(own)
                except UserError as error:
                    raise UserError(f"{name}: {error}") from error
            elif own:
                raise UserError(f"frechet loss: the checkpoint holds a population of {name}, this run has none")

    def _check(self, features: Mapping[str, Tensor]) -> None:
        if features.keys() != self.terms.keys():
            raise ValueError(f"the terms are {sorted(self.terms)}, features are of {sorted(features)}")


def normalised(distance: Tensor, c: float) -> Tensor:
    """FD / (sg(FD) + c): its gradient is that of log(FD + c). A distance that rounding made negative counts as 0."""
    return distance / (distance.detach().clamp_min(0) + c)


def centred(features: Tensor, truth: Tensor) -> Tensor:
    """Features [B, T, D] minus the mean over time of their own clip's true features [B, T', D].

    The residuals of Frechet Forcing (interpretation of its abstract): phi(z_hat)[b, t] - mean over t of phi(z)[b, t].
    With truth for both arguments they are the real residuals. A distance of residuals keeps each rollout in its own
    scene, where one of plain features would accept any scene. T and T' may differ.
    """
    if features.ndim != 3 or truth.ndim != 3 or features.shape[::2] != truth.shape[::2]:
        raise ValueError(f"features {list(features.shape)} and truth {list(truth.shape)} must be [B, T, D], [B, T', D]")
    return features - truth.mean(1, keepdim=True)
