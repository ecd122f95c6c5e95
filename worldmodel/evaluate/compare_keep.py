"""Measurements of a comparison on disk, so that another arm costs its own measurement only, and a killed run goes on.

A folder holds two files per model: KEY.npz with the arrays, and KEY.json, which tells people what was measured. KEY
names the model's weights, the data, the encoders, the probe and all settings: whatever changes makes another file.
"""

import hashlib
import json
import os
import zipfile
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from worldmodel.errors import UserError
from worldmodel.evaluate.compare_measure import Measurement
from worldmodel.serial import write_json


def kept_key(*parts: str) -> str:
    """One name for everything that a measurement depends on."""
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:24]


def load_kept(folder: Path | None, key: str) -> Measurement | None:
    """The measurement of that key, None if the folder has none. A file that cannot be read is a UserError."""
    path = None if folder is None else folder / f"{key}.npz"
    if path is None or not path.exists():
        return None
    try:
        with np.load(path, allow_pickle=False) as arrays:
            return Measurement(**{field.name: arrays[field.name] for field in fields(Measurement)})
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise UserError(f"{path}: not a measurement of ours ({error}); delete it to measure again") from error


def keep(folder: Path | None, key: str, found: Measurement, about: dict[str, Any]) -> None:
    """Write a measurement in one piece: the JSON first, then the arrays, whose presence means that all is there.

    about: for people. A full disk is a UserError.
    """
    if folder is None:
        return
    make_folder(folder)
    write_json(about, folder / f"{key}.json")
    path = folder / f"{key}.npz"
    partial = folder / f".{key}.{os.getpid()}.partial"
    try:
        with partial.open("wb") as file:
            arrays: dict[str, Any] = {field.name: getattr(found, field.name) for field in fields(Measurement)}
            np.savez_compressed(file, **arrays)
        partial.replace(path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise UserError(f"{path}: could not be written ({error.strerror or error})") from error


def make_folder(folder: Path) -> None:
    """A folder that cannot be made is a UserError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{folder}: could not be made ({error.strerror or error})") from error
