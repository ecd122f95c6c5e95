"""Measurements of a comparison on disk, so that another arm costs its own measurement only, and a killed run goes on.

A folder holds two files per model: KEY.npz with the arrays, and KEY.json, which tells people what was measured. KEY
names the model's weights, the data, the encoders, the probe and all settings: whatever changes makes another file. The
probe of the actions is kept beside them.
"""

import hashlib
import json
import os
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import torch

from worldmodel.errors import UserError
from worldmodel.evaluate.compare.measure import Measurement
from worldmodel.evaluate.probe import Probe, ProbeNet
from worldmodel.folders import make_folder
from worldmodel.serial import write_json


def kept_key(*parts: str) -> str:
    """One name for everything that a measurement depends on."""
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:24]


def load_kept(folder: Path | None, key: str, shapes: Mapping[str, tuple[int, ...]]) -> Measurement | None:
    """The measurement of that key, None if the folder has none.

    shapes: of some of its arrays, whose numbers must be finite. A file that cannot be read or is not so is a UserError.
    """
    path = None if folder is None else folder / f"{key}.npz"
    if path is None or not path.exists():
        return None
    arrays = _read(path)
    try:
        found = Measurement(**{field.name: arrays[field.name] for field in fields(Measurement)})
    except KeyError as error:
        raise _broken(path, error) from error
    for name, shape in shapes.items():
        if arrays[name].shape != shape or not np.isfinite(arrays[name]).all():
            raise _broken(path, f"'{name}' must hold finite numbers {list(shape)}")
    return found


def keep(folder: Path | None, key: str, found: Measurement, about: dict[str, Any]) -> None:
    """Write a measurement in one piece: the JSON first, then the arrays, whose presence means that all is there.

    about: for people. A full disk is a UserError.
    """
    if folder is None:
        return
    make_folder(folder)
    write_json(about, folder / f"{key}.json")
    _write(folder / f"{key}.npz", {field.name: getattr(found, field.name) for field in fields(Measurement)})


def load_probe(folder: Path | None, key: str) -> Probe | None:
    """The probe of that key, None if the folder has none. A file that cannot be read is a UserError."""
    path = None if folder is None else folder / f"probe_{key}.npz"
    if path is None or not path.exists():
        return None
    arrays = _read(path)
    try:
        names = tuple(str(name) for name in arrays["names"])
        net = ProbeNet(len(names))
        net.load_state_dict({name: torch.from_numpy(arrays[f"net.{name}"]) for name in net.state_dict()})
        return Probe(net.eval().requires_grad_(False), names, arrays["mean"], arrays["spread"])
    except (KeyError, RuntimeError) as error:
        raise _broken(path, error) from error


def keep_probe(folder: Path | None, key: str, probe: Probe) -> None:
    """Write a probe in one piece. A full disk is a UserError."""
    if folder is None:
        return
    make_folder(folder)
    net = {f"net.{name}": value.numpy() for name, value in probe.net.state_dict().items()}
    about = {"names": np.array(probe.names), "mean": probe.mean, "spread": probe.spread}
    _write(folder / f"probe_{key}.npz", net | about)


def _write(path: Path, arrays: dict[str, Any]) -> None:
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with partial.open("wb") as file:
            np.savez_compressed(file, **arrays)
        partial.replace(path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise UserError(f"{path}: could not be written ({error.strerror or error})") from error


def _read(path: Path) -> dict[str, Any]:
    try:
        with np.load(path, allow_pickle=False) as arrays:
            return {name: arrays[name] for name in arrays.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise _broken(path, error) from error


def _broken(path: Path, error: Exception | str) -> UserError:
    return UserError(f"{path}: not a measurement of ours ({error}); delete it to measure again")
