"""A page and its WebSocket, behind the guard of a token: what every live page here is."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path

from fastapi import FastAPI, HTTPException, Request, Response, WebSocket
from fastapi.responses import FileResponse, PlainTextResponse

from .access import Guard

PAGE = Path(__file__).parent / "page"
PAGE_FILES = {path.name: path for path in PAGE.iterdir()} if PAGE.is_dir() else {}
PAGE_HEADERS = {
    "Content-Security-Policy": "default-src 'self'; img-src 'self' blob: data:; style-src 'self' 'unsafe-inline'; "
    "connect-src 'self'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


class Site:
    """The application `app` with a page at /, its files under /page/ and a WebSocket at /ws; add routes to it.

    index: the page. files: by name, beside those of the live stream. talk: serves an accepted socket. stop: what ends
    when the application does, while the loop still runs.
    """

    def __init__(
        self,
        title: str,
        token: str | None,
        index: Path,
        talk: Callable[[WebSocket], Awaitable[None]],
        stop: Callable[[], object],
        *,
        files: Mapping[str, Path] = PAGE_FILES,
        headers: Mapping[str, str] = PAGE_HEADERS,
    ) -> None:
        guard = self._guard = Guard(token)

        @contextlib.asynccontextmanager
        async def lifespan(_: FastAPI) -> AsyncIterator[None]:
            yield
            await asyncio.to_thread(stop)

        self.app = FastAPI(title=title, lifespan=lifespan, docs_url=None, redoc_url=None, openapi_url=None)

        @self.app.get("/")
        def page(request: Request) -> Response:
            self.check_origin(request)
            return FileResponse(index, headers=headers)

        @self.app.get("/page/{name}")
        def file(request: Request, name: str) -> Response:
            self.check_origin(request)
            if name not in files:
                raise HTTPException(404, "no such file")
            return FileResponse(files[name], headers=headers)

        @self.app.websocket("/ws")
        async def connect(websocket: WebSocket) -> None:
            if (line := guard.refusal(websocket.headers, websocket.query_params)) is not None:
                await websocket.send_denial_response(PlainTextResponse(line, 403))
                return
            await websocket.accept()
            await talk(websocket)

    def check(self, request: Request) -> None:
        """403 for a foreign page, or without the token."""
        if (line := self._guard.refusal(request.headers, request.query_params)) is not None:
            raise HTTPException(403, line)

    def check_origin(self, request: Request) -> None:
        """403 for a foreign page."""
        if (line := self._guard.foreign(request.headers)) is not None:
            raise HTTPException(403, line)
