"""A step of the engine with the kernels: every op where auto puts it on a GPU, nothing that waits for one, one graph.

There is no GPU here: tensors are fake ones of a CUDA device, which have shapes and types but no values, so that
whatever looks at a value on the host raises.
"""

from collections import Counter
from dataclasses import replace

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from worldmodel.chunk import ActionControl
from worldmodel.kernels import backend, triton_needs
from worldmodel.memory import FullConfig, LactConfig, SlowFastConfig, WindowConfig
from worldmodel.models.dit import DiTConfig
from worldmodel.models.fast_layer import FastConfig
from worldmodel.rollout import start, step
from worldmodel.sampler import Euler, FewStep, Heun

LAYERS = 2
CONFIG = DiTConfig(channels=2, size=(4, 4), chunk=2, dim=32, depth=LAYERS, heads=2, hidden=48, actions=3, anchor=True)


def control() -> ActionControl:
    return ActionControl(torch.zeros(2, 2, 3), torch.ones(2, 2, dtype=torch.bool))


@pytest.fixture
def used(monkeypatch):
    """How often which backend of which op is chosen; Triton can."""
    counts, choose = Counter[tuple[str, str]](), backend.Op.choose
    monkeypatch.setattr(triton_needs, "reasons", lambda device: ())
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))

    def spy(self, call, setting=None):
        chosen = choose(self, call, setting)
        counts[self.name, chosen.name] += 1
        return chosen

    monkeypatch.setattr(backend.Op, "choose", spy)
    return counts


@pytest.mark.parametrize(
    "memory", [FullConfig(), WindowConfig(ring=4), WindowConfig(sink=1, ring=4), SlowFastConfig(sink=1, slow=2, fast=4)]
)
@torch.no_grad()
def test_auto_takes_triton_for_every_op_and_no_step_waits_for_the_device(used, memory):
    before, calls = backend.fallbacks(), 2
    with FakeTensorMode(), torch.device("cuda"):
        model, seed = CONFIG.build(), torch.zeros(2, dtype=torch.int64)
        state = start(model, memory, seed)
        for sampler in (FewStep(levels=(1.0, 0.5)), Euler(steps=2)):
            used.clear()
            chunk, state = step(model, sampler, control(), state)
    assert chunk.x.shape == (2, 2, 2, 4, 4) and chunk.x.device.type == "cuda"
    passes = calls + 1  # one writes the memory
    assert used == {
        ("normal", "triton"): 1, ("euler", "triton"): calls, ("modulate", "triton"): 2 * LAYERS * passes + calls,
        ("gated_residual", "triton"): 2 * LAYERS * passes, ("attention", "triton"): LAYERS * passes,
        ("qk_norm_rope", "triton"): LAYERS * (calls + 2),
    } | ({} if isinstance(memory, FullConfig) else {("write_ring", "triton"): 1})  # fmt: skip
    assert backend.fallbacks() == before


@torch.no_grad()
def test_fast_weights_and_renoising_do_not_wait_either(used):
    fast = FastConfig(groups=2, momentum=True, muon=2)
    with FakeTensorMode(), torch.device("cuda"):
        model = DiTConfig(
            channels=2, size=(4, 4), chunk=2, dim=32, depth=1, heads=2, hidden=48, actions=3, fast=fast
        ).build()
        state = start(model, LactConfig(ring=4), torch.zeros(2, dtype=torch.int64))
        for sampler in (FewStep(levels=(1.0, 0.5, 0.25)), Heun(steps=2, guidance=2.0)):
            _, state = step(model, sampler, control(), state)
    assert used["renoise", "triton"] == 2 and used["write_ring", "triton"] == 2
    assert {name for _, name in used} == {"triton"}


SLOW_FAST = pytest.param(SlowFastConfig(sink=1, slow=2, fast=4), marks=pytest.mark.slow)


@pytest.mark.parametrize("memory", [WindowConfig(sink=1, ring=4), SLOW_FAST])
@torch.no_grad()
def test_a_step_is_one_graph(memory):
    """torch.compile(fullgraph=True), dispatch and the writing of the memory included, equals what is not compiled."""
    torch.manual_seed(0)
    model = replace(CONFIG, depth=1).build()
    for p in model.parameters():
        p.add_(torch.randn_like(p) * 0.2)

    def made(run) -> list[torch.Tensor]:
        state, found = start(model, memory, torch.tensor([3, 4])), []
        for _ in range(2):
            chunk, state = run(model, FewStep(levels=(1.0, 0.5)), control(), state)
            found.append(chunk.x)
        return [*found, *state.memory.tensors().values()]

    with backend.using("reference"):
        wanted, found = made(step), made(torch.compile(step, fullgraph=True, backend="eager", dynamic=False))
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-6)
