"""Encoded latents on disk.

A folder of latents:

    latents.json                      what the numbers are (`LatentsInfo`); written last, so its presence means complete
    episodes/000042.safetensors       one episode: `latents` [T, C, H, W] float16, `actions` [T, pack, dim] float32
    tokenizer/                        the tokenizer that made them, so that the folder is all that training needs

`actions[tau]` are the environment actions, in their own units, executed since latent frame tau - 1; frame 0 of an
episode has none and holds zeros. Episodes carry the `episode_index` of the data set that they come from.

Letters: B batch, T latent frames, C H W latent channels, height and width, A packed action size (pack * dim).
"""

import hashlib
import json
import os
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file
from torch import nn

from worldmodel.datasets.merge_actions import Merge
from worldmodel.errors import UserError
from worldmodel.serial import read_json

FORMAT = 1
INFO = "latents.json"
PLAN = "unfinished.json"
TOKENIZER = "tokenizer"


@dataclass(frozen=True, kw_only=True)
class LatentsInfo:
    """What a folder of latents holds.

    tokenizer: its kind; sha256: digest of its weights; spatial, temporal: its factors. shape: (C, H, W) of a frame.
    fps: pixel frames per second, exact. action_names: of one environment action, empty where there are none.
    source, camera: the data set that was encoded. episodes: latent frames of each episode, by episode index.
    merge_actions: how actions were merged where videos were brought to another rate (merge_actions.py); None where not.
    """

    tokenizer: str
    sha256: str
    spatial: int
    temporal: int
    shape: tuple[int, int, int]
    fps: Fraction
    action_names: tuple[str, ...]
    source: str
    camera: str
    episodes: dict[int, int]
    merge_actions: Merge | None = None

    @property
    def frames(self) -> int:
        """Latent frames of all episodes."""
        return sum(self.episodes.values())

    def to_json(self) -> dict[str, Any]:
        data = {"format": FORMAT, "kind": "latents", **vars(self), "fps": str(self.fps)}
        return data | {"shape": list(self.shape), "action_names": list(self.action_names)}

    @classmethod
    def read(cls, folder: Path, name: str = INFO) -> "LatentsInfo":
        """From `folder`/latents.json; a UserError names what is missing, broken or newer than this version."""
        path = folder / name
        if not path.is_file() and (folder / PLAN).is_file():
            raise UserError(f"{folder}: encoding is not finished; the same `encode` command goes on with it")
        if not path.is_file():
            raise UserError(f"{path}: no such file: not a finished folder of latents; `encode` makes and finishes them")
        data = read_json(path)
        if not isinstance(data, dict) or data.pop("kind", None) != "latents":
            raise UserError(f"{path}: not the description of a folder of latents")
        if data.pop("format", 0) > FORMAT:
            raise UserError(f"{path}: a newer format than {FORMAT}, which this version reads")
        data.setdefault("merge_actions", None)  # older folders lack it
        for key in sorted(cls.__dataclass_fields__.keys() ^ data.keys()):
            raise UserError(f"{path}: {'unknown' if key in data else 'missing'} key '{key}'")
        try:
            data["episodes"] = {int(index): int(length) for index, length in data["episodes"].items()}
            data["shape"], data["action_names"] = tuple(data["shape"]), tuple(data["action_names"])
            data["fps"] = Fraction(data["fps"])
        except (TypeError, ValueError, AttributeError) as error:
            raise UserError(f"{path}: {error}") from error
        if not data["episodes"]:
            raise UserError(f"{path}: no episodes")
        return cls(**data)


def begin(folder: Path, info: LatentsInfo) -> None:
    """Announce what a folder will hold, before its episodes are written.

    A UserError if it holds something else already: other latents, finished or not, or other files.
    """
    for path in (folder / INFO, folder / PLAN):
        if path.is_file():
            found, wanted = LatentsInfo.read(folder, path.name), replace(info, source="")
            for key in vars(wanted):
                if key != "source" and getattr(found, key) != getattr(wanted, key):
                    raise UserError(f"{path}: latents of another {key}; give a new folder")
            return
    if folder.is_dir() and any(folder.iterdir()):
        raise UserError(f"{folder}: not empty, and no latents; give a new folder")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _write(folder / PLAN, info)
    except OSError as error:
        raise UserError(f"{folder}: could not be written ({error.strerror})") from error


def write_info(folder: Path, info: LatentsInfo) -> None:
    """Finish a folder: its description, and nothing half-written left."""
    _write(folder / INFO, info)
    (folder / PLAN).unlink(missing_ok=True)
    for left in (folder / "episodes").glob("*.part"):
        left.unlink()


def _write(path: Path, info: LatentsInfo) -> None:
    beside = path.with_suffix(".part")
    beside.write_text(json.dumps(info.to_json(), indent=1) + "\n")
    beside.replace(path)


def episode_file(folder: Path, index: int) -> Path:
    """Where the episode of this index lies."""
    return folder / "episodes" / f"{index:06d}.safetensors"


def write_episode(folder: Path, index: int, latents: NDArray[Any], actions: NDArray[Any] | None) -> None:
    """Write one episode beside its place and rename it, so that a file of that name is always whole.

    latents: [T, C, H, W]; actions: [T, pack, dim] from `align_actions`, or None. Values that are not finite in float16
    are a UserError that names the frame.
    """
    path = episode_file(folder, index)
    with np.errstate(over="ignore"):  # reported below
        half = np.ascontiguousarray(latents, np.float16)  # safetensors would write a view in its order in memory
    bad = ~np.isfinite(half).all(axis=(1, 2, 3))
    if bad.any():
        raise UserError(f"{path}: latent frame {int(bad.argmax())} holds values that are not finite in float16")
    tensors: dict[str, NDArray[Any]] = {"latents": half}
    if actions is not None:
        tensors["actions"] = np.ascontiguousarray(actions, np.float32)
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_suffix(f".{os.getpid()}.part")
    try:
        save_file(tensors, beside)
        beside.replace(path)
    except (OSError, SafetensorError) as error:
        beside.unlink(missing_ok=True)
        raise UserError(f"{path}: could not be written ({error})") from error


def is_written(folder: Path, info: LatentsInfo, index: int) -> bool:
    """Whether the file of an episode is there, whole, and of the right shape."""
    if not episode_file(folder, index).is_file():
        return False
    try:
        Latents(folder, info).frames(index, 0, 1)
    except UserError:
        return False
    return True


def weights_digest(module: nn.Module) -> str:
    """sha256 of a module's weights: of names, types, shapes and values, in order of name; the same in any file."""
    digest = hashlib.sha256()
    for name, tensor in sorted(module.state_dict().items()):
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
        digest.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def align_actions(actions: NDArray[Any], temporal: int) -> NDArray[np.float32]:
    """Actions of N pixel frames [N, dim] -> of T = 1 + (N - 1) // temporal latent frames [T, temporal, dim].

    `actions[i]` leads from frame i to i + 1. Latent frame tau ends with pixel frame temporal * tau, so it carries
    actions temporal * (tau - 1) to temporal * tau - 1; latent frame 0 carries none and is zero.
    """
    num = 1 + (len(actions) - 1) // temporal
    aligned = np.zeros((num, temporal, actions.shape[1]), np.float32)
    aligned[1:] = actions[: (num - 1) * temporal].reshape(num - 1, temporal, -1)
    return aligned


@dataclass(frozen=True, slots=True)
class Latents:
    """A folder of latents, open for reading. Nothing is held in memory: each read maps the file of its episode."""

    folder: Path
    info: LatentsInfo

    @classmethod
    def open(cls, folder: Path) -> "Latents":
        return cls(folder, LatentsInfo.read(folder))

    def frames(self, index: int, start: int, stop: int) -> NDArray[np.float16]:
        """Latent frames start to stop of an episode, [stop - start, C, H, W]."""
        return self._read(index, "latents", self.info.shape, start, stop)

    def actions(self, index: int, start: int = 0, stop: int | None = None) -> NDArray[np.float32]:
        """Actions [stop - start, pack, dim] in environment units; dim is 0 for data without actions."""
        stop = self.info.episodes[index] if stop is None else stop
        shape = (self.info.temporal, len(self.info.action_names))
        return self._read(index, "actions", shape, start, stop) if shape[1] else np.zeros((stop - start, *shape), "f4")

    def _read(self, index: int, key: str, shape: tuple[int, ...], start: int, stop: int) -> NDArray[Any]:
        path, length = episode_file(self.folder, index), self.info.episodes[index]
        if not 0 <= start < stop <= length:
            raise ValueError(f"{path}: frames {start} to {stop} of {length}")
        try:
            with safe_open(path, "np") as file:
                values = file.get_slice(key)
                found, wanted = tuple(values.get_shape()), (length, *shape)
                if found != wanted:
                    raise UserError(f"{path}: '{key}' has shape {list(found)}, {INFO} says {list(wanted)}")
                return values[start:stop]
        except (SafetensorError, OSError) as error:
            raise UserError(f"{path}: not a whole episode of latents ({error})") from error
