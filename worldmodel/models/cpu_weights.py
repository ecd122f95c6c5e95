"""What the CPU's way through a transformer (cpu_pass.py) takes from its weights: made once, and again when they change.

Letters: L layers, B rows, F frames, D width, h heads, d their width, r rank of the modulation's residual.
"""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from worldmodel import flow

from .packed import FEWEST_ROWS, Product, product
from .versions import Versions

if TYPE_CHECKING:
    from .dit import DiT
    from .layers import Block

MOST_TIMES = 64  # embeddings that are kept: a sampler has a handful of flow times


@dataclass(frozen=True, slots=True)
class Modulations:
    """Of all layers at once. The 1 of "1 + scale" is in the bias."""

    down: tuple[Tensor, Tensor] | None  # weight [L * r, D] and bias, None without a residual of rank r
    up: Tensor | None  # [L, r, 6 D]
    bias: Tensor  # [L, 1, 6 D]

    @classmethod
    def of(cls, blocks: "list[Block]") -> "Modulations":
        one = torch.zeros_like(blocks[0].table)
        one[[1, 4]] = 1
        bias = torch.stack([block.table for block in blocks]) + one
        if not blocks[0].cfg.rank:
            return cls(None, None, bias.flatten(1)[:, None])
        down = torch.cat([b.down.weight for b in blocks]), torch.cat([b.down.bias for b in blocks])
        bias = bias.flatten(1) + torch.stack([b.up.bias for b in blocks])
        return cls(down, torch.stack([b.up.weight for b in blocks]).mT, bias[:, None])

    def write(self, e: Tensor, shared: Tensor, out: Tensor) -> None:
        """From e [B * F, D] and shared [B * F, 6 D], those of all layers into out [L, B * F, 6 D]."""
        if self.down is None or self.up is None:
            torch.add(self.bias, shared, out=out)
            return
        low = F.silu(F.linear(e, *self.down)).view(len(e), len(out), -1).transpose(0, 1)
        torch.baddbmm(self.bias, low, self.up, out=out).add_(shared)


@dataclass(frozen=True, slots=True)
class Weights:
    """What depends on weights alone."""

    versions: Versions
    products: list[tuple[Product, Product, Product, Product]]  # per layer: qkv, out, up, down
    norms: Tensor  # of queries and keys, times the root of the width that is normed, [L, 1, 1, 2, h or 1, d]
    modulations: Modulations
    time: nn.Sequential
    time_width: int
    shared: tuple[Tensor, Tensor]  # weight [D, 6 D] and bias
    last: Tensor  # shift and 1 + scale of the last modulation, without the embedding, [2, 1, D]
    patch_out: nn.Linear
    times: dict[tuple[float, ...], Tensor] = field(default_factory=dict)  # embeddings [B * F, D] by flow times

    @classmethod
    def of(cls, model: "DiT", rows: int) -> "Weights | None":
        """Those of now, for products of so many rows. None if a layer is not its weight alone: it has an adapter."""
        kept, many = _KEPT.setdefault(model, {}), rows >= FEWEST_ROWS
        found = kept.get(many)
        if found is not None and found.versions.unchanged():
            return found
        if not all(type(layer) is nn.Linear for layer in _read(model)):
            return None
        kept[many] = made = cls._made(model, rows)
        return made

    @classmethod
    def _made(cls, model: "DiT", rows: int) -> "Weights":
        blocks, cfg = cast("list[Block]", list(model.blocks)), model.cfg
        norms = torch.stack([torch.stack((b.norm_q.weight, b.norm_k.weight)) for b in blocks])
        products = [
            (product(b.qkv, rows), product(b.out, rows), product(b.mlp.up, rows, cfg.mlp == "gelu"),
             product(b.mlp.down, rows))
            for b in blocks
        ]  # fmt: skip
        width = norms.shape[-1]
        last = model.table_out.detach().clone()
        last[1] += 1
        return cls(
            versions=Versions(model),
            products=products,
            norms=norms.view(len(blocks), 1, 1, 2, -1, cfg.dim // cfg.heads) * width**0.5,
            modulations=Modulations.of(blocks),
            time=model.time,
            time_width=cfg.time_width,
            shared=(model.shared.weight.T, model.shared.bias),
            last=last[:, None],
            patch_out=model.patch_out,
        )

    def embedded(self, t: Tensor) -> Tensor:
        """The embedding [B * F, D] of flow times t [B, F]."""
        key = tuple(t.flatten().tolist())
        found = self.times.get(key)
        if found is None:
            if len(self.times) >= MOST_TIMES:
                self.times.clear()
            found = self.times[key] = self.time(flow.embed_time(t, self.time_width).flatten(0, 1))
        return found


def _read(model: "DiT") -> list[nn.Linear]:
    """The layers whose weights are read here instead of calling them."""
    blocks = cast("list[Block]", list(model.blocks))
    return [model.shared, *(layer for b in blocks if b.cfg.rank for layer in (b.down, b.up))]


_KEPT = WeakKeyDictionary["DiT", dict[bool, Weights]]()
