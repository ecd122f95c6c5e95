"""The engine's thread: every chunk of every session is made here, one after another, in turns.

One thread, because the model's arithmetic fills a core or a GPU by itself, and because with a batch of one a stream
does not depend on who else is connected: replays stay exact.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable

import torch

from .protocol import in_words
from .session import Session

_log = logging.getLogger("worldmodel.serve")
MAX_WAIT = 60.0  # seconds until the thread looks at its sessions again, whatever they say


class Engine:
    """Turns go round: whoever had one waits until every other session that is ready had one, too."""

    def __init__(self, threads: int = 1) -> None:
        """threads: of torch inside the engine. On a CPU one is faster for small models."""
        self._threads = threads
        self._sessions: deque[Session] = deque()
        self._leaving: deque[Session] = deque()
        self._changed = threading.Condition()
        self._running = True
        self._warm = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    @property
    def alive(self) -> bool:
        """Whether the thread runs and makes chunks."""
        return self._thread.is_alive() and self._failure is None

    @property
    def failure(self) -> BaseException | None:
        """What has ended the thread, None if nothing has."""
        return self._failure

    @property
    def sessions(self) -> int:
        """How many sessions take turns."""
        return len(self._sessions)

    def start(self, warm_up: Callable[[], None] = lambda: None, on_failure: Callable[[], None] = lambda: None) -> None:
        """Start the thread and wait for warm_up, which it calls first. Raises what warm_up raises.

        on_failure: called in the thread if it dies later, after every session was told.
        """
        self._warm_up, self._on_failure = warm_up, on_failure
        self._thread.start()
        self._warm.wait()
        if self._failure is not None:
            raise self._failure

    def add(self, session: Session) -> None:
        """Let a session take part; one that comes after the thread has died fails at once."""
        with self._changed:
            if self._failure is None:
                self._sessions.append(session)
            self._changed.notify()
        if self._failure is not None:
            session.fail(self._obituary)

    def remove(self, session: Session) -> None:
        """Let go of a session; it gets no further turn and is closed in the engine's thread."""
        with self._changed:
            if session in self._sessions:
                self._sessions.remove(session)
                self._leaving.append(session)
            self._changed.notify()

    def wake(self) -> None:
        """Something has changed that may let a session take its turn."""
        with self._changed:
            self._changed.notify()

    def stop(self, timeout: float = 10.0) -> None:
        """End the thread after the chunk that it makes, and close all sessions. Does nothing a second time."""
        with self._changed:
            self._running = False
            sessions = list(self._sessions)
            self._changed.notify()
        if self._thread.ident is not None:  # it was started
            self._thread.join(timeout)
        for session in sessions:
            session.join(timeout)

    @property
    def _obituary(self) -> str:
        return f"the engine of this server has stopped: {in_words(self._failure)}"

    def _run(self) -> None:
        try:
            torch.set_num_threads(self._threads)  # a setting of this thread
            self._warm_up()
        except BaseException as error:  # noqa: BLE001 - `start` raises it
            self._failure = error
            return
        finally:
            self._warm.set()
        try:
            self._take_turns()
        except BaseException as error:  # noqa: BLE001 - a thread has nobody above it
            _log.exception("the engine has stopped")
            self._die(error)
        with self._changed:
            self._leaving.extend(self._sessions)
            self._sessions.clear()
        self._close_leaving()

    def _die(self, error: BaseException) -> None:
        """Tell every session, then whoever runs the engine."""
        with self._changed:
            self._failure = error
            sessions = [*self._sessions, *self._leaving]
        for session in sessions:
            session.fail(self._obituary)
        self._on_failure()

    def _take_turns(self) -> None:
        while True:
            session = self._next()
            self._close_leaving()
            if session is None:
                break
            try:
                session.turn(time.perf_counter())
            except Exception as error:  # noqa: BLE001 - one session must not end the others
                self._expel(session, error)

    def _next(self) -> Session | None:
        """The next session that is ready; waits for one. None when the engine stops."""
        with self._changed:
            while self._running:
                now = time.perf_counter()
                waits = self._waits(now)
                ready = next((session for session, wait in waits if wait == 0), None)
                if ready is not None:
                    self._sessions.remove(ready)
                    self._sessions.append(ready)  # to the end of the line
                    return ready
                if self._leaving:
                    self._close_leaving()
                    continue
                self._changed.wait(min([MAX_WAIT, *(wait for _, wait in waits if wait is not None)]))
        return None

    def _waits(self, now: float) -> list[tuple[Session, float | None]]:
        """What every session says how long it wants to wait; one that cannot say is expelled."""
        waits: list[tuple[Session, float | None]] = []
        for session in list(self._sessions):
            try:
                waits.append((session, session.wait(now)))
            except Exception as error:  # noqa: BLE001 - one session must not end the others
                self._expel(session, error)
        return waits

    def _expel(self, session: Session, error: Exception) -> None:
        """End a session that has failed: its client is told why, the others go on."""
        _log.error("a session failed", exc_info=error)
        self.remove(session)
        session.fail(f"the stream failed: {in_words(error)}")

    def _close_leaving(self) -> None:
        while self._leaving:
            session = self._leaving.popleft()
            try:
                session.close()
            except Exception:  # noqa: BLE001
                _log.exception("closing a session failed")
