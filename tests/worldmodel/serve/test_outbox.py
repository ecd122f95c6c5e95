import asyncio
import threading
from collections.abc import Coroutine
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from worldmodel.serve.meter import Meter, percentiles
from worldmodel.serve.outbox import MAX_MESSAGES, End, Message, Outbox, Picture


def picture(pts: int, real: bool = False) -> Picture:
    return Picture(bytes([pts % 256]), pts, real, 0.0)


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, 10))


async def taken(outbox: Outbox, count: int) -> list[Any]:
    return [await outbox.take() for _ in range(count)]


def test_order_drops_and_room() -> None:
    async def work() -> None:
        left = []
        outbox = Outbox(4, 0, lambda: left.append(1))
        assert outbox.room(4)
        outbox.put([picture(i) for i in range(3)])
        assert not outbox.room(2)
        assert outbox.room(1)
        outbox.put([picture(i) for i in range(3, 6)])
        assert (outbox.waiting, outbox.drops) == (4, 2)
        assert [p.pts for p in await taken(outbox, 4)] == [2, 3, 4, 5]
        assert len(left) == 4
        assert outbox.room(4)

    run(work())


def test_sources_are_counted_apart() -> None:
    async def work() -> None:
        outbox = Outbox(2, 0, lambda: None)
        outbox.put([picture(0), picture(1)])
        outbox.put([picture(0, True), picture(1, True)])
        assert outbox.drops == 0
        outbox.put([picture(2, True)])
        assert (outbox.drops, outbox.waiting) == (1, 2)
        assert [(p.pts, p.real) for p in await taken(outbox, 4)] == [(0, False), (1, False), (1, True), (2, True)]

    run(work())


def test_a_chunk_larger_than_the_queue_passes_whole() -> None:
    async def work() -> None:
        outbox = Outbox(2, 0, lambda: None)
        assert outbox.room(5)
        outbox.put([picture(i) for i in range(5)])
        assert [p.pts for p in await taken(outbox, 5)] == [0, 1, 2, 3, 4]

    run(work())


def test_window() -> None:
    async def work() -> None:
        outbox = Outbox(9, 2, lambda: None)
        outbox.put([picture(i) for i in range(5)])
        assert [p.pts for p in await taken(outbox, 2)] == [0, 1]
        waiting = asyncio.create_task(outbox.take())
        await asyncio.sleep(0.01)
        assert not waiting.done()
        assert not outbox.acknowledge(2)  # it was not sent yet
        assert outbox.acknowledge(0)
        assert (await waiting).pts == 2
        assert outbox.acknowledge(2)
        assert [p.pts for p in await taken(outbox, 2)] == [3, 4]

    run(work())


def test_a_new_stream_does_not_wait_for_pictures_of_the_old_one() -> None:
    """A client throws those away when it is told, and never acknowledges them."""

    async def work() -> None:
        outbox = Outbox(9, 2, lambda: None)
        outbox.put([picture(i) for i in range(5)])
        await taken(outbox, 2)
        waiting = asyncio.create_task(outbox.take())
        await asyncio.sleep(0.01)
        outbox.clear()
        outbox.put([picture(i) for i in range(5, 9)])
        assert (await waiting).pts == 5
        assert outbox.acknowledge(1)  # a late one opens nothing
        assert (await outbox.take()).pts == 6
        waiting = asyncio.create_task(outbox.take())
        await asyncio.sleep(0.01)
        assert not waiting.done()
        assert outbox.acknowledge(6)
        assert (await waiting).pts == 7

    run(work())


def test_messages_pass_a_closed_window() -> None:
    async def work() -> None:
        outbox = Outbox(9, 1, lambda: None)
        outbox.put([picture(0), picture(1)])
        await outbox.take()
        outbox.say("hello")
        assert await outbox.take() == Message("hello")

    run(work())


def test_a_newer_message_takes_the_place_of_one_of_its_kind() -> None:
    async def work() -> None:
        outbox = Outbox(9, 0, lambda: None)
        for text, kind in (("a", "memory"), ("b", ""), ("c", "memory"), ("d", "")):
            outbox.say(text, kind)
        assert await taken(outbox, 3) == [Message("b"), Message("c", "memory"), Message("d")]
        for i in range(1000):  # nobody reads, and nothing piles up
            outbox.say(str(i), "memory")
        assert not outbox.ended
        assert await taken(outbox, 1) == [Message("999", "memory")]

    run(work())


def test_the_end_comes_last_and_nothing_after_it() -> None:
    async def work() -> None:
        outbox = Outbox(9, 0, lambda: None)
        outbox.say("a")
        outbox.put([picture(0)])
        outbox.end(4400, "bad", "why")
        outbox.end(4408, "idle", "other")
        outbox.put([picture(1)])
        outbox.say("b")
        assert await taken(outbox, 3) == [Message("a"), Message("why"), End(4400, "bad")]
        assert outbox.waiting == 0

    run(work())


def test_a_broken_connection_keeps_what_waits_for_the_next_one() -> None:
    async def work() -> None:
        outbox = Outbox(4, 2, lambda: None)
        outbox.put([picture(i) for i in range(4)])
        await taken(outbox, 2)  # on their way, and lost
        outbox.hold()
        outbox.say("kept")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(outbox.take(), 0.05)
        assert outbox.breaks == 1
        assert outbox.reopen(1, 1, ["welcome", "started"])
        assert await taken(outbox, 3) == [Message("welcome"), Message("started"), Message("kept")]
        assert (await outbox.take()).pts == 2
        with pytest.raises(TimeoutError):  # the window of the new connection is full
            await asyncio.wait_for(outbox.take(), 0.05)
        assert outbox.acknowledge(2)
        assert (await outbox.take()).pts == 3
        outbox.hold()
        outbox.end(4500, "failed", "why")
        assert await taken(outbox, 2) == [Message("why"), End(4500, "failed")]

    run(work())


def test_every_connection_is_greeted_once() -> None:
    """Those that have broken before they were greeted leave nothing to the next one."""

    async def work() -> None:
        outbox = Outbox(4, 0, lambda: None)
        outbox.say("kept")
        outbox.hold()
        assert outbox.reopen(1, 0, ["first welcome", "first started"])
        assert await outbox.take() == Message("first welcome")
        outbox.hold()
        assert not outbox.reopen(1, 9, ["late welcome"])
        with pytest.raises(TimeoutError):  # nobody is there
            await asyncio.wait_for(outbox.take(), 0.05)
        outbox.hold()
        assert not outbox.reopen(2, 9, ["second welcome"])
        assert outbox.reopen(3, 0, ["third welcome"])
        assert await taken(outbox, 2) == [Message("third welcome"), Message("kept")]
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(outbox.take(), 0.05)

    run(work())


def test_messages_that_nobody_reads_end_the_session() -> None:
    async def work() -> None:
        outbox = Outbox(9, 0, lambda: None)
        for _ in range(MAX_MESSAGES + 5):
            outbox.say("x")
        assert isinstance((await taken(outbox, MAX_MESSAGES + 2))[-1], End)

    run(work())


def test_another_thread_wakes_the_loop() -> None:
    async def work() -> None:
        outbox = Outbox(9, 0, lambda: None)
        threading.Timer(0.02, lambda: outbox.put([picture(7)])).start()
        assert (await outbox.take()).pts == 7

    run(work())


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=300))
def test_percentiles_are_nearest_rank(values: list[float]) -> None:
    expected = np.percentile(values, [50, 95, 99], method="inverted_cdf")
    got = percentiles(values)
    assert [got["p50"], got["p95"], got["p99"]] == expected.tolist()
    assert got["n"] == len(values)


def test_meter() -> None:
    meter = Meter()
    assert meter.rate(0.0) == 0
    assert meter.latency() == {"p50": 0, "p95": 0, "p99": 0, "n": 0}
    for i in range(11):
        meter.chunk(0.1 * i, 4, 0.05 + 0.001 * i, {"sample": 0.03, "decode": 0.002})
    meter.sent(0.004)
    assert meter.rate(1.0) == pytest.approx(40)
    assert meter.rate(9.0) == 0
    assert meter.latency() == {"p50": 55, "p95": 60, "p99": 60, "n": 11}
    assert meter.stages() == {"sample": 30, "remember": 0, "decode": 2, "encode": 0, "send": 4}
