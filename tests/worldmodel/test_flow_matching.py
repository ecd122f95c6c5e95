"""The objective: its loss written out, its levels by their definitions, and that a sample's draws are its own."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats
from tiny import close, small_clip, small_dit

from worldmodel import flow, noise
from worldmodel.errors import UserError
from worldmodel.objectives.flow_matching import (
    ANCHOR,
    DRIFT,
    DROP,
    ERROR,
    HISTORY_LEVEL,
    HISTORY_NOISE,
    LEVEL,
    NOISE,
    VALIDATION,
    FlowMatching,
)


class Watched(torch.nn.Module):
    """A model that remembers what it is asked, and answers with a constant."""

    def __init__(self, answer=0.0):
        super().__init__()
        self.answer, self.asked = answer, []

    def forward(self, mode, x_t, t, control, history=None, memory=None):
        self.asked.append((mode, x_t, t, control, history))
        return torch.full_like(x_t, self.answer)


CLIP = small_clip(small_dit(), rows=6, frames=10)
CLIP = replace(CLIP, index=torch.arange(6) + 40)


def ask(cfg, clip=CLIP, answer=0.0, seed=5):
    model = Watched(answer)
    loss = cfg.build(model, small_dit().cfg, seed).loss(clip)
    return loss, *model.asked[0]


def drawn(clip=CLIP, seed=5):
    """The noise of the clip's samples, as the conventions say it is keyed."""
    seeds = noise.row_seed(seed, clip.index)
    frames = torch.arange(clip.x.shape[1]).expand(clip.x.shape[:2])
    return seeds, noise.normal(seeds, frames, NOISE, tuple(clip.x.shape[2:]))


def test_the_loss_written_out():
    for cfg in (FlowMatching(drop=0), FlowMatching(drop=0, chunk_noise="independent", context=2)):
        loss, mode, x_t, t, control, history = ask(cfg, answer=0.25)
        seeds, eps = drawn()
        first = 2 * cfg.context
        expected = (0.25 - (eps - CLIP.x)[:, first:]).square().mean()
        close(loss, expected, 1e-6)
        assert mode == "clip" and control.has_action.equal(CLIP.control.has_action)
        order = torch.arange(5).expand(6, -1)
        levels = torch.sigmoid(noise.normal(seeds, order, LEVEL, ())).repeat_interleave(2, 1)
        noisy = flow.interpolate(CLIP.x, eps, levels)
        if history is None:
            assert torch.equal(x_t, noisy) and torch.equal(t, levels)
        else:  # the chunks that carry a loss, and the clean chunks that they see
            assert torch.equal(x_t, noisy[:, first:]) and torch.equal(t, levels[:, first:])
            assert torch.equal(history[0], CLIP.x[:, :-2]) and not history[1].any()


def test_the_exact_velocity_has_no_loss():
    class Exact(torch.nn.Module):
        def forward(self, mode, x_t, t, control, history=None, memory=None):
            _, eps = drawn()
            return (eps - CLIP.x)[:, -x_t.shape[1] :]

    for kind in ("teacher", "independent", "monotone"):
        assert FlowMatching(chunk_noise=kind).build(Exact(), small_dit().cfg, 5).loss(CLIP) == 0


@pytest.mark.parametrize("kind", ["teacher", "independent", "monotone"])
def test_a_sample_is_the_same_in_any_batch(kind):
    """Levels, noise, dropped actions and history depend on the sample's index, not on its company or slot."""
    cfg = FlowMatching(chunk_noise=kind, context_noise=0.4, drop=0.5, shift=2.0)
    _, _, x_t, t, control, history = ask(cfg)
    rows = torch.tensor([4, 1])
    _, _, x_2, t_2, control_2, history_2 = ask(cfg, CLIP.select(rows))
    assert torch.equal(x_2, x_t[rows]) and torch.equal(t_2, t[rows])
    assert torch.equal(control_2.has_action, control.has_action[rows])
    if history is not None:
        assert all(torch.equal(b, a[rows]) for a, b in zip(history, history_2, strict=True))
    _, _, other, _, _, _ = ask(cfg, seed=6)
    assert not torch.equal(other, x_t)


def test_micro_batches_sum_to_the_batch():
    model = small_dit()
    objective = FlowMatching(drop=0.3).build(model, model.cfg, 0)
    whole = objective.loss(CLIP)
    (update,) = objective.updates([CLIP.select(torch.arange(0, 3)), CLIP.select(torch.arange(3, 6))])
    losses = list(update.losses)
    assert update.role == "model" and update.count == len(losses) == 2
    close(sum(losses), whole, 1e-6)


def levels(cfg, rows=4000, chunks=5):
    objective = cfg.build(Watched(), small_dit().cfg, 0)
    t = objective._levels(noise.row_seed(0, torch.arange(rows)), chunks)
    assert t.shape == (rows, 2 * chunks) and torch.equal(t[:, ::2], t[:, 1::2])  # one level a chunk
    return t[:, ::2]


@pytest.mark.parametrize(("mean", "std", "shift"), [(0.0, 1.0, 1.0), (0.7, 0.5, 1.0), (0.0, 1.0, 3.0)])
def test_levels_are_logit_normal(mean, std, shift):
    """A shift s moves the logit by log s."""
    t = levels(FlowMatching(chunk_noise="independent", mean=mean, std=std, shift=shift)).double().numpy()
    logit = (np.log(t / (1 - t)) - np.log(shift) - mean) / std
    assert stats.kstest(logit.ravel()[:10_000], "norm").pvalue > 0.01
    assert abs(np.corrcoef(logit.T) - np.eye(5)).max() < 0.07  # chunks are independent


def test_monotone_levels_rise_from_an_anchor():
    t, free = (levels(FlowMatching(chunk_noise=kind)) for kind in ("monotone", "independent"))
    seeds = noise.row_seed(0, torch.arange(len(t)))
    anchor = (5 * noise.uniform(seeds, torch.zeros(len(t), 1, dtype=torch.int64), ANCHOR)).long()
    assert abs(torch.bincount(anchor.flatten(), minlength=5) / len(t) - 0.2).max() < 0.03
    assert torch.equal(t.gather(1, anchor), free.gather(1, anchor))  # its level is logit-normal
    for left in range(4):
        rising = left >= anchor[:, 0]
        step = t[:, left + 1] - t[:, left]
        assert (step[rising] >= 0).all() and (step[~rising] <= 0).all()
        assert (step != 0).float().mean() > 0.2
    assert (t >= free).all()


def test_outward():
    objective = FlowMatching().build(Watched(), small_dit().cfg, 0)
    level = torch.tensor([[0.5, 0.2, 0.3, 0.9, 0.1]])
    distance = torch.tensor([[1, 0, 1, 2, 3]])
    assert objective._outward(level, distance).tolist() == [pytest.approx([0.5, 0.2, 0.5, 0.9, 0.9])]


def test_context_noise():
    """Each history chunk at its own uniform level, and the model is told which."""
    cfg = FlowMatching(context_noise=0.4, drop=0)
    _, _, _, _, _, (x_h, t_h) = ask(cfg)
    seeds, _ = drawn()
    frames = torch.arange(8).expand(6, -1)
    level = (0.4 * noise.uniform(seeds, torch.arange(4).expand(6, -1), HISTORY_LEVEL)).repeat_interleave(2, 1)
    assert torch.equal(t_h, level) and t_h.min() > 0 and t_h.max() < 0.4
    eps = noise.normal(seeds, frames, HISTORY_NOISE, tuple(CLIP.x.shape[2:]))
    assert torch.equal(x_h, flow.interpolate(CLIP.x[:, :8], eps, level))


def test_dropped_actions():
    """Whole rows, in the share that was asked for; never an action where there was none."""
    many = small_clip(small_dit(), rows=4000, frames=4)
    _, _, _, _, control, _ = ask(FlowMatching(drop=0.3), many)
    dropped = ~control.has_action.any(1)
    assert abs(float(dropped.float().mean()) - 0.3) < 4 * (0.3 * 0.7 / 4000) ** 0.5
    assert torch.equal(control.has_action[~dropped], many.control.has_action[~dropped])
    seeds = noise.row_seed(5, many.index)
    assert torch.equal(dropped, noise.uniform(seeds, torch.zeros(4000, 1, dtype=torch.int64), DROP)[:, 0] < 0.3)
    for share, expected in ((0.0, 0), (1.0, 4000)):
        _, _, _, _, control, _ = ask(FlowMatching(drop=share), many)
        assert int((~control.has_action.any(1)).sum()) == expected


def test_validation():
    """Teacher-forced, nothing dropped, clean history, other noise than any training sample's, no gradient."""
    model = Watched(0.5)
    cfg = FlowMatching(chunk_noise="monotone", drop=0.9, context_noise=0.5, mean=2.0, shift=3.0)
    found = cfg.build(model, small_dit().cfg, 5).validate(CLIP)
    plain, *asked = ask(FlowMatching(drop=0), answer=0.5, seed=5 + VALIDATION)
    assert found.keys() == {"loss"} and torch.equal(found["loss"], plain)
    assert torch.equal(model.asked[0][1], asked[1]) and torch.equal(model.asked[0][2], asked[2])
    assert not torch.equal(model.asked[0][1], ask(FlowMatching(drop=0))[2])
    dit = small_dit()
    assert not FlowMatching().build(dit, dit.cfg, 0).validate(CLIP)["loss"].requires_grad


def test_errors_and_state():
    for make, message in (
        (lambda: FlowMatching(context_noise=1.0), r"context_noise 1\.0 and drop 0\.1 must be in"),
        (lambda: FlowMatching(drop=1.1), "drop"),
        (lambda: FlowMatching(shift=0.0), r"shift must be in \[0\.001, 1000\], not 0\.0"),
        (lambda: FlowMatching(mean=float("nan")), r"mean must be in \[-10, 10\], not nan"),
        (lambda: FlowMatching(std=-1.0), r"std must be in \[0, 10\], not -1\.0"),
        (lambda: FlowMatching(context=-1), r"context must be in \[0, 1e\+06\], not -1"),
        (lambda: ask(FlowMatching(context=5)), "clips of 10 frames must be chunks of 2, more than the 5"),
        (lambda: ask(FlowMatching(), CLIP.frames(0, 5)), "clips of 5 frames must be chunks of 2"),
    ):
        with pytest.raises(UserError, match=message):
            make()
    objective = FlowMatching().build(Watched(), small_dit().cfg, 0)
    assert objective.state_dict() == {}
    objective.load_state_dict({})
    with pytest.raises(UserError, match=r"the checkpoint holds \['queue'\], not \[\]"):
        objective.load_state_dict({"queue": 1})


def test_errors_come_back_in_the_history():
    """The predicted data less the data, added to the drawn share of later histories, and resumed."""
    cfg, model = FlowMatching(drift=0.5, errors=12, drop=0), Watched(0.25)
    model.weight = torch.nn.Parameter(torch.zeros(1))
    o = cfg.build(model, small_dit().cfg, 5)
    list(next(o.updates([CLIP])).losses)
    assert torch.equal(model.asked[0][4][0], CLIP.x[:, :-2])  # nothing to add yet
    seeds, _ = drawn()
    _, x_t, t, _, _ = model.asked[0]
    predicted = flow.clean(x_t, torch.full_like(x_t, 0.25), t)
    wrong = (predicted - CLIP.x[:, 2:]).unflatten(1, (-1, 2)).flatten(0, 1).flatten(1)

    run = o.updates([CLIP])
    list(next(run).losses)
    assert next(run, None) is None
    close(o.bank.features, wrong[-12:], 1e-5)
    list(next(o.updates([CLIP])).losses)
    added = (model.asked[-1][4][0] - CLIP.x[:, :-2]).unflatten(1, (-1, 2)).flatten(2)
    order = torch.arange(4).expand(6, -1)
    hit = noise.uniform(seeds, order, DRIFT) < 0.5
    pick = (noise.uniform(seeds, order, ERROR) * 12).long()
    assert 0 < int(hit.sum()) < hit.numel()
    close(added, torch.where(hit[..., None], o.bank.features[pick], 0), 1e-5)

    again = cfg.build(model, small_dit().cfg, 5)
    again.load_state_dict(o.state_dict())
    assert torch.equal(again.bank.features, o.bank.features) and again.bank.filled == 12
    with pytest.raises(UserError, match=r"the checkpoint holds \[\], not \['bank.features'"):
        again.load_state_dict({})
    with pytest.raises(UserError, match=r"drift must be in \[0, 1\], not 2"):
        FlowMatching(drift=2)
    with pytest.raises(UserError, match="drift is of clean histories"):
        FlowMatching(drift=0.1, chunk_noise="monotone")
