"""msgpack with NumPy arrays, as openpi's clients and servers speak it, and nothing else: no pickle, no object arrays.

An array is a map of four byte strings to values: __ndarray__ (true), data (its bytes in C order), dtype (such as
"<f4") and shape. A NumPy scalar is __npgeneric__ (true), data (a plain number) and dtype. Whatever arrives is judged
before it is built: dtypes come from a fixed list of numbers, the shape must match the bytes, and what a message may
hold is bounded, so that a small message cannot become a large object.
"""

import math
from collections.abc import Mapping
from typing import Any

import msgpack
import numpy as np

KINDS = {"b": (1,), "i": (1, 2, 4, 8), "u": (1, 2, 4, 8), "f": (2, 4, 8)}
DTYPES = {
    name: np.dtype(name)
    for kind, sizes in KINDS.items()
    for size in sizes
    for name in ((f"|{kind}1",) if size == 1 else (f"<{kind}{size}", f">{kind}{size}"))
}
"""Names of the types of numbers that a message may hold."""
MAX_DIMENSIONS = 8  # of an array
MAX_ENTRIES = 256  # of a map
MAX_ITEMS = 4096  # of a list
MAX_CONTAINERS = 512  # maps and lists in a message
ARRAY, SCALAR = b"__ndarray__", b"__npgeneric__"


class FramingError(Exception):
    """Bytes that are no message; the text is one line that says why."""


def pack(message: Mapping[str, Any]) -> bytes:
    """A message of texts, numbers, lists, maps, arrays and NumPy scalars as bytes. Raises FramingError for others."""
    try:
        packed = msgpack.packb(message, default=_written)
    except (TypeError, ValueError, OverflowError) as error:
        raise FramingError(f"this cannot be sent: {error}") from error
    assert packed is not None
    return packed


def unpack(data: bytes) -> dict[str, Any]:
    """The message in some bytes; its arrays are in the machine's byte order. Raises FramingError for anything else."""
    left = MAX_CONTAINERS

    def count() -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise FramingError(f"more than {MAX_CONTAINERS} maps and lists in a message")

    def read_map(found: dict[Any, Any]) -> Any:
        count()
        if ARRAY in found:
            return _array(found)
        return _scalar(found) if SCALAR in found else found

    def read_list(found: list[Any]) -> list[Any]:
        count()
        return found

    try:
        message = msgpack.unpackb(
            data, object_hook=read_map, list_hook=read_list, ext_hook=_no_extension, strict_map_key=True,
            max_map_len=MAX_ENTRIES, max_array_len=MAX_ITEMS, max_ext_len=0,
        )  # fmt: skip
    except FramingError:
        raise
    except (ValueError, TypeError, OverflowError, RecursionError, msgpack.UnpackException) as error:
        raise FramingError(f"not msgpack: {str(error) or type(error).__name__}") from error
    if not isinstance(message, dict):
        raise FramingError(f"a message is a map, not {type(message).__name__}")
    if odd := [key for key in message if not isinstance(key, str)]:
        raise FramingError(f"the keys of a message are text, not {odd[0]!r:.40}")
    return message


def _written(value: object) -> Any:
    if isinstance(value, np.ndarray):
        if value.dtype.str not in DTYPES:
            raise TypeError(f"an array of {value.dtype}")
        return {ARRAY: True, b"data": value.tobytes(), b"dtype": value.dtype.str, b"shape": value.shape}
    if isinstance(value, np.generic):
        if value.dtype.str not in DTYPES:
            raise TypeError(f"a number of {value.dtype}")
        return {SCALAR: True, b"data": value.item(), b"dtype": value.dtype.str}
    raise TypeError(f"a {type(value).__name__}")


def _array(found: dict[Any, Any]) -> np.ndarray:
    dtype = _dtype(found, ARRAY)
    shape, data = found.get(b"shape"), found.get(b"data")
    if not isinstance(shape, list) or not all(type(side) is int and 0 <= side < 2**31 for side in shape):
        raise FramingError("an array's shape is a list of sizes")
    if len(shape) > MAX_DIMENSIONS:
        raise FramingError(f"an array of {len(shape)} dimensions, {MAX_DIMENSIONS} are allowed")
    if not isinstance(data, bytes) or len(data) != math.prod(shape) * dtype.itemsize:
        size = f"{len(data)} bytes" if isinstance(data, bytes) else f"a {type(data).__name__}"
        raise FramingError(f"an array of shape {shape} and {dtype} has {size} of data")
    return np.frombuffer(data, dtype).astype(dtype.newbyteorder("="), copy=False).reshape(shape)


def _scalar(found: dict[Any, Any]) -> np.generic:
    dtype, value = _dtype(found, SCALAR), found.get(b"data")
    if not isinstance(value, bool | int | float):
        raise FramingError(f"a number whose data is a {type(value).__name__}")
    try:
        return dtype.newbyteorder("=").type(value)
    except (OverflowError, ValueError) as error:
        raise FramingError(f"{value} is no {dtype}") from error


def _dtype(found: dict[Any, Any], mark: bytes) -> np.dtype:
    if found[mark] is not True or set(found) - {mark, b"data", b"dtype", b"shape"}:
        raise FramingError(f"a map with {mark.decode()} that is no array or number")
    name = found.get(b"dtype")
    if not isinstance(name, str) or name not in DTYPES:
        raise FramingError(f"dtype {name!r:.40} is refused; there are {', '.join(DTYPES)}")
    return DTYPES[name]


def _no_extension(code: int, data: bytes) -> Any:
    raise FramingError(f"msgpack's extension types are refused (type {code})")
