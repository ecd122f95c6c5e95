"""One WebSocket connection: greets, then reads, writes and ticks until one of them ends."""

import asyncio
import logging
import time
from collections.abc import Awaitable

from fastapi import WebSocket, WebSocketDisconnect

from worldmodel.errors import UserError

from .outbox import End, Message
from .places import BadToken, Full
from .protocol import (
    CLOSE_BAD_MESSAGE,
    CLOSE_BAD_TOKEN,
    CLOSE_FULL,
    CLOSE_IDLE,
    CLOSE_MOVED,
    Ack,
    Bookmark,
    ClientMessage,
    Error,
    Hello,
    Input,
    Pause,
    ProtocolError,
    Real,
    Record,
    Reset,
    Restart,
    Save,
    Settings,
    Switch,
    Takeover,
    close_reason,
    in_words,
    one_line,
    read_message,
    read_upload,
    write_message,
)
from .session import Session
from .studio import Studio

_log = logging.getLogger("worldmodel.serve")
TICK = 1.0  # seconds between two stats messages
FAREWELL = 5.0  # seconds that a client has to read its last message
STALLED = 30.0  # seconds after which a client that takes nothing is gone, as when it answers no ping
CLOSE_CODE = 1.0  # seconds to wait for the code of a connection that has ended
LEFT = {1000, 1001}  # codes of a client that closes its connection by intention, RFC 6455 section 7.4.1


class Connection:
    """Carries messages between a client and its session."""

    def __init__(self, websocket: WebSocket, studio: Studio) -> None:
        self._socket, self._studio = websocket, studio
        self._yield, self._over = asyncio.Event(), asyncio.Event()

    async def run(self) -> None:
        """Serve the client until it leaves, breaks the protocol or connects anew.

        Its session is closed, or kept for a while if only the connection broke, whatever happens.
        """
        try:
            session = await self._studio.join(await self._greeting(), self)
            await self._serve(session)
        except Full as full:
            await self._refuse(CLOSE_FULL, str(full))
        except BadToken as bad:
            await self._refuse(CLOSE_BAD_TOKEN, str(bad))
        except (ProtocolError, UserError) as error:
            await self._refuse(CLOSE_BAD_MESSAGE, str(error))
        except WebSocketDisconnect:
            pass
        finally:
            self._over.set()

    async def give_way(self) -> None:
        """End, because the client has connected anew; returns when the session is not used here any more."""
        self._yield.set()
        await self._over.wait()

    async def _greeting(self) -> Hello:
        """The first message, which must be a hello and come soon."""
        seconds = self._studio.limits.greeting
        try:
            received = await asyncio.wait_for(self._receive(), seconds)
        except TimeoutError:
            raise ProtocolError(f"no hello within {seconds:g} seconds") from None
        hello = read_message(received) if isinstance(received, str) else None
        if not isinstance(hello, Hello):
            raise ProtocolError("the first message must be a hello")
        return hello

    async def _receive(self) -> str | bytes:
        message = await self._socket.receive()
        if message["type"] == "websocket.disconnect":
            raise WebSocketDisconnect(message.get("code", 1006))
        text, data = message.get("text"), message.get("bytes")
        return text if text is not None else data or b""

    async def _refuse(self, code: int, line: str) -> None:
        try:
            await delivered(self._socket.send_text(write_message(Error(message=one_line(line), fatal=True))))
            await delivered(self._socket.close(code, close_reason(line)))
        except WebSocketDisconnect:
            _log.debug("a refused client had left already")

    async def _serve(self, session: Session) -> None:
        works = (self._read(session), self._write(session), self._tick(session), self._yield.wait())
        reader, writer, _, replaced = tasks = [asyncio.create_task(work) for work in works]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            gone = reader.done() and reader.exception() is not None
            if session.outbox.ended and not gone:  # somebody has said why
                await asyncio.wait([writer, replaced], timeout=FAREWELL, return_when=asyncio.FIRST_COMPLETED)
            elif writer.done() and not gone:  # it has found the line dead, the reader knows how it ended
                await asyncio.wait([reader], timeout=CLOSE_CODE)
        finally:
            for task in tasks:
                task.cancel()
            results = await asyncio.gather(*tasks, return_exceptions=True)
            for result in results:
                if isinstance(result, Exception) and not isinstance(result, WebSocketDisconnect):
                    _log.error("a connection failed", exc_info=result)
            left = isinstance(results[0], WebSocketDisconnect) and results[0].code in LEFT
            if left or session.outbox.ended:
                self._studio.places.leave(session, self)
            else:
                self._studio.places.keep(session, self)
            self._over.set()
        if replaced.done() and not replaced.cancelled():
            await self._refuse(CLOSE_MOVED, "this stream goes on in another connection, which had its resume token")

    async def _read(self, session: Session) -> None:
        """Hand messages to the session. Ends when one breaks the protocol; raises WebSocketDisconnect."""
        while True:
            received = await self._receive()
            self._studio.places.confirm(session, self)
            try:
                if isinstance(received, bytes):
                    session.seen = time.monotonic()
                    await self._studio.upload(session, *read_upload(received))
                else:
                    await self._obey(session, read_message(received))
            except UserError as error:
                session.say(Error(message=in_words(error)))
            except ProtocolError as error:
                last = write_message(Error(message=in_words(error), fatal=True))
                session.outbox.end(CLOSE_BAD_MESSAGE, "bad message", last)
                return
            except Exception as error:  # noqa: BLE001 - a file that its reader trips over must not end the stream
                _log.exception("a message could not be handled")
                session.say(Error(message=f"the message could not be handled: {in_words(error)}"))

    async def _obey(self, session: Session, message: ClientMessage) -> None:
        if not isinstance(message, Ack):
            session.seen = time.monotonic()
        match message:
            case Input(seq=seq, action=action):
                session.input(seq, action)
            case Ack(pts=pts):
                if not session.outbox.acknowledge(pts):
                    raise ProtocolError(f"message ack: no picture of pts {pts} was sent")
            case Pause(on=on):
                session.pause(on)
            case Restart():
                await self._studio.restart(session, message)
            case Reset(seed=seed):
                session.reset(seed)
            case Switch(world=world):
                session.switch(world)
            case Takeover():
                session.take_over()
            case Settings():
                session.settings(message)
            case Bookmark():
                session.bookmark()
            case Record(on=on):
                session.record(on)
            case Save():
                session.save()
            case Real(on=on):
                session.real(on)
            case Hello():
                raise ProtocolError("hello is the first message and comes once")

    async def _write(self, session: Session) -> None:
        """Send what waits, in its order, as fast as the client takes it. Raises WebSocketDisconnect."""
        while True:
            match await session.outbox.take():
                case End(code=code, reason=reason):
                    await delivered(self._socket.close(code, reason))
                    return
                case Message(text=text):
                    await delivered(self._socket.send_text(text))
                case picture:
                    await delivered(self._socket.send_bytes(picture.data))
                    session.meter.sent(time.perf_counter() - picture.put)

    async def _tick(self, session: Session) -> None:
        """Numbers once a second; ends when nobody has been there for long."""
        idle = self._studio.limits.idle
        while time.monotonic() - session.seen < idle or session.active:
            await asyncio.sleep(TICK)
            session.say(session.stats(self._studio.places.connected))
        line = f"nobody has touched this stream for {idle / 60:g} minutes, so it has ended: connect again to go on"
        session.outbox.end(CLOSE_IDLE, "idle", write_message(Error(message=line, fatal=True)))


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
