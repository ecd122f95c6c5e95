"""Memories of equal bytes: what every policy can be within one budget, so that policies can be compared.

A budget counts all that a memory owns for one row, keys and values, fast weights and bookkeeping. It is that of the
largest policy (`budget_of`), as memories come in whole frames.
"""

from dataclasses import replace
from typing import Literal, get_args

import torch

from worldmodel.errors import UserError

from .base import FastGeometry, Geometry, MemoryConfig
from .lact import LactConfig
from .retrieval import RetrievalConfig
from .slow_fast import SlowFastConfig
from .window import WindowConfig

Policy = Literal["window", "sink_window", "slow_fast", "retrieval", "lact"]
POLICIES: tuple[Policy, ...] = get_args(Policy)
OF_FRAMES: tuple[Policy, ...] = ("window", "sink_window", "slow_fast", "retrieval")  # that hold frames only
SINK, NEAR = 12, 3  # one of so many frames is a sink's, one of so many belongs to the newest where others are kept too
RING = 4  # one of so many frames' bytes, at least, is the ring's beside fast weights


def bytes_of(config: MemoryConfig, geometry: Geometry, dtype: torch.dtype = torch.float32) -> int:
    """Bytes that a memory of one row owns from the start, as its `nbytes` would say; nothing is allocated.

    dtype: of keys and values. A FullConfig grows: 0.
    """
    return config.empty(geometry, 1, torch.empty(0, dtype=dtype, device="meta")).nbytes


def split(policy: Policy, frames: int, chunk: int) -> MemoryConfig:
    """A policy that holds `frames` frames, for chunks of `chunk`.

    24 frames are a ring of 24; sink 2 and ring 22; sink 2, slow 14 and fast 8; sink 2, a bank of 14 of which 7 are
    read, and ring 8; for lact its ring alone. UserError if they are too few.
    """
    sink, near = max(1, frames // SINK), max(chunk, frames // NEAR)
    least = _least(policy, chunk)
    if frames < least:
        raise UserError(f"memory {policy}: {frames} frames are too few, chunks of {chunk} need {least} or more")
    match policy:
        case "window":
            return WindowConfig(sink=0, ring=frames)
        case "sink_window":
            return WindowConfig(sink=sink, ring=frames - sink)
        case "slow_fast":
            return SlowFastConfig(sink=sink, slow=frames - sink - near, fast=near)
        case "retrieval":
            bank = frames - sink - near
            return RetrievalConfig(sink=sink, bank=bank, read=max(1, bank // 2), ring=near)
        case "lact":
            return LactConfig(ring=frames)


def budget_of(frames: int, geometry: Geometry, chunk: int, dtype: torch.dtype = torch.float32) -> int:
    """Bytes of the largest of the policies that hold `frames` frames and nothing else."""
    return max(bytes_of(split(policy, frames, chunk), geometry, dtype) for policy in OF_FRAMES)


def within(
    policy: Policy, budget: int, geometry: Geometry, chunk: int, dtype: torch.dtype = torch.float32
) -> MemoryConfig:
    """The memory of a policy with the most frames that `budget` bytes hold; lact with the fast weights of `geometry`.

    Less than the bytes of one frame is left. UserError if one chunk does not fit, and for lact without fast weights.
    """
    frames = _least(policy, chunk)
    least = split(policy, frames, chunk)
    needed = bytes_of(least, geometry, dtype)
    if needed > budget:
        raise UserError(
            f"memory {policy}: a budget of {budget:,} bytes is too small for one chunk of {chunk} frames, it takes "
            f"{needed:,} bytes or more ({least})"
        )
    frames += (budget - needed) // frame_bytes(geometry, dtype)
    while bytes_of(split(policy, frames, chunk), geometry, dtype) > budget:  # bookkeeping of the frames
        frames -= 1
    return split(policy, frames, chunk)


def fast_within(
    budget: int,
    geometry: Geometry,
    chunk: int,
    expand: float = 1.0,
    momentum: bool = False,
    dtype: torch.dtype = torch.float32,
) -> FastGeometry:
    """The largest fast weights, in as few head groups as possible, that leave a quarter of the budget to a ring.

    geometry: of a model, its own fast weights ignored. expand: E / D of a group. The ring holds one chunk at least.
    UserError if not even groups of width 1 fit.
    """
    width = geometry.heads * geometry.head_dim
    frames = max(chunk, budget // frame_bytes(geometry, dtype) // RING)

    def cut(groups: int) -> FastGeometry:
        return FastGeometry(groups, max(1, round(expand * width / groups)), width // groups, momentum)

    def needed(groups: int) -> int:
        return bytes_of(LactConfig(ring=frames), replace(geometry, fast=cut(groups)), dtype)

    fitting = (groups for groups in range(1, width + 1) if width % groups == 0 and needed(groups) <= budget)
    groups = next(fitting, None)
    if groups is None:
        raise UserError(
            f"memory lact: a budget of {budget:,} bytes is too small for a ring of {frames} frames and fast weights of "
            f"width {width}; with the smallest, in {width} groups, they take {needed(width):,} bytes"
        )
    return cut(groups)


def frame_bytes(geometry: Geometry, dtype: torch.dtype = torch.float32) -> int:
    """Of the keys and values of one frame of one row, in all layers."""
    g = geometry
    return 2 * g.layers * g.heads * g.tokens * g.head_dim * dtype.itemsize


def _least(policy: Policy, chunk: int) -> int:
    """Frames that a policy needs to hold one chunk and be itself."""
    return {"window": chunk, "lact": chunk, "sink_window": chunk + 1}.get(policy, chunk + 2)
