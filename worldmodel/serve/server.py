"""The live stream over HTTP and WebSocket: FastAPI in the event loop, the engine in its own thread."""

import contextlib
import errno
import math
import signal
import socket
import sys
import threading
import time
import webbrowser
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import uvicorn
from fastapi import FastAPI, HTTPException, Request, Response
from fastapi.responses import FileResponse, JSONResponse

from worldmodel.errors import UserError
from worldmodel.models.world import WorldModel
from worldmodel.serial import to_json

from .access import check_binding
from .connection import Connection
from .limits import Limits
from .protocol import in_words
from .site import PAGE, Site
from .sources import RealWorldFactory, Recordings
from .studio import Studio

HEARTBEAT = 15.0  # seconds between two pings, and until a missing answer ends the connection
MAX_MESSAGE = 32 * 1024 * 1024  # bytes; beyond this a connection is cut without reading on
SEND_BUFFER = 64 * 1024  # bytes of the kernel's buffer: what lies there is latency


def serve(
    world: WorldModel,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    token: str | None = None,
    max_sessions: int = 4,
    name: str = "world",
    also: Mapping[str, WorldModel] | None = None,
    real: RealWorldFactory | None = None,
    recordings: Recordings | None = None,
    open_browser: bool = False,
) -> int:
    """Stream a world to browsers and programs until Ctrl-C. Returns the exit code.

    host: an address that is not loopback needs a token. port: 0 takes a free one. name: of the world. also: others by
    their names, between which whoever drives can switch; they share its tokenizer, frame rate, chunk and actions, and
    get its beginnings. real: opens a simulator of this world to run beside the dream. recordings: real video whose
    frames a stream may start from. Raises UserError for an unsafe or impossible address, a busy port, a limit below one
    session, worlds that do not go together, and one that cannot run. SIGTERM ends it like Ctrl-C, with exit code 0; the
    code is 1 if the engine dies.
    """
    if max_sessions < 1:
        raise UserError(f"max-sessions: {max_sessions} lets nobody in, it must be at least 1")
    check_binding(host, token)
    ends = contextlib.suppress(KeyboardInterrupt)
    with contextlib.closing(listen(host, port)) as listener:
        limits = Limits(sessions=max_sessions)
        studio = Studio(world, limits, name=name, also=also, real=real, recordings=recordings)
        with termination_interrupts(), ends, _opened(studio, token) as server:
            address = address_of(listener, token)
            print(f"drive the world at {address} (Ctrl-C ends)", flush=True)
            if open_browser:
                threading.Timer(1.0, webbrowser.open, (address,)).start()
            server.run(sockets=[listener])
    if studio.engine.failure is not None:
        print(f"the engine has stopped: {in_words(studio.engine.failure)}", file=sys.stderr)
        return 1
    return 0


@contextlib.contextmanager
def background(studio: Studio, *, token: str | None = None, port: int = 0) -> Iterator[str]:
    """The same server on loopback in a thread of this process, for tests and measurements; gives its address."""
    with (
        contextlib.closing(listen("127.0.0.1", port)) as listener,
        _opened(studio, token) as server,
        in_thread(server, listener),
    ):
        yield address_of(listener, token)


@contextlib.contextmanager
def in_thread(server: uvicorn.Server, listener: socket.socket) -> Iterator[None]:
    """A server that answers from a thread of this process, and has ended afterwards."""
    thread = threading.Thread(target=server.run, args=([listener],), name="server", daemon=True)
    thread.start()
    try:
        while not server.started and thread.is_alive():
            time.sleep(0.005)
        yield
    finally:
        server.should_exit = True
        thread.join(20)


@contextlib.contextmanager
def _opened(studio: Studio, token: str | None) -> Iterator[uvicorn.Server]:
    """A server of a studio whose engine runs; it ends when the engine dies. Raises UserError if the world cannot."""
    server = uvicorn.Server(configuration(create_app(studio, token)))
    try:
        studio.open(on_failure=lambda: setattr(server, "should_exit", True))
        yield server
    finally:
        studio.close()


@contextlib.contextmanager
def termination_interrupts() -> Iterator[None]:
    """SIGTERM raises KeyboardInterrupt, as Ctrl-C does; in a thread, which gets no signals, nothing changes."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def listen(host: str, port: int) -> socket.socket:
    """A listening socket. Raises UserError that names what is wrong with the address."""
    if not 0 <= port < 65536:
        raise UserError(f"port {port}: no such port, they go from 0 to 65535")
    try:
        family, kind, proto, _, where = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (socket.gaierror, UnicodeError) as error:
        raise UserError(f"host {host}, port {port}: no such address ({error})") from error
    listener = socket.socket(family, kind, proto)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)  # connections inherit it
        listener.bind(where)
        listener.listen(128)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            line = f"port {port} of {host} is busy: another program listens there, choose another --port"
        else:
            line = f"port {port} of {host} cannot be used: {error.strerror}"
        raise UserError(line) from error
    return listener


def address_of(listener: socket.socket, token: str | None) -> str:
    """What to type into a browser."""
    host, port = listener.getsockname()[:2]
    name = {"0.0.0.0": socket.gethostname(), "::": socket.gethostname()}.get(host, f"[{host}]" if ":" in host else host)
    return f"http://{name}:{port}/" + (f"?token={token}" if token else "")


def configuration(app: FastAPI) -> uvicorn.Config:
    """How uvicorn runs the app."""
    return uvicorn.Config(
        app, log_level="warning", ws="websockets-sansio", ws_max_size=MAX_MESSAGE, ws_ping_interval=HEARTBEAT,
        ws_ping_timeout=HEARTBEAT, ws_per_message_deflate=False, timeout_graceful_shutdown=3, lifespan="on",
    )  # fmt: skip


def create_app(studio: Studio, token: str | None = None) -> FastAPI:
    """The application of one studio."""
    site = Site(
        "worldmodel live stream", token, PAGE / "index.html", lambda ws: Connection(ws, studio).run(), studio.close
    )
    app = site.app

    @app.get("/health")
    def health(request: Request) -> Response:
        site.check_origin(request)
        well = studio.engine.alive
        facts = {"status": "ok" if well else "the engine has stopped", "sessions": len(studio.sessions)}
        return JSONResponse(facts, 200 if well else 503)

    @app.get("/api/info")
    def info(request: Request) -> Response:
        site.check(request)
        facts = to_json(studio.welcome()) | {"card": _plain(studio.card), "sessions": len(studio.sessions)}
        return JSONResponse(facts)

    @app.get("/api/starts/{index}.jpg")
    def start(request: Request, index: str) -> Response:
        site.check(request)
        return Response(_found(lambda: studio.start_picture(_number(index))), media_type="image/jpeg")

    @app.get("/api/frames/{index}.jpg")
    def frame(request: Request, index: str) -> Response:
        site.check(request)
        return Response(_found(lambda: studio.frame_picture(_number(index))), media_type="image/jpeg")

    @app.get("/api/files/{key}")
    def file(request: Request, key: str) -> Response:
        site.check(request)
        found = studio.downloads.get(key)
        if found is None:
            raise HTTPException(404, "this file is gone: files are kept for ten minutes")
        return FileResponse(found.path, filename=found.name)

    return app


def _number(text: str) -> int:
    """The number of a picture in an address. Raises UserError."""
    if not (text.isascii() and text.isdigit() and len(text) <= 15):
        raise UserError("no picture has such a number, they count from 0")
    return int(text)


def _plain(value: Any) -> Any:
    """A value of a model card as JSON holds it: what is no finite number, list, object or text becomes text."""
    if isinstance(value, dict):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if value is None or isinstance(value, bool | int) or (isinstance(value, float) and math.isfinite(value)):
        return value
    return str(value).encode(errors="backslashreplace").decode()


def _found(make: Callable[[], bytes]) -> bytes:
    """What `make` returns; a UserError becomes a 404 with its line."""
    try:
        return make()
    except UserError as error:
        raise HTTPException(404, str(error)) from error
