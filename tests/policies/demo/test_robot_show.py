"""The robot on show: what viewers are told, what they may wish, and that nobody disturbs the robot."""

import asyncio
import contextlib
import json
import os
import signal
import threading
import time
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import numpy as np
import pytest
from tiny_show import Encoder, Stand, show
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from worldmodel.errors import UserError
from worldmodel.policies.demo.messages import Speed
from worldmodel.policies.demo.server import QUEUE, background, serve_show
from worldmodel.serve.outbox import Outbox
from worldmodel.serve.pictures import decode
from worldmodel.serve.protocol import VERSION, read_frame

BROKEN = "encoder-offset:0.05,0,0"


class Viewer:
    """A page, by hand."""

    def __init__(self, address: str, hello: str | bytes | None = None, fast: bool = True) -> None:
        parts, _, query = address.partition("?")
        self._open = contextlib.ExitStack()
        where = "ws" + parts.removeprefix("http") + "ws" + (f"?{query}" if query else "")
        self.socket = self._open.enter_context(connect(where, compression=None, close_timeout=1))
        self.socket.send(hello or json.dumps({"type": "hello", "version": VERSION}))
        if fast and hello is None:
            self.send("speed", times=0)

    def __enter__(self) -> "Viewer":
        return self

    def __exit__(self, *_) -> None:
        self._open.close()

    def send(self, kind: str, **fields) -> None:
        self.socket.send(json.dumps({"type": kind, **fields}))

    def message(self, kind: str, until=lambda message: True) -> dict:
        """The next message of a kind for which something holds."""
        for _ in range(100_000):
            received = self.socket.recv(20)
            if isinstance(received, str):
                message = json.loads(received)
                if message["type"] == kind and until(message):
                    return message
                assert kind == "error" or message["type"] != "error", message
        raise AssertionError(kind)

    def picture(self) -> tuple:
        while isinstance(received := self.socket.recv(20), str):
            pass
        header, payload = read_frame(received)
        return header, decode(payload, header.codec, header.width, header.height)

    def last_words(self) -> tuple[str, int]:
        line = ""
        try:
            while True:
                received = self.socket.recv(20)
                data = json.loads(received) if isinstance(received, str) else {}
                line = data["message"] if data.get("type") == "error" else line
        except ConnectionClosed as closed:
            return line, closed.rcvd.code if closed.rcvd else 1006


def counts(state: dict) -> dict:
    return {row["name"]: (row["successes"], row["trials"]) for row in state["table"]}


def until(condition, what: str) -> None:
    for _ in range(2000):
        if condition():
            return
        time.sleep(0.005)
    raise AssertionError(f"never: {what}")


def test_a_viewer_sees_the_robot_and_its_trials_are_counted():
    stand = Stand()
    with background(show(stand, seed=40)) as address, Viewer(address) as viewer:
        welcome = viewer.message("welcome")
        assert welcome == {"type": "welcome", "task": "reach", "horizon": 8, "trials": 2, "encoder": False, "fps": 80.0}
        header, pixels = viewer.picture()
        assert (header.width, header.height, header.index) == (32, 24, 0)
        np.testing.assert_allclose(pixels, np.full((24, 32, 3), (200, 100, 0)), atol=4)
        state = viewer.message("state", lambda s: counts(s)["as built"][1] == 3)
        assert counts(state)["as built"] == (3, 3)
        assert [(each["number"], each["steps"], each["success"]) for each in state["outcomes"]] == [
            (0, 3, True), (1, 3, True), (2, 3, True),
        ]  # fmt: skip
        low, high = state["table"][0]["interval"]
        assert high == 1.0 and low == pytest.approx(3 / (3 + 3.841459), abs=1e-5)  # Wilson's, of 3 of 3
        viewer.send("break", shift=BROKEN)
        state = viewer.message("state", lambda s: counts(s).get("broken", (0, 0))[1] == 2)
        assert counts(state)["broken"] == (0, 2) and state["outcomes"][-1]["steps"] == 8
    assert stand.begun[:3] == [("nominal", 40), ("nominal", 41), ("nominal", 42)]
    assert len(stand.threads) == 1 and stand.closed == 1  # opened, moved, drawn and closed in one thread
    assert threading.get_ident() not in stand.threads


def test_failed_trials_correct_the_next_ones_and_another_robot_is_not_known():
    encoder = Encoder()
    with background(show(Stand(lambda shift, known: False, encoder))) as address, Viewer(address) as viewer:
        assert viewer.message("welcome")["encoder"] is True
        viewer.send("correct", on=True)
        viewer.message("state", lambda s: len(s["outcomes"]) >= 7)
        viewer.send("pause", on=True)
        state = viewer.message("state", lambda s: s["paused"])
        told = [[each["after"], each["tokens"]] for each in state["outcomes"]]
        begins = next(i for i, each in enumerate(told) if each[0] == 1) - 1
        assert told[begins : begins + 6] == [[0, 0], [1, 1], [2, 2]] * 2
        assert encoder.told[:4] == [[1.0, 1.0], [1.5, 1.0], [8.0, 1.0], [12.0, 1.0]]  # means, of one round each
        viewer.send("break", shift=BROKEN)
        viewer.send("pause", on=False)
        state = viewer.message("state", lambda s: s["shift"] == BROKEN and s["trial"] is not None)
        assert (state["trial"]["after"], state["trial"]["tokens"], state["trial"]["shift"]) == (0, 0, BROKEN)


def test_a_wish_ends_the_trial_under_way_without_a_result():
    stand = Stand()
    stand.gate.clear()
    with background(show(stand)) as address, Viewer(address) as viewer:
        viewer.message("state", lambda s: s["trial"] is not None)
        until(lambda: stand.begun, "the robot is reset")  # shortly after the trial is told
        viewer.send("break", shift=BROKEN)
        viewer.send("break", shift="limp")
        viewer.message("error")  # so that the wish before it has arrived
        assert stand.begun == [("nominal", 0)] and not stand.steps
        stand.gate.set()
        state = viewer.message("state", lambda s: s["shift"] == BROKEN)
        assert state["outcomes"] == []
        state = viewer.message("state", lambda s: counts(s).get("broken", (0, 0))[1] == 1)
        assert counts(state)["as built"] == (0, 0) and stand.begun[:2] == [("nominal", 0), (BROKEN, 1)]
        viewer.send("clear")
        state = viewer.message("state", lambda s: not s["outcomes"])
        assert set(counts(state).values()) == {(0, 0)}


def test_two_viewers_see_the_same_robot_and_a_third_is_told_why_not():
    with background(show(Stand(), viewers=2)) as address, Viewer(address) as one, Viewer(address) as other:
        one.message("welcome")
        other.message("welcome")
        one.send("break", shift="gain:1.1")
        assert other.message("state", lambda s: s["shift"] == "gain:1.1")["table"][1]["name"] == "broken"
        with Viewer(address, fast=False) as third:
            line, code = third.last_words()
        assert code == 4429 and line.startswith("2 pages show this robot already")
        with urlopen(address + "health", timeout=10) as answer:
            assert json.load(answer) == {"status": "ok", "viewers": 2}


def test_the_robot_rests_while_nobody_watches_and_goes_on():
    stand = Stand()
    shown = show(stand)
    with background(shown) as address:
        with Viewer(address) as viewer:
            viewer.message("state", lambda s: len(s["outcomes"]) >= 2)
        until(lambda: shown.viewers == 0, "nobody watches")
        before = stand.steps
        time.sleep(0.2)
        assert stand.steps <= before + 1  # the step that was under way
        with Viewer(address) as viewer:
            state = viewer.message("state")  # what there is so far, at once
            assert len(state["outcomes"]) >= 2
            viewer.message("state", lambda s: s["outcomes"][-1]["number"] > state["outcomes"][-1]["number"])


def test_who_takes_nothing_does_not_slow_the_robot():
    stand = Stand()

    async def watch() -> Outbox:
        idle = Outbox(QUEUE, 0, lambda: None)
        shown.join(idle)
        await asyncio.to_thread(until, lambda: len(stand.begun) > 40, "forty trials")
        return idle

    shown = show(stand)
    shown.wish(Speed(times=0))
    with shown:
        idle = asyncio.run(watch())
    assert idle.waiting == QUEUE and idle.drops >= 1 and not idle.ended
    assert len(idle._messages) == 2  # the welcome, and the newest state


@pytest.mark.parametrize(
    ("messages", "said", "code"),
    [
        (["nonsense"], "not a JSON message", 4400),
        ([b"\x00\x01"], "first message must be a hello", 4400),
        ([None, b"\x00\x01"], "binary message", 4400),
        ([None, '{"type": "fly"}'], "type 'fly' is none of", 4400),
        (['{"type": "again"}'], "first message must be a hello", 4400),
        (['{"type": "hello", "version": 1}'], "protocol version 2", 4400),
        ([None, '{"type": "hello", "version": 2}'], "comes once", 4400),
        ([None, '{"type": "pause"}'], "'on' is missing", 4400),
        ([None, "[" * 100_000], "over the limit", 4400),
    ],
)
def test_what_breaks_the_protocol_ends_the_connection_with_a_line(standing, messages, said, code):
    with Viewer(standing, messages[0], fast=False) as viewer:
        for message in messages[1:]:
            viewer.socket.send(message)
        line, closed = viewer.last_words()
    assert said in line and "\n" not in line and closed == code


@pytest.fixture(scope="module")
def standing():
    """The address of a robot that tests leave as it was."""
    with background(show(Stand())) as address:
        yield address


def test_an_impossible_wish_is_answered_with_a_line_and_nothing_else_happens(standing):
    with Viewer(standing) as viewer:
        viewer.send("break", shift="encoder-offset:9,0,0")
        assert "[-0.5, 0.5] m" in viewer.message("error")["message"]
        viewer.send("break", shift="limp")
        assert "no shift 'limp'" in viewer.message("error")["message"]
        viewer.send("correct", on=True)
        error = viewer.message("error")
        assert error == {"type": "error", "message": error["message"], "fatal": False}
        assert "no context encoder" in error["message"]
        assert viewer.message("state", lambda s: s["trial"] is not None)["shift"] == "nominal"


def test_access_is_that_of_the_live_stream():
    with background(show(Stand()), token="a-long-secret") as address:
        bare = address.split("?")[0]
        with urlopen(bare, timeout=10) as page:
            assert b"page/robot.js" in page.read()
            assert "frame-ancestors 'none'" in page.headers["Content-Security-Policy"]
        for name in ("robot.js", "robot.css", "connection.js", "style.css", "icon.svg"):
            assert urlopen(f"{bare}page/{name}", timeout=10).status == 200
        for request in (Request(bare, headers={"Origin": "http://elsewhere"}), Request(bare + "page/nothing.js")):
            with pytest.raises(HTTPError) as refused:
                urlopen(request, timeout=10)
            assert refused.value.code in (403, 404)
        with pytest.raises(InvalidStatus) as refused:
            Viewer(bare)
        assert refused.value.response.status_code == 403 and b"needs its token" in refused.value.response.body
        with Viewer(address) as viewer:
            viewer.message("welcome")
    with pytest.raises(UserError, match="give --token"):
        serve_show(show(Stand()), "0.0.0.0", 0, None)


def test_when_the_robot_dies_everybody_is_told_and_the_server_ends():
    stand, ended = Stand(), threading.Event()
    shown = show(stand)
    shown.on_failure = ended.set
    with background(shown) as address, Viewer(address) as viewer:
        viewer.message("welcome")
        stand.fails = ValueError("a joint\nhas come off")
        line, code = viewer.last_words()
        assert line == "the robot has stopped: a joint has come off" and code == 4500
        assert ended.wait(20) and not shown.alive
        with pytest.raises(HTTPError) as ill:
            urlopen(address + "health", timeout=10)
        assert ill.value.code == 503
    assert stand.closed == 1


def test_a_robot_that_cannot_be_opened_is_refused_before_an_address_is_printed(capsys):
    shown = show(Stand(), task="juggle")
    with pytest.raises(UserError, match="does not know juggle"):
        serve_show(shown, "127.0.0.1", 0, None)
    assert capsys.readouterr().out == "" and not shown.alive


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_in_the_middle_of_a_trial(how, capsys):
    stand = Stand()
    shown = show(stand)
    seen = []

    def watch() -> None:
        until(lambda: "http" in "".join(seen) or seen.append(capsys.readouterr().out), "an address")
        address = next(word for word in "".join(filter(None, seen)).split() if word.startswith("http"))
        with Viewer(address, fast=False) as viewer:
            viewer.picture()
            os.kill(os.getpid(), how)
            seen.append(viewer.last_words()[1])

    thread = threading.Thread(target=watch)
    thread.start()
    assert serve_show(shown, "127.0.0.1", 0, None) == 0
    thread.join(20)
    assert seen[-1] in (1001, 1006, 1012) and stand.closed == 1 and not shown.alive
