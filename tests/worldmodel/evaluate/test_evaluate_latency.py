"""What latency counts and compares; never how fast this machine is."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from worldmodel.actions import ActionSpec
from worldmodel.errors import UserError
from worldmodel.evaluate import latency
from worldmodel.evaluate.latency import evaluate_latency
from worldmodel.evaluate.report import Metric
from worldmodel.evaluate.streams import Stream, Timed, cached_and_recompute, controls
from worldmodel.evaluate.timing import quotient_of_medians
from worldmodel.memory import FullConfig, WindowConfig
from worldmodel.models.dit import DiTConfig
from worldmodel.models.pixel_tokenizer import PixelTokenizer, PixelTokenizerConfig
from worldmodel.models.world import StreamConfig, WorldModel
from worldmodel.sampler import Euler, Heun, Pipelined


def tiny(sampler=None, memory=None, **sizes):
    torch.manual_seed(0)
    config = DiTConfig(channels=3, size=(4, 4), chunk=2, dim=16, depth=1, heads=2, hidden=16, actions=2, **sizes)
    model = config.build()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.2 * torch.randn_like(p))
    spec = ActionSpec(names=("a", "b"), low=(-1.0, -1.0), high=(1.0, 1.0))
    stream = StreamConfig(memory=memory or WindowConfig(ring=8), sampler=sampler or Euler(steps=2), context_time=0.05)
    tokenizer = PixelTokenizer(PixelTokenizerConfig())
    return WorldModel(dit=model.eval(), tokenizer=tokenizer, actions=spec, fps=10.0, stream=stream)


@pytest.fixture(scope="module")
def report():
    return evaluate_latency(tiny(), frames=250, quiet=True)


def test_everything_is_reported(report):
    found = {name: metric.value for name, metric in report.metrics.items()}
    assert {
        "frames_per_second", "frames_per_second_without_decode", "chunk_latency_p50", "chunk_latency_p95",
        "chunk_latency_p99", "late_over_early", "late_over_early_in_order", "cached_speedup", "memory_bytes",
        "memory_bytes_change", "calibration_gflops", "load_average", "decode_latency_p50",
    } <= set(found)  # fmt: skip
    assert found["streamed_frames"] == 250
    assert found["memory_bytes_change"] == 0
    assert found["cached_difference"] < 1e-5
    assert 0 < found["chunk_latency_p50"] <= found["chunk_latency_p95"] <= found["chunk_latency_p99"]
    assert found["frames_per_second"] < found["frames_per_second_without_decode"]
    assert report.metrics["late_over_early"].n == report.metrics["cached_speedup"].n == 50
    assert report.metrics["chunk_latency_p50"].n == 120
    assert found["cached_speedup"] == pytest.approx(found["recomputed_chunk"] / found["cached_chunk"])


def test_memory_bytes_are_those_of_the_stream(report):
    world = tiny()
    stream = Stream(world, world.stream.memory, 0)
    assert report.metrics["memory_bytes"].value == stream.state.memory.nbytes


def test_growing_memory_is_told():
    grown = evaluate_latency(tiny(memory=FullConfig()), frames=60, quiet=True)
    assert grown.metrics["memory_bytes_change"].value > 0
    assert False is next(good for asked, good, _ in grown.verdicts if "constant" in asked)
    assert "late_over_early_in_order" not in grown.metrics  # too few chunks for that


@pytest.mark.parametrize(
    ("sampler", "calls"),
    [
        (Euler(steps=3), 3),
        (Euler(steps=3, guidance=2.0), 3),  # of two rows
        (Heun(steps=3), 5),
        (Pipelined(chunks=2, steps=4), 4),
    ],
)
def test_recompute_makes_the_same_calls_and_the_same_velocity(sampler, calls):
    with torch.no_grad():
        stream, recompute = cached_and_recompute(tiny(sampler), 5, 1)
        assert recompute.calls == calls
        assert recompute.difference < 1e-5
        assert recompute.once().shape[0] == (2 if getattr(sampler, "guidance", 1.0) != 1.0 else 1)
        assert stream.state.frame.tolist() == [10]
        assert int((stream.state.memory.held >= 0).sum()) == 10
        stream.next()
        assert int((stream.state.memory.held >= 0).sum()) == 10


def test_a_wrong_memory_would_be_seen(monkeypatch):
    world = tiny()
    honest = world.dit.clip

    def other_times(x_t: Tensor, t: Tensor, control):
        return honest(x_t, t + 0.1, control)

    monkeypatch.setattr(world.dit, "clip", other_times)
    with torch.no_grad():
        assert cached_and_recompute(world, 4, 1)[1].difference > 1e-3


def test_copied_stream_goes_on_by_itself():
    with torch.no_grad():
        world = tiny()
        stream = Stream(world, world.stream.memory, 3)
        for _ in range(3):
            stream.next()
        other = stream.copy()
        stream.next()
        assert (stream.state.frame.tolist(), other.state.frame.tolist()) == ([8], [6])
        other.next()
        torch.testing.assert_close(other.state.memory.keys, stream.state.memory.keys, rtol=0, atol=0)


def test_controls_depend_on_their_place_only():
    world, seed = tiny(), torch.tensor([4])
    whole = controls(world, seed, torch.tensor([0]), 6)
    part = controls(world, seed, torch.tensor([4]), 2)
    assert torch.equal(whole.action[:, 4:], part.action)
    assert whole.action.abs().max() <= 1
    assert whole.has_action.all()


def test_short_form_stops_at_its_deadline(monkeypatch):
    ticks = iter(np.arange(0, 10_000, 1.0))
    monkeypatch.setattr(latency.time, "perf_counter", lambda: float(next(ticks)))
    report = evaluate_latency(tiny(), frames=5000, short=True, quiet=True)
    assert latency.LEAST_CHUNKS * 2 <= report.metrics["streamed_frames"].value < 5000
    assert report.metrics["late_over_early"].n == latency.LEAST_ROUNDS
    assert report.command.endswith("--short")


@pytest.mark.parametrize(
    ("late", "gflops", "expected"),
    [
        (Metric(1.05, "x", 9, (0.9, 1.3)), 80, (True, True)),
        (Metric(1.06, "x", 9, (1.05, 1.3)), 79, ("n/a", "not shown")),
        (Metric(1.06, "x", 9, (1.051, 1.3)), 90, (True, False)),
    ],
)
def test_noise_and_slow_machines_are_no_failure(report, late, gflops, expected):
    planted = {
        "late_over_early": late,
        "calibration_gflops": Metric(gflops),
        "frames_per_second": Metric(25.0),
    }
    verdicts = latency._verdicts(dict(report.metrics) | planted)
    assert (verdicts[0][1], verdicts[1][1]) == expected
    planted["frames_per_second"] = Metric(19.0)
    assert latency._verdicts(dict(report.metrics) | planted)[0][1] == ("n/a" if gflops < 80 else False)


def test_quotient_is_of_medians():
    over, under = np.array([2.0, 4, 100]), np.array([1.0, 2, 3])
    metric = quotient_of_medians(over, under)
    assert metric.value == 2
    assert metric.n == 3


def test_total_is_model_and_decoder():
    assert Timed(0.25, 0.5).total == 0.75


def test_bad_requests():
    with pytest.raises(UserError, match="frames 0"):
        evaluate_latency(tiny(), frames=0)


def test_model_without_actions():
    world = tiny()
    bare = replace(world, dit=replace(world.dit.cfg, actions=0).build(), actions=None)
    assert evaluate_latency(bare, frames=48, quiet=True).metrics["cached_difference"].value < 1e-5
