"""Keyed noise: published answers of Philox4x32-10, a second implementation in Python integers, and statistics."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from worldmodel.noise import normal, philox, row_seed, uniform

WORD = st.integers(0, 2**32 - 1)
SEED = st.integers(0, 2**63 - 1)


def philox_int(counter, key):
    """Philox4x32-10 once more, in Python's unbounded integers."""
    c, k = list(counter), list(key)
    for _ in range(10):
        a, b = c[0] * 0xD2511F53, c[2] * 0xCD9E8D57
        c = [(b >> 32) ^ c[1] ^ k[0], b % 2**32, (a >> 32) ^ c[3] ^ k[1], a % 2**32]
        k = [(k[0] + 0x9E3779B9) % 2**32, (k[1] + 0xBB67AE85) % 2**32]
    return tuple(c)


def words(counter, key):
    out = philox(tuple(torch.tensor(c) for c in counter), tuple(torch.tensor(k) for k in key))
    return tuple(int(w) for w in out)


def normal_int(seed, frame, step, element):
    """One normal, by its definition."""
    key = (seed % 2**32, seed >> 32)
    w = philox_int((element // 4, frame % 2**32, frame >> 32, step), key)
    a, b = w[element % 4 // 2 * 2 :][:2]
    radius, angle = math.sqrt(-2 * math.log((a + 1) / 2**32)), 2 * math.pi * b / 2**32
    return np.float32(radius * (math.sin(angle) if element % 2 else math.cos(angle)))


@pytest.mark.parametrize(
    ("counter", "key", "answer"),
    [
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_known_answers(counter, key, answer):
    assert words(counter, key) == answer
    assert philox_int(counter, key) == answer


@given(st.tuples(WORD, WORD, WORD, WORD), st.tuples(WORD, WORD))
@settings(max_examples=60, deadline=None)
def test_philox_equals_integers(counter, key):
    assert words(counter, key) == philox_int(counter, key)


@given(SEED, st.integers(0, 2**62), st.integers(0, 2**20), st.integers(1, 23))
@settings(max_examples=40, deadline=None)
def test_normal_by_definition(seed, frame, step, size):
    drawn = normal(torch.tensor([seed]), torch.tensor([[frame]]), step, (size,))
    expected = np.array([normal_int(seed, frame, step, i) for i in range(size)])
    assert drawn.dtype == torch.float32 and drawn.shape == (1, 1, size)
    assert np.abs(drawn[0, 0].numpy() - expected).max() <= 5e-7  # two libraries' log and cos may round differently


def test_normal_is_standard_normal():
    x = normal(torch.tensor([1, 2**40 + 3]), torch.arange(8)[None] + torch.tensor([[0], [2**33]]), 5, (4, 100, 101))
    x = x.double().flatten()
    n = x.numel()
    assert abs(x.mean()) < 4 / math.sqrt(n)
    assert abs(x.var() - 1) < 4 * math.sqrt(2 / n)
    assert abs((x**3).mean()) < 4 * math.sqrt(15 / n)
    assert abs((x**4).mean() - 3) < 4 * math.sqrt(96 / n)
    assert stats.kstest(x[:200_000].numpy(), "norm").pvalue > 0.01
    assert x.abs().max() < math.sqrt(2 * 32 * math.log(2)) + 1e-6  # the generator's largest value


def test_neighbours_are_independent():
    """Neighbouring elements, frames, steps and rows, including those that differ in high words only."""
    size = 40_000
    here = normal(torch.tensor([7]), torch.tensor([[3]]), 0, (size,)).flatten().double()
    others = {
        "element": here.roll(1),
        "frame": normal(torch.tensor([7]), torch.tensor([[4]]), 0, (size,)),
        "frame + 2^32": normal(torch.tensor([7]), torch.tensor([[3 + 2**32]]), 0, (size,)),
        "step": normal(torch.tensor([7]), torch.tensor([[3]]), 1, (size,)),
        "seed": normal(torch.tensor([8]), torch.tensor([[3]]), 0, (size,)),
        "seed + 2^32": normal(torch.tensor([7 + 2**32]), torch.tensor([[3]]), 0, (size,)),
    }
    for name, other in others.items():
        correlation = float((here * other.flatten().double()).mean())
        assert abs(correlation) < 4 / math.sqrt(size), name


@given(st.lists(SEED, min_size=1, max_size=4), st.integers(0, 2**40), st.integers(1, 5), st.integers(0, 9), st.data())
@settings(max_examples=30, deadline=None)
def test_independent_of_slot_and_split(seeds, start, frames, step, data):
    seed, index = torch.tensor(seeds), start + torch.arange(frames).expand(len(seeds), -1)
    whole = normal(seed, index, step, (2, 3))
    order = torch.tensor(data.draw(st.permutations(range(len(seeds)))))
    assert torch.equal(normal(seed[order], index, step, (2, 3)), whole[order])
    cut = data.draw(st.integers(0, frames))
    parts = [normal(seed, index[:, a:b], step, (2, 3)) for a, b in ((0, cut), (cut, frames))]
    assert torch.equal(torch.cat(parts, 1), whole)
    rows = [normal(seed[b : b + 1], index[b : b + 1], step, (2, 3)) for b in range(len(seeds))]
    assert torch.equal(torch.cat(rows), whole)
    assert torch.equal(normal(seed, index, step, (7,))[..., :6], whole.flatten(2))  # shape only cuts the sequence


def test_a_frame_is_no_position_in_a_sequence():
    """Frames of one row may come in any order and start anywhere."""
    seed = torch.tensor([5])
    whole = normal(seed, torch.arange(9)[None], 0, (3,))
    assert torch.equal(normal(seed, torch.tensor([[8, 2, 5]]), 0, (3,))[0], whole[0, [8, 2, 5]])


def test_uniform():
    u = uniform(torch.arange(100), torch.arange(500).expand(100, -1), 3)
    assert u.shape == (100, 500) and u.dtype == torch.float32
    assert u.min() >= 0 and u.max() < 1
    assert stats.kstest(u.flatten().double().numpy(), "uniform").pvalue > 0.01
    word = philox_int((0, 17, 2, 9), (21, 4))[0]
    drawn = uniform(torch.tensor([21 + 4 * 2**32]), torch.tensor([[17 + 2 * 2**32]]), 9)
    assert float(drawn) == (word >> 8) / 2**24


def test_row_seed():
    index = torch.tensor([0, 1, 2**33 + 5])
    for run in (0, 5, 2**40 + 3, -1):
        seeds = row_seed(run, index)
        for i, seed in zip(index.tolist(), seeds.tolist(), strict=True):
            low, high, _, _ = philox_int((i % 2**32, i >> 32, 0, 0), (run % 2**32, (run >> 32) % 2**32))
            assert seed == low + (high % 2**31) * 2**32
    many = torch.cat([row_seed(run, torch.arange(20_000)) for run in range(4)])
    assert many.min() >= 0 and many.unique().numel() == many.numel()
    assert torch.equal(row_seed(3, torch.arange(10))[torch.tensor([7, 1])], row_seed(3, torch.tensor([7, 1])))
