"""Memories against a list of frames: what a stream may read after any sequence of operations, and at what cost."""

from dataclasses import dataclass, field, replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import close

from worldmodel.errors import UserError
from worldmodel.kernels.attention import attend
from worldmodel.memory import FullConfig, Geometry, WindowConfig
from worldmodel.models.rope import Rope3D

SHAPE = Geometry(layers=2, heads=2, head_dim=12, tokens=2)
ROPE = Rope3D(12, (1, 2))
CONFIGS = [FullConfig(), WindowConfig(ring=4), WindowConfig(sink=1, ring=3), WindowConfig(sink=3, ring=2)]
LIKE = torch.zeros(())


def tokens(rows, frames, rng):
    """Random keys or values [L, B, h, frames * n, D]."""
    return torch.randn(SHAPE.layers, rows, SHAPE.heads, frames * SHAPE.tokens, SHAPE.head_dim, generator=rng)


def read(memory, queries, frame):
    """Attention output of both layers for queries [B, h, n, D] at absolute frames `frame` [B]."""
    context = memory.context(frame, ROPE)
    q = ROPE.rotate(queries, frame[:, None])
    mask = context.valid[:, None, None]
    mask = torch.cat((mask.new_ones(*mask.shape[:3], 1), mask), -1)  # a zero token, so that an empty memory can be read
    zero = torch.zeros(*q.shape[:2], 1, q.shape[3])
    out = [attend(q, *(torch.cat((zero, t[i]), 2) for t in (context.keys, context.values)), None, mask)
           for i in range(SHAPE.layers)]  # fmt: skip
    return torch.stack(out)


@dataclass
class Row:
    """One stream, by the definition of the policies."""

    frame: int = 0
    frames: list = field(default_factory=list)  # (absolute frame, keys, values), [L, h, n, D] each

    def kept(self, config):
        """(position, keys, values) of what attention may read, in time order."""
        if isinstance(config, FullConfig):
            return self.frames
        sink = [f for f in self.frames if f[0] < config.sink]
        ring = [f for f in self.frames if f[0] >= config.sink][-config.ring :]
        back = max(0, self.frame - config.ring - config.sink)  # directly before the ring
        return [(g + back, k, v) for g, k, v in sink] + ring

    def read(self, config, queries):
        """Like `read` above, for this row."""
        q = ROPE.rotate(queries[None], torch.tensor([[self.frame]]))
        keys, values = [torch.zeros(SHAPE.layers, SHAPE.heads, 1, SHAPE.head_dim)], []
        values.append(keys[0])
        for position, k, v in self.kept(config):
            keys.append(ROPE.rotate(k, torch.tensor([[position]])))
            values.append(v)
        k, v = torch.cat(keys, 2), torch.cat(values, 2)
        return torch.stack([attend(q, k[i : i + 1], v[i : i + 1], None, None)[0] for i in range(SHAPE.layers)])


def compare(memory, rows, config, rng):
    frame = torch.tensor([row.frame for row in rows])
    queries = torch.randn(len(rows), SHAPE.heads, SHAPE.tokens, SHAPE.head_dim, generator=rng)
    found = read(memory, queries, frame)
    for b, row in enumerate(rows):
        close(found[:, b], row.read(config, queries[b]), 2e-6)


operations = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(1, 2), st.integers(0, 2**20)),
        st.tuples(st.just("select"), st.integers(0, 2**20)),
        st.tuples(st.just("fork"), st.integers(1, 2)),
        st.tuples(st.just("reset"), st.integers(0, 2**20)),
        st.tuples(st.just("snapshot")),
    ),
    min_size=1,
    max_size=14,
)


@given(st.sampled_from(CONFIGS), st.booleans(), operations)
@settings(max_examples=120, deadline=None)
def test_any_sequence_of_operations(config, gradients, steps):
    """Appends of chunks of which each row keeps 0 to K frames, selections, forks, resets and snapshots."""
    rng = torch.Generator().manual_seed(0)
    with torch.set_grad_enabled(gradients):
        memory, rows = config.empty(SHAPE, 2, LIKE), [Row(), Row()]
        for name, *args in steps:
            bits = torch.Generator().manual_seed(args[-1]) if args else rng
            match name:
                case "append":
                    size = args[0]
                    keys, values = tokens(len(rows), size, rng), tokens(len(rows), size, rng)
                    executed = torch.randint(0, size + 1, (len(rows),), generator=bits)
                    frame = torch.tensor([row.frame for row in rows])
                    memory = memory.append(keys, values, frame, torch.arange(size) < executed[:, None], ROPE)
                    for b, row in enumerate(rows):
                        for i in range(int(executed[b])):
                            part = slice(i * SHAPE.tokens, (i + 1) * SHAPE.tokens)
                            row.frames.append((row.frame + i, keys[:, b, :, part], values[:, b, :, part]))
                        row.frame += int(executed[b])
                case "select":
                    order = torch.randint(0, len(rows), (int(torch.randint(1, 4, (), generator=bits)),), generator=bits)
                    memory = memory.select(order)
                    rows = [Row(rows[i].frame, list(rows[i].frames)) for i in order.tolist()]
                case "fork" if len(rows) <= 2:
                    memory = memory.fork(args[0])
                    rows = [Row(row.frame, list(row.frames)) for row in rows for _ in range(args[0])]
                case "reset":
                    gone = torch.rand(len(rows), generator=bits) < 0.5
                    memory = memory.reset(gone)
                    rows = [Row() if g else row for g, row in zip(gone.tolist(), rows, strict=True)]
                case "snapshot":
                    memory = config.restore(memory.tensors())
            assert memory.batch == len(rows)
            compare(memory, rows, config, rng)


def filled(config, rows=2, frames=10, seed=0):
    """A memory after `frames` frames in chunks of 2, and the next absolute frames."""
    rng, memory = torch.Generator().manual_seed(seed), config.empty(SHAPE, rows, LIKE)
    for start in range(0, frames, 2):
        frame = torch.full((rows,), start)
        keys, values = tokens(rows, 2, rng), tokens(rows, 2, rng)
        memory = memory.append(keys, values, frame, torch.ones(rows, 2, dtype=torch.bool), ROPE)
    return memory, torch.full((rows,), frames)


def bits(memory, frame):
    """Everything that can be read, for bit-for-bit comparisons."""
    context = memory.context(frame, ROPE)
    rows = context.valid[None, :, None, :, None]
    return torch.where(rows, context.keys, 0), torch.where(rows, context.values, 0), context.valid


def same(a, b):
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("sink", [0, 3])
@torch.no_grad()
def test_window_is_constant_for_ever(sink):
    config = WindowConfig(sink=sink, ring=4)
    memory, frame = filled(config, frames=2)
    size, storage = memory.nbytes, memory.keys.data_ptr()
    chunk, keep = tokens(2, 2, torch.Generator().manual_seed(0)), torch.ones(2, 2, dtype=torch.bool)
    for _ in range(5000):
        memory = memory.append(chunk, chunk, frame, keep, ROPE)
        frame = frame + 2
    assert memory.nbytes == size and memory.keys.data_ptr() == storage
    assert memory.held[0].tolist()[:sink] == list(range(sink))
    assert sorted(memory.held[0].tolist()[sink:]) == list(range(9998, 10002))
    g = SHAPE
    assert size == 4 * 2 * g.layers * 2 * g.heads * (sink + 4) * g.tokens * g.head_dim + 8 * 2 * (sink + 4)


def test_full_grows_by_what_it_is_given():
    sizes = [filled(FullConfig(), frames=frames)[0].nbytes for frames in (2, 4, 6)]
    assert sizes[2] - sizes[1] == sizes[1] - sizes[0] == 2 * tokens(2, 2, None).nbytes + 2 * 2


@torch.no_grad()
def test_a_consumed_window_is_an_error():
    memory, frame = filled(WindowConfig(ring=4))
    keep = torch.ones(2, 2, dtype=torch.bool)
    chunk = tokens(2, 2, torch.Generator().manual_seed(1))
    newer = memory.append(chunk, chunk, frame, keep, ROPE)
    uses = [
        lambda m: m.context(frame, ROPE),
        lambda m: m.append(chunk, chunk, frame, keep, ROPE),
        lambda m: m.select(torch.tensor([0])),
        lambda m: m.fork(2),
        lambda m: m.reset(torch.tensor([True, False])),
        lambda m: m.to("cpu"),
        lambda m: m.tensors(),
    ]
    for use in uses:
        with pytest.raises(RuntimeError, match="consumed by a later append"):
            use(memory)
        use(newer.fork(1))
    newest = newer.append(chunk, chunk, frame + 2, keep, ROPE)
    with pytest.raises(RuntimeError, match="consumed"):
        newer.context(frame, ROPE)
    newest.context(frame + 4, ROPE)


@pytest.mark.parametrize("config", CONFIGS)
def test_with_gradients_the_old_value_stays(config):
    memory, frame = filled(config)
    before = bits(memory, frame)
    for keep in (torch.ones(2, 2, dtype=torch.bool), torch.tensor([[True, False], [False, False]])):
        chunk = tokens(2, 2, torch.Generator().manual_seed(1)).requires_grad_()
        newer = memory.append(chunk, chunk.square(), frame, keep, ROPE)
        assert same(bits(memory, frame), before)
        grad = torch.autograd.grad(sum(t.square().sum() for t in bits(newer, frame + 2)[:2]), chunk)[0]
        kept = keep.repeat_interleave(SHAPE.tokens, 1)[None, :, None, :, None].expand_as(grad)
        expected = torch.where(kept, 2 * chunk + 4 * chunk**3, 0)  # rotation keeps |k|^2
        close(grad, expected, 1e-5)


@pytest.mark.parametrize("config", CONFIGS)
@torch.no_grad()
def test_rows_do_not_touch_each_other(config):
    memory, frame = filled(config, rows=3)
    before = bits(memory, frame)
    cleared = memory.reset(torch.tensor([False, True, False]))
    after = bits(cleared, frame)
    assert not after[2][1].any()
    assert torch.equal(after[0][:, [0, 2]], before[0][:, [0, 2]]) and torch.equal(after[2][[0, 2]], before[2][[0, 2]])
    assert same(bits(memory, frame), before)  # the value that was reset is still there
    # The row goes on like one that never lived before.
    chunk = tokens(3, 2, torch.Generator().manual_seed(1))
    keep = torch.ones(3, 2, dtype=torch.bool)
    go_on = torch.tensor([10, 0, 10])
    old = cleared.append(chunk, chunk, go_on, keep, ROPE)
    new = config.empty(SHAPE, 3, LIKE).append(chunk, chunk, torch.zeros(3, dtype=torch.int64), keep, ROPE)
    queries = torch.randn(3, SHAPE.heads, SHAPE.tokens, SHAPE.head_dim, generator=torch.Generator().manual_seed(2))
    close(read(old, queries, go_on + 2)[:, 1], read(new, queries, torch.tensor([2, 2, 2]))[:, 1], 1e-6)


@pytest.mark.parametrize("config", CONFIGS)
@torch.no_grad()
def test_nan_leaves_with_its_row(config):
    """A row that went NaN is clean after its reset; frames that are not kept cannot spoil the others."""
    memory, frame = filled(config)
    chunk = tokens(2, 2, torch.Generator().manual_seed(1))
    bad = chunk.clone()
    bad[:, 0] = torch.nan
    queries = torch.ones(2, SHAPE.heads, SHAPE.tokens, SHAPE.head_dim)
    ignored = memory.fork(1).append(bad, bad, frame, torch.tensor([[False, False], [True, True]]), ROPE)
    assert read(ignored, queries, frame + 2).isfinite().all()
    spoiled = memory.append(bad, bad, frame, torch.ones(2, 2, dtype=torch.bool), ROPE)
    assert read(spoiled, queries, frame + 2)[:, 0].isnan().all()
    healed = spoiled.reset(torch.tensor([True, False]))
    assert read(healed, queries, torch.tensor([0, 12])).isfinite().all()
    healed = healed.append(chunk, chunk, torch.tensor([0, 12]), torch.ones(2, 2, dtype=torch.bool), ROPE)
    assert read(healed, queries, torch.tensor([2, 14])).isfinite().all()


@torch.no_grad()
def test_forks_of_one_full_row_share_its_storage():
    memory, _ = filled(FullConfig(), rows=1)
    forked = memory.fork(8)
    assert forked.batch == 8 and forked.keys[1].data_ptr() == memory.keys[1].data_ptr()
    assert sum(t.untyped_storage().nbytes() for t in forked.keys) == sum(t.nbytes for t in memory.keys)


@pytest.mark.parametrize("config", CONFIGS)
@torch.no_grad()
def test_forks_of_a_window_go_their_own_way(config):
    memory, frame = filled(config)
    forked, keep = memory.fork(2), torch.ones(4, 2, dtype=torch.bool)
    chunk = tokens(4, 2, torch.Generator().manual_seed(1))
    forked = forked.append(chunk, chunk, frame.repeat_interleave(2), keep, ROPE)
    alone = memory.append(chunk[:, [0, 2]], chunk[:, [0, 2]], frame, keep[:2], ROPE)
    even = bits(forked.select(torch.tensor([0, 2])), frame + 2)
    assert same(even, bits(alone, frame + 2))


@torch.no_grad()
def test_to_and_restore_are_copies():
    memory, frame = filled(WindowConfig(sink=1, ring=3))
    moved, restored = memory.to("cpu"), WindowConfig(sink=1, ring=3).restore(memory.tensors())
    before, chunk = bits(memory, frame), tokens(2, 2, torch.Generator().manual_seed(1))
    memory.append(chunk, chunk, frame, torch.ones(2, 2, dtype=torch.bool), ROPE)
    assert same(bits(moved, frame), before) and same(bits(restored, frame), before)


def test_errors():
    with pytest.raises(UserError, match="sink -1 must be at least 0 and ring 4"):
        WindowConfig(sink=-1, ring=4)
    with pytest.raises(UserError, match="ring 0 at least 1"):
        WindowConfig(ring=0)
    memory, frame = filled(WindowConfig(ring=2))
    chunk = tokens(2, 3, torch.Generator())
    with pytest.raises(UserError, match="a chunk of 3 frames does not fit a ring of 2"):
        memory.append(chunk, chunk, frame, torch.ones(2, 3, dtype=torch.bool), ROPE)
    with pytest.raises(UserError, match="the snapshot holds 2 frames, not 7"):
        WindowConfig(sink=2, ring=5).restore(memory.tensors())


def test_types_and_devices_follow_the_model():
    memory = WindowConfig(ring=2).empty(SHAPE, 1, torch.zeros((), dtype=torch.bfloat16))
    assert memory.keys.dtype == torch.bfloat16 and replace(memory, sink=0).batch == 1
    assert FullConfig().empty(SHAPE, 1, torch.zeros((), dtype=torch.float64)).keys[0].dtype == torch.float64
