"""The part of a block that remembers in fast weights: large-chunk test-time training beside window attention.

LaCT (2505.23884): queries, keys and values are those of the block's attention, without rotation. A chunk reads the fast
weights as they were before it, then the clean chunk updates them (kernels/fast_weight). Scales and offsets of queries
and keys, the rates' softplus and the RMS norm of what was read follow the paper; that the layer's share starts at zero,
so that a model is at first what it was without, is ours.

Shape letters: B rows, N tokens, G head groups, D width of a group, E hidden width, C = G D width of the model.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from einops import rearrange
from torch import Tensor, nn
from torch.nn import functional as F

from worldmodel.errors import UserError
from worldmodel.kernels.fast_weight import FastWeights, read
from worldmodel.memory.lact import Written, learn

RATE = 0.01  # of a token's step before anything is learned


@dataclass(frozen=True, kw_only=True)
class FastConfig:
    """groups: G, which divides the model's width. expand: E / D. momentum: whether steps carry over from chunk to
    chunk. muon: Newton-Schulz steps that orthogonalise a step, 0 for none.
    """

    groups: int
    expand: float = 1.0
    momentum: bool = False
    muon: int = 0

    def __post_init__(self) -> None:
        if self.groups < 1 or not 0 < self.expand <= 64 or not 0 <= self.muon <= 64:
            raise UserError(
                f"fast weights: groups {self.groups} must be at least 1, expand {self.expand} in (0, 64], muon "
                f"{self.muon} in [0, 64]"
            )

    def sizes(self, dim: int) -> tuple[int, int, int]:
        """(G, E, D) at the model's width."""
        if dim % self.groups:
            raise UserError(f"fast weights: width {dim} does not cut into {self.groups} groups")
        width = dim // self.groups
        return self.groups, max(1, round(self.expand * width)), width


@dataclass(frozen=True, slots=True)
class Turn:
    """A chunk's turn in a clip: ranges of tokens that read, then a range that updates, or none."""

    reads: tuple[tuple[int, int], ...]
    writes: tuple[int, int] | None


class FastLayer(nn.Module):
    """Initial fast weights and everything around them, of one block."""

    def __init__(self, cfg: FastConfig, dim: int, eps: float) -> None:
        super().__init__()
        groups, hidden, width = cfg.sizes(dim)
        self.cfg, self.eps = cfg, eps
        self.w0 = nn.Parameter(torch.randn(groups, hidden, width) / math.sqrt(width))
        self.w1 = nn.Parameter(torch.randn(groups, width, hidden) / math.sqrt(hidden))
        self.w2 = nn.Parameter(torch.randn(groups, hidden, width) / math.sqrt(width))
        self.scale, self.offset = nn.Parameter(torch.ones(2, dim)), nn.Parameter(torch.zeros(2, dim))  # of q and k
        self.rate = nn.Linear(dim, 3 * groups)
        self.beta = nn.Linear(dim, groups) if cfg.momentum else None
        self.share = nn.Parameter(torch.zeros(dim))

    @property
    def initial(self) -> FastWeights:
        return FastWeights(self.w0, self.w1, self.w2)

    def asked(self, q: Tensor) -> Tensor:
        """Queries [B, h, N, C / h] -> [B, G, N, D] of unit norm."""
        return self._unit(q, 0)

    def written(self, y: Tensor, k: Tensor, v: Tensor) -> Written:
        """y [B, N, C]: what queries, keys and values [B, h, N, C / h] were made of."""
        groups = self.cfg.groups
        rates = F.softplus(self.rate(y).float() + math.log(math.expm1(RATE)))
        beta = None if self.beta is None else torch.sigmoid(self.beta(y).float()).transpose(1, 2)
        values = rearrange(v, "b h n d -> b n (h d)")
        return Written(
            self._unit(k, 1), rearrange(values, "b n (g d) -> b g n d", g=groups),
            rearrange(rates, "b n (g r) -> b g n r", g=groups), beta,
        )  # fmt: skip

    def read(self, q: Tensor, added: FastWeights | None) -> Tensor:
        """What queries [B, G, N, D] read; row b where a stream has added row b mod P of [P, G, ...], or nothing."""
        if added is None:
            return read(self.initial, q)
        rows = q.unflatten(0, (-1, added.w0.shape[0]))
        return read(self.initial + added, rows).flatten(0, 1)

    def out(self, found: Tensor) -> Tensor:
        """What was read [B, G, N, D] -> what is added to the attention's output [B, N, C]."""
        normed = F.rms_norm(found.float(), found.shape[-1:], eps=self.eps).to(found.dtype)
        return rearrange(normed, "b g n d -> b n (g d)") * self.share

    def sweep(self, q: Tensor, written: Written, turns: Sequence[Turn]) -> Tensor:
        """Read and update through a clip: queries [B, G, N, D] of all its tokens -> what they read, [B, G, N, D]."""
        initial = self.initial
        weights = FastWeights(*(w.expand(q.shape[0], *w.shape) for w in initial))
        momentum = None if self.beta is None else FastWeights(*(torch.zeros_like(w) for w in weights))
        found: list[tuple[int, Tensor]] = []
        for turn in turns:
            made = read(weights, torch.cat([q[:, :, a:b] for a, b in turn.reads], 2))
            parts = made.split([b - a for a, b in turn.reads], 2)
            found += [(a, part) for (a, _), part in zip(turn.reads, parts, strict=True)]
            if turn.writes is not None:
                weights, momentum = learn(weights, momentum, initial, written.tokens(*turn.writes), self.cfg.muon)
        return torch.cat([part for _, part in sorted(found, key=lambda f: f[0])], 2)

    def _unit(self, x: Tensor, which: int) -> Tensor:
        x = F.silu(rearrange(x, "b h n d -> b n (h d)") * self.scale[which] + self.offset[which])
        return F.normalize(rearrange(x, "b n (g d) -> b g n d", g=self.cfg.groups).float(), dim=-1)
