"""Those who wait for a policy, and the one thread that serves them.

A client has one request waiting at most and goes to the end of the line when it is answered: so each is served before
anyone is served twice (round robin), and nobody waits for more than all others once.
"""

import logging
import threading
import time
from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import numpy as np
from numpy.typing import NDArray

from worldmodel.errors import UserError, out_of_memory
from worldmodel.policies.episodes import Trial
from worldmodel.policies.serving.requests import Request, Served

_log = logging.getLogger("worldmodel.policies.serving")


@dataclass(frozen=True, slots=True)
class Answer:
    """made: the chunk [K, A] of a request in the robot's units, or the token [W] of a trial. waited: seconds until the
    policy began. took: seconds of the policy, for the rows it served at once."""

    made: NDArray[np.float32]
    waited: float
    took: float
    rows: int


@dataclass(frozen=True, slots=True)
class _Waiting:
    request: Request | Trial
    answer: "Future[Answer]"
    since: float


class Line:
    """The line in front of a policy, and the thread that owns it. Use it as a context manager.

    rows: served at once, at most. patience: seconds that the first of these waits for others to come, at most; it does
    not wait once all `clients` are there.
    """

    def __init__(self, served: Served, rows: int = 1, patience: float = 0.0) -> None:
        self._served, self._rows, self._patience = served, rows, patience
        self._line = deque[_Waiting]()
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="policy", daemon=True)
        self.clients = 0  # that may ask; set by the server
        self.answered = 0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    @property
    def alive(self) -> bool:
        """Whether requests are answered."""
        return self._thread.is_alive() and not self._closed

    def ask(self, request: Request | Trial) -> "Future[Answer]":
        """Join the line. The future raises UserError if the policy cannot answer; a cancelled one leaves the line."""
        waiting = _Waiting(request, Future(), time.perf_counter())
        with self._changed:
            if self._closed:
                raise UserError("this server is ending")
            self._line.append(waiting)
            self._changed.notify()
        return waiting.answer

    def close(self) -> None:
        """Answer nobody any more; waits for the inference that is under way."""
        with self._changed:
            self._closed = True
            left, self._line = list(self._line), deque()
            self._changed.notify()
        for waiting in left:
            if waiting.answer.set_running_or_notify_cancel():
                waiting.answer.set_exception(UserError("this server is ending"))
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        while (batch := self._next()) is not None:
            if batch:
                self._serve(batch)

    def _next(self) -> list[_Waiting] | None:
        """Those whose turn it is, without those who have left; None at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._line or self._closed)
            if self._rows > 1:
                self._changed.wait_for(self._enough, self._patience)
            if self._closed:
                return None
            taken: list[_Waiting] = []
            while self._line and len(taken) < self._rows and not (taken and _alone(taken[-1], self._line[0])):
                waiting = self._line.popleft()
                if waiting.answer.set_running_or_notify_cancel():
                    taken.append(waiting)
            return taken

    def _enough(self) -> bool:
        return self._closed or len(self._line) >= min(self._rows, max(1, self.clients))

    def _serve(self, batch: list[_Waiting]) -> None:
        began = time.perf_counter()
        try:
            made = self._made([waiting.request for waiting in batch])
        except Exception as error:  # noqa: BLE001 - told to whoever asked; the next may be served
            _log.exception("the policy failed")
            for waiting in batch:
                waiting.answer.set_exception(UserError(_in_words(error)))
            return
        took = time.perf_counter() - began
        for waiting, numbers in zip(batch, made, strict=True):
            if np.isfinite(numbers).all():
                self.answered += not isinstance(waiting.request, Trial)
                waiting.answer.set_result(Answer(numbers, began - waiting.since, took, len(batch)))
            else:
                waiting.answer.set_exception(UserError("the policy has made numbers that are not finite of this"))

    def _made(self, batch: list[Request | Trial]) -> list[NDArray[np.float32]]:
        trials = [each for each in batch if isinstance(each, Trial)]
        requests = [each for each in batch if isinstance(each, Request)]
        return [self._served.token(trial) for trial in trials] or self._served.infer(requests)


def _alone(one: _Waiting, other: _Waiting) -> bool:
    """Whether one of both is a trial, which shares its turn with nobody."""
    return isinstance(one.request, Trial) or isinstance(other.request, Trial)


def _in_words(error: Exception) -> str:
    if out_of_memory(error):
        return "the server has run out of memory"
    return str(error) if isinstance(error, UserError) else f"the policy failed ({type(error).__name__})"
