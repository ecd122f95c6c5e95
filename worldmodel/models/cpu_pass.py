"""The transformer's blocks without gradients on a CPU: the arithmetic of `layers.Block`, in few operations.

A small model's pass of a few dozen tokens is bound by starting operations, not by arithmetic. So what does not change
between the sampler's steps is prepared once per chunk: the weights of QK-norm are folded into the cosines and sines of
the rotation, all layers' modulations come from one product, weights are reordered for oneDNN (packed.py), and the past
lies in front of places for the current tokens, so that attention finds one piece and nothing is concatenated.

Letters: L layers, B rows, F frames, n tokens of a frame, N = F * n, P remembered tokens, D width, h heads, d their
width.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from worldmodel.kernels import backend
from worldmodel.memory import Context

from .packed import Product, product

if TYPE_CHECKING:
    from .layers import Block, BlockConfig


@dataclass(frozen=True, slots=True)
class Layer:
    """What one block needs in every pass."""

    qkv: Product
    out: Product
    up: Product  # with its activation, if that is a GELU
    down: Product
    cos: Tensor  # [B, N, 2, h or 1, d] for queries and keys, times the norm's weight
    sin: Tensor  # the same for the other number of each pair
    key_weight: Tensor  # [h or 1, d]
    keys: Tensor  # [B, h, P + N, d]: the past, rotated, and places for the current ones
    values: Tensor  # [B, h, P + N, d]
    new_keys: Tensor  # [B, N, h, d], those places
    new_values: Tensor  # [B, N, h, d]


@dataclass(frozen=True, slots=True)
class Modulations:
    """Of all layers at once. The 1 of "1 + scale" is in the bias."""

    down: tuple[Tensor, Tensor] | None  # weight [L * r, D] and bias, None without a residual of rank r
    up: Tensor | None  # [L, r, 6 D]
    bias: Tensor  # [L, 1, 6 D]

    @classmethod
    def of(cls, blocks: Sequence["Block"]) -> "Modulations":
        one = torch.zeros_like(blocks[0].table)
        one[[1, 4]] = 1
        bias = torch.stack([block.table for block in blocks]) + one
        if not blocks[0].cfg.rank:
            return cls(None, None, bias.flatten(1)[:, None])
        down = torch.cat([b.down.weight for b in blocks]), torch.cat([b.down.bias for b in blocks])
        bias = bias.flatten(1) + torch.stack([b.up.bias for b in blocks])
        return cls(down, torch.stack([b.up.weight for b in blocks]).mT, bias[:, None])

    def __call__(self, e: Tensor, shared: Tensor) -> list[tuple[Tensor, ...]]:
        """e [B, F, D], shared [B, F, 6, D] -> per layer shift, 1 + scale and gate of both halves, [B, F, 1, D] each."""
        rows, frames, width = e.shape
        m = self.bias
        if self.down is not None and self.up is not None:
            low = F.silu(F.linear(e.flatten(0, 1), *self.down)).unflatten(1, (len(m), -1)).transpose(0, 1)
            m = torch.baddbmm(m, low, self.up)
        m = (m + shared.view(rows * frames, 6 * width)).view(-1, rows, frames, 6, 1, width)
        return [layer.unbind(2) for layer in m.unbind(0)]


@dataclass(frozen=True, slots=True)
class Weights:
    """What depends on weights alone, and on how many rows are multiplied with them."""

    key: tuple[object, ...]  # the rows, and address and version of every weight
    products: list[tuple[Product, Product, Product, Product]]  # per layer: qkv, out, up, down
    norms: Tensor  # of queries and keys, [L, 1, 1, 2, h or 1, d]
    modulations: Modulations

    @classmethod
    def of(cls, modules: nn.ModuleList, rows: int) -> "Weights":
        """Those of now: made at the first call, and again after a weight has changed."""
        key = rows, *((p.data_ptr(), p._version) for p in modules.parameters())
        found = _WEIGHTS.get(modules)
        if found is None or found.key != key:
            found = _WEIGHTS[modules] = cls._made(cast("list[Block]", list(modules)), rows, key)
        return found

    @classmethod
    def _made(cls, blocks: "list[Block]", rows: int, key: tuple[object, ...]) -> "Weights":
        cfg = blocks[0].cfg
        norms = torch.stack([torch.stack((b.norm_q.weight, b.norm_k.weight)) for b in blocks])
        products = [
            (product(b.qkv, rows), product(b.out, rows), product(b.mlp.up, rows, cfg.mlp == "gelu"),
             product(b.mlp.down, rows))
            for b in blocks
        ]  # fmt: skip
        norms = norms.view(len(blocks), 1, 1, 2, -1, cfg.dim // cfg.heads)
        return cls(key, products, norms, Modulations.of(blocks))


_WEIGHTS = WeakKeyDictionary[nn.ModuleList, Weights]()


@dataclass(frozen=True, slots=True)
class CpuPass:
    """All blocks, for one chunk. Its buffers are written in every call."""

    cfg: "BlockConfig"
    layers: tuple[Layer, ...]
    modulations: Modulations
    seen: Tensor | None  # broadcastable to [B, h, N, P + N]; None if every token looks at all

    @classmethod
    def of(
        cls, blocks: nn.ModuleList, rope: tuple[Tensor, Tensor], past: Context, copies: int, seen: Tensor | None
    ) -> "CpuPass":
        """rope: cosines and sines [B, N, d / 2]; copies: B over the rows of the past, row b reads row b mod those."""
        cfg, (rows, tokens, _) = cast("Block", blocks[0]).cfg, rope[0].shape
        keys, values = (_with_places(x, copies, tokens) for x in (past.keys, past.values))
        weights = Weights.of(blocks, rows * tokens)
        cos, sin = _whole(rope, cfg.pairing)
        cosines, sines = weights.norms * cos, _swapped(weights.norms, cfg.pairing) * sin
        new = (x[:, :, :, -tokens:].transpose(2, 3) for x in (keys, values))
        parts = (cosines, sines, weights.norms[:, 0, 0, 1], keys, values, *new)
        each = zip(weights.products, zip(*(part.unbind(0) for part in parts), strict=True), strict=True)
        return cls(cfg, tuple(Layer(*products, *own) for products, own in each), weights.modulations, seen)

    def __call__(self, x: Tensor, e: Tensor, shared: Tensor) -> Tensor:
        """Tokens x [B, F, n, D], embedding e [B, F, D] and modulation [B, F, 6, D] -> the tokens after all blocks."""
        for layer, modulation in zip(self.layers, self.modulations(e, shared), strict=True):
            x, _, _ = self._block(layer, modulation, x)
        return x

    def kept(self, x: Tensor, e: Tensor, shared: Tensor) -> tuple[Tensor, Tensor]:
        """What the memory takes: keys (normalised, not rotated) and values [L, B, h, N, d]."""
        found = list[tuple[Tensor, Tensor]]()
        modulations = self.modulations(e, shared)
        for layer, modulation in zip(self.layers[:-1], modulations[:-1], strict=True):
            x, normed, v = self._block(layer, modulation, x)
            found.append((normed[:, :, 1] * layer.key_weight, v))
        last = self.layers[-1]
        normed, v = self._projected(last, modulations[-1], x)
        found.append((normed[:, :, 1] * last.key_weight, v))
        keys, values = (torch.stack(part).transpose(2, 3) for part in zip(*found, strict=True))
        return keys, values

    def _projected(self, layer: Layer, modulation: tuple[Tensor, ...], x: Tensor) -> tuple[Tensor, Tensor]:
        """Queries and keys [B, N, 2, h, d] after RMSNorm, without its weights, and values [B, N, h, d]."""
        cfg, (shift, scale, *_) = self.cfg, modulation
        y = torch.addcmul(shift, F.layer_norm(x, (cfg.dim,), None, None, cfg.eps), scale)
        qkv = layer.qkv(y).view(x.shape[0], -1, 3, cfg.heads, cfg.dim // cfg.heads)
        qk = qkv[:, :, :2]
        over = (-2, -1) if cfg.qk_norm == "across_heads" else -1
        size = cfg.dim if cfg.qk_norm == "across_heads" else qk.shape[-1]
        root = torch.linalg.vector_norm(qk, 2, over, keepdim=True)
        return qk * root.square_().mul_(1 / size).add_(cfg.eps).rsqrt_(), qkv[:, :, 2]

    def _block(self, layer: Layer, modulation: tuple[Tensor, ...], x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The next x, and what `_projected` gave."""
        cfg, (_, _, gate, shift, scale, last_gate) = self.cfg, modulation
        normed, v = self._projected(layer, modulation, x)
        turned = _swapped(normed, cfg.pairing).mul_(layer.sin).addcmul_(normed, layer.cos)
        layer.new_keys.copy_(turned[:, :, 1])
        layer.new_values.copy_(v)
        q = turned[:, :, 0].transpose(1, 2)
        found = F.scaled_dot_product_attention(q, layer.keys, layer.values, attn_mask=self.seen)
        x = torch.addcmul(x, layer.out(found.transpose(1, 2).reshape(x.shape)), gate)
        y = torch.addcmul(shift, F.layer_norm(x, (cfg.dim,), None, None, cfg.eps), scale)
        y = layer.up(y)
        if cfg.mlp == "swiglu":
            first, second = y.chunk(2, -1)
            y = F.silu(first) * second
        return torch.addcmul(x, layer.down(y), last_gate), normed, v


def serves(blocks: nn.ModuleList, past: Context) -> bool:
    """Whether these blocks, with what is remembered, can go this way: without gradients, in fp32 on a CPU, by default.

    Text and fast weights go the general way, as do weights that are sharded or replaced (FSDP, functional calls), and
    everything if a backend was asked for by name.
    """
    first = cast("Block", blocks[0])
    return (
        not torch.is_grad_enabled()
        and first.table.device.type == "cpu"
        and first.table.dtype is torch.float32
        and type(first.table) is nn.Parameter
        and past.keys.dtype is torch.float32
        and first.cross is None
        and first.fast is None
        and backend.setting() == "auto"
        and not torch.is_autocast_enabled("cpu")
        and not torch.compiler.is_compiling()
    )


def _with_places(x: Tensor, copies: int, tokens: int) -> Tensor:
    """[L, B / copies, h, P, d] -> [L, B, h, P + tokens, d], the last ones not written yet."""
    layers, rows, heads, length, width = x.shape
    whole = x.new_empty(layers, copies, rows, heads, length + tokens, width)
    whole[..., :length, :] = x[:, None]
    return whole.flatten(1, 2)


def _swapped(x: Tensor, pairing: str) -> Tensor:
    """A new tensor with the two numbers of every pair in each other's place."""
    if pairing == "half":
        return x.roll(x.shape[-1] // 2, -1)
    return x.unflatten(-1, (-1, 2)).flip(-1).flatten(-2)


def _whole(rope: tuple[Tensor, Tensor], pairing: str) -> tuple[Tensor, Tensor]:
    """Cosines and sines [B, N, d / 2] -> two of [B, N, 1, 1, d]: y = x * cosines + swapped(x) * sines."""
    cos, sin = (part[:, :, None, None] for part in rope)
    if pairing == "half":
        return torch.cat((cos, cos), -1), torch.cat((-sin, sin), -1)
    return cos.repeat_interleave(2, -1), torch.stack((-sin, sin), -1).flatten(-2)
