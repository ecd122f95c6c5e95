"""The robot on show over HTTP and WebSocket: FastAPI in the event loop, the robot in its own thread.

Access, addresses, headers and pictures are those of the live stream (worldmodel/serve).
"""

import asyncio
import contextlib
import logging
import sys
import threading
import webbrowser
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import uvicorn
from fastapi import FastAPI, Request, Response, WebSocket, WebSocketDisconnect
from fastapi.responses import JSONResponse

from worldmodel.errors import UserError
from worldmodel.policies.demo.messages import Hello, read, write
from worldmodel.policies.demo.show import Full, Show
from worldmodel.serve.access import check_binding
from worldmodel.serve.outbox import Outbox
from worldmodel.serve.protocol import CLOSE_BAD_MESSAGE, CLOSE_FULL, ProtocolError, in_words
from worldmodel.serve.server import address_of, configuration, in_thread, listen, termination_interrupts
from worldmodel.serve.site import PAGE_FILES, Site
from worldmodel.serve.wire import FAREWELL, Wire

_log = logging.getLogger("worldmodel.policies.demo")
PAGE = Path(__file__).parent / "page"
FILES = PAGE_FILES | {path.name: path for path in PAGE.iterdir()}  # ours beside those of the live stream
GREETING = 10.0  # seconds from connecting to hello
QUEUE = 3  # pictures that wait for a viewer


def serve_show(show: Show, host: str, port: int, token: str | None, open_browser: bool = False) -> int:
    """Show a robot to browsers until Ctrl-C; SIGTERM ends it too. Returns the exit code, 1 if the robot dies.

    Raises UserError for an unsafe or impossible address, a busy port, and a robot that cannot be opened.
    """
    check_binding(host, token)
    ends = contextlib.suppress(KeyboardInterrupt)
    with contextlib.closing(listen(host, port)) as listener, termination_interrupts(), ends, show:
        server = uvicorn.Server(configuration(create_app(show, token)))
        show.on_failure = lambda: setattr(server, "should_exit", True)
        address = address_of(listener, token)
        print(f"watch the robot at {address} (Ctrl-C ends)", flush=True)
        if open_browser:
            threading.Timer(1.0, webbrowser.open, (address,)).start()
        server.run(sockets=[listener])
    if show.failure is not None:
        print(f"the robot has stopped: {in_words(show.failure)}", file=sys.stderr)
        return 1
    return 0


@contextlib.contextmanager
def background(show: Show, token: str | None = None) -> Iterator[str]:
    """The same server on loopback in a thread of this process, for tests; gives its address."""
    with contextlib.closing(listen("127.0.0.1", 0)) as listener, show:
        server = uvicorn.Server(configuration(create_app(show, token)))
        with in_thread(server, listener):
            yield address_of(listener, token)


def create_app(show: Show, token: str | None = None) -> FastAPI:
    """The application of one robot."""

    async def watch(websocket: WebSocket) -> None:
        with contextlib.suppress(WebSocketDisconnect):
            await Viewing(Wire(websocket, _fatal), show).run()

    site = Site("worldmodel robot", token, PAGE / "robot.html", watch, show.stop, files=FILES)
    app = site.app

    @app.get("/health")
    def health(request: Request) -> Response:
        site.check_origin(request)
        status = "ok" if show.alive else "the robot has stopped"
        return JSONResponse({"status": status, "viewers": show.viewers}, 200 if show.alive else 503)

    return app


@dataclass(slots=True)
class Viewing:
    """One page that watches, and may wish."""

    wire: Wire
    show: Show

    async def run(self) -> None:
        """Until the viewer leaves (WebSocketDisconnect) or breaks the protocol."""
        outbox = Outbox(QUEUE, 0, lambda: None)
        try:
            await self.wire.greeting(read, Hello, GREETING)
            self.show.join(outbox)
        except Full as full:
            await self.wire.refuse(CLOSE_FULL, str(full))
            return
        except (ProtocolError, UserError) as error:
            await self.wire.refuse(CLOSE_BAD_MESSAGE, in_words(error))
            return
        reader, writer = tasks = asyncio.create_task(self._read(outbox)), asyncio.create_task(self.wire.send(outbox))
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if outbox.ended and reader.done() and reader.exception() is None:
                await asyncio.wait([writer], timeout=FAREWELL)
        finally:
            self.show.leave(outbox)
            for task in tasks:
                task.cancel()
            for result in await asyncio.gather(*tasks, return_exceptions=True):
                if isinstance(result, Exception) and not isinstance(result, WebSocketDisconnect):
                    _log.error("a connection failed", exc_info=result)

    async def _read(self, outbox: Outbox) -> None:
        """Hand wishes on. Ends when a message breaks the protocol; raises WebSocketDisconnect."""
        while True:
            received = await self.wire.receive()
            try:
                if isinstance(received, bytes):
                    raise ProtocolError("a binary message: this server reads text only")
                wish = read(received)
                if isinstance(wish, Hello):
                    raise ProtocolError("hello is the first message and comes once")
                self.show.wish(wish)
            except UserError as error:
                outbox.say(write("error", message=in_words(error), fatal=False))
            except ProtocolError as error:
                outbox.end(CLOSE_BAD_MESSAGE, "bad message", _fatal(in_words(error)))
                return


def _fatal(line: str) -> str:
    return write("error", message=line, fatal=True)
