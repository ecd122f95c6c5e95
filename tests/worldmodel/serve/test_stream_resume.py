"""A client whose connection broke finds its own dream again; nobody else does."""

import socket
import threading
import time
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice

import numpy as np
import pytest
from talk import fast, get, wait_for
from websockets.exceptions import ConnectionClosed

from worldmodel.memory import SlowFastConfig
from worldmodel.serve.client import Client
from worldmodel.serve.limits import Limits
from worldmodel.serve.protocol import CONTEXT, Bookmark, Hello, Pause, Restart, Save, Settings
from worldmodel.serve.replay import play, read_replay

GARBAGE = "A" * 32


def cut(client: Client) -> None:
    """End the connection without a goodbye, as a broken line does."""
    client._socket.socket.shutdown(socket.SHUT_RDWR)


@contextmanager
def broken(address: str, studio, frames: int = 9, **fields):
    """A stream that has shown some pictures and whose connection has broken; gives its client and the pictures."""
    with Client(address, fast(window=4, **fields)) as client:
        seen = list(islice(client.frames(), frames))
        connected = studio.places.connected
        cut(client)
        wait_for(lambda: studio.places.connected == connected - 1, "the server has noticed")
        yield client, seen


def resuming(client: Client, **fields) -> Hello:
    return fast(window=4, resume=client.resume, **fields)


def refused(address: str, token: str | None) -> tuple[str, int]:
    """Line and close code that a hello with a token gets."""
    with Client(address, fast(resume=token)) as client:
        first = client.receive()
        assert isinstance(first, dict) and first["type"] == "error", first
        with pytest.raises(ConnectionClosed) as closed:
            client.receive()
        assert closed.value.rcvd is not None
        return first["message"], closed.value.rcvd.code


def test_the_dream_goes_on_where_it_was(world, serving) -> None:
    """The pictures of both connections are those of one replay; only what was on its way is missing."""
    with serving(world) as (address, studio), broken(address, studio, start=1, seed=5, frames=15) as (client, seen):
        (session,) = studio.sessions
        with Client(address, resuming(client)) as again:
            welcome, started = again.message("welcome"), again.message("started")
            assert welcome["resumed"] and welcome["resume"] != client.resume
            assert (started["stream"], started["source"], started["index"], started["seed"]) == (1, "start", 1, 5)
            after = list(islice(again.frames(), 17))
            assert studio.sessions == [session]
            again.send(Save())
            replay = read_replay(world, get(address + again.message("file")["url"]))
    made = np.concatenate([pictures.frames for pictures in play(world, replay)])
    indices = [f.header.index for f in after]
    assert seen[-1].header.index < indices[0] <= seen[-1].header.index + 5  # the window's pictures were on their way
    assert indices == list(range(indices[0], indices[0] + 17))
    assert [f.header.pts for f in after] == [round(i * 1e6 / 24) for i in indices]
    for frame in (*seen[1:], *after):
        assert np.array_equal(frame.picture, made[frame.header.index - 1])


def test_a_resumed_session_says_what_its_memory_holds(world, serving) -> None:
    memory = SlowFastConfig(sink=1, slow=3, fast=5, every=2, surprise=1.0)
    chosen = replace(world, stream=replace(world.stream, memory=memory))
    with (
        serving(chosen) as (address, studio),
        broken(address, studio, frames=15) as (client, _),
        Client(address, resuming(client, paused=True)) as again,
    ):
        assert [again.receive()["type"] for _ in range(3)] == ["welcome", "started", "paused"]
        said = again.receive()["slow"]  # paused, it makes nothing more
        assert len(said) == 3 and said == studio.sessions[0].stats(1).slow


def test_a_kept_session_makes_nothing(world, serving) -> None:
    with serving(world) as (address, studio), broken(address, studio, policy="latest") as (client, _):
        (session,) = studio.sessions
        time.sleep(0.1)  # the chunk that was being made
        made = session.projector.index
        time.sleep(0.4)
        assert session.projector.index == made
        with Client(address, resuming(client)) as again:
            assert next(again.frames()).header.index <= made  # what waited comes first
            wait_for(lambda: session.projector.index > made, "it goes on")


def test_keys_are_released_and_settings_are_those_of_the_new_hello(painted, serving) -> None:
    with serving(painted) as (address, studio), Client(address, fast(window=4)) as client:
        seq = client.hold(turn=8.0)
        next(f for f in client.frames() if f.header.input == seq)
        client.send(Settings(steps=3))
        cut(client)
        wait_for(lambda: not studio.places.connected, "the server has noticed")
        with Client(address, resuming(client, codec="webp", policy="latest", pace=500.0, steps=2)) as again:
            assert again.message("welcome")["seq"] == seq
            frame = next(f for f in again.frames() if f.header.codec == 2 and f.header.place == 0)
            assert np.abs(frame.picture.astype(int) - 128).max() <= 2  # nobody holds the key any more
            (session,) = studio.sessions
            choices = session.choices
            assert (choices.codec, choices.policy, choices.pace, choices.steps) == ("webp", "latest", 500.0, 2)
            assert again.hold(turn=-8.0) == seq + 1
            frame = next(f for f in again.frames() if f.header.input == seq + 1)
            assert frame.picture[0, 0, 0] <= 2


def test_what_a_session_has_is_still_there(world, serving) -> None:
    with serving(world) as (address, studio), Client(address, fast(window=4)) as client:
        list(islice(client.frames(), 9))
        client.send(Bookmark())
        assert client.message("notice")["text"] == "bookmark set"
        cut(client)
        wait_for(lambda: not studio.places.connected, "the server has noticed")
        with Client(address, resuming(client, paused=True)) as again:
            assert again.message("paused")["on"]
            again.send(Restart(source="bookmark"))
            assert again.message("started")["source"] == "bookmark"
            again.send(Pause(on=False))
            assert next(f for f in again.frames() if f.header.stream == 2).header.flags == CONTEXT


def test_a_live_connection_gives_way_to_the_one_with_its_token(world, serving) -> None:
    """The server may take longer than the client to notice that a line is dead."""
    with serving(world) as (address, studio), Client(address, fast(window=4)) as client:
        last = list(islice(client.frames(), 9))[-1].header
        client._acknowledges = False  # it only listens from now on
        with Client(address, resuming(client)) as again:
            assert again.message("welcome")["resumed"]
            assert next(again.frames()).header.index > last.index
            with pytest.raises(ConnectionError, match="goes on in another connection"):
                client.message("never")
            with pytest.raises(ConnectionClosed) as closed:
                client.receive()
            assert closed.value.rcvd is not None and closed.value.rcvd.code == 4409
            assert [f.header.stream for f in islice(again.frames(), 20)] == [1] * 20
            assert len(studio.sessions) == studio.places.connected == 1


def test_after_its_time_a_token_begins_a_new_dream_and_says_so(world, serving) -> None:
    with serving(world, Limits(resume=0.1)) as (address, studio), broken(address, studio) as (client, _):
        wait_for(lambda: not studio.sessions, "it is not kept any longer")
        wait_for(lambda: studio.engine.sessions == 0, "the engine has let go of it")
        with Client(address, resuming(client, seed=3)) as again:
            welcome = again.message("welcome")
            assert not welcome["resumed"] and welcome["seq"] == 0 and welcome["limits"]["resume"] == 0.1
            assert "is kept for 0.1 seconds at most, yours is gone: a new one begins" in again.message("notice")["text"]
            first = next(again.frames()).header
            assert (first.stream, first.index, first.flags) == (1, 0, CONTEXT)


def test_garbage_and_stolen_tokens_are_refused(world, serving) -> None:
    with serving(world) as (address, studio), broken(address, studio) as (client, _):
        for token in (GARBAGE, "", client.resume[:-1], f"{client.resume}x"):
            line, code = refused(address, token)
            assert "none of this server's, or was used" in line
            assert code == 4404
        assert studio.places.connected == 0 and len(studio.sessions) == 1  # untouched
        with Client(address, resuming(client)) as again:
            list(islice(again.frames(), 9))  # of a window of 4: the server has read that the client has its next token
            assert refused(address, client.resume)[1] == 4404
            assert [f.header.stream for f in islice(again.frames(), 20)] == [1] * 20
        wait_for(lambda: not studio.sessions, "it has left")
        assert refused(address, again.resume)[1] == 4404  # a session that was left has no token


def test_a_lost_welcome_does_not_lose_the_dream(world, serving) -> None:
    """A token stays good until its follower is known to have arrived."""
    with serving(world) as (address, studio), broken(address, studio) as (client, _):
        for _ in range(3):
            silent = Client(address, replace(resuming(client), window=0))  # it acknowledges nothing
            assert silent.message("welcome")["resumed"]
            cut(silent)
            wait_for(lambda: not studio.places.connected, "the server has noticed")
        with Client(address, resuming(client)) as again:
            assert again.message("welcome")["resumed"]


class Gate:
    """Stands in for a busy session: its first turn ends when it is opened."""

    def __init__(self) -> None:
        self.reached, self.open = threading.Event(), threading.Event()

    def wait(self, now: float) -> float | None:
        return None if self.open.is_set() else 0.0

    def turn(self, now: float) -> None:
        self.reached.set()
        assert self.open.wait(20)

    def join(self, timeout: float) -> None:
        pass

    def close(self) -> None:
        pass


def test_connections_that_break_before_their_welcome_leave_nothing_to_the_next(world, serving) -> None:
    """The engine is busy while three connections come and go; the fourth has one welcome, with its own token."""
    with serving(world) as (address, studio), broken(address, studio) as (client, seen):
        gate = Gate()
        studio.engine.add(gate)
        assert gate.reached.wait(10)
        try:
            for _ in range(3):
                early = Client(address, resuming(client))
                wait_for(lambda: studio.places.connected, "it has been let in")
                cut(early)
                wait_for(lambda: not studio.places.connected, "the server has noticed")
            again = Client(address, resuming(client))
            wait_for(lambda: studio.places.connected, "it has been let in")
        finally:
            gate.open.set()
        with again:
            received = [again.receive() for _ in range(40)]
            kinds = [message["type"] for message in received if isinstance(message, dict)]
            assert [kind for kind in kinds if kind != "stats"] == ["welcome", "started"]
            assert kinds[:2] == ["welcome", "started"]
            indices = [frame.header.index for frame in received if not isinstance(frame, dict)]
            assert indices == list(range(indices[0], indices[0] + len(indices))) and indices[0] > seen[-1].header.index
            cut(again)
            wait_for(lambda: not studio.places.connected, "the server has noticed")
            with Client(address, resuming(again)) as last:
                assert last.message("welcome")["resumed"]
                assert next(last.frames()).header.index > indices[-1]


def test_a_kept_session_counts_but_makes_room_for_a_new_client(world, serving) -> None:
    with (
        serving(world, Limits(sessions=2)) as (address, studio),
        broken(address, studio, seed=1) as (first, _),
        broken(address, studio, seed=2) as (second, _),
    ):
        assert len(studio.sessions) == 2
        with Client(address, fast(seed=3)) as new:
            assert next(new.frames()).header.index == 0
            assert sorted(s.seed for s in studio.sessions) == [2, 3]  # the one that had waited longest is gone
            with Client(address, resuming(second)) as again:
                assert again.message("welcome")["resumed"]
                assert refused(address, first.resume) == (
                    "all 2 places of this server are taken: try again when somebody has left",
                    4429,
                )
                assert new.message("stats")["clients"] == 2
        wait_for(lambda: not studio.sessions, "both have left")
        with Client(address, resuming(first)) as late:
            assert "yours is gone" in late.message("notice")["text"]


def test_a_client_that_leaves_keeps_nothing(world, serving) -> None:
    with serving(world) as (address, studio):
        with Client(address, fast()) as client:
            list(islice(client.frames(), 9))
        wait_for(lambda: not studio.sessions, "left at once")


def test_the_end_of_a_kept_session_is_told(world, serving) -> None:
    with serving(world) as (address, studio), broken(address, studio) as (client, _):
        (session,) = studio.sessions
        session.fail("the model is tired")
        with (
            Client(address, resuming(client)) as again,
            pytest.raises(ConnectionError, match="the model is tired"),
        ):
            again.message("never")
        wait_for(lambda: not studio.sessions, "it has ended")
