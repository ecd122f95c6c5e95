"""From a diffusers folder to a streaming world model: the way of docs/guide/wan.md, on a tiny model."""

import itertools

import pytest
import torch
from accelerate.state import AcceleratorState
from diffusers import WanTransformer3DModel
from tiny import same_training, tiny_run

from worldmodel import artifact
from worldmodel.errors import UserError
from worldmodel.estimate import Workload, estimate
from worldmodel.models.lora import LoraConfig
from worldmodel.models.wan import export_wan, load_wan
from worldmodel.models.wan_layout import dit_config
from worldmodel.models.world import WorldModel
from worldmodel.rollout import replay, rollout, start
from worldmodel.train import train
from worldmodel.weights import write_tensors

SIZES = {"size": (4, 6), "chunk": 2, "actions": 3}


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pipeline")
    torch.manual_seed(0)
    wan = WanTransformer3DModel(
        num_attention_heads=2, attention_head_dim=12, in_channels=2, out_channels=2, text_dim=8, freq_dim=16,
        ffn_dim=32, num_layers=2,
    )  # fmt: skip
    wan.save_pretrained(folder / "transformer")
    config = dit_config(dict(wan.config) | {"_class_name": "WanTransformer3DModel"}, "", **SIZES, text_tokens=5)
    return folder, config


@pytest.fixture(autouse=True)
def _own_precision():
    """accelerate keeps one precision per process."""
    AcceleratorState._reset_state()
    yield
    AcceleratorState._reset_state()


def wan_run(pipeline, out, **changes):
    folder, config = pipeline
    text = out.parent / "text.safetensors"
    write_tensors({"text": torch.randn(5, 8, generator=torch.Generator().manual_seed(1))}, text)
    fields = {"model": config, "init": str(folder), "text": text, "lora": LoraConfig(rank=2), "steps": 4}
    return tiny_run(out, **(fields | changes))


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_from_pretrained_weights_to_a_stream_and_back(pipeline, tmp_path, precision):
    run = wan_run(pipeline, tmp_path / "run", precision=precision)
    untrained = artifact.build(run)
    train(run)
    world = WorldModel.load(tmp_path / "run" / "model")
    assert {p.dtype for p in world.dit.parameters()} == {torch.float32}
    moved = {name for name, p in world.dit.named_parameters() if not torch.equal(p, untrained.get_parameter(name))}
    adapted = {f"blocks.{i}.{n}.weight" for i in range(2) for n in ("qkv", "out", "mlp.up", "mlp.down")}
    action = {n for n, _ in world.dit.named_parameters() if n.startswith(("action_", "null_action"))}
    assert moved == adapted | action

    clip = next(run.data.validation_batches(1))  # the data brings no text: the model has its own
    state = start(world.dit, run.stream.memory, torch.arange(4), clip.frames(0, 2))
    chunks = rollout(world.dit, replay(clip.control.frames(2, 6), 2), run.stream.sampler, state)
    made = [chunk.x for chunk, _ in itertools.islice(chunks, 2)]
    assert all(x.shape == (4, 2, 2, 4, 6) and torch.isfinite(x).all() for x in made)

    export_wan(world.dit, tmp_path / "export")
    again = load_wan(tmp_path / "export", **SIZES).state_dict()
    assert all(torch.equal(again[name], tensor) for name, tensor in world.dit.state_dict().items())
    WanTransformer3DModel.from_pretrained(tmp_path / "export")


def test_resumed_is_the_same_run(pipeline, tmp_path):
    train(wan_run(pipeline, tmp_path / "whole"))
    train(wan_run(pipeline, tmp_path / "halves", data={"stop_at": 1}))
    train(wan_run(pipeline, tmp_path / "halves"))
    assert same_training(tmp_path / "whole", tmp_path / "halves")


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_estimate_is_of_the_model_that_is_trained(pipeline, tmp_path, precision):
    run = wan_run(pipeline, tmp_path / "run", precision=precision)
    model = artifact.build(run, {"fp32": torch.float32, "bf16": torch.bfloat16}[precision])
    found = estimate(Workload.of(run))
    assert found.parameters == sum(p.numel() for p in model.parameters())
    assert found.trained == sum(p.numel() for p in model.parameters() if p.requires_grad)
    assert found.memory.weights == sum(p.nbytes for p in model.parameters())


def test_a_text_of_another_length_is_refused(pipeline, tmp_path):
    run = wan_run(pipeline, tmp_path / "run")
    write_tensors({"text": torch.randn(7, 8)}, tmp_path / "text.safetensors")
    with pytest.raises(UserError, match=r"its text_tokens is 7, the run's model.text_tokens is 5"):
        artifact.build(run)
