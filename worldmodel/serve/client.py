"""A small client of the stream protocol: what tests and measurements drive the server with."""

import contextlib
import itertools
import json
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit, urlunsplit

from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from worldmodel.errors import UserError

from .meter import percentiles
from .pictures import decode
from .protocol import VERSION, Ack, ClientMessage, FrameHeader, Hello, Input, read_frame, write_message
from .sources import Pixels


@dataclass(frozen=True, slots=True)
class Frame:
    """One picture as it arrived."""

    header: FrameHeader
    payload: bytes
    arrived: float  # perf_counter seconds

    @property
    def picture(self) -> Pixels:
        """The pixels, uint8 RGB [H, W, 3]."""
        return decode(self.payload, self.header.codec, self.header.width, self.header.height)


class Client:
    """A connection in the calling thread. Use it as a context manager."""

    def __init__(self, address: str, hello: Hello | None = None, timeout: float = 10.0) -> None:
        """address: as the server printed it, with its token if it has one. Raises UserError if nobody answers.

        To go on with the session of a broken connection, give a hello whose `resume` is the `resume` of that client.
        """
        parts = urlsplit(address)
        where = urlunsplit(("ws" + parts.scheme.removeprefix("http"), parts.netloc, "/ws", parts.query, ""))
        self._open = contextlib.ExitStack()
        try:
            self._socket = self._open.enter_context(
                connect(where, compression=None, open_timeout=timeout, close_timeout=1, max_size=None)
            )
        except OSError as error:
            raise UserError(f"{address}: no stream answers there ({error})") from error
        self._acknowledges = bool(hello and hello.window)
        self._seq = 0
        self.resume: str | None = None  # token for the next connection, once the welcome was received
        self.memory: dict[str, Any] | None = None  # the newest message of this type in this stream
        self.send(hello or Hello(version=VERSION))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Leave."""
        self._open.close()

    def send(self, message: ClientMessage | str | bytes) -> None:
        """Send a message; text and bytes go out as they are."""
        self._socket.send(message if isinstance(message, str | bytes) else write_message(message))

    def hold(self, **action: float) -> int:
        """These actions (environment units) are held from now on, all others rest. Returns the input's number."""
        self._seq += 1
        self.send(Input(seq=self._seq, action=action))
        return self._seq

    def receive(self, timeout: float | None = 10.0) -> Frame | dict[str, Any]:
        """The next picture or control message. Raises TimeoutError, and ConnectionClosed after the last one."""
        received = self._socket.recv(timeout)
        now = time.perf_counter()
        if isinstance(received, str):
            message = json.loads(received)
            if message["type"] == "welcome":
                self.resume, self._seq = message["resume"], max(self._seq, message["seq"])
            elif message["type"] == "started":
                self.memory = None
            elif message["type"] == "memory":
                self.memory = message
            return message
        header, payload = read_frame(received)
        if self._acknowledges:
            self.send(Ack(pts=header.pts))
        return Frame(header, payload, now)

    def frames(self, timeout: float = 10.0) -> Iterator[Frame]:
        """The pictures of the stream, without the control messages."""
        while True:
            received = self.receive(timeout)
            if isinstance(received, Frame):
                yield received

    def message(self, kind: str, timeout: float = 10.0) -> dict[str, Any]:
        """The next control message of a type; pictures and other messages before it are thrown away.

        Raises ConnectionError with the server's line if an error that is not looked for comes first.
        """
        end = time.monotonic() + timeout
        while (left := end - time.monotonic()) > 0:
            received = self.receive(left)
            if isinstance(received, dict) and received["type"] == kind:
                return received
            if isinstance(received, dict) and received["type"] == "error":
                raise ConnectionError(received["message"])
        raise TimeoutError(f"no {kind} message within {timeout:g} s")


def measure(address: str, seconds: float, clients: int = 1, pace: float | None = None) -> list[dict[str, float]]:
    """Drive a stream with some clients at once and count what arrives; the first second is not counted.

    Returns for each client: frames_per_second; chunk_latency_p50, _p95, _p99 (ms, reading the input to the encoded
    chunk, from the headers); interval_p50, _p95 (ms between arrivals of chunks); out_of_order; chunks.
    """
    results: list[dict[str, float]] = [{} for _ in range(clients)]

    def run(i: int) -> None:
        with Client(address, Hello(version=VERSION, codec="jpeg", policy="block", window=24, pace=pace, seed=i)) as c:
            results[i] = _count(c, seconds)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if not all(results):
        raise ConnectionError("a client was cut off before the end")
    return results


def _count(client: Client, seconds: float) -> dict[str, float]:
    frames = client.frames()
    begin = next(frames).arrived + 1.0
    kept: list[FrameHeader] = []
    arrivals: list[float] = []
    last, disorder, now = -1, 0, 0.0
    while now < begin + seconds:
        frame = next(frames)
        header, now = frame.header, frame.arrived
        disorder += header.pts < last
        last = header.pts
        if now >= begin:
            kept.append(header)
            if header.place == 0:
                arrivals.append(now)
    latency = percentiles([h.latency / 1e3 for h in kept if h.place == 0])
    interval = percentiles([1e3 * (b - a) for a, b in itertools.pairwise(arrivals)])
    return {
        "frames_per_second": len(kept) / (now - begin),
        "chunk_latency_p50": latency["p50"], "chunk_latency_p95": latency["p95"], "chunk_latency_p99": latency["p99"],
        "interval_p50": interval["p50"], "interval_p95": interval["p95"],
        "out_of_order": disorder, "chunks": len(arrivals),
    }  # fmt: skip


__all__ = ["Client", "ConnectionClosed", "Frame", "measure"]
