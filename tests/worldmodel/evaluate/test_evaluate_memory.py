"""What the cost of memories is measured on, counted and compared; never how fast this machine is."""

import json
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from worldmodel.datasets import evaluate
from worldmodel.datasets.evaluate import memory
from worldmodel.errors import UserError
from worldmodel.evaluate import memory_bench, memory_cost
from worldmodel.evaluate.memory_bench import CostSettings, arms_of, measure, random_world
from worldmodel.evaluate.memory_cost import SHORT_ROUNDS, evaluate_memory
from worldmodel.memory import FullMemory, LactMemory, WindowMemory
from worldmodel.models.fast_layer import FastConfig
from worldmodel.sampler import Euler, Pipelined

POLICIES = ("window", "sink_window", "slow_fast", "retrieval", "lact", "full", "recompute")
LENGTHS = (4, 16)


def tiny(fast=None, sampler=None):
    world = random_world((4, 4), 2, 16, 1, 2)
    dit = world.dit if fast is None else replace(world.dit.cfg, fast=fast).build().eval().requires_grad_(False)
    return replace(world, dit=dit, stream=replace(world.stream, sampler=sampler or Euler(steps=2)))


@pytest.fixture(scope="module")
def costs():
    return measure(tiny(), CostSettings(budget=8, lengths=LENGTHS, rounds=4), quiet=True)


def planted(costs, **milliseconds):
    """The costs with times [rounds] of the longest context; everything else took 10 ms."""
    seconds = {name: np.full((8, 2), 0.01) for name in POLICIES}
    for name, times in milliseconds.items():
        seconds[name][:, 1] = np.array(times) / 1e3
    return replace(costs, seconds=seconds)


def test_every_policy_at_every_length(costs):
    assert tuple(costs.seconds) == tuple(costs.bytes) == POLICIES
    assert all(s.shape == (4, 2) and (s > 0).all() for s in costs.seconds.values())
    assert costs.calls == 2 and 0 < costs.difference < 1e-5 and costs.added
    frame = 2 * 16 * 4 * 4  # keys and values of 4 tokens of width 16, fp32
    assert costs.bytes["window"] == (costs.arms["window"].memory.capacity * (frame + 8),) * 2
    for policy in POLICIES[:5]:
        assert 0.8 * costs.budget < costs.bytes[policy][0] == costs.bytes[policy][1] <= costs.budget
    assert costs.bytes["full"] == tuple(n * (frame + 1) for n in LENGTHS)
    assert costs.bytes["recompute"] == tuple(n * 3 * 16 * 4 for n in LENGTHS)


@pytest.mark.parametrize("sampler", [Euler(steps=2), Pipelined(chunks=2, steps=2)])
def test_a_chunk_is_timed_after_exactly_so_many_frames(monkeypatch, sampler):
    seen, honest = list[tuple[type, int]](), memory_bench.step

    def watched(model, sample, control, state, time):
        assert (model.cfg.fast is not None) == isinstance(state.memory, LactMemory)
        assert sample == sampler
        seen.append((type(state.memory), int(state.frame)))
        chunk, after = honest(model, sample, control, state, time)
        assert bool((after.frame == state.frame + 2).all())
        return chunk, after

    monkeypatch.setattr(memory_bench, "step", watched)
    measure(tiny(sampler=sampler), CostSettings(budget=8, lengths=LENGTHS, rounds=3), quiet=True)
    timed = Counter(seen)
    for kind, policies in ((WindowMemory, 2), (LactMemory, 1), (FullMemory, 1)):
        for n in LENGTHS:
            assert timed[kind, n] == policies * (1 + 3)  # once to warm up, then the rounds
            assert timed[kind, n - 2] == policies  # the chunk that completes the context
    assert {frame for _, frame in seen} == {2, 4, 14, 16}


def test_a_models_own_fast_weights_are_used(costs):
    """And the other memories get the model without them."""
    fast = FastConfig(groups=4, expand=0.5, momentum=True)
    world = tiny(fast)
    arms, budget, added = arms_of(world, 16)
    assert not added and arms["lact"].world.dit is world.dit
    plain = arms["window"].world.dit
    assert plain.cfg == replace(world.dit.cfg, fast=None) and arms["slow_fast"].world.dit is plain
    assert all((own == world.dit.state_dict()[name]).all() for name, own in plain.state_dict().items())
    assert arms["lact"].memory.empty(world.dit.cfg.geometry, 1, world.dit.patch_in.weight).nbytes <= budget
    assert costs.arms["lact"].world.dit.cfg.fast == FastConfig(groups=costs.arms["lact"].world.dit.cfg.fast.groups)


def test_metrics_by_hand(costs):
    report = memory_cost._metrics(planted(costs, slow_fast=range(1, 9), full=[40] * 8), memory_cost.calibrate(1))
    assert report["slow_fast.time_n16"].value == pytest.approx(4.5) and report["slow_fast.time_n16"].n == 8
    assert report["slow_fast.time_n16"].interval == pytest.approx((2.75, 6.25))
    assert report["slow_fast.over_window"].value == report["slow_fast.late_over_early"].value == pytest.approx(0.45)
    assert report["full.over_window"].value == pytest.approx(4)
    assert report["full.late_over_early"].interval == pytest.approx((4, 4))
    assert report["window.time_n4"].value == pytest.approx(10) and "window.over_window" not in report
    assert report["budget_bytes"].value == costs.budget and report["lact.bytes_change"].value == 0
    assert report["full.bytes"].value == costs.bytes["full"][1]


def test_verdicts_by_hand(costs):
    def verdicts(found):
        metrics = memory_cost._metrics(found, memory_cost.calibrate(1))
        return [outcome for _, outcome, _ in memory_cost._verdicts(found, metrics)]

    noisy = [11.4] * 3 + [11.6] * 5
    fine = verdicts(planted(costs, slow_fast=[11.4] * 8, lact=[11.6] * 8, retrieval=noisy))
    assert fine == [True, True, "not shown", False, True, True, True]
    bad = replace(planted(costs), budget=costs.budget - 1, difference=2e-4)
    bad = replace(bad, bytes=costs.bytes | {"slow_fast": (8, costs.bytes["slow_fast"][1])})
    fits = max(costs.bytes[name][1] for name in POLICIES[:5]) <= costs.budget - 1
    assert verdicts(bad) == [True] * 4 + [False, fits, False]


def test_report_and_files(tmp_path, capsys):
    arguments = {"size": (4, 4), "width": 16, "depth": 1, "heads": 2, "steps": 1, "lengths": (8,), "short": True}
    assert memory(out=tmp_path, budget=8, **arguments) == 0
    printed = capsys.readouterr().out
    assert "slow_fast.time_n8" in printed and "lact: a chunk takes at most 1.15 x" in printed
    data = json.loads((tmp_path / "memory.json").read_text())
    assert data["command"] == (
        f"worldmodel evaluate memory --out {tmp_path} --budget 8 --lengths 8 --short --steps 1 --size 4 4 --width 16 "
        "--depth 1 --heads 2"
    )
    for policy in POLICIES:
        assert data["metrics"][f"{policy}.time_n8"]["n"] == SHORT_ROUNDS
        assert data["metrics"][f"{policy}.bytes"]["value"] == data["curves"]["bytes"][policy][0]
    assert data["curves"]["lengths"] == [8]
    page = (tmp_path / "memory.html").read_text()
    assert "random fast weights are added" in page and "one of random weights" in page and page.count("<svg") == 2


def test_short_form_rounds_lengths_up_to_chunks(monkeypatch, costs):
    asked = list[CostSettings]()
    monkeypatch.setattr(memory_cost, "measure", lambda world, settings, quiet: asked.append(settings) or costs)
    world = random_world((4, 4), 3, 16, 1, 2)
    evaluate_memory(world, short=True)
    assert asked[0].lengths == (9, 33, 129) and asked[0].rounds == SHORT_ROUNDS
    assert CostSettings().lengths_of(3) == (9, 18, 33, 66, 129, 258, 513)
    assert CostSettings(lengths=(8, 4, 8)).lengths_of(2) == (4, 8)


def test_bad_requests(tmp_path, monkeypatch):
    with pytest.raises(UserError, match="multiples of the chunk of 2, up to 65536, not 7"):
        measure(tiny(), CostSettings(lengths=(8, 7)), quiet=True)
    with pytest.raises(UserError, match=r"memory \w+: 3 frames are too few, chunks of 2 need 4 or more"):
        arms_of(tiny(), 3)
    with pytest.raises(UserError, match="--width is of a random model: it does not go with"):
        memory(tmp_path, width=3)
    with pytest.raises(UserError, match="--budget must be at least 1"):
        memory(budget=0)
    monkeypatch.setattr(evaluate, "random_world", lambda *_, **__: tiny())
    with pytest.raises(UserError, match="cannot be used here"):
        memory(device="nowhere")
