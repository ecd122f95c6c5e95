"""SIGINT and SIGTERM while files are written: they act at a safe moment, so that what is finished stays readable."""

import signal
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Self

NUMBERS = (signal.SIGINT, signal.SIGTERM)


class Stopped(KeyboardInterrupt):
    """SIGINT or SIGTERM arrived; the message is the signal's name."""


class HeldSignals:
    """``with HeldSignals() as signals``: SIGINT and SIGTERM wait for the next place where stopping is allowed.

    Such places are the blocks ``with signals.stop()`` and the waits for the items of ``signals.between``: there a
    signal raises Stopped, once; later ones change nothing. A signal that finds no such place has no effect but
    ``arrived``. Off the main thread, where Python delivers no signals, none arrives.
    """

    def __init__(self) -> None:
        self.arrived: str | None = None  # name of the first signal
        self._raises = self._raised = False
        self._before = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._arrive) for number in NUMBERS}
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    @contextmanager
    def stop(self) -> Iterator[None]:
        """Signals act in this block: one that has arrived already at its beginning, one that arrives at once."""
        self._raises = True
        try:
            self._raise_once()
            yield
        finally:
            self._raises = False

    def between[T](self, items: Iterable[T]) -> Iterator[T]:
        """The same items. Signals act while an item is made, not while it is used."""
        iterator = iter(items)
        while True:
            with self.stop():
                try:
                    item = next(iterator)
                except StopIteration:
                    return
            yield item

    def _arrive(self, number: int, _: FrameType | None) -> None:
        self.arrived = self.arrived or signal.Signals(number).name
        if self._raises:
            self._raise_once()

    def _raise_once(self) -> None:
        if self.arrived is not None and not self._raised:
            self._raised = True
            raise Stopped(self.arrived)


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Holds SIGINT and SIGTERM back until the block is done, then lets them act. Does nothing off the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    held: list[int] = []

    def hold(number: int, _: FrameType | None) -> None:
        held.append(number)

    before = {number: signal.signal(number, hold) for number in NUMBERS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if held:
        signal.raise_signal(held[0])


@contextmanager
def without_interrupts_for_children() -> Iterator[None]:
    """Processes that are started in this block by this thread never get SIGINT, from their first instruction on.

    Ctrl-C in a terminal goes to all processes: those that cannot handle it yet, as they still import, would die of it.
    Here it acts after the block.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
