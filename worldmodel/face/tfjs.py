"""Weights in the format of TensorFlow.js: a manifest (JSON) and a binary file of quantised numbers."""

import json
from typing import Any

import numpy as np
import torch
from torch import Tensor

from worldmodel.errors import UserError

KINDS = {"float32": np.float32, "uint8": np.uint8, "uint16": np.uint16, "int32": np.int32}


def read_weights(manifest: bytes, data: bytes, where: str) -> dict[str, Tensor]:
    """Every tensor by its name, fp32, in TensorFlow's layout (height, width, inputs, outputs).

    A quantised number q stands for min + scale * q (the affine scheme of tensorflowjs_converter). A manifest that
    cannot be read, or that does not describe all of `data`, is a UserError that names `where`.
    """
    try:
        entries: list[dict[str, Any]] = [w for group in json.loads(manifest) for w in group["weights"]]
        found: dict[str, Tensor] = {}
        at = 0
        for entry in entries:
            scheme = entry.get("quantization")
            kind = np.dtype(KINDS[scheme["dtype"] if scheme else entry["dtype"]])
            count = int(np.prod(entry["shape"], dtype=np.int64))
            stored = np.frombuffer(data, kind, count, at)
            at += count * kind.itemsize
            values = stored.astype(np.float32)
            if scheme:
                values = values * np.float32(scheme["scale"]) + np.float32(scheme["min"])
            found[entry["name"]] = torch.from_numpy(values.reshape(entry["shape"]).copy())
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{where}: no weights in the format of TensorFlow.js ({error})") from error
    if at != len(data):
        raise UserError(f"{where}: the manifest describes {at} bytes, the file has {len(data)}")
    return found


def as_torch(weight: Tensor, name: str) -> Tensor:
    """A weight in torch's layout: convolutions [outputs, inputs, h, w], depthwise [channels, 1, h, w], matrices."""
    if weight.dim() == 4:
        order = (2, 3, 0, 1) if name.endswith("depthwise_filter") else (3, 2, 0, 1)
        return weight.permute(order).contiguous()
    return weight.T.contiguous() if weight.dim() == 2 else weight
