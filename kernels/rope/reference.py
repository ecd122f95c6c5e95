"""Rotary position embedding (Su et al., 2104.09864) with both pairings found in pretrained models."""

from typing import Literal

import torch
from torch import Tensor

Pairing = Literal["interleaved", "half"]


def rotate(x: Tensor, table: tuple[Tensor, Tensor], pairing: Pairing) -> Tensor:
    """Rotate the pairs of the last axis.

    x: [..., N, D]. table: cosines and sines, broadcastable to [..., N, D / 2]. pairing: "interleaved" rotates
    (x[2i], x[2i + 1]) as Wan does, "half" rotates (x[i], x[i + D / 2]) as Llama does. Returns the shape and type of x.
    """
    cos, sin = table
    if pairing == "interleaved":
        a, b = x.unflatten(-1, (-1, 2)).unbind(-1)
        return torch.stack((a * cos - b * sin, a * sin + b * cos), -1).flatten(-2).to(x.dtype)
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, a * sin + b * cos), -1).to(x.dtype)
