"""The transformer: chunks from memory equal the whole clip, positions are relative, rows are alone, all learns."""

import copy
from dataclasses import dataclass, replace

import pytest
import torch
from tiny import close, small_clip, small_dit

from worldmodel import flow
from worldmodel.chunk import ActionControl, Chunk, Clip, ConditionControl
from worldmodel.errors import UserError
from worldmodel.memory import Context, FullConfig, Geometry, RetrievalConfig, SlowFastConfig, WindowConfig
from worldmodel.models.dit import DiTConfig
from worldmodel.objectives.flow_matching import FlowMatching
from worldmodel.rollout import advance, start

SEEDS = torch.tensor([3, 4])
EXACT = [
    FullConfig(), WindowConfig(ring=8), WindowConfig(sink=4, ring=4), WindowConfig(sink=3, ring=5),
    SlowFastConfig(sink=2, slow=1, fast=6), RetrievalConfig(sink=0, bank=2, read=1, ring=8),
]  # fmt: skip
SMALL = [
    WindowConfig(ring=4), WindowConfig(sink=3, ring=3), SlowFastConfig(sink=1, slow=3, fast=3, every=2, surprise=0.9),
    SlowFastConfig(sink=0, slow=2, fast=4, every=1, surprise=1.0), RetrievalConfig(bank=4, read=2, ring=2, every=2),
]  # fmt: skip
"""Memories that are full after 4 to 7 frames."""
STYLES = [
    {},
    {"qk_norm": "across_heads", "pairing": "interleaved", "rank": 0, "learned_position": False},
    {"mlp": "swiglu", "text": 12, "actions": 0, "patch": 1, "chunk": 1},
    {"anchor": True},
    {"condition": 3, "actions": 0, "anchor": True},
    {"predicts": "clean"},
]
NAMES = ["ours", "wan", "text", "anchor", "condition", "clean"]


def noisy(clip: Clip, t: torch.Tensor, seed: int = 9) -> torch.Tensor:
    rng = torch.Generator().manual_seed(seed)
    t = t[..., None, None, None]
    return (1 - t) * clip.x + t * torch.randn(clip.x.shape, generator=rng)


def levels(clip: Clip, size: int, seed: int = 5) -> torch.Tensor:
    """A flow time per chunk."""
    rng = torch.Generator().manual_seed(seed)
    return torch.rand(clip.batch, clip.x.shape[1] // size, generator=rng).repeat_interleave(size, 1)


def cached(model, memory, history, time, x_t, t, control):
    """Velocities [B, T, C, H, W] chunk by chunk: each against a memory of the history's chunks before it."""
    state, out = start(model, memory, SEEDS), []
    for chunk in history.chunks(model.chunk):
        part = slice(int(chunk.start[0]), int(chunk.start[0]) + model.chunk)
        prepared = model("prepare", control.frames(part.start, part.stop), state)
        out.append(model("velocity", x_t[:, part], t[:, part], prepared))
        state = advance(model, chunk, state, time)
    return torch.cat(out, 1)


@pytest.mark.parametrize("style", STYLES, ids=NAMES)
@pytest.mark.parametrize("memory", EXACT, ids=str)
@torch.no_grad()
def test_cached_chunks_equal_the_clip_with_clean_history(memory, style):
    """Teacher forcing in one pass is what a rollout does chunk by chunk."""
    model = small_dit(**style)
    clip = small_clip(model)
    t = levels(clip, model.chunk)
    x_t = noisy(clip, t)
    for time in (0.0, 0.3):  # the context may be marked as slightly noisy
        whole = model("clip", x_t, t, clip.control, (clip.x, torch.full_like(t, time)))
        close(cached(model, memory, clip, time, x_t, t, clip.control), whole, 3e-6)


@pytest.mark.parametrize("anchor", [False, True])
@pytest.mark.parametrize("memory", EXACT, ids=str)
@torch.no_grad()
def test_cached_chunks_equal_the_block_causal_clip(memory, anchor):
    """Diffusion forcing: the memory holds the noisy frames themselves, all at one level."""
    model = small_dit(anchor=anchor)
    clip = small_clip(model)
    t = torch.full(clip.x.shape[:2], 0.4)
    x_t = noisy(clip, t)
    whole = model("clip", x_t, t, clip.control)
    close(cached(model, memory, replace(clip, x=x_t), 0.4, x_t, t, clip.control), whole, 3e-6)


@pytest.mark.parametrize("style", STYLES, ids=NAMES)
@pytest.mark.parametrize("memory", SMALL, ids=str)
@torch.no_grad()
def test_a_clip_sees_what_its_memory_would_hold(memory, style):
    """20 frames: one pass equals a rollout through the memory, with a clean history and without one."""
    model = small_dit(**style)
    clip = small_clip(model, frames=20)
    t = levels(clip, model.chunk)
    x_t = noisy(clip, t)
    whole = model("clip", x_t, t, clip.control, (clip.x, torch.full_like(t, 0.2)), memory)
    close(cached(model, memory, clip, 0.2, x_t, t, clip.control), whole, 3e-6)
    assert (whole - model("clip", x_t, t, clip.control, (clip.x, torch.full_like(t, 0.2))))[:, 8:].abs().max() > 1e-3
    short = tuple(h[:, : -model.chunk] for h in (clip.x, torch.full_like(t, 0.2)))
    close(model("clip", x_t[:, 8:], t[:, 8:], clip.control, short, memory), whole[:, 8:], 3e-6)
    t = torch.full_like(t, 0.4)
    x_t = noisy(clip, t)
    found = cached(model, memory, replace(clip, x=x_t), 0.4, x_t, t, clip.control)
    close(found, model("clip", x_t, t, clip.control, None, memory), 3e-6)


@pytest.mark.parametrize("anchor", [False, True])
@torch.no_grad()
def test_several_chunks_at_once_are_block_causal(anchor):
    """What a pipelined sampler asks for: two chunks in one call equal the clip's, given the same memory."""
    model = small_dit(anchor=anchor)
    clip = small_clip(model)
    t = torch.cat((torch.zeros(2, 4), levels(clip, 2)[:, 4:]), 1)
    x_t = noisy(clip, t)
    state = start(model, FullConfig(), SEEDS, clip.frames(0, 4))
    both = model.velocity(x_t[:, 4:], t[:, 4:], model.prepare(clip.control.frames(4, 8), state))
    close(both, model.clip(x_t, t, clip.control)[:, 4:], 3e-6)


@pytest.mark.parametrize("memory", [FullConfig(), WindowConfig(sink=1, ring=4)], ids=str)
@pytest.mark.parametrize("style", STYLES, ids=NAMES)
@torch.no_grad()
def test_several_choices_continue_one_state(memory, style):
    """A control of n times the state's rows is n controls, each of which continues every row."""
    model = small_dit(**style)
    clip = small_clip(model)
    state = start(model, memory, SEEDS, clip.frames(0, 6))
    here = clip.control.frames(6, 8)
    names = ("condition",) if model.cfg.condition else ("action", "has_action")
    other = replace(here, **{names[0]: -getattr(here, names[0])})
    choices = [here, here.drop(torch.tensor([True, False])), other]
    both = here.select(torch.arange(6) % 2)
    both = replace(both, **{n: torch.cat([getattr(c, n) for c in choices]) for n in names})
    x_t, t = noisy(clip, levels(clip, 2))[:, 6:8], levels(clip, 2)[:, 6:8]
    v = model.velocity(x_t.repeat(3, 1, 1, 1, 1), t.repeat(3, 1), model.prepare(both, state))
    for one, choice in zip(v.chunk(3), choices, strict=True):
        close(one, model.velocity(x_t, t, model.prepare(choice, state)), 3e-6)
    with pytest.raises(ValueError, match="a control of 3 rows for a state of 2"):
        model.prepare(here.select(torch.tensor([0, 1, 0])), state)
    with pytest.raises(ValueError, match=r"the state is on meta, the model on cpu: move it with state\.to"):
        model.prepare(here, state.fork(1).to("meta"))


@torch.no_grad()
def test_the_end_of_a_clip_is_that_of_the_whole():
    """Training makes only the chunks that carry a loss, with the history that they see."""
    for style in STYLES:
        model = small_dit(**style)
        clip = small_clip(model)
        t = levels(clip, model.chunk)
        x_t, history = noisy(clip, t), (clip.x, torch.full_like(t, 0.2))
        whole = model.clip(x_t, t, clip.control, history)
        short = tuple(h[:, : -model.chunk] for h in history)
        for first in (0, 4):
            close(model.clip(x_t[:, first:], t[:, first:], clip.control, short), whole[:, first:], 2e-6)


@torch.no_grad()
def test_an_anchor_is_the_newest_used_frame():
    """The second input of a chunk is the last frame that was executed, zeros for a fresh stream."""
    model = small_dit(anchor=True)
    clip = small_clip(model, rows=4)
    seeds = torch.arange(4)
    state = start(model, FullConfig(), seeds, clip.frames(0, 2))
    state = replace(state, active=torch.tensor([True, True, True, False]))
    chunk = Chunk(clip.x[:, 2:4], clip.control.frames(2, 4), state.frame, torch.tensor([2, 1, 0, 2]))
    after = advance(model, chunk, state)
    used = torch.stack((clip.x[0, 3], clip.x[1, 2], clip.x[2, 1], clip.x[3, 1]))
    assert torch.equal(after.last, used) and after.frame.tolist() == [4, 3, 2, 2]
    assert torch.equal(after.reset(torch.tensor([False, True, False, False]), seeds).last[1], torch.zeros_like(used[1]))
    prepared = model.prepare(clip.control.frames(4, 6), after)
    x_t, t = clip.x[:, 4:6], torch.full((4, 2), 0.5)
    moved = replace(after, last=used + torch.tensor([0.0, 1.0, 0.0, 0.0])[:, None, None, None])
    change = model.velocity(x_t, t, model.prepare(clip.control.frames(4, 6), moved)) - model.velocity(x_t, t, prepared)
    assert (change.abs().amax((2, 3, 4)) > 1e-3).tolist() == [[False] * 2, [True] * 2, [False] * 2, [False] * 2]


@pytest.mark.parametrize("anchor", [False, True])
@torch.no_grad()
def test_causality(anchor):
    """A chunk depends on itself and what came before, and on all of it."""
    model = small_dit(anchor=anchor)
    clip = small_clip(model, rows=1)
    t = levels(clip, 2)
    x_t = noisy(clip, t)
    base = model.clip(x_t, t, clip.control)
    for frame in range(8):
        moved = x_t.clone()
        moved[:, frame] += 1
        changed = (model.clip(moved, t, clip.control) - base).abs().amax((0, 2, 3, 4)) > 1e-7
        assert changed.tolist() == [f // 2 >= frame // 2 for f in range(8)]
        teacher = model.clip(x_t, t, clip.control, (clip.x, torch.zeros_like(t)))
        history = clip.x.clone()
        history[:, frame] += 1
        changed = (model.clip(x_t, t, clip.control, (history, torch.zeros_like(t))) - teacher).abs().amax((0, 2, 3, 4))
        assert (changed > 1e-7).tolist() == [f // 2 > frame // 2 for f in range(8)]


@dataclass(frozen=True)
class Listed:
    """The window policy by its definition: frames in a list, unrotated, placed anew at every read."""

    sink: int
    ring: int
    frames: tuple = ()  # (keys, values) [L, B, h, n, D] each

    def check(self, chunk):
        """Chunks of any size fit."""

    def empty(self, geometry: Geometry, batch, like):
        return self

    def append(self, keys, values, frame, keep, rotation):
        count = keep.shape[1]
        new = zip(keys.chunk(count, 3), values.chunk(count, 3), strict=True)
        return replace(self, frames=(*self.frames, *new))

    def context(self, frame, rotation):
        total, batch = int(frame[0]), len(frame)
        if not self.frames:
            like = torch.zeros(2, batch, 2, 0, 16)
            return Context(like, like, torch.zeros(batch, 0, dtype=torch.bool))
        held = [(g, g) for g in range(max(self.sink, total - self.ring), total)]
        back = max(0, total - self.ring - self.sink)
        held = [(g, g + back) for g in range(min(self.sink, total))] + held
        keys = [rotation.rotate(self.frames[g][0], torch.full((batch, 1), place)) for g, place in held]
        values = torch.cat([self.frames[g][1] for g, _ in held], 3)
        return Context(torch.cat(keys, 3), values, torch.ones(batch, values.shape[3], dtype=torch.bool))


@pytest.mark.parametrize(("sink", "ring"), [(0, 4), (2, 4), (3, 2), (1, 5)])
@torch.no_grad()
def test_window_after_eviction(sink, ring):
    """20 frames through a window of 4 to 6: each chunk sees exactly the sink and the ring, at their places."""
    model = small_dit()
    clip = small_clip(model, frames=20)
    t = levels(clip, 2)
    x_t = noisy(clip, t)
    found = cached(model, WindowConfig(sink=sink, ring=ring), clip, 0.1, x_t, t, clip.control)
    close(found, cached(model, Listed(sink, ring), clip, 0.1, x_t, t, clip.control), 3e-6)
    full = cached(model, FullConfig(), clip, 0.1, x_t, t, clip.control)
    close(found[:, : sink + ring], full[:, : sink + ring], 3e-6)
    assert (found - full)[:, sink + ring + 2 :].abs().max() > 1e-3  # the window is a window


@pytest.mark.parametrize("memory", [FullConfig(), *(m for m in SMALL if getattr(m, "sink", 0) == 0)], ids=str)
@pytest.mark.parametrize("origin", [10**5, 10**9])
@torch.no_grad()
def test_positions_are_relative(memory, origin):
    model = small_dit()
    clip = small_clip(model)
    t = levels(clip, 2)
    x_t = noisy(clip, t)
    outs = []
    for first in (0, origin):
        state, velocities = start(model, memory, SEEDS), []
        state = replace(state, frame=state.frame + first)
        for chunk in clip.chunks(2):
            part = slice(int(chunk.start[0]), int(chunk.start[0]) + 2)
            velocities.append(model.velocity(x_t[:, part], t[:, part], model.prepare(chunk.control, state)))
            state = advance(model, replace(chunk, start=chunk.start + first), state)
        outs.append(torch.cat(velocities, 1))
    close(outs[1], outs[0], 1e-5)


@torch.no_grad()
def test_rows_are_alone():
    model = small_dit()
    clip = small_clip(model, rows=4)
    t = levels(clip, 2)
    x_t, order = noisy(clip, t), torch.tensor([2, 0, 3, 1])
    for history in (None, (clip.x, torch.zeros_like(t))):
        moved = None if history is None else tuple(h[order] for h in history)
        whole = model.clip(x_t, t, clip.control, history)
        close(model.clip(x_t[order], t[order], clip.control.select(order), moved), whole[order], 1e-6)
        one = torch.tensor([1])
        alone = None if history is None else tuple(h[one] for h in history)
        close(model.clip(x_t[one], t[one], clip.control.select(one), alone), whole[one], 2e-6)


@pytest.mark.parametrize("memory", [*EXACT, *SMALL], ids=str)
def test_gradients_flow_through_memory(memory):
    """The gradient of a rollout through its memory equals that of the clip that sees what it would hold."""
    model = small_dit()
    clip = small_clip(model, frames=8 if memory in EXACT else 14)
    t = torch.full(clip.x.shape[:2], 0.4)
    weight = torch.randn(clip.x.shape, generator=torch.Generator().manual_seed(1))
    grads = []
    for run in ("clip", "cached"):
        x_t = noisy(clip, t).requires_grad_()
        if run == "clip":
            v = model.clip(x_t, t, clip.control, None, memory)
        else:
            v = cached(model, memory, replace(clip, x=x_t), 0.4, x_t, t, clip.control)
        grads.append(torch.autograd.grad((v * weight).sum(), (x_t, *model.parameters())))
    for found, expected in zip(grads[1], grads[0], strict=True):
        close(found, expected, 2e-5)


def test_checkpointing_changes_no_gradient():
    model = small_dit()
    other = copy.deepcopy(model)
    other.checkpointing = True
    clip = small_clip(model)
    t = levels(clip, 2)
    for m in (model, other):
        v = m("clip", noisy(clip, t), t, clip.control, (clip.x, torch.zeros_like(t)))
        v.square().mean().backward()
    for p, q in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(p.grad, q.grad)


@pytest.mark.parametrize("style", STYLES, ids=NAMES)
@pytest.mark.parametrize("chunk_noise", ["teacher", "independent", "monotone"])
def test_every_parameter_learns(chunk_noise, style):
    model = small_dit(**style)
    objective = FlowMatching(chunk_noise=chunk_noise, context_noise=0.2).build(model, model.cfg, seed=0)
    (update,) = objective.updates([small_clip(model)])
    for loss in update.losses:
        loss.backward()
    for name, p in model.named_parameters():
        assert p.grad is not None and p.grad.abs().max() > 0, name


def test_a_new_model_is_zero_and_learns():
    """AdaLN-Zero: no velocity at first; every parameter is in the graph all the same."""
    model = DiTConfig(channels=2, size=(4, 4), dim=32, depth=1, heads=2, hidden=32, actions=3, rank=2, text=5).build()
    clip = small_clip(model)
    v = model.clip(clip.x, torch.full((2, 8), 0.5), clip.control)
    assert torch.equal(v, torch.zeros_like(v))
    v.sum().backward()
    assert all(p.grad is not None for p in model.parameters())


@torch.no_grad()
def test_a_missing_action_is_missing():
    """What `action` holds where has_action is False does not matter, NaN included; null is no zero vector."""
    model = small_dit()
    clip = small_clip(model)
    t, control = levels(clip, 2), clip.control
    x_t = noisy(clip, t)
    base = model.clip(x_t, t, control)
    garbage = torch.where(control.has_action[..., None], control.action, torch.nan)
    assert torch.equal(model.clip(x_t, t, replace(control, action=garbage)), base)
    zero = replace(control, action=torch.zeros_like(control.action), has_action=torch.ones_like(control.has_action))
    assert (
        model.clip(x_t, t, zero) - model.clip(x_t, t, control.drop(torch.ones_like(control.has_action[:, 0])))
    ).abs().max() > 1e-2


def test_a_missing_action_leaves_no_nan_in_the_gradient():
    model = small_dit()
    clip = small_clip(model)
    t, control = levels(clip, 2), clip.control
    grads = []
    for filler in (0.0, torch.nan):
        action = torch.where(control.has_action[..., None], control.action, filler)
        v = model.clip(noisy(clip, t), t, replace(control, action=action))
        grads.append(torch.autograd.grad(v.square().mean(), list(model.parameters())))
    assert all(torch.equal(a, b) for a, b in zip(*grads, strict=True))


@torch.no_grad()
def test_every_input_matters():
    """Actions, text and time change the velocity of their own chunk and of none before it."""
    model = small_dit(text=12)
    clip = small_clip(model)
    t = levels(clip, 2)
    x_t = noisy(clip, t)
    base = model.clip(x_t, t, clip.control)
    action, text = clip.control.action.clone(), torch.randn(2, 5, 12)
    action[:, 4] += 1
    has = clip.control.has_action.index_fill(1, torch.tensor([4]), True)
    later = t.clone()
    later[:, 4:6] += 0.1
    acting = model.clip(x_t, t, replace(clip.control, has_action=has))
    for changed, reference in (
        (model.clip(x_t, t, replace(clip.control, action=action, has_action=has)), acting),
        (model.clip(x_t, later, clip.control), base),
    ):
        difference = (changed - reference).abs().amax((0, 2, 3, 4))
        assert difference[:4].max() == 0 and difference[4:6].min() > 1e-3
    assert (model.clip(x_t, t, replace(clip.control, text=text)) - base).abs().min() > 0


@pytest.mark.parametrize("memory", [FullConfig(), WindowConfig(sink=2, ring=4)], ids=str)
@torch.no_grad()
def test_unexecuted_frames_and_inactive_rows_leave_no_trace(memory):
    """Rows that execute one frame of two go on as if only that one had been there; inactive rows stand still."""
    model = small_dit(chunk=2)
    clip = small_clip(model, rows=3)
    state = start(model, memory, torch.tensor([1, 2, 3]), clip.frames(0, 4))
    state = replace(state, active=torch.tensor([True, True, False]))
    before = state.fork(1)
    chunk = Chunk(clip.x[:, 4:6], clip.control.frames(4, 6), state.frame, torch.tensor([2, 1, 2]))
    after = advance(model, chunk, state)
    assert after.frame.tolist() == [6, 5, 4]
    x_t, t = noisy(clip, levels(clip, 2))[:, :2], torch.full((3, 2), 0.5)
    v = model.velocity(x_t, t, model.prepare(clip.control.frames(6, 8), after))
    still = model.velocity(x_t, t, model.prepare(clip.control.frames(6, 8), before))
    close(v[2], still[2], 1e-6)
    garbage = replace(chunk, x=chunk.x.clone())
    garbage.x[2] = 99
    again = advance(model, garbage, before)
    close(model.velocity(x_t, t, model.prepare(clip.control.frames(6, 8), again)), v, 1e-6)


def test_configuration_errors():
    good = {"channels": 2, "size": (4, 4), "dim": 32, "heads": 2, "hidden": 8, "depth": 1}
    for wrong, message in (
        ({"size": (5, 4)}, "a latent of 5 x 4 does not cut into patches of 2 x 2"),
        ({"heads": 3}, "width 32 does not cut into 3 heads"),
        ({"dim": 6, "heads": 2}, "width 6 does not cut into 2 heads of even width"),
        ({"heads": 0}, "heads must be at least 1, not 0"),
        ({"chunk": 0}, "chunk must be at least 1, not 0"),
        ({"patch": 0}, "patch must be at least 1"),
        ({"text_tokens": 3}, "needs the width of its features in text"),
        ({"condition": -1}, "condition -1 must be at least 0"),
        ({"condition": 2, "actions": 3}, "condition 2 must be at least 0, and stands for actions 3"),
    ):
        with pytest.raises(UserError, match=message):
            DiTConfig(**(good | wrong))


@torch.no_grad()
def test_a_condition_goes_through_the_first_layer_beside_its_own_frame():
    """Its part of the first layer's weights, times its pixels; with those weights 0 it is as if it were not there."""
    plain, model = small_dit(actions=0, rank=0), small_dit(condition=3, actions=0, rank=0)
    names = plain.state_dict()
    weight = torch.cat((names["patch_in.weight"], model.patch_in.weight[:, 8:]), 1)  # channels of a token: c p q
    model.load_state_dict(names | {"patch_in.weight": weight})
    clip, t = small_clip(model), levels(small_clip(model), 2)
    x_t, prepared = noisy(clip, t), model._prepare(clip.control, torch.arange(8).expand(2, -1), (), None)
    cells = clip.control.condition.unflatten(-2, (2, 2)).unflatten(-1, (3, 2))  # [B, F, c, rows, p, columns, q]
    own = torch.einsum("bfcipjq,dcpq->bfijd", cells, weight[:, 8:].unflatten(1, (3, 2, 2))).flatten(2, 3)
    without = plain._tokens(x_t, t, replace(prepared, condition=None), None)
    close(model._tokens(x_t, t, prepared, None) - own, without, 1e-5)
    with_it = model.clip(x_t, t, clip.control)
    changed = ConditionControl(clip.control.condition + torch.eye(8)[5].reshape(8, 1, 1, 1))
    difference = (model.clip(x_t, t, changed) - with_it).abs().amax((0, 2, 3, 4))
    assert difference[:4].max() == 0 and difference[4:].min() > 1e-4  # its chunk, and those that see it
    model.patch_in.weight[:, 8:] = 0
    nothing = ActionControl(torch.zeros(2, 8, 0), torch.zeros(2, 8, dtype=torch.bool))
    close(model.clip(x_t, t, clip.control), plain.clip(x_t, t, nothing), 1e-6)


def test_a_predicted_clean_frame_is_turned_into_its_velocity():
    """The same weights make a velocity, or of `flow.expected` a frame x: (x_t - x) / t, t at least 0.05."""
    plain, model = small_dit(), small_dit(predicts="clean")
    model.load_state_dict(plain.state_dict())
    clip = small_clip(model)
    t = torch.tensor((0.9, 0.05, 0.01, 0.0)).repeat_interleave(2).expand(2, -1)
    x_t = noisy(clip, t)
    made = plain.clip(flow.expected(x_t, t), t, clip.control)
    divisor = torch.tensor((0.9, 0.05, 0.05, 0.05)).repeat_interleave(2)[:, None, None, None]
    found = model.clip(x_t, t, clip.control)
    close(found, (x_t - made) / divisor, 1e-5)
    close(flow.clean(x_t, found, t)[:, :4], made[:, :4], 1e-5)
    with torch.no_grad():  # the way of a stream
        state = start(model, FullConfig(), SEEDS)
        prepared = model.prepare(clip.control.frames(0, 2), state)
        close(model.velocity(x_t[:, :2], t[:, :2], prepared), found[:, :2], 1e-5)
        pure, other = torch.ones(2, 2), torch.randn_like(x_t[:, :2])  # of pure noise nothing is left in the frame
        first, second = (flow.clean(x, model.velocity(x, pure, prepared), pure) for x in (x_t[:, :2], other))
        close(first, second, 1e-5)


def test_a_condition_of_another_shape_and_none_are_errors():
    model = small_dit(condition=3, actions=0)
    clip, t = small_clip(model), torch.zeros(2, 8)
    with pytest.raises(ValueError, match=r"condition \[3, 4, 6\] per frame, the control brings \[2, 4, 6\]"):
        model.clip(clip.x, t, ConditionControl(clip.control.condition[:, :, :2]))
    with pytest.raises(ValueError, match="the control brings none"):
        model.clip(clip.x, t, ActionControl(torch.zeros(2, 8, 0), torch.zeros(2, 8, dtype=torch.bool)))
    with pytest.raises(ValueError, match=r"condition \[0, 4, 6\] per frame, the control brings \[3, 4, 6\]"):
        small_dit(actions=0).clip(clip.x, t, clip.control)


def test_lengths_and_text_are_checked():
    model = small_dit(text=12, actions=3)
    clip = small_clip(model, frames=5)
    with pytest.raises(ValueError, match="5 frames are no multiple of the chunk of 2"):
        model.clip(clip.x, torch.zeros(2, 5), clip.control)
    clip = small_clip(model, frames=4)
    with pytest.raises(ValueError, match="must carry text"):
        model.clip(clip.x, torch.zeros(2, 4), replace(clip.control, text=None))


@pytest.mark.slow
def test_compiled_blocks_equal_eager():
    """The way that runs compile: block by block, in training and in a stream."""
    model = small_dit()
    compiled = copy.deepcopy(model)
    for block in compiled.blocks:
        block.compile()
    clip = small_clip(model)
    t = levels(clip, 2)
    x_t, history = noisy(clip, t), (clip.x, torch.zeros_like(t))
    for m in (model, compiled):
        m("clip", x_t, t, clip.control, history).square().mean().backward()
    for p, q in zip(model.parameters(), compiled.parameters(), strict=True):
        close(q.grad, p.grad, 1e-5)
    with torch.no_grad():
        memory = WindowConfig(sink=2, ring=4)
        eager = cached(model, memory, clip, 0.0, x_t, t, clip.control)
        close(cached(compiled, memory, clip, 0.0, x_t, t, clip.control), eager, 1e-5)
    assert model.state_dict().keys() == compiled.state_dict().keys()
