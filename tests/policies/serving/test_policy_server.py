"""The server: openpi's protocol, many clients, and every way in which one of them can misbehave."""

import asyncio
import contextlib
import importlib
import pickle
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tiny_served import CHUNK, Obedient, OpenPi, observation, tiny_policy
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from worldmodel import cli
from worldmodel.errors import UserError
from worldmodel.policies.serving import server as server_module
from worldmodel.policies.serving.client import PolicyClient, Refused
from worldmodel.policies.serving.framing import pack
from worldmodel.policies.serving.served import ServedPolicy
from worldmodel.policies.serving.server import Serving, background, largest

BAD = 4400


@pytest.fixture(scope="module")
def address():
    """Of a server that all tests share, so that what one of them does to it shows in the others."""
    with background(Obedient()) as address:
        yield address


def expected(seed: int, step: int) -> np.ndarray:
    steps = step + np.arange(CHUNK, dtype=np.float32)
    return np.stack([np.full(CHUNK, seed, np.float32), seed + steps], 1)


def test_openpi_protocol(address):
    client = OpenPi(address)
    assert client.metadata["actions"]["shape"] == [CHUNK, 2]
    for step in range(3):
        answer = client.ask(observation() | {"seed": 9, "step": step})
        np.testing.assert_array_equal(answer["actions"], expected(9, step))
        timing = answer["server_timing"]
        assert timing["infer_ms"] >= 0 and timing["wait_ms"] >= 0 and ("prev_total_ms" in timing) == (step > 0)
    client.socket.close()


@pytest.mark.needs("openpi_client")
def test_openpi_client_itself(address):
    WebsocketClientPolicy = importlib.import_module("openpi_client.websocket_client_policy").WebsocketClientPolicy

    client = WebsocketClientPolicy(address)
    assert client.get_server_metadata()["actions"]["names"] == ["target_x", "target_y"]
    np.testing.assert_array_equal(client.infer(observation() | {"seed": 3, "step": 2})["actions"], expected(3, 2))
    with pytest.raises(RuntimeError, match=r"missing: observation\.state"):
        client.infer({key: value for key, value in observation().items() if key != "observation.state"})
    assert client.infer(observation())["actions"].shape == (CHUNK, 2)


def test_a_connection_counts_its_requests_as_steps_of_the_noise(address):
    with PolicyClient(address) as client:
        for step in range(2):
            np.testing.assert_array_equal(client.infer(observation())["actions"], expected(0, step))


def test_a_wrong_observation_is_told_and_the_connection_goes_on(address):
    client = OpenPi(address)
    said = client.ask({"observation.state": np.zeros(2, np.float32), "gripper": 1})
    assert said.count(";") == 2 and all(
        part in said for part in ("missing: observation.images.front", "gripper", "(3)")
    )
    assert "\n" not in said and client.ask(observation())["actions"].shape == (CHUNK, 2)
    with PolicyClient(address) as own, pytest.raises(Refused, match="missing"):
        own.infer({})


@pytest.mark.parametrize(
    ("garbage", "reason"),
    [
        (b"\xc1", "not msgpack"),
        (b"", "not msgpack"),
        (pickle.dumps(observation()), "not msgpack"),
        ("hello", "binary message"),
        (pack(observation())[:-3], "not msgpack"),
        (pack(observation()).replace(b"<f4", b"|O8"), "dtype '|O8' is refused"),
    ],
)
def test_garbage_ends_the_connection_with_a_reason(address, garbage, reason):
    client = OpenPi(address)
    assert reason in client.ask(garbage)
    with pytest.raises(ConnectionClosed) as ended:
        client.socket.recv(10)
    assert ended.value.rcvd.code == BAD and reason in ended.value.rcvd.reason


def test_an_oversized_message_is_cut_off_before_it_is_read(address):
    """Its sender may find the line broken before it reads the reason: it is still sending."""
    limit = largest(Obedient())
    for fragments in (bytes(limit + 1), [bytes(limit // 2)] * 3):
        client = OpenPi(address)
        with pytest.raises(ConnectionClosed) as ended:
            client.socket.send(fragments)
            client.socket.recv(10)
        assert ended.value.rcvd is None or ended.value.rcvd.code == 1009
    announced = OpenPi(address)
    announced.socket.socket.sendall(b"\x82\xff" + (2**62).to_bytes(8) + bytes(4))  # a binary frame of 2**62 bytes
    with pytest.raises(ConnectionClosed) as ended:
        announced.socket.recv(10)
    assert ended.value.rcvd.code == 1009 and "exceeds limit" in ended.value.rcvd.reason
    with PolicyClient(address) as own:
        with pytest.raises(Refused, match=f"the server reads at most {limit}"):
            own.infer(observation() | {"prompt": "x" * limit})
        assert own.infer(observation())["actions"].shape == (CHUNK, 2)


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(frame=st.one_of(
    st.binary(max_size=64),
    st.text(max_size=20),
    st.dictionaries(st.text(max_size=20), st.integers() | st.binary(max_size=8) | st.none(), max_size=4).map(
        lambda message: OpenPi.write({k: v for k, v in message.items() if not isinstance(v, int) or abs(v) < 2**63})
    ),
    st.tuples(st.integers(0, 10**6), st.integers(0, 255)).map(lambda at: flipped(*at)),
))  # fmt: skip
def test_whatever_one_client_sends_the_next_is_served(address, frame):
    client = OpenPi(address)
    try:
        answer = client.ask(frame)
        assert isinstance(answer, str) or answer["actions"].shape == (CHUNK, 2)
    finally:
        client.socket.close()
    with PolicyClient(address) as other:
        np.testing.assert_array_equal(other.infer(observation() | {"seed": 4})["actions"], expected(4, 0))


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(opened=st.booleans(), data=st.binary(max_size=64) | st.sampled_from([
    b"\x82\xff" + bytes([255] * 12), b"\x8f\x80" + bytes(4), b"\xc2\x80" + bytes(4), b"\x00\x80" + bytes(4),
    b"\x82\x01\x80", b"\x88\x81" + bytes(5), b"GET / HTTP/1.1\r\n\r\n", b"GET / HTTP/9.9\r\nHost: " + bytes(20),
]))  # fmt: skip
def test_bytes_that_are_no_websocket_harm_nobody(address, opened, data):
    """Before and after the handshake: bad opcodes, bits, masks, lengths, requests."""
    if opened:
        client = OpenPi(address)
        client.socket.socket.sendall(data)
        with contextlib.suppress(OSError):  # the server may have closed it already
            client.socket.socket.shutdown(socket.SHUT_RDWR)
    else:
        with contextlib.closing(socket.create_connection(_place(address))) as bare:
            bare.sendall(data)
    with PolicyClient(address) as other:
        np.testing.assert_array_equal(other.infer(observation() | {"seed": 4})["actions"], expected(4, 0))


def flipped(place: int, value: int) -> bytes:
    data = bytearray(pack(observation()))
    data[place % len(data)] = value
    return bytes(data)


def test_eight_clients_with_a_slow_one_and_one_that_sends_garbage_get_their_own_answers():
    policy = tiny_policy()
    served = ServedPolicy(policy)
    with background(served) as address, ThreadPoolExecutor(8) as pool, contextlib.ExitStack() as opened:
        stop = threading.Event()

        def garbage():
            while not stop.is_set():
                with PolicyClient(address) as client, contextlib.suppress(ConnectionError, Refused):
                    client._socket.send(b"\xc1")
                    client.infer(observation())

        slow = opened.enter_context(contextlib.closing(socket.create_connection(_place(address))))
        slow.sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n")  # and nothing more
        sends = threading.Thread(target=garbage)
        sends.start()

        def robot(number: int):
            with PolicyClient(address) as client:
                asked = [observation(number) | {"seed": number, "step": step} for step in range(12)]
                return [client.infer(one)["actions"] for one in asked]

        answers = list(pool.map(robot, range(8)))
        stop.set()
        sends.join()
        with PolicyClient(address) as client:
            for number in range(8):
                for step in (0, 11):
                    alone = client.infer(observation(number) | {"seed": number, "step": step})["actions"]
                    np.testing.assert_array_equal(alone, answers[number][step])


def test_each_client_is_served_once_before_any_is_served_twice():
    served = Obedient()
    served.gate.clear()
    with background(served) as address, contextlib.ExitStack() as opened:
        clients = [opened.enter_context(PolicyClient(address)) for _ in range(4)]
        greedy = clients[0]
        for step in range(3):  # more than one at a time: they wait in the connection
            greedy._socket.send(pack(observation() | {"seed": 0, "step": step}))
        assert served.entered.acquire(timeout=10)
        for seed, client in enumerate(clients[1:], 1):
            client._socket.send(pack(observation() | {"seed": seed}))
            _until(lambda seed=seed: _waiting(served) >= seed, "in the line")
        served.gate.set()
        for client, count in zip(clients, (3, 1, 1, 1), strict=True):
            for _ in range(count):
                client._read()
    order = [seed for batch in served.batches for seed in batch]
    assert order[:4] == [0, 1, 2, 3] and order[4:] == [0, 0]


LINES: dict[int, object] = {}


@pytest.fixture(autouse=True)
def seen_lines(monkeypatch):
    """Makes the line of every served policy visible to the test."""

    class Seen(server_module.Line):
        def __init__(self, served, *args) -> None:
            super().__init__(served, *args)
            LINES[id(served)] = self

    monkeypatch.setattr(server_module, "Line", Seen)


def _waiting(served) -> int:
    return len(LINES[id(served)]._line)


def _place(address: str) -> tuple[str, int]:
    host, _, port = address.removeprefix("ws://").rstrip("/").rpartition(":")
    return host, int(port)


def _until(holds, what: str) -> None:
    end = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < end, f"never {what}"
        time.sleep(0.002)


def test_those_who_wait_share_a_batch():
    served = Obedient(together=True)
    served.gate.clear()
    with background(served, Serving(rows=3, patience=0.0)) as address, contextlib.ExitStack() as opened:
        clients = [opened.enter_context(PolicyClient(address)) for _ in range(6)]
        clients[0]._socket.send(pack(observation() | {"seed": 0}))
        assert served.entered.acquire(timeout=10)
        for seed, client in enumerate(clients[1:], 1):
            client._socket.send(pack(observation() | {"seed": seed}))
            _until(lambda seed=seed: _waiting(served) == seed, "in the line")
        served.gate.set()
        for seed, client in enumerate(clients):
            np.testing.assert_array_equal(client._read()["actions"], expected(seed, 0))
    assert served.batches == [[0], [1, 2, 3], [4, 5]]


def test_a_batch_does_not_wait_when_all_are_there_nor_for_ever():
    served = Obedient()
    with background(served, Serving(rows=2, patience=60.0)) as address:
        with PolicyClient(address) as one, PolicyClient(address) as two:
            for client in (one, two):
                client._socket.send(pack(observation()))
            assert all(client._read()["server_timing"]["rows"] == 2 for client in (one, two))
        _until(lambda: LINES[id(served)].clients == 0, "gone")
        with PolicyClient(address) as alone:
            assert alone.infer(observation())["server_timing"]["rows"] == 1
    with background(served, Serving(rows=2, patience=0.01)) as address, PolicyClient(address) as one:
        silent = PolicyClient(address)
        assert one.infer(observation())["server_timing"]["rows"] == 1
        silent.close()


def test_a_client_that_dies_gives_its_place_away_and_one_that_dies_at_its_turn_harms_nobody():
    served = Obedient()
    served.gate.clear()
    with background(served) as address, PolicyClient(address) as patient:
        dying, waiting = PolicyClient(address), PolicyClient(address)
        dying._socket.send(pack(observation() | {"seed": 1}))
        assert served.entered.acquire(timeout=10)  # its request is being computed
        waiting._socket.send(pack(observation() | {"seed": 2}))
        _until(lambda: _waiting(served) == 1, "in the line")
        for client in (dying, waiting):
            client._socket.socket.shutdown(socket.SHUT_RDWR)
        _until(lambda: LINES[id(served)].clients == 1, "gone")
        served.gate.set()
        np.testing.assert_array_equal(patient.infer(observation() | {"seed": 3})["actions"], expected(3, 0))
    assert served.batches == [[1], [3]]


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (RuntimeError("secret path"), "the policy failed (RuntimeError)"),
        (RuntimeError("CUDA out of memory"), "the server has run out of memory"),
        (UserError("not today"), "not today"),
    ],
)
def test_a_policy_that_fails_is_told_and_goes_on(error, said):
    served = Obedient(fails=error)
    with background(served) as address:
        client = OpenPi(address)
        assert client.ask(observation()) == said
        served.fails = None
        assert client.ask(observation())["actions"].shape == (CHUNK, 2)
        served.infer = lambda requests: [np.full((CHUNK, 2), np.nan, np.float32)]
        assert "not finite" in client.ask(observation())


def test_the_token_is_needed_and_openpi_sends_it_as_an_api_key():
    with background(Obedient(), token="long-enough") as address:
        bare, _, _ = address.partition("?")
        for header in ("Api-Key long-enough", "Bearer long-enough"):
            assert OpenPi(bare, {"Authorization": header}).metadata["fps"] == 20
        for headers in (None, {"Authorization": "Api-Key wrong"}, {"Authorization": "Basic long-enough"}):
            with pytest.raises(InvalidStatus) as refused:
                OpenPi(bare, headers)
            assert refused.value.response.status_code == 403
        with pytest.raises(UserError, match="needs its token"):
            PolicyClient(bare)
        for client in (PolicyClient(address), PolicyClient(bare, token="long-enough")):
            client.close()


def test_a_foreign_page_may_not_connect_and_no_more_than_so_many_clients_may(address):
    with pytest.raises(InvalidStatus) as refused:
        OpenPi(address, {"Origin": "http://elsewhere.example"})
    assert refused.value.response.status_code == 403
    with background(Obedient(), Serving(clients=1)) as small:
        with PolicyClient(small), pytest.raises(ConnectionError, match="1 clients are connected"):
            PolicyClient(small)
        _until(lambda: _connects(small), "free again")


def _connects(address: str) -> bool:
    try:
        PolicyClient(address).close()
    except ConnectionError:
        return False
    return True


def test_health(address):
    where = address.replace("ws", "http", 1) + "healthz"
    answer = httpx.get(where)
    assert (answer.status_code, answer.text) == (200, "OK\n")
    served = Obedient()
    with background(served) as other:
        LINES[id(served)].close()
        answer = httpx.get(other.replace("ws", "http", 1) + "healthz")
        assert answer.status_code == 503 and "stopped" in answer.text
        with PolicyClient(other) as client, pytest.raises(Refused, match="ending"):
            client.infer(observation())


def test_the_server_ends_while_clients_are_connected_and_one_waits():
    served = Obedient()
    served.gate.clear()
    with background(served) as address:
        idle, waiting = PolicyClient(address), PolicyClient(address)
        waiting._socket.send(pack(observation()))
        assert served.entered.acquire(timeout=10)
        threading.Timer(0.2, served.gate.set).start()
    assert not LINES[id(served)].alive
    with pytest.raises(ConnectionError, match="the policy server is gone"):
        idle.infer(observation())
    with pytest.raises((ConnectionClosed, Refused)):
        waiting._read()
    with pytest.raises(ConnectionError, match="no policy answers there"):
        PolicyClient(address)


@pytest.mark.parametrize(
    "bad", ["", "ws://", "ftp://127.0.0.1:8000", "ws://127.0.0.1:99999", "ws://127.0.0.1:0", "ws://[::1"]
)
def test_an_address_that_is_none(bad):
    with pytest.raises(UserError, match="an address is such as"):
        PolicyClient(bad)


def test_a_server_that_speaks_something_else_is_named():
    async def serve() -> None:
        async with asyncio.timeout(30):
            server = await asyncio.start_server(lambda r, w: (w.write(b"SSH-2.0\r\n"), w.close()), "127.0.0.1", 0)
            port = server.sockets[0].getsockname()[1]
            with pytest.raises(ConnectionError, match="no policy answers there"):
                await asyncio.to_thread(PolicyClient, f"ws://127.0.0.1:{port}")
            server.close()

    asyncio.run(serve())


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--port", "99999"], "no such port"),
        (["--host", "0.0.0.0"], "--token"),
        (["--max-clients", "0"], "--max-clients"),
        (["--patience-ms", "-1"], "--patience-ms"),
        (["--seed", "-1"], "--seed"),
    ],
)
def test_wrong_options_are_one_line(tmp_path, capsys, options, said):
    tiny_policy().save(tmp_path)
    assert cli.main(["serve-policy", str(tmp_path), *options]) == 2
    assert said in capsys.readouterr().err


def test_serve_sends_who_has_a_policy_to_serve_policy(tmp_path, capsys):
    tiny_policy().save(tmp_path)
    assert cli.main(["serve", str(tmp_path)]) == 2
    assert "a policy, not a world model; worldmodel serve-policy serves it" in capsys.readouterr().err


@pytest.mark.slow
def test_the_command_serves_a_folder_until_it_is_told_to_end(tmp_path):
    policy = tiny_policy()
    policy.save(tmp_path)
    command = [sys.executable, "-m", "worldmodel", "serve-policy", str(tmp_path), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        line = process.stdout.readline()
        address = line.split()[4]
        with PolicyClient(address) as client:
            got = client.infer(observation() | {"seed": 1, "step": 2})["actions"]
            process.send_signal(signal.SIGTERM)
            assert process.wait(20) == 0
    with background(ServedPolicy(policy)) as address, PolicyClient(address) as client:
        np.testing.assert_array_equal(got, client.infer(observation() | {"seed": 1, "step": 2})["actions"])


def test_a_slow_sender_keeps_nobody_waiting(address):
    """A message in small pieces is put together; between any two of them others are served."""
    data = pack(observation() | {"seed": 5})
    with connect(address, compression=None) as slow, PolicyClient(address) as other:
        slow.recv(10)

        def pieces():
            for start in range(0, len(data), 400):
                other.infer(observation())
                yield data[start : start + 400]

        slow.send(pieces())
        np.testing.assert_array_equal(OpenPi.read(slow.recv(10))["actions"], expected(5, 0))
