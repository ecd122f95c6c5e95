"""The normalised sum over terms, per-clip centring, its state; values that are not finite."""

import pytest
import torch
from populations import sample

from worldmodel.errors import Diverged, UserError
from worldmodel.frechet.distance import Frechet
from worldmodel.frechet.loss import FrechetLoss, Term, centred, normalised
from worldmodel.frechet.population import Average, Queue


def two_terms(weights=(1.0, 0.3)):
    return FrechetLoss(
        (
            Term("latents", Frechet().to(sample(40, 3, 0)), Queue(capacity=16).build(3), weights[0]),
            Term(
                "pixels", Frechet(mode="diagonal").to(sample(40, 5, 1)), Average(beta=0.5, fill=8).build(5), weights[1]
            ),
        )
    )


def features(seed, n=4):
    return {"latents": sample(n, 3, seed).float(), "pixels": sample(n, 5, seed + 100).float()}


def filled(loss):
    assert not loss.ready
    while not loss.ready:
        loss.fill(features(7))
    return loss


def test_loss_is_the_weighted_sum_of_normalised_distances():
    loss, batch = filled(two_terms()), features(8)
    scored = loss(batch)
    raw = {name: term.distance(term.population.live(batch[name])).item() for name, term in loss.terms.items()}
    assert {name: value.item() for name, value in scored.distances.items()} == raw
    assert scored.loss.item() == pytest.approx(
        sum(w * raw[n] / (raw[n] + 0.01) for n, w in (("latents", 1), ("pixels", 0.3)))
    )
    assert all(torch.equal(scored.seen[name], batch[name]) for name in batch)


def test_gradient_is_that_of_the_distances_over_their_value():
    loss, batch = filled(two_terms()), features(8)
    leaves = {name: value.clone().requires_grad_() for name, value in batch.items()}
    scored = loss(leaves)
    scored.loss.backward()
    for name, weight in (("latents", 1), ("pixels", 0.3)):
        leaf = batch[name].clone().requires_grad_()
        value = loss.terms[name].distance(loss.terms[name].population.live(leaf))
        value.backward()
        torch.testing.assert_close(leaves[name].grad, weight * leaf.grad / (value.item() + 0.01), rtol=1e-5, atol=1e-8)
        assert not scored.distances[name].requires_grad and not scored.seen[name].requires_grad


def test_normalised_distance_has_the_slope_of_its_logarithm():
    for value, c, slope in ((3.0, 1.0, 0.25), (0.0, 0.1, 10), (-0.05, 0.1, 10)):
        x = torch.tensor(value, dtype=torch.float64, requires_grad=True)
        normalised(x, c).backward()
        assert x.grad.item() == pytest.approx(slope)


def test_scoring_changes_nothing_and_pushing_does():
    loss = filled(two_terms())
    before = loss.state_dict()
    scored = loss(features(8))
    assert all(torch.equal(before[key], value) for key, value in loss.state_dict().items())
    loss.push(scored.seen)
    assert any(not torch.equal(before[key], value) for key, value in loss.state_dict().items())
    assert set(before) == {
        "latents.features", "latents.position", "pixels.mean", "pixels.covariance", "pixels.count",
    }  # fmt: skip


def test_resume_is_exact():
    loss, again = filled(two_terms()), two_terms()
    again.load_state_dict(loss.state_dict())
    for seed in range(5):
        one, two = loss(features(seed)), again(features(seed))
        assert one.loss.item() == two.loss.item()
        loss.push(one.seen)
        again.push(two.seen)


def test_without_a_population_the_batch_stands_alone():
    to = Frechet().to(sample(40, 3, 0))
    loss = FrechetLoss((Term("latents", to),))
    assert loss.ready and loss.state_dict() == {}
    batch = sample(9, 3, 2)
    assert loss({"latents": batch}).distances["latents"].item() == to(batch).item()


def test_not_finite_features_name_their_term_and_change_nothing():
    loss, bad = filled(two_terms()), features(8)
    bad["pixels"][2, 1] = float("inf")
    before = loss.state_dict()
    with pytest.raises(Diverged, match="pixels: features are not finite in 1 of 4 rows"):
        loss(bad)
    with pytest.raises(Diverged, match="pixels"):
        loss.push(bad)
    assert all(torch.equal(before[key], value) for key, value in loss.state_dict().items())


def test_centred_residuals():
    truth, made = sample(5 * 8, 3, 3).unflatten(0, (5, 8)), sample(5 * 6, 3, 4).unflatten(0, (5, 6))
    found = centred(made, truth)
    torch.testing.assert_close(found[3, 2], made[3, 2] - truth[3].mean(0))
    assert centred(truth, truth).mean(1).abs().max() < 1e-12
    with pytest.raises(ValueError, match="must be"):
        centred(made, truth[:4])


def test_centring_keeps_every_rollout_in_its_own_scene():
    """Rollouts that swap scenes look perfect as a population; their residuals do not."""
    rng = torch.Generator().manual_seed(0)
    scenes = 5 * torch.randn(8, 1, 3, generator=rng, dtype=torch.float64)
    truth = scenes + torch.randn(8, 20, 3, generator=rng, dtype=torch.float64)
    swapped = truth.roll(1, 0)
    assert Frechet().to(truth.flatten(0, 1))(swapped.flatten(0, 1)).item() < 1e-6
    own = Frechet().to(centred(truth, truth).flatten(0, 1))
    assert own(centred(swapped, truth).flatten(0, 1)).item() > 10
    assert own(centred(truth, truth).flatten(0, 1)).item() < 1e-6


def test_known_bias_is_corrected():
    """A generator a + b z finds the mean and spread of its reference, seeing 8 samples in 4 dimensions at a time."""
    rng = torch.Generator().manual_seed(0)
    real = torch.tensor([1.0, -2, 0.5, 3]) + torch.tensor([2.0, 0.5, 1, 1]) * torch.randn(2000, 4, generator=rng)
    a, b = torch.zeros(4, requires_grad=True), torch.ones(4, requires_grad=True)
    loss = FrechetLoss((Term("x", Frechet().to(real), Queue(capacity=64).build(4), c=1.0),))
    loss.fill({"x": a + b * torch.randn(64, 4, generator=rng)})
    for step in range(200):
        scored = loss({"x": a + b * torch.randn(8, 4, generator=rng)})
        slopes = torch.autograd.grad(scored.loss, (a, b))
        with torch.no_grad():
            for parameter, slope in zip((a, b), slopes, strict=True):
                parameter -= 0.1 * (1 - step / 200) * slope
        loss.push(scored.seen)
    torch.testing.assert_close(a.detach(), real.mean(0), atol=0.15, rtol=0)
    torch.testing.assert_close(b.detach(), real.std(0), atol=0.15, rtol=0)


def test_bad_requests():
    with pytest.raises(UserError, match=r"latents: feature queue: holds 0 of 16"):
        two_terms()(features(0))
    with pytest.raises(ValueError, match=r"terms are \['latents', 'pixels'\]"):
        filled(two_terms())({"latents": sample(4, 3, 0)})
    with pytest.raises(UserError, match="different names"):
        FrechetLoss(())
    for wrong in (-1, float("nan"), float("inf")):
        with pytest.raises(UserError, match=f"weight {wrong}"):
            FrechetLoss((Term("x", Frechet().to(sample(9, 2, 0)), weight=wrong),))
    with pytest.raises(UserError, match=r"capacity 2\.5 must be a whole number"):
        Queue(capacity=2.5)
    state = filled(two_terms()).state_dict()
    with pytest.raises(UserError, match=r"holds \['pixels.mean'.*terms are \['latents'\]"):
        FrechetLoss((Term("latents", Frechet().to(sample(9, 3, 0)), Queue(capacity=16).build(3)),)).load_state_dict(
            state
        )
    with pytest.raises(UserError, match=r"latents: feature queue: 'features' of the checkpoint is \[16, 3\]"):
        wider = (Term("latents", Frechet().to(sample(9, 3, 0)), Queue(capacity=17).build(3)),)
        FrechetLoss(wider).load_state_dict({k: v for k, v in state.items() if k.startswith("latents")})
    with pytest.raises(UserError, match="a population of latents, this run has none"):
        alone = FrechetLoss((Term("latents", Frechet().to(sample(9, 3, 0))),))
        alone.load_state_dict({k: v for k, v in state.items() if k.startswith("latents")})
