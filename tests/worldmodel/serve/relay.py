"""A network between a client and a server that can break: it hands bytes on until it is cut."""

import contextlib
import selectors
import socket
import threading
from typing import Self

CHUNK = 65536  # bytes


class Relay:
    """Listens on loopback and connects everybody to a port there. Use it as a context manager."""

    def __init__(self, port: int) -> None:
        self._port, self.up = port, True
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()
        self.cut()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}/"

    def cut(self) -> None:
        """End every connection in the middle of whatever it is saying."""
        while self._pairs:
            for end in self._pairs.pop():
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # the listener was closed
            while True:
                near, _ = self._listener.accept()
                if not self.up:
                    near.close()
                    continue
                pair = near, socket.create_connection(("127.0.0.1", self._port))
                self._pairs.append(pair)
                threading.Thread(target=_carry, args=pair, daemon=True).start()


def _carry(near: socket.socket, far: socket.socket) -> None:
    other = {near: far, far: near}
    with near, far, selectors.DefaultSelector() as ready, contextlib.suppress(OSError):
        for end in other:
            ready.register(end, selectors.EVENT_READ)
        while True:
            for key, _ in ready.select():
                assert isinstance(key.fileobj, socket.socket)
                data = key.fileobj.recv(CHUNK)
                if not data:
                    return
                other[key.fileobj].sendall(data)
