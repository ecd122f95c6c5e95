"""The context encoder: what it cannot change, what it must not see, and what reaches it."""

from dataclasses import replace

import pytest
import torch
from test_planning import random_policy, seen

from worldmodel.chunk import Clip
from worldmodel.errors import UserError
from worldmodel.policies.behaviour_cloning import BehaviourCloning
from worldmodel.policies.context_encoder import ContextConfig, ContextEncoder, context_of, ensemble
from worldmodel.policies.flow_policy import FlowPolicy
from worldmodel.policies.planning import plan
from worldmodel.sampler import Euler


@pytest.fixture
def made() -> tuple[FlowPolicy, ContextEncoder]:
    model = random_policy()
    torch.manual_seed(1)
    return model, ContextConfig(width=16, heads=2).build(model)


def trial(model: FlowPolicy, moments: int = 5, rows: int = 2):
    rng = torch.Generator().manual_seed(7)
    image = torch.randint(0, 256, (rows, moments, 1, 3, 16, 16), generator=rng, dtype=torch.uint8)
    state, action = torch.rand(rows, moments, 1, generator=rng), torch.rand(rows, moments, 2, generator=rng)
    return context_of(model, image, state, action, torch.ones(rows, moments, dtype=torch.bool))


def test_a_token_of_zeros_leaves_the_policy_bit_for_bit_after_training_too(made):
    model, encoder = made
    args = (model, Euler(steps=3))
    rest = (torch.tensor([3, 4]), torch.tensor([0, 8]))
    plain = plan(*args, seen(), *rest)
    optimizer = torch.optim.SGD(encoder.parameters(), lr=0.1)
    for _ in range(3):
        zeros = encoder.injected(torch.zeros(2, 16))
        assert torch.equal(plan(*args, replace(seen(), context=zeros), *rest), plain)
        context = encoder.injected(encoder(trial(model)))
        assert not torch.equal(plan(*args, replace(seen(), context=context), *rest), plain)
        optimizer.zero_grad()
        context.square().sum().backward()
        optimizer.step()


def test_the_loss_reaches_all_of_the_encoder_and_nothing_of_the_policy(made):
    model, encoder = made
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    objective = BehaviourCloning().build(model, 6, 0)
    control = replace(seen(), context=encoder.injected(encoder(trial(model))))
    x = torch.randn(2, 6, 2, generator=torch.Generator().manual_seed(0))
    objective.loss(Clip(x, control, torch.arange(2)), 0).backward()
    for name, parameter in encoder.named_parameters():
        assert parameter.grad is not None and parameter.grad.abs().max() > 0, name
    assert all(parameter.grad is None for parameter in model.parameters())
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())


def test_moments_that_were_not_are_not_seen(made):
    model, encoder = made
    whole = trial(model)
    for filler in (0.0, 1e3):
        filled = type(whole)(
            torch.cat((whole.seen, torch.full_like(whole.seen[:, :2], filler)), 1),
            torch.cat((whole.motion, torch.full_like(whole.motion[:, :2], filler)), 1),
            torch.cat((whole.valid, torch.zeros(2, 2, dtype=torch.bool)), 1),
        )
        torch.testing.assert_close(encoder(filled), encoder(whole), atol=1e-6, rtol=0)


def test_order_pictures_and_motion_matter_and_rows_are_independent(made):
    model, encoder = made
    whole = trial(model)
    token = encoder(whole)
    back = type(whole)(whole.seen.flip(1), whole.motion.flip(1), whole.valid)
    assert (encoder(back) - token).abs().max() > 1e-4  # time has a direction
    assert (encoder(type(whole)(whole.seen + 0.5, whole.motion, whole.valid)) - token).abs().max() > 1e-4
    assert (encoder(type(whole)(whole.seen, whole.motion + 0.5, whole.valid)) - token).abs().max() > 1e-4
    torch.testing.assert_close(encoder(whole.select(torch.tensor([1]))), token[1:], atol=1e-6, rtol=0)


def test_tokens_of_trials_add_up():
    tokens = list(torch.randn(3, 2, 4, generator=torch.Generator().manual_seed(0)))
    torch.testing.assert_close(ensemble(tokens), tokens[0] + tokens[1] + tokens[2])
    torch.testing.assert_close(ensemble(tokens, "mean"), (tokens[0] + tokens[1] + tokens[2]) / 3)
    with pytest.raises(ValueError, match="no trial"):
        ensemble([])


def test_sizes_that_cannot_be_are_told():
    with pytest.raises(UserError, match="even multiple"):
        ContextConfig(width=12, heads=4)
    with pytest.raises(UserError, match="depth must be at least 1"):
        ContextConfig(depth=0)
