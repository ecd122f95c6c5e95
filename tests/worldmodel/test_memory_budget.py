"""Memories of equal bytes: their bytes by hand, as the real memories have them, and nothing left that a frame fits."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import small_clip, small_dit

from worldmodel.errors import UserError
from worldmodel.memory import FullConfig, LactConfig, RetrievalConfig, SlowFastConfig, WindowConfig
from worldmodel.memory.base import FastGeometry, Geometry
from worldmodel.memory.budget import OF_FRAMES, POLICIES, budget_of, bytes_of, fast_within, frame_bytes, split, within
from worldmodel.models.fast_layer import FastConfig
from worldmodel.rollout import advance, start

MAZE = Geometry(layers=6, heads=6, head_dim=32, tokens=4)  # width 192, 4 tokens a frame
FRAME = 2 * 6 * 192 * 4 * 4  # 36,864 bytes


def by_hand(config, g, size=4):
    """Keys and values of every frame; 8 bytes for its number, 1 for whether it was chosen; one mean key, or all."""
    frame, width = 2 * g.layers * g.heads * g.head_dim * g.tokens * size, g.heads * g.head_dim
    match config:
        case WindowConfig():
            return (config.sink + config.ring) * (frame + 8)
        case SlowFastConfig():
            return config.capacity * (frame + 8) + config.fast + 4 * width
        case RetrievalConfig():
            return config.capacity * (frame + 8) + config.ring + 4 * width * (1 + config.bank + config.ring)
        case LactConfig():
            fast = g.fast
            matrices = 3 * g.layers * fast.groups * fast.hidden * fast.width * 4
            return config.ring * (frame + 8) + matrices * (2 if fast.momentum else 1)


def test_twenty_four_frames():
    assert frame_bytes(MAZE) == FRAME
    assert split("window", 24, 2) == WindowConfig(sink=0, ring=24)
    assert split("sink_window", 24, 2) == WindowConfig(sink=2, ring=22)
    assert split("slow_fast", 24, 2) == SlowFastConfig(sink=2, slow=14, fast=8)
    assert split("retrieval", 24, 2) == RetrievalConfig(sink=2, bank=14, read=7, ring=8)
    budget = budget_of(24, MAZE, 2)
    assert budget == 24 * (FRAME + 8) + 8 + 4 * 192 * 23 == by_hand(split("retrieval", 24, 2), MAZE)
    for policy in OF_FRAMES:
        assert within(policy, budget, MAZE, 2) == split(policy, 24, 2)
    fast = fast_within(budget, MAZE, 2)  # a quarter is a ring of 6; dense matrices of 72 frames, in 4 groups of 18
    assert fast == FastGeometry(groups=4, hidden=48, width=48, momentum=False)
    assert within("lact", budget, replace(MAZE, fast=fast), 2) == LactConfig(ring=6)
    assert fast_within(budget, MAZE, 2, momentum=True).groups == 8
    assert fast_within(budget, MAZE, 2, expand=0.5).groups == 2


@settings(max_examples=30, deadline=None)
@given(
    layers=st.integers(1, 6), heads=st.integers(1, 4), head_dim=st.sampled_from([8, 12, 16]), tokens=st.integers(1, 20),
    chunk=st.integers(1, 5), frames=st.integers(12, 60), policy=st.sampled_from(POLICIES), momentum=st.booleans(),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
)  # fmt: skip
def test_a_budget_is_kept_and_used(layers, heads, head_dim, tokens, chunk, frames, policy, momentum, dtype):
    g = Geometry(layers, heads, head_dim, tokens)
    budget = budget_of(frames, g, chunk, dtype)
    if policy == "lact":
        g = replace(g, fast=fast_within(budget, g, chunk, momentum=momentum, dtype=dtype))
    config = within(policy, budget, g, chunk, dtype)
    config.check(chunk)
    used = bytes_of(config, g, dtype)
    assert used == by_hand(config, g, dtype.itemsize)
    assert 0.8 * budget < used <= budget
    assert config.capacity is not None
    assert bytes_of(split(policy, config.capacity + 1, chunk), g, dtype) > budget
    if policy != "lact":
        assert config.capacity >= frames  # bookkeeping is all that the others have more of


@pytest.mark.parametrize("policy", POLICIES)
def test_bytes_are_those_of_a_memory_in_use(policy):
    model = small_dit(fast=FastConfig(groups=4)) if policy == "lact" else small_dit()
    g, chunk = model.cfg.geometry, model.chunk
    config = within(policy, 2 * budget_of(6, g, chunk), g, chunk)
    clip = small_clip(model, rows=1, frames=32)
    with torch.no_grad():
        state = start(model, config, torch.tensor([1]))
        for part in clip.chunks(chunk):
            state = advance(model, part, state)
    assert state.memory.nbytes == bytes_of(config, g)


def test_the_smallest_budgets():
    g = replace(MAZE, fast=FastGeometry(groups=4, hidden=48, width=48, momentum=False))
    needs = {"window": 4, "sink_window": 5, "slow_fast": 6, "retrieval": 6, "lact": 4}
    for policy in POLICIES:
        least = bytes_of(split(policy, needs[policy], 4), g)
        assert within(policy, least, g, 4).capacity == needs[policy]
        with pytest.raises(UserError, match=f"memory {policy}: a budget of {least - 1:,} bytes is too small for one c"):
            within(policy, least - 1, g, 4)
        with pytest.raises(
            UserError, match=f"{needs[policy] - 1} frames are too few, chunks of 4 need {needs[policy]}"
        ):
            split(policy, needs[policy] - 1, 4)
    with pytest.raises(UserError, match="no fast weights"):
        within("lact", 10**7, MAZE, 4)
    with pytest.raises(UserError, match=r"too small for a ring of 4 frames and fast weights of width 192"):
        fast_within(4 * (FRAME + 8) + 12 * 192 * 6 - 1, MAZE, 4)
    assert fast_within(4 * (FRAME + 8) + 12 * 192 * 6, MAZE, 4) == FastGeometry(192, 1, 1, momentum=False)
    assert bytes_of(FullConfig(), MAZE) == 0
