"""The estimate against what PyTorch really allocates and computes."""

import contextlib
import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from diffusers import WanTransformer3DModel
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import traced
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from worldmodel.chunk import ActionControl, Clip
from worldmodel.errors import UserError
from worldmodel.estimate import Workload, estimate, print_estimate
from worldmodel.footprint import activations, operations
from worldmodel.memory import LactConfig, RetrievalConfig, SlowFastConfig, WindowConfig
from worldmodel.models.dit import DiTConfig
from worldmodel.models.fast_layer import FastConfig
from worldmodel.models.lora import LoraConfig, add_lora
from worldmodel.models.wan_layout import dit_config
from worldmodel.models.world import StreamConfig
from worldmodel.objectives.flow_matching import FlowMatching
from worldmodel.optim import AdamW, Muon

SMALL = DiTConfig(channels=4, size=(8, 8), chunk=2, dim=48, depth=4, heads=4, hidden=160, actions=3)
WAN_ARITHMETIC = {"qk_norm": "across_heads", "pairing": "interleaved", "learned_position": False, "text": 10}
WAN_1_3B = {
    "patch_size": [1, 2, 2], "num_attention_heads": 12, "attention_head_dim": 128, "in_channels": 16,
    "out_channels": 16, "text_dim": 4096, "freq_dim": 256, "ffn_dim": 8960, "num_layers": 30, "eps": 1e-6,
}  # fmt: skip
CASES = {
    "plain": Workload(model=SMALL, batch=2, frames=6),
    "independent": Workload(model=SMALL, batch=2, frames=6, objective=FlowMatching(chunk_noise="independent")),
    "swiglu": Workload(model=replace(SMALL, mlp="swiglu", rank=8), batch=1, frames=8),
    "wan": Workload(model=replace(SMALL, **WAN_ARITHMETIC), batch=2, frames=6, text_tokens=9),
    "anchor": Workload(
        model=replace(SMALL, anchor=True), batch=2, frames=8, objective=FlowMatching(context=2, context_noise=0.1)
    ),
    "wide": Workload(model=replace(SMALL, dim=96, hidden=384, depth=3), batch=2, frames=4),
    "lora": Workload(model=SMALL, batch=2, frames=6, lora=LoraConfig(rank=4)),
    "wan lora": Workload(
        model=replace(SMALL, **WAN_ARITHMETIC), batch=2, frames=6, text_tokens=9, lora=LoraConfig(rank=4)
    ),
    "checkpointing": Workload(model=replace(SMALL, depth=8), batch=2, frames=6, checkpointing=True),
    "wan lora checkpointing": Workload(
        model=replace(SMALL, **WAN_ARITHMETIC, depth=8), batch=2, frames=6, text_tokens=9, lora=LoraConfig(rank=4),
        checkpointing=True,
    ),
    "bf16": Workload(model=SMALL, batch=2, frames=6, precision="bf16"),
    "wan bf16": Workload(model=replace(SMALL, **WAN_ARITHMETIC), batch=2, frames=6, text_tokens=9, precision="bf16"),
    "lora bf16 checkpointing": Workload(
        model=replace(SMALL, depth=8), batch=2, frames=6, lora=LoraConfig(rank=4), checkpointing=True, precision="bf16"
    ),
}  # fmt: skip
LACT = StreamConfig(memory=LactConfig(ring=2))
MEMORIES = {
    "fast weights": Workload(
        model=replace(SMALL, fast=FastConfig(groups=4, expand=1.5)), batch=2, frames=8, stream=LACT
    ),
    "momentum and muon": Workload(
        model=replace(SMALL, fast=FastConfig(groups=3, momentum=True, muon=2)), batch=2, frames=6, stream=LACT
    ),
    "fast weights bf16": Workload(
        model=replace(SMALL, fast=FastConfig(groups=2, expand=0.5, momentum=True)), batch=2, frames=6, stream=LACT,
        precision="bf16", objective=FlowMatching(chunk_noise="independent"),
    ),
    "fast weights lora checkpointing": Workload(
        model=replace(SMALL, depth=8, fast=FastConfig(groups=3)), batch=2, frames=6, stream=LACT,
        lora=LoraConfig(rank=4), checkpointing=True, objective=FlowMatching(chunk_noise="independent"),
    ),
    "sink and window": Workload(
        model=SMALL, batch=2, frames=14, stream=StreamConfig(memory=WindowConfig(sink=1, ring=3)),
    ),
    "slow-fast": Workload(
        model=replace(SMALL, rank=8), batch=2, frames=14,
        stream=StreamConfig(memory=SlowFastConfig(sink=1, slow=3, fast=4, every=2)),
    ),
    "retrieval": Workload(
        model=SMALL, batch=2, frames=12, stream=StreamConfig(memory=RetrievalConfig(sink=0, bank=3, read=2, ring=2)),
        objective=FlowMatching(chunk_noise="independent"),
    ),
}  # fmt: skip
CASES |= MEMORIES


def real(work):
    """The real model of a workload and its loss."""
    torch.manual_seed(0)
    model = work.model.build()
    if work.lora is not None:
        model = add_lora(model.bfloat16() if work.precision == "bf16" else model, work.lora)
    model.checkpointing = work.checkpointing
    rows, cfg = work.batch // work.micro, work.model
    text = torch.randn(rows, work.text_tokens, cfg.text) if cfg.text else None
    has_action = torch.ones(rows, work.frames, dtype=torch.bool)
    control = ActionControl(torch.randn(rows, work.frames, cfg.actions), has_action, text)
    clip = Clip(torch.randn(rows, work.frames, *model.frame_shape), control, torch.arange(rows))
    objective = work.objective.build(model, cfg, 0, work.stream.memory)

    def loss():
        half = torch.autocast("cpu", torch.bfloat16) if work.precision == "bf16" else contextlib.nullcontext()
        with half:
            return objective.loss(clip)

    return model, loss


@pytest.mark.parametrize("name", CASES)
def test_activations_are_what_is_allocated(name):
    work = CASES[name]
    _, loss = real(work)
    loss().backward()  # gradients are there
    value, held, _ = traced(loss)
    _, _, more = traced(value.backward)
    found = activations(work.build(), work.shapes)
    memory = estimate(work).memory
    casts = 0 if work.checkpointing else memory.casts  # with checkpointing they are gone after the forward pass
    assert found.held(work.model.depth, work.checkpointing) + casts == pytest.approx(held, rel=0.10)
    assert memory.casts + memory.activations == pytest.approx(held + more, rel=0.10)


@pytest.mark.parametrize(
    "name",
    ["plain", "independent", "swiglu", "wan", "wide", "lora", "fast weights", "momentum and muon", "sink and window",
     "slow-fast", "retrieval"],
)  # fmt: skip
def test_activations_are_what_autograd_saves(name):
    model, loss = real(CASES[name])
    own, saved = {p.untyped_storage()._cdata for p in model.parameters()}, {}

    def keep(tensor):
        storage = tensor.untyped_storage()
        if storage._cdata not in own:
            saved[storage._cdata] = storage
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        loss()
    found = activations(CASES[name].build(), CASES[name].shapes).held(CASES[name].model.depth, False)
    assert found == pytest.approx(sum(s.nbytes() for s in saved.values()), rel=0.02)


def seen_by_hand(memory, start, places):
    """Frames that the chunk from `start` on looks at before itself; places that are empty yet are looked at, masked."""
    match memory:
        case WindowConfig(sink=0) | LactConfig():
            return min(start, places)
        case WindowConfig(sink=sink, ring=ring):
            return sink + min(ring, max(0, start - sink))
        case SlowFastConfig(sink=sink, fast=near):
            return places - near + min(near, max(0, start - sink))
        case RetrievalConfig(ring=near):
            return places - near + min(near, start)
        case _:  # everything
            return start


@pytest.mark.parametrize("name", [n for n in CASES if "bf16" not in n])
def test_operations_are_those_that_pytorch_counts(name):
    """The math backend, whose backward pass of attention does not compute the scores again."""
    work = CASES[name]
    _, loss = real(work)
    with sdpa_kernel(SDPBackend.MATH):
        with FlopCounterMode(display=False) as forward:
            value = loss()
        with FlopCounterMode(display=False) as backward:
            value.backward()
    found, shapes, cfg = operations(work.build(), work.shapes, work.checkpointing), work.shapes, work.model
    chunks, first, memory = work.frames // cfg.chunk, (work.frames - shapes.made) // cfg.chunk, work.stream.memory
    numbers = [*range(chunks - 1 if shapes.history else 0), *range(first, chunks)]
    places = cfg.chunk * chunks if memory.capacity is None else memory.capacity
    read = sum(seen_by_hand(memory, i * cfg.chunk, places) + cfg.chunk for i in numbers)
    tokens, chunk = shapes.seen * cfg.geometry.tokens, cfg.chunk * cfg.geometry.tokens
    scores = 4 * shapes.rows * (read * cfg.geometry.tokens * chunk + tokens * shapes.text) * cfg.dim * cfg.depth
    assert found.forward == forward.get_total_flops()
    expected = backward.get_total_flops() + 0.5 * scores
    frozen_text = work.lora is not None and cfg.text  # whose attention needs no gradient of keys and values
    assert found.backward + found.again == pytest.approx(expected, rel=0.02 if frozen_text else 1e-9)


@pytest.mark.parametrize("optimizer", [AdamW(), Muon()])
@pytest.mark.parametrize("lora", [None, LoraConfig(rank=4)])
def test_states_have_the_estimated_size(optimizer, lora):
    work = Workload(model=SMALL, batch=2, frames=4, optimizer=optimizer, lora=lora)
    model, loss = real(work)
    optimizers = optimizer.build(model)
    loss().backward()
    for o in optimizers:
        o.step()
    states = [t for o in optimizers for state in o.state.values() for t in state.values() if t.ndim > 0]
    memory = estimate(work).memory
    assert memory.optimizer == sum(t.nbytes for t in states)
    assert memory.gradients == sum(p.grad.nbytes for p in model.parameters() if p.grad is not None)
    assert memory.weights == sum(p.nbytes for p in model.parameters())


def test_a_whole_step_peaks_where_estimated():
    work = replace(CASES["wan"], ema=False)

    def train():
        model, loss = real(work)
        (optimizer,) = work.optimizer.build(model)
        for _ in range(2):
            loss().backward()
            optimizer.step()
            optimizer.zero_grad()

    _, _, peak = traced(train)
    assert 0.95 * peak <= estimate(work).memory.peak <= 1.15 * peak  # gradients grow while activations go: a bound


def test_wan_1_3b_without_allocating_it():
    cfg = dit_config({"_class_name": "WanTransformer3DModel"} | WAN_1_3B, "", size=(60, 104), chunk=3, actions=0)
    work = Workload(model=cfg, batch=1, frames=21, precision="bf16", checkpointing=True, lora=LoraConfig(rank=32))
    found, _, peak = traced(lambda: estimate(replace(work, lora=None)))
    with torch.device("meta"):
        reference = WanTransformer3DModel(**WAN_1_3B)
    assert found.parameters == sum(p.numel() for p in reference.parameters()) == 1_418_996_800
    assert peak < 1e6
    assert found.memory.weights == 4 * found.parameters
    adapted = estimate(work)
    assert adapted.memory.weights == 2 * found.parameters + 4 * adapted.trained
    assert adapted.trained == 30 * 32 * ((1536 + 3 * 1536) + (1536 + 1536) + 2 * (1536 + 8960))
    assert adapted.memory.peak < 0.7 * found.memory.peak


@settings(max_examples=20, deadline=None)
@given(rows=st.integers(1, 6), chunks=st.integers(2, 4), precision=st.sampled_from(["fp32", "bf16"]))
def test_more_work_costs_more(rows, chunks, precision):
    work = Workload(model=SMALL, batch=rows, frames=2 * chunks, precision=precision)
    found = estimate(work)
    wider, longer = (estimate(replace(work, **change)) for change in ({"batch": rows + 1}, {"frames": 2 * chunks + 2}))
    assert found.memory.activations < min(wider.memory.activations, longer.memory.activations)
    assert found.operations.total < min(wider.operations.total, longer.operations.total)
    assert wider.operations.total * rows == pytest.approx(found.operations.total * (rows + 1))
    split = estimate(replace(work, batch=6 * rows, micro=6))
    assert split.memory == found.memory
    assert split.operations.total == pytest.approx(6 * found.operations.total)
    assert split.tokens == 6 * found.tokens == 6 * rows * (4 * chunks - 4) * 16
    deep = replace(work, model=replace(SMALL, depth=12))
    assert estimate(replace(deep, checkpointing=True)).memory.peak < estimate(deep).memory.peak


def test_prints_and_writes(tmp_path: Path, capsys):
    work = CASES["wan lora"]
    assert print_estimate(work, title="estimate configs/x.py", tflops=2.0, json=tmp_path / "e.json") == 0
    printed = capsys.readouterr().out
    found = estimate(work)
    assert f"{found.parameters:,}" in printed
    assert f"{found.trained:,} trained" in printed
    assert "2 TFLOP/s, as given" in printed
    data = json.loads((tmp_path / "e.json").read_text())
    assert data["command"] == "worldmodel estimate configs/x.py"
    values = {name: metric["value"] for name, metric in data["metrics"].items()}
    assert values["parameters"] == found.parameters
    assert values["memory_peak"] == found.memory.peak
    assert values["step_time"] == found.operations.total / 2e12
    assert print_estimate(work) == 0
    assert "GFLOP/s" in capsys.readouterr().out


def test_time_on_a_gpu_is_unknown_without_its_rate(tmp_path: Path, capsys):
    work = replace(CASES["bf16"], batch=1)
    assert print_estimate(work, json=tmp_path / "e.json") == 0
    printed = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "unknown" in printed and "--tflops N" in printed and "GFLOP/s" not in printed
    assert "1 clip at once" in printed and "1 clip x 6" in printed
    metrics = json.loads((tmp_path / "e.json").read_text())["metrics"]
    assert "memory_peak" in metrics and not {"rate", "step_time", "frames_per_second"} & metrics.keys()
    assert print_estimate(work, tflops=1.0) == 0
    assert "unknown" not in capsys.readouterr().out


def test_bad_workloads():
    with pytest.raises(UserError, match="5 frames does not cut into chunks of 2"):
        Workload(model=SMALL, batch=1, frames=5)
    with pytest.raises(UserError, match="2 frames is only context"):
        Workload(model=SMALL, batch=1, frames=2)
    with pytest.raises(UserError, match="batch of 3 does not divide into 2 micro-batches"):
        Workload(model=SMALL, batch=3, frames=4, micro=2)
    with pytest.raises(UserError, match="tflops is 0"):
        print_estimate(CASES["plain"], tflops=0)
