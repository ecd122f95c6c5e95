"""Checkpoints of a run: a folder per step, written beside its place and renamed, so that it is never half there.

checkpoints/step_00001000/
    state.json              format version, step, losses, which run it is of, objective state: all that is no tensor
    ROLE.safetensors        weights of each role
    ROLE.ema.safetensors    averaged weights
    ROLE.optimizer.safetensors
    objective.safetensors   tensors of the objective, if it has any
"""

import math
import re
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)

from worldmodel.ema import Ema
from worldmodel.errors import UserError
from worldmodel.folders import sync
from worldmodel.serial import check_format, read_json, write_json
from worldmodel.weights import check_tensors, read_tensors, write_tensors

FORMAT = 2
OBJECTIVE = "objective"
"""Name of the file with the objective's tensors, beside those of the roles."""
_MAIN = StateDictOptions(full_state_dict=True, cpu_offload=True, ignore_frozen_params=True)  # others get nothing
_ALL = StateDictOptions(full_state_dict=True, ignore_frozen_params=True, strict=False)


@dataclass(frozen=True, slots=True)
class Role:
    """What is trained under one name."""

    model: nn.Module
    optimizers: list[torch.optim.Optimizer]
    ema: Ema | None


def tensors_of(roles: Mapping[str, Role]) -> dict[str, dict[str, Tensor]]:
    """File name to whole CPU tensors. All ranks must call this; only the main process gets the answer."""
    files: dict[str, Any] = {}
    for name, role in roles.items():
        files[name] = get_model_state_dict(role.model, options=_MAIN)
        if role.ema is not None:
            files[f"{name}.ema"] = role.ema.state_dict()
        files[f"{name}.optimizer"] = _flat(get_optimizer_state_dict(role.model, role.optimizers, options=_MAIN))
    return files


def check_finite(out: Path, step: int, files: Mapping[str, Mapping[str, Tensor]]) -> None:
    """Raise a UserError that names the first tensor with NaN or infinite values."""
    for name, tensors in files.items():
        for key, tensor in tensors.items():
            if tensor.is_floating_point() and not torch.isfinite(tensor).all():
                raise UserError(f"{out}: '{key}' of {name} is not finite at step {step}; {last(out)}")


def save(out: Path, step: int, files: dict[str, dict[str, Tensor]], state: dict[str, Any], keep: Iterable[int]) -> Path:
    """Write checkpoints/step_N and remove those not in `keep` (steps). Refuses what is not finite, and other states
    than `read_state` takes.

    A full disk removes what was begun, leaves every older checkpoint, and becomes a UserError.
    """
    check_finite(out, step, files)
    folder = out / "checkpoints" / f"step_{step:08d}"
    check_state({"step": step, **state}, folder / "state.json")
    partial = folder.with_name(f".{folder.name}.partial")
    try:
        for left in folder.parent.glob(".step_*.partial"):  # by a process that was killed
            shutil.rmtree(left)
        partial.mkdir(parents=True)
        for name, tensors in files.items():
            write_tensors(tensors, partial / f"{name}.safetensors")
        write_json({"format": FORMAT, "step": step, **state}, partial / "state.json", allow_nan=False)
        for file in partial.iterdir():
            sync(file)
        sync(partial)
        if folder.exists():
            shutil.rmtree(folder)
        partial.rename(folder)
        sync(folder.parent)
    except (OSError, UserError) as error:
        shutil.rmtree(partial, ignore_errors=True)
        reason = error.strerror if isinstance(error, OSError) else error
        raise UserError(f"{folder}: could not be written ({reason}); {last(out)}") from error
    kept = {f"step_{s:08d}" for s in (*keep, step)}
    for old in steps(out):
        if old.name not in kept:
            shutil.rmtree(old)
    return folder


def last(out: Path) -> str:
    """The end of an error message: where the training can go on from."""
    found = steps(out)
    return f"the last good checkpoint is {found[-1]}" if found else "no checkpoint was written yet"


def steps(out: Path) -> list[Path]:
    """The checkpoints of a run, oldest first; what is not named as one is none."""
    return sorted((p for p in (out / "checkpoints").glob("step_*") if p.is_dir() and _number(p)), key=_number)


def _number(folder: Path) -> int:
    """The step of a checkpoint by its name; 0 for other names, there is no checkpoint of step 0."""
    return int(folder.name.removeprefix("step_")) if re.fullmatch(r"step_[0-9]{8,}", folder.name) else 0


def read_state(folder: Path) -> dict[str, Any]:
    """state.json of a checkpoint; a broken one, a newer format, a key of another type or range is a UserError."""
    path = folder / "state.json"
    state = check_format(read_json(path), FORMAT, path, keys=("step", "objective", "best", "metrics"))
    if state["format"] == 1:  # named the run by four keys
        names = {"model": "model", "actions": "data.action_spec", "split": "data.split", "seed": "seed"}
        state["run"] = {name: state.pop(key) for key, name in names.items() if key in state}
    if not isinstance(state.get("run"), dict):
        raise UserError(f"{path}: key 'run' is missing")
    check_state(state, path)
    if _number(folder) not in (0, state["step"]):
        raise UserError(f"{path}: key 'step' is {state['step']}, its folder is named {folder.name}")
    return state


def check_state(state: Mapping[str, Any], path: Path) -> None:
    """Raise a UserError with the first key of state.json that has another type or range than it must."""
    step, best, metrics = (state[key] for key in ("step", "best", "metrics"))
    if not _is_count(step):
        raise UserError(f"{path}: key 'step' must be a whole number of at least 1, not {step!r:.80}")
    pair = isinstance(best, list | tuple) and len(best) == 2
    if best is not None and not (pair and _is_finite(best[0]) and _is_count(best[1]) and best[1] <= step):
        raise UserError(f"{path}: key 'best' must be null or a finite loss and a step up to {step}, not {best!r:.80}")
    for key in ("objective", "metrics"):
        if not isinstance(state[key], dict):
            raise UserError(f"{path}: key '{key}' must be an object, not {state[key]!r:.80}")
    for name, value in metrics.items():
        if not _is_finite(value):
            raise UserError(f"{path}: key 'metrics': '{name}' must be a finite number, not {value!r:.80}")


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value < 2**53


def _is_finite(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < math.inf


def read_objective(folder: Path, state: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """The objective's state in a checkpoint: JSON values and tensors.

    state: what `read_state` gave. own: the state dict of the objective that takes it, of which the names and types of
    JSON values must be the same and numbers not negative; tensors must be finite. Else a UserError names the file.
    """
    path, values = folder / "state.json", state["objective"]
    wanted = {name: value for name, value in own.items() if not isinstance(value, Tensor)}
    if values.keys() != wanted.keys():
        raise UserError(f"{path}: key 'objective' holds {sorted(values)}, this objective's state is {sorted(wanted)}")
    for name, value in values.items():
        number = isinstance(value, int | float)
        if type(value) is not type(wanted[name]) or (number and not 0 <= value < 2**53):
            raise UserError(f"{path}: key 'objective': '{name}' cannot be {value!r:.80}")
    file = folder / f"{OBJECTIVE}.safetensors"
    tensors = read_tensors(file) if file.exists() else {}
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not torch.isfinite(tensor).all():
            raise UserError(f"{file}: '{name}' holds values that are not finite")
    return {**values, **tensors}


def restore(folder: Path, roles: Mapping[str, Role]) -> None:
    """Load weights, averages and optimizer states; names and shapes must fit exactly."""
    for name, role in roles.items():
        path = folder / f"{name}.safetensors"
        weights: dict[str, Any] = read_tensors(path)
        own: dict[str, Any] = get_model_state_dict(role.model, options=_ALL)
        check_tensors(weights, own, str(path))
        set_model_state_dict(role.model, weights, options=_ALL)
        if role.ema is not None:
            path = folder / f"{name}.ema.safetensors"
            average = read_tensors(path)
            check_tensors(average, role.ema.state_dict(), str(path))
            role.ema.load_state_dict(average)
        path = folder / f"{name}.optimizer.safetensors"
        stored = read_tensors(path)
        whole: Any = get_optimizer_state_dict(role.model, role.optimizers, options=_ALL)
        check_tensors(stored, _flat(whole), str(path))
        for parameter, values in whole["state"].items():
            values |= {key: stored[f"state.{parameter}.{key}"] for key in values}
        set_optimizer_state_dict(role.model, role.optimizers, whole, options=_ALL)


def _flat(optimizer: dict[str, Any]) -> dict[str, Tensor]:
    """The tensors of an optimizer's state dict under one name each; all else is made anew from the run."""
    state = optimizer.get("state", {})  # empty on all but the main process where that gathers
    return {f"state.{parameter}.{key}": value for parameter, values in state.items() for key, value in values.items()}
