"""Live swapping over a real WebSocket: who may be swapped in, what leaves, what is dropped, and that all is freed."""

import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import numpy as np
import pytest
from live_client import HEIGHT, WIDTH, Client, live, middle, people, target
from painted import Detector, write
from small_swaps import small_swap
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from worldmodel.errors import UserError
from worldmodel.face.generator import CopyPaste
from worldmodel.face.live import swapping
from worldmodel.face.live.messages import shot
from worldmodel.face.live.server import background, serve_live
from worldmodel.face.sign import check_signed
from worldmodel.face.watermark import find
from worldmodel.serial import write_json
from worldmodel.serve.pictures import encode
from worldmodel.serve.protocol import REAL

pytestmark = pytest.mark.needs("signing")


@pytest.fixture(scope="module", autouse=True)
def key(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WORLDMODEL_KEY", str(tmp_path_factory.mktemp("key") / "key.pem"))
        yield


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return people(tmp_path / "people", "ann", "bob")


@pytest.fixture(scope="module")
def standing(key: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimpleNamespace]:
    """A server for tests that leave it as it was."""
    made = live(people(tmp_path_factory.mktemp("standing") / "people", "ann"))
    with background(made) as address:
        yield SimpleNamespace(address=address, live=made)


def until(condition: Callable[[], Any], what: str) -> None:
    for _ in range(2000):
        if condition():
            return
        time.sleep(0.005)
    raise AssertionError(f"never: {what}")


@dataclass(frozen=True)
class Gated(CopyPaste):
    """A generator that waits: every chunk needs a permit."""

    permits: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    begun: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))

    def generate(self, control, state):
        self.begun.release()
        assert self.permits.acquire(timeout=30)
        return super().generate(control, state)


def test_a_client_s_pictures_come_back_swapped_labelled_and_marked(folder: Path) -> None:
    with background(live(folder)) as address, Client(address) as client:
        welcome = client.message("welcome")
        assert [each["name"] for each in welcome["references"]] == ["ann", "bob"]
        assert [each["name"] for each in welcome["methods"]] == ["copy-paste", "poisson"]
        state = client.message("state")
        assert (state["method"], state["reference"], state["chunk"]) == ("copy-paste", "ann", 1)
        facts = check_signed(state["record"], "the record")
        assert facts["consent"]["person"] == "ann Person" and facts["method"] == "copy-paste"
        seen, tracks, ours = [], [], target()
        for i in range(12):
            number = client.send(ours)
            tracks = client.message("tracks", lambda said, i=i: said["index"] == i)["tracks"]
            header, picture = client.picture()
            assert (header.width, header.height, header.index) == (WIDTH, HEIGHT, i)
            assert (header.input, header.pts, header.flags) == (number, 40_000 * number, 0)
            seen.append(picture)
        assert middle(seen[-1])[2] > middle(ours)[2] + 80  # ann's blue patch, which is not the target's
        assert np.abs(seen[-1][:40, :60].astype(int) - ours[:40, :60]).max() <= 12  # the mark and JPEG alone
        assert seen[-1][-8:, :90].max() > 200 > ours[-8:, :90].max()  # the label
        found = find(seen)
        assert found.there and found.number == facts["watermark"] == int(facts["consent"]["reference_sha256"][:4], 16)
        ((track,),) = tracks
        (left, top), (right, below) = np.min(track["corners"], 0), np.max(track["corners"], 0)
        assert left < 115 < 185 < right and top < 55 < 125 < below and (track["name"], track["why"]) == (0, "")
        stats = client.message("stats", lambda said: said["pictures"] == 12)
        assert stats["received"] == 12 and stats["dropped"] == stats["not_sent"] == 0 and stats["swapped"] >= 8
        assert all(stats["stages"][name] > 0 for name in ("decode", "track", "generate", "paste", "mark", "encode"))
        assert 0 < stats["latency"]["p50"] <= stats["latency"]["p95"] <= stats["latency"]["p99"]
        assert stats["memory"] == {"references": 1, "newest": 0, "places": 0, "bytes": 0}


def test_methods_and_references_change_in_the_stream(folder: Path) -> None:
    with background(live(folder)) as address, Client(address) as client:
        ann, Detector.calls = target(), 0
        for _ in range(6):
            client.send(target())
            _, ann = client.picture()
        looked = Detector.calls
        client.say("change", reference="bob")
        state = client.message("state", lambda said: said["reference"] == "bob")
        assert check_signed(state["record"], "")["consent"]["person"] == "bob Person"
        client.send(target())
        header, bob = client.picture()
        assert header.stream == state["stream"] == 2
        assert middle(ann)[2] > middle(bob)[2] + 80
        assert Detector.calls == looked == 1  # the face was followed all along
        client.say("change", method="poisson")
        state = client.message("state", lambda said: said["method"] == "poisson")
        assert state["reference"] == "bob" and check_signed(state["record"], "")["method"] == "poisson"
        client.say("change", method="magic")
        assert "no method 'magic' here; there are copy-paste, poisson" in client.message("error")["message"]
        client.say("change", reference="../people/ann")
        assert "no reference '../people/ann' here; there are ann, bob" in client.message("error")["message"]
        client.send(target())
        assert client.picture()[0].stream == 3  # all of it goes on


def test_a_trained_swap_makes_chunks_and_says_what_it_remembers(folder: Path, tmp_path: Path) -> None:
    small_swap(size=64).save(tmp_path / "mine")
    with background(live(folder, methods=(str(tmp_path / "mine"),))) as address, Client(address) as client:
        for _ in range(3):
            sent = [client.send(target()) for _ in range(2)]
            seen = [client.picture()[0] for _ in range(2)]
            assert [(header.input, header.place, header.size) for header in seen] == [
                (sent[0], 0, 2), (sent[1], 1, 2),
            ]  # fmt: skip
        stats = client.message("stats", lambda said: said["pictures"] == 6)
        assert stats["memory"]["references"] == 1 and stats["memory"]["newest"] == stats["memory"]["places"] == 3
        assert stats["held"] == 0


HELLO = json.dumps({"type": "hello", "version": 2, "source": "client"})


@pytest.mark.parametrize(
    ("messages", "said"),
    [
        (['{"type": "hello", "version": 1, "source": "client"}'], "protocol version 2, not 1"),
        (['{"type": "hello", "version": 2, "source": "client", "reference": "eve"}'], "no reference 'eve' here"),
        (['{"type": "hello", "version": 2, "source": "client", "picture": "aGk="}'], "unknown key 'picture'"),
        (['{"type": "hello", "version": 2, "source": "server"}'], "no pictures of its own"),
        (['{"type": "hello", "version": 2, "source": "client", "quality": 5}'], "outside [50, 100]"),
        (['{"type": "change"}'], "the first message must be a hello"),
        ([HELLO, '{"type": "upload"}'], "type 'upload' is none of"),
        ([HELLO, HELLO], "comes once"),
        ([HELLO, b"\x02\x02\0\0a picture of somebody else"], "a client sends 4 (picture)"),
        ([HELLO, b"\x04"], "holds no picture"),
        ([HELLO, shot(1, 2**63, b"x")], "beyond every clock"),
    ],
)
def test_what_is_no_message_ends_the_connection_with_one_line(
    standing: SimpleNamespace, messages: list[str | bytes], said: str
) -> None:
    with Client(standing.address, greets=False) as client:
        for message in messages:
            client.socket.send(message)
        line, code = client.last_words()
    assert said in line and "\n" not in line and code == 4400
    until(lambda: standing.live.streams == 0, "the place is free")


def test_pictures_that_are_none_are_refused_and_the_stream_goes_on(standing: SimpleNamespace) -> None:
    with Client(standing.address) as client:
        big = np.zeros((1200, 2000, 3), np.uint8)
        client.send(big)
        assert "2000 x 1200 pixels" in client.message("error")["message"]
        client.socket.send(shot(2, 2, b"GIF89a nothing"))
        assert "no JPEG, PNG or WebP" in client.message("error")["message"]
        client.number = 5
        client.send(target())
        assert client.picture()[0].input == 6
        client.send(target(height=HEIGHT + 20))  # another size: another beginning, the same stream
        header, picture = client.picture()
        assert (header.height, header.stream) == (HEIGHT + 20, 1) and picture[-9:, :90].max() > 200


def test_pictures_on_which_the_marks_cannot_be_read_end_the_stream(standing: SimpleNamespace) -> None:
    with Client(standing.address) as client:
        client.send(np.zeros((40, 60, 3), np.uint8))
        line, code = client.last_words()
    assert "the label cannot be read in pictures of 60 x 40, nothing is streamed" in line and code == 4500
    assert not client.shown


def test_faster_than_it_swaps_pictures_are_dropped_evenly_and_counted(folder: Path) -> None:
    made = live(folder)
    gated = Gated(size=64, chunk=1)
    made.stock.methods["copy-paste"] = gated
    with background(made) as address, Client(address) as client:
        client.send(target())
        assert gated.begun.acquire(timeout=30)
        for _ in range(50):
            client.send(target())
        (stream,) = made._streams
        until(lambda: stream._intake.received == 51, "all have come")
        assert stream._intake.limit == 4 and stream._intake.dropped == 46
        gated.permits.release(10)
        assert [client.picture()[0].input for _ in range(2)] == [1, 51]  # the newest, as soon as there is time
        assert client.message("stats", lambda said: said["pictures"] == 2)["dropped"] == 49


def test_a_slow_client_does_not_slow_the_stream(folder: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 100, (HEIGHT, WIDTH, 3), np.uint8)
    noise[..., :2] //= 4
    made, data = live(folder), encode(noise, "jpeg", 100)

    def send() -> None:
        slow.send(shot(1, 0, data))
        time.sleep(0.005)

    with background(made) as address, socket.socket() as lazy:
        lazy.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        port = int(address.rstrip("/").rpartition(":")[2])
        lazy.connect(("127.0.0.1", port))
        with connect(f"ws://127.0.0.1:{port}/ws", sock=lazy, compression=None, max_queue=1, close_timeout=0.1) as slow:
            slow.send(HELLO.replace("}", ', "quality": 100}'))
            until(lambda: made._streams, "the stream has begun")
            (stream,) = made._streams
            until(lambda: stream._outbox.drops > 0 or send(), "the client is behind")
            behind, before = stream._outbox.drops, stream.numbers.pictures
            until(lambda: stream.numbers.pictures >= before + 8 or send(), "it goes on")
            assert stream._outbox.drops >= behind + 8 and stream._outbox.waiting <= 3


@pytest.mark.needs("h264")
def test_the_server_s_video_is_shown_beside_its_swap_again_and_again(folder: Path, tmp_path: Path) -> None:
    video = write(tmp_path / "talk.mp4", [target(140 + i) for i in range(8)])
    made = live(folder, source=str(video))
    with background(made) as address, Client(address, source="server") as client:
        assert client.message("welcome")["source"] == {"name": "talk.mp4", "live": False}
        times = []
        for _ in range(12):
            (real, before), (swapped, after) = client.picture(), client.picture()
            assert (real.flags, swapped.flags) == (REAL, 0) and real.pts == swapped.pts and real.index == swapped.index
            assert np.abs(before[:40, :60].astype(int) - after[:40, :60]).max() <= 20
            assert before[-8:, :90].max() < 200 < after[-8:, :90].max()
            times.append(real.pts)
        until(lambda: client.picture()[0].pts > 12 * 40_000, "the second round")
        assert all(b > a and (b - a) % 40_000 == 0 for a, b in pairwise(times))
        client.send(target())
        assert "this stream is of the server's source" in client.last_words()[0]


def test_closing_frees_everything_and_the_next_one_may_come(standing: SimpleNamespace) -> None:
    def threads() -> int:
        return sum(thread.name in ("swap", "feed") for thread in threading.enumerate())

    with Client(standing.address) as first:
        first.send(target())
        first.picture()
        assert threads() == 1
        (stream,) = standing.live._streams
        with Client(standing.address) as second:
            line, code = second.last_words()
        assert "1 stream runs already, which is all that this server takes" in line and code == 4429
        first.send(target())
        first.picture()  # who was there first is not disturbed
    until(lambda: threads() == 0 and standing.live.streams == 0, "the stream is gone")
    assert stream._state is None
    with Client(standing.address) as third:
        third.send(target())
        third.picture()


def test_a_camera_is_one_page_s_at_a_time(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    @dataclass
    class Camera:
        info: SimpleNamespace
        damaged: int = 0
        sounds: tuple = ()

        def __iter__(self):
            from worldmodel.face.reading import Picture

            for i in range(10_000):
                time.sleep(0.01)
                yield Picture(target(), 900 * i)

        def close(self) -> None:
            closed.append(self)

    from fractions import Fraction

    from worldmodel.face.live import live as module

    closed: list[Camera] = []
    info = SimpleNamespace(name="camera:0", live=True, time_base=Fraction(1, 90000), rate=Fraction(100))
    monkeypatch.setattr(module, "open_source", lambda target, rate: Camera(info))
    made = live(folder, source="camera:0", streams=2)
    assert len(closed) == 1  # it was looked at before anybody came
    with background(made) as address, Client(address, source="server") as first:
        first.picture()
        with Client(address, source="server") as second:
            assert second.last_words()[0].startswith("camera:0 is used by another page")
        with Client(address) as second:
            second.send(target())
            second.picture()  # with a picture of its own it may come
        first.socket.close()
        until(lambda: len(closed) == 2, "the camera is closed")
        with Client(address, source="server") as third:
            third.picture()


@pytest.mark.parametrize("how", ["gone", "altered", "of another picture", "picture altered"])
def test_consent_that_no_longer_stands_ends_the_stream(folder: Path, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    monkeypatch.setattr(swapping, "CONSENT", 0.05)
    consent, picture = folder / "ann.json", folder / "ann.png"
    with background(live(folder)) as address:
        with Client(address) as client:
            client.send(target())
            client.picture()
            if how == "gone":
                consent.unlink()
            elif how == "altered":
                write_json(json.loads(consent.read_text()) | {"statement": "No."}, consent)
            elif how == "of another picture":
                consent.write_bytes((folder / "bob.json").read_bytes())
            else:
                picture.write_bytes(picture.read_bytes() + b"\0")
            line, code = client.last_words()
            said = {"gone": "no such file", "altered": "in a sentence"}.get(how, "another picture")
            assert said in line and "ann" in line and code == 4500
        with Client(address) as client:
            assert said in client.last_words()[0]  # nobody gets this face any more
        with Client(address, reference="bob") as client:
            client.send(target())
            client.picture()


def test_a_reference_exchanged_with_its_consent_is_not_the_face_that_was_loaded(folder: Path) -> None:
    with background(live(folder)) as address:
        for end in ("png", "json"):
            (folder / f"ann.{end}").write_bytes((folder / f"bob.{end}").read_bytes())
        with Client(address) as client:
            line, _ = client.last_words()
            assert line.endswith("ann.png: is another picture than when this server was started")


def test_a_mark_that_cannot_be_drawn_lets_no_picture_out(standing: SimpleNamespace, monkeypatch) -> None:
    from worldmodel.face.live import marking

    with Client(standing.address) as client:
        client.send(target())
        client.picture()
        monkeypatch.setattr(marking, "draw_label", lambda picture: 1 / 0)
        client.send(target())
        line, code = client.last_words()
        assert "the stream has failed: division by zero" in line and code == 4500 and not client.shown


def test_access_is_that_of_the_live_stream(folder: Path) -> None:
    made = live(folder)
    with background(made, token="a-long-secret") as address:
        bare = address.split("?")[0]
        with urlopen(bare, timeout=10) as page:
            assert b"page/swap.js" in page.read()
            policy = page.headers["Content-Security-Policy"]
            assert "frame-ancestors 'none'" in policy and "media-src 'self' blob:" in policy
        for name in ("swap.js", "camera.js", "numbers.js", "swap.css", "player.js", "style.css"):
            assert urlopen(f"{bare}page/{name}", timeout=10).status == 200
        for place in ("api/info", "api/references/ann.jpg"):
            assert urlopen(f"{bare}{place}?token=a-long-secret", timeout=10).status == 200
        for request in (
            Request(bare, headers={"Origin": "http://elsewhere"}), f"{bare}page/nothing.js", f"{bare}api/info",
            f"{bare}api/references/ann.jpg", f"{bare}api/references/eve.jpg?token=a-long-secret",
        ):  # fmt: skip
            with pytest.raises(HTTPError) as refused:
                urlopen(request, timeout=10)
            assert refused.value.code in (403, 404)
        with pytest.raises(InvalidStatus) as denied:
            Client(bare)
        assert denied.value.response.status_code == 403 and b"needs its token" in denied.value.response.body
        with Client(address) as client:
            client.send(target())
            client.picture()
    with pytest.raises(UserError, match="give --token"):
        serve_live(made, "0.0.0.0", 0, None)


def test_ctrl_c_ends_it_in_the_middle_of_a_stream(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import signal

    made, seen = live(folder), []

    def watch() -> None:
        until(lambda: "http" in "".join(seen) or seen.append(capsys.readouterr().out), "an address")
        address = next(word for word in "".join(filter(None, seen)).split() if word.startswith("http"))
        with Client(address) as client:
            client.send(target())
            client.picture()
            os.kill(os.getpid(), signal.SIGINT)
            seen.append(client.last_words()[1])

    thread = threading.Thread(target=watch)
    thread.start()
    assert serve_live(made, "127.0.0.1", 0, None) == 0
    thread.join(20)
    assert seen[-1] in (1001, 1006, 1012) and made.streams == 0
