"""Activation checkpointing changes memory and time, never a gradient."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from worldmodel.chunk import ActionControl, Clip
from worldmodel.memory import FullConfig, WindowConfig
from worldmodel.models.dit import DiTConfig
from worldmodel.objectives.flow_matching import FlowMatching
from worldmodel.rollout import start

FRAMES, CHUNK = 6, 2


@pytest.fixture(params=["ours", "wan"])
def model(request):
    torch.manual_seed(0)
    kind = {
        "ours": {"mlp": "swiglu", "rank": 3},
        "wan": {"qk_norm": "across_heads", "pairing": "interleaved", "learned_position": False, "text": 5},
    }[request.param]
    dit = DiTConfig(channels=3, size=(4, 6), chunk=CHUNK, dim=24, depth=3, heads=2, hidden=40, actions=2, **kind)
    dit = dit.build()
    for p in dit.parameters():
        nn.init.normal_(p, std=0.2)
    return dit


@pytest.fixture
def clip(model):
    g = torch.Generator().manual_seed(1)
    text = torch.randn(2, 4, 5, generator=g) if model.cfg.text else None
    has_action = torch.rand(2, FRAMES, generator=g) > 0.3
    control = ActionControl(torch.rand(2, FRAMES, 2, generator=g), has_action, text)
    return Clip(torch.randn(2, FRAMES, *model.frame_shape, generator=g), control, torch.tensor([5, 9]))


def gradients(model, checkpointing, loss):
    """Gradients of every parameter, how many blocks ran, and how many of them ran again in the backward pass."""
    model.zero_grad()
    model.checkpointing = checkpointing
    calls = []
    hooks = [b.register_forward_pre_hook(lambda *_: calls.append(None)) for b in model.blocks]
    value = loss()
    forward = len(calls)
    value.backward()
    for hook in hooks:
        hook.remove()
    return {n: p.grad.clone() for n, p in model.named_parameters()}, forward, len(calls) - forward


def compare(model, loss):
    plain, blocks, again = gradients(model, False, loss)
    assert again == 0
    recomputed, _, again = gradients(model, True, loss)
    assert 0 < again <= blocks  # it really recomputes (not what the loss does not need)
    for name, g in plain.items():
        assert g.abs().max() > 0, name
        assert (g - recomputed[name]).abs().max() <= 1e-6 * max(1.0, g.abs().max().item()), name


@pytest.mark.parametrize("chunk_noise", ["teacher", "independent"])
def test_training_loss(model, clip, chunk_noise):
    """`teacher` goes through the history path."""
    objective = FlowMatching(chunk_noise=chunk_noise, context_noise=0.3, context=1).build(model, model.cfg, seed=3)
    compare(model, lambda: objective.loss(clip))


@pytest.mark.parametrize("memory", [FullConfig(), WindowConfig(sink=1, ring=4)])
def test_through_the_memory(model, clip, memory):
    """Velocity, remember, next velocity: the second chunk's loss reaches the weights through what was remembered."""
    control = clip.control

    def velocity(state, frames):
        x, t = clip.x[:, frames], torch.full((2, CHUNK), 0.4)
        return model("velocity", x, t, model("prepare", control.frames(frames.start, frames.stop), state))

    def loss():
        state = start(model, memory, torch.tensor([1, 2]))
        total = clip.x.new_zeros(())
        for chunk in clip.chunks(CHUNK):
            first = int(chunk.start[0])
            v = velocity(state, slice(first, first + CHUNK))
            total = total + v.square().mean()
            made = replace(chunk, x=chunk.x - 0.4 * v)  # remember what was generated, with its graph
            state = replace(state, memory=model("remember", made, state), frame=state.frame + CHUNK)
        return total

    compare(model, loss)


def test_only_the_memory_carries_the_gradient(model, clip):
    """Without the direct loss of the first chunk, its latents still get the same gradient through the memory."""
    grads = []
    for model.checkpointing in (False, True):
        x = clip.x[:, :CHUNK].clone().requires_grad_()
        state = start(model, FullConfig(), torch.tensor([1, 2]))
        first = replace(next(clip.chunks(CHUNK)), x=x)
        state = replace(state, memory=model.remember(first, state), frame=state.frame + CHUNK)
        prepared = model.prepare(clip.control.frames(CHUNK, 2 * CHUNK), state)
        model.velocity(clip.x[:, CHUNK : 2 * CHUNK], torch.full((2, CHUNK), 0.4), prepared).square().mean().backward()
        grads.append(x.grad)
    assert grads[0].abs().max() > 0
    assert (grads[0] - grads[1]).abs().max() <= 1e-6
