"""Configuration values to JSON and back. A value that may be of several types says which one under "type"."""

import dataclasses
import functools
import json
import math
import operator
import types
import typing
from pathlib import Path
from typing import Any, TypeVar

from .errors import UserError

T = TypeVar("T")


def to_json(value: Any) -> Any:
    """A (nested) dataclass of plain fields as JSON data, with its class name under "type"."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {f.name: to_json(getattr(value, f.name)) for f in dataclasses.fields(value) if f.init}
        return {"type": type(value).__name__, **fields}
    if isinstance(value, tuple | list):
        return [to_json(v) for v in value]
    if isinstance(value, dict):
        return {key: to_json(v) for key, v in value.items()}
    if isinstance(value, Path):
        return str(value)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"{type(value).__name__} has no place in a JSON configuration")


def from_json(data: Any, kind: Any, where: str) -> Any:
    """The inverse of `to_json` for a dataclass type or a union of them; `where` names the place in errors.

    Unknown and missing keys, and a type that is none of the allowed ones, are UserErrors that name the key.
    """
    allowed: list[Any] = [k for k in (typing.get_args(kind) or (kind,)) if dataclasses.is_dataclass(k)]
    if not isinstance(data, dict):
        raise UserError(f"{where}: expected an object, found {type(data).__name__}")
    name = data.get("type", allowed[0].__name__ if len(allowed) == 1 else None)
    cls = next((k for k in allowed if k.__name__ == name), None)
    if cls is None:
        raise UserError(f"{where}: type {name!r} is none of {[k.__name__ for k in allowed]}")
    hints = typing.get_type_hints(cls)
    fields = {f.name: f for f in dataclasses.fields(cls) if f.init}
    for key in data:
        derived = isinstance(getattr(cls, key, None), property)  # was stored by an older version
        if key != "type" and key not in fields and not derived:
            raise UserError(f"{where}: unknown key '{key}'; {name} knows {sorted(fields)}")
    values = {}
    for key, field in fields.items():
        if key in data:
            values[key] = _value(data[key], hints[key], f"{where}.{key}")
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise UserError(f"{where}: key '{key}' is missing")
    try:
        return cls(**values)
    except UserError as error:
        raise UserError(f"{where}: {error}") from error


def _value(data: Any, hint: Any, where: str) -> Any:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        if data is None and type(None) in args:
            return None
        classes = [a for a in args if dataclasses.is_dataclass(a)]
        if classes:
            return from_json(data, functools.reduce(operator.or_, classes), where)
        return _value(data, next(a for a in args if a is not type(None)), where)
    if dataclasses.is_dataclass(hint):
        return from_json(data, hint, where)
    if origin is tuple:
        if not isinstance(data, list):
            raise UserError(f"{where}: expected a list, found {type(data).__name__}")
        inner = [args[0]] * len(data) if len(args) == 2 and args[1] is Ellipsis else args
        if len(data) != len(inner):
            raise UserError(f"{where}: expected {len(inner)} values, found {len(data)}")
        return tuple(_value(d, h, f"{where}[{i}]") for i, (d, h) in enumerate(zip(data, inner, strict=True)))
    if origin is typing.Literal:
        if data not in args:
            raise UserError(f"{where}: {data!r} is none of {list(args)}")
        return data
    if hint is Path:
        return Path(_value(data, str, where))
    if hint in (int, float, str, bool):
        fits = isinstance(data, (int, float) if hint is float else hint) and (
            hint is bool or not isinstance(data, bool)
        )
        if not fits:
            raise UserError(f"{where}: expected {hint.__name__}, found {_short(data)}")
        if hint is float and not _finite(data):
            raise UserError(f"{where}: expected a finite number, found {_short(data)}")
        return hint(data)
    return data


def _finite(number: Any) -> bool:
    return math.isfinite(number) if isinstance(number, float) else abs(number) <= 2**53  # a whole one must be exact


def _short(data: Any) -> str:
    if isinstance(data, int) and abs(data) > 10**30:  # Python itself refuses to print very long ones
        return "a number of more than 30 digits"
    return shown if len(shown := repr(data)) <= 80 else f"{shown[:80]}..."


def read_json(path: Path) -> Any:
    """The content of a JSON file; a missing or broken file is a UserError that names it and the place."""
    if not path.is_file():
        raise UserError(f"{path}: no such file")
    try:
        return json.loads(path.read_text())
    except ValueError as error:  # broken JSON, broken text, numbers of thousands of digits
        raise UserError(f"{path}: not valid JSON ({error})") from error
    except RecursionError as error:
        raise UserError(f"{path}: not valid JSON for us (nested too deep)") from error
    except OSError as error:
        raise UserError(f"{path}: could not be read ({error.strerror})") from error


def write_json(data: Any, path: Path, allow_nan: bool = True) -> None:
    """Write indented JSON in one piece; a full disk or a missing folder is a UserError.

    allow_nan: of numbers that are not finite, for which JSON has no word, write Python's; else they are a UserError.
    """
    try:
        text = json.dumps(data, indent=2, allow_nan=allow_nan)
    except ValueError as error:
        raise UserError(f"{path}: could not be written ({error})") from error
    write_text(text + "\n", path)


def write_text(text: str, path: Path) -> None:
    """Write beside the place and rename; a full disk or a missing folder is a UserError."""
    partial = path.with_name(f".{path.name}.partial")
    try:
        partial.write_text(text, encoding="utf-8")
        partial.replace(path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise UserError(f"{path}: could not be written ({error.strerror or error})") from error


def check_format(data: Any, newest: int, path: Path, keys: tuple[str, ...] = ()) -> dict[str, Any]:
    """A file's JSON object if its format is one from 1 to `newest` and it has the keys; else a UserError."""
    found = data.get("format") if isinstance(data, dict) else None
    if isinstance(found, bool) or not isinstance(found, int) or found < 1:
        raise UserError(f"{path}: names no format version, it is not a file of ours")
    if found > newest:
        raise UserError(f"{path}: format {found} is newer than {newest}, which this version reads")
    for key in keys:
        if key not in data:
            raise UserError(f"{path}: key '{key}' is missing")
    return data


def check_config(data: Any, kind: str, newest: int, path: Path, keys: tuple[str, ...]) -> dict[str, Any]:
    """The JSON object of a folder's config.json if it says that it is a `kind`, and as in `check_format`."""
    if not isinstance(data, dict) or data.get("kind") != kind:
        raise UserError(f"{path}: not the configuration of a {kind}")
    return check_format(data, newest, path, keys)
