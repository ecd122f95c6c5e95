"""Slow clients, gone ones, and too many of them."""

import gc
import socket
import threading
import time
import weakref
from itertools import islice

import pytest
from talk import HELLO, fast, last_words, wait_for
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.exceptions import ConnectionClosed

from worldmodel.serve import server, wire
from worldmodel.serve.client import Client
from worldmodel.serve.limits import Limits
from worldmodel.serve.protocol import (
    CONTEXT,
    Ack,
)


def test_a_slow_client_drops_and_harms_nobody(painted, serving) -> None:
    with serving(painted) as (address, studio), Client(address, fast(policy="latest", pace=1000.0, window=2)) as slow:
        slow._acknowledges = False  # it takes two pictures and then no more
        with Client(address, fast(window=24)) as quick:
            indices = [f.header.index for f in islice(quick.frames(), 200)]
            assert indices == list(range(200))
            wait_for(lambda: max(s.outbox.drops for s in studio.sessions) > 20, "drops are counted")
            for session in studio.sessions:
                assert session.outbox.waiting <= session.outbox.limit == 12
            late = next(s for s in studio.sessions if s.outbox.drops)
            held = [f.header for f in islice(slow.frames(), 2)]
            slow.send(Ack(pts=held[-1].pts))
            fresh = next(slow.frames()).header
            assert [h.index for h in held] == [0, 1]
            assert fresh.index > late.outbox.drops - 12  # the newest, not the backlog
            assert fresh.pts > held[-1].pts


def test_a_blocking_client_stops_its_own_dream_only(painted, serving) -> None:
    with serving(painted) as (address, studio), Client(address, fast(window=4)) as stuck:
        stuck._acknowledges = False
        (session,) = studio.sessions or (None,)
        with Client(address, fast(window=24)) as quick:
            assert [f.header.index for f in islice(quick.frames(), 200)] == list(range(200))
            session = min(studio.sessions, key=lambda s: s.projector.index)
            made = session.projector.index
            assert made <= 4 + 12 + 4
            list(islice(quick.frames(), 40))
            assert session.projector.index == made
            assert session.outbox.drops == 0
        seen = [f.header for f in islice(stuck.frames(), 4)]
        stuck.send(Ack(pts=seen[-1].pts))
        seen += [f.header for f in islice(stuck.frames(), 4)]
        assert [h.index for h in seen] == list(range(8))  # nothing was lost


def deaf(address: str, hello: bytes) -> socket.socket:
    """A client that says hello and reads nothing of what follows."""
    raw = socket.create_connection(("127.0.0.1", int(address.split(":")[2].strip("/"))))
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    key = "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n"
    raw.sendall(
        f"GET /ws HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n{key}\r\n".encode()
    )
    assert raw.recv(4096).startswith(b"HTTP/1.1 101")
    raw.sendall(bytes([0x81, 0x80 | len(hello), 0, 0, 0, 0]) + hello)
    return raw


def test_a_client_that_reads_nothing_is_bounded(painted, serving) -> None:
    """No window: the operating system's buffers fill, then the session waits."""
    with serving(painted, Limits(resume=0.1)) as (address, studio):
        raw = deaf(address, b'{"type":"hello","version":2,"codec":"raw","policy":"block","pace":0}')
        wait_for(lambda: bool(studio.sessions), "the session begins")
        (session,) = studio.sessions

        def stands() -> bool:
            made = session.projector.index
            time.sleep(0.3)
            return made > 20 and session.projector.index == made

        wait_for(stands, "the dream waits")
        assert session.outbox.waiting <= session.outbox.limit
        with Client(address, fast()) as quick:
            assert [f.header.index for f in islice(quick.frames(), 100)] == list(range(100))
        raw.close()
        wait_for(lambda: session not in studio.sessions, "it is forgotten when its connection ends")


def test_a_client_that_takes_nothing_any_more_is_gone(painted, serving, monkeypatch, caplog) -> None:
    """The buffers are full, so not even the end of the connection can be sent."""
    monkeypatch.setattr(wire, "STALLED", 0.3)
    with serving(painted, Limits(resume=60)) as (address, studio):
        raw = deaf(address, b'{"type":"hello","version":2,"codec":"raw","policy":"block","pace":0}')
        wait_for(lambda: studio.places.connected == 1, "it is there")
        wait_for(lambda: studio.places.connected == 0, "the server has given it up")
        assert len(studio.sessions) == 1  # it may come back
        raw.close()
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []


def test_an_unanswered_ping_is_a_quiet_end(painted, serving, monkeypatch, caplog) -> None:
    """uvicorn has closed the connection, but its buffer is not empty yet: what is sent meanwhile is no failure."""
    closed = threading.Event()

    def time_out(protocol: WebSocketsSansIOProtocol) -> None:
        protocol.conn.fail(1011, "keepalive ping timeout")
        protocol.transport.write(b"".join(protocol.conn.data_to_send()))
        protocol.close_sent = True
        protocol.loop.call_later(0.3, protocol.transport.close)
        closed.set()

    monkeypatch.setattr(server, "HEARTBEAT", 0.1)
    monkeypatch.setattr(WebSocketsSansIOProtocol, "handle_pong", lambda *_: None)
    monkeypatch.setattr(WebSocketsSansIOProtocol, "keepalive_timeout", time_out)
    with serving(painted, Limits(resume=60)) as (address, studio), Client(address, fast()) as client:
        with pytest.raises(ConnectionClosed) as end:
            list(client.frames())
        assert end.value.rcvd is not None and end.value.rcvd.code == 1011 and closed.is_set()
        wait_for(lambda: studio.places.connected == 0, "the server has noticed")
        assert len(studio.sessions) == 1  # it may come back
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []


def test_a_vanished_client_leaves_nothing_behind(painted, serving) -> None:
    with serving(painted, Limits(resume=0.05)) as (address, studio), Client(address, fast()) as other:
        list(islice(other.frames(), 5))
        threads = threading.active_count()
        gone = []
        for _ in range(3):
            client = Client(address, fast())
            list(islice(client.frames(), 9))
            session = next(s for s in studio.sessions if s.projector.index >= 9 and weakref.ref(s) not in gone)
            gone += [weakref.ref(s) for s in studio.sessions if s.outbox is session.outbox]
            del session
            client._socket.socket.shutdown(socket.SHUT_RDWR)  # no goodbye
            wait_for(lambda: len(studio.sessions) == 1, "its session is gone")
            list(islice(other.frames(), 5))
        (alive,) = studio.sessions
        wait_for(lambda: gc.collect() >= 0 and all(ref() in (None, alive) for ref in gone), "its memory is freed")
        wait_for(lambda: threading.active_count() <= threads, "its threads have ended")
        assert studio.engine.sessions == 1


def test_the_session_limit_is_said_clearly_and_a_place_is_free_again(world, serving) -> None:
    with serving(world, Limits(sessions=2)) as (address, studio):
        with Client(address, fast()) as a, Client(address, fast()) as b:
            assert next(a.frames()).header.stream == next(b.frames()).header.stream == 1
            line, code = last_words(address, HELLO)
            assert "all 2 places" in line
            assert code == 4429
            assert next(a.frames()).header.stream == 1
        wait_for(lambda: not studio.sessions, "both have left")
        with Client(address, fast()) as c:
            assert next(c.frames()).header.flags == CONTEXT


def test_an_idle_session_ends(world, serving) -> None:
    with serving(world, Limits(idle=0.5)) as (address, _):
        line, code = last_words(address, HELLO)
        assert "connect again" in line
        assert code == 4408


def test_a_held_key_is_not_idle(world, serving) -> None:
    with serving(world, Limits(idle=0.5)) as (address, studio), Client(address, fast()) as client:
        client.hold(turn=1.0)
        for _ in range(3):
            client.message("stats")
        assert studio.sessions


def test_silence_instead_of_hello(world, serving) -> None:
    with serving(world, Limits(greeting=0.2)) as (address, studio):
        line, code = last_words(address)
        assert (line, code) == ("no hello within 0.2 seconds", 4400)
        assert not studio.sessions
