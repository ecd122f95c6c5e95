"""A client's WebSocket as every page's server uses it: a greeting, messages in and out, a last line."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from fastapi import WebSocket, WebSocketDisconnect

from .outbox import End, Message, Outbox, Picture
from .protocol import ProtocolError, close_reason

_log = logging.getLogger("worldmodel.serve")
FAREWELL = 5.0  # seconds that a client has to read its last message
STALLED = 30.0  # seconds after which a client that takes nothing is gone, as when it answers no ping


class Wire:
    """See the module. fatal: the text of a last message, of its line."""

    def __init__(self, socket: WebSocket, fatal: Callable[[str], str]) -> None:
        self._socket, self._fatal = socket, fatal

    async def receive(self) -> str | bytes:
        """The next message. Raises WebSocketDisconnect."""
        message = await self._socket.receive()
        if message["type"] == "websocket.disconnect":
            raise WebSocketDisconnect(message.get("code", 1006))
        text, data = message.get("text"), message.get("bytes")
        return text if text is not None else data or b""

    async def greeting[T](self, read: Callable[[str], object], hello: type[T], seconds: float) -> T:
        """The first message, which must be a hello and come soon. Raises ProtocolError, WebSocketDisconnect."""
        try:
            received = await asyncio.wait_for(self.receive(), seconds)
        except TimeoutError:
            raise ProtocolError(f"no hello within {seconds:g} seconds") from None
        found = read(received) if isinstance(received, str) else None
        if not isinstance(found, hello):
            raise ProtocolError("the first message must be a hello")
        return found

    async def send(self, outbox: Outbox, sent: Callable[[Picture], None] = lambda picture: None) -> None:
        """What waits in an outbox, in its order, as fast as the client takes it, to its end. sent: told of pictures.

        Raises WebSocketDisconnect.
        """
        while True:
            match await outbox.take():
                case End(code=code, reason=reason):
                    await delivered(self._socket.close(code, reason))
                    return
                case Message(text=text):
                    await delivered(self._socket.send_text(text))
                case picture:
                    await delivered(self._socket.send_bytes(picture.data))
                    sent(picture)

    async def refuse(self, code: int, line: str) -> None:
        """Say why, and close."""
        try:
            await delivered(self._socket.send_text(self._fatal(line)))
            await delivered(self._socket.close(code, close_reason(line)))
        except WebSocketDisconnect:
            _log.debug("a refused client had left already")


async def delivered(sending: Awaitable[None]) -> None:
    """Wait until a message has left. Raises WebSocketDisconnect if the connection has ended, or takes nothing any more.

    When a ping was not answered, uvicorn closes the connection but tells the reader only after its buffer is empty,
    which it may never be; whoever sends meanwhile gets a RuntimeError, or waits.
    """
    try:
        async with asyncio.timeout(STALLED):
            await sending
    except (RuntimeError, TimeoutError) as error:
        raise WebSocketDisconnect(1006) from error
