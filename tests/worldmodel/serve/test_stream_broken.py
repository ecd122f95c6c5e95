"""Broken messages, files and models end in one line, and harm nobody else."""

import json
import socket
from itertools import islice

import numpy as np
import pytest
import torch
from safetensors.torch import save
from talk import HELLO, fast, get, last_words, wait_for

from worldmodel.fingerprint import fingerprint
from worldmodel.serial import to_json
from worldmodel.serve import server
from worldmodel.serve.client import Client
from worldmodel.serve.limits import Limits
from worldmodel.serve.protocol import (
    HELD,
    UPLOAD_PICTURE,
    UPLOAD_REPLAY,
    upload,
)


@pytest.mark.parametrize(
    ("messages", "text"),
    [
        (["garbage"], "not a JSON message"),
        ([b"\x00\xff\x00"], "the first message must be a hello"),
        (['{"type": "pause", "on": true}'], "the first message must be a hello"),
        (['{"type": "hello", "version": 3}'], "speaks protocol version 2, not 3"),
        (['{"type": "hello", "version": 2, "start": 9}'], "3 beginnings, number 9"),
        (['{"type": "hello", "version": 2, "' + "ü" * 400 + '": 1}'], "unknown key 'ü"),
        (['{"type": "hello", "version": 2, "a\\nb\\ud800": 1}'], "unknown key 'a b\\ud800'"),
        ([HELLO, HELLO], "hello is the first message and comes once"),
        ([HELLO, "[" * 9000], "not a JSON message"),
        ([HELLO, "x" * 20_000], "over the limit of 16384"),
        ([HELLO, b"\x02\x02\x00\x00" + bytes(9_000_000)], "over the limit of 8388608"),
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
    with serving(world, Limits(resume=0.1)) as (address, studio):
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
    facts = {"format": 1, "kind": "replay", "seed": 1, "weights": fingerprint(studio.world.dit, studio.world.tokenizer)}
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
