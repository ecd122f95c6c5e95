"""The transformer's chunks through the kernels' attention, over a memory with gaps, against masks and the CPU pass."""

import pytest
import torch

from worldmodel.chunk import ActionControl, Clip
from worldmodel.kernels import backend
from worldmodel.memory import FullConfig, SlowFastConfig, WindowConfig
from worldmodel.models.dit import DiTConfig
from worldmodel.rollout import start

MEMORIES = [FullConfig(), WindowConfig(sink=1, ring=6), SlowFastConfig(sink=1, slow=2, fast=4, every=1, surprise=1)]


@pytest.mark.parametrize("name", ["sdpa", "reference"])
@pytest.mark.parametrize("memory", MEMORIES, ids=str)
@pytest.mark.parametrize("frames", [2, 4])
@torch.no_grad()
def test_a_named_backend_makes_the_same_chunk(name, memory, frames):
    torch.manual_seed(0)
    model = DiTConfig(channels=2, size=(4, 4), chunk=2, dim=32, depth=2, heads=2, hidden=48, actions=3).build()
    for p in model.parameters():
        p.add_(torch.randn_like(p) * 0.2)

    def control(length: int) -> ActionControl:
        return ActionControl(torch.rand(2, length, 3) * 2 - 1, torch.ones(2, length, dtype=torch.bool))

    seen, now = control(4), control(frames)
    x, x_t, t = torch.randn(2, 4, 2, 4, 4), torch.randn(2, frames, 2, 4, 4), torch.rand(2, frames)

    def made() -> torch.Tensor:
        state = start(model, memory, torch.arange(2), Clip(x, seen, torch.arange(2)))
        return model("velocity", x_t, t, model("prepare", now, state))

    wanted = made()
    with backend.using(name):
        found = made()
    assert wanted.abs().amax() > 0.1
    torch.testing.assert_close(found, wanted, rtol=0, atol=2e-5)
