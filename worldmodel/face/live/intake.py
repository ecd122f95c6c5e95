"""Pictures that come faster than they are swapped: a bounded number waits, the others are dropped and counted."""

import threading
from collections import deque
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, eq=False)
class Shot:
    """A picture that came in. picture: pixels [H, W, 3], or the bytes of a JPEG, PNG or WebP file. number: counts the
    pictures of its source. ticks: its time in microseconds, rising. came: `time.perf_counter` when it was here."""

    picture: NDArray[np.uint8] | bytes
    number: int
    ticks: int
    came: float


class Intake:
    """Any thread puts, one takes."""

    def __init__(self, limit: int) -> None:
        """limit: pictures that may wait; the oldest is dropped for one more."""
        self.limit = limit
        self.received = self.dropped = 0
        self._waiting: deque[Shot] = deque()
        self._changed = threading.Condition()
        self._closed = False

    def put(self, shot: Shot) -> None:
        with self._changed:
            if self._closed:
                return
            self.received += 1
            self._waiting.append(shot)
            if len(self._waiting) > self.limit:
                self._waiting.popleft()
                self.dropped += 1
            self._changed.notify()

    def take(self, count: int) -> list[Shot] | None:
        """`count` of the pictures that wait, evenly apart, the newest last; the others are dropped.

        So a stream that is too slow shows every second picture, or every third, and is never later than its chunk.
        Waits until there are enough. None after `close`.
        """
        with self._changed:
            self._changed.wait_for(lambda: len(self._waiting) >= count or self._closed)
            if self._closed:
                return None
            waiting = list(self._waiting)
            self._waiting.clear()
            taken = [waiting[len(waiting) - 1 - (count - 1 - k) * len(waiting) // count] for k in range(count)]
            self.dropped += len(waiting) - count
            return taken

    def wait(self, count: int, seconds: float) -> bool:
        """Whether so many are there, or it is closed, before the time is over."""
        with self._changed:
            return self._changed.wait_for(lambda: len(self._waiting) >= count or self._closed, seconds)

    def close(self) -> None:
        """Forget what waits, and take no more."""
        with self._changed:
            self._closed = True
            self._waiting.clear()
            self._changed.notify()
