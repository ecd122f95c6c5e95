"""A policy over a WebSocket, as openpi's clients expect it: metadata on connecting, then observations in, chunks out.

The event loop reads, checks and sends; one thread owns the policy (`waiting`). A request that is wrong is answered with
one line of text that lists all of it, and the connection goes on; what is no message at all ends the connection with a
reason. docs/guide/policies.md describes the messages.
"""

import asyncio
import contextlib
import sys
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import uvicorn
from fastapi import FastAPI, HTTPException, Request, WebSocket, WebSocketDisconnect
from fastapi.responses import PlainTextResponse

from worldmodel.errors import UserError
from worldmodel.options import check_range, check_seeds, check_threads
from worldmodel.policies.adaptation import Adaptation
from worldmodel.policies.planning import Chunking
from worldmodel.policies.policy import Policy, find_policy
from worldmodel.policies.serving.contexts import MOMENTS, TRIAL, read_trial
from worldmodel.policies.serving.contexts import metadata as context_facts
from worldmodel.policies.serving.framing import FramingError, pack, unpack
from worldmodel.policies.serving.requests import TOKEN, Served, metadata, read_request
from worldmodel.policies.serving.served import ServedPolicy
from worldmodel.policies.serving.waiting import Answer, Line
from worldmodel.serve.access import Guard, check_binding
from worldmodel.serve.protocol import CLOSE_BAD_MESSAGE, close_reason, in_words
from worldmodel.serve.server import HEARTBEAT, address_of, listen, termination_interrupts

ROOM = 8 * 1024 * 1024  # bytes of a message that any policy reads, so that too large a picture can be told so
STALLED = 30.0  # seconds after which a client that takes nothing is gone


@dataclass(frozen=True, kw_only=True, slots=True)
class Serving:
    """clients: that may be connected at once. rows: served in one go, at most; patience: seconds that the first of
    these waits for others. seed: of the noise for requests that give none."""

    clients: int = 16
    rows: int = 1
    patience: float = 0.0
    seed: int = 0


def serve_policy(
    checkpoint: Path,
    encoder: Path | None = None,
    port: int = 8000,
    host: str = "127.0.0.1",
    token: str | None = None,
    max_clients: int = 16,
    together: bool = False,
    patience_ms: float = 2.0,
    chunking: Chunking | None = None,
    seed: int = 0,
    device: str = "cpu",
    threads: int = 1,
) -> int:
    """Serve a policy to robots over a WebSocket; openpi's clients work with it.

    Example: worldmodel serve-policy runs/policies/reach --port 8000

    Observations go through the policy one by one, so that an answer does not depend on who else asks; --together infers
    those that wait in one batch (faster on a GPU, the same to rounding only), for which the first waits at most
    --patience-ms. --chunking: how a chunk goes on from what a moving robot has committed itself to (guided, where the
    policy can do so). --encoder: the context encoder of this policy, with which a client gets a token of each finished
    trial and sends it with later requests. Any --host that is not loopback needs a --token. docs/guide/policies.md
    describes the messages.
    """
    check_range(1, 1024, max_clients=max_clients)
    check_seeds(seed=seed)
    check_threads(threads)
    if not 0 <= patience_ms <= 1000:
        raise UserError(f"--patience-ms must be in [0, 1000], not {patience_ms}")
    torch.set_num_threads(threads)
    policy = find_policy(checkpoint, device) if encoder is None else Policy.find(checkpoint, device)
    adaptation = Adaptation.find(encoder, policy) if encoder is not None and isinstance(policy, Policy) else None
    if chunking is None:
        chunking = "guided" if "guided" in policy.chunkings else "naive"
    served = ServedPolicy(policy, together, chunking, adaptation)
    rows = max_clients if together else 1
    serving = Serving(clients=max_clients, rows=rows, patience=patience_ms / 1000 if together else 0.0, seed=seed)
    check_binding(host, token)
    with contextlib.closing(listen(host, port)) as listener, Line(served, serving.rows, serving.patience) as line:
        address = _as_websocket(address_of(listener, token))
        with termination_interrupts(), contextlib.suppress(KeyboardInterrupt):
            print(f"the policy answers at {address} ({chunking} chunks; Ctrl-C ends)", flush=True)
            uvicorn.Server(configuration(create_app(served, line, serving, token), served)).run(sockets=[listener])
        print(f"{line.answered} chunks were made", file=sys.stderr)
    return 0


@contextlib.contextmanager
def background(served: Served, serving: Serving | None = None, token: str | None = None) -> Iterator[str]:
    """The same server on loopback in a thread of this process, for tests and measurements; gives its address."""
    serving = serving or Serving()
    with contextlib.closing(listen("127.0.0.1", 0)) as listener, Line(served, serving.rows, serving.patience) as line:
        server = uvicorn.Server(configuration(create_app(served, line, serving, token), served))
        thread = threading.Thread(target=server.run, args=([listener],), name="policy server", daemon=True)
        thread.start()
        try:
            while not server.started and thread.is_alive():
                time.sleep(0.005)
            yield _as_websocket(address_of(listener, token))
        finally:
            server.should_exit = True
            thread.join(20)


def largest(served: Served) -> int:
    """Bytes of the largest message that is read."""
    height, width = served.interface.size
    moments = 2 if served.context is None else 2 + MOMENTS
    return max(ROOM, moments * len(served.interface.cameras) * height * width * 3)


def greeting(served: Served) -> dict[str, Any]:
    """What a client is told when it connects."""
    facts = metadata(served, largest(served))
    return facts if served.context is None else facts | {"context": context_facts(served.interface, served.context)}


def configuration(app: FastAPI, served: Served) -> uvicorn.Config:
    """How uvicorn runs the app. A connection is read no further than one message ahead."""
    return uvicorn.Config(
        app, log_level="warning", ws="websockets-sansio", ws_max_size=largest(served), ws_ping_interval=HEARTBEAT,
        ws_ping_timeout=HEARTBEAT, ws_per_message_deflate=False, timeout_graceful_shutdown=3, lifespan="on",
    )  # fmt: skip


def create_app(served: Served, line: Line, serving: Serving, token: str | None = None) -> FastAPI:
    """The application in front of a line."""
    guard = Guard(token)

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        await asyncio.to_thread(line.close)

    app = FastAPI(title="worldmodel policy", lifespan=lifespan, docs_url=None, redoc_url=None, openapi_url=None)

    @app.get("/healthz")
    def health(request: Request) -> PlainTextResponse:
        if (refusal := guard.foreign(request.headers)) is not None:
            raise HTTPException(403, refusal)
        return PlainTextResponse("OK\n") if line.alive else PlainTextResponse("the policy has stopped\n", 503)

    @app.websocket("/")
    async def answer(websocket: WebSocket) -> None:
        refusal, status = guard.refusal(websocket.headers, websocket.query_params), 403
        if refusal is None and line.clients >= serving.clients:
            refusal, status = f"{serving.clients} clients are connected, which is all that this server takes", 503
        if refusal is not None:
            await websocket.send_denial_response(PlainTextResponse(refusal, status))
            return
        line.clients += 1
        try:
            await websocket.accept()
            await Conversation(websocket, served, line, serving.seed).run()
        except WebSocketDisconnect:
            pass  # before its answer was ready, or while it was being sent
        finally:
            line.clients -= 1

    return app


@dataclass(slots=True)
class Conversation:
    """One client: a request, its answer, the next request."""

    socket: WebSocket
    served: Served
    line: Line
    seed: int
    asked: int = 0
    last: float | None = None  # seconds from the arrival of the last request until its answer had left
    _next: "asyncio.Task[bytes | str] | None" = None

    async def run(self) -> None:
        """Until the client leaves (WebSocketDisconnect) or sends what is no message."""
        await self._send(pack(greeting(self.served)))
        try:
            while True:
                received = await self._coming()
                self._next = None
                began = time.perf_counter()
                try:
                    reply = await self._reply(received)
                except UserError as error:
                    await self._send(in_words(error))
                    continue
                except FramingError as error:
                    await self._send(in_words(error))
                    await self._within(self.socket.close(CLOSE_BAD_MESSAGE, close_reason(in_words(error))))
                    return
                await self._send(reply)
                self.last = time.perf_counter() - began
        finally:
            if self._next is not None:
                self._next.cancel()
                await asyncio.gather(self._next, return_exceptions=True)

    async def _reply(self, received: bytes | str) -> bytes:
        if isinstance(received, str):
            raise FramingError("a request is a binary message in msgpack, this was text")
        message = unpack(received)
        if TRIAL in message:
            return await self._token(message)
        request = read_request(message, self.served, self.seed, self.asked)
        self.asked += 1
        answer = await self._answered(self.line.ask(request))
        return pack({"actions": answer.made, "server_timing": self._timing(answer)})

    async def _token(self, message: dict[str, Any]) -> bytes:
        trial = await asyncio.to_thread(read_trial, message, self.served.interface, self.served.context)
        answer = await self._answered(self.line.ask(trial))
        return pack({TOKEN: answer.made, "server_timing": self._timing(answer)})

    def _timing(self, answer: Answer) -> dict[str, float]:
        timing = {"infer_ms": 1e3 * answer.took, "wait_ms": 1e3 * answer.waited, "rows": answer.rows}
        if self.last is not None:
            timing["prev_total_ms"] = 1e3 * self.last
        return timing

    async def _answered(self, asked: "Future[Answer]") -> Answer:
        """The answer; a client that leaves before it gives its place in the line away (WebSocketDisconnect)."""
        answer = asyncio.wrap_future(asked)
        coming = self._coming()
        try:
            await asyncio.wait((answer, coming), return_when=asyncio.FIRST_COMPLETED)
            if coming.done() and not answer.done():
                coming.result()  # raises if the client has left; else it is the next request, whose turn comes
            return await answer
        finally:
            answer.cancel()

    def _coming(self) -> "asyncio.Task[bytes | str]":
        """The next message, which may be under way already."""
        if self._next is None:
            self._next = asyncio.create_task(self._receive())
        return self._next

    async def _receive(self) -> bytes | str:
        message = await self.socket.receive()
        if message["type"] == "websocket.disconnect":
            raise WebSocketDisconnect(message.get("code", 1006))
        text = message.get("text")
        return text if text is not None else message.get("bytes") or b""

    async def _send(self, message: bytes | str) -> None:
        sending = self.socket.send_text(message) if isinstance(message, str) else self.socket.send_bytes(message)
        await self._within(sending)

    async def _within(self, sending: Awaitable[None]) -> None:
        """Wait until a message has left. Raises WebSocketDisconnect if the connection has ended, or takes nothing."""
        try:
            async with asyncio.timeout(STALLED):
                await sending
        except (RuntimeError, TimeoutError) as error:  # uvicorn's, when the connection is closed already
            raise WebSocketDisconnect(1006) from error


def _as_websocket(address: str) -> str:
    return "ws" + address.removeprefix("http")
