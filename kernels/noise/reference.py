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

_MASK = 0xFFFFFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)


def philox(counter: tuple[Tensor, Tensor, Tensor, Tensor], key: tuple[Tensor, Tensor]) -> tuple[Tensor, ...]:
    """Four 32-bit words per counter. All arguments are int64 tensors holding 32-bit values, broadcast together."""
    c0, c1, c2, c3 = torch.broadcast_tensors(*counter)
    k0, k1 = key
    for _ in range(10):
        p0, p1 = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]  # 64-bit products; int64 wraps, the bits are right
        high0, high1 = (p0 >> 32) & _MASK, (p1 >> 32) & _MASK
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, p1 & _MASK, high0 ^ c3 ^ k1, p0 & _MASK
        k0, k1 = (k0 + _WEYL[0]) & _MASK, (k1 + _WEYL[1]) & _MASK
    return c0, c1, c2, c3


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
    a, b, c, d = _words(seed, frame, step, (size + 3) // 4)
    flat = torch.stack((*_box_muller(a, b), *_box_muller(c, d)), -1).flatten(-2)[..., :size]
    return flat.float().reshape(*frame.shape, *shape)


def uniform(seed: Tensor, frame: Tensor, step: int) -> Tensor:
    """One uniform number in [0, 1) per frame, [B, K] fp32. Arguments as for `normal`."""
    word = _words(seed, frame, step, 1)[0][..., 0]
    return (word >> 8).float() * 2.0**-24


def _words(seed: Tensor, frame: Tensor, step: int, blocks: int) -> tuple[Tensor, ...]:
    block = torch.arange(blocks, device=seed.device)
    counter = (block, (frame & _MASK)[..., None], ((frame >> 32) & _MASK)[..., None], torch.full_like(block, step))
    key = ((seed & _MASK)[:, None, None], ((seed >> 32) & _MASK)[:, None, None])
    return philox(counter, key)


def row_seed(run_seed: int, index: Tensor) -> Tensor:
    """A row's seed from the run's seed and the row's global sample index [B] int64 -> [B] int64, both well mixed."""
    zero = torch.zeros_like(index)
    counter = (index & _MASK, (index >> 32) & _MASK, zero, zero)
    key = (torch.full_like(index, run_seed & _MASK), torch.full_like(index, (run_seed >> 32) & _MASK))
    low, high, _, _ = philox(counter, key)
    return low | ((high & 0x7FFFFFFF) << 32)  # non-negative, so that it reads the same in every language
