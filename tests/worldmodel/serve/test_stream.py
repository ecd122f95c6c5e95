"""The stream over its real socket, driven by the protocol client: pictures, keys, restarts."""

import threading
from itertools import islice

import numpy as np
import pytest
from talk import fast, get, wait_for

from worldmodel.kernels import backend
from worldmodel.serve.client import Client
from worldmodel.serve.protocol import (
    CONTEXT,
    Bookmark,
    Input,
    Pause,
    Reset,
    Restart,
    Save,
    Settings,
)
from worldmodel.serve.replay import play, read_replay


def test_pictures_come_numbered_timed_and_in_order(world, serving) -> None:
    with serving(world) as (address, _), Client(address, fast(start=2, seed=9)) as client:
        welcome = client.message("welcome")
        assert (welcome["width"], welcome["height"], welcome["chunk"], welcome["context"]) == (16, 16, 4, 8)
        assert (welcome["starts"], welcome["frames"], welcome["real"], welcome["steps"]) == (3, 0, False, 2)
        assert [binding["name"] for binding in welcome["controls"]] == ["turn", "forward", "strafe"]
        started = client.message("started")
        assert started == {
            "type": "started", "stream": 1, "source": "start", "index": 2, "seed": 9, "context": 8,
            "world": "world", "scripted": 0,
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


def test_stats_tell_the_backend_and_count_what_auto_passed_over(world, serving, monkeypatch) -> None:
    passed = {backend.Fallback("attention", "triton", "head size 24"): 7}
    monkeypatch.setattr(backend, "fallbacks", lambda: passed)
    with serving(world) as (address, _), Client(address, fast()) as client:
        stats = client.message("stats")
    told = "attention: the backend triton is not used: head size 24"
    assert stats["backend"] == "auto" and stats["fallbacks"] == {told: 7}


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


def test_input_numbers_reach_the_pictures(painted, serving) -> None:
    with serving(painted) as (address, _), Client(address, fast(window=4)) as client:
        client.send(Input(seq=100, action={"turn": 1.0}))
        assert next(f for f in client.frames() if f.header.input).header.input == 100
