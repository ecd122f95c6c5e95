"""AdaLN: normalise and modulate, and the gated residual (Peebles & Xie, 2212.09748).

Letters: B rows, F frames, N tokens of a frame, D width. One modulation serves all tokens of a frame. Everything is
computed in fp32, or in fp64 where the tokens are that, and rounded once.
"""

from typing import Literal, get_args

import torch
from torch import Tensor
from torch.nn import functional as F

Norm = Literal["layer", "rms"]
NORMS: tuple[Norm, ...] = get_args(Norm)


def modulate(x: Tensor, shift: Tensor, scale: Tensor, eps: float, norm: Norm = "layer") -> Tensor:
    """norm(x) * (1 + scale) + shift, with the norm over D and no weights of its own.

    x: [B, F, N, D]; shift, scale: [B, F, D]. Returns the shape and type of x.
    """
    y = _wide(x)
    y = F.layer_norm(y, y.shape[-1:], eps=eps) if norm == "layer" else F.rms_norm(y, y.shape[-1:], eps=eps)
    shift, scale = _like(shift, y), _like(scale, y)
    return _back(torch.addcmul(shift[:, :, None], y, 1 + scale[:, :, None]), x)


def gated_residual(x: Tensor, y: Tensor, gate: Tensor) -> Tensor:
    """x + gate * y. x, y: [B, F, N, D]; gate: [B, F, D]. Returns the shape and type of x."""
    wide = _wide(x)
    return _back(torch.addcmul(wide, _like(y, wide), _like(gate, wide)[:, :, None]), x)


# Where types are equal already, which is every time on a CPU, even asking torch for it takes a microsecond.


def _wide(x: Tensor) -> Tensor:
    return x if x.dtype in (torch.float32, torch.float64) else x.float()


def _like(x: Tensor, y: Tensor) -> Tensor:
    return x if x.dtype == y.dtype else x.to(y.dtype)


def _back(y: Tensor, x: Tensor) -> Tensor:
    return y if y.dtype == x.dtype else y.to(x.dtype)
