"""Configuration values survive JSON; what does not fit is named by its place."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from worldmodel.errors import UserError
from worldmodel.serial import check_format, from_json, read_json, to_json, write_json


@dataclass(frozen=True)
class Small:
    n: int = 1

    def __post_init__(self):
        if self.n < 0:
            raise UserError(f"n must not be negative, not {self.n}")

    @property
    def double(self):
        return 2 * self.n


@dataclass(frozen=True)
class Other:
    x: float = 0.5


@dataclass(frozen=True)
class Whole:
    name: str
    size: tuple[int, int]
    rates: tuple[float, ...] = ()
    kind: Literal["a", "b"] = "a"
    path: Path = Path("x")
    either: Small | Other = field(default_factory=Small)
    maybe: Small | None = None
    number: int | None = None
    nested: tuple[Small, ...] = ()
    flag: bool = False
    free: dict = field(default_factory=dict)


numbers = st.integers(-(2**53), 2**53)
smalls = st.builds(Small, st.integers(0, 9))
wholes = st.builds(
    Whole,
    name=st.text(),
    size=st.tuples(numbers, numbers),
    rates=st.lists(st.floats(allow_nan=False, allow_infinity=False), max_size=3).map(tuple),
    kind=st.sampled_from(["a", "b"]),
    path=st.just(Path("a/b")),
    either=st.one_of(smalls, st.builds(Other, st.floats(allow_nan=False, allow_infinity=False))),
    maybe=st.one_of(st.none(), smalls),
    number=st.one_of(st.none(), numbers),
    nested=st.lists(smalls, max_size=3).map(tuple),
    flag=st.booleans(),
)


@given(wholes)
@settings(deadline=None)
def test_there_and_back(value):
    assert from_json(json.loads(json.dumps(to_json(value))), Whole, "here") == value


GOOD = {"name": "n", "size": [1, 2]}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"extra": 1}, r"here: unknown key 'extra'; Whole knows \['either', 'flag'"),
        ({"name": None}, "here.name: expected str, found None"),
        ({"size": [1]}, "here.size: expected 2 values, found 1"),
        ({"size": [1, 2, 3]}, "here.size: expected 2 values, found 3"),
        ({"size": 3}, "here.size: expected a list, found int"),
        ({"size": [1, "2"]}, r"here.size\[1\]: expected int, found '2'"),
        ({"size": [1, True]}, r"here.size\[1\]: expected int, found True"),
        ({"size": [1, 2.5]}, r"here.size\[1\]: expected int, found 2.5"),
        ({"rates": [1, "x"]}, r"here.rates\[1\]: expected float, found 'x'"),
        ({"rates": [float("inf")]}, r"here.rates\[0\]: expected a finite number, found inf"),
        ({"rates": [10**400]}, r"here.rates\[0\]: expected a finite number, found a number of more than 30 digits"),
        ({"kind": "c"}, r"here.kind: 'c' is none of \['a', 'b'\]"),
        ({"either": {"n": 1}}, r"here.either: type None is none of \['Small', 'Other'\]"),
        ({"either": {"type": "Whole"}}, r"here.either: type 'Whole' is none of"),
        ({"either": 4}, "here.either: expected an object, found int"),
        ({"maybe": {"n": "x"}}, "here.maybe.n: expected int, found 'x'"),
        ({"number": "x"}, "here.number: expected int, found 'x'"),
        ({"nested": [{}, {"m": 1}]}, r"here.nested\[1\]: unknown key 'm'"),
        ({"flag": 1}, "here.flag: expected bool, found 1"),
        ({"path": 3}, "here.path: expected str, found 3"),
        ({"maybe": {"n": -1}}, "here.maybe: n must not be negative, not -1"),
        ({"type": "Small"}, "here: type 'Small' is none of"),
    ],
)
def test_what_does_not_fit_is_named(change, message):
    with pytest.raises(UserError, match=message):
        from_json(GOOD | change, Whole, "here")


def test_missing_and_derived_keys():
    with pytest.raises(UserError, match="here: key 'size' is missing"):
        from_json({"name": "n"}, Whole, "here")
    with pytest.raises(UserError, match="here: expected an object, found list"):
        from_json([], Whole, "here")
    assert from_json(GOOD, Whole, "here") == Whole("n", (1, 2))
    assert from_json({"n": 3, "double": 7}, Small, "here") == Small(3)  # what follows from the others is not read
    assert from_json(GOOD | {"rates": [1, 2]}, Whole, "here").rates == (1.0, 2.0)


def test_to_json_says_what_has_no_place():
    with pytest.raises(TypeError, match="object has no place in a JSON configuration"):
        to_json(Whole("n", (1, 2), free={"a": object()}))
    assert to_json(Other()) == {"type": "Other", "x": 0.5}


def test_files(tmp_path):
    path = tmp_path / "a.json"
    write_json({"a": [1, "é"]}, path)
    assert read_json(path) == {"a": [1, "é"]} and [p.name for p in tmp_path.iterdir()] == ["a.json"]
    with pytest.raises(UserError, match=r"b\.json: no such file"):
        read_json(tmp_path / "b.json")
    for broken in (b"", b"{", b"\xff\xfe", b'{"a": 1}}'):
        path.write_bytes(broken)
        with pytest.raises(UserError, match=r"a\.json: not valid JSON"):
            read_json(path)
    with pytest.raises(UserError, match=r"c/a\.json: could not be written \(No such file"):
        write_json({}, tmp_path / "c" / "a.json")
    with pytest.raises(TypeError):
        write_json({"a": object()}, path)
    assert path.read_bytes() == b'{"a": 1}}'  # the file before it is still there


def test_check_format():
    path = Path("f.json")
    assert check_format({"format": 2, "a": 1}, 2, path, keys=("a",)) == {"format": 2, "a": 1}
    for data, message in (
        ({"format": 3}, "f.json: format 3 is newer than 2, which this version reads"),
        ({"format": 0}, "f.json: names no format version"),
        ({"format": True}, "f.json: names no format version"),
        ({"format": "2"}, "f.json: names no format version"),
        ({}, "f.json: names no format version"),
        ([], "f.json: names no format version"),
        (None, "f.json: names no format version"),
        ({"format": 1, "b": 0}, "f.json: key 'a' is missing"),
    ):
        with pytest.raises(UserError, match=message):
            check_format(data, 2, path, keys=("a",))
