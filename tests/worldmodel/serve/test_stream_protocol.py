import json
import struct

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from worldmodel.serve import protocol as p

HEADERS = st.builds(
    p.FrameHeader,
    codec=st.sampled_from(p.Codec),
    flags=st.integers(0, 7),
    width=st.integers(0, 2**16 - 1),
    height=st.integers(0, 2**16 - 1),
    stream=st.integers(0, 2**32 - 1),
    input=st.integers(0, 2**32 - 1),
    index=st.integers(0, 2**64 - 1),
    pts=st.integers(0, 2**64 - 1),
    latency=st.integers(0, 2**32 - 1),
    place=st.integers(0, 2**16 - 1),
    size=st.integers(0, 2**16 - 1),
)
MESSAGES = [
    p.Hello(version=2, codec="webp", quality=1, policy="block", window=9, pace=12.5, steps=3, start=2, seed=5),
    p.Hello(version=2, world="base"),
    p.Input(seq=7, action={"turn": -3.5, "forward": 1}),
    p.Ack(pts=2**53 - 1),
    p.Pause(on=True),
    p.Restart(source="frame", index=12, seed=4),
    p.Reset(seed=None),
    p.Switch(world="base"),
    p.Takeover(),
    p.Settings(codec="raw", quality=100, policy="latest", pace=0.0, steps=0),
    p.Bookmark(),
    p.Record(on=False),
    p.Save(),
    p.Real(on=True),
]


def test_header_bytes_are_as_documented() -> None:
    header = p.FrameHeader(p.Codec.WEBP, 5, 0x1234, 2, 3, 4, 5, 6, 7, 8, 9)
    expected = bytes([1, 2, 2, 5, 0x34, 0x12, 2, 0]) + struct.pack("<II", 3, 4) + struct.pack("<QQ", 5, 6)
    assert header.pack() == expected + struct.pack("<IHH", 7, 8, 9)
    assert len(header.pack()) == p.HEADER_BYTES == 40


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(HEADERS, st.binary(max_size=64))
def test_picture_messages_round_trip(header: p.FrameHeader, payload: bytes) -> None:
    assert p.read_frame(header.pack() + payload) == (header, payload)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.binary(max_size=80))
def test_any_bytes_are_a_picture_or_an_error(data: bytes) -> None:
    try:
        header, payload = p.read_frame(data)
    except p.ProtocolError:
        return
    assert header.pack() + payload == data


@pytest.mark.parametrize(("place", "value", "text"), [(0, 9, "kind 9"), (1, 1, "version 1"), (2, 3, "codec 3")])
def test_foreign_picture_messages_are_refused(place: int, value: int, text: str) -> None:
    data = bytearray(p.FrameHeader(p.Codec.RAW, 0, 1, 1, 1, 0, 0, 0, 0, 0, 1).pack())
    data[place] = value
    with pytest.raises(p.ProtocolError, match=text):
        p.read_frame(bytes(data))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from([p.UPLOAD_PICTURE, p.UPLOAD_REPLAY]), st.binary(min_size=1, max_size=64))
def test_uploads_round_trip(kind: int, data: bytes) -> None:
    assert p.read_upload(p.upload(kind, data)) == (kind, data)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", "holds no upload"),
        (p.upload(2, b""), "holds no upload"),
        (b"\x01\x02\x00\x00x", "kind 1"),
        (b"\x02\x01\x00\x00x", "version 1"),
        (b"\x02\x02\x01\x00x", "kind 2"),
        (p.upload(2, bytes(p.MAX_UPLOAD)), "over the limit"),
    ],
)
def test_broken_uploads_are_refused(data: bytes, text: str) -> None:
    with pytest.raises(p.ProtocolError, match=text):
        p.read_upload(data)


@pytest.mark.parametrize("message", MESSAGES, ids=lambda m: type(m).__name__)
def test_messages_round_trip(message: p.ClientMessage) -> None:
    text = p.write_message(message)
    assert json.loads(text)["type"] == type(message).__name__.lower()
    assert p.read_message(text) == message


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "not a JSON message"),
        ("{", "not a JSON message"),
        ("[" * 9000, "not a JSON message"),
        ("[]", "a JSON object with"),
        ('{"type": 3}', "a JSON object with"),
        ('{"type": "hop"}', r"type 'hop' is none of \['hello', 'input', 'ack', .*'real'\]"),
        ('{"type": "HELLO", "version": 2}', "type 'HELLO' is none of"),
        ('{"type": "Hello", "version": 2}', "type 'Hello' is none of"),
        ('{"type": ""}', "type '' is none of"),
        ('{"type": "pause"}', "'on' is missing"),
        ('{"type": "pause", "on": 1}', "expected bool"),
        ('{"type": "pause", "on": true, "off": 1}', "unknown key 'off'"),
        ('{"type": "restart", "source": "moon"}', "moon"),
        ('{"type": "hello", "version": 3}', "version 2, not 3"),
        ('{"type": "hello", "version": 2, "quality": 0}', "quality 0 is outside"),
        ('{"type": "hello", "version": 2, "pace": -1}', "pace -1.0 is outside"),
        ('{"type": "hello", "version": 2, "pace": 1e-300}', r"hello: pace 1e-300 is outside \[0.1, 1000\] and not 0"),
        ('{"type": "settings", "pace": 0.09}', r"settings: pace 0.09 is outside \[0.1, 1000\] and not 0"),
        ('{"type": "settings", "pace": 1001}', "pace 1001.0 is outside"),
        ('{"type": "hello", "version": 2, "seed": 9007199254740992}', "seed"),
        ('{"type": "settings", "steps": 65}', "steps 65"),
        ('{"type": "settings", "pace": NaN}', "NaN"),
        ('{"type": "input", "seq": 0, "action": {}}', "seq 0"),
        ('{"type": "input", "seq": 1, "action": []}', "action is an object"),
        ('{"type": "input", "seq": 1, "action": {"turn": "x"}}', "'turn' is 'x'"),
        ('{"type": "input", "seq": 1, "action": {"turn": true}}', "'turn' is True"),
        ('{"type": "input", "seq": 1, "action": {"turn": 1e300}}', "'turn'"),
        ('{"type": "input", "seq": 1, "action": {"turn": Infinity}}', "Infinity"),
        ('"' + "é" * 9000 + '"', "over the limit"),
    ],
)
def test_broken_messages_are_refused(text: str, expected: str) -> None:
    with pytest.raises(p.ProtocolError, match=expected) as caught:
        p.read_message(text)
    assert "\n" not in str(caught.value)


def test_an_exception_in_words_is_one_line_without_addresses() -> None:
    assert p.in_words(ValueError(f"cannot use\n{object()!r}, sorry")) == "cannot use <object>, sorry"
    assert p.in_words(ValueError(f"{print!r} {p.in_words!r}")).startswith("<built-in function print> <function in_w")
    assert "0x" not in p.in_words(ValueError(repr([object(), p.in_words])))
    assert p.in_words(ValueError("flags 0x10")) == "flags 0x10"
    assert p.in_words(ValueError()) == "ValueError"


@pytest.mark.parametrize("pace", [0, 0.1, 24, 1000])
def test_paces(pace: float) -> None:
    message = p.read_message(json.dumps({"type": "settings", "pace": pace}))
    assert isinstance(message, p.Settings) and message.pace == pace


words = st.sampled_from(["", "raw", "jpeg", "block", "start", "real", "turn", "\x00é", "1"])
scalars = st.none() | st.booleans() | st.integers() | st.floats() | words
json_values = scalars | st.lists(scalars, max_size=3) | st.dictionaries(words, scalars, max_size=3)
fields = ["type", "version", "on", "seq", "action", "source", "index", "seed", "pts", "codec", "pace", "steps"]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.dictionaries(st.sampled_from(fields), json_values, max_size=4),
    st.sampled_from(["hello", "input", "ack", "pause", "restart", "reset", "settings", "save", "x", ""]),
)
def test_any_object_is_a_message_or_one_clear_line(data: dict, kind: str) -> None:
    try:
        message = p.read_message(json.dumps({"type": kind} | data))
    except p.ProtocolError as error:
        assert str(error)
    else:
        assert isinstance(message, p.ClientMessage)
