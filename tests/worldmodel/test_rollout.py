"""The one loop: replay, stop and go on, fork, reset, any batch slot; a stream is a function of its values."""

from dataclasses import replace

import pytest
import torch
from tiny import close, small_clip, small_dit

from worldmodel.memory import FullConfig, WindowConfig
from worldmodel.rollout import advance, join, replay, rollout, start, step
from worldmodel.sampler import Euler, FewStep, FirstChunks, Heun, Pipelined

MEMORIES = [FullConfig(), WindowConfig(sink=2, ring=4)]
SAMPLERS = [
    Euler(steps=2, guidance=1.5),
    Heun(steps=2),
    FewStep(levels=(1.0, 0.5)),
    FirstChunks(first=Euler(steps=3), chunks=2, then=Euler(steps=1)),
    Pipelined(chunks=2, steps=4),
]
SEEDS = torch.tensor([11, 2**40 + 12, 13])


@pytest.fixture(scope="module")
def model():
    return small_dit(anchor=True)


@pytest.fixture(scope="module")
def clip(model):
    return small_clip(model, rows=3, frames=24)


def begin(model, memory, clip, seeds=SEEDS, time=0.1):
    with torch.no_grad():
        return start(model, memory, seeds, clip.frames(0, 4), time)


@torch.no_grad()
def run(model, sampler, clip, state, first=4, last=24, time=0.1):
    """Chunks of frames first to last and the state after them."""
    controls = replay(clip.control.frames(first, last), 2, sampler.lookahead)
    chunks, after = zip(*rollout(model, controls, sampler, state, time), strict=True)
    return torch.cat([c.x for c in chunks], 1), after[-1]


@pytest.mark.parametrize("memory", MEMORIES, ids=str)
@pytest.mark.parametrize("sampler", SAMPLERS, ids=lambda s: type(s).__name__)
def test_stop_and_go_on(model, clip, sampler, memory):
    """A stream that is stopped after some chunks goes on as if nothing had been; two runs are the same bits."""
    whole, end = run(model, sampler, clip, begin(model, memory, clip))
    again, _ = run(model, sampler, clip, begin(model, memory, clip))
    assert torch.equal(whole, again)
    ahead = 2 * sampler.lookahead
    early, state = run(model, sampler, clip, begin(model, memory, clip), 4, 10 + ahead)
    late, after = run(model, sampler, clip, state, 10, 24)
    assert torch.equal(torch.cat((early, late), 1), whole)
    assert torch.equal(after.frame, end.frame) and int(end.frame[0]) == 4 + whole.shape[1]


@pytest.mark.parametrize("memory", MEMORIES, ids=str)
@pytest.mark.parametrize("sampler", SAMPLERS, ids=lambda s: type(s).__name__)
def test_any_batch_slot(model, clip, sampler, memory):
    whole, _ = run(model, sampler, clip, begin(model, memory, clip))
    order = torch.tensor([1, 2, 0])
    moved, _ = run(model, sampler, clip.select(order), begin(model, memory, clip.select(order), SEEDS[order]))
    close(moved, whole[order], 1e-5)
    one = torch.tensor([1])
    alone, _ = run(model, sampler, clip.select(one), begin(model, memory, clip.select(one), SEEDS[one]))
    close(alone, whole[one], 1e-5)


@pytest.mark.parametrize("memory", MEMORIES, ids=str)
@pytest.mark.parametrize("sampler", SAMPLERS, ids=lambda s: type(s).__name__)
def test_a_row_that_is_reset_is_a_fresh_stream(model, clip, sampler, memory):
    _, state = run(model, sampler, clip, begin(model, memory, clip), 4, 12 + 2 * sampler.lookahead)
    rows = torch.tensor([False, True, False])
    undisturbed, _ = run(model, sampler, clip, state.fork(1), 12)
    made, end = run(model, sampler, clip, state.reset(rows, torch.tensor([0, 99, 0])), 12)
    assert end.frame.tolist() == [12 + made.shape[1], made.shape[1], 12 + made.shape[1]]
    assert end.seed.tolist() == [11, 99, 13]
    close(made[[0, 2]], undisturbed[[0, 2]], 1e-6)
    with torch.no_grad():
        fresh = start(model, memory, torch.tensor([99]))
    alone, _ = run(model, sampler, clip.select(torch.tensor([1])), fresh, 12)
    close(made[1:2], alone, 1e-5)


@pytest.mark.parametrize("memory", MEMORIES, ids=str)
@pytest.mark.parametrize("sampler", SAMPLERS, ids=lambda s: type(s).__name__)
def test_forks(model, clip, sampler, memory):
    """Forks with the seed they share are copies; with their own they part. The parent can still be used."""
    _, state = run(model, sampler, clip, begin(model, memory, clip), 4, 12 + 2 * sampler.lookahead)
    forked = state.fork(2)
    assert forked.batch == 6 and forked.seed.tolist() == [s for s in SEEDS.tolist() for _ in range(2)]
    rows = torch.arange(3).repeat_interleave(2)
    twice, _ = run(model, sampler, clip.select(rows), forked, 12)
    once, _ = run(model, sampler, clip, state, 12)
    close(twice, once[rows], 1e-5)
    close(twice[::2], twice[1::2], 1e-6)
    # With their own seeds, from the same past
    _, state = run(model, sampler, clip, begin(model, memory, clip), 4, 12 + 2 * sampler.lookahead)
    own = replace(state.fork(2), seed=torch.arange(6))
    apart, _ = run(model, sampler, clip.select(rows), own, 12)
    assert (apart[::2] - apart[1::2])[:, -2:].abs().amax((1, 2, 3, 4)).min() > 1e-2


@pytest.mark.parametrize("memory", MEMORIES, ids=str)
@torch.no_grad()
def test_inactive_rows_stand_still(model, clip, memory):
    """A row that is inactive for some chunks goes on, when it is woken, as if it had not been there."""
    sampler = Euler(steps=2)
    state = begin(model, memory, clip)
    state = replace(state, active=torch.tensor([True, False, True]))
    _, state = run(model, sampler, clip, state, 4, 10)
    assert state.frame.tolist() == [10, 4, 10]
    state = replace(state, active=torch.ones(3, dtype=torch.bool))
    made, _ = run(model, sampler, clip, state, 10, 14)
    one = torch.tensor([1])
    alone, _ = run(model, sampler, clip.select(one), begin(model, memory, clip.select(one), SEEDS[one]), 10, 14)
    close(made[one], alone, 1e-5)


@torch.no_grad()
def test_start_remembers_the_context(model, clip):
    empty = start(model, FullConfig(), SEEDS)
    assert empty.frame.tolist() == [0, 0, 0] and empty.active.all() and empty.pending is None
    state = empty
    for chunk in clip.frames(0, 4).chunks(2):
        state = advance(model, chunk, state, 0.1)
    begun = begin(model, FullConfig(), clip)
    assert begun.frame.tolist() == [4, 4, 4]
    for name, tensor in begun.memory.tensors().items():
        assert torch.equal(tensor, state.memory.tensors()[name])
    marked = begin(model, FullConfig(), clip, time=0.0).memory.tensors()["values"]
    assert not torch.equal(marked, begun.memory.tensors()["values"])


@torch.no_grad()
def test_the_controller_sees_every_chunk_and_ends_the_stream(model, clip):
    seen = []

    def controller(chunk):
        seen.append(chunk)
        return clip.control.frames(0, 2) if len(seen) <= 3 else None

    made = list(rollout(model, controller, Euler(steps=1), begin(model, WindowConfig(ring=4), clip)))
    assert len(made) == 3 and seen[0] is None
    for (chunk, state), shown in zip(made, seen[1:], strict=True):
        assert shown is chunk and torch.equal(state.frame, chunk.start + 2)
    assert [int(c.start[0]) for c, _ in made] == [4, 6, 8]
    assert made[0][0].executed.tolist() == [2, 2, 2] and made[0][0].control.length == 2


@torch.no_grad()
def test_step_is_the_loop(model, clip):
    sampler = Pipelined(chunks=2, steps=4)
    whole, _ = run(model, sampler, clip, begin(model, FullConfig(), clip))
    state, out = begin(model, FullConfig(), clip), []
    for first in range(4, 22, 2):
        chunk, state = step(model, sampler, clip.control.frames(first, first + 4), state, 0.1)
        assert chunk.x.shape[1] == chunk.control.length == 2
        out.append(chunk.x)
    assert torch.equal(torch.cat(out, 1), whole)


@torch.no_grad()
def test_chunks_are_remembered_at_the_context_time(model, clip):
    """Generated chunks like those of the context: clean latents, marked with the flow time that was asked for."""
    first = begin(model, FullConfig(), clip)
    for time in (0.0, 0.1):
        chunk, state = step(model, Euler(steps=1), clip.control.frames(4, 6), first, time)
        (_, after), *_ = rollout(model, replay(clip.control.frames(4, 6), 2), Euler(steps=1), first, time)
        expected = model.remember(chunk, first, time).tensors()
        for made in (state, after):
            assert all(torch.equal(made.memory.tensors()[name], tensor) for name, tensor in expected.items())


def played(controller):
    return list(iter(lambda: controller(None), None))


def test_replay():
    control = small_clip(small_dit(), frames=10).control
    pieces = played(replay(control, 2))
    assert [p.length for p in pieces] == [2] * 5
    assert torch.equal(torch.cat([p.action for p in pieces], 1), control.action)
    ahead = played(replay(control, 2, lookahead=2))
    assert [p.length for p in ahead] == [6] * 3
    assert torch.equal(ahead[2].action, control.action[:, 4:10])
    assert replay(control.frames(0, 9), 4)(None).length == 4  # a rest that is no chunk is left out
    assert replay(control.frames(0, 1), 2)(None) is None


@torch.no_grad()
def test_join(model, clip):
    controls = replay(clip.control.frames(4, 12), 2)
    made = join(rollout(model, controls, Euler(steps=1), begin(model, FullConfig(), clip)))
    assert made.shape == (3, 8, *model.frame_shape)
    expected, _ = run(model, Euler(steps=1), clip, begin(model, FullConfig(), clip), 4, 12, time=0.0)
    assert torch.equal(made, expected)
    with pytest.raises(ValueError, match="made no chunk"):
        join(iter(()))


def test_the_loop_leaves_gradients_alone(model, clip):
    """Nothing is yielded inside no_grad: who wants gradients through a rollout gets them."""
    control = replace(clip.control, action=clip.control.action.clone().requires_grad_())
    state = start(model, WindowConfig(ring=6), SEEDS, clip.frames(0, 4))
    made = []
    for chunk, _ in rollout(model, replay(control.frames(4, 8), 2), Euler(steps=2), state):
        assert torch.is_grad_enabled()
        made.append(chunk.x)
    (grad,) = torch.autograd.grad(made[1].square().sum(), control.action)
    reach = grad.abs().amax((0, 2)) > 0
    assert reach.tolist() == [False] * 4 + [True] * 4 + [False] * 16  # through the memory of the first chunk too


@torch.no_grad()
def test_state_to(model, clip):
    _, state = run(model, Pipelined(chunks=2, steps=4), clip, begin(model, WindowConfig(ring=4), clip), 4, 12)
    moved = state.to("cpu")
    a, _ = run(model, Pipelined(chunks=2, steps=4), clip, state, 12)
    b, _ = run(model, Pipelined(chunks=2, steps=4), clip, moved, 12)  # it is a copy: `state` is used up by now
    assert torch.equal(a, b)


@pytest.mark.parametrize("memory", MEMORIES, ids=str)
@torch.no_grad()
def test_half_precision_by_autocast(model, clip, memory):
    """Memory keeps the type of the weights; the stream stays near the one in fp32."""
    whole, _ = run(model, Euler(steps=2), clip, begin(model, memory, clip), 4, 12)
    with torch.autocast("cpu", torch.bfloat16):
        half, state = run(model, Euler(steps=2), clip, begin(model, memory, clip), 4, 12)
    assert half.dtype == torch.float32 and state.memory.tensors()["values"].dtype == torch.float32
    assert (half - whole).std() < 0.02 * whole.std()
