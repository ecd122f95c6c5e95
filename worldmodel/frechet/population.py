"""Populations larger than a batch: a queue of features, or moving averages of moments (FD-loss, 2604.28190).

A batch of n samples is too few for a covariance. Here the distance sees the batch together with what came before it;
gradient flows through the batch alone, of which the population consists only in part. So the plain gradient is smaller
by n / N (queue of N) or 1 - beta (average) than that of a population that is all live; it is multiplied by the inverse.
For the queue the result is an unbiased estimate of the gradient of all N samples as long as old rows are distributed
like new ones. For the average it is the gradient of the batch's own mean and covariance, taken at the averaged ones.

A population must be filled before the first step. `live` looks, `push` changes: a step that is skipped pushes nothing.

Letters: N samples of the population, n of a batch, D features.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from worldmodel.errors import UserError
from worldmodel.frechet.moments import Moments, check_features
from worldmodel.frechet.ranks import scale_gradient


class Population(Protocol):
    """What a distance is taken of. All tensors of `state_dict` are on the CPU, and a resume from them is exact."""

    @property
    def ready(self) -> bool:
        """Whether it is filled."""
        ...

    def live(self, batch: Tensor) -> Tensor | Moments:
        """Features [N, D] or moments of the population with the batch [n, D] in it, gradient rescaled.

        UserError while it is not filled, or if the batch does not fit in.
        """
        ...

    def check_room(self, count: int) -> None:
        """UserError for a number of samples that is no batch of it."""
        ...

    def push(self, batch: Tensor) -> None:
        """Take a batch [n, D] in for good: after a step, or to fill. Nothing changes if it is not finite: Diverged."""
        ...

    def state_dict(self) -> dict[str, Tensor]: ...

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """UserError if the state is that of another population."""
        ...


@dataclass(frozen=True, kw_only=True)
class Queue:
    """The last `capacity` samples. fp32 features take 4 N D bytes, in the checkpoint too."""

    capacity: int = 2048

    def __post_init__(self) -> None:
        if self.capacity < 2 or self.capacity != int(self.capacity):
            raise UserError(f"feature queue: capacity {self.capacity} must be a whole number of at least 2")

    def build(self, dimension: int, device: torch.device | str = "cpu") -> "FeatureQueue":
        return FeatureQueue(self.capacity, dimension, device)


@dataclass(frozen=True, kw_only=True)
class Average:
    """moments <- beta moments + (1 - beta) moments of the batch. Batches of two samples and more.

    fill: it begins as the moments of the first so many samples, all of the same weight.
    """

    beta: float = 0.95
    fill: int = 1024

    def __post_init__(self) -> None:
        if not 0 <= self.beta < 1 or self.fill < 2:
            raise UserError(f"average of moments: beta {self.beta} must be in [0, 1) and fill {self.fill} at least 2")

    def build(self, dimension: int, device: torch.device | str = "cpu") -> "AverageMoments":
        return AverageMoments(self.beta, self.fill, dimension, device)


class FeatureQueue:
    """A ring of the last N features [N, D], kept in fp32. Filled by as many pushes as it takes."""

    def __init__(self, capacity: int, dimension: int, device: torch.device | str = "cpu") -> None:
        self.features = torch.zeros(capacity, dimension, device=device)
        self.filled, self.place = 0, 0  # place: of the oldest row once the queue is full

    @property
    def capacity(self) -> int:
        return len(self.features)

    @property
    def ready(self) -> bool:
        return self.filled == self.capacity

    def live(self, batch: Tensor) -> Tensor:
        """[N, D]: the N - n newest rows and the batch in place of the n oldest; its gradient times N / n."""
        if not self.ready:
            raise UserError(
                f"feature queue: holds {self.filled} of {self.capacity} samples, fill it before the first step"
            )
        self._check(batch)
        self.check_room(len(batch))
        batch = batch.to(self.features.device, torch.promote_types(batch.dtype, self.features.dtype))
        kept = self.features.roll(-self.place, 0)[len(batch) :].to(batch.dtype)
        return torch.cat((kept, scale_gradient(batch, self.capacity / len(batch))))

    def check_room(self, count: int) -> None:
        if count > self.capacity:
            raise UserError(f"feature queue: a batch of {count} samples is more than its capacity {self.capacity}")

    @torch.no_grad()
    def push(self, batch: Tensor) -> None:
        """The batch [n, D] replaces the n oldest rows; of one larger than the queue, the last N rows stay."""
        self._check(batch)
        check_features(batch)
        batch = batch[-self.capacity :].to(self.features)
        places = (self.place + torch.arange(len(batch), device=batch.device)) % self.capacity
        self.features[places] = batch
        self.place = (self.place + len(batch)) % self.capacity
        self.filled = min(self.filled + len(batch), self.capacity)

    def state_dict(self) -> dict[str, Tensor]:
        return {"features": self.features.cpu().clone(), "position": torch.tensor([self.filled, self.place])}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        _check_state(state, self.state_dict(), "feature queue")
        self.features.copy_(state["features"])
        self.filled, self.place = (int(n) for n in state["position"])

    def _check(self, batch: Tensor) -> None:
        if batch.ndim != 2 or not len(batch) or batch.shape[1] != self.features.shape[1]:
            raise ValueError(f"a queue of features [N, {self.features.shape[1]}] takes no {list(batch.shape)}")


class AverageMoments:
    """Exponential moving averages of mean and covariance, fp64, [D] and [D, D].

    The averaged covariance is that of the mixture: beta S + (1 - beta) S_b + beta (1 - beta) (m_b - m)(m_b - m)^T.
    Until `fill` samples were pushed they are merged, not averaged. `moments.count` counts all that were ever pushed.
    """

    def __init__(self, beta: float, fill: int, dimension: int, device: torch.device | str = "cpu") -> None:
        zeros = torch.zeros(dimension, dimension, dtype=torch.float64, device=device)
        self.beta, self.fill, self.moments = beta, fill, Moments(zeros[0].clone(), zeros, 0)

    @property
    def ready(self) -> bool:
        return self.moments.count >= self.fill

    def live(self, batch: Tensor) -> Moments:
        """The average with the batch in it; its gradient times 1 / (1 - beta)."""
        if not self.ready:
            count = self.moments.count
            raise UserError(f"average of moments: has {count} of {self.fill} samples, fill it before the first step")
        self._check(batch)
        return self._mixed(scale_gradient(batch, 1 / (1 - self.beta)))

    @torch.no_grad()
    def push(self, batch: Tensor) -> None:
        """Average the moments of the batch [n >= 2, D] in."""
        self._check(batch)
        if self.ready:
            self.moments = self._mixed(batch)
        else:
            new = Moments.of(batch.to(self.moments.mean.device))
            self.moments = self.moments.merge(new) if self.moments.count else new

    def state_dict(self) -> dict[str, Tensor]:
        m = self.moments
        return {"mean": m.mean.cpu().clone(), "covariance": m.covariance.cpu().clone(), "count": torch.tensor(m.count)}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        _check_state(state, self.state_dict(), "average of moments")
        device = self.moments.mean.device
        self.moments = Moments(state["mean"].clone(), state["covariance"].clone(), int(state["count"])).to(device)

    def _mixed(self, batch: Tensor) -> Moments:
        old, new, beta = self.moments, Moments.of(batch.to(self.moments.mean.device)), self.beta
        apart = new.mean - old.mean
        covariance = beta * old.covariance + (1 - beta) * new.covariance
        covariance = covariance + beta * (1 - beta) * torch.outer(apart, apart)
        return Moments(old.mean + (1 - beta) * apart, covariance, old.count + new.count)

    def _check(self, batch: Tensor) -> None:
        if batch.ndim != 2 or batch.shape[1] != self.moments.dimension:
            raise ValueError(f"an average of {self.moments.dimension} features takes no {list(batch.shape)}")
        self.check_room(len(batch))

    def check_room(self, count: int) -> None:
        if count < 2:
            raise UserError("average of moments: a batch needs at least 2 samples, this one has 1")


def _check_state(state: Mapping[str, Tensor], own: Mapping[str, Tensor], what: str) -> None:
    if state.keys() != own.keys():
        raise UserError(f"{what}: the checkpoint holds {sorted(state)}, needed are {sorted(own)}")
    for name, tensor in own.items():
        if state[name].shape != tensor.shape:
            raise UserError(
                f"{what}: '{name}' of the checkpoint is {list(state[name].shape)}, this run's {list(tensor.shape)}"
            )
