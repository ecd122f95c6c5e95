"""The sampler's kernels: words and normals bit for bit, derivatives, nothing to do."""

import math

import numpy as np
import torch
import triton
import triton.language as tl

from worldmodel.kernels import noise
from worldmodel.kernels.sampler_step import EULER, NORMAL, RENOISE, Draw, Noised, Step
from worldmodel.kernels.sampler_step.triton import _cos_sin


@triton.jit
def words_kernel(seed_pointer, counter_pointer, out_pointer, N: tl.constexpr):
    i = tl.arange(0, N)
    c = [tl.load(counter_pointer + part * N + i).to(tl.uint32) for part in (0, 1, 2, 3)]
    found = tl.philox(tl.load(seed_pointer), c[0], c[1], c[2], c[3])
    for part in tl.static_range(4):
        tl.store(out_pointer + part * N + i, found[part].to(tl.int64))


@triton.jit
def cos_sin_kernel(word_pointer, out_pointer, N: tl.constexpr):
    i = tl.arange(0, N)
    cos, sin = _cos_sin(tl.load(word_pointer + i).to(tl.uint32))  # pyright: ignore[reportGeneralTypeIssues]
    tl.store(out_pointer + i, cos)
    tl.store(out_pointer + N + i, sin)


def test_words_equal_bit_for_bit(rng):
    counter = torch.randint(0, 2**32, (4, 128), generator=rng)
    counter[:, 0], counter[:, 1] = 0, 2**32 - 1
    for seed in (0, 1, 2**63 - 1, -1, 0x13198A2E_A4093822):
        out, key = torch.empty(4, 128, dtype=torch.int64), torch.tensor([seed])
        words_kernel[(1,)](key, counter, out, N=128)
        wanted = noise.philox(tuple(counter), (key & 0xFFFFFFFF, (key >> 32) & 0xFFFFFFFF))
        assert torch.equal(out, torch.stack(wanted))


def test_cosines_and_sines_of_all_quadrants(rng):
    """Against long doubles, and closest to where they are 0, at whole quarters of a turn."""
    edges = torch.tensor([q * 2**30 + d for q in range(5) for d in range(-40, 41)]).clamp(0, 2**32 - 1)
    word = torch.cat((edges, torch.randint(0, 2**32, (1024 - len(edges),), generator=rng)))
    out = torch.empty(2, 1024, dtype=torch.float64)
    cos_sin_kernel[(1,)](word, out, N=1024)
    angle = (word.double() * (2 * math.pi * 2.0**-32)).numpy().astype(np.longdouble)
    assert np.finfo(np.longdouble).eps < 1e-18  # more than fp64
    for found, wanted in zip(out.numpy(), (np.cos(angle), np.sin(angle)), strict=True):
        assert np.abs(found - wanted).max() <= 2.0**-52
        assert (np.abs(found - wanted) <= 2.0**-51 * np.abs(wanted) + 1e-26).all()


def test_normals_equal_bit_for_bit():
    """Late frames, high words, more elements than one program has, any number of them."""
    seed = torch.tensor([5, 2**62 + 3])
    frame = torch.tensor([[100_000, 2**40], [7, 2**33]])
    for step, shape in ((0, (3, 5501)), (2**20, (1,)), (3, ())):
        assert torch.equal(NORMAL(Draw(seed, frame, step, shape), "triton"), noise.normal(seed, frame, step, shape))


def test_derivatives_and_nothing_to_do(rng):
    x, v = torch.randn(2, 1, 2, 3, generator=rng, dtype=torch.float64).requires_grad_().unbind(0)
    t, s = torch.rand(2, 1, 2, generator=rng, dtype=torch.float64).unbind(0)
    seed, frame = torch.tensor([3]), torch.tensor([[100_000, 2**35]])
    draw = Draw(seed, frame, 1, (3,))
    x, v = (leaf.detach().requires_grad_() for leaf in (x, v))
    assert torch.autograd.gradcheck(lambda x, v: EULER(Step(x, v, t, s), "triton"), (x, v))
    assert torch.autograd.gradcheck(lambda x, v: RENOISE(Noised(Step(x, v, t, s), draw), "triton"), (x, v))
    empty = x[:, :0].detach()
    assert EULER(Step(empty, empty, t[:, :0], s[:, :0]), "triton").shape == (1, 0, 3)
    assert NORMAL(Draw(seed, frame[:, :0], 1, (3,)), "triton").shape == (1, 0, 3)


def test_the_same_frame_in_any_slot_and_any_batch():
    """What a frame gets depends on its seed, its number and the step only."""
    seed, frame = torch.tensor([11, 12, 13]), torch.arange(100_000, 100_012).view(3, 4)
    whole = NORMAL(Draw(seed, frame, 2, (5, 3)), "triton")
    one = NORMAL(Draw(seed[1:2], frame[1:2, 2:3], 2, (5, 3)), "triton")
    assert torch.equal(whole[1, 2], one[0, 0])
