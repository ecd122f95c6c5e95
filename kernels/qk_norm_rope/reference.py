"""RMSNorm of queries and keys and their rotary positions, and the same written into a memory's slots.

QK-norm: Dehghani et al., 2302.05442, with RMSNorm per head, or across all heads as in Wan. Rotary positions: Su et al.,
2104.09864, over (frame, row, column) of a latent grid. Letters: L layers, B rows, N tokens, h heads, D width of a head,
F frames, n tokens of a frame. Computed in fp32, or fp64 where the input is that, and rounded once.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from worldmodel.kernels.rope import Pairing, Table, rotate


def norm_rope(x: Tensor, weight: Tensor | None, table: Table | None, eps: float, pairing: Pairing) -> Tensor:
    """RMSNorm, then rotation.

    x: [B, N, h, D]. weight: [D] normalises every head alone, [h * D] all of a token's heads together (h > 1), None is
    for the rotation alone. table: cosines and sines [B or 1, N, D / 2], None for the norm alone. Returns the shape and
    type of x.
    """
    wide = y = x.to(torch.promote_types(x.dtype, torch.float32))
    if weight is not None:
        whole = wide if weight.shape[0] == x.shape[-1] else wide.flatten(-2)
        y = F.rms_norm(whole, weight.shape, weight.to(wide.dtype), eps).view_as(wide)
    if table is not None:
        y = rotate(y, (table[0].to(wide.dtype)[:, :, None], table[1].to(wide.dtype)[:, :, None]), pairing)
    return y.to(x.dtype)


def write_ring(
    k: Tensor, v: Tensor, weight: Tensor | None, table: Table, eps: float, pairing: Pairing,
    keys: Tensor, values: Tensor, slot: Tensor, keep: Tensor,
) -> None:  # fmt: skip
    """Norm and rotate the keys of a chunk and put them, and its values, where a memory keeps their frames.

    k, v: [L, B, F * n, h, D] of L layers. weight: [L, D] or [L, h * D], None for no norm. table, eps and pairing as for
    `norm_rope`. keys, values: [L, B, h, S, n, D], the memory's storage, written in place. slot: [B, F] int64 in [0, S),
    all different in a row. keep: [B, F] bool; frames that are not kept leave their slot as it is, bit for bit.
    """
    wide = y = k.to(torch.promote_types(k.dtype, torch.float32))
    if weight is not None:
        whole = wide if weight.shape[1] == k.shape[-1] else wide.flatten(-2)
        each = weight.to(wide.dtype).view(-1, *(1,) * (whole.ndim - 2), weight.shape[1])
        y = (F.rms_norm(whole, weight.shape[1:], eps=eps) * each).view_as(wide)
    rotated = rotate(y, (table[0].to(wide.dtype)[:, :, None], table[1].to(wide.dtype)[:, :, None]), pairing)
    rows = torch.arange(slot.shape[0], device=slot.device)[:, None].expand_as(slot)
    kept = keep[:, :, None, None, None, None]
    for storage, new in ((keys, rotated), (values, v)):
        place = storage.permute(1, 3, 0, 2, 4, 5)  # [B, S, L, h, n, D]
        new = new.unflatten(2, (slot.shape[1], storage.shape[4])).permute(1, 2, 0, 4, 3, 5).to(storage.dtype)
        place.index_put_((rows, slot), torch.where(kept, new, place[rows, slot]))
