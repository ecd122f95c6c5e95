"""The plain Frechet metric between two sets of features, by `worldmodel.frechet`.

It is not "FID": that name belongs to one encoder (Heusel et al., 1706.08500). The value depends on the encoder and, as
the estimate is biased upwards for few samples, on N: name both, and compare only values of the same N.
"""

import torch
from torch import Tensor

from worldmodel.frechet.distance import DistanceTo, Frechet


def reference_of(features: Tensor) -> DistanceTo:
    """The full distance to a reference of features [N, D], N >= 2: call it with those of many sets."""
    return Frechet().to(features)


@torch.no_grad()
def frechet_distance(first: Tensor, second: Tensor) -> float:
    """The distance between features [N1, D] and [N2, D]; Diverged if one is not finite."""
    return float(reference_of(second)(first))
