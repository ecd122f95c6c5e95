"""The transformer without gradients on a CPU: the arithmetic of `layers.Block` and around it, in few operations.

A small model's pass of a few dozen tokens is bound by starting operations, not by arithmetic. So what does not change
between the sampler's steps is prepared once per chunk, and what depends on weights alone once (cpu_weights.py): the
weights of QK-norm are folded into the cosines and sines of the rotation, all layers' modulations come from one product,
embeddings of flow times are kept, weights are reordered for oneDNN (packed.py). Results go where the next operation
reads them, through views that were made with the buffers: queries and keys lie before and behind the past, so that
attention finds one piece and nothing is concatenated.

Letters: L layers, B rows, F frames, n tokens of a frame, N = F * n, P remembered tokens, D width, h heads, d their
width.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from worldmodel.kernels import backend
from worldmodel.memory import Context

from .cpu_weights import Weights
from .packed import Product

if TYPE_CHECKING:
    from .dit import DiT, Prepared
    from .layers import Block, BlockConfig

Modulation = tuple[Tensor, ...]  # shift, 1 + scale and gate of attention, then of the MLP, [B, F, 1, D] each


@dataclass(frozen=True, slots=True)
class Layer:
    """What one block needs in every pass. The last five are views of buffers, which every pass writes."""

    qkv: Product
    out: Product
    up: Product  # with its activation, if that is a GELU
    down: Product
    cos: Tensor  # [B, N, 2, h or 1, d] for queries and keys, times the norm's weight and the root of its width
    sin: Tensor  # the same for the other number of each pair
    key_weight: Tensor  # [h or 1, d], times the root of its width
    modulation: Modulation
    turned: Tensor  # [B, N, 2, h, d]: where queries and keys go
    new_values: Tensor  # [B, N, h, d]: where values go
    queries: Tensor  # [B, h, N, d]
    keys: Tensor  # [B, h, P + N, d]: the past, rotated, and the current ones
    values: Tensor  # [B, h, P + N, d]


@dataclass(frozen=True, slots=True)
class Pairs:
    """A place for normed queries and keys, in which the two numbers of every pair can also be read swapped."""

    normed: Tensor  # [B, N, 2, h, d]
    swapped: Tensor  # the same with the two numbers of every pair in each other's place, after `swap`
    moves: tuple[tuple[Tensor, Tensor], ...]  # to, from

    @classmethod
    def empty(cls, like: Tensor, pairing: str) -> "Pairs":
        """like: of the shape [B, N, 2, h, d]."""
        half = like.shape[-1] // 2
        if pairing == "half":  # first, second and first halves in a row: the last two are the swapped ones
            place = like.new_empty(*like.shape[:-1], 3 * half)
            moves = ((place[..., 2 * half :], place[..., :half]),)
            return cls(place[..., : 2 * half], place[..., half:], moves)
        a, b = torch.empty_like(like), torch.empty_like(like)
        return cls(a, b, ((b[..., ::2], a[..., 1::2]), (b[..., 1::2], a[..., ::2])))

    def swap(self) -> None:
        for to, source in self.moves:
            to.copy_(source)


@dataclass(frozen=True, slots=True)
class CpuPass:
    """A model's passes for one chunk. Buffers are written in every call."""

    cfg: "BlockConfig"
    weights: Weights
    layers: tuple[Layer, ...]
    action: Tensor | None  # [B * F, D]
    shared: Tensor  # bias of the shared modulation and that of the action, [B * F, 6 D]
    modulations: Tensor  # [L, B * F, 6 D], a buffer
    last: Tensor  # [2, B * F, D], a buffer
    pairs: Pairs
    floor: Tensor  # [1], which keeps a norm from being 0
    seen: Tensor | None  # broadcastable to [B, h, N, P + N]; None if every token looks at all

    @classmethod
    def of(cls, model: "DiT", prepared: "Prepared", copies: int, seen: Tensor | None) -> "CpuPass | None":
        """copies: B over the rows of the past, row b reads row b mod those. None where `Weights.of` gives none."""
        cfg, past = cast("Block", model.blocks[0]).cfg, prepared.past
        if past is None:
            raise ValueError("a chunk was prepared without a memory")
        cos, sin = _whole(prepared.rope, cfg.pairing)
        rows, tokens = cos.shape[:2]
        weights, frames = Weights.of(model, rows * tokens), tokens // model.cfg.geometry.tokens
        if weights is None:
            return None
        cosines, sines = weights.norms * cos, _swapped(weights.norms, cfg.pairing) * sin
        places = _places(past, copies, tokens)
        m = cos.new_empty(len(weights.products), rows * frames, 6 * cfg.dim)
        modulations = (layer.unbind(2) for layer in m.view(len(m), rows, frames, 6, 1, cfg.dim).unbind(0))
        turns = (part.unbind(0) for part in (cosines, sines, weights.norms[:, 0, 0, 1]))
        parts = zip(weights.products, *turns, modulations, *places, strict=True)
        layers = tuple(Layer(*products, *own) for products, *own in parts)
        bias, action, given = weights.shared[1], prepared.action, prepared.modulation
        normed = cfg.dim if cfg.qk_norm == "across_heads" else cfg.dim // cfg.heads
        return cls(
            cfg=cfg,
            weights=weights,
            layers=layers,
            action=None if action is None else action.flatten(0, 1),
            shared=bias.expand(rows * frames, -1) if given is None else given.view(rows * frames, -1) + bias,
            modulations=m,
            last=cos.new_empty(2, rows * frames, cfg.dim),
            pairs=Pairs.empty(layers[0].turned, cfg.pairing),
            floor=cos.new_full((1,), (normed * cfg.eps) ** 0.5),
            seen=seen,
        )

    def __call__(self, x: Tensor, t: Tensor) -> Tensor:
        """Tokens x [B, F, n, D] at flow times t [B, F] -> the velocity's tokens [B, F, n, C p p]. x is overwritten."""
        e = self._modulate(t)
        for layer in self.layers:
            self._block(layer, x)
        torch.add(e, self.weights.last, out=self.last)
        shift, scale = self.last.view(2, *t.shape, 1, -1).unbind(0)
        return self.weights.patch_out(self._normed(x, shift, scale))

    def kept(self, x: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
        """What the memory takes: keys (normalised, not rotated) and values [L, B, h, N, d]. x is overwritten."""
        self._modulate(t)
        first = self.layers[0].new_values
        keys, values = (first.new_empty(len(self.layers), *first.shape) for _ in range(2))
        for layer, key, value in zip(self.layers, keys.unbind(0), values.unbind(0), strict=True):
            if layer is self.layers[-1]:
                v = self._projected(layer, x)
            else:
                v = self._block(layer, x)
            torch.mul(self.pairs.normed[:, :, 1], layer.key_weight, out=key)
            value.copy_(v)
        return keys.transpose(2, 3), values.transpose(2, 3)

    def _modulate(self, t: Tensor) -> Tensor:
        """Write the modulations of all layers; returns the embedding [B * F, D]."""
        weights = self.weights
        e = weights.embedded(t)
        e = e if self.action is None else e + self.action
        weights.modulations.write(e, torch.addmm(self.shared, F.silu(e), weights.shared[0]), self.modulations)
        return e

    def _normed(self, x: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
        return torch.addcmul(shift, torch.layer_norm(x, (self.cfg.dim,), None, None, self.cfg.eps), scale)

    def _projected(self, layer: Layer, x: Tensor) -> Tensor:
        """Values [B, N, h, d]; queries and keys after RMSNorm, without its weights, go to `pairs`."""
        cfg, (shift, scale, *_) = self.cfg, layer.modulation
        qkv = layer.qkv(self._normed(x, shift, scale)).view(x.shape[0], -1, 3, cfg.heads, cfg.dim // cfg.heads)
        qk = qkv[:, :, :2]
        over = (-2, -1) if cfg.qk_norm == "across_heads" else -1
        torch.div(qk, torch.linalg.vector_norm(qk, 2, over, keepdim=True).hypot_(self.floor), out=self.pairs.normed)
        return qkv[:, :, 2]

    def _block(self, layer: Layer, x: Tensor) -> Tensor:
        """x becomes the next x; returns what `_projected` gave."""
        cfg, pairs, (_, _, gate, shift, scale, last_gate) = self.cfg, self.pairs, layer.modulation
        v = self._projected(layer, x)
        layer.new_values.copy_(v)
        pairs.swap()
        torch.addcmul(pairs.normed * layer.cos, pairs.swapped, layer.sin, out=layer.turned)
        found = F.scaled_dot_product_attention(layer.queries, layer.keys, layer.values, attn_mask=self.seen)
        x.addcmul_(layer.out(found.transpose(1, 2).reshape(x.shape)), gate)
        y = layer.up(self._normed(x, shift, scale))
        if cfg.mlp == "swiglu":
            first, second = y.chunk(2, -1)
            y = F.silu(first) * second
        x.addcmul_(layer.down(y), last_gate)
        return v


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


def _places(past: Context, copies: int, tokens: int) -> tuple[tuple[Tensor, ...], ...]:
    """`turned`, `new_values`, `queries`, `keys` and `values` of every layer, in buffers that hold the past.

    The current queries lie before the past's keys and the current keys behind them, so that the two are one view of the
    buffer as well.
    """
    layers, rows, heads, length, width = past.keys.shape
    shape = layers, copies, rows, heads
    keys = past.keys.new_empty(*shape, tokens + length + tokens, width)
    values = past.values.new_empty(*shape, length + tokens, width)
    keys[..., tokens:-tokens, :] = past.keys[:, None]
    values[..., :length, :] = past.values[:, None]
    keys, values = keys.flatten(1, 2), values.flatten(1, 2)
    layer, row, head, token, _ = keys.stride()
    turned = keys.as_strided(
        (layers, copies * rows, tokens, 2, heads, width), (layer, row, token, (tokens + length) * token, head, 1)
    )
    new_values = values[..., length:, :].transpose(2, 3)
    every = turned, new_values, keys[..., :tokens, :], keys[..., tokens:, :], values
    return tuple(part.unbind(0) for part in every)


def _swapped(x: Tensor, pairing: str) -> Tensor:
    """A new tensor with the two numbers of every pair in each other's place."""
    if pairing == "half":
        return x.roll(x.shape[-1] // 2, -1)
    return x.unflatten(-1, (-1, 2)).flip(-1).flatten(-2)


def _whole(rope: tuple[Tensor, Tensor], pairing: str) -> tuple[Tensor, Tensor]:
    """Cosines and sines [B, 1, N, d / 2] -> two of [B, N, 1, 1, d]: y = x * cosines + swapped(x) * sines."""
    cos, sin = (part[:, 0, :, None, None] for part in rope)
    if pairing == "half":
        return torch.cat((cos, cos), -1), torch.cat((-sin, sin), -1)
    return cos.repeat_interleave(2, -1), torch.stack((-sin, sin), -1).flatten(-2)
