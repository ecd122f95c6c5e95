"""The server over its real socket, driven by the protocol client."""

import gc
import io
import json
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import islice
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import av
import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from worldmodel.errors import UserError
from worldmodel.memory import WindowConfig
from worldmodel.serial import to_json
from worldmodel.serve import server
from worldmodel.serve.client import Client, Frame, measure
from worldmodel.serve.limits import Limits
from worldmodel.serve.protocol import (
    CONTEXT,
    HELD,
    REAL,
    UPLOAD_PICTURE,
    UPLOAD_REPLAY,
    Ack,
    Bookmark,
    Hello,
    Input,
    Pause,
    Real,
    Record,
    Reset,
    Restart,
    Save,
    Settings,
    upload,
)
from worldmodel.serve.replay import fingerprint, play, read_replay
from worldmodel.serve.sources import Footage


def fast(**fields) -> Hello:
    """As fast as the client reads, exact pictures."""
    return Hello(**({"version": 1, "codec": "raw", "policy": "block", "pace": 0.0, "window": 8} | fields))


def wait_for(condition: Callable[[], bool], what: str) -> None:
    for _ in range(1000):
        if condition():
            return
        time.sleep(0.01)
    raise AssertionError(f"never: {what}")


def get(address: str, headers: dict[str, str] | None = None) -> bytes:
    with urlopen(Request(address, headers=headers or {}), timeout=10) as answer:
        return answer.read()


def last_words(address: str, *messages: str | bytes) -> tuple[str, int]:
    """Send messages to a new connection; the error line and the close code that come back."""
    with connect("ws" + address.removeprefix("http") + "ws", compression=None, max_size=None) as socket:
        try:
            for message in messages:
                socket.send(message)
        except ConnectionClosed:
            pass
        line = ""
        try:
            while True:
                received = socket.recv(10)
                data = json.loads(received) if isinstance(received, str) else {}
                line = data["message"] if data.get("type") == "error" else line
        except ConnectionClosed as closed:
            return line, closed.rcvd.code if closed.rcvd else 1006


HELLO = '{"type": "hello", "version": 1}'


# -- the stream --------------------------------------------------------------------------------------------------------


def test_pictures_come_numbered_timed_and_in_order(world, serving) -> None:
    with serving(world) as (address, _), Client(address, fast(start=2, seed=9)) as client:
        welcome = client.message("welcome")
        assert (welcome["width"], welcome["height"], welcome["chunk"], welcome["context"]) == (16, 16, 4, 8)
        assert (welcome["starts"], welcome["frames"], welcome["real"], welcome["steps"]) == (3, 0, False, 2)
        assert [binding["name"] for binding in welcome["controls"]] == ["turn", "forward", "strafe"]
        started = client.message("started")
        assert started == {
            "type": "started", "stream": 1, "source": "start", "index": 2, "seed": 9, "context": 8
        }  # fmt: skip
        headers = [frame.header for frame in islice(client.frames(), 41)]
    assert headers[0].flags == CONTEXT
    assert [h.index for h in headers] == list(range(41))
    assert [h.pts for h in headers] == [round(i * 1e6 / 24) for i in range(41)]
    assert [h.place for h in headers[1:]] == [0, 1, 2, 3] * 10
    assert {(h.stream, h.size, h.width, h.height, h.flags) for h in headers[1:]} == {(1, 4, 16, 16, 0)}
    assert all(h.latency > 0 for h in headers)


def test_keys_move_the_picture(painted, serving) -> None:
    with serving(painted) as (address, _), Client(address, fast(window=4)) as client:
        frames = client.frames()
        for action, colour in (
            ({"turn": 8.0}, (255, 128, 128)),
            ({"turn": -8.0, "forward": 1.0}, (0, 255, 128)),
            ({"strafe": -0.5}, (128, 128, 64)),
            ({}, (128, 128, 128)),
        ):
            seq = client.hold(**action)
            frame = next(frame for frame in frames if frame.header.input == seq)
            assert np.abs(frame.picture.astype(int) - colour).max() <= 1


def test_two_clients_have_dreams_of_their_own(painted, serving) -> None:
    with serving(painted) as (address, _), Client(address, fast(window=4)) as a, Client(address, fast(window=4)) as b:
        left, right = a.hold(turn=8.0), b.hold(turn=-8.0)
        for _ in range(3):
            of_a = next(f for f in a.frames() if f.header.input == left and f.header.place == 3)
            of_b = next(f for f in b.frames() if f.header.input == right and f.header.place == 3)
            assert of_a.picture[0, 0, 0] == 255
            assert of_b.picture[0, 0, 0] == 0


def test_two_reading_clients_share_fairly(painted, serving) -> None:
    """Counted over one and the same time; no clock is judged."""
    with serving(painted) as (address, _):
        counts, done = [0, 0], threading.Event()

        def read(i: int) -> None:
            with Client(address, fast(window=24)) as client:
                for _ in client.frames():
                    counts[i] += 1
                    if done.is_set():
                        return

        threads = [threading.Thread(target=read, args=(i,)) for i in range(2)]
        for thread in threads:
            thread.start()
        wait_for(lambda: min(counts) > 0, "both streams have begun")
        before = list(counts)
        wait_for(lambda: max(counts) - max(before) >= 200, "200 pictures")
        made = [now - then for now, then in zip(counts, before, strict=True)]
        done.set()
        for thread in threads:
            thread.join()
    assert min(made) / max(made) >= 0.8


def test_pause_and_go_on(world, serving) -> None:
    with serving(world) as (address, _), Client(address, fast(paused=True)) as client:
        assert client.message("started")["stream"] == 1
        assert next(client.frames()).header.flags == CONTEXT
        with pytest.raises(TimeoutError):
            next(client.frames(timeout=0.3))
        client.send(Pause(on=False))
        assert [frame.header.index for frame in islice(client.frames(), 6)] == [1, 2, 3, 4, 5, 6]


def test_reset_and_restart(world, serving) -> None:
    with serving(world) as (address, _), Client(address, fast(seed=1)) as client:
        first = [f.picture for f in islice(client.frames(), 9)]
        client.send(Reset())
        assert client.message("started")["stream"] == 2
        again = list(islice(client.frames(), 9))
        assert all(np.array_equal(a, b.picture) for a, b in zip(first, again, strict=True))
        assert again[0].header.pts > 8 * 1e6 / 24  # time goes on
        client.send(Reset(seed=2))
        assert client.message("started")["seed"] == 2
        other = [f.picture for f in islice(client.frames(), 9)]
        assert np.array_equal(first[0], other[0])
        assert not np.array_equal(first[1], other[1])
        client.send(Restart(source="start", index=1))
        started = client.message("started")
        assert (started["source"], started["index"], started["seed"]) == ("start", 1, 2)
        client.send(Restart(source="start", index=3))
        with pytest.raises(ConnectionError, match="3 beginnings, number 3"):
            client.message("never")
        client.send(Restart(source="bookmark"))
        with pytest.raises(ConnectionError, match="no bookmark"):
            client.message("never")
        client.send(Restart(source="frame"))
        with pytest.raises(ConnectionError, match="without recordings"):
            client.message("never")
        assert next(client.frames()).header.stream == 4


def test_settings(world, serving) -> None:
    with serving(world) as (address, studio), Client(address, fast()) as client:
        client.send(Settings(codec="jpeg", quality=50, steps=5, policy="latest"))
        frame = next(f for f in client.frames() if f.header.codec == 1)
        assert frame.picture.shape == (16, 16, 3)
        (session,) = studio.sessions
        assert (session.choices.quality, session.choices.steps, session.choices.policy) == (50, 5, "latest")
        assert session.choices.pace == 0
        assert client.message("stats")["steps"] == 5


def test_bookmark_returns_to_the_same_moment(world, serving) -> None:
    with serving(world) as (address, _), Client(address, fast(window=4)) as client:
        list(islice(client.frames(), 21))
        client.send(Pause(on=True))
        client.message("paused")
        client.send(Bookmark())
        client.send(Pause(on=False))
        client.message("paused")
        after = list(islice(client.frames(), 8))
        client.send(Restart(source="bookmark"))
        started = client.message("started")
        assert (started["stream"], started["source"]) == (2, "bookmark")
        again = list(islice(client.frames(), 9))[1:]
        client.send(Save())
        replay = read_replay(world, get(address + client.message("file")["url"]))
    assert [a.header.index + 1 for a in after] == [b.header.index for b in again]
    assert all(np.array_equal(a.picture, b.picture) for a, b in zip(after, again, strict=True))
    made = np.concatenate([pictures.frames for pictures in play(world, replay)])
    first = after[0].header.index - 1  # index 0 is the beginning's own picture
    assert np.array_equal(made[first : first + 8], np.stack([b.picture for b in again]))  # it knows the way there


# -- what is kept ------------------------------------------------------------------------------------------------------


def test_a_replay_file_makes_the_stream_again_bit_for_bit(world, serving) -> None:
    with serving(world) as (address, _), Client(address, fast(start=1, seed=5, window=4)) as client:
        frames, seen = client.frames(), []
        for action, steps in (({"turn": 5.0}, 1), ({"forward": 1.0, "turn": -3.3}, 3), ({}, 2)):
            client.send(Settings(steps=steps))
            seq = client.hold(**action)
            while not seen or seen[-1].header.input < seq or seen[-1].header.place != 3:
                seen.append(next(frames))
        client.send(Pause(on=True))
        while True:  # what was on its way
            received = client.receive()
            if isinstance(received, Frame):
                seen.append(received)
            elif received["type"] == "paused":
                break
        client.send(Save())
        file = client.message("file")
        assert file["kind"] == "replay"
        data = get(address + file["url"])
        assert len(data) == file["bytes"]

        replay = read_replay(world, data)
        made = np.concatenate([pictures.frames for pictures in play(world, replay)])
        shown = np.stack([f.picture for f in seen[1:]])  # the first is the beginning's own
        assert len(made) >= len(shown) >= 12
        assert np.array_equal(shown, made[: len(shown)])
        assert len({deed.steps for deed in replay.deeds}) >= 2

        client.send(upload(UPLOAD_REPLAY, data))  # and the server plays it, then it is the client's again
        assert client.message("started")["source"] == "replay"
        client.send(Pause(on=False))
        again = [f.picture for f in islice(client.frames(), 1 + len(shown))]
        assert np.array_equal(np.stack(again[1:]), shown)
        client.send(upload(UPLOAD_REPLAY, b"not one"))
        with pytest.raises(ConnectionError, match="not a whole replay file"):
            client.message("never")


def test_the_end_of_a_replay_pauses(world, serving) -> None:
    with serving(world) as (address, _), Client(address, fast(window=4)) as client:
        list(islice(client.frames(), 9))
        client.send(Save())
        data = get(address + client.message("file")["url"])
        chunks = len(read_replay(world, data).deeds)
        client.send(upload(UPLOAD_REPLAY, data))
        assert client.message("started")["source"] == "replay"
        count = 0
        while not isinstance(received := client.receive(), dict) or received["type"] != "paused":
            count += isinstance(received, Frame)
        assert "yours to drive" in received["reason"]
        client.send(Pause(on=False))
        count += sum(1 for _ in islice(client.frames(), 1 + 4 * chunks + 4 - count))
        assert count == 1 + 4 * chunks + 4


def test_a_long_stream_refuses_to_be_a_replay(world, serving) -> None:
    with serving(world, Limits(replay=2)) as (address, _), Client(address, fast()) as client:
        list(islice(client.frames(), 16))
        client.send(Save())
        with pytest.raises(ConnectionError, match="longer than the 2 chunks"):
            client.message("file")


@pytest.mark.needs("h264")
def test_a_recording_is_a_video_of_what_was_shown(painted, serving) -> None:
    with serving(painted) as (address, _), Client(address, fast(paused=True)) as client:
        client.hold(turn=8.0)
        client.send(Record(on=True))
        client.send(Pause(on=False))
        seen = list(islice(client.frames(), 21))
        client.send(Record(on=False))
        file = client.message("file")
        assert (file["kind"], file["name"]) == ("video", "dream-0.mp4")
        with av.open(io.BytesIO(get(address + file["url"]))) as video:
            stream = video.streams.video[0]
            pictures = [frame.to_ndarray(format="rgb24") for frame in video.decode(stream)]
            assert stream.average_rate == 24
    assert len(pictures) % 4 == 0
    assert len(pictures) >= len(seen) - 1
    assert pictures[0].shape == (256, 256, 3)
    assert np.abs(pictures[8][128, 128].astype(int) - (255, 128, 128)).max() < 12


@pytest.mark.needs("h264")
def test_recordings_end_at_their_limit(painted, serving) -> None:
    with serving(painted, Limits(video=8)) as (address, _), Client(address, fast()) as client:
        client.send(Record(on=False))
        with pytest.raises(ConnectionError, match="no recording is running"):
            client.message("file")
        client.send(Record(on=True))
        client.send(Record(on=True))
        with pytest.raises(ConnectionError, match="a recording is running"):
            client.message("file")
        file = client.message("file")
        with av.open(io.BytesIO(get(address + file["url"]))) as video:
            assert sum(1 for _ in video.decode(video=0)) == 8


def test_an_uploaded_picture_begins_a_dream(painted, serving) -> None:
    picture = np.zeros((64, 96, 3), np.uint8)
    picture[:, 16:80] = (200, 100, 50)
    out = io.BytesIO()
    Image.fromarray(picture).save(out, "PNG")
    with serving(painted) as (address, _), Client(address, fast()) as client:
        client.send(upload(UPLOAD_PICTURE, out.getvalue()))
        started = client.message("started")
        started = client.message("started") if started["source"] == "start" else started
        assert (started["source"], started["context"]) == ("picture", 4)
        frame = next(f for f in client.frames() if f.header.stream == started["stream"])
        assert (frame.picture == (200, 100, 50)).all()
        client.send(upload(UPLOAD_PICTURE, b"no picture"))
        with pytest.raises(ConnectionError, match="not a picture"):
            client.message("never")
        assert next(client.frames()).header.stream == started["stream"]


# -- the world outside -------------------------------------------------------------------------------------------------


class Counter:
    """A simulator whose pictures count its steps and show its last turn."""

    closed = 0

    def __init__(self) -> None:
        self.steps = self.seed = 0

    def reset(self, seed: int) -> np.ndarray:
        self.steps, self.seed = 0, seed
        return self.picture(0.0)

    def picture(self, turn: float) -> np.ndarray:
        return np.full((32, 32, 3), (self.steps, round(100 + 10 * turn), self.seed), np.uint8)

    def step(self, actions: np.ndarray) -> np.ndarray:
        assert actions.shape == (1, 3)
        if self.seed == 13:
            raise RuntimeError("the wheels came off")
        self.steps += 1
        return self.picture(float(actions[0, 0]))[None]

    def close(self) -> None:
        Counter.closed += 1


def test_the_real_world_runs_beside_under_the_same_keys(painted, serving) -> None:
    Counter.closed = 0
    with serving(painted, real=Counter) as (address, _):
        with Client(address, fast(seed=3)) as client:
            assert client.message("welcome")["real"]
            client.send(Restart(source="real"))
            with pytest.raises(ConnectionError, match="switch it on first"):
                client.message("never")
            client.send(Real(on=True))
            while (started := client.message("started"))["source"] != "real":
                pass
            seq = client.hold(turn=4.0)
            dreamt, real = {}, {}
            while len(real) < 40 or len(dreamt) < 40:
                frame = next(client.frames())
                (real if frame.header.flags & REAL else dreamt)[frame.header.index] = frame
            assert started["seed"] == 3
            assert (dreamt[0].picture == real[0].picture).all()  # the dream begins where the simulator stands
            assert real[0].picture[0, 0].tolist() == [7, 100, 3]  # eight pictures of doing nothing
            both = sorted((real.keys() & dreamt.keys()) - {0})  # on a busy machine a picture may be dropped
            assert len(both) >= 20
            for i in both:
                assert real[i].header.pts == dreamt[i].header.pts
                assert real[i].picture[0, 0, 0] == 7 + i
                turned = real[i].header.input == seq
                assert real[i].picture[0, 0, 1] == (140 if turned else 100)
                assert abs(int(dreamt[i].picture[0, 0, 0]) - (191 if turned else 128)) <= 1
            client.send(Restart(source="real", seed=21))
            assert client.message("started")["seed"] == 21
            first = next(f for f in client.frames() if f.header.flags & REAL and f.header.index == 0)
            assert first.picture[0, 0].tolist() == [7, 100, 21]
            client.send(Reset())
            client.message("started")
            again = next(f for f in client.frames() if f.header.flags & REAL and f.header.index == 0)
            assert again.picture[0, 0].tolist() == [7, 100, 21]
            client.send(Real(on=False))
            client.send(Settings(quality=7))
            client.message("stats")
            assert not any(f.header.flags & REAL for f in islice(client.frames(), 40))
        wait_for(lambda: Counter.closed == 1, "the simulator is closed with its session")


def test_a_broken_simulator_leaves_the_dream_alone(painted, serving) -> None:
    with serving(painted, real=Counter) as (address, _), Client(address, fast(seed=13)) as client:
        client.send(Real(on=True))
        with pytest.raises(ConnectionError, match="the real world stopped: the wheels came off"):
            client.message("never")
        assert len(list(islice(client.frames(), 20))) == 20
        client.send(Real(on=True))
        with pytest.raises(ConnectionError, match="the wheels came off"):
            client.message("never")


def test_without_a_simulator(painted, serving) -> None:
    with serving(painted) as (address, _), Client(address, fast()) as client:
        client.send(Real(on=True))
        with pytest.raises(ConnectionError, match="no simulator of this world is installed"):
            client.message("never")


class Film:
    """Recordings of larger pictures whose grey is the number of the frame."""

    frames = 50

    def picture(self, frame: int) -> np.ndarray:
        return np.full((40, 60, 3), frame, np.uint8)

    def footage(self, frame: int, latents: int) -> Footage:
        pixels = np.stack([self.picture(max(0, frame - i)) for i in reversed(range(latents))])
        return Footage(pixels, np.zeros((latents - 1, 3), np.float32))


def test_any_recorded_frame_is_a_beginning(painted, serving) -> None:
    with serving(painted, recordings=Film()) as (address, _), Client(address, fast()) as client:
        assert client.message("welcome")["frames"] == 50
        client.message("started")
        client.send(Restart(source="frame", index=33))
        assert client.message("started") == {
            "type": "started", "stream": 2, "source": "frame", "index": 33, "seed": 0, "context": 8
        }  # fmt: skip
        assert (next(client.frames()).picture == 33).all()
        client.send(Restart(source="frame", index=50))
        with pytest.raises(ConnectionError, match="50 recorded frames, number 50"):
            client.message("never")
        assert Image.open(io.BytesIO(get(address + "api/frames/7.jpg"))).size == (32, 32)
        assert Image.open(io.BytesIO(get(address + "api/starts/2.jpg"))).size == (32, 32)
        for path in (
            "api/starts/3.jpg",
            "api/starts/-1.jpg",
            "api/starts/-9.jpg",
            "api/starts/1e3.jpg",
            f"api/starts/{'9' * 5000}.jpg",
            "api/frames/50.jpg",
            "api/frames/-1.jpg",
            "api/files/nothing",
            "page/other.js",
            "page/..%2fserver.py",
        ):
            with pytest.raises(HTTPError, match="404"):
                get(address + path)


# -- slow, gone, too many ----------------------------------------------------------------------------------------------


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


def test_a_client_that_reads_nothing_is_bounded(painted, serving) -> None:
    """No window: the operating system's buffers fill, then the session waits."""
    with serving(painted) as (address, studio):
        raw = socket.create_connection(("127.0.0.1", int(address.split(":")[2].strip("/"))))
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        key = "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n"
        raw.sendall(
            f"GET /ws HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n{key}\r\n".encode()
        )
        assert raw.recv(4096).startswith(b"HTTP/1.1 101")
        hello = b'{"type":"hello","version":1,"codec":"raw","policy":"block","pace":0}'
        raw.sendall(bytes([0x81, 0x80 | len(hello), 0, 0, 0, 0]) + hello)
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


def test_a_vanished_client_leaves_nothing_behind(painted, serving) -> None:
    with serving(painted) as (address, studio), Client(address, fast()) as other:
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


# -- broken things -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("messages", "text"),
    [
        (["garbage"], "not a JSON message"),
        ([b"\x00\xff\x00"], "the first message must be a hello"),
        (['{"type": "pause", "on": true}'], "the first message must be a hello"),
        (['{"type": "hello", "version": 2}'], "speaks protocol version 1, not 2"),
        (['{"type": "hello", "version": 1, "start": 9}'], "3 beginnings, number 9"),
        (['{"type": "hello", "version": 1, "' + "ü" * 400 + '": 1}'], "unknown key 'ü"),
        (['{"type": "hello", "version": 1, "a\\nb\\ud800": 1}'], "unknown key 'a b\\ud800'"),
        ([HELLO, HELLO], "hello is the first message and comes once"),
        ([HELLO, "[" * 9000], "not a JSON message"),
        ([HELLO, "x" * 20_000], "over the limit of 16384"),
        ([HELLO, b"\x02\x01\x00\x00" + bytes(9_000_000)], "over the limit of 8388608"),
        ([HELLO, b"\x07garbage"], "kind 7"),
        ([HELLO, b"\x02\x09\x00\x00x"], "version 9"),
        (
            [HELLO, '{"type": "input", "seq": 2, "action": {}}', '{"type": "input", "seq": 2, "action": {}}'],
            "2 after 2",
        ),
        ([HELLO, '{"type": "input", "seq": 1, "action": {"fly": 1}}'], "no action 'fly'"),
        ([HELLO, '{"type": "ack", "pts": 99999999}'], "no picture of pts 99999999"),
        ([HELLO, *['{"type": "bookmark"}'] * 400], "requests at once"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_broken_messages_get_one_line_and_the_server_goes_on(standing, messages: list, text: str) -> None:
    address, studio = standing
    line, code = last_words(address, *messages)
    assert text in line
    assert "\n" not in line
    assert code == 4400
    wait_for(lambda: not studio.sessions, "the session is closed")
    with Client(address, fast()) as client:
        assert len(list(islice(client.frames(), 9))) == 9
    wait_for(lambda: not studio.sessions, "the good one has left, too")


def test_what_the_websocket_layer_refuses_harms_nobody(world, serving) -> None:
    with serving(world) as (address, studio):
        port = int(address.split(":")[2].strip("/"))
        for garbage in (b"\x00" * 64, b"GET /ws HTTP/1.1\r\n\r\n", b"\xff" * 5000):
            with socket.create_connection(("127.0.0.1", port)) as raw:
                raw.sendall(garbage)
        _, code = last_words(address, HELLO, bytes(server.MAX_MESSAGE + 1))
        assert code in (1009, 1006)  # said, or cut while it was still talking
        with Client(address, fast()) as client:
            assert len(list(islice(client.frames(), 9))) == 9
        wait_for(lambda: not studio.sessions, "all are gone")


def test_broken_values_are_held_and_counted(painted, serving) -> None:
    painted.dit.glitches = frozenset((16,))
    with serving(painted) as (address, _), Client(address, fast(window=4)) as client:
        frames = list(islice(client.frames(), 21))
        assert [bool(f.header.flags & HELD) for f in frames] == [False] * 9 + [True] * 4 + [False] * 8
        assert all(np.array_equal(f.picture, frames[8].picture) for f in frames[9:13])
        assert client.message("stats")["held"] >= 1


def test_a_broken_model_ends_its_session_with_a_line(painted, serving) -> None:
    with serving(painted) as (address, studio):
        painted.dit.broken = tuple(range(8, 4000))
        line, code = last_words(address, HELLO)
        assert "chunks in a row are not finite" in line
        assert code == 4500
        assert json.loads(get(address + "health"))["status"] == "ok"
        wait_for(lambda: not studio.sessions, "the session is closed")


def test_an_exception_in_one_session_spares_the_others(painted, serving, monkeypatch) -> None:
    right = painted.dit.velocity

    def wrong(x, t, prepared):
        if float(prepared[0].max()) > 1.2:
            raise RuntimeError("out of memory")
        return right(x, t, prepared)

    monkeypatch.setattr(painted.dit, "velocity", wrong, raising=False)
    with serving(painted) as (address, studio), Client(address, fast()) as good, Client(address, fast(window=0)) as bad:
        next(good.frames())
        bad.hold(turn=80.0)
        with pytest.raises(ConnectionError, match="the stream failed: out of memory"):
            bad.message("never")
        assert [f.header.stream for f in islice(good.frames(), 40)] == [1] * 40
        wait_for(lambda: len(studio.sessions) == 1, "the broken one is closed")


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"facts": {"format": "x"}}, "format 'x'"),
        ({"facts": {"seed": 10**30}}, "seed 1000"),
        ({"steps": torch.tensor(1)}, "should be"),
        ({"x": torch.zeros(2, 8, 4, 4, 4)}, "its opening has shape"),
        ({"x": torch.full((1, 8, 4, 4, 4), torch.nan)}, "'x' holds values"),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value),
)
def test_a_broken_replay_is_one_line_and_the_stream_goes_on(standing, change: dict, text: str) -> None:
    address, studio = standing
    facts = {"format": 1, "kind": "replay", "seed": 1, "weights": fingerprint(studio.world)}
    facts |= {"stream": to_json(studio.world.stream)} | change.get("facts", {})
    tensors = {"actions": torch.zeros(1, 4, 3), "steps": torch.zeros(1, dtype=torch.int64)}
    tensors |= {"x": torch.zeros(1, 8, 4, 4, 4), "action": torch.zeros(1, 8, 3)}
    tensors |= {"has_action": torch.ones(1, 8, dtype=torch.bool)}
    tensors |= {name: value for name, value in change.items() if name != "facts"}
    with Client(address, fast()) as client:
        client.send(upload(UPLOAD_REPLAY, save(tensors, {"replay": json.dumps(facts)})))
        with pytest.raises(ConnectionError, match=text):
            client.message("never")
        assert {frame.header.stream for frame in islice(client.frames(), 20)} == {1}
    wait_for(lambda: not studio.sessions, "it has left")


def test_whatever_a_reader_raises_is_one_line_and_the_stream_goes_on(standing, monkeypatch) -> None:
    def trip(*_: object) -> None:
        raise IndexError("too\nfar")

    monkeypatch.setattr("worldmodel.serve.studio.read_picture", trip)
    address, studio = standing
    with Client(address, fast()) as client:
        client.send(upload(UPLOAD_PICTURE, b"x"))
        with pytest.raises(ConnectionError, match="could not be handled: too far"):
            client.message("never")
        assert {frame.header.stream for frame in islice(client.frames(), 20)} == {1}
    wait_for(lambda: not studio.sessions, "it has left")


# -- a world that cannot run -------------------------------------------------------------------------------------------


def small_ring(world):
    return replace(world, stream=replace(world.stream, memory=WindowConfig(ring=2)))


def no_memory(world):
    world.dit.velocity = lambda *_: torch.empty(10**17)
    return world


def no_starts(world):
    return replace(world, starts=world.starts.select(torch.zeros(0, dtype=torch.int64)))


def broken_start(world):
    world.starts.x[1, 2, 0, 0, 0] = torch.nan
    return world


def broken_model(world):
    world.dit.broken = tuple(range(4000))
    return world


def no_time(world):
    return replace(world, fps=float("inf"))


@pytest.mark.parametrize(
    ("breaks", "text"),
    [
        (small_ring, "a chunk of 4 frames does not fit a ring of 2"),
        (no_memory, "its first chunk fails"),
        (no_starts, "its starts hold no frame"),
        (broken_start, "its starts: x of beginning 1 is not finite"),
        (broken_model, "chunks in a row are not finite"),
        (no_time, "its fps must be a finite number above 0"),
    ],
)
def test_a_world_that_cannot_run_is_refused_before_an_address_is_printed(painted, breaks, text: str, capsys) -> None:
    threads = threading.active_count()
    with pytest.raises(UserError, match=f"cannot be streamed.*{text}") as refused:
        server.serve(breaks(painted), port=0)
    assert "\n" not in str(refused.value)
    assert capsys.readouterr().out == ""
    assert threading.active_count() == threads


def test_when_the_engine_dies_everybody_is_told_and_the_server_ends(painted, serving, monkeypatch) -> None:
    with serving(painted) as (address, studio), ThreadPoolExecutor(2) as clients:
        ends = [clients.submit(last_words, address, HELLO) for _ in range(2)]
        wait_for(lambda: len(studio.sessions) == 2, "both have come")
        monkeypatch.setattr(studio.engine, "_next", lambda: 1 / 0)
        for end in ends:
            assert end.result() == ("the engine of this server has stopped: division by zero", 4500)
        wait_for(lambda: not studio.engine.alive, "it is not well")
        with pytest.raises(OSError):  # refused, reset, or cut
            for _ in range(500):
                get(address + "page/main.js")
                time.sleep(0.01)


@pytest.mark.parametrize("card", ["just text", None, {"title": 7, "loss": float("nan"), "of": [float("inf"), b"x"]}])
def test_a_strange_card_breaks_nothing(world, serving, card: object) -> None:
    with serving(replace(world, card=card)) as (address, _):
        info = json.loads(get(address + "api/info"), parse_constant=lambda name: pytest.fail(name))
        wanted = {"title": "7", "card": {"title": 7, "loss": "nan", "of": ["inf", "b'x'"]}}
        assert {k: info[k] for k in wanted} == (
            wanted if isinstance(card, dict) else {"title": "a learned world", "card": {}}
        )
        with Client(address, fast()) as client:
            assert client.message("welcome")["title"] == info["title"]


# -- who may connect ---------------------------------------------------------------------------------------------------


def test_token(world, serving) -> None:
    with serving(world, token="open-sesame") as (address, _):
        bare = address.split("?")[0]
        for path in ("api/info", "api/starts/0.jpg", "api/info?token=wrong", "api/info?token=open-sesam"):
            with pytest.raises(HTTPError, match="403"):
                get(bare + path)
        for wrong in ("ws", "ws?token=x", "ws?token="):
            with pytest.raises(InvalidStatus) as refused, connect("ws" + bare.removeprefix("http") + wrong):
                pass
            assert refused.value.response.status_code == 403
            assert b"needs its token" in refused.value.response.body
        assert json.loads(get(bare + "api/info?token=open-sesame"))["title"] == "noise"
        assert get(bare + "api/info", {"Authorization": "Bearer open-sesame"})
        assert get(bare) and get(bare + "page/main.js") and get(bare + "health")  # nothing secret in these
        with Client(address, fast()) as client:
            assert next(client.frames()).header.index == 0


@pytest.mark.parametrize(
    ("headers", "passes"),
    [
        ({}, True),
        ({"Origin": "{self}"}, True),
        ({"Origin": "http://evil.example"}, False),
        ({"Origin": "null"}, False),
        ({"Origin": "http://[broken"}, False),
        ({"Origin": "http://localhost:1"}, False),
        ({"Host": "evil.example"}, False),
        ({"Host": "evil.example", "Origin": "http://evil.example"}, False),
        ({"Host": "localhost"}, True),
        ({"Host": "[::1]:80"}, True),
        ({"Host": "127.0.0.1.evil.example"}, False),
    ],
)
def test_pages_of_others_are_kept_out(standing, headers: dict[str, str], passes: bool) -> None:
    address, _ = standing
    given = {name: value.format(self=address.rstrip("/")) for name, value in headers.items()}
    host = given.pop("Host", None)
    path = "ws" + address.removeprefix("http") + "ws"
    if host is None and passes:
        with connect(path, additional_headers=given):
            pass
    elif host is None:
        with pytest.raises(InvalidStatus), connect(path, additional_headers=given):
            pass
    for where in ("api/info", "", "health", "page/main.js"):
        request = Request(address + where, headers=given | ({"Host": host} if host else {}))
        if passes:
            assert urlopen(request, timeout=10).status == 200
        else:
            with pytest.raises(HTTPError, match="403"):
                urlopen(request, timeout=10)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.com"])
def test_other_addresses_need_a_token(world, host: str) -> None:
    with pytest.raises(UserError, match=rf"host {host}: everybody .* --token"):
        server.serve(world, host=host, port=0)


@pytest.mark.parametrize("token", ["short", "with blank in it", "ümlaut-token"])
def test_weak_tokens(world, token: str) -> None:
    with pytest.raises(UserError, match="token: "):
        server.serve(world, token=token, port=0)


def test_busy_port(world) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UserError, match=f"port {port} of 127.0.0.1 is busy"):
            server.serve(world, port=port)


def test_impossible_addresses(world) -> None:
    with pytest.raises(UserError, match="port 70000: no such port"):
        server.serve(world, port=70000)
    with pytest.raises(UserError, match=r"host 127\.9\.9\.9999, port 8000: no such address"):
        server.listen("127.9.9.9999", 8000)
    with pytest.raises(UserError, match=r"192\.0\.2\.1 cannot be used"):
        server.listen("192.0.2.1", 0)
    with pytest.raises(UserError, match="max-sessions: 0"):
        server.serve(world, max_sessions=0)


def test_health_and_info(world, serving) -> None:
    with serving(world) as (address, studio):
        assert json.loads(get(address + "health")) == {"status": "ok", "sessions": 0}
        info = json.loads(get(address + "api/info"))
        assert (info["fps"], info["width"], info["card"]) == (24, 16, {"title": "noise"})
        assert info["parameters"] == sum(p.numel() for p in world.dit.parameters())
        studio.engine.stop()
        with pytest.raises(HTTPError, match="503"):
            get(address + "health")


def test_measure_counts_what_arrives(world, serving) -> None:
    with serving(world) as (address, _):
        for result in measure(address, 0.5, clients=2, pace=0):
            assert result["frames_per_second"] > 0
            assert 0 < result["chunk_latency_p50"] <= result["chunk_latency_p95"] <= result["chunk_latency_p99"]
            assert result["out_of_order"] == 0


def test_client_says_when_nobody_answers() -> None:
    with pytest.raises(UserError, match="no stream answers there"):
        Client("http://127.0.0.1:9/")


def test_threads_of_the_engine_are_its_own(world, serving) -> None:
    before = torch.get_num_threads()
    with serving(world):
        assert torch.get_num_threads() == before


def test_input_numbers_reach_the_pictures(painted, serving) -> None:
    with serving(painted) as (address, _), Client(address, fast(window=4)) as client:
        client.send(Input(seq=100, action={"turn": 1.0}))
        assert next(f for f in client.frames() if f.header.input).header.input == 100


PROGRAM = """
import sys, threading
from worldmodel.models.world import WorldModel
from worldmodel.serve import engine, serve

if sys.argv[2:] == ["dies"]:
    threading.Timer(3, lambda: setattr(engine.Engine, "_next", lambda self: 1 / 0)).start()
sys.exit(serve(WorldModel.load(sys.argv[1]), port=0))
"""


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_serve_prints_its_address_and_ends_with_a_signal(world, tmp_path: Path, how: signal.Signals) -> None:
    world.save(tmp_path / "world")
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "world")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        line = process.stdout.readline()
        address = next(word for word in line.split() if word.startswith("http"))
        with Client(address, fast()) as client:
            assert len(list(islice(client.frames(), 9))) == 9
            process.send_signal(how)
            with pytest.raises(ConnectionClosed):
                client.message("never", timeout=30)
        assert process.wait(30) == 0
    finally:
        process.kill()


@pytest.mark.slow
def test_the_process_of_a_dead_engine_fails(world, tmp_path: Path) -> None:
    world.save(tmp_path / "world")
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "world"), "dies"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        address = next(word for word in process.stdout.readline().split() if word.startswith("http"))
        assert last_words(address, HELLO) == ("the engine of this server has stopped: division by zero", 4500)
        _, errors = process.communicate(timeout=30)
        assert process.returncode == 1
        assert errors.splitlines()[-1] == "the engine has stopped: division by zero"
    finally:
        process.kill()
