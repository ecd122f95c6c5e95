"""What can be wrong with datasets that a policy is to learn from: found before training, all of it at once."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from worldmodel.datasets.lerobot import STATE, LeRobotRecordings, names_given
from worldmodel.errors import UserError
from worldmodel.policies.observation import CONSTANT
from worldmodel.serial import read_json

MOMENTS = ("min", "max", "mean", "std")


def problems_of(data: LeRobotRecordings, constant: tuple[str, ...]) -> list[str]:
    """One line for each problem of one dataset. constant: dimensions that may have no range."""
    found = []
    if not data.cameras:
        found.append("no camera")
    if len(set(data.cameras.values())) > 1:
        sizes = ", ".join(f"{name} {width} x {height}" for name, (height, width) in data.cameras.items())
        found.append(f"cameras of different sizes: {sizes}")
    if not data.action_names:
        found.append("no action")
    if not data.state_names:
        found.append(f"no {STATE}")
    found += [f"episode {e} has {n} frames, it takes two to move" for e, n in data.episodes.items() if n < 2]
    found += [problem for key in ("action", STATE) for problem in _of_names(data, key)]
    found += _of_statistics(data, constant)
    return [f"{data.path}: {problem}" for problem in found]


def check_together(datasets: list[LeRobotRecordings]) -> list[str]:
    """One line for each way in which datasets that are learned from together differ from the first."""
    found = []
    for data in datasets[1:]:
        first = datasets[0]
        for what, mine, theirs in (
            ("fps", float(data.fps), float(first.fps)),
            ("cameras", _cameras(data), _cameras(first)),
            ("action names", list(data.action_names), list(first.action_names)),
            ("state names", list(data.state_names), list(first.state_names)),
        ):
            if mine != theirs:
                found.append(f"{data.path}: {what} {mine}, but {first.path} has {theirs}")
    return found


def _cameras(data: LeRobotRecordings) -> list[str]:
    return [f"{name} {width} x {height}" for name, (height, width) in data.cameras.items()]


def _of_names(data: LeRobotRecordings, key: str) -> list[str]:
    """Names that leave open which dimension they mean; with `names: null` dimensions have numbers."""
    feature = data.info["features"].get(key)
    names = None if feature is None else names_given(feature)
    if feature is None or names is None:
        return []
    dim = int(np.prod(feature["shape"]))
    if not isinstance(names, list) or len(names) != dim or not all(isinstance(name, str) for name in names):
        return [f"meta/info.json: '{key}' has {dim} dimensions, its names are {names!s:.80}"]
    twice = sorted({name for name in names if names.count(name) > 1})
    return [f"meta/info.json: '{key}' names several dimensions {', '.join(twice)}"] if twice else []


def _of_statistics(data: LeRobotRecordings, constant: tuple[str, ...]) -> list[str]:
    path = data.path / "meta" / "stats.json"
    if not path.is_file():
        return ["meta/stats.json is missing"]
    try:
        stats: Any = read_json(path)
    except UserError as error:
        return [str(error)]
    if not isinstance(stats, dict):
        return ["meta/stats.json holds no object"]
    found = []
    for key, names in (("action", data.action_names), (STATE, data.state_names)):
        if names:
            found += _of_key(stats.get(key), key, names, constant)
    return found


def _of_key(stats: Any, key: str, names: tuple[str, ...], constant: tuple[str, ...]) -> list[str]:
    if not isinstance(stats, dict):
        return [f"no statistics of '{key}'"]
    found: list[str] = []
    values: dict[str, NDArray[np.float64]] = {}
    for moment in MOMENTS:
        value = _vector(stats.get(moment))
        if value is None:
            found.append(f"statistic '{key}/{moment}' is missing")
        elif len(value) != len(names):
            found.append(f"statistic '{key}/{moment}' has {len(value)} values for {len(names)} dimensions")
        else:
            values[moment] = value
            bad = [
                f"'{name}' is {number}" for name, number in zip(names, value, strict=True) if not np.isfinite(number)
            ]
            found += [f"statistic '{key}/{moment}' of {each}" for each in bad]
    if "min" in values and "max" in values:
        for name, low, high in zip(names, values["min"], values["max"], strict=True):
            if high - low < CONSTANT and name not in constant:
                found.append(
                    f"'{key}' dimension '{name}' is constant at {low:g}, it has no range to normalise: name it in "
                    "constant if that is right"
                )
    return found


def _vector(value: Any) -> NDArray[np.float64] | None:
    try:
        return None if value is None else np.asarray(value, np.float64).reshape(-1)
    except (TypeError, ValueError):
        return np.array([], np.float64)  # reported as a wrong number of values
