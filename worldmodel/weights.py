"""Weights on disk: safetensors only, checked by name and shape. A pickle is refused, as it could run code."""

from collections.abc import Callable
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from .errors import UserError

PICKLES = {".pt", ".pth", ".bin", ".ckpt", ".pkl", ".pickle"}


def read_tensors(path: Path, device: str = "cpu") -> dict[str, Tensor]:
    """The tensors of a safetensors file. Missing, truncated and pickle files are UserErrors that name it."""
    if path.suffix in PICKLES:
        raise UserError(f"{path}: a pickle could run code when it is read; only safetensors files are loaded")
    if not path.is_file():
        pickles = [p.name for p in path.parent.glob(f"{path.stem}.*") if p.suffix in PICKLES]
        instead = (
            f"; {pickles[0]} is a pickle, which could run code: only safetensors files are loaded" if pickles else ""
        )
        raise UserError(f"{path}: no such file{instead}")
    try:
        return load_file(path, device)
    except (SafetensorError, OSError, ValueError) as error:
        raise UserError(f"{path}: not a complete safetensors file ({error})") from error


def read_metadata(path: Path) -> dict[str, str]:
    """The text metadata of a safetensors file."""
    read_tensors(path)
    with safe_open(path, "pt") as file:
        return file.metadata() or {}


def write_tensors(tensors: dict[str, Tensor], path: Path, metadata: dict[str, str] | None = None) -> None:
    """Write contiguous copies of tensors to a safetensors file.

    It is written beside its place and renamed: no reader ever sees half a file, and what was there before stays until
    then. A full disk or a missing folder is a UserError.
    """
    partial = path.with_name(f".{path.name}.partial")
    try:
        save_file({k: v.detach().cpu().contiguous() for k, v in tensors.items()}, partial, metadata)
        partial.replace(path)
    except (SafetensorError, OSError) as error:  # safetensors has its own type for a full disk
        partial.unlink(missing_ok=True)
        raise UserError(f"{path}: could not be written ({error})") from error


def check_tensors(tensors: dict[str, Tensor], own: dict[str, Tensor], where: str) -> None:
    """Anything but the names, shapes and kinds of number of `own`, and finite values, is a UserError naming the key."""
    for name in sorted(own.keys() - tensors.keys()):
        raise UserError(f"{where}: weight '{name}' is missing: this is not a checkpoint of this model")
    for name in sorted(tensors.keys() - own.keys()):
        raise UserError(f"{where}: unknown weight '{name}': this is not a checkpoint of this model")
    for name, tensor in tensors.items():
        if tensor.shape != own[name].shape:
            raise UserError(
                f"{where}: weight '{name}' has shape {list(tensor.shape)}, the model expects {list(own[name].shape)}"
            )
        if _kind(tensor) != _kind(own[name]):
            raise UserError(f"{where}: weight '{name}' is of type {tensor.dtype}, the model's is {own[name].dtype}")
        if tensor.is_floating_point() and not torch.isfinite(tensor).all():
            raise UserError(f"{where}: weight '{name}' holds values that are not finite")


def _kind(tensor: Tensor) -> str:
    """Numbers of one kind convert to each other without a loss of meaning."""
    if tensor.is_complex():
        return "complex"
    return "float" if tensor.is_floating_point() else "bool" if tensor.dtype == torch.bool else "integer"


def build_with[M: nn.Module](build: Callable[[], M], tensors: dict[str, Tensor], where: str) -> M:
    """What `build` makes, with these weights; the conditions of `check_tensors` hold.

    They are checked on a sketch of the module first, so that sizes which do not fit the weights take no memory.
    """
    try:
        with torch.device("meta"):
            sketch = build()
    except (RuntimeError, OverflowError) as error:  # a number of weights that overflows
        raise UserError(f"{where}: no model can have the sizes that its configuration names") from error
    check_tensors(tensors, sketch.state_dict(), where)
    module = build()
    module.load_state_dict(tensors)
    return module


def load_into(module: nn.Module, tensors: dict[str, Tensor], where: str) -> None:
    """Load tensors into a module; the conditions of `check_tensors` hold."""
    check_tensors(tensors, module.state_dict(), where)
    module.load_state_dict(tensors)
