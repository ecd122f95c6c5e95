"""The statistics of real features that a training aims at, as its checkpoint keeps them.

They belong to one encoder. A mark of what it makes of fixed pictures (worldmodel/frechet/mark.py) tells another one
under the same name.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from worldmodel.errors import UserError
from worldmodel.frechet.mark import check_mark
from worldmodel.frechet.moments import Moments


def reference_state(name: str, moments: Moments, mark: Tensor) -> dict[str, Tensor]:
    """What a checkpoint keeps of the term `name`."""
    return {
        f"reference.{name}.mean": moments.mean.cpu(),
        f"reference.{name}.covariance": moments.covariance.cpu(),
        f"reference.{name}.count": torch.tensor(moments.count),
        f"reference.{name}.mark": mark,
    }


def read_reference(what: str, name: str, state: Mapping[str, Any], mark: Tensor, dimension: int) -> Moments:
    """The moments of the term `name` in a checkpoint.

    what: whose they are, for messages. mark, dimension: of the encoder now. UserError if the checkpoint has no such
    term, or one of another encoder or size.
    """
    try:
        mean, covariance, count = (state[f"reference.{name}.{part}"] for part in ("mean", "covariance", "count"))
    except KeyError as error:
        raise UserError(f"{what}: the checkpoint has no {error}: it was made with other terms") from None
    if len(mean) != dimension:
        raise UserError(
            f"{what}: the checkpoint's reference '{name}' has {len(mean)} features, the encoder now {dimension}"
        )
    if covariance.shape != (len(mean), len(mean)):
        raise UserError(
            f"{what}: the checkpoint's covariance of '{name}' is {list(covariance.shape)}, its mean has {len(mean)} "
            f"features"
        )
    if f"reference.{name}.mark" in state:  # checkpoints of an older version have none
        check_mark(f"{what}: {name}", mark, state[f"reference.{name}.mark"])
    return Moments(mean, covariance, int(count))
