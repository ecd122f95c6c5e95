"""A model that also sees the newest finished frame: cached, whole-clip and per-row results agree."""

import pytest
import torch

from worldmodel.chunk import ActionControl, Chunk, Clip
from worldmodel.memory import FullConfig, WindowConfig
from worldmodel.models.dit import DiT, DiTConfig
from worldmodel.rollout import start
from worldmodel.session import restore, snapshot

CONFIG = DiTConfig(
    channels=4,
    size=(4, 4),
    dim=32,
    depth=2,
    heads=2,
    hidden=64,
    actions=2,
    chunk=2,
    learned_position=False,
    anchor=True,
)


@pytest.fixture
def model() -> DiT:
    torch.manual_seed(0)
    made = CONFIG.build()
    for p in made.parameters():
        torch.nn.init.normal_(p, std=0.2)
    return made.requires_grad_(False)


def clip(batch: int = 2, frames: int = 8, seed: int = 1) -> Clip[ActionControl]:
    rng = torch.Generator().manual_seed(seed)
    x = torch.randn(batch, frames, 4, 4, 4, generator=rng)
    control = ActionControl(torch.randn(batch, frames, 2, generator=rng), torch.ones(batch, frames, dtype=torch.bool))
    return Clip(x, control, torch.arange(batch))


@pytest.mark.parametrize("memory", [FullConfig(), WindowConfig(sink=2, ring=6)])
def test_cached_equals_teacher_forced_clip(model, memory):
    real, noisy, t = clip(), clip(seed=2).x, torch.rand(2, 8, generator=torch.Generator().manual_seed(3))
    clean = torch.zeros(2, 8)
    whole = model("clip", noisy, t, real.control, (real.x, clean))
    shorter = model("clip", noisy[:, 2:], t[:, 2:], real.control, (real.x[:, :6], clean[:, :6]))
    torch.testing.assert_close(shorter, whole[:, 2:], rtol=1e-5, atol=1e-5)
    for i in range(4):
        context = real.frames(0, 2 * i) if i else None
        state = start(model, memory, torch.arange(2), context)
        now = slice(2 * i, 2 * i + 2)
        v = model.velocity(noisy[:, now], t[:, now], model.prepare(real.control.frames(2 * i, 2 * i + 2), state))
        torch.testing.assert_close(v, whole[:, now], rtol=1e-5, atol=1e-5)


def test_several_chunks_in_one_call_equal_the_clip_without_history(model):
    real, t = clip(), torch.rand(2, 8, generator=torch.Generator().manual_seed(3))
    state = start(model, FullConfig(), torch.arange(2))
    together = model.velocity(real.x, t, model.prepare(real.control, state))
    torch.testing.assert_close(together, model("clip", real.x, t, real.control, None), rtol=1e-5, atol=1e-5)


def test_the_newest_frame_matters_and_only_it(model):
    real = clip()
    state = start(model, FullConfig(), torch.arange(2), real.frames(0, 4))
    assert torch.equal(state.last, real.x[:, 3])
    t, control = torch.full((2, 2), 0.7), real.control.frames(4, 6)
    v = model.velocity(real.x[:, 4:6], t, model.prepare(control, state))
    assert state.last is not None
    other = type(state)(state.memory, state.frame, state.seed, state.active, None, state.last + 1)
    assert not torch.allclose(v, model.velocity(real.x[:, 4:6], t, model.prepare(control, other)))


def test_reset_select_and_snapshot_carry_it(model, tmp_path):
    real, memory = clip(), WindowConfig(ring=6)
    state = start(model, memory, torch.arange(2), real.frames(0, 4))
    snapshot(state, model, memory, tmp_path / "state.safetensors")
    assert torch.equal(restore(tmp_path / "state.safetensors", model, memory).last, state.last)
    assert torch.equal(state.select(torch.tensor([1, 0])).last, state.last.flip(0))
    for rows, seed in (([True], [9, 9]), ([True, False], [9]), ([True, False, True], [9, 9, 9]), ([0, 1], [9, 9])):
        with pytest.raises(ValueError, match=r"reset takes a bool mask and seeds \[2\], not"):
            state.reset(torch.tensor(rows), torch.tensor(seed))
    fresh = state.reset(torch.tensor([True, False]), torch.tensor([9, 9]))
    assert not fresh.last[0].any() and torch.equal(fresh.last[1], state.last[1])
    t, control = torch.full((2, 2), 0.7), real.control.frames(4, 6)
    empty = start(model, memory, torch.arange(2))
    torch.testing.assert_close(
        model.velocity(real.x[:, 4:6], t, model.prepare(control, fresh))[0],
        model.velocity(real.x[:, 4:6], t, model.prepare(control, empty))[0],
        rtol=1e-5, atol=1e-5,
    )  # fmt: skip


def test_inactive_rows_and_unexecuted_frames_keep_the_old_one(model):
    real = clip()
    state = start(model, FullConfig(), torch.arange(2), real.frames(0, 2))
    still = type(state)(state.memory, state.frame, state.seed, torch.tensor([True, False]), None, state.last)
    chunk = Chunk(real.x[:, 2:4], real.control.frames(2, 4), state.frame, torch.tensor([1, 2]))
    after = still.advance(model.remember(chunk, still), chunk.x, chunk.executed)
    assert after.frame.tolist() == [3, 2]
    assert torch.equal(after.last[0], real.x[0, 2]) and torch.equal(after.last[1], real.x[1, 1])
