"""One WebSocket connection: greets, then reads, writes and ticks until one of them ends."""

import asyncio
import logging
import time

from fastapi import WebSocket, WebSocketDisconnect

from worldmodel.errors import UserError

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
    in_words,
    one_line,
    read_message,
    read_upload,
    write_message,
)
from .session import Session
from .studio import Studio
from .wire import FAREWELL, Wire

_log = logging.getLogger("worldmodel.serve")
TICK = 1.0  # seconds between two stats messages
CLOSE_CODE = 1.0  # seconds to wait for the code of a connection that has ended
LEFT = {1000, 1001}  # codes of a client that closes its connection by intention, RFC 6455 section 7.4.1


class Connection:
    """Carries messages between a client and its session."""

    def __init__(self, websocket: WebSocket, studio: Studio) -> None:
        self._wire, self._studio = Wire(websocket, _fatal), studio
        self._yield, self._over = asyncio.Event(), asyncio.Event()

    async def run(self) -> None:
        """Serve the client until it leaves, breaks the protocol or connects anew.

        Its session is closed, or kept for a while if only the connection broke, whatever happens.
        """
        try:
            session = await self._studio.join(
                await self._wire.greeting(read_message, Hello, self._studio.limits.greeting), self
            )
            await self._serve(session)
        except Full as full:
            await self._wire.refuse(CLOSE_FULL, str(full))
        except BadToken as bad:
            await self._wire.refuse(CLOSE_BAD_TOKEN, str(bad))
        except (ProtocolError, UserError) as error:
            await self._wire.refuse(CLOSE_BAD_MESSAGE, str(error))
        except WebSocketDisconnect:
            pass
        finally:
            self._over.set()

    async def give_way(self) -> None:
        """End, because the client has connected anew; returns when the session is not used here any more."""
        self._yield.set()
        await self._over.wait()

    async def _serve(self, session: Session) -> None:
        writing = self._wire.send(session.outbox, lambda picture: session.meter.sent(time.perf_counter() - picture.put))
        works = (self._read(session), writing, self._tick(session), self._yield.wait())
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
            await self._wire.refuse(
                CLOSE_MOVED, "this stream goes on in another connection, which had its resume token"
            )

    async def _read(self, session: Session) -> None:
        """Hand messages to the session. Ends when one breaks the protocol; raises WebSocketDisconnect."""
        while True:
            received = await self._wire.receive()
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

    async def _tick(self, session: Session) -> None:
        """Numbers once a second; ends when nobody has been there for long."""
        idle = self._studio.limits.idle
        while time.monotonic() - session.seen < idle or session.active:
            await asyncio.sleep(TICK)
            session.say(session.stats(self._studio.places.connected))
        line = f"nobody has touched this stream for {idle / 60:g} minutes, so it has ended: connect again to go on"
        session.outbox.end(CLOSE_IDLE, "idle", write_message(Error(message=line, fatal=True)))


def _fatal(line: str) -> str:
    return write_message(Error(message=one_line(line), fatal=True))
