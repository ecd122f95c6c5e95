"""The server itself: worlds that cannot run, who may connect, addresses, its end."""

import json
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import islice
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
import torch
from talk import HELLO, fast, get, last_words, wait_for
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from worldmodel.errors import UserError
from worldmodel.memory import WindowConfig
from worldmodel.serve import server
from worldmodel.serve.client import Client, measure


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
        (small_ring, "a ring of 2 frames does not hold one chunk of 4"),
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
