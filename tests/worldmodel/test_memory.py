"""Memories against a list of frames: what a stream may read after any sequence of operations, and at what cost."""

from dataclasses import dataclass, field, replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import close

from worldmodel.errors import UserError
from worldmodel.kernels.attention import attend
from worldmodel.memory import FullConfig, Geometry, RetrievalConfig, SlowFastConfig, SlowFastMemory, WindowConfig
from worldmodel.models.rope import Rope3D

SHAPE = Geometry(layers=2, heads=2, head_dim=12, tokens=2)
ROPE = Rope3D(12, (1, 2))
CONFIGS = [
    FullConfig(), WindowConfig(ring=4), WindowConfig(sink=1, ring=3), WindowConfig(sink=3, ring=2),
    SlowFastConfig(sink=1, slow=2, fast=2, every=2, surprise=0.1), SlowFastConfig(sink=0, slow=3, fast=3, every=1),
    SlowFastConfig(sink=3, slow=1, fast=4, every=1, surprise=-0.1), RetrievalConfig(bank=4, read=2, ring=2, every=1),
    RetrievalConfig(sink=2, bank=3, read=1, ring=3, every=2),
]  # fmt: skip
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
    out = [attend(q, *(torch.cat((zero, t[i]), 2) for t in (context.keys, context.values)), (), mask)
           for i in range(SHAPE.layers)]  # fmt: skip
    return torch.stack(out)


def alike(a, b):
    """Cosine of the mean keys of two frames in the first layer, [h, n, D] each."""
    a, b = a[0].mean(1).flatten(), b[0].mean(1).flatten()
    return float(a @ b / (a.norm() * b.norm()))


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
        size = config.fast if isinstance(config, SlowFastConfig) else config.ring
        ring = [f for f in self.frames if f[0] >= config.sink][-size:]
        far = sink + ([] if isinstance(config, WindowConfig) else self.slow(config, size))
        edge = ring[0][0] if ring else self.frame  # all others directly before the ring
        return [(edge - len(far) + i, k, v) for i, (_, k, v) in enumerate(far)] + ring

    def slow(self, config, size):
        """The slow frames of a slow-fast or retrieval memory, in time order."""
        slow, ring, last = [], [], None
        for g, k, v in self.frames:
            chosen = False
            if g % config.every == 0:
                chosen = last is None or isinstance(config, RetrievalConfig) or alike(k, last) < config.surprise
                last = k
            if g >= config.sink:
                ring.append((chosen, (g, k, v)))
            if len(ring) > size and ring.pop(0)[0]:
                slow.append(self.frames[g - size])
        if isinstance(config, SlowFastConfig):
            return slow[-config.slow :]
        best = sorted(slow[-config.bank :], key=lambda f: -alike(f[1], self.frames[-1][1]))
        return sorted(best[: config.read], key=lambda f: f[0])

    def read(self, config, queries):
        """Like `read` above, for this row."""
        q = ROPE.rotate(queries[None], torch.tensor([[self.frame]]))
        keys, values = [torch.zeros(SHAPE.layers, SHAPE.heads, 1, SHAPE.head_dim)], []
        values.append(keys[0])
        for position, k, v in self.kept(config):
            keys.append(ROPE.rotate(k, torch.tensor([[position]])))
            values.append(v)
        k, v = torch.cat(keys, 2), torch.cat(values, 2)
        return torch.stack([attend(q, k[i : i + 1], v[i : i + 1], (), None)[0] for i in range(SHAPE.layers)])


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


BOUNDED = [config for config in CONFIGS if not isinstance(config, FullConfig)]


@pytest.mark.parametrize("config", BOUNDED)
@torch.no_grad()
def test_bytes_and_distances_are_bounded(config):
    """300 frames: the same storage throughout, and no key further away than everything that is held."""
    memory, frame = config.empty(SHAPE, 2, LIKE), torch.zeros(2, dtype=torch.int64)
    rng, size = torch.Generator().manual_seed(0), memory.nbytes
    for _ in range(150):
        chunk = tokens(2, 2, rng)
        memory = memory.append(chunk, chunk, frame, torch.ones(2, 2, dtype=torch.bool), ROPE)
        frame = frame + 2
        (reach,) = config.reach(range(int(frame[0]), int(frame[0]) + 1, 2), torch.zeros(2, 1, 24))
        assert int(frame[0]) - reach.since <= config.capacity
        if isinstance(memory, SlowFastMemory):
            held = memory.ledger.held(frame)
            near = torch.where(held.valid, held.places, frame[:, None])
            assert int((frame[:, None] - near).max()) <= config.capacity
            there = [sorted(places[valid].tolist()) for places, valid in zip(held.places, held.valid, strict=True)]
            edge = max(int(frame[0]) - memory.ledger.tiers.fast, config.sink)
            if int(frame[0]) >= config.sink:  # directly before the ring, without gaps
                assert there == [list(range(edge - len(p), edge)) for p in there]
    assert memory.nbytes == size
    if isinstance(config, SlowFastConfig):
        assert (memory.ledger.slow >= 0).all() and len(set(memory.ledger.slow[0].tolist())) == config.slow


@pytest.mark.slow
@torch.no_grad()
def test_no_position_beyond_the_bound_after_100000_frames():
    tiers = SlowFastConfig(sink=2, slow=12, fast=6, every=3, surprise=0.3).tiers
    one, rng = torch.ones(1, dtype=torch.bool), torch.Generator().manual_seed(0)
    ledger, frame = tiers.empty(1, 4, LIKE.device), torch.zeros(1, dtype=torch.int64)
    for number in range(100_000):
        ledger, _ = ledger.step(frame, one, torch.randn(1, 4, generator=rng))
        frame = frame + 1
        if number % 20 == 19:
            held = ledger.held(frame)
            assert int(frame) - int(held.places[held.valid].min()) <= 20
    assert min(ledger.slow[0].tolist()) > 99_000  # promotions went on


def test_full_grows_by_what_it_is_given():
    sizes = [filled(FullConfig(), frames=frames)[0].nbytes for frames in (2, 4, 6)]
    assert sizes[2] - sizes[1] == sizes[1] - sizes[0] == 2 * tokens(2, 2, None).nbytes + 2 * 2


@pytest.mark.parametrize("config", [WindowConfig(ring=4), SlowFastConfig(sink=0, slow=2, fast=4)], ids=str)
@torch.no_grad()
def test_a_consumed_window_is_an_error(config):
    memory, frame = filled(config)
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


@pytest.mark.parametrize("config", BOUNDED)
@torch.no_grad()
def test_forks_of_one_row_copy_nothing_until_one_goes_on(config):
    """8 forks hold the storage of one; then they, and what they were forked from, go on side by side."""
    memory, frame = filled(config, rows=1)
    before, forked = bits(memory, frame), memory.fork(8)
    one = memory.window if isinstance(memory, SlowFastMemory) else memory
    many = forked.window if isinstance(forked, SlowFastMemory) else forked
    assert many.keys.data_ptr() == one.keys.data_ptr() and forked.nbytes <= memory.nbytes + 8 * 8 * 200
    chunk = tokens(9, 2, torch.Generator().manual_seed(1))
    on = memory.append(chunk[:, :1], chunk[:, :1], frame, torch.ones(1, 2, dtype=torch.bool), ROPE)
    assert all(same(bits(forked.select(torch.tensor([b])), frame), before) for b in range(8))
    keep, late = torch.ones(8, 2, dtype=torch.bool), frame.repeat(8)
    after = forked.append(chunk[:, 1:], chunk[:, 1:], late, keep, ROPE)
    for b in range(8):
        part = chunk[:, 1 + b : 2 + b]
        alone = config.restore(filled(config, rows=1)[0].tensors()).append(part, part, frame, keep[:1], ROPE)
        assert same(bits(after.select(torch.tensor([b])), frame + 2), bits(alone, frame + 2))
    again = tokens(1, 2, torch.Generator().manual_seed(2))
    on = on.append(again, again, frame + 2, keep[:1], ROPE)
    assert on.nbytes == config.empty(SHAPE, 1, LIKE).nbytes


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
    with pytest.raises(UserError, match="a ring of 2 frames does not hold one chunk of 3"):
        memory.append(chunk, chunk, frame, torch.ones(2, 3, dtype=torch.bool), ROPE)
    with pytest.raises(UserError, match="the snapshot holds 2 frames, not 7"):
        WindowConfig(sink=2, ring=5).restore(memory.tensors())
    with pytest.raises(UserError, match=r"slow-fast memory: sink 2 .* slow 0, fast 6 and every 4 at least 1"):
        SlowFastConfig(slow=0)
    with pytest.raises(UserError, match=r"retrieval memory: .* read 9 in \[1, bank\]"):
        RetrievalConfig(bank=8, read=9)
    for config in (SlowFastConfig(fast=2), RetrievalConfig(ring=2)):
        with pytest.raises(UserError, match=r"2( fast)? frames do(es)? not hold one chunk of 3"):
            config.check(3)
    saved = filled(SlowFastConfig(sink=1, slow=3, fast=4))[0].tensors()
    with pytest.raises(UserError, match="the snapshot holds 3 slow frames, not 2"):
        SlowFastConfig(sink=1, slow=2, fast=4).restore(saved)
    del saved["slow.last"]
    with pytest.raises(KeyError, match=r"slow\.last"):
        SlowFastConfig(sink=1, slow=3, fast=4).restore(saved)


def test_types_and_devices_follow_the_model():
    memory = WindowConfig(ring=2).empty(SHAPE, 1, torch.zeros((), dtype=torch.bfloat16))
    assert memory.keys.dtype == torch.bfloat16 and replace(memory, sink=0).batch == 1
    half = torch.zeros((), dtype=torch.bfloat16)
    slow = SlowFastConfig(sink=1, slow=2, fast=2, every=1).empty(SHAPE, 1, half)
    chunk, keep = tokens(1, 2, None).bfloat16(), torch.ones(1, 2, dtype=torch.bool)
    for start in range(0, 8, 2):
        slow = slow.append(chunk, chunk, torch.tensor([start]), keep, ROPE)
    assert slow.keys.dtype == torch.bfloat16 and (slow.ledger.slow >= 0).all()
    assert FullConfig().empty(SHAPE, 1, torch.zeros((), dtype=torch.float64)).keys[0].dtype == torch.float64
