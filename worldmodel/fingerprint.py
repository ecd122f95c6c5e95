"""A short name of a model, so that what was made with it is not continued with another."""

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from worldmodel.serial import to_json

_SAMPLES = 4096  # of each tensor, at least, where it has so many


def fingerprint(*modules: nn.Module) -> str:
    """32 hexadecimal digits: a SHA-256 of configurations and weights.

    Read are the fields of each module's dataclass `cfg`, if it has one, that differ from their defaults (so that a
    field which is added later changes no name), and the name, shape and evenly spaced values of every tensor of its
    state. The device does not matter, nor the type of numbers that hold the same values.
    """
    digest = hashlib.sha256()
    for module in modules:
        digest.update(json.dumps(_chosen(getattr(module, "cfg", None)), sort_keys=True).encode())
        _add(digest, module.state_dict())
    return digest.hexdigest()[:32]


def fingerprint_of_tensors(tensors: Mapping[str, Tensor]) -> str:
    """32 hexadecimal digits: as `fingerprint`, of names, shapes and evenly spaced values alone."""
    digest = hashlib.sha256()
    _add(digest, tensors)
    return digest.hexdigest()[:32]


def _add(digest: Any, tensors: Mapping[str, Tensor]) -> None:
    for name, tensor in sorted(tensors.items()):
        flat = tensor.detach().flatten()
        values = flat[:: max(1, flat.numel() // _SAMPLES)].cpu().double().contiguous()
        digest.update(f"{name} {list(tensor.shape)}".encode() + values.numpy().tobytes())


def _chosen(cfg: Any) -> Any:
    if not dataclasses.is_dataclass(cfg) or isinstance(cfg, type):
        return None
    defaults = {field.name: field.default for field in dataclasses.fields(cfg)}
    data = to_json(cfg)
    return {name: data[name] for name in defaults if getattr(cfg, name) != defaults[name]} | {"type": data["type"]}
