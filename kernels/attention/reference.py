"""Attention over what is remembered and the current chunk: the definition that fast versions are tested against."""

import torch
from torch import Tensor
from torch.nn import functional as F


def attend(q: Tensor, k: Tensor, v: Tensor, past: tuple[Tensor, Tensor] | None, mask: Tensor | None) -> Tensor:
    """Softmax attention of the chunk's queries over [past, current].

    q, k, v: [B, heads, Q, D] of the current chunk. past: keys and values [B, heads, N, D] or None.
    mask: bool, broadcastable to [B, heads, Q, N + Q], True where a query may look; None lets it look everywhere.
    Returns [B, heads, Q, D].
    """
    if past is not None:
        k, v = torch.cat((past[0], k), 2), torch.cat((past[1], v), 2)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
