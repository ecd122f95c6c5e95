"""Messages: what goes through unchanged, and that whatever else arrives is refused before anything is built."""

import pickle

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from tiny_served import OpenPi, observation

from worldmodel.policies.serving.framing import DTYPES, MAX_CONTAINERS, FramingError, pack, unpack

NUMBERS = st.sampled_from(sorted(DTYPES)).flatmap(
    lambda name: arrays.arrays(np.dtype(name), arrays.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5))
)
PLAIN = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | st.text(max_size=9)


def same(a, b) -> bool:
    if isinstance(a, np.ndarray):
        assert b.dtype == a.dtype.newbyteorder("=")
        np.testing.assert_array_equal(a, b)
        return a.shape == b.shape
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and a == b


@given(st.dictionaries(st.text(max_size=9), st.recursive(PLAIN | NUMBERS, st.lists, max_leaves=6), max_size=6))
def test_a_message_comes_back_as_it_was(message):
    assert same(message, unpack(pack(message)))


def test_scalars_keep_their_type_and_both_sides_speak_what_openpi_speaks():
    scalars = {"a": np.float32(0.1), "b": np.int64(-5), "c": np.bool_(True)}
    got = unpack(pack(scalars))
    assert {key: (type(value), value) for key, value in got.items()} == {k: (type(v), v) for k, v in scalars.items()}
    seen = observation()
    assert same(seen, unpack(OpenPi.write(seen))) and same(seen, OpenPi.read(pack(seen)))


class Trap:
    def __reduce__(self):
        return (pytest.fail, ("unpickled",))


def array(**changes):
    return {b"__ndarray__": True, b"data": bytes(8), b"dtype": "<f4", b"shape": [2]} | changes


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (array(dtype="|O"), r"dtype '\|O' is refused"),
        (array(dtype="O", data=pickle.dumps(Trap())), "dtype 'O' is refused"),
        (array(dtype="f4,O"), "is refused"),
        (array(dtype="|V8"), "is refused"),
        (array(dtype="<M8[ns]"), "is refused"),
        (array(dtype="<c8"), "is refused"),
        (array(dtype="<U2"), "is refused"),
        (array(dtype=["<f4"]), "is refused"),
        (array(shape=[3]), r"shape \[3\] and float32 has 8 bytes"),
        (array(shape=[2**30, 2**30]), "has 8 bytes"),
        (array(shape=[-2]), "list of sizes"),
        (array(shape=[2.0]), "list of sizes"),
        (array(shape=[True, 2]), "list of sizes"),
        (array(shape=2), "list of sizes"),
        (array(shape=[1] * 9 + [2]), "10 dimensions"),
        (array(data="12345678"), "a str of data"),
        (array(kind=b"O"), "no array or number"),
        (array(__ndarray__=False), "no array or number"),
        ({b"__npgeneric__": True, b"data": 300, b"dtype": "|u1"}, "300 is no uint8"),
        ({b"__npgeneric__": True, b"data": [1], b"dtype": "<f4"}, "data is a list"),
        (msgpack.ExtType(5, b"abc"), "not msgpack|extension"),
        (msgpack.Timestamp(1), "not msgpack|extension"),
    ],
)
def test_what_is_no_array_of_numbers_is_refused(value, said):
    if isinstance(value, dict):
        value = {key if isinstance(key, bytes) else key.encode(): each for key, each in value.items()}
    with pytest.raises(FramingError, match=said):
        unpack(msgpack.packb({"observation.state": value}))


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "not msgpack"),
        (b"\xc1", "not msgpack"),
        (pickle.dumps({"a": 1}), "not msgpack"),
        (pack({"a": 1}) + b"\x00", "not msgpack"),
        (msgpack.packb({"a": bytes(100)})[:-1], "not msgpack"),
        (b"\xdf\xff\xff\xff\xff", "not msgpack"),  # a map of 4 billion entries
        (b"\x81" * 3000, "not msgpack"),
        (b"\x91" * 3000, "not msgpack"),
        (msgpack.packb([1, 2]), "a map, not list"),
        (msgpack.packb({b"a": 1}), "keys of a message are text"),
        (msgpack.packb({1: 1}), "not msgpack"),
        (msgpack.packb({"a": "\udce4"}, unicode_errors="surrogateescape"), "not msgpack"),
        (msgpack.packb({"a": [[]] * MAX_CONTAINERS}), "more than 512 maps and lists"),
        (msgpack.packb({"a": [0] * 5000}), "not msgpack"),
        (msgpack.packb(array()), "a map, not ndarray"),
    ],
)
def test_what_is_no_message_is_refused_in_one_line(data, said):
    with pytest.raises(FramingError, match=said) as error:
        unpack(data)
    assert "\n" not in str(error.value) and len(str(error.value)) < 300


@given(st.binary(max_size=200))
def test_any_bytes_are_a_message_or_refused(data):
    try:
        assert isinstance(unpack(data), dict)
    except FramingError as error:
        assert str(error)


@given(st.integers(0, 10**6), st.integers(0, 255))
def test_a_message_with_a_wrong_byte_is_a_message_or_refused(place, value):
    data = bytearray(pack(observation()))
    data[place % len(data)] = value
    try:
        got = unpack(bytes(data))
        assert isinstance(got, dict) and all(a.dtype.kind != "O" for a in got.values() if isinstance(a, np.ndarray))
    except FramingError as error:
        assert str(error)


@pytest.mark.parametrize("value", [np.array([None]), np.zeros(2, np.complex64), object(), {1, 2}, 2**70])
def test_what_could_not_be_read_is_not_sent(value):
    with pytest.raises(FramingError, match="this cannot be sent"):
        pack({"a": value})
