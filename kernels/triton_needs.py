"""What the Triton backends of all ops need, in words for `explain`."""

import importlib.util
import os
from collections.abc import Mapping

import torch
from torch import Tensor

INSTALLED = importlib.util.find_spec("triton") is not None
OLDEST = (8, 0)  # compute capability: Ampere, the first with bf16


def interpreted() -> bool:
    """Whether kernels run in Triton's interpreter, on CPU tensors: for tests."""
    return os.environ.get("TRITON_INTERPRET", "0") not in ("", "0")


def reasons(device: torch.device) -> tuple[str, ...]:
    """Why Triton cannot run on a device; empty if it can."""
    if not INSTALLED:
        return ("the package triton is not installed",)
    if device.type == "cpu":
        return () if interpreted() else ("Triton runs CPU tensors only interpreted (TRITON_INTERPRET=1)",)
    if device.type != "cuda":
        return (f"no kernels for devices of type {device.type}",)
    if torch.version.hip is None and (found := torch.cuda.get_device_capability(device)) < OLDEST:
        return (f"compute capability {found[0]}.{found[1]}, needs {OLDEST[0]}.{OLDEST[1]}",)
    return ()


def tensors(device: torch.device, types: tuple[torch.dtype, ...], named: Mapping[str, Tensor]) -> tuple[str, ...]:
    """Why the named tensors do not suit: another device, another type than `types`, a last axis that is not dense."""
    found = []
    for name, x in named.items():
        if x.device != device:
            found.append(f"{name} is on {x.device}, not {device}")
        if x.dtype not in types:
            found.append(f"{name} has type {x.dtype}, known are {', '.join(str(t) for t in types)}")
        if x.ndim and x.shape[-1] > 1 and x.stride(-1) != 1:
            found.append(f"the last axis of {name} has stride {x.stride(-1)}, not 1")
    return tuple(found)
