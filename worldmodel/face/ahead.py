"""Work on a stream in another thread, a bounded number of items ahead or behind: memory stays flat, order is kept."""

import queue
import threading
from collections.abc import Callable, Iterable, Iterator

WAIT = 0.1  # seconds between looks at whether the other side has gone


class _End:
    pass


def ahead[T](items: Iterable[T], depth: int) -> Iterator[T]:
    """The same items, made in a thread at most `depth` ahead. Its error is raised here, after the items before it."""
    waiting: queue.Queue[T | _End | BaseException] = queue.Queue(depth)
    gone = threading.Event()

    def put(item: T | _End | BaseException) -> bool:
        while not gone.is_set():
            try:
                waiting.put(item, timeout=WAIT)
            except queue.Full:
                continue
            return True
        return False

    def work() -> None:
        try:
            for item in items:
                if not put(item):
                    return
            put(_End())
        except BaseException as error:  # noqa: BLE001  it is raised in the thread that reads
            put(error)

    thread = threading.Thread(target=work, name="read ahead", daemon=True)
    thread.start()
    try:
        while True:
            item = waiting.get()
            if isinstance(item, _End):
                return
            if isinstance(item, BaseException):
                raise item
            yield item
    finally:
        gone.set()
        thread.join()


class Behind[T]:
    """Calls `work` on items in another thread, at most `depth` behind. Its error is raised by the next call here."""

    def __init__(self, work: Callable[[T], None], depth: int) -> None:
        self._waiting: queue.Queue[T | _End] = queue.Queue(depth)
        self._work = work
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="write behind", daemon=True)
        self._thread.start()

    def put(self, item: T) -> None:
        while True:
            self._check()
            try:
                self._waiting.put(item, timeout=WAIT)
            except queue.Full:
                continue
            return

    def close(self) -> None:
        """Wait until everything is worked on."""
        self._end()
        self._check()

    def abandon(self) -> None:
        """The same without the error: for a block that ends by another one."""
        self._end()

    def _end(self) -> None:
        while self._thread.is_alive():
            try:
                self._waiting.put(_End(), timeout=WAIT)
            except queue.Full:
                continue
            break
        self._thread.join()

    def _check(self) -> None:
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        while not isinstance(item := self._waiting.get(), _End):
            if self._error is None:
                try:
                    self._work(item)
                except BaseException as error:  # noqa: BLE001  it is raised in the thread that writes
                    self._error = error
