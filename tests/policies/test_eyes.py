"""Eyes on frozen features: they are those of the network, nothing moves them, and the policy's folder has them."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from demonstrated import write_dataset
from test_policy_training import TINY, tiny_run

from worldmodel import checkpoint
from worldmodel.encoders.lite0 import Lite0
from worldmodel.errors import UserError
from worldmodel.policies.adaptation import contexts
from worldmodel.policies.context_encoder import ContextConfig
from worldmodel.policies.episodes import Trial
from worldmodel.policies.eyes import FINER, WIDTH, FrozenFeatures
from worldmodel.policies.policy import Policy
from worldmodel.train import train
from worldmodel.weights import read_tensors

FROZEN = replace(TINY, eyes="lite0")


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    return write_dataset(tmp_path_factory.mktemp("data") / "spots", 8)


def test_the_features_are_those_of_the_network_whatever_the_mode():
    features, whole = FrozenFeatures(), Lite0.pretrained()
    features.load_imagenet()
    values = torch.randint(0, 256, (2, 3, 48, 64), generator=torch.Generator().manual_seed(0)).float()
    wanted = whole.maps((values - 127) / 128)[2]
    pictures = values / 127.5 - 1
    for mode in (True, False):
        found = features.train(mode)(pictures)
        assert found.shape == (2, WIDTH, 48 // FINER, 64 // FINER) and not found.requires_grad
        torch.testing.assert_close(found, wanted, atol=1e-4, rtol=1e-4)
    assert not any(parameter.requires_grad for parameter in features.parameters())


def test_training_leaves_them_alone_goes_on_exactly_and_saves_them(data, tmp_path):
    run = tiny_run(data, tmp_path / "parts", model=FROZEN)
    train(replace(run, steps=2))
    stopped = train(run)
    assert stopped == train(replace(run, out=tmp_path / "whole"))
    names = read_tensors(checkpoint.steps(tmp_path / "whole")[-1] / "model.safetensors").keys()
    policy, imagenet = Policy.find(tmp_path / "whole"), FrozenFeatures()
    assert any(name.startswith("eyes.") for name in names)
    assert not any(f"frozen.{name}" in names for name, _ in imagenet.named_parameters())
    imagenet.load_imagenet()
    for name, tensor in imagenet.state_dict().items():
        assert torch.equal(policy.model.frozen.state_dict()[name], tensor), name


def test_a_policy_with_them_sees_and_is_read_back(data, tmp_path):
    torch.manual_seed(0)
    model = FROZEN.build(tiny_run(data, tmp_path).batches.read.interface)
    image = torch.randint(0, 256, (3, 2, 3, 32, 32), generator=torch.Generator().manual_seed(1), dtype=torch.uint8)
    found = model.look(image)
    assert found.shape == (3, 2, 2 * FROZEN.keypoints) and found.abs().max() <= 1
    assert not torch.equal(found[0], found[1])
    found.sum().backward()
    assert all(parameter.grad is not None for parameter in model.eyes.parameters())
    policy = Policy(model.eval().requires_grad_(False), tiny_run(data, tmp_path).acting)
    policy.save(tmp_path / "policy")
    again = Policy.load(tmp_path / "policy")
    assert again.model.cfg == FROZEN and torch.equal(again.model.look(image), policy.model.look(image))
    encoder = ContextConfig(width=16, heads=2).build(model)
    trial = _trial(image)
    assert encoder(contexts(model, [trial])).shape == (1, 16)


def _trial(image: torch.Tensor):
    numbers = torch.zeros(len(image), 4).numpy()
    return Trial(image.numpy(), numbers, numbers)


def test_lerobot_is_told_that_it_does_not_know_them(data, tmp_path):
    from worldmodel.policies.lerobot_export import export_to_lerobot

    model = FROZEN.build(tiny_run(data, tmp_path).batches.read.interface)
    Policy(model.eval(), tiny_run(data, tmp_path).acting).save(tmp_path / "policy")
    with pytest.raises(UserError, match="eyes 'trained', not 'lite0'"):
        export_to_lerobot(tmp_path / "policy", tmp_path / "exported")
