"""Features of all processes as one population. Without torch.distributed, or with one process, nothing happens.

Every rank gets the same rows in the same order, hence the same statistics and the same distance as one process that has
all samples; a check on them (for values that are not finite, say) comes out the same everywhere.
"""

import torch
from torch import Tensor, distributed

from worldmodel.frechet.moments import Moments


def scale_gradient(x: Tensor, factor: float) -> Tensor:
    """x itself, whose gradient is multiplied by `factor`."""
    return x if factor == 1 else _Scaled.apply(x, factor)  # pyright: ignore[reportReturnType] (torch's stub)


def gather_features(features: Tensor) -> Tensor:
    """Features [n, D] of every rank, n may differ -> [sum of n, D], in the order of the ranks.

    Gradient flows into this rank's own rows, times the number of ranks: data-parallel training (DDP, FSDP) takes the
    mean of the ranks' gradients, and the gradient of one process is their sum.
    """
    if (ranks := num_ranks()) == 1:
        return features
    counts = [int(n) for n in _all_gather(torch.tensor([len(features)], device=features.device))]
    padded = features.new_zeros(max(counts), features.shape[1])
    padded[: len(features)] = features.detach()
    rows = [rows[:n] for rows, n in zip(_all_gather(padded), counts, strict=True)]
    rows[distributed.get_rank()] = scale_gradient(features, ranks)
    return torch.cat(rows)


def merge_moments(own: Moments) -> Moments:
    """Moments of every rank's samples together, without gradient: a reference that ranks computed in parts."""
    if num_ranks() == 1:
        return own
    own = own.detach()
    counts = _all_gather(torch.tensor([own.count], device=own.mean.device))
    means, covariances = _all_gather(own.mean), _all_gather(own.covariance)
    parts = [Moments(m, c, int(n)) for m, c, n in zip(means, covariances, counts, strict=True)]
    whole = parts[0]
    for part in parts[1:]:
        whole = whole.merge(part)
    return whole


def on_all_ranks(fine: bool, device: torch.device | str = "cpu") -> bool:
    """Whether it is fine on every rank, so that all of them go the same way. All ranks must call it."""
    if num_ranks() == 1:
        return fine
    answer = torch.tensor(float(fine), device=device)
    distributed.all_reduce(answer, distributed.ReduceOp.MIN)
    return bool(answer)


def num_ranks() -> int:
    return distributed.get_world_size() if distributed.is_available() and distributed.is_initialized() else 1


def _all_gather(x: Tensor) -> list[Tensor]:
    found = [torch.empty_like(x) for _ in range(num_ranks())]
    distributed.all_gather(found, x.contiguous())
    return found


class _Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, x: Tensor, factor: float) -> Tensor:
        ctx.factor = factor  # pyright: ignore[reportAttributeAccessIssue]
        return x.view_as(x)

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0] * ctx.factor, None  # pyright: ignore[reportAttributeAccessIssue]
