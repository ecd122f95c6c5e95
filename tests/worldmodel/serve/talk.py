"""How the tests of the stream talk to a server."""

import json
import time
from collections.abc import Callable
from urllib.request import Request, urlopen

from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from worldmodel.serve.protocol import (
    VERSION,
    Hello,
)


def fast(**fields) -> Hello:
    """As fast as the client reads, exact pictures."""
    return Hello(**({"version": VERSION, "codec": "raw", "policy": "block", "pace": 0.0, "window": 8} | fields))


def wait_for(condition: Callable[[], bool], what: str) -> None:
    for _ in range(1000):
        if condition():
            return
        time.sleep(0.01)
    raise AssertionError(f"never: {what}")


def get(address: str, headers: dict[str, str] | None = None) -> bytes:
    with urlopen(Request(address, headers=headers or {}), timeout=10) as answer:
        return answer.read()


def last_words(address: str, *messages: str | bytes) -> tuple[str, int]:
    """Send messages to a new connection; the error line and the close code that come back."""
    with connect("ws" + address.removeprefix("http") + "ws", compression=None, max_size=None) as socket:
        try:
            for message in messages:
                socket.send(message)
        except ConnectionClosed:
            pass
        line = ""
        try:
            while True:
                received = socket.recv(10)
                data = json.loads(received) if isinstance(received, str) else {}
                line = data["message"] if data.get("type") == "error" else line
        except ConnectionClosed as closed:
            return line, closed.rcvd.code if closed.rcvd else 1006


HELLO = '{"type": "hello", "version": 2}'
