"""What ops ask of their arguments, before any backend is chosen: one ValueError that names the op and the argument.

A kernel that is handed a wrong shape reads beyond a tensor and says nothing, and PyTorch broadcasts where a kernel does
not. So shapes, types and devices are looked at here, and values never: nothing waits for a device.
"""

import torch
from torch import Tensor

FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
LONG, BOOL = (torch.int64,), (torch.bool,)
FIXED = {"2": 2, "3": 3}

type Argument = tuple[str, object, str, tuple[torch.dtype, ...]]


def tensors(op: str, *arguments: Argument) -> dict[str, int]:
    """Every argument is (name, tensor, axes, types): a letter for each axis, of one size wherever it stands, a digit
    for an axis of that size; all on one device. Returns the sizes."""
    sizes, device, known, last = FIXED.copy(), None, "", None
    for name, x, axes, types in arguments:
        if not isinstance(x, Tensor):
            raise ValueError(f"{op}: {name} is of type {type(x).__name__}, not a tensor")
        if x.dtype not in types:
            raise ValueError(f"{op}: {name} is of {x.dtype}, known are {', '.join(map(str, types))}")
        if device is None:
            device = x.device
        elif x.device != device:
            raise ValueError(f"{op}: {name} is on {x.device}, {arguments[0][0]} on {device}")
        shape = x.shape
        if axes == known and shape == last:
            continue
        if len(shape) != len(axes):
            raise ValueError(f"{op}: {name} has the shape {list(shape)}, not [{', '.join(axes)}]")
        known, last = axes, shape
        for axis, size in zip(axes, shape, strict=True):
            if sizes.setdefault(axis, size) != size:
                wanted = f"[{', '.join(axes)}] with {axis} = {sizes[axis]}"
                raise ValueError(f"{op}: {name} has the shape {list(shape)}, not {wanted}")
    return sizes


def one_of(op: str, name: str, value: object, known: tuple[str, ...]) -> None:
    if value not in known:
        raise ValueError(f"{op}: {name} is {value!r}, known are {', '.join(known)}")


def number(op: str, name: str, value: object, least: float = -torch.inf) -> None:
    """A finite Python number, at least `least`."""
    if not isinstance(value, int | float) or not least <= value < torch.inf:
        bound = "" if least == -torch.inf else f" of at least {least:g}"
        raise ValueError(f"{op}: {name} is {value!r}, not a finite number{bound}")


def whole(op: str, name: str, value: object, least: int = 0, limit: int = 2**31) -> None:
    """A Python integer from `least`, below `limit`."""
    if not isinstance(value, int) or not least <= value < limit:
        raise ValueError(f"{op}: {name} is {value!r}, not a whole number from {least} to {limit - 1}")


def without_gradients(op: str, **named: Tensor | None) -> None:
    """No gradient is asked of an op that has none: it would be cut without a word."""
    if torch.is_grad_enabled():
        for name, x in named.items():
            if x is not None and x.requires_grad:
                raise ValueError(
                    f"{op}: {name} requires a gradient, which this op does not have: detach it, or no_grad"
                )


def written(op: str, **named: Tensor) -> None:
    """What is written in place has a place in memory of its own for every element."""
    for name, x in named.items():
        if any(stride == 0 and size > 1 for size, stride in zip(x.shape, x.stride(), strict=True)):
            raise ValueError(f"{op}: {name} is written in place and was expanded: several elements share one place")
