"""Queue and averages: their values, their rescaled gradients, exact resume, what they refuse."""

import pytest
import torch
from populations import sample

from worldmodel.errors import Diverged, UserError
from worldmodel.frechet.distance import Frechet
from worldmodel.frechet.moments import Moments
from worldmodel.frechet.population import Average, Queue
from worldmodel.weights import read_tensors, write_tensors

BOTH = (Queue(capacity=10), Average(beta=0.8, fill=10))


def coarse(n, d, seed, scale=1.0):
    """Features that fp32 holds exactly."""
    return sample(n, d, seed, scale).float().double()


def filled(cfg, rows):
    made = cfg.build(rows.shape[1])
    for part in rows.split(4):
        made.push(part)
    return made


def ordered(rows):
    return sorted(rows.tolist())


def test_queue_holds_the_last_rows():
    rows = coarse(23, 3, 0)
    queue = Queue(capacity=10).build(3)
    for start in range(0, 21, 3):
        assert queue.ready == (start >= 10)
        queue.push(rows[start : start + 3])
    assert ordered(queue.features.double()) == ordered(rows[11:21])
    found = queue.live(rows[21:])
    assert ordered(found) == ordered(rows[13:23])
    torch.testing.assert_close(found[-2:], rows[21:], rtol=0, atol=0)
    assert ordered(queue.features.double()) == ordered(rows[11:21])  # to look changes nothing
    queue.push(rows)
    assert ordered(queue.features.double()) == ordered(rows[13:23])  # more than fit
    assert torch.equal(queue.live(rows[:10]), rows[:10])


def test_queue_gradient_averages_to_that_of_the_whole_population():
    """Every disjoint part of the same population takes its turn as the live batch."""
    rows, to = coarse(12, 3, 1), Frechet().to(sample(40, 3, 2))
    leaf = rows.clone().requires_grad_()
    to(leaf).backward()
    found = torch.zeros_like(rows)
    for part in torch.arange(12).split(4):
        others = torch.tensor([i for i in range(12) if i not in part])
        queue = filled(Queue(capacity=12), rows[torch.cat((part, others))])  # the part will be the oldest
        batch = rows[part].clone().requires_grad_()
        value = to(queue.live(batch))
        assert value.item() == pytest.approx(to(rows).item(), rel=1e-12)
        value.backward()
        found[part] = batch.grad
    torch.testing.assert_close(found / 3, leaf.grad, rtol=1e-9, atol=1e-12)  # 3 = N / n, one third of the parts each


def test_queue_gradient_of_a_parameter_is_unbiased():
    """x = a + b z under random batches of one in a hundred: the mean gradient is that of all samples live."""
    to, rng = Frechet().to(sample(60, 2, 3)), torch.Generator().manual_seed(0)
    a, b = torch.tensor([0.5, -1.0], requires_grad=True), torch.tensor([0.7, 1.3], requires_grad=True)
    z = torch.randn(20_000, 2, generator=rng)
    expected = torch.autograd.grad(to(a + b * z), (a, b))
    queue = Queue(capacity=20_000).build(2)
    queue.push((a + b * z).detach())
    found = torch.zeros(2, 2)
    for rows in torch.randperm(20_000, generator=rng).split(200):
        found += torch.stack(torch.autograd.grad(to(queue.live(a + b * z[rows])), (a, b))) / 100
    torch.testing.assert_close(found, torch.stack(expected), rtol=0.01, atol=0.01)


def test_average_is_the_mixture_of_old_and_new():
    rows, batch, beta = coarse(400, 3, 4), coarse(100, 3, 5) + 2, 0.8
    found = filled(Average(beta=beta, fill=400), rows).live(batch)
    # 400 old and 100 new rows are such a mixture; population covariances, so that the weights are exact
    every = torch.cat((rows, batch))
    spread = torch.cov(rows.T) * beta + torch.cov(batch.T) * (1 - beta)
    between = torch.cov(every.T, correction=0) - (
        torch.cov(rows.T, correction=0) * beta + torch.cov(batch.T, correction=0) * (1 - beta)
    )
    torch.testing.assert_close(found.mean, every.mean(0), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(found.covariance, spread + between, rtol=1e-9, atol=1e-9)
    assert found.count == 500


def test_average_begins_as_the_moments_of_everything():
    rows = coarse(10, 3, 6)
    made, whole = filled(Average(beta=0.8, fill=10), rows), Moments.of(rows)
    torch.testing.assert_close(made.moments.covariance, whole.covariance, rtol=1e-12, atol=1e-12)
    assert made.moments.count == 10
    batch = coarse(4, 3, 7)
    made.push(batch)
    torch.testing.assert_close(made.moments.mean, 0.8 * whole.mean + 0.2 * batch.mean(0), rtol=1e-12, atol=1e-12)


def test_average_gradient_is_that_of_the_batch_at_the_average():
    """In the limit in which the batch has the average's own moments it is the plain gradient of the batch."""
    batch, to = coarse(30, 3, 8), Frechet().to(sample(40, 3, 9))
    leaf, plain = batch.clone().requires_grad_(), batch.clone().requires_grad_()
    to(plain).backward()
    for beta in (0.0, 0.5, 0.99):
        made = Average(beta=beta, fill=30).build(3)
        made.push(batch)
        value = to(made.live(leaf))
        assert value.item() == pytest.approx(to(batch).item(), rel=1e-9)
        (found,) = torch.autograd.grad(value, leaf)
        torch.testing.assert_close(found, plain.grad, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("cfg", BOTH)
def test_resume_is_exact(cfg, tmp_path):
    """Through a file, halfway around the ring: everything after it comes out the same to the bit."""
    rows = sample(60, 5, 10).float()
    made = filled(cfg, rows[:23])
    write_tensors(made.state_dict(), tmp_path / "objective.safetensors")
    again = cfg.build(5)
    again.load_state_dict(read_tensors(tmp_path / "objective.safetensors"))
    to = Frechet().to(rows[40:].double())
    for step in range(6):
        batch = rows[23 + 3 * step : 26 + 3 * step]
        values, slopes = [], []
        for population in (made, again):
            leaf = batch.clone().requires_grad_()
            value = to(population.live(leaf))
            value.backward()
            values.append(value.item())
            slopes.append(leaf.grad)
            population.push(batch)
        assert values[0] == values[1]
        assert torch.equal(*slopes)
    for key, value in made.state_dict().items():
        assert torch.equal(value, again.state_dict()[key])


@pytest.mark.parametrize("cfg", BOTH)
def test_state_is_a_copy(cfg):
    made = filled(cfg, coarse(12, 2, 11))
    state = made.state_dict()
    kept = {key: value.clone() for key, value in state.items()}
    again = cfg.build(2)
    again.load_state_dict(state)
    for population in (made, again):
        population.push(coarse(4, 2, 12))
    assert all(torch.equal(state[key], kept[key]) for key in state)


@pytest.mark.parametrize("cfg", BOTH)
def test_gradcheck_up_to_the_scale(cfg):
    """The value moves by 1 / scale of what the gradient says, for every entry of the batch."""
    made, to, batch = filled(cfg, coarse(12, 2, 13)), Frechet().to(sample(30, 2, 14)), coarse(4, 2, 15)
    scale = 10 / 4 if isinstance(cfg, Queue) else 5
    leaf = batch.clone().requires_grad_()
    (slope,) = torch.autograd.grad(to(made.live(leaf)), leaf)
    for place in ((0, 0), (3, 1)):
        step = torch.zeros_like(batch)
        step[place] = 1e-6
        moved = (to(made.live(batch + step)) - to(made.live(batch - step))).item() / 2e-6
        assert slope[place].item() == pytest.approx(scale * moved, rel=1e-6)


def test_what_is_refused():
    queue, average = Queue(capacity=8).build(3), Average(fill=8).build(3)
    rows = coarse(8, 3, 16)
    with pytest.raises(UserError, match="holds 0 of 8 samples, fill it before the first step"):
        queue.live(rows)
    with pytest.raises(UserError, match="has 0 of 8 samples, fill it"):
        average.live(rows)
    for population in (queue, average):
        population.push(rows)
        before = population.state_dict()
        with pytest.raises(Diverged, match="not finite in 1 of 3 rows"):
            population.push(torch.tensor([[1.0, 2, 3], [1, float("nan"), 3], [1, 2, 3]]))
        assert all(torch.equal(before[key], value) for key, value in population.state_dict().items())
        with pytest.raises(ValueError, match=r"\[2, 4\]"):
            population.live(torch.zeros(2, 4))
    with pytest.raises(ValueError, match=r"\[0, 3\]"):
        queue.live(torch.zeros(0, 3))
    with pytest.raises(UserError, match="batch of 9 samples is more than its capacity 8"):
        queue.live(coarse(9, 3, 17))
    with pytest.raises(UserError, match="at least 2 samples"):
        average.push(rows[:1])
    with pytest.raises(UserError, match=r"'features' of the checkpoint is \[8, 3\], this run's \[9, 3\]"):
        Queue(capacity=9).build(3).load_state_dict(queue.state_dict())
    with pytest.raises(UserError, match=r"holds \['features', 'position'\], needed are"):
        average.load_state_dict(queue.state_dict())
    for bad in (lambda: Queue(capacity=1), lambda: Average(beta=1), lambda: Average(fill=1)):
        with pytest.raises(UserError):
            bad()
