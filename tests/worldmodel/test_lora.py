"""Low-rank adapters against their closed form."""

import copy
import json

import pytest
import torch
from torch import nn

from worldmodel.chunk import ActionControl
from worldmodel.errors import UserError
from worldmodel.models.dit import DiTConfig
from worldmodel.models.lora import (
    LoraConfig,
    LoraLinear,
    add_lora,
    load_lora,
    lora_state_dict,
    merge_lora,
    save_lora,
)
from worldmodel.weights import read_metadata, write_tensors

CONFIG = LoraConfig(rank=4, alpha=6.0)


@pytest.fixture
def model():
    torch.manual_seed(0)
    dit = DiTConfig(
        channels=4, size=(4, 4), chunk=2, dim=24, depth=2, heads=2, hidden=40, actions=3, text=6, text_tokens=5
    ).build()
    for p in dit.parameters():
        nn.init.normal_(p, std=0.2)
    return dit


def output(model):
    g = torch.Generator().manual_seed(1)
    x, t = torch.randn(2, 4, 4, 4, 4, generator=g), torch.rand(2, 4, generator=g)
    has_action = torch.tensor([[False, True, True, True], [True, True, False, True]])
    return model.clip(x, t, ActionControl(torch.rand(2, 4, 3, generator=g), has_action))


def trained(model, steps=3):
    """Some optimizer steps, so that every adapter and every part trained in full has moved."""
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.02)
    for _ in range(steps):
        output(model).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return model


def test_linear_is_the_closed_form():
    torch.manual_seed(0)
    layer = LoraLinear(nn.Linear(7, 5).double(), rank=3, alpha=1.5)
    layer.lora_a = nn.Parameter(torch.randn(3, 7, dtype=torch.float64))
    layer.lora_b = nn.Parameter(torch.randn(5, 3, dtype=torch.float64))
    x = torch.randn(2, 4, 7, dtype=torch.float64)
    weight = layer.weight + 1.5 / 3 * layer.lora_b @ layer.lora_a
    torch.testing.assert_close(layer(x), x @ weight.T + layer.bias, rtol=1e-12, atol=1e-12)


def test_starts_as_the_identity_and_shares_frozen_weights(model):
    before = copy.deepcopy(model.state_dict())
    adapted = add_lora(model, CONFIG)
    assert torch.equal(output(adapted), output(model))
    adapters = {n for n, m in adapted.named_modules() if isinstance(m, LoraLinear)}
    assert adapters == {f"blocks.{i}.{n}" for i in range(2) for n in ("qkv", "out", "mlp.up", "mlp.down")}
    own = dict(model.named_parameters())
    for name, p in adapted.named_parameters():
        leaf = name.rpartition(".")[2]
        assert p.requires_grad == (leaf in ("lora_a", "lora_b") or name.startswith(("action_", "null_action"))), name
        if name in own:
            assert (p.data_ptr() == own[name].data_ptr()) != p.requires_grad, name
    trained(adapted)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert all(p.requires_grad and p.grad is None for p in model.parameters())
    assert not torch.equal(output(adapted), output(model))


def test_gradients_reach_every_trained_part_and_nothing_else(model):
    adapted = trained(add_lora(model, CONFIG), steps=1)
    output(adapted).square().mean().backward()
    for name, p in adapted.named_parameters():
        assert (p.grad is not None and p.grad.abs().max() > 0) == p.requires_grad, name


def test_gradient_of_an_adapter_is_the_chain_rule_of_the_full_weight(model):
    """dB = scale * G A^T and dA = scale * B^T G, where G is the gradient of the merged weight."""
    adapted = trained(add_lora(model, CONFIG))
    full = merge_lora(adapted)
    output(adapted).square().mean().backward()
    output(full).square().mean().backward()
    for name, module in adapted.named_modules():
        if isinstance(module, LoraLinear):
            g = full.get_submodule(name).weight.grad
            torch.testing.assert_close(module.lora_b.grad, module.scale * g @ module.lora_a.T, rtol=1e-4, atol=1e-6)
            torch.testing.assert_close(module.lora_a.grad, module.scale * module.lora_b.T @ g, rtol=1e-4, atol=1e-6)


def test_merge_gives_a_plain_model_with_the_same_output(model):
    adapted = trained(add_lora(model, CONFIG))
    plain = merge_lora(adapted)
    assert (output(plain) - output(adapted)).abs().max() <= 1e-5 * max(1, output(adapted).abs().max())
    assert not any(isinstance(m, LoraLinear) for m in plain.modules())
    assert {n: p.shape for n, p in plain.named_parameters()} == {n: p.shape for n, p in model.named_parameters()}
    assert all(p.requires_grad for p in plain.parameters())
    frozen = output(plain)
    trained(adapted)
    assert torch.equal(output(plain), frozen)  # later training of the adapters does not reach it
    twin = type(model)(model.cfg)
    twin.load_state_dict(plain.state_dict())
    assert torch.equal(output(twin), frozen)


def test_round_trip_through_a_file(model, tmp_path):
    adapted = trained(add_lora(model, CONFIG))
    save_lora(adapted, CONFIG, tmp_path / "lora.safetensors")
    again, config = load_lora(model, tmp_path / "lora.safetensors")
    assert config == CONFIG
    assert torch.equal(output(again), output(adapted))
    saved = lora_state_dict(adapted, CONFIG)
    changed = {n for n, p in adapted.named_parameters() if p.requires_grad}
    assert saved.keys() == changed
    assert sum(t.numel() for t in saved.values()) < 0.5 * sum(p.numel() for p in model.parameters())


def test_targets_and_further_trained_parts(model):
    config = LoraConfig(rank=2, targets=("blocks.1.cross.*", "shared"), train=("patch_out", "blocks.*.table"))
    adapted = add_lora(model, config)
    adapters = {n for n, m in adapted.named_modules() if isinstance(m, LoraLinear)}
    assert adapters == {"blocks.1.cross.q", "blocks.1.cross.kv", "blocks.1.cross.out", "shared"}
    full = {n for n, p in adapted.named_parameters() if p.requires_grad and "lora" not in n and "action" not in n}
    assert full == {"patch_out.weight", "patch_out.bias", "blocks.0.table", "blocks.1.table"}


def test_what_is_trained_is_fp32_on_a_half_precision_base(model):
    adapted = add_lora(model.bfloat16(), CONFIG)
    layer = adapted.blocks[0].qkv
    assert all(p.dtype == (torch.float32 if p.requires_grad else torch.bfloat16) for p in adapted.parameters())
    assert layer(torch.randn(3, 24).bfloat16()).dtype == torch.bfloat16
    with torch.autocast("cpu", torch.bfloat16):
        assert layer(torch.randn(3, 24)).dtype == torch.bfloat16
        output(adapted).float().square().mean().backward()
    assert layer.lora_b.grad.dtype == torch.float32
    assert layer.lora_b.grad.abs().max() > 0
    assert all(p.dtype == torch.bfloat16 for p in merge_lora(adapted).parameters())


def test_works_with_activation_checkpointing(model):
    adapted = trained(add_lora(model, CONFIG))
    grads = []
    for adapted.checkpointing in (False, True):
        adapted.zero_grad()
        output(adapted).square().mean().backward()
        grads.append({n: p.grad.clone() for n, p in adapted.named_parameters() if p.requires_grad})
    assert all(torch.equal(grads[0][n], grads[1][n]) for n in grads[0])


def test_bad_configurations(model):
    for config, message in (
        (LoraConfig(targets=("blocks.*.qvk",)), "target 'blocks.*.qvk' is no linear layer"),
        (LoraConfig(targets=("blocks.*",)), "is no linear layer"),
        (LoraConfig(train=("patch",)), "'patch' in train is no part"),
    ):
        with pytest.raises(UserError) as error:
            add_lora(model, config)
        assert message in str(error.value)
    with pytest.raises(UserError, match="has adapters already"):
        add_lora(add_lora(model, CONFIG), CONFIG)
    with pytest.raises(UserError, match="no adapters to merge"):
        merge_lora(model)
    with pytest.raises(UserError, match="rank 0"):
        LoraConfig(rank=0)


def test_bad_files(model, tmp_path):
    path = tmp_path / "lora.safetensors"
    adapted = add_lora(model, CONFIG)
    good, about = lora_state_dict(adapted, CONFIG), {"worldmodel": "null"}
    with pytest.raises(UserError, match="no such file"):
        load_lora(model, path)
    write_tensors(good, path)
    with pytest.raises(UserError, match="no adapters of this project"):
        load_lora(model, path)
    save_lora(adapted, CONFIG, path)
    about = json.loads(read_metadata(path)["worldmodel"])
    for spoiled, note, message in (
        (good | {"extra": torch.zeros(1)}, about, "unknown weight 'extra'"),
        ({n: t for n, t in good.items() if n != "blocks.0.qkv.lora_a"}, about, "'blocks.0.qkv.lora_a' is missing"),
        (good | {"blocks.0.qkv.lora_b": torch.zeros(3, 4)}, about, r"'blocks.0.qkv.lora_b' has shape \[3, 4\]"),
        (good | {"null_action": torch.full((24,), torch.inf)}, about, "'null_action' holds values"),
        (good, about | {"format": 9}, "format 9 is newer"),
        (good, about | {"config": {"rnk": 3}}, "unknown key 'rnk'"),
    ):
        write_tensors(spoiled, path, {"worldmodel": json.dumps(note)})
        with pytest.raises(UserError, match=message) as error:
            load_lora(model, path)
        assert str(path) in str(error.value)
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(UserError, match="not a complete safetensors file"):
        load_lora(model, path)
