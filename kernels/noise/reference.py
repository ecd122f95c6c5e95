"""Noise as a function of (row seed, absolute frame, sampler step), whatever the batch slot, rank or process.

The generator is Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011) in plain integer
tensor operations: the specification that every kernel equals bit for bit. The normals come from Box-Muller in fp64,
rounded once to fp32, so that two correct fp64 libraries give the same fp32 value in all but about one of 2^29 draws.

Counter layout: (element, frame low, frame high, step); key: (seed low, seed high). Element i of a frame is normal
i mod 4 of block i // 4.
"""

import math

import torch
from torch import Tensor

from worldmodel.kernels import arguments

_MASK = 0xFFFFFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)


def philox(counter: tuple[Tensor, Tensor, Tensor, Tensor], key: tuple[Tensor, Tensor]) -> tuple[Tensor, ...]:
    """Four 32-bit words per counter. All arguments are int64 tensors holding 32-bit values, broadcast together."""
    c0, c1, c2, c3, k0, k1 = torch.broadcast_tensors(*counter, *key)
    (w0, w2), (w1, w3) = _rounds(torch.stack((c0, c2)), torch.stack((c1, c3)), torch.stack((k0, k1)))
    return w0, w1, w2, w3


def _rounds(even: Tensor, odd: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
    """Words 0 and 2, and words 1 and 3, [2, ...] each, after ten rounds; key [2, ...]. A round's two halves in one."""
    half = torch.arange(2, device=key.device).view(-1, *(1,) * (key.ndim - 1))
    multiplier, weyl = (a + half * (b - a) for a, b in (_MULTIPLIERS, _WEYL))
    for _ in range(10):
        products = (even * multiplier).flip(0)  # 64 bits each; int64 wraps, the bits are right
        even, odd = ((products >> 32) ^ odd ^ key) & _MASK, products & _MASK  # what lies above the 32 bits goes
        key = key + weyl
    return even, odd


def _box_muller(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    radius = torch.sqrt(-2 * torch.log((a.double() + 1) * 2.0**-32))  # (a + 1) / 2^32 is in (0, 1]
    angle = b.double() * (2 * math.pi * 2.0**-32)
    return radius * torch.cos(angle), radius * torch.sin(angle)


def normal(seed: Tensor, frame: Tensor, step: int, shape: tuple[int, ...]) -> Tensor:
    """Standard normal noise of every frame.

    seed: [B] int64, one per row. frame: [B, K] int64, absolute frame indices. step: which draw of the sampler, from 0.
    Returns [B, K, *shape] fp32 on the device of `seed`.
    """
    size = math.prod(shape)
    pairs = torch.stack(_box_muller(*_words(seed, frame, step, (size + 3) // 4)), -1)  # [2, B, K, blocks, 2]
    flat = pairs.movedim(0, -2).flatten(-3)[..., :size]
    return flat.float().reshape(*frame.shape, *shape)


def uniform(seed: Tensor, frame: Tensor, step: int) -> Tensor:
    """One uniform number in [0, 1) per frame, [B, K] fp32. Arguments as for `normal`."""
    word = _words(seed, frame, step, 1)[0][0, ..., 0]
    return (word >> 8).float() * 2.0**-24


def _words(seed: Tensor, frame: Tensor, step: int, blocks: int) -> tuple[Tensor, Tensor]:
    """Words 0 and 2, and words 1 and 3, of every block of a frame, two of [2, B, K, blocks]."""
    arguments.tensors("noise", ("seed", seed, "B", arguments.LONG), ("frame", frame, "BK", arguments.LONG))
    arguments.whole("noise", "step", step, 0, 2**32)
    shape = *frame.shape, blocks
    block = torch.arange(blocks, device=seed.device).expand(shape)
    even = torch.stack((block, (frame >> 32)[..., None].expand(shape))) & _MASK
    odd = torch.stack((frame & _MASK, torch.full_like(frame, step)))[..., None].expand(2, *shape)
    key = torch.stack((seed, seed >> 32))[:, :, None, None] & _MASK
    return _rounds(even, odd, key)


def row_seed(run_seed: int, index: Tensor) -> Tensor:
    """A row's seed from the run's seed and the row's global sample index [B] int64 -> [B] int64, both well mixed."""
    arguments.tensors("row_seed", ("index", index, "B", arguments.LONG))
    zero = torch.zeros_like(index)
    counter = (index & _MASK, (index >> 32) & _MASK, zero, zero)
    key = (torch.full_like(index, run_seed & _MASK), torch.full_like(index, (run_seed >> 32) & _MASK))
    low, high, _, _ = philox(counter, key)
    return low | ((high & 0x7FFFFFFF) << 32)  # non-negative, so that it reads the same in every language
