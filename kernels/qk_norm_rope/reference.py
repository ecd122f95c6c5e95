"""RMSNorm of queries and keys and their rotary positions, and the same written into a memory's slots.

QK-norm: Dehghani et al., 2302.05442, with RMSNorm per head, or across all heads as in Wan. Rotary positions: Su et al.,
2104.09864, over (frame, row, column) of a latent grid. Letters: B rows, N tokens, h heads, D width of a head, F frames,
n tokens of a frame. Computed in fp32, or fp64 where the input is that, and rounded once.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from worldmodel.kernels.rope import Pairing, rotate

Table = tuple[Tensor, Tensor]  # cosines and sines


def rope_table(frames: Tensor, grid: tuple[int, int], head_dim: int, theta: float = 10000.0) -> Table:
    """Cosines and sines of tokens in frames [B, F] int64 of rows and columns `grid`, two of [B, F * n, D / 2] fp32.

    The head is split as in Wan: 2 * (D // 6) dimensions each for rows and columns, the rest for time; each part has its
    own geometric frequencies theta^(-2 i / part). Angles are int64 positions times fp64 frequencies, reduced mod 2 pi
    before anything is rounded to fp32, so that frame 100,000 is as exact as frame 0.
    """
    space = 2 * (head_dim // 6)
    rows, columns = grid

    def angles(positions: Tensor, part: int) -> Tensor:
        exponent = torch.arange(0, part, 2, dtype=torch.float64, device=frames.device) / max(part, 1)
        return positions.double()[..., None] * theta**-exponent

    time = angles(frames, head_dim - 2 * space)[:, :, None, None]
    row = angles(torch.arange(rows, device=frames.device), space)[:, None]
    column = angles(torch.arange(columns, device=frames.device), space)[None]
    shape = (*frames.shape, rows, columns, -1)
    angle = torch.cat([a.expand(shape) for a in (time, row, column)], -1).flatten(1, 3)
    angle = torch.remainder(angle, 2 * torch.pi)
    return angle.cos().float(), angle.sin().float()


def norm_rope(x: Tensor, weight: Tensor, table: Table | None, eps: float, pairing: Pairing) -> Tensor:
    """RMSNorm, then rotation.

    x: [B, N, h, D]. weight: [D] normalises every head alone, [h * D] all of a token's heads together (h > 1). table:
    cosines and sines [B or 1, N, D / 2], None for the norm alone. Returns the shape and type of x.
    """
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    across = weight.shape[0] != x.shape[-1]
    y = wide.flatten(-2) if across else wide
    y = F.rms_norm(y, weight.shape, weight.to(wide.dtype), eps).view_as(wide)
    if table is not None:
        y = rotate(y, (table[0].to(wide.dtype)[:, :, None], table[1].to(wide.dtype)[:, :, None]), pairing)
    return y.to(x.dtype)


def write_ring(
    k: Tensor, v: Tensor, weight: Tensor, table: Table, eps: float, pairing: Pairing,
    keys: Tensor, values: Tensor, slot: Tensor, keep: Tensor,
) -> None:  # fmt: skip
    """Norm and rotate the keys of a chunk and put them, and its values, where a memory keeps their frames.

    k, v: [B, F * n, h, D], weight, table, eps and pairing as for `norm_rope`. keys, values: [B, h, S, n, D], the
    memory's storage, written in place. slot: [B, F] int64 in [0, S), all different in a row. keep: [B, F] bool; frames
    that are not kept leave their slot as it is, bit for bit.
    """
    rotated = norm_rope(k, weight, table, eps, pairing)
    frames, tokens = slot.shape[1], keys.shape[3]
    rows = torch.arange(slot.shape[0], device=slot.device)[:, None].expand_as(slot)
    kept = keep[:, :, None, None, None]
    for storage, new in ((keys, rotated), (values, v)):
        place = storage.transpose(1, 2)  # [B, S, h, n, D]
        new = new.unflatten(1, (frames, tokens)).transpose(2, 3).to(storage.dtype)
        place.index_put_((rows, slot), torch.where(kept, new, place[rows, slot]))
