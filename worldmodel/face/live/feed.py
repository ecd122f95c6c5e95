"""The server's own pictures: a file at its rate, again and again; a camera or a URL as they come."""

import threading
import time
from collections.abc import Callable

import cv2
import numpy as np
from numpy.typing import NDArray

from worldmodel.errors import UserError
from worldmodel.face.reading import Picture, Source

MAX_SIDE = 1280  # pixels: larger pictures are shown smaller
LATE = 0.2  # seconds behind its times at which a file's clock is set anew

Opens = Callable[[], Source]
Put = Callable[[NDArray[np.uint8], int], None]  # a picture [H, W, 3] and its time in microseconds, rising


class Feed:
    """A thread that puts a source's pictures somewhere, and says when they have ended by themselves."""

    def __init__(self, opens: Opens, put: Put, on_end: Callable[[UserError], None]) -> None:
        """opens: the source, again for every round of a file. put, on_end: called in the thread."""
        self._opens, self._put, self._on_end = opens, put, on_end
        self._stopped = threading.Event()
        self._last, self._next = -1, 0  # microseconds: of the newest picture, and of the round's first
        self._thread = threading.Thread(target=self._run, name="feed", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End it and wait; the source is closed then. Of a URL that is silent, that may take its timeout."""
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            while not self._stopped.is_set():
                source = self._opens()
                try:
                    self._round(source)
                finally:
                    source.close()
                if source.info.live and not self._stopped.is_set():
                    raise UserError(f"{source.info.name}: the stream has ended")
        except UserError as error:
            self._on_end(error)
        except Exception as error:  # noqa: BLE001 - a reader that trips over a file must not leave a page waiting
            self._on_end(UserError(f"the source could not be read on ({error})"))

    def _round(self, source: Source) -> None:
        """All pictures of a source, once."""
        began, first = time.perf_counter(), self._next
        origin: int | None = None
        for event in source:
            if self._stopped.is_set():
                return
            if not isinstance(event, Picture):
                continue
            origin = event.pts if origin is None else origin
            seconds = float((event.pts - origin) * source.info.time_base)
            if not source.info.live:
                late = time.perf_counter() - began - seconds
                if late > LATE:
                    began += late
                elif self._stopped.wait(-late):
                    return
            self._last = max(self._last + 1, first + round(1e6 * seconds))
            self._put(smaller(event.pixels), self._last)
        if origin is None:
            raise UserError(f"{source.info.name}: no picture in it")
        self._next = self._last + round(1e6 / float(source.info.rate))


def smaller(picture: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """The same picture [H, W, 3] with no side longer than MAX_SIDE."""
    height, width = picture.shape[:2]
    scale = MAX_SIDE / max(height, width)
    if scale >= 1:
        return picture
    size = max(1, round(width * scale)), max(1, round(height * scale))
    return np.asarray(cv2.resize(picture, size, interpolation=cv2.INTER_AREA), np.uint8)
