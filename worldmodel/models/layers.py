"""The parts of a DiT block. Tensors of tokens are [B, F, n, D]: rows, frames, tokens of a frame, width."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from worldmodel.kernels.attention import Seen, Segment, attend
from worldmodel.kernels.fast_weight import FastWeights
from worldmodel.kernels.modulate import gated_residual, modulate
from worldmodel.kernels.qk_norm_rope import qk_norm_rope
from worldmodel.kernels.rope import Pairing, Table
from worldmodel.memory.lact import Written

from .fast_layer import FastConfig, FastLayer, Turn
from .packed import PackedLinear

QKNorm = Literal["head", "across_heads"]


@dataclass(frozen=True, kw_only=True)
class BlockConfig:
    """One transformer block. Wan's choices are qk_norm "across_heads", pairing "interleaved", mlp "gelu"."""

    dim: int
    heads: int
    hidden: int
    mlp: Literal["gelu", "swiglu"] = "gelu"
    qk_norm: QKNorm = "head"
    pairing: Pairing = "half"
    text: bool = False
    rank: int = 0
    fast: FastConfig | None = None
    eps: float = 1e-6


class Mlp(nn.Module):
    """tanh-GELU, or SwiGLU with the given hidden width per branch."""

    def __init__(self, cfg: BlockConfig) -> None:
        super().__init__()
        self.gated = cfg.mlp == "swiglu"
        self.up = PackedLinear(cfg.dim, cfg.hidden * (2 if self.gated else 1))
        self.down = PackedLinear(cfg.hidden, cfg.dim)

    def forward(self, x: Tensor) -> Tensor:
        if self.gated:
            gate, value = self.up(x).chunk(2, -1)
            return self.down(F.silu(gate) * value)
        return self.down(F.gelu(self.up(x), approximate="tanh"))


class QKRMSNorm(nn.Module):
    """RMSNorm of queries or keys [B, N, h, D], per head or across all heads."""

    def __init__(self, cfg: BlockConfig) -> None:
        super().__init__()
        self.across, self.eps = cfg.qk_norm == "across_heads", cfg.eps
        self.weight = nn.Parameter(torch.ones(cfg.dim if self.across else cfg.dim // cfg.heads))

    def forward(self, x: Tensor) -> Tensor:
        if self.across:
            return F.rms_norm(x.flatten(-2), self.weight.shape, self.weight, self.eps).view_as(x)
        return F.rms_norm(x, self.weight.shape, self.weight, self.eps)


class CrossAttention(nn.Module):
    """Attention of tokens [B, N, D] to text [B, L, D]."""

    def __init__(self, cfg: BlockConfig) -> None:
        super().__init__()
        self.heads = cfg.heads
        self.norm = nn.LayerNorm(cfg.dim, eps=cfg.eps)
        self.q, self.kv = nn.Linear(cfg.dim, cfg.dim), nn.Linear(cfg.dim, 2 * cfg.dim)
        self.out = nn.Linear(cfg.dim, cfg.dim)
        self.norm_q, self.norm_k = QKRMSNorm(cfg), QKRMSNorm(cfg)

    def keys_values(self, text: Tensor) -> tuple[Tensor, Tensor]:
        """Text [B, L, D] -> keys and values [B, h, L, D / h], once per chunk."""
        k, v = self.kv(text).unflatten(-1, (2, self.heads, -1)).unbind(2)
        return self.norm_k(k).transpose(1, 2), v.transpose(1, 2)

    def forward(self, x: Tensor, text: tuple[Tensor, Tensor]) -> Tensor:
        q = self.norm_q(self.q(self.norm(x)).unflatten(-1, (self.heads, -1))).transpose(1, 2)
        return self.out(attend(q, *text, (), None).transpose(1, 2).flatten(2))


class Block(nn.Module):
    """AdaLN-Zero transformer block: self-attention over [past, frames], optional fast weights and text, MLP.

    Modulation of layer l is M_shared(e) + b_l + W_up silu(W_down e) (MiniWorld, 2608.01127): `table` is b_l, which is
    also Wan's scale_shift_table, and the low-rank residual starts at zero.
    """

    def __init__(self, cfg: BlockConfig) -> None:
        super().__init__()
        self.cfg = cfg
        self.qkv, self.out = PackedLinear(cfg.dim, 3 * cfg.dim), PackedLinear(cfg.dim, cfg.dim)
        self.norm_q, self.norm_k = QKRMSNorm(cfg), QKRMSNorm(cfg)
        self.fast = None if cfg.fast is None else FastLayer(cfg.fast, cfg.dim, cfg.eps)
        self.cross = CrossAttention(cfg) if cfg.text else None
        self.mlp = Mlp(cfg)
        self.table = nn.Parameter(torch.zeros(6, cfg.dim))
        if cfg.rank:
            self.down, self.up = nn.Linear(cfg.dim, cfg.rank), nn.Linear(cfg.rank, 6 * cfg.dim)
            nn.init.zeros_(self.up.weight)
            nn.init.zeros_(self.up.bias)

    def modulation(self, e: Tensor, shared: Tensor) -> tuple[Tensor, ...]:
        """e [B, F, D] and shared [B, F, 6, D] -> shift, scale, gate of attention and of the MLP, [B, F, D] each."""
        m = shared + self.table
        if self.cfg.rank:
            m = m + self.up(F.silu(self.down(e))).unflatten(-1, (6, -1))
        return m.float().unbind(2)

    def _projected(self, x: Tensor, shift: Tensor, scale: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The attention's input [B, F * n, D]; queries, keys and values [B, F * n, h, D / h], not normalised yet."""
        y = modulate(x, shift, scale, self.cfg.eps).flatten(1, 2)
        return y, *self.qkv(y).unflatten(-1, (3, self.cfg.heads, -1)).unbind(2)

    def _normed(self, q: Tensor, k: Tensor, rope: Table | None) -> tuple[Tensor, Tensor]:
        """Queries and keys after QK-norm, and rotated, unless rope is None."""
        weights = self.norm_q.weight, self.norm_k.weight
        return qk_norm_rope(q, k, *weights, rope, self.cfg.eps, self.cfg.pairing)

    def keys(self, x: Tensor, e: Tensor, shared: Tensor) -> Tensor:
        """The keys (unrotated) [B, h, F * n, D / h] that `forward` makes."""
        shift, scale, *_ = self.modulation(e, shared)
        _, q, k, _ = self._projected(x, shift, scale)
        return self._normed(q, k, None)[1].transpose(1, 2)

    def forward(
        self,
        x: Tensor,
        e: Tensor,
        shared: Tensor,
        rope: Table,
        past: tuple[Segment, ...],
        seen: Seen,
        text: tuple[Tensor, Tensor] | None,
        fast: FastWeights | tuple[Turn, ...] | None = None,
        keep: bool = False,
    ) -> tuple[Tensor, Tensor | None, Tensor, Written | None]:
        """Tokens x [B, F, n, D] -> the next x; for the memory keys (unrotated; with `keep`), values
        [B, h, F * n, D / h] and what fast weights take.

        rope: of the tokens, [B, F * n, D / 2h]. fast: what a memory has added to the fast weights, or the turns of a
        clip's chunks; None without fast weights.
        """
        shift1, scale1, gate1, shift2, scale2, gate2 = self.modulation(e, shared)
        y, q, k, v = self._projected(x, shift1, scale1)
        asked, kept, written, v = None, None, None, v.transpose(1, 2)
        if keep or self.fast is not None:  # which need what is not rotated
            q, k = self._normed(q, k, None)
            asked, kept = q.transpose(1, 2), k.transpose(1, 2)
            q, k = qk_norm_rope(q, k, None, None, rope, self.cfg.eps, self.cfg.pairing)
        else:
            q, k = self._normed(q, k, rope)
        found = attend(q.transpose(1, 2), k.transpose(1, 2), v, past, seen).transpose(1, 2).flatten(2)
        if self.fast is not None:
            assert asked is not None and kept is not None
            asked, written = self.fast.asked(asked), self.fast.written(y, kept, v)
            read = self.fast.sweep(asked, written, fast) if isinstance(fast, tuple) else self.fast.read(asked, fast)
            found = found + self.fast.out(read).to(found.dtype)
        x = gated_residual(x, self.out(found).view_as(x), gate1)
        if self.cross is not None:
            if text is None:
                raise ValueError("this model was built with text cross-attention: its control must carry text")
            x = x + self.cross(x.flatten(1, 2), text).view_as(x)
        x = gated_residual(x, self.mlp(modulate(x, shift2, scale2, self.cfg.eps)), gate2)
        return x, kept, v, written
