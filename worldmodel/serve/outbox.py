"""The bounded queue between the engine's thread and one client's connection.

Any thread puts, the event loop takes. Control messages go first and are never dropped. Pictures leave in the order in
which they were put; when the queue is full, the oldest are dropped ("latest") or the dream waits for room ("block").
"""

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

MAX_MESSAGES = 256


@dataclass(frozen=True, slots=True)
class Picture:
    """One encoded picture message."""

    data: bytes
    pts: int
    real: bool  # of the simulator
    put: float  # when it was queued, seconds


@dataclass(frozen=True, slots=True)
class Message:
    """One control message."""

    text: str
    kind: str = ""  # a newer one of the same kind takes its place; "": none does


@dataclass(frozen=True, slots=True)
class End:
    """Close the connection; nothing comes after it."""

    code: int
    reason: str


class Outbox:
    """What waits to be sent to one client."""

    def __init__(self, limit: int, window: int, on_room: Callable[[], None]) -> None:
        """limit: pictures of one source that may wait. window: pictures of the dream that may be on their way without
        an acknowledgement, 0 for any number. on_room is called from the event loop whenever a picture has left."""
        self.limit = limit
        self.drops = 0
        self._window, self._on_room = window, on_room
        self._loop, self._changed = asyncio.get_running_loop(), asyncio.Event()
        self._lock = threading.Lock()
        self._greeting: deque[Message] = deque()  # what the connection that takes now is told first
        self._messages: deque[Message | End] = deque()
        self._pictures: deque[Picture] = deque()
        self._waiting = {False: 0, True: 0}  # by source
        self._flying: deque[int] = deque()  # pts that were sent and not acknowledged
        self._sent = -1  # newest pts of the dream that was sent
        self._held = self._ended = False
        self._breaks = 0

    @property
    def waiting(self) -> int:
        """Pictures of the dream in the queue."""
        return self._waiting[False]

    @property
    def breaks(self) -> int:
        """How many connections have broken: the number of the one that takes now, or next."""
        return self._breaks

    @property
    def ended(self) -> bool:
        """Whether the connection is to be closed."""
        return self._ended

    def room(self, count: int, real: bool = False) -> bool:
        """Whether so many more pictures of a source fit."""
        return self._waiting[real] + count <= max(self.limit, count)

    def put(self, pictures: list[Picture]) -> None:
        """Queue pictures, in presentation order; what does not fit drops the oldest of the same source."""
        with self._lock:
            if self._ended:
                return
            for picture in pictures:
                self._pictures.append(picture)
                self._waiting[picture.real] += 1
                if self._waiting[picture.real] > max(self.limit, len(pictures)):
                    self._drop_oldest(picture.real)
        self._wake()

    def say(self, text: str, kind: str = "") -> None:
        """Queue a control message; one with a kind takes the place of one of its kind that waits."""
        with self._lock:
            if self._ended:
                return
            if kind:
                kept = [each for each in self._messages if isinstance(each, End) or each.kind != kind]
                self._messages = deque(kept)
            self._messages.append(Message(text, kind))
            if len(self._messages) > MAX_MESSAGES:
                self._end(End(1008, "messages are not being read"))
        self._wake()

    def end(self, code: int, reason: str, last: str | None = None) -> None:
        """Close the connection after the control messages that wait and a last one; pictures are thrown away."""
        with self._lock:
            if not self._ended:
                if last is not None:
                    self._messages.append(Message(last))
                self._end(End(code, reason))
        self._wake()

    def clear(self) -> None:
        """Throw the waiting pictures away: a new stream begins. A client throws away those on their way, which it will
        not acknowledge then: they are not waited for."""
        with self._lock:
            self._pictures.clear()
            self._waiting = {False: 0, True: 0}
            self._flying.clear()
        self._wake()

    def hold(self) -> None:
        """The connection broke: what waits is kept until `reopen`, but for its greeting; what was on its way is lost.
        An end passes."""
        with self._lock:
            self._held = True
            self._breaks += 1
            self._greeting.clear()
            self._flying.clear()

    def reopen(self, number: int, window: int, greeting: list[str]) -> bool:
        """The connection of a number (see `breaks`) takes from now on: its greeting, then what was kept.

        False, and nothing is changed, if it has broken since.
        """
        with self._lock:
            if number != self._breaks:
                return False
            self._held, self._window = False, window
            self._greeting.extend(Message(text) for text in greeting)
        self._wake()
        return True

    def acknowledge(self, pts: int) -> bool:
        """The client has dealt with every picture up to a pts. False if none so new was ever sent."""
        if pts > self._sent:
            return False
        with self._lock:
            while self._flying and self._flying[0] <= pts:
                self._flying.popleft()
        self._changed.set()
        return True

    async def take(self) -> Picture | Message | End:
        """The next thing to send; waits until there is one and the client's window allows it."""
        while True:
            with self._lock:
                item = self._next()
            if item is not None:
                break
            await self._changed.wait()
            self._changed.clear()
        if isinstance(item, Picture):
            self._on_room()
        return item

    def _next(self) -> Picture | Message | End | None:
        if self._held and not self._ended:
            return None
        if self._greeting:
            return self._greeting.popleft()
        if self._messages:
            return self._messages.popleft()
        if not self._pictures or (self._window and len(self._flying) >= self._window):
            return None
        picture = self._pictures.popleft()
        self._waiting[picture.real] -= 1
        if not picture.real:
            self._sent = picture.pts
            if self._window:
                self._flying.append(picture.pts)
        return picture

    def _drop_oldest(self, real: bool) -> None:
        oldest = next(i for i, picture in enumerate(self._pictures) if picture.real == real)
        del self._pictures[oldest]
        self._waiting[real] -= 1
        self.drops += 1

    def _end(self, end: End) -> None:
        self._messages.append(end)
        self._pictures.clear()
        self._waiting = {False: 0, True: 0}
        self._ended = True

    def _wake(self) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has closed: nobody is left to be woken
            self._loop.call_soon_threadsafe(self._changed.set)
