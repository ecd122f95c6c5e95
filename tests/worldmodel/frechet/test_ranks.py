"""Two processes with a part of the samples each equal one process that has all of them."""

import multiprocessing
import os
import socket

import pytest
import torch
from populations import sample
from torch import distributed

from worldmodel.errors import Diverged
from worldmodel.frechet.distance import Frechet
from worldmodel.frechet.loss import FrechetLoss, Term
from worldmodel.frechet.moments import Moments
from worldmodel.frechet.population import Average, Queue
from worldmodel.frechet.ranks import gather_features, merge_moments, on_all_ranks, scale_gradient

PARTS = (slice(0, 5), slice(5, 12))  # ranks with unequal parts
WEIGHT = sample(3, 3, 50)  # what is trained: features = rows @ weight


def whole_loss():
    return FrechetLoss(
        (
            Term("queue", Frechet().to(sample(30, 3, 51)), Queue(capacity=20).build(3)),
            Term("average", Frechet().to(sample(30, 3, 52)), Average(beta=0.7, fill=20).build(3), 0.5),
            Term("alone", Frechet(mode="diagonal").to(sample(30, 3, 53))),
        )
    )


def steps(part):
    """Filled by two pushes, then three steps on a part of the rows: losses, gradients, the state at the end."""
    loss, found = whole_loss(), []
    for seed in (60, 61):
        loss.fill({name: sample(12, 3, seed)[part] for name in loss.terms})
    for seed in (70, 71, 72):
        weight = WEIGHT.clone().requires_grad_()
        scored = loss({name: sample(12, 3, seed)[part] @ weight for name in loss.terms})
        scored.loss.backward()
        loss.push(scored.seen)
        found.append((scored.loss.detach(), weight.grad))
    return found, loss.state_dict()


def one_of_two(rank, port, folder):
    os.environ.update(RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    distributed.init_process_group("gloo")
    part = PARTS[rank]
    rows = sample(12, 3, 80)[part]
    gathered, merged = gather_features(rows), merge_moments(Moments.of(rows))
    found, state = steps(part)
    bad = {name: sample(12, 3, 90)[part] for name in whole_loss().terms}
    if rank == 1:
        bad["alone"][0, 0] = float("nan")
    loss = whole_loss()
    while not loss.ready:
        loss.fill({name: sample(12, 3, 60)[part] for name in loss.terms})
    skipped = False
    try:
        loss(bad)
    except Diverged:
        skipped = True
    agreed = (on_all_ranks(True), on_all_ranks(rank == 0), on_all_ranks(False))
    moments = (merged.mean, merged.covariance, merged.count)
    torch.save((gathered, *moments, found, state, skipped, agreed), folder / f"{rank}.pt")
    distributed.destroy_process_group()


def test_two_ranks_equal_one(tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    start = multiprocessing.get_context("forkserver")
    processes = [start.Process(target=one_of_two, args=(rank, port, tmp_path)) for rank in range(2)]
    for process in processes:
        process.start()
    expected, state = steps(slice(None))
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0]
    ranks = [torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in range(2)]
    rows, whole = sample(12, 3, 80), Moments.of(sample(12, 3, 80))
    for gathered, mean, covariance, count, found, end, skipped, agreed in ranks:
        assert agreed == (True, False, False)
        assert torch.equal(gathered, rows)
        torch.testing.assert_close(mean, whole.mean, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(covariance, whole.covariance, rtol=1e-12, atol=1e-12)
        assert count == 12
        assert all(torch.equal(end[key], value) for key, value in state.items())
        assert [float(value) for value, _ in found] == pytest.approx([float(value) for value, _ in expected], rel=1e-12)
        assert skipped  # both, although one rank alone had the bad row
    for step, (_, gradient) in enumerate(expected):  # data-parallel training takes the mean over ranks
        mean = (ranks[0][4][step][1] + ranks[1][4][step][1]) / 2
        torch.testing.assert_close(mean, gradient, rtol=1e-9, atol=1e-12)


def test_one_process_gathers_nothing():
    rows = sample(4, 3, 0)
    assert gather_features(rows) is rows
    assert merge_moments(moments := Moments.of(rows)) is moments


def test_scaled_gradient():
    x = sample(4, 3, 0).requires_grad_()
    y = scale_gradient(x, 2.5)
    assert torch.equal(x, y)
    y.square().sum().backward()
    torch.testing.assert_close(x.grad, 5 * x.detach())
