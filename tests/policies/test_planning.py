"""Chunks made while moving: the weights, the guidance's gradient against a closed form, fixed prefixes, ensembles."""

import numpy as np
import pytest
import torch
from torch import Tensor

from worldmodel import flow
from worldmodel.policies.flow_policy import FlowPolicy, PolicyConfig, Prepared
from worldmodel.policies.observation import Interface, Observation, Range
from worldmodel.policies.planning import Committed, ensembled, guided_by, plan
from worldmodel.sampler import Euler

NAMES = ("a", "b")
INTERFACE = Interface(
    cameras=("front",),
    size=(16, 16),
    state=Range(("q",), (0.0,), (2.0,)),
    action=Range(NAMES, (-1.0, 0.0), (1.0, 4.0)),
    vocabulary=("go", "home"),
    words=2,
    fps=10.0,
)
SIZES = PolicyConfig(chunk=6, dim=16, depth=2, heads=2, hidden=32, channels=(8, 8), keypoints=4, time_width=8)


def random_policy() -> FlowPolicy:
    """With nothing left at zero, so that all of it is at work."""
    torch.manual_seed(0)
    model = SIZES.build(INTERFACE).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    return model.requires_grad_(False)


def seen(rows: int = 2) -> Observation:
    rng = torch.Generator().manual_seed(1)
    image = torch.randint(0, 256, (rows, 1, 3, 16, 16), generator=rng, dtype=torch.uint8)
    return Observation(image, torch.rand(rows, 1, generator=rng), torch.tensor([[1, 2]] * rows), 6)


class Straight:
    """A model whose data is known: v = (x - mean) / t with data at `mean` alone, and a gain on x for a Jacobian."""

    chunk = 4

    def __init__(self, mean: Tensor) -> None:
        self.mean = mean

    def velocity(self, x: Tensor, t: Tensor, prepared: Prepared) -> Tensor:
        return (x - self.mean) * 0.5


def test_weights_hold_what_is_fixed_and_let_go_at_the_end_of_the_plan():
    weight = Committed(torch.zeros(1, 10, 2), planned=7, fixed=3).weights().numpy()
    c = (7 - np.arange(3, 7)) / (7 - 3 + 1)
    wanted = np.r_[[1] * 3, c * np.expm1(c) / np.expm1(1), [0] * 3]
    np.testing.assert_allclose(weight, wanted, atol=1e-6)
    assert (np.diff(weight) <= 0).all()


def test_guidance_is_the_closed_form_of_a_linear_field():
    """x0_hat = x - t (x - m) / 2, so J = 1 - t / 2, and everything else is arithmetic."""
    rng = np.random.default_rng(0)
    x, mean, held = (torch.from_numpy(rng.standard_normal((3, 4, 2))) for _ in range(3))
    weight = torch.tensor([1.0, 0.7, 0.2, 0.0], dtype=torch.float64)
    for time in (1.0, 0.9, 0.5, 0.1):
        t = torch.full((3, 4), time, dtype=torch.float64)
        got = guided_by(Straight(mean), Prepared(torch.zeros(3, 1)), held, weight, strongest=5.0)(x, t)
        v = (x - mean) * 0.5
        clean = x - time * v
        r2 = time**2 / (time**2 + (1 - time) ** 2)
        factor = 5.0 if time == 1 else min(5.0, time / ((1 - time) * r2))
        wanted = v - factor * (1 - time / 2) * weight[:, None] * (held - clean)
        torch.testing.assert_close(got, wanted, atol=1e-12, rtol=0)


class Steep(Straight):
    """x0_hat = (1 + g) x at t = 1 for a gain g of each row: where it is large, a small move of x_t is a large one of
    the predicted data, as where nothing has been learned."""

    def velocity(self, x: Tensor, t: Tensor, prepared: Prepared) -> Tensor:
        return -self.mean * x


def test_guidance_pulls_no_further_than_the_gap_is_wide():
    """Each row for itself, in the gradient's direction; without this the sampler overshoots by hundreds of gaps."""
    rng = np.random.default_rng(0)
    x, held = (torch.from_numpy(rng.standard_normal((3, 4, 2))) for _ in range(2))
    gain = torch.tensor([30.0, -0.5, 30.0], dtype=torch.float64)[:, None, None]
    held[2] = 31 * x[2]  # no gap in the last row
    weight = torch.tensor([1.0, 0.7, 0.2, 0.0], dtype=torch.float64)
    t = torch.ones(3, 4, dtype=torch.float64)
    got = guided_by(Steep(gain), Prepared(torch.zeros(3, 1)), held, weight, strongest=5.0)(x, t)
    gap = weight[:, None] * (held - (1 + gain) * x)
    pull = torch.tensor([1.0, 0.5, 1.0], dtype=torch.float64)[:, None, None] * gap  # 31 gaps, half a gap, nothing
    torch.testing.assert_close(got, -gain * x - 5 * pull, atol=1e-9, rtol=0)


def test_guidance_goes_through_the_whole_network():
    """Its gradient is the vector-Jacobian product that finite differences give, here a little longer than the gap."""
    model = random_policy().double()
    prepared = Prepared(torch.randn(1, 16, generator=torch.Generator().manual_seed(3), dtype=torch.float64))
    rng = torch.Generator().manual_seed(2)
    x, held = torch.randn(2, 1, 6, 2, generator=rng, dtype=torch.float64).unbind(0)
    t, weight = torch.full((1, 6), 0.5, dtype=torch.float64), torch.linspace(1, 0, 6, dtype=torch.float64)

    def clean(at: Tensor) -> Tensor:
        return flow.clean(at, model.velocity(at, t, prepared), t)

    pulled = weight[:, None] * (held - clean(x))
    gradient = torch.zeros_like(x)
    for i in range(x.numel()):
        step = torch.zeros(x.numel(), dtype=torch.float64)
        step[i] = 1e-6
        step = step.view_as(x)
        gradient.view(-1)[i] = ((clean(x + step) - clean(x - step)) / 2e-6 * pulled).sum()
    got = guided_by(model, prepared, held, weight)(x, t)
    share = pulled.norm() / gradient.norm()
    assert 0.5 < share < 1
    torch.testing.assert_close(got, model.velocity(x, t, prepared) - 2 * share * gradient, atol=1e-7, rtol=0)


def test_guided_chunks_are_nearer_to_what_was_committed_and_naive_ones_do_not_care():
    model, sampler = random_policy(), Euler(steps=8)
    held = 0.5 * torch.ones(2, 6, 2)
    committed = Committed(held, planned=4, fixed=2)
    args = (model, sampler, seen(), torch.tensor([5, 6]), torch.tensor([0, 8]))
    plain, naive = plan(*args), plan(*args, "naive", committed)
    assert torch.equal(plain, naive)
    guided = plan(*args, "guided", committed)
    assert (guided - held)[:, :2].abs().mean() < 0.5 * (plain - held)[:, :2].abs().mean()
    assert not guided.requires_grad


def test_a_prefix_is_kept_and_seen_by_the_rest():
    model, sampler = random_policy(), Euler(steps=4)
    args = (model, sampler, seen(), torch.tensor([5, 6]), torch.tensor([0, 0]))
    one, two = (
        plan(*args, "prefix", Committed(torch.full((2, 6, 2), value), planned=4, fixed=2)) for value in (0.2, -0.8)
    )
    assert torch.equal(one[:, :2], torch.full((2, 2, 2), 0.2)) and torch.equal(two[:, :2], torch.full((2, 2, 2), -0.8))
    assert (one - two)[:, 2:].abs().max() > 1e-3
    torn = torch.full((2, 6, 2), 0.2)
    torn[:, 2:] = float("nan")  # what is not fixed is never looked at
    assert torch.equal(plan(*args, "prefix", Committed(torn, planned=4, fixed=2)), one)


def test_a_chunk_depends_on_its_row_alone():
    model, sampler, both = random_policy(), Euler(steps=4), seen()
    seed, step = torch.tensor([5, 6]), torch.tensor([0, 8])
    together = plan(model, sampler, both, seed, step)
    for row in range(2):
        rows = torch.tensor([row])
        alone = plan(model, sampler, both.select(rows), seed[rows], step[rows])
        torch.testing.assert_close(alone, together[rows], atol=1e-5, rtol=0)
    assert not torch.equal(together[0], plan(model, sampler, both, seed + 1, step)[0])
    assert not torch.equal(together[0], plan(model, sampler, both, seed, step + 8)[0])


def test_an_observation_is_encoded_once_per_chunk(monkeypatch):
    model = random_policy()
    calls = []
    original = model._prepare
    monkeypatch.setattr(model, "_prepare", lambda observation: calls.append(1) or original(observation))
    plan(model, Euler(steps=7), seen(), torch.tensor([1, 2]), torch.tensor([0, 0]))
    assert calls == [1]


def test_the_instruction_matters_and_can_be_dropped():
    model = random_policy()
    both = seen()
    one = model("prepare", both).condition
    other = model("prepare", Observation(both.image, both.state, torch.tensor([[2, 0], [2, 0]]), 6)).condition
    dropped = model("prepare", both.drop(torch.tensor([True, False]))).condition
    assert (one - other).abs().max() > 1e-3
    assert (one[0] - dropped[0]).abs().max() > 1e-3 and torch.equal(one[1:], dropped[1:])


def test_units_round_trip():
    model = random_policy()
    torch.testing.assert_close(
        model.in_units(torch.tensor([[-1.0, -1.0], [1.0, 1.0]])), torch.tensor([[-1.0, 0], [1, 4]])
    )
    x = torch.randn(5, 2, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(model.normalised(model.in_units(x)), x)


def test_ensembles_weigh_the_oldest_most():
    chunks = [(0, torch.tensor([[0.0], [1.0], [2.0], [3.0]])), (2, torch.tensor([[10.0], [20.0], [30.0], [40.0]]))]
    w = np.exp(-0.5 * np.arange(2))
    assert ensembled(chunks, 1, 0.5).item() == 1.0
    assert ensembled(chunks, 3, 0.5).item() == pytest.approx((w[0] * 3 + w[1] * 20) / w.sum())
    assert ensembled(chunks, 4, 0.5).item() == 30.0
