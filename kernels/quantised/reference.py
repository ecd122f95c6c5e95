"""Keys and values of a memory in one byte a number, INT8 or FP8, and attention over them.

Keys have large means over tokens that say little: they are smoothed, by the mean over the tokens of a page
(SageAttention, 2410.02367). A common mean cancels in softmax only if one mean and one query rotation serve all keys.
Here they do not: every page (a frame of a memory) has its own mean, taken after rotation and frozen when the page is
written, and q . mean is added back to the logits of that page. Every token has a scale of its own.

Letters: P rows, g key heads, N tokens in pages of n, D head size; B rows, h heads, Q queries.
Bytes of a token and head: D + 4, and 4 D / n for the mean of keys; two bytes a number take 2 D.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

Kind = Literal["int8", "fp8"]
KINDS: tuple[Kind, ...] = get_args(Kind)
MOST = {"int8": 127.0, "fp8": 448.0}  # the largest codes
TYPES = {"int8": torch.int8, "fp8": torch.float8_e4m3fn}


@dataclass(frozen=True, slots=True, eq=False)
class Quantised:
    """code * scale of its token + mean of its page."""

    codes: Tensor  # [P, g, N, D] int8 or float8_e4m3fn
    scale: Tensor  # [P, g, N] fp32
    mean: Tensor | None  # [P, g, N / n, D] fp32; None without smoothing
    page: int  # n

    @property
    def nbytes(self) -> int:
        """Bytes that it takes."""
        return sum(t.numel() * t.element_size() for t in (self.codes, self.scale, self.mean) if t is not None)

    def dense(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """The numbers that it stands for, [P, g, N, D]."""
        wide = torch.promote_types(dtype, torch.float32)
        x = self.codes.to(wide) * self.scale[..., None].to(wide)
        if self.mean is not None:
            x = x + self.mean.to(wide).repeat_interleave(self.page, 2)
        return x.to(dtype)


def quantise(x: Tensor, page: int, kind: Kind, smooth: bool) -> Quantised:
    """x: [P, g, N, D], finite; N is a multiple of `page`. smooth: subtract every page's mean over its tokens.

    With y = x - mean and the largest |y| of a token a: an INT8 number is off by at most a / 254, an FP8 one (E4M3) by
    at most |y| / 16 or a / 448 / 1024, whichever is more; and by the rounding of fp32.
    """
    wide = x.float()
    mean = wide.unflatten(2, (x.shape[2] // page, page)).mean(3) if smooth else None
    y = wide if mean is None else wide - mean.repeat_interleave(page, 2)
    scale = y.abs().amax(3) / MOST[kind] if x.shape[3] else y.new_zeros(y.shape[:3])
    code = torch.where(scale[..., None] > 0, y / scale[..., None], 0)
    if kind == "int8":
        code = torch.floor(code + 0.5)
    return Quantised(code.clamp(-MOST[kind], MOST[kind]).to(TYPES[kind]), scale, mean, page)


def attend(q: Tensor, keys: Quantised, values: Quantised, valid: Tensor | None, scale: float) -> tuple[Tensor, Tensor]:
    """softmax(scale * q . k) v over quantised keys and values, and the log-sum-exp of its logits.

    q: [B, h, Q, D], rotated as these keys are to be looked at; B is a multiple of P (row b reads row b mod P), h of g.
    valid: [P, N / n] bool, which pages are there; None for all. Returns [B, h, Q, D] in the type of q (zeros where a
    query sees no key) and [B, h, Q] fp32 in bits (to base 2), -inf there: what `merge` needs.
    """
    copies, group = q.shape[0] // max(1, keys.scale.shape[0]), q.shape[1] // max(1, keys.scale.shape[1])
    wide = torch.promote_types(q.dtype, torch.float32)

    def spread(x: Tensor) -> Tensor:
        return x.repeat(copies, *(1,) * (x.ndim - 1)).repeat_interleave(group, 1)

    k, v = spread(keys.dense(wide)), spread(values.dense(wide))
    if valid is None:
        there = torch.ones(q.shape[0], k.shape[2], dtype=torch.bool, device=q.device)
    else:
        there = valid.repeat(copies, 1).repeat_interleave(keys.page, 1)
    k, v = (x.masked_fill(~there[:, None, :, None], 0) for x in (k, v))
    logit = (q.to(wide) @ k.mT * scale).masked_fill(~there[:, None, None], -torch.inf)
    lse = torch.logsumexp(logit, 3)
    weight = (logit - lse.masked_fill(lse == -torch.inf, 0)[..., None]).exp()
    return (weight @ v).to(q.dtype), (lse / math.log(2)).to(wide)


def merge(parts: Sequence[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """Attention over several sets of keys at once, from that over each: results [B, h, Q, D] with their log-sum-exps
    [B, h, Q] in bits. Returns both again; zeros and -inf where no part saw a key."""
    lse = torch.stack([part[1] for part in parts])
    top = lse.amax(0)
    weight = torch.exp2(lse - top.masked_fill(top == -torch.inf, 0))
    total = weight.sum(0)
    weight = weight / total.masked_fill(total == 0, 1)
    out = sum(w[..., None] * part[0].to(w.dtype) for w, part in zip(weight, parts, strict=True))
    return torch.as_tensor(out).to(parts[0][0].dtype), top + total.log2()
