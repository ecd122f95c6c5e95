"""Fast weights as a memory: rollouts equal clips, rows are alone, bytes are constant, nothing is learned from what is
not kept."""

from dataclasses import replace

import pytest
import torch
from tiny import close, small_clip, small_dit

from worldmodel.errors import UserError
from worldmodel.kernels.fast_weight import FastWeights
from worldmodel.memory import FullConfig, LactConfig, LactMemory, WindowConfig
from worldmodel.models.fast_layer import FastConfig
from worldmodel.models.world import StreamConfig
from worldmodel.rollout import advance, start
from worldmodel.session import restore, snapshot

MEMORY, SEEDS = LactConfig(ring=4), torch.tensor([3, 4])
KINDS = {
    "plain": FastConfig(groups=2),
    "momentum": FastConfig(groups=4, expand=0.5, momentum=True),
    "muon": FastConfig(groups=1, expand=1.5, momentum=True, muon=5),
}


@pytest.fixture(params=KINDS.values(), ids=KINDS)
def model(request):
    """With random numbers in everything that starts at zero, so that the fast weights matter."""
    made = small_dit(fast=request.param)
    rng = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for block in made.blocks:
            for parameter in (block.fast.share, block.fast.rate.weight, block.fast.scale, block.fast.offset):
                parameter.normal_(generator=rng)
    return made


def noisy(clip, seed=9):
    """x_t and t, a level per chunk."""
    rng = torch.Generator().manual_seed(seed)
    t = torch.rand(clip.batch, clip.x.shape[1] // 2, generator=rng).repeat_interleave(2, 1)
    w = t[..., None, None, None]
    return (1 - w) * clip.x + w * torch.randn(clip.x.shape, generator=rng), t


def cached(model, clip, x_t, t, time=0.0, memory=MEMORY):
    """Velocities chunk by chunk, each against the memory of the clip's chunks before it."""
    state, out = start(model, memory, SEEDS), []
    for chunk in clip.chunks(2):
        part = slice(int(chunk.start[0]), int(chunk.start[0]) + 2)
        out.append(model.velocity(x_t[:, part], t[:, part], model.prepare(chunk.control, state)))
        state = advance(model, chunk, state, time)
    return torch.cat(out, 1), state


def chosen(chunk, rows):
    parts = (getattr(chunk, name)[rows] for name in ("x", "start", "executed"))
    x, first, executed = parts
    return replace(chunk, x=x, control=chunk.control.select(rows), start=first, executed=executed)


@torch.no_grad()
def test_a_clip_is_the_rollout_through_the_memory(model):
    clip = small_clip(model, frames=14)
    x_t, t = noisy(clip)
    history = clip.x, torch.full_like(t, 0.2)
    whole = model("clip", x_t, t, clip.control, history, MEMORY)
    close(cached(model, clip, x_t, t, 0.2)[0], whole, 2e-5)
    short = tuple(h[:, :-2] for h in history)
    close(model("clip", x_t[:, 6:], t[:, 6:], clip.control, short, MEMORY), whole[:, 6:], 2e-5)
    t = torch.full_like(t, 0.4)
    forced = model("clip", x_t, t, clip.control, None, MEMORY)
    close(cached(model, replace(clip, x=x_t), x_t, t, 0.4)[0], forced, 2e-5)
    # Beyond the ring something is still known, and it is the first chunk's content that is known.
    other = replace(clip, x=torch.cat((-clip.x[:, :2], clip.x[:, 2:]), 1))
    moved = model("clip", x_t, t, clip.control, (other.x, history[1]), MEMORY)
    assert (moved - model("clip", x_t, t, clip.control, history, MEMORY))[:, 12:].abs().max() > 1e-3


def test_gradients_through_the_memory(model):
    clip = small_clip(model, frames=10)
    x_t, t = noisy(clip)
    weight = torch.randn(clip.x.shape, generator=torch.Generator().manual_seed(1))
    whole = model.clip(x_t, t, clip.control, (clip.x, torch.zeros_like(t)), MEMORY)
    expected, found = (
        torch.autograd.grad((v * weight).sum(), tuple(model.parameters()))
        for v in (whole, cached(model, clip, x_t, t)[0])
    )
    for a, b in zip(found, expected, strict=True):
        close(a, b, 2e-4)


@torch.no_grad()
def test_a_model_starts_as_it_was_without():
    plain = small_dit()
    fast = replace(plain.cfg, fast=KINDS["plain"]).build()
    found = fast.load_state_dict(plain.state_dict(), strict=False)
    assert not found.unexpected_keys and all(".fast." in key for key in found.missing_keys)
    clip = small_clip(plain)
    x_t, t = noisy(clip)
    history = clip.x, torch.zeros_like(t)
    close(fast.clip(x_t, t, clip.control, history), plain.clip(x_t, t, clip.control, history), 1e-6)


@torch.no_grad()
def test_rows_forks_resets_and_what_is_not_kept(model):
    clip = small_clip(model, rows=3, frames=8)
    state = start(model, MEMORY, torch.arange(3), clip.frames(0, 6))
    chunk = next(iter(clip.frames(6, 8).chunks(2)))
    chunk = replace(chunk, start=state.frame)
    # Nothing executed, or an inactive row: bit for bit what it was, whatever the chunk holds.
    bad = replace(chunk, x=chunk.x * torch.nan, executed=torch.tensor([0, 2, 0]))
    after = model.remember(bad, replace(state.fork(1), active=torch.tensor([True, False, True])))
    assert all(torch.equal(a, b) for a, b in zip(after.added, state.memory.added, strict=True))
    # One executed frame of two teaches something else than both.
    half = replace(chunk, executed=torch.ones(3, dtype=torch.int64))
    kept = model.remember(half, state.fork(1)).added
    whole = model.remember(chunk, state.fork(1)).added
    assert not torch.allclose(kept.w0, whole.w0)
    # A row that is reset is that of an empty memory; the others are untouched.
    cleared = state.memory.reset(torch.tensor([False, True, False]))
    assert not any(w[:, 1].any() for w in cleared.added)
    assert all(torch.equal(a[:, [0, 2]], b[:, [0, 2]]) for a, b in zip(cleared.added, state.memory.added, strict=True))
    rows = torch.tensor([2, 0])
    alone = model.remember(chosen(chunk, rows), state.select(rows))
    close(alone.added.w1, whole.w1[:, rows], 1e-5)
    # Forks of one row share its fast weights and go their own way.
    one = state.select(torch.tensor([1]))
    forked = one.fork(4)
    assert forked.memory.added.w0.untyped_storage().data_ptr() == one.memory.added.w0.untyped_storage().data_ptr()
    four = chosen(chunk, torch.tensor([1, 0, 2, 1]))
    close(model.remember(four, forked).added.w2[:, [0, 3]], whole.w2[:, [1, 1]], 1e-5)


@torch.no_grad()
def test_bytes_are_constant_and_counted(model):
    clip, cfg = small_clip(model, frames=2), model.cfg
    state = start(model, MEMORY, SEEDS)
    size = state.memory.nbytes
    for _ in range(30):
        (chunk,) = clip.chunks(2)
        state = advance(model, replace(chunk, start=state.frame), state)
    memory = state.memory
    assert memory.nbytes == size and all(w.isfinite().all() for w in memory.added)
    groups, hidden, width = cfg.fast.sizes(cfg.dim)
    matrices = 4 * 3 * cfg.depth * 2 * groups * hidden * width * (2 if cfg.fast.momentum else 1)
    assert size == matrices + WindowConfig(ring=4).empty(cfg.geometry, 2, torch.zeros(())).nbytes
    # Rows of the fast weights keep their initial norms for ever.
    initial = FastWeights(
        *(torch.stack([getattr(b.fast, n) for b in model.blocks])[:, None] for n in ("w0", "w1", "w2"))
    )
    for w, now in zip(initial, initial + memory.added, strict=True):
        close(now.norm(dim=-1), w.norm(dim=-1).expand_as(now[..., 0]), 1e-5)


@torch.no_grad()
def test_a_snapshot_goes_on(model, tmp_path):
    clip = small_clip(model, frames=8)
    state = start(model, MEMORY, SEEDS, clip.frames(0, 6))
    snapshot(state, model, MEMORY, tmp_path / "s.safetensors")
    again = restore(tmp_path / "s.safetensors", model, MEMORY)
    assert isinstance(again.memory, LactMemory)
    control = clip.control.frames(6, 8)
    x_t, t = noisy(clip)
    found = [model.velocity(x_t[:, 6:8], t[:, 6:8], model.prepare(control, s)) for s in (state, again)]
    assert torch.equal(*found)


def test_errors():
    for memory in (WindowConfig(ring=4), FullConfig()):
        with pytest.raises(UserError, match=r"the model has fast weights \(model.fast\), its memory is (Wind|Full)"):
            start(small_dit(fast=KINDS["plain"]), memory, SEEDS)
    with pytest.raises(UserError, match=r"the model has no fast weights \(model.fast\), its memory is LactConfig"):
        start(small_dit(), MEMORY, SEEDS)
    with pytest.raises(UserError, match=r"stream\.memory: the model has no fast weights"):
        StreamConfig(memory=MEMORY).check(small_dit().cfg)
    with pytest.raises(UserError, match="width 32 does not cut into 3 groups"):
        small_dit(fast=FastConfig(groups=3))
    with pytest.raises(UserError, match="ring 0 must be at least 1"):
        LactConfig(ring=0)
    with pytest.raises(UserError, match="a ring of 2 frames does not hold one chunk of 4"):
        LactConfig(ring=2).check(4)
    with pytest.raises(UserError, match="groups 0 must be at least 1"):
        FastConfig(groups=0)
