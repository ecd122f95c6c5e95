"""What a stream costs by shapes, against what PyTorch counts where the engine streams."""

import json

import pytest
import torch
from tiny import SIZES, small_clip, small_dit
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from worldmodel.cli import main
from worldmodel.errors import UserError
from worldmodel.kernels import backend
from worldmodel.memory import FullConfig, SlowFastConfig, WindowConfig
from worldmodel.models.dit import DiTConfig
from worldmodel.models.world import StreamConfig
from worldmodel.rollout import replay, rollout, start
from worldmodel.sampler import Euler, FewStep, Pipelined
from worldmodel.stream_estimate import print_stream, stream_cost

CASES = {
    "window": ({}, StreamConfig(memory=WindowConfig(sink=2, ring=4), sampler=Euler(steps=3))),
    "guided": ({}, StreamConfig(memory=WindowConfig(ring=4), sampler=Euler(steps=2, guidance=1.5))),
    "few steps, conditions": (
        {"condition": 5, "actions": 0},
        StreamConfig(memory=WindowConfig(sink=1, ring=6), sampler=FewStep()),
    ),
    "slow-fast": ({}, StreamConfig(memory=SlowFastConfig(sink=1, slow=2, fast=3, every=2), sampler=Euler(steps=2))),
}


@pytest.mark.parametrize("name", CASES)
def test_a_chunk_costs_what_pytorch_counts(name):
    changes, stream = CASES[name]
    model = small_dit(**changes)
    clip = small_clip(model, rows=1, frames=24)
    with backend.using("sdpa"), sdpa_kernel(SDPBackend.MATH), torch.no_grad():
        state = start(model, stream.memory, torch.tensor([3]))
        made = rollout(model, replay(clip.control, model.chunk), stream.sampler, state)
        for _ in range(6):
            next(made)  # the memory is full
        with FlopCounterMode(display=False) as counted:
            _, state = next(made)
    found = stream_cost(DiTConfig(**SIZES | changes), stream, "fp32")
    assert found.memory == state.memory.nbytes
    assert found.sampling + found.remembering == pytest.approx(counted.get_total_flops(), rel=0.03)
    assert found.per_frame == (found.sampling + found.remembering) / model.chunk
    assert found.parameters == sum(p.numel() for p in model.parameters())
    assert (found.weights, found.calls) == (4 * found.parameters, stream.sampler.calls * (1 + (name == "guided")))
    assert 2 * stream_cost(DiTConfig(**SIZES | changes), stream).weights == found.weights


def test_a_rate_is_frames_a_second_times_operations_of_a_frame(tmp_path, capsys):
    model, stream = DiTConfig(**SIZES), CASES["window"][1]
    cost = stream_cost(model, stream, "fp32")
    given = {"precision": "fp32", "tflops": 1e-3, "title": "estimate tiny", "json": tmp_path / "cost.json"}
    assert print_stream(model, stream, 25.0, **given) == 0
    found = {name: metric["value"] for name, metric in json.loads(given["json"].read_text())["metrics"].items()}
    assert found["rate_needed"] == pytest.approx(25 * cost.per_frame)
    assert found["frames_per_second"] == pytest.approx(1e9 / cost.per_frame)
    assert "estimate tiny" in capsys.readouterr().out


def test_a_region_costs_less_than_its_share_of_the_picture(tmp_path):
    """Of the shipped full-size swap, regions of 384 in a picture of 832 x 480, all reference tokens included."""
    rates = []
    for size in ("48 48", "60 104"):
        file = tmp_path / f"{size[:2]}.json"
        line = f"estimate configs/swap_full_size.py --stream 20 --model.size {size} --json {file}"
        assert main(line.split()) == 0
        rates.append(json.loads(file.read_text())["metrics"]["rate_needed"]["value"])
    assert rates[0] / rates[1] < 1.2 * 384**2 / (832 * 480)
    assert rates[0] < 80e12  # about half of a large consumer GPU's dense rate in bf16


def test_what_has_no_bound_or_is_no_number_is_one_clear_line(capsys):
    model = DiTConfig(**SIZES)
    with pytest.raises(UserError, match=r"stream\.memory keeps everything"):
        stream_cost(model, StreamConfig(memory=FullConfig()))
    with pytest.raises(UserError, match="needs Euler, Heun or FewStep"):
        stream_cost(model, StreamConfig(sampler=Pipelined()))
    for fps, tflops in ((0.0, None), (float("nan"), None), (20.0, -1.0), (20.0, float("inf"))):
        with pytest.raises(UserError, match="must be a number above 0"):
            print_stream(model, StreamConfig(), fps, tflops=tflops)
    assert main(["estimate", "configs/metaworld_policy.py", "--stream", "20"]) == 2
    assert "--stream needs a run of a streamed transformer, not a PolicyRun" in capsys.readouterr().err
