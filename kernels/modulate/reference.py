"""AdaLN: normalise and modulate, and the gated residual (Peebles & Xie, 2212.09748)."""

from torch import Tensor
from torch.nn import functional as F


def modulate(x: Tensor, shift: Tensor, scale: Tensor, eps: float) -> Tensor:
    """LayerNorm(x) * (1 + scale) + shift. x: [B, F, N, D]; shift, scale: [B, F, D], one modulation per frame."""
    y = F.layer_norm(x.float(), x.shape[-1:], eps=eps)
    return (y * (1 + scale[:, :, None]) + shift[:, :, None]).to(x.dtype)


def gated_residual(x: Tensor, y: Tensor, gate: Tensor) -> Tensor:
    """x + gate * y. x, y: [B, F, N, D]; gate: [B, F, D]."""
    return (x.float() + y.float() * gate[:, :, None]).to(x.dtype)
