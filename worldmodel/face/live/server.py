"""Live swaps over HTTP and WebSocket: FastAPI in the event loop, every stream in its own thread.

Access, addresses, headers and pictures are those of the live stream (worldmodel/serve).
"""

import asyncio
import contextlib
import logging
import threading
import time
import webbrowser
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import uvicorn
from fastapi import FastAPI, HTTPException, Request, Response, WebSocket, WebSocketDisconnect
from fastapi.responses import JSONResponse

from worldmodel.errors import UserError
from worldmodel.face.live.live import Full, Live
from worldmodel.face.live.messages import Change, Hello, read, read_shot, write
from worldmodel.face.live.swapping import Stream
from worldmodel.serve.access import check_binding
from worldmodel.serve.outbox import Outbox
from worldmodel.serve.protocol import (
    CLOSE_BAD_MESSAGE,
    CLOSE_FULL,
    CLOSE_IDLE,
    ProtocolError,
    in_words,
)
from worldmodel.serve.server import address_of, configuration, in_thread, listen, termination_interrupts
from worldmodel.serve.site import PAGE_FILES, PAGE_HEADERS, Site
from worldmodel.serve.wire import FAREWELL, Wire

_log = logging.getLogger("worldmodel.face.live")
PAGE = Path(__file__).parent / "page"
FILES = PAGE_FILES | {path.name: path for path in PAGE.iterdir()}  # ours beside those of the live stream
HEADERS = PAGE_HEADERS | {
    "Content-Security-Policy": PAGE_HEADERS["Content-Security-Policy"] + "; media-src 'self' blob:",
    "Permissions-Policy": "camera=(self), microphone=()",
}
GREETING = 10.0  # seconds from connecting to hello
QUEUE = 3  # chunks of pictures that wait for a client, and pictures at least
TICK = 0.5  # seconds between two stats messages
QUIET = 120.0  # seconds after which a client that sends no picture is gone


def serve_live(live: Live, host: str, port: int, token: str | None, open_browser: bool = False) -> int:
    """Serve live swaps until Ctrl-C; SIGTERM ends it too. Returns the exit code.

    Raises UserError for an unsafe or impossible address and a busy port.
    """
    check_binding(host, token)
    ends = contextlib.suppress(KeyboardInterrupt)
    with contextlib.closing(listen(host, port)) as listener, termination_interrupts(), ends:
        server = uvicorn.Server(configuration(create_app(live, token)))
        address = address_of(listener, token)
        print(f"swap faces at {address} (Ctrl-C ends)", flush=True)
        if open_browser:
            threading.Timer(1.0, webbrowser.open, (address,)).start()
        try:
            server.run(sockets=[listener])
        finally:
            live.close()
    return 0


@contextlib.contextmanager
def background(live: Live, token: str | None = None) -> Iterator[str]:
    """The same server on loopback in a thread of this process, for tests and measurements; gives its address."""
    with contextlib.closing(listen("127.0.0.1", 0)) as listener:
        server = uvicorn.Server(configuration(create_app(live, token)))
        try:
            with in_thread(server, listener):
                yield address_of(listener, token)
        finally:
            live.close()


def create_app(live: Live, token: str | None = None) -> FastAPI:
    """The application."""

    async def stream(websocket: WebSocket) -> None:
        with contextlib.suppress(WebSocketDisconnect):
            await Client(Wire(websocket, _fatal), live).run()

    site = Site("worldmodel swap", token, PAGE / "swap.html", stream, live.close, files=FILES, headers=HEADERS)
    app = site.app

    @app.get("/health")
    def health(request: Request) -> Response:
        site.check_origin(request)
        return JSONResponse({"status": "ok", "streams": live.streams})

    @app.get("/api/info")
    def info(request: Request) -> Response:
        site.check(request)
        return JSONResponse(live.facts(), headers={"Cache-Control": "no-store"})

    @app.get("/api/references/{name}.jpg")
    def reference(request: Request, name: str) -> Response:
        site.check(request)
        if (picture := live.thumbnail(name)) is None:
            raise HTTPException(404, "no such reference")
        return Response(picture, media_type="image/jpeg", headers={"Cache-Control": "no-store"})

    return app


@dataclass(slots=True)
class Client:
    """One client and its stream."""

    wire: Wire
    live: Live

    async def run(self) -> None:
        """Until the client leaves (WebSocketDisconnect), breaks the protocol, or its stream fails."""
        longest = max(generator.chunk for generator in self.live.stock.methods.values())
        outbox = Outbox(QUEUE * longest, 0, lambda: None)
        outbox.say(write("welcome", **self.live.facts()))
        try:
            stream = await self.live.join(await self.wire.greeting(read, Hello, GREETING), outbox)
        except Full as full:
            await self.wire.refuse(CLOSE_FULL, str(full))
            return
        except (ProtocolError, UserError) as error:
            await self.wire.refuse(CLOSE_BAD_MESSAGE, in_words(error))
            return
        works = self._read(outbox, stream), self.wire.send(outbox), self._tick(outbox, stream)
        tasks = [asyncio.create_task(work) for work in works]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if outbox.ended and not (tasks[0].done() and tasks[0].exception() is not None):
                await asyncio.wait([tasks[1]], timeout=FAREWELL)
        finally:
            for task in tasks:
                task.cancel()
            results = await asyncio.gather(*tasks, return_exceptions=True)
            await self.live.leave(stream)
            for result in results:
                if isinstance(result, Exception) and not isinstance(result, WebSocketDisconnect):
                    _log.error("a connection failed", exc_info=result)

    async def _read(self, outbox: Outbox, stream: Stream) -> None:
        """Hand pictures and wishes on. Ends when a message breaks the protocol; raises WebSocketDisconnect."""
        while True:
            received = await self.wire.receive()
            try:
                if isinstance(received, bytes):
                    if stream.own:
                        raise ProtocolError("a picture, but this stream is of the server's source")
                    stream.put(*read_shot(received))
                    continue
                match read(received):
                    case Change() as change:
                        self.live.change(stream, change)
                    case Hello():
                        raise ProtocolError("hello is the first message and comes once")
            except UserError as error:
                outbox.say(write("error", message=in_words(error), fatal=False), "refused")
            except ProtocolError as error:
                outbox.end(CLOSE_BAD_MESSAGE, "bad message", _fatal(in_words(error)))
                return

    async def _tick(self, outbox: Outbox, stream: Stream) -> None:
        """Numbers, again and again; ends when no picture has come for long."""
        while stream.own or time.monotonic() - stream.seen < QUIET:
            await asyncio.sleep(TICK)
            outbox.say(stream.stats(), "stats")
        line = f"no picture has come for {QUIET:g} seconds, so the stream has ended"
        outbox.end(CLOSE_IDLE, "idle", _fatal(line))


def _fatal(line: str) -> str:
    return write("error", message=line, fatal=True)
