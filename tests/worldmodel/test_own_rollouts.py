"""Rollouts in training: the lead before the chunks that the loss sees."""

from itertools import pairwise

import pytest
import torch
from tiny import close, small_clip, small_dit

from worldmodel.errors import UserError
from worldmodel.memory import WindowConfig
from worldmodel.models.world import StreamConfig
from worldmodel.objectives.own_rollouts import OwnRollouts
from worldmodel.sampler import Euler

STREAM = StreamConfig(memory=WindowConfig(ring=4), sampler=Euler(steps=3))


def test_chunks_after_a_lead_are_those_of_one_long_rollout():
    model = small_dit()
    clip = small_clip(model, frames=14)
    long = OwnRollouts().build(model, STREAM, 7).first(clip, 0, 6)
    led = OwnRollouts(lead=4).build(model, STREAM, 7)
    leads = set()
    for step in range(40):
        made = led.first(clip, step, 2)
        begin = made.context.x.shape[1]
        leads.add(begin // 2 - 1)
        whole = torch.cat((clip.x[:, :2], long.x), 1)
        close(torch.cat((made.context.x, made.x), 1), whole[:, : begin + 4])
        close(made.control.action, clip.control.action[:, begin : begin + 4], 0)
        assert int(made.after.frame[0]) == begin + 4
        assert not made.context.x.requires_grad
    assert leads == {0, 1, 2, 3, 4}


def test_the_second_pass_repeats_the_first_after_a_lead():
    model = small_dit()
    led = OwnRollouts(lead=4).build(model, STREAM, 7)
    made = next(
        m for m in (led.first(small_clip(model, frames=14), s, 2) for s in range(9)) if m.context.x.shape[1] > 4
    )
    ones = [torch.ones_like(take.seen) for take in made.takes]
    for loss, take in zip(led.again(made, ones), made.takes, strict=True):
        close(loss.detach(), take.seen.sum(), 1e-5)


def test_every_process_draws_the_same_lead_and_steps_differ():
    model = small_dit()
    led = OwnRollouts(lead=30).build(model, STREAM, 7)
    draws = [
        [led.first(small_clip(model, frames=64, seed=seed), step, 1).context.x.shape[1] for seed in (0, 1)]
        for step in range(6)
    ]
    assert all(a == b for a, b in draws)
    assert any(a != b for a, b in pairwise(a for a, _ in draws))


def test_a_lead_grows_along_its_ramp():
    rollouts = OwnRollouts(lead=6, ramp=(10, 22))
    assert [rollouts.most(step) for step in (0, 10, 12, 16, 20, 22, 1000)] == [0, 0, 1, 3, 5, 6, 6]
    assert [rollouts.made(step) for step in (0, 16)] == [6.0, 7.5]
    model = small_dit()
    led = OwnRollouts(lead=6, ramp=(10, 22)).build(model, STREAM, 7)
    clip = small_clip(model, frames=18)
    found = [{led.first(clip, step, 2).context.x.shape[1] // 2 - 1 for step in steps} for steps in ((0, 9), (30, 50))]
    assert found[0] == {0} and max(found[1]) > 0


def test_bad_leads():
    with pytest.raises(UserError, match=r"ramp \(5, 5\) must be two steps that rise"):
        OwnRollouts(lead=1, ramp=(5, 5))
    with pytest.raises(UserError, match="lead -1 at least 0"):
        OwnRollouts(lead=-1)
    assert OwnRollouts(prefix=2, lead=3, lengths=((0, 4),)).frames(2, 0) == 18
    model = small_dit()
    with pytest.raises(UserError, match="9 generated ones of 2 frames need clips of 20 frames, these have 8"):
        OwnRollouts(lead=7).build(model, STREAM, 0).first(small_clip(model), 0, 2)
