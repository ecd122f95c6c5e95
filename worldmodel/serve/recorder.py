"""A video file of what a session shows, written beside the stream by a thread of its own."""

import logging
import queue
import threading
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import av
import numpy as np

from .protocol import in_words
from .sources import Pixels

_log = logging.getLogger("worldmodel.serve")
MIN_SIDE = 256  # smaller pictures are enlarged by a whole factor, pixel by pixel: players blur tiny videos
AHEAD = 64  # chunks that may wait for the encoder


class Recorder:
    """H.264 in MP4 at the world's frame rate.

    A recording ends when it is told to, at its limit of pictures, or if the encoder falls behind; `on_done` then gets
    the path, or the line that says why there is no file.
    """

    def __init__(self, path: Path, fps: float, limit: int, on_done: Callable[[Path | str], None]) -> None:
        self.pictures = 0
        self._path, self._limit, self._on_done = path, limit, on_done
        self._fps = Fraction(fps).limit_denominator(1001)
        self._chunks: queue.Queue[Pixels | None] = queue.Queue(AHEAD + 1)
        self._open = True
        threading.Thread(target=self._run, name="recorder", daemon=True).start()

    def add(self, frames: Pixels) -> bool:
        """Add pictures [P, H, W, 3]. False once the recording has ended by itself; never waits."""
        if self._open and (self.pictures >= self._limit or self._chunks.qsize() >= AHEAD):
            self.finish()
        if self._open:
            self.pictures += len(frames)
            self._chunks.put_nowait(frames)
        return self._open

    def finish(self) -> None:
        """End the recording: the file is closed in the background."""
        if self._open:
            self._open = False
            self._chunks.put_nowait(None)

    def _run(self) -> None:
        try:
            self._write()
        except Exception as error:  # noqa: BLE001 - told to the client
            _log.exception("recording failed")
            self._open = False
            self._path.unlink(missing_ok=True)
            self._on_done(f"the recording failed: {in_words(error)}")
        else:
            self._on_done(self._path)

    def _write(self) -> None:
        with av.open(str(self._path), "w", options={"movflags": "+faststart"}) as file:
            stream = None
            while (frames := self._chunks.get()) is not None:
                for picture in frames:
                    picture = _enlarged(picture)
                    if stream is None:
                        options = {"crf": "16", "preset": "veryfast"}
                        stream = file.add_stream("libx264", rate=self._fps, options=options)
                        stream.height, stream.width = picture.shape[:2]
                        stream.pix_fmt = "yuv420p"
                        stream.codec_context.thread_count = 1
                    file.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
            if stream is None:
                raise RuntimeError("it holds no picture")
            file.mux(stream.encode())


def _enlarged(picture: Pixels) -> Pixels:
    """At least MIN_SIDE pixels on the shorter side, and even sides, which H.264 needs."""
    factor = -(-MIN_SIDE // min(picture.shape[:2]))
    large = picture.repeat(factor, 0).repeat(factor, 1) if factor > 1 else picture
    return np.ascontiguousarray(large[: large.shape[0] // 2 * 2, : large.shape[1] // 2 * 2])
