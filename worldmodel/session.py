"""The state of a batch of streams as one file: a session that was stopped goes on exactly where it was.

A safetensors file: `frame`, `seed`, `active`, the newest frame as `last`, the memory's own tensors as `memory.NAME`,
what a sampler has begun as `pending.x` and `pending.ready`; format version, memory configuration and the fingerprint of
the model are in its metadata under "worldmodel".
"""

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from worldmodel.errors import UserError
from worldmodel.fingerprint import fingerprint
from worldmodel.memory import AnyMemory, Memory
from worldmodel.serial import check_format, from_json, to_json
from worldmodel.state import Pending, State
from worldmodel.weights import read_metadata, read_tensors, write_tensors

FORMAT = 2  # 1 did not name the model


def snapshot(state: State, model: nn.Module, memory: AnyMemory, path: Path) -> None:
    """Write a state that `model` has made, with a memory of the configuration `memory`. A full disk is a UserError.

    The state stays usable. The file replaces an older one in one piece. A memory that `restore` does not know is a
    UserError.
    """
    if not isinstance(memory, AnyMemory):
        raise UserError(f"{path}: a stream with the memory {type(memory).__name__} could not be read back")
    tensors = {"frame": state.frame, "seed": state.seed, "active": state.active}
    tensors |= {f"memory.{name}": tensor for name, tensor in state.memory.tensors().items()}
    if state.pending is not None:
        tensors |= {"pending.x": state.pending.x, "pending.ready": state.pending.ready}
    if state.last is not None:
        tensors["last"] = state.last
    about = {"format": FORMAT, "memory": to_json(memory), "model": fingerprint(model)}
    separate = {name: tensor.clone() for name, tensor in tensors.items()}  # the file holds no two views of one storage
    write_tensors(separate, path, {"worldmodel": json.dumps(about)})


def restore(path: Path, model: nn.Module, memory: AnyMemory, device: torch.device | str = "cpu") -> State:
    """The state in a file, bit for bit.

    Raises UserError, naming the file, if it is missing, truncated, something else, of a newer format, of another model
    (by its configuration and weights, see `fingerprint`) or of another memory configuration than `memory`.
    """
    try:
        about: Any = json.loads(read_metadata(path).get("worldmodel", "null"))
    except json.JSONDecodeError as error:
        raise UserError(f"{path}: not the state of a stream ({error})") from error
    about = check_format(about, FORMAT, path, keys=("memory", "model"))
    stored = about["memory"]
    if about["model"] != fingerprint(model):
        raise UserError(f"{path}: a stream of another model, its configuration or weights are not those of this one")
    if from_json(stored, AnyMemory, f"{path}: memory") != memory:
        raise UserError(f"{path}: a stream with the memory {stored}, not {to_json(memory)}")
    tensors = read_tensors(path, str(device))
    try:
        frame, seed, active = (tensors[name] for name in ("frame", "seed", "active"))
        state = State(_memory(tensors, memory), frame, seed, active, _pending(tensors), tensors.get("last"))
    except UserError as error:
        raise UserError(f"{path}: {error}") from error
    except KeyError as error:
        raise UserError(f"{path}: not the state of a stream, {error} is missing") from error
    if not state.memory.batch == len(seed) == len(active) == len(frame):
        raise UserError(f"{path}: not the state of a stream, its parts have different numbers of rows")
    return state


def _memory(tensors: dict[str, Tensor], config: AnyMemory) -> Memory:
    return config.restore({k.removeprefix("memory."): v for k, v in tensors.items() if k.startswith("memory.")})


def _pending(tensors: dict[str, Tensor]) -> Pending | None:
    return Pending(tensors["pending.x"], tensors["pending.ready"]) if "pending.x" in tensors else None
