"""The few-operations way through the blocks equals the general one; copies of weights follow the weights."""

import copy
import pickle
from dataclasses import replace

import pytest
import torch
from tiny import close, small_clip, small_dit
from torch import nn
from torch.nn import functional as F

from worldmodel import flow
from worldmodel.kernels import backend
from worldmodel.memory import FullConfig, SlowFastConfig, WindowConfig
from worldmodel.models import packed
from worldmodel.models.cpu_weights import MOST_TIMES, Weights
from worldmodel.models.lora import LoraConfig, add_lora
from worldmodel.models.packed import FEWEST_ROWS, PackedLinear, product
from worldmodel.rollout import join, replay, rollout, start
from worldmodel.sampler import Euler

SEEDS = torch.tensor([3, 4])
STYLES = [
    {},
    {"rank": 3},
    {"qk_norm": "across_heads", "pairing": "interleaved", "eps": 0.1},
    {"mlp": "swiglu", "rank": 0},
]
STYLES += [{"anchor": True, "pairing": "interleaved", "eps": 0.1}, {"condition": 3, "actions": 0, "rank": 0}]


def shaken(style):
    """A small model in which every parameter matters: norms' weights and tables are not ones and zeros."""
    model = small_dit(**style)
    rng = torch.Generator().manual_seed(0)
    for p in model.parameters():
        p.data += 0.2 * torch.randn(p.shape, generator=rng)
    return model


def both_ways(model, control, state, call):
    """What a call on a prepared chunk gives on the CPU's way, and on the general way."""
    prepared = model.prepare(control, state)
    assert prepared.cpu is not None
    return call(prepared), call(replace(prepared, cpu=None))


@pytest.mark.parametrize("style", STYLES, ids=str)
@pytest.mark.parametrize("memory", [WindowConfig(sink=1, ring=4), FullConfig(), SlowFastConfig(fast=4)], ids=str)
@torch.no_grad()
def test_velocity_and_what_is_remembered_equal_the_general_way(memory, style):
    model = shaken(style)
    clip = small_clip(model)
    size = model.chunk
    for given in (size, 3 * size):  # a memory with empty places, and a full one
        state = start(model, memory, SEEDS, clip.frames(0, given))
        part = slice(given, given + size)
        x, control = clip.x[:, part], clip.control.frames(part.start, part.stop)
        t = torch.tensor([[0.3] * size, [0.8] * size])
        fast, general = both_ways(model, control, state, lambda p: model.velocity(x, t, p))  # noqa: B023
        close(fast, general, 2e-6)
        fast, general = both_ways(model, control, state, lambda p: model._kept(x, t, p))  # noqa: B023
        close(fast[0], general[0], 2e-6)
        close(fast[1], general[1], 2e-6)


@torch.no_grad()
def test_several_chunks_and_several_choices_at_once():
    """Two chunks in flight see each other block-causally; four rows read the memory of two."""
    model = shaken({"rank": 3})
    clip = small_clip(model)
    k = model.chunk
    state = start(model, WindowConfig(ring=2 * k), SEEDS, clip.frames(0, k))
    control = clip.control.frames(k, 3 * k).select(torch.tensor([0, 1, 1, 0]))
    x, t = clip.x[[0, 1, 1, 0], k : 3 * k], torch.rand(4, 2 * k, generator=torch.Generator().manual_seed(1))
    fast, general = both_ways(model, control, state, lambda p: model.velocity(x, t, p))
    close(fast, general, 2e-6)


@torch.no_grad()
def test_a_chunk_may_be_evaluated_again():
    """Buffers that a call writes hold nothing over to the next."""
    model = shaken({})
    clip = small_clip(model)
    prepared = model.prepare(clip.control.frames(0, model.chunk), start(model, WindowConfig(ring=4), SEEDS))
    x, t = clip.x[:, : model.chunk], torch.full((2, model.chunk), 0.5)
    first = model.velocity(x, t, prepared)
    model.velocity(2 * x, t, prepared)
    assert torch.equal(model.velocity(x, t, prepared), first)


def test_training_and_named_backends_go_the_general_way():
    model = shaken({})
    control = small_clip(model).control.frames(0, model.chunk)
    state = start(model, WindowConfig(ring=4), SEEDS)
    assert model.prepare(control, state).cpu is None  # with gradients
    with torch.no_grad(), backend.using("reference"):
        assert model.prepare(control, state).cpu is None


def test_a_call_with_gradients_has_them_whatever_prepared_it():
    """A chunk prepared without gradients and evaluated with them: those of the general way."""
    model = shaken({"rank": 3})
    clip, k = small_clip(model), model.chunk
    with torch.no_grad():
        state = start(model, WindowConfig(ring=4), SEEDS, clip.frames(0, k))
        prepared = model.prepare(clip.control.frames(k, 2 * k), state)
    x, t = clip.x[:, k : 2 * k], torch.full((2, k), 0.5)
    grads = []
    for way in (prepared, replace(prepared, cpu=None)):
        given = x.clone().requires_grad_()
        model.velocity(given, t, way).square().sum().backward()
        assert given.grad is not None
        grads.append(given.grad)
    assert prepared.cpu is not None
    assert torch.equal(grads[0], grads[1])
    assert grads[0].abs().max() > 1e-3


LAYOUTS = [False] + [True] * torch.backends.mkldnn.is_available()  # whether oneDNN reorders the copy


@pytest.mark.parametrize("reordered", LAYOUTS)
@pytest.mark.parametrize("gelu", [False, True])
@torch.no_grad()
def test_a_copy_of_a_weight_is_that_of_now(gelu, reordered, monkeypatch):
    monkeypatch.setattr(packed, "reorders", lambda: reordered)
    layer, x = PackedLinear(24, 40), torch.randn(2, FEWEST_ROWS, 24)

    def wanted():
        y = F.linear(x.double(), layer.weight.double(), layer.bias.double())
        return (F.gelu(y, approximate="tanh") if gelu else y).float()

    close(product(layer, 2 * FEWEST_ROWS, gelu)(x), wanted(), 2e-6)
    assert layer.packed() is layer.packed()
    layer.weight.mul_(-2)  # an optimizer's step
    close(product(layer, 2 * FEWEST_ROWS, gelu)(x), wanted(), 2e-6)
    layer.weight = nn.Parameter(torch.randn(40, 24))
    close(product(layer, 2 * FEWEST_ROWS, gelu)(x), wanted(), 2e-6)
    for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        other.weight.mul_(3)
        close(product(other, 2 * FEWEST_ROWS)(x), F.linear(x, other.weight, other.bias), 2e-6)
    assert set(layer.state_dict()) == {"weight", "bias"}


@pytest.mark.parametrize("reordered", LAYOUTS)
@torch.no_grad()
def test_gelu_of_large_and_small_numbers(reordered, monkeypatch):
    monkeypatch.setattr(packed, "reorders", lambda: reordered)
    layer = PackedLinear(1, 1)
    layer.weight.fill_(1)
    layer.bias.fill_(0)
    sizes = torch.logspace(-20, 20, FEWEST_ROWS * 8)
    x = torch.cat((-sizes, torch.zeros(1), sizes))[:, None]
    made, wanted = product(layer, len(x), gelu=True)(x), F.gelu(x.double(), approximate="tanh")
    assert ((made - wanted).abs() <= 4e-7 * x.abs()).all()


@pytest.mark.parametrize("change", ["in place", "data", "another weight", "another layer", "outside the blocks"])
@torch.no_grad()
def test_what_is_kept_of_the_weights_is_that_of_now(change):
    model = shaken({"rank": 3})
    clip, k = small_clip(model), model.chunk
    x, t, control = clip.x[:, :k], torch.full((2, k), 0.5), clip.control.frames(0, k)
    state = start(model, WindowConfig(ring=4), SEEDS)
    before = model.velocity(x, t, model.prepare(control, state))
    block = model.blocks[1]
    match change:
        case "in place":
            block.up.weight.mul_(-2)
        case "data":
            block.norm_k.weight.data = -block.norm_k.weight
        case "another weight":
            block.table = nn.Parameter(block.table + 1)
        case "another layer":
            block.mlp.up = PackedLinear(block.mlp.up.in_features, block.mlp.up.out_features)
        case "outside the blocks":
            model.time[0].weight.mul_(-2)
    fast, general = both_ways(model, control, state, lambda p: model.velocity(x, t, p))
    close(fast, general, 2e-6)
    assert (fast - before).abs().max() > 1e-3


@pytest.mark.parametrize("target", ["shared", "blocks.1.down", "blocks.1.up", "blocks.1.mlp.up", "time.0", "patch_out"])
@torch.no_grad()
def test_adapters_count(target):
    model = shaken({"rank": 3})
    clip, k = small_clip(model), model.chunk
    adapted = add_lora(model, LoraConfig(rank=2, targets=(target,)))
    for name, p in adapted.named_parameters():
        if name.endswith("lora_b"):
            p.fill_(0.5)
    control, x, t = clip.control.frames(0, k), clip.x[:, :k], torch.full((2, k), 0.5)
    state = start(adapted, WindowConfig(ring=4), SEEDS)
    for _ in range(2):
        prepared = adapted.prepare(control, state)
        given = adapted.velocity(x, t, prepared)
        close(given, adapted.velocity(x, t, replace(prepared, cpu=None)), 2e-6)
        assert (given - model.velocity(x, t, model.prepare(control, state))).abs().max() > 1e-3


@torch.no_grad()
def test_what_is_kept_is_kept_until_a_weight_changes_and_of_flow_times_not_more_than_a_few():
    model = shaken({})
    weights = Weights.of(model, 32)
    assert weights is not None
    assert Weights.of(model, 64) is weights
    assert Weights.of(model, FEWEST_ROWS - 1) is not weights
    assert Weights.of(model, 32) is weights
    for i in range(2 * MOST_TIMES):
        t = torch.tensor([[i / 200, 0.5]])
        wanted = model.time(flow.embed_time(t, model.cfg.time_width))[0]
        close(weights.embedded(t), wanted, 1e-6)
        assert weights.embedded(t) is weights.embedded(t)
    assert 0 < len(weights.times) <= MOST_TIMES
    model.blocks[0].out.bias.add_(1)
    assert Weights.of(model, 32) is not weights


@torch.no_grad()
def test_a_stream_is_the_general_way_s_stream():
    """Sampling with guidance and remembering, chunk after chunk."""
    model, sampler = shaken({"rank": 3}), Euler(steps=3, guidance=1.5)
    clip = small_clip(model)

    def made(name):
        with backend.using(name):
            state = start(model, WindowConfig(ring=4), SEEDS)
            return join(rollout(model, replay(clip.control, model.chunk), sampler, state))

    close(made("auto"), made("reference"), 1e-5)
