"""Turns of the engine's thread, with sessions that are made up."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from talk import wait_for

from worldmodel.serve import engine as engines
from worldmodel.serve.engine import Engine


class Planted:
    """A session that counts its turns, and raises where it is told to."""

    def __init__(self, wait: float | None = 0.0, broken: str = "") -> None:
        self.turns, self.lines, self.closed = 0, [], False
        self._wait, self._broken = wait, broken

    def _trip(self, where: str) -> None:
        if self._broken == where:
            raise ValueError(f"planted in {where}")

    def wait(self, now: float) -> float | None:
        self._trip("wait")
        return self._wait

    def turn(self, now: float) -> None:
        self._trip("turn")
        self.turns += 1
        time.sleep(0.001)

    def fail(self, line: str) -> None:
        self.lines.append(line)

    def close(self) -> None:
        self.closed = True
        self._trip("close")

    def join(self, timeout: float) -> None:
        pass


@contextmanager
def running() -> Iterator[Engine]:
    engine = Engine()
    engine.start()
    try:
        yield engine
    finally:
        engine.stop()


@pytest.mark.parametrize("place", ["wait", "turn"])
def test_a_session_that_fails_ends_alone(place: str) -> None:
    healthy, broken = Planted(), Planted(broken=place)
    with running() as engine:
        engine.add(healthy)
        wait_for(lambda: healthy.turns > 3, "the healthy one has turns")
        engine.add(broken)
        wait_for(lambda: broken.closed, "the broken one is closed")
        before = healthy.turns
        wait_for(lambda: healthy.turns > before + 3, "the healthy one goes on")
        assert engine.alive and engine.sessions == 1
        assert broken.lines == [f"the stream failed: planted in {place}"]
        assert healthy.lines == [] and not healthy.closed


def test_a_lonely_session_that_fails_leaves_the_engine_ready() -> None:
    with running() as engine:
        for place in ("wait", "turn", "wait"):
            broken = Planted(broken=place)
            engine.add(broken)
            wait_for(lambda one=broken: one.closed, "the broken one is closed")
        healthy, unable = Planted(), Planted(wait=None, broken="close")
        engine.add(unable)
        engine.remove(unable)
        engine.add(healthy)
        wait_for(lambda: healthy.turns > 3, "a new one has turns")
        assert engine.alive and unable.closed


@pytest.mark.parametrize("wait", [1e300, float("inf"), threading.TIMEOUT_MAX * 2])
def test_a_session_that_waits_for_ages_keeps_nobody_waiting(wait: float) -> None:
    patient, healthy = Planted(wait=wait), Planted()
    with running() as engine:
        engine.add(patient)
        time.sleep(0.02)  # the thread waits for it alone
        engine.add(healthy)
        wait_for(lambda: healthy.turns > 3, "the healthy one has turns")
        assert engine.alive and engine.sessions == 2 and not patient.lines


def test_the_thread_looks_again_after_a_bounded_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "MAX_WAIT", 0.01)
    sleepy = Planted(wait=None)
    with running() as engine:
        engine.add(sleepy)
        sleepy._wait = 0.0  # without a word to the engine
        wait_for(lambda: sleepy.turns > 0, "it has a turn")
