"""Streams beside a simulator, and from recorded frames."""

import io
from itertools import islice
from urllib.error import HTTPError

import numpy as np
import pytest
from PIL import Image
from talk import fast, get, wait_for

from worldmodel.serve.client import Client
from worldmodel.serve.protocol import (
    REAL,
    Real,
    Reset,
    Restart,
    Settings,
)
from worldmodel.serve.sources import Footage


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
            "type": "started", "stream": 2, "source": "frame", "index": 33, "seed": 0, "context": 8,
            "world": "world", "scripted": 0,
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
