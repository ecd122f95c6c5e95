"""Muon against the singular value decomposition, schedules and groups against their formulas."""

import json
import math
import os

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import FROM_CLEAN, free_port, small_dit
from torch import distributed, nn

from worldmodel import optim
from worldmodel.errors import UserError
from worldmodel.kernels.newton_schulz import QUINTIC
from worldmodel.optim import AdamW, Muon, MuonOptimizer, Schedule, divide, orthogonalise
from worldmodel.weights import read_tensors, write_tensors


def by_svd(g, steps=5):
    """The same quintic, applied to the singular values in fp64."""
    u, s, v = torch.linalg.svd(g.double(), full_matrices=False)
    s = s / torch.linalg.vector_norm(s, dim=-1, keepdim=True)
    a, b, c = QUINTIC
    for _ in range(steps):
        s = a * s + b * s**3 + c * s**5
    return u * s[..., None, :] @ v


@pytest.mark.parametrize("shape", [(8, 8), (5, 12), (12, 5), (1, 6), (3, 4, 9), (2, 2, 7, 3)])
@pytest.mark.parametrize("steps", [1, 5])
def test_orthogonalise_equals_the_svd(shape, steps):
    g = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    made = orthogonalise(g, steps)
    assert made.shape == g.shape and made.dtype == g.dtype
    assert (made.double() - by_svd(g, steps)).abs().max() < 1e-5


@given(st.integers(1, 12), st.integers(1, 12), st.integers(0, 99), st.floats(1e-2, 1e4))
@settings(deadline=None, max_examples=40)
def test_orthogonalise_ignores_the_scale(m, n, seed, scale):
    g = torch.randn(m, n, generator=torch.Generator().manual_seed(seed))
    torch.testing.assert_close(orthogonalise(g * scale), orthogonalise(g), rtol=0, atol=2e-3)


def test_orthogonalise_of_nothing_is_nothing():
    assert torch.equal(orthogonalise(torch.zeros(3, 4)), torch.zeros(3, 4))


def test_muon_steps_in_closed_form():
    """Nesterov momentum, orthogonalised, scaled, with decoupled weight decay; two steps with known gradients."""
    rng = torch.Generator().manual_seed(0)
    p = nn.Parameter(torch.randn(6, 4, generator=rng))
    start, grads = p.detach().double().clone(), [torch.randn(6, 4, generator=rng) for _ in range(2)]
    optimizer = MuonOptimizer([{"params": [p]}], lr=0.1, momentum=0.9, weight_decay=0.05)
    momentum, expected = torch.zeros(6, 4, dtype=torch.float64), start
    for g in grads:
        p.grad = g.clone()
        optimizer.step()
        momentum = 0.9 * momentum + 0.1 * g.double()
        update = 0.1 * g.double() + 0.9 * momentum
        expected = expected * (1 - 0.1 * 0.05) - 0.1 * 0.2 * math.sqrt(6) * by_svd(update)
    torch.testing.assert_close(p.detach().double(), expected, rtol=0, atol=1e-6)


def test_updates_have_adams_size():
    p = nn.Parameter(torch.zeros(64, 256))
    p.grad = torch.randn(64, 256, generator=torch.Generator().manual_seed(0))
    MuonOptimizer([{"params": [p]}], lr=1.0, momentum=0.0, weight_decay=0.0).step()
    assert 0.15 < float(p.detach().square().mean().sqrt()) < 0.25


@pytest.mark.parametrize("parts", [1, 2, 3])
def test_fused_matrices_are_split(parts):
    rng = torch.Generator().manual_seed(0)
    p, g = nn.Parameter(torch.zeros(12, 5)), torch.randn(12, 5, generator=rng)
    g[:4] *= 100  # queries with large gradients must not drown keys and values
    p.grad = g.clone()
    MuonOptimizer([{"params": [p], "parts": parts}], lr=1.0, momentum=0.0, weight_decay=0.0).step()
    pieces = [-0.2 * math.sqrt(max(12 // parts, 5)) * by_svd(piece) for piece in g.chunk(parts)]
    torch.testing.assert_close(p.detach().double(), torch.cat(pieces), rtol=0, atol=1e-5)


def test_muon_takes_the_blocks_matrices():
    model = small_dit(text=12)
    muon, adam = Muon(lr=0.02, weight_decay=0.3).build(model)
    names = {id(p): n for n, p in model.named_parameters()}
    groups = {g["parts"]: {names[id(p)] for p in g["params"]} for g in muon.param_groups}
    assert groups[3] == {f"blocks.{i}.qkv.weight" for i in range(2)}
    assert groups[2] == {f"blocks.{i}.cross.kv.weight" for i in range(2)}
    layers = ("out", "cross.q", "cross.out", "mlp.up", "mlp.down", "down", "up")
    assert groups[1] == {f"blocks.{i}.{layer}.weight" for i in range(2) for layer in layers}
    rest = {names[id(p)] for g in adam.param_groups for p in g["params"]}
    assert rest.isdisjoint(set().union(*groups.values()))
    assert rest | set().union(*groups.values()) == set(names.values())
    decays = {names[id(p)]: g["weight_decay"] for g in adam.param_groups for p in g["params"]}
    assert all(decays[n] == (0.3 if p.ndim >= 2 else 0.0) for n, p in model.named_parameters() if n in decays)


def test_frozen_parameters_are_left_alone():
    model = small_dit()
    model.blocks.requires_grad_(False)
    (only,) = Muon().build(model)  # no matrix of a block is trained
    assert isinstance(only, torch.optim.AdamW)
    (adam,) = AdamW(lr=0.1, weight_decay=0.2).build(model)
    trained = {id(p) for g in adam.param_groups for p in g["params"]}
    assert trained == {id(p) for p in model.parameters() if p.requires_grad}
    assert {(g["lr"], g["weight_decay"]) for g in adam.param_groups} == {(0.1, 0.2), (0.1, 0.0)}


def test_a_parameter_without_gradient_is_skipped():
    p, q = nn.Parameter(torch.ones(2, 2)), nn.Parameter(torch.ones(2, 2))
    p.grad = torch.ones(2, 2)
    MuonOptimizer([{"params": [p, q]}], lr=0.1, momentum=0.9, weight_decay=0.5).step()
    assert not torch.equal(p, torch.ones(2, 2)) and torch.equal(q, torch.ones(2, 2))


def three_steps_of_muon(processes):
    """A model after three steps with gradients that depend on the step alone, and how many matrices were worked on."""
    model, original, seen = small_dit(text=12), optim.orthogonalise, []
    muon, _ = Muon(lr=0.02, weight_decay=0.3).build(model)
    optim.orthogonalise = lambda g: seen.append(tuple(g.shape)) or original(g)
    for step in range(3):
        rng = torch.Generator().manual_seed(step)
        for p in model.parameters():
            p.grad = torch.randn(p.shape, generator=rng)
        model.blocks[0].out.weight.grad = None if step == 1 else model.blocks[0].out.weight.grad
        muon.step()
    optim.orthogonalise = original
    assert distributed.is_initialized() == (processes > 1)
    return {n: p.detach() for n, p in model.named_parameters()}, seen


def one_of_several(rank, count, port, out):
    """The target of a process: its weights and what it worked on, to files."""
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(count), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    distributed.init_process_group("gloo")
    weights, seen = three_steps_of_muon(count)
    write_tensors(weights, out / f"{rank}.safetensors")
    (out / f"{rank}.json").write_text(json.dumps(seen))
    distributed.destroy_process_group()


def test_processes_share_the_work_of_muon(tmp_path):
    """The bits of one process, and every matrix is orthogonalised once, by one of them."""
    count, port = 2, free_port()
    processes = [FROM_CLEAN.Process(target=one_of_several, args=(rank, count, port, tmp_path)) for rank in range(count)]
    for process in processes:
        process.start()
    weights, seen = three_steps_of_muon(1)
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0]
    work = [[tuple(shape) for shape in json.loads((tmp_path / f"{rank}.json").read_text())] for rank in range(count)]
    assert sorted(work[0] + work[1]) == sorted(seen)
    costs = [sum(a * b * c * min(b, c) for a, b, c in shapes) for shapes in work]
    assert max(costs) < 1.1 * min(costs)
    for rank in range(count):
        found = read_tensors(tmp_path / f"{rank}.safetensors")
        assert all(torch.equal(found[name], weights[name]) for name in weights)


def test_work_is_divided_evenly():
    assert divide([1, 5, 4, 2], 2) == [0, 0, 1, 1]
    assert divide([3], 4) == [0] and divide([], 2) == []


@given(st.lists(st.integers(1, 1000), min_size=1), st.integers(1, 9))
@settings(deadline=None)
def test_no_share_of_the_work_is_far_above_the_mean(costs, shares):
    owners = divide(costs, shares)
    loads = [sum(c for c, owner in zip(costs, owners, strict=True) if owner == share) for share in range(shares)]
    assert sum(loads) == sum(costs) and max(loads) <= sum(costs) / shares + max(costs)


@given(st.integers(0, 300), st.integers(0, 20), st.integers(1, 300), st.floats(0, 1))
@settings(deadline=None)
def test_schedule(step, warmup, steps, floor):
    cosine, constant = Schedule(warmup=warmup, floor=floor), Schedule(shape="constant", warmup=warmup)
    if step < warmup:
        assert cosine(step, steps) == constant(step, steps) == (step + 1) / warmup
        return
    assert constant(step, steps) == 1.0
    done = min(1.0, (step - warmup) / max(1, steps - warmup))
    expected = floor + (1 - floor) * math.cos(math.pi * done / 2) ** 2  # the half-angle form
    assert math.isclose(cosine(step, steps), expected, rel_tol=1e-9, abs_tol=1e-12)
    assert floor - 1e-12 <= cosine(step, steps) <= 1


def test_schedule_values():
    schedule = Schedule(warmup=4, floor=0.1)
    assert [schedule(s, 104) for s in (0, 3, 4, 54, 104)] == pytest.approx([0.25, 1.0, 1.0, 0.55, 0.1])
    assert Schedule(warmup=0)(0, 10) == 1.0


@pytest.mark.parametrize(
    ("make", "values", "message"),
    [
        (AdamW, {"lr": math.nan}, r"optimizer\.lr must be a finite number of at least 0, not nan"),
        (Muon, {"lr": -1.0}, r"optimizer\.lr must be a finite number of at least 0, not -1\.0"),
        (Muon, {"lr": math.inf}, r"optimizer\.lr must be a finite number"),
        (AdamW, {"weight_decay": -0.1}, r"optimizer\.weight_decay must be a finite number"),
        (AdamW, {"betas": (0.9, 1.0)}, r"optimizer\.betas must be in \[0, 1\), not 0\.9, 1\.0"),
        (Muon, {"momentum": 1.0}, r"optimizer\.momentum must be in \[0, 1\), not 1\.0"),
        (Schedule, {"warmup": -1}, r"schedule\.warmup must be at least 0, not -1"),
        (Schedule, {"floor": 1.5}, r"schedule\.floor must be in \[0, 1\], not 1\.5"),
    ],
)
def test_values_that_no_training_can_use(make, values, message):
    with pytest.raises(UserError, match=message):
        make(**values)
